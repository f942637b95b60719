"""The C4 shape: strides and widths, anchors, losses, norms, and what is detected."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import paste_masks_in_image

from ldreg.encoders import LoadedEncoder
from ldreg.evaluate.detection import DetectionConfig
from ldreg.evaluate.detection.coco import read_coco
from ldreg.evaluate.detection.model import (
    Anchors,
    MaskRCNN,
    box_losses,
    build_model,
    build_proposals,
    mask_loss,
    mask_targets,
    paste,
)
from ldreg.evaluate.detection.run import lr_factor, measure_statistics, parameter_groups
from ldreg.evaluate.detection.samples import Sample, TrainingSamples, readable

Encoders = Callable[..., LoadedEncoder]
CONFIG = DetectionConfig("nowhere", anchor_sizes=(16, 32, 64), regions=8)


def samples(root: Path, count: int = 2) -> list[Sample]:
    drawn = TrainingSamples(read_coco(root)[0].scenes, sizes=(64,), longer=200, flip=0.0)
    return [readable(drawn[index, index]) for index in range(count)]


@pytest.mark.parametrize(
    ("name", "stem", "stride", "width", "depth"),
    [
        ("resnet18", "imagenet", 16, 256, 512),
        ("resnet18", "cifar", 4, 256, 512),
        ("resnet50", "imagenet", 16, 1024, 2048),
        ("resnet26d", None, 16, 1024, 2048),
    ],
)
def test_strides_and_widths(
    encoder: Encoders, name: str, stem: str | None, stride: int, width: int, depth: int
) -> None:
    loaded = encoder(name, stem=stem)
    model = build_model(loaded, CONFIG, classes=80).eval()
    assert model.stride == model.proposals.anchor_generator.stride == stride
    assert model.heads.box_roi_pool.spatial_scale == 1 / stride
    images = torch.randn(1, 3, 64, 96, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        features = model.backbone(images)
        assert features.shape == (1, width, 64 // stride, 96 // stride)
        pooled = model.heads.box_head.layer4(features).mean((2, 3))
        assert torch.allclose(pooled, loaded.module(images), atol=1e-5)
        regions = model.heads._shared(features, [torch.tensor([[0.0, 0.0, 32.0, 32.0]])])
        assert regions.shape == (1, depth, 7, 7)
        scores, moves = model.heads._boxes(regions)
        assert (scores.shape, moves.shape) == ((1, 81), (1, 324))
        assert model.heads.mask_predictor(regions).shape == (1, 81, 14, 14)
        next(model.backbone.parameters()).add_(1)
        assert torch.allclose(pooled, loaded.module(images), atol=1e-5)  # a copy was changed
    assert isinstance(model.heads.box_head.norm, nn.BatchNorm2d)  # MoCo's extra norm


def test_anchors_by_hand() -> None:
    anchors = Anchors((32, 64), stride=16)
    images = ImageList(torch.zeros(2, 3, 32, 48), [(32, 48), (30, 40)])
    features = torch.zeros(2, 8, 2, 3, dtype=torch.bfloat16)
    first, second = anchors(images, [features])
    assert torch.equal(first, second)
    assert first.shape == (2 * 3 * 6, 4)
    assert first.dtype == torch.float32
    half = math.sqrt(2) * 16  # half the width, and twice half the height, of an anchor with the area 32²
    assert torch.allclose(first[0], torch.tensor([-half, -half / 2, half, half / 2]))
    assert torch.allclose((first[:, 2:] + first[:, :2])[-1] / 2, torch.tensor([32.0, 16.0]))  # the last cell's center
    areas = (first[:6, 2] - first[:6, 0]) * (first[:6, 3] - first[:6, 1])
    assert torch.allclose(areas.view(3, 2), torch.tensor([1024.0, 4096.0]).expand(3, 2))


def test_proposal_losses_by_hand() -> None:
    proposals = build_proposals(8, stride=16, sizes=(32,), tested=1000)
    labels = [torch.tensor([1.0, 0.0, -1.0])]  # an object, ground, and one between that does not count
    scores = torch.tensor([[2.0], [1.0], [9.0]])
    moves = torch.tensor([[1.0, 0.0, 0.0, 0.5], [9.0, 9.0, 9.0, 9.0], [9.0, 9.0, 9.0, 9.0]])
    objectness, placed = proposals.compute_loss(scores, moves, labels, [torch.zeros(3, 4)])
    assert objectness.item() == pytest.approx((math.log1p(math.exp(-2)) + math.log1p(math.exp(1))) / 256)
    assert placed.item() == pytest.approx(1.5 / 256)


def test_head_losses_by_hand() -> None:
    scores, moves = torch.zeros(2, 3), torch.zeros(2, 12)
    moves[0, 8:] = torch.tensor([1.0, 2.0, 0.0, 0.0])  # of class 2
    losses = box_losses(scores, moves, torch.tensor([2, 0]), torch.zeros(2, 4))
    assert losses["class"].item() == pytest.approx(math.log(3))
    assert losses["box"].item() == pytest.approx(3 / 2)
    predicted = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    wanted = (predicted[:, 0] > 0).float()
    expected = torch.stack((predicted[0, 2], predicted[1, 1]))
    found = mask_loss(predicted, torch.tensor([2, 1]), wanted)
    assert torch.allclose(found, binary_cross_entropy_with_logits(expected, wanted))
    empty = predicted[:0].requires_grad_()
    mask_loss(empty, torch.tensor([], dtype=torch.int64), wanted[:0]).backward()


@pytest.mark.parametrize("norm", ["batch", "frozen"])
def test_every_parameter_learns_but_those_of_frozen_norms(encoder: Encoders, generated: Path, norm: Any) -> None:
    model = build_model(encoder(), replace(CONFIG, norm=norm), classes=3).train()
    before = [value.clone() for one in model.norms() for value in one.state_dict().values()]
    losses, none = model(samples(generated))
    assert none == []
    assert set(losses) == {"objectness", "proposal", "class", "box", "mask"}
    torch.stack(tuple(losses.values())).sum().backward()
    fixed = [parameter for parameter in model.parameters() if parameter.grad is None]
    after = [value for one in model.norms() for value in one.state_dict().values()]
    assert hasattr(model.heads.box_head, "norm") == (norm == "batch")
    assert len(fixed) == (2 * len(model.norms()) if norm == "frozen" else 0)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)) == (norm == "frozen")
    assert all(one.training == (norm == "batch") for one in model.norms())


def test_what_is_detected_lies_in_the_image(encoder: Encoders, generated: Path) -> None:
    torch.manual_seed(0)
    model = build_model(encoder(), CONFIG, classes=3)
    nn.init.normal_(model.heads.box_predictor.cls_score.weight, std=5.0)  # else all is one third
    batch = samples(generated)
    with torch.no_grad():
        measure_statistics(model, [batch])
        losses, detections = model.eval()(batch)
    assert losses == {}
    for sample, found in zip(batch, detections, strict=True):
        height, width = sample.image.shape[1:]
        assert 0 < len(found["boxes"]) <= 100
        assert found["masks"].shape == (len(found["boxes"]), 14, 14)
        assert found["labels"].unique().tolist()[0] >= 1
        assert (found["boxes"] >= 0).all()
        assert (found["boxes"] <= torch.tensor([width, height, width, height])).all()
    model.heads.score_thresh = 2.0  # which nothing reaches
    with torch.no_grad():
        _, detections = model(batch)
    assert [found["masks"].shape for found in detections] == [(0, 14, 14)] * 2


def test_padding_changes_no_normalization_and_gray_encoders_get_luminance(encoder: Encoders) -> None:
    images = [torch.full((3, 20, 30), 255, dtype=torch.uint8), torch.zeros(3, 33, 10, dtype=torch.uint8)]
    batch = build_model(encoder("resnet18"), CONFIG, classes=3)._batch(images)
    assert batch.tensors.shape == (2, 3, 48, 32)
    assert batch.image_sizes == [(20, 30), (33, 10)]
    assert torch.allclose(batch.tensors[0, 0, :20, :30], torch.tensor((1 - 0.485) / 0.229))
    assert torch.allclose(batch.tensors[1, 2, :33, :10], torch.tensor(-0.406 / 0.225))
    assert not batch.tensors[0, :, 20:].any()
    assert not batch.tensors[1, :, :, 10:].any()
    color = torch.tensor([200, 100, 50], dtype=torch.uint8).view(3, 1, 1).expand(3, 4, 4)
    gray = build_model(encoder("resnet18", channels=1), CONFIG, classes=3)._batch([color]).tensors[0, 0, 0, 0].item()
    mean, deviation = (0.485 + 0.456 + 0.406) / 3, (0.229 + 0.224 + 0.225) / 3
    assert gray == pytest.approx(((0.299 * 200 + 0.587 * 100 + 0.114 * 50) / 255 - mean) / deviation, abs=1e-5)


def test_statistics_are_the_average_over_batches(encoder: Encoders, generated: Path) -> None:
    model = build_model(encoder(), CONFIG, classes=3)
    seen: list[Tensor] = []

    def note(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0].transpose(0, 1).flatten(1))

    norm = model.backbone.bn1
    assert isinstance(norm, nn.BatchNorm2d)
    norm.register_forward_pre_hook(note)
    first, second = samples(generated, 1), samples(generated, 2)
    measure_statistics(model, [first, second])
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert torch.allclose(norm.running_mean, (seen[0].mean(1) + seen[1].mean(1)) / 2, atol=1e-5)
    assert torch.allclose(norm.running_var, (seen[0].var(1) + seen[1].var(1)) / 2, atol=1e-4)
    assert norm.momentum == 0.1


def test_norms_are_not_decayed(encoder: Encoders) -> None:
    model: MaskRCNN = build_model(encoder(), CONFIG, classes=3)
    decayed, spared = parameter_groups(model, CONFIG)
    assert (decayed["weight_decay"], spared["weight_decay"]) == (1e-4, 0.0)
    assert len(spared["params"]) == 2 * len(model.norms())
    assert len(decayed["params"]) + len(spared["params"]) == len(list(model.parameters()))


def test_the_schedule_is_detectron2s() -> None:
    # The steps that coco_R_50_C4_2x.yaml and Base-RCNN-C4.yaml name.
    for total, steps in ((180_000, (120_000, 160_000)), (90_000, (60_000, 80_000))):
        for step, before, after in zip(steps, (1.0, 0.1), (0.1, 0.01), strict=True):
            assert lr_factor(step - 1, total=total, warmup=1000) == pytest.approx(before)
            assert lr_factor(step, total=total, warmup=1000) == pytest.approx(after)
    assert lr_factor(500, total=90_000, warmup=1000) == pytest.approx(0.5005)
    assert lr_factor(0, total=10, warmup=0) == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"iterations": 0}, "iterations: expected at least 1"),
        ({"iterations": 10, "warmup_iterations": 10}, "warmup_iterations: expected fewer than the 10"),
        ({"batch_size": 6, "devices": 4}, "batch_size: expected a multiple of the 4 devices"),
        ({"lr": math.nan}, "lr: expected a finite number"),
        ({"momentum": 1.0}, "momentum: expected"),
        ({"weight_decay": -1.0}, "weight_decay: expected"),
        ({"flip": 2.0}, "flip: expected a probability"),
        ({"train_sizes": ()}, "train_sizes: expected one or more"),
        ({"max_size": 700}, "max_size: expected at least"),
    ],
)
def test_settings_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        DetectionConfig("coco", **options)


def test_targets_by_hand() -> None:
    masks = torch.zeros(2, 8, 8, dtype=torch.uint8)
    masks[0, :4] = 1  # the upper half
    masks[1, :, :4] = 1  # the left half
    boxes = torch.tensor([[0.0, 0.0, 8.0, 8.0], [0.0, 0.0, 8.0, 8.0], [4.0, 0.0, 8.0, 8.0]])
    found = mask_targets(masks, boxes, torch.tensor([0, 1, 1]), side=2)
    assert found.tolist() == [[[1, 1], [0, 0]], [[1, 0], [1, 0]], [[0, 0], [0, 0]]]
    assert mask_targets(masks, boxes[:0], torch.tensor([], dtype=torch.int64), side=2).shape == (0, 2, 2)


def test_pasting_undoes_the_targets_and_agrees_with_torchvision() -> None:
    def overlap(a: Tensor, b: Tensor) -> float:
        return ((a & b).sum() / (a | b).sum()).item()

    rows, columns = torch.meshgrid(torch.arange(60), torch.arange(80), indexing="ij")
    mask = ((rows - 30) ** 2 + (columns - 40) ** 2 <= 400)[None]
    boxes = torch.tensor([[20.0, 10.0, 61.0, 51.0]])
    inside = mask_targets(mask.byte(), boxes, torch.tensor([0]), side=28)
    assert overlap(paste(inside, boxes, height=60, width=80), mask) > 0.95
    generator = torch.Generator().manual_seed(0)
    smooth = torch.nn.functional.interpolate(torch.rand(5, 1, 4, 4, generator=generator), size=14, mode="bilinear")
    for box in torch.tensor([[3.0, 4.0, 33.0, 44.0], [-5.0, 2.0, 20.0, 20.0], [30.0, 30.0, 75.0, 75.0]]):
        boxes = box.repeat(5, 1)
        theirs = paste_masks_in_image(smooth, boxes, (50, 60))[:, 0] >= 0.5  # which rounds boxes to pixels
        assert overlap(paste(smooth[:, 0], boxes, height=50, width=60), theirs) > 0.85
    assert not paste(smooth[:1, 0], torch.tensor([[70.0, 0.0, 90.0, 9.0]]), height=50, width=60).any()
