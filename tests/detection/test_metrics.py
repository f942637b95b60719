"""Average precision through pycocotools: 1 for the truth, 0 for nothing, and in the original image's pixels."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ldreg.detection.coco import Scene, read_split
from ldreg.detection.masks import encode, rasterize
from ldreg.detection.metrics import Precision, as_found, average_precision, original_boxes


def truth(root: Path) -> tuple[Any, list[dict[str, Any]]]:
    train = read_split(root, "train2017")
    ids = list(train.categories)
    found = [
        {
            "image_id": scene.id,
            "category_id": ids[one.label - 1],
            "score": 0.9,
            "bbox": [one.box[0], one.box[1], one.box[2] - one.box[0], one.box[3] - one.box[1]],
            "segmentation": encode(
                torch.from_numpy(rasterize(one.segmentation, height=scene.height, width=scene.width))[None]
            )[0],
        }
        for scene in train.scenes
        for one in scene.instances
    ]
    return train.annotations, found


def test_the_truth_is_perfect_and_nothing_is_worth_nothing(generated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    annotations, found = truth(generated)
    for kind in ("bbox", "segm"):
        assert average_precision(annotations, found, kind=kind) == Precision(1.0, 1.0, 1.0)
        assert average_precision(annotations, [], kind=kind) == Precision(0.0, 0.0, 0.0)
    assert capsys.readouterr().out == ""


def test_wrong_classes_and_shifted_boxes_cost(generated: Path) -> None:
    annotations, found = truth(generated)
    confused = [{**one, "category_id": {1: 3, 3: 7, 7: 1}[one["category_id"]]} for one in found]
    assert average_precision(annotations, confused, kind="bbox").ap50 < 0.2
    # Two thirds of a box moved by a fifth of it overlap: (1 - 0.2) / (1 + 0.2).
    moved = [{**one, "bbox": [one["bbox"][0] + 0.2 * one["bbox"][2], *one["bbox"][1:]]} for one in found]
    precision = average_precision(annotations, moved, kind="bbox")
    assert precision.ap50 == 1.0
    assert precision.ap75 == 0.0
    assert precision.ap == pytest.approx(0.4)  # 0.50, 0.55, 0.60, 0.65 of ten overlaps
    assert average_precision(annotations, moved, kind="segm").ap == 1.0  # the masks did not move


def test_detections_go_back_to_the_original_size() -> None:
    scene = Scene(5, "", height=100, width=200, instances=())
    boxes = torch.tensor([[10.0, 20.0, 110.0, 120.0], [-9.0, 0.0, 900.0, 20.0], [450.0, 0.0, 500.0, 20.0]])
    in_scene = original_boxes(boxes, scene, shape=(200, 400))
    assert in_scene.tolist() == [[5.0, 10.0, 55.0, 60.0], [0.0, 0.0, 200.0, 10.0], [200.0, 0.0, 200.0, 10.0]]
    detections = {
        "boxes": boxes,
        "labels": torch.tensor([2, 1, 1]),
        "scores": torch.tensor([0.75, 0.5, 0.25]),
        "masks": torch.ones(3, 14, 14),
    }
    first, second = as_found(detections, scene, shape=(200, 400), categories={4: "cat", 8: "dog"})
    assert (first["image_id"], first["category_id"], first["score"]) == (5, 8, 0.75)
    assert first["bbox"] == [5.0, 10.0, 50.0, 50.0]
    assert second["category_id"] == 4
    mask = rasterize(first["segmentation"], height=100, width=200)
    assert mask[10:60, 5:55].sum() == mask.sum() == 50 * 50 - 4  # at a corner, a mask fades out along both sides
