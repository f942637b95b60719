"""Annotations as pycocotools reads them, run lengths, and one line for what is broken."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools import mask as coco
from pycocotools.coco import COCO

from ldreg.evaluate.detection.coco import covers, encode, rasterize, read_coco, read_split, write_generated

Tree = dict[str, Any]


def annotations(root: Path, split: str = "train2017") -> Path:
    return root / "annotations" / f"instances_{split}.json"


def change(root: Path, edit: Callable[[Tree], object], split: str = "train2017") -> None:
    tree = json.loads(annotations(root, split).read_text())
    edit(tree)
    annotations(root, split).write_text(json.dumps(tree))


def test_objects_are_those_that_pycocotools_reads(generated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, val = read_coco(generated)
    assert capsys.readouterr().out == ""
    assert (len(train.scenes), len(val.scenes), train.dropped) == (6, 3, 0)
    reference = COCO(str(annotations(generated)))
    labels = {1: 1, 3: 2, 7: 3}  # the ids of circle, square and triangle
    assert dict(train.categories) == {1: "circle", 3: "square", 7: "triangle"}
    for scene in train.scenes:
        wanted = reference.imgToAnns[scene.id]
        assert [one.label for one in scene.instances] == [labels[annotation["category_id"]] for annotation in wanted]
        for one, annotation in zip(scene.instances, wanted, strict=True):
            x, y, width, height = annotation["bbox"]
            assert one.box == (x, y, x + width, y + height)
            mask = rasterize(one.segmentation, height=scene.height, width=scene.width)
            assert mask.sum() == annotation["area"]
            rows, columns = mask.nonzero()
            assert one.box == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
            pixels = np.asarray(Image.open(scene.path))[mask.astype(bool)]
            assert len(np.unique(pixels, axis=0)) == 1  # a shape has one color


def test_the_generated_set_is_the_same_for_the_same_seed(generated: Path, tmp_path: Path) -> None:
    write_generated(tmp_path / "same", train=6, val=3, size=96)
    write_generated(tmp_path / "other", train=6, val=3, size=96, seed=1)
    for file in (path.relative_to(generated) for path in generated.rglob("*.*")):
        assert (tmp_path / "same" / file).read_bytes() == (generated / file).read_bytes()
        assert (tmp_path / "other" / file).read_bytes() != (generated / file).read_bytes()
    scenes = read_coco(generated)[0].scenes
    assert list(pickle.loads(pickle.dumps(scenes))) == list(scenes)  # as they travel to workers


def test_objects_that_cannot_be_used_are_left_out(copied: Path) -> None:
    before = sum(len(scene.instances) for scene in read_coco(copied)[0].scenes)

    def edit(tree: Tree) -> None:
        one = tree["annotations"][0]
        thin, outside = {**one, "bbox": [5, 5, 0, 9]}, {**one, "bbox": [2000, 5, 9, 9]}
        tree["annotations"] += [thin, outside, {**one, "segmentation": [[1, 1, 5, 5]]}]
        for annotation in tree["annotations"]:
            annotation["id"] = 0  # which pycocotools takes for "no match"

    change(copied, edit)
    train = read_split(copied, "train2017")
    assert train.dropped == 3
    assert sum(len(scene.instances) for scene in train.scenes) == before
    assert sorted(train.annotations.anns) == list(range(1, before + 1))
    first = train.scenes[0].id
    change(copied, lambda tree: [one.update(iscrowd=int(one["image_id"] == first)) for one in tree["annotations"]])
    change(copied, lambda tree: tree["annotations"].pop(), split="val2017")
    train, val = read_coco(copied)
    assert first not in {scene.id for scene in train.scenes}
    assert (len(train.scenes), len(val.scenes)) == (5, 3)  # training leaves out images without objects


def test_run_lengths_are_pycocotools_and_fill_the_image() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        height, width = (int(side) for side in generator.integers(1, 60, 2))
        masks = torch.from_numpy(generator.random((3, height, width)) < generator.random())
        for one, found in zip(masks, encode(masks), strict=True):
            assert (rasterize(found, height=height, width=width) == one.numpy()).all()
            assert coco.area(found) == one.sum()
            assert covers(found["counts"], height * width)
            assert not covers(found["counts"], height * width + 1)
    assert encode(masks[:0]) == []
    assert rasterize({"size": [2, 2], "counts": [1, 2, 1]}, height=2, width=2).tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize("counts", ["", "0", "garbage", "o" * 99, "ñ", [-1, 5], [4.0], [True, 3], None, 4])
def test_other_values_are_no_run_lengths(counts: object) -> None:
    assert not covers(counts, 4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (" \n", "got an empty file"),
        ("{}", "expected a list of images, got none"),
        ('{"images": []}', "expected a list of images, got an empty one"),
        ("[1]", "got a JSON list"),
        ("\x00\x01", "as JSON, got"),
        ("[" * 200_000, "nested too deeply"),
    ],
)
def test_files_without_annotations_are_named(copied: Path, content: str, message: str) -> None:
    annotations(copied, "val2017").write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        read_coco(copied)
    assert "\n" not in str(error.value)
    assert str(annotations(copied, "val2017")) in str(error.value)


def first(**values: object) -> Callable[[Tree], object]:
    return lambda tree: tree["annotations"][0].update(values)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda tree: tree.pop("categories"), "expected a list of categories, got none"),
        (lambda tree: tree["annotations"][1].pop("bbox"), r"expected a valid bbox in annotations\[1\], got none"),
        (lambda tree: tree["images"].append(3), "got a JSON number at place 6"),
        (lambda tree: tree["images"][0].update(height=0), "expected a valid height"),
        (lambda tree: tree["images"].append(tree["images"][0]), "got 1 twice"),
        (lambda tree: tree["images"][0].update(file_name="../a.png"), "expected file names within"),
        (lambda tree: [one.update(iscrowd=1) for one in tree["annotations"]], "no crowds, got none"),
        (first(bbox=[0, 0, 1]), "expected a valid bbox"),
        (first(bbox=[0, 0, float("nan"), 1]), "NaN, which is no number of JSON"),
        (first(bbox=[0, 0, 10**400, 1]), "expected a valid bbox"),
        (first(iscrowd="yes"), "expected 0 or 1 as iscrowd"),
        (first(image_id=99), "expected a known image_id"),
        (first(category_id=2), "expected a known category_id"),
        (first(segmentation={"size": [96, 72], "counts": [5, 5]}), "runs that fill the image"),
        (first(segmentation={"size": [96, 72], "counts": "PPPPPP"}), "runs that fill the image"),
        (first(segmentation={"size": [9, 9], "counts": [81]}), "to be of size"),
        (first(segmentation=[[0, 0, 1e9, 0, 5, 5]]), "in the image or near it"),
        (first(segmentation=["cat"]), "in the image or near it"),
    ],
)
def test_broken_annotations_are_one_line(copied: Path, edit: Callable[[Tree], object], message: str) -> None:
    change(copied, edit)
    with pytest.raises(ValueError, match=message) as error:
        read_coco(copied)
    assert "\n" not in str(error.value)


def test_missing_files_folders_and_categories_are_named(copied: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^path: expected COCO's annotations in .*instances_train2017.json"):
        read_coco(tmp_path / "nowhere")
    change(copied, lambda tree: tree["categories"].append({"id": 9, "name": "star"}), split="val2017")
    with pytest.raises(ValueError, match=r"expected the categories of train2017, got others: 9 \(star\)"):
        read_coco(copied)
    (copied / "val2017").rename(copied / "elsewhere")
    with pytest.raises(ValueError, match=r"^path: expected a folder of images at .*val2017"):
        read_split(copied, "val2017")
    for number in (2, 5):
        (copied / "train2017" / f"{number:012d}.png").unlink()
    with pytest.raises(ValueError, match=r"got 2 of 6 absent, the first '000000000002.png'"):
        read_coco(copied)
