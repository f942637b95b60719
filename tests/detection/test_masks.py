"""Masks inside boxes and back, against torchvision and by hand."""

import numpy as np
import pytest
import torch
from pycocotools import mask as coco
from torchvision.models.detection.roi_heads import paste_masks_in_image

from ldreg.detection.masks import encode, fills, mask_targets, paste, rasterize


def test_targets_by_hand() -> None:
    masks = torch.zeros(2, 8, 8, dtype=torch.uint8)
    masks[0, :4] = 1  # the upper half
    masks[1, :, :4] = 1  # the left half
    boxes = torch.tensor([[0.0, 0.0, 8.0, 8.0], [0.0, 0.0, 8.0, 8.0], [4.0, 0.0, 8.0, 8.0]])
    found = mask_targets(masks, boxes, torch.tensor([0, 1, 1]), side=2)
    assert found.tolist() == [[[1, 1], [0, 0]], [[1, 0], [1, 0]], [[0, 0], [0, 0]]]
    assert mask_targets(masks, boxes[:0], torch.tensor([], dtype=torch.int64), side=2).shape == (0, 2, 2)


def test_pasting_undoes_the_targets() -> None:
    rows, columns = torch.meshgrid(torch.arange(60), torch.arange(80), indexing="ij")
    mask = ((rows - 30) ** 2 + (columns - 40) ** 2 <= 400)[None]
    boxes = torch.tensor([[20.0, 10.0, 61.0, 51.0]])
    inside = mask_targets(mask.byte(), boxes, torch.tensor([0]), side=28)
    pasted = paste(inside, boxes, height=60, width=80)
    overlap = (pasted & mask).sum() / (pasted | mask).sum()
    assert overlap > 0.95


def test_pasting_agrees_with_torchvision() -> None:
    generator = torch.Generator().manual_seed(0)
    smooth = torch.nn.functional.interpolate(torch.rand(5, 1, 4, 4, generator=generator), size=14, mode="bilinear")
    corners = torch.tensor([[3.0, 4.0, 33.0, 44.0], [-5.0, 2.0, 20.0, 20.0], [30.0, 30.0, 75.0, 75.0]])
    for box in corners:
        boxes = box.repeat(5, 1)
        ours = paste(smooth[:, 0], boxes, height=50, width=60)
        theirs = paste_masks_in_image(smooth, boxes, (50, 60))[:, 0] >= 0.5  # which rounds boxes to pixels
        assert ((ours & theirs).sum() / (ours | theirs).sum()) > 0.85
    outside = paste(smooth[:1, 0], torch.tensor([[70.0, 0.0, 90.0, 9.0]]), height=50, width=60)
    assert not outside.any()


def test_encoding_is_read_back_and_measured() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        height, width = (int(side) for side in generator.integers(1, 60, 2))
        mask = torch.from_numpy(generator.random((3, height, width)) < generator.random())
        for one, found in zip(mask, encode(mask), strict=True):
            assert (rasterize(found, height=height, width=width) == one.numpy()).all()
            assert coco.area(found) == one.sum()
            assert fills(found["counts"], height * width)
            assert not fills(found["counts"], height * width + 1)
    assert encode(mask[:0]) == []


@pytest.mark.parametrize("counts", ["", "0", "garbage", "o" * 99, "ñ", [-1, 5], [4.0], [True, 3], None, 4])
def test_runs_that_are_none(counts: object) -> None:
    assert not fills(counts, 4)
