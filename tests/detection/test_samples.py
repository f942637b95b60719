"""Flips and sizes move boxes and masks with the image, and the order is a function of the iteration alone."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from ldreg.evaluate.detection.coco import read_coco
from ldreg.evaluate.detection.samples import (
    IterationOrder,
    Sample,
    TestSamples,
    TrainingSamples,
    flipped,
    open_scene,
    readable,
    resized,
)


def a_sample() -> Sample:
    """An image 4 wide and 2 high, with an object in the two pixels at the left below."""
    image = torch.arange(24, dtype=torch.uint8).view(3, 2, 4)
    masks = torch.tensor([[[0, 0, 0, 0], [1, 1, 0, 0]]], dtype=torch.uint8)
    return Sample(image, torch.tensor([[0.0, 1.0, 2.0, 2.0]]), torch.tensor([1]), masks)


def test_a_flip_by_hand() -> None:
    turned = flipped(a_sample())
    assert turned.image[0].tolist() == [[3, 2, 1, 0], [7, 6, 5, 4]]
    assert turned.boxes.tolist() == [[2.0, 1.0, 4.0, 2.0]]
    assert turned.masks.tolist() == [[[0, 0, 0, 0], [0, 0, 1, 1]]]
    again = flipped(turned)
    assert all(torch.equal(a, b) for a, b in zip(again, a_sample(), strict=True))


def test_a_new_size_by_hand() -> None:
    larger = resized(a_sample(), shorter=6, longer=100)
    assert larger.image.shape == (3, 6, 12)
    assert larger.boxes.tolist() == [[0.0, 3.0, 6.0, 6.0]]
    assert larger.masks.shape == (1, 2, 4)  # as it was
    narrow = resized(a_sample(), shorter=6, longer=8)
    assert narrow.image.shape == (3, 4, 8)
    assert narrow.boxes.tolist() == [[0.0, 2.0, 4.0, 4.0]]


def test_draws_come_from_their_seed(generated: Path) -> None:
    scenes = read_coco(generated)[0].scenes
    samples = TrainingSamples(scenes, sizes=(40, 48, 56), longer=200, flip=0.5)
    drawn = [readable(samples[0, seed]) for seed in range(40)]
    assert torch.equal(drawn[7].image, readable(samples[0, 7]).image)
    assert {min(sample.image.shape[1:]) for sample in drawn} == {40, 48, 56}
    original = readable(open_scene(scenes[0]))
    mirrored = [torch.equal(sample.masks, original.masks.flip(2)) for sample in drawn]
    assert 8 < sum(mirrored) < 32
    for sample, mirror in zip(drawn, mirrored, strict=True):
        boxes = (flipped(original) if mirror else original).boxes
        scale = sample.image.shape[2] / original.image.shape[2]
        assert torch.allclose(sample.boxes, boxes * scale, atol=0.5)


def test_boxes_hold_their_masks(generated: Path) -> None:
    train, val = (split.scenes for split in read_coco(generated))
    samples = TrainingSamples(train, sizes=(72,), longer=200, flip=0.5)
    for index in range(6):
        sample = readable(samples[index, index])
        assert sample.image.shape[1:] == sample.masks.shape[1:]  # the size that the set has
        for box, mask in zip(sample.boxes.tolist(), sample.masks, strict=True):
            rows, columns = mask.nonzero().unbind(1)
            assert box == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    tested = TestSamples(val, range(0, 3, 2), shorter=144, longer=300)
    index, plain = tested[1]
    assert (len(tested), index, min(readable(plain).image.shape[1:])) == (2, 2, 144)


def test_unreadable_files_are_named(copied: Path) -> None:
    scenes = read_coco(copied)[0].scenes
    (copied / "train2017" / "000000000001.png").write_bytes(b"no image")
    samples = TrainingSamples(scenes, sizes=(72,), longer=200, flip=0.5)
    with pytest.raises(ValueError, match=r"000000000001.png: expected an image, got one that cannot be read"):
        readable(samples[0, 0])
    wrong = scenes[1]._replace(height=scenes[1].height + 1)
    with pytest.raises(ValueError, match="expected 96x73 pixels as the annotations say, got 96x72"):
        readable(open_scene(wrong))


LANDSCAPE = np.array([True, False, True, True, False, True, True])


def test_batches_are_of_one_orientation_and_every_image_comes_as_often() -> None:
    order = IterationOrder(LANDSCAPE, batch_size=2, seed=0, stop=70)
    batches = list(order)
    assert len(batches) == len(order) == 70
    assert all(len({bool(LANDSCAPE[index]) for index, _ in batch}) == 1 for batch in batches)
    seen = Counter(index for batch in batches for index, _ in batch)
    assert max(seen.values()) - min(seen.values()) <= 1
    assert len({seed for batch in batches for _, seed in batch}) == 140  # no draw is made twice


def test_a_resumed_order_is_the_rest_of_it_and_ranks_share_its_batches() -> None:
    whole = list(IterationOrder(LANDSCAPE, batch_size=2, seed=3, stop=20))
    assert list(IterationOrder(LANDSCAPE, batch_size=2, seed=3, start=8, stop=20)) == whole[8:]
    assert list(IterationOrder(LANDSCAPE, batch_size=2, seed=4, stop=20)) != whole
    ranks = [IterationOrder(LANDSCAPE, batch_size=2, seed=3, rank=rank, world=2, stop=10) for rank in (0, 1)]
    shared = [[index for index, _ in batch] for pair in zip(*ranks, strict=True) for batch in pair]
    assert shared == [[index for index, _ in batch] for batch in whole]
    small = IterationOrder(np.array([True, True]), batch_size=4, seed=0, stop=3)  # fewer images than a batch
    assert [sorted(index for index, _ in batch) for batch in small] == [[0, 0, 1, 1]] * 3
