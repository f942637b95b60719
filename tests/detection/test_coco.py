"""The reader gives what the files say, in labels from 1 on, and refuses what is broken in one line."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

from ldreg.detection import write_generated
from ldreg.detection.coco import Scenes, read_coco, read_split
from ldreg.detection.masks import rasterize

Tree = dict[str, Any]


def annotations(root: Path, split: str = "train2017") -> Path:
    return root / "annotations" / f"instances_{split}.json"


def change(root: Path, edit: Callable[[Tree], object], split: str = "train2017") -> None:
    tree = json.loads(annotations(root, split).read_text())
    edit(tree)
    annotations(root, split).write_text(json.dumps(tree))


def test_what_is_read_is_what_pycocotools_reads(generated: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_generated_masks_lie_on_their_shapes(generated: Path) -> None:
    train, _ = read_coco(generated)
    for scene in train.scenes:
        pixels = np.asarray(Image.open(scene.path)).astype(int)
        drawn = np.zeros(pixels.shape[:2], dtype=bool)
        for one in scene.instances:
            mask = rasterize(one.segmentation, height=scene.height, width=scene.width).astype(bool)
            assert len(np.unique(pixels[mask], axis=0)) == 1  # one color
            drawn |= mask
        ground = pixels[~drawn]
        assert ground.min() >= 90
        assert ground.max() <= 165


def test_the_generated_set_is_the_same_for_the_same_seed(generated: Path, tmp_path: Path) -> None:
    write_generated(tmp_path / "same", train=6, val=3, size=96)
    write_generated(tmp_path / "other", train=6, val=3, size=96, seed=1)
    for file in (path.relative_to(generated) for path in generated.rglob("*.*")):
        assert (tmp_path / "same" / file).read_bytes() == (generated / file).read_bytes()
        assert (tmp_path / "other" / file).read_bytes() != (generated / file).read_bytes()


def test_crowds_and_images_without_objects_are_left_out_of_training(copied: Path) -> None:
    first = json.loads(annotations(copied).read_text())["images"][0]["id"]

    def edit(tree: Tree) -> None:
        for annotation in tree["annotations"]:
            annotation["iscrowd"] = int(annotation["image_id"] == first)

    change(copied, edit)
    change(copied, lambda tree: tree["annotations"].pop(), split="val2017")
    train, val = read_coco(copied)
    assert first not in {scene.id for scene in train.scenes}
    assert len(train.scenes) == 5
    assert len(val.scenes) == 3  # all are evaluated


def test_boxes_without_area_are_dropped_and_counted(copied: Path) -> None:
    def edit(tree: Tree) -> None:
        one = tree["annotations"][0]
        thin = {**one, "bbox": [5, 5, 0, 9]}
        outside = {**one, "bbox": [2000, 5, 9, 9]}
        line = {**one, "segmentation": [[1, 1, 5, 5]]}
        tree["annotations"] += [thin, outside, line]

    before = sum(len(scene.instances) for scene in read_coco(copied)[0].scenes)
    change(copied, edit)
    train, _ = read_coco(copied)
    assert train.dropped == 3
    assert sum(len(scene.instances) for scene in train.scenes) == before


def test_run_lengths_may_be_text(copied: Path) -> None:
    from pycocotools import mask

    def edit(tree: Tree) -> None:
        circle = next(one for one in tree["annotations"] if isinstance(one["segmentation"], dict))
        size = circle["segmentation"]["size"]
        found = mask.frPyObjects(circle["segmentation"], *size)
        circle["segmentation"] = {"size": size, "counts": found["counts"].decode()}

    numbers = read_split(copied, "train2017")
    change(copied, edit)
    text = read_split(copied, "train2017")
    for one, other in zip(numbers.scenes, text.scenes, strict=True):
        for a, b in zip(one.instances, other.instances, strict=True):
            size = {"height": one.height, "width": one.width}
            assert (rasterize(a.segmentation, **size) == rasterize(b.segmentation, **size)).all()


def test_ids_that_mislead_pycocotools_are_numbered_anew(copied: Path) -> None:
    change(copied, lambda tree: [one.update(id=0) for one in tree["annotations"]])
    read = read_split(copied, "train2017")
    assert sorted(read.annotations.anns) == list(range(1, len(read.annotations.dataset["annotations"]) + 1))


def test_scenes_travel_to_workers(generated: Path) -> None:
    scenes = read_coco(generated)[0].scenes
    travelled: Scenes = pickle.loads(pickle.dumps(scenes))
    assert list(travelled) == list(scenes)
    with pytest.raises(IndexError):
        scenes[6]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "got an empty file"),
        (" \n", "got an empty file"),
        ("{}", "expected a list of images, got none"),
        ('{"images": []}', "expected a list of images, got an empty one"),
        ("[1]", "got a JSON list"),
        ("{'images'}", "expected JSON"),
        ("\x00\x01", "expected JSON"),
        ("[" * 200_000, "nested too deeply"),
    ],
)
@pytest.mark.parametrize("split", ["train2017", "val2017"])
def test_annotation_files_that_are_none(copied: Path, content: str, message: str, split: str) -> None:
    annotations(copied, split).write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        read_coco(copied)
    assert "\n" not in str(error.value)
    assert str(annotations(copied, split)) in str(error.value)


BROKEN: dict[str, tuple[Callable[[Tree], object], str]] = {
    "no annotations": (lambda tree: tree.update(annotations=[]), "expected a list of annotations, got an empty one"),
    "no categories": (lambda tree: tree.pop("categories"), "expected a list of categories, got none"),
    "no bbox": (lambda tree: tree["annotations"][1].pop("bbox"), r"expected bbox in annotations\[1\]"),
    "no file name": (lambda tree: tree["images"][0].pop("file_name"), r"expected file_name in images\[0\]"),
    "no object": (lambda tree: tree["images"].append(3), "got a JSON number at place 6"),
    "a box of three": (lambda tree: tree["annotations"][0]["bbox"].pop(), "expected a valid bbox"),
    "a box of NaN": (
        lambda tree: tree["annotations"][0].update(bbox=[0, 0, float("nan"), 1]),
        "NaN is no number of JSON",
    ),
    "a number no float holds": (
        lambda tree: tree["annotations"][0].update(bbox=[0, 0, 10**400, 1]),
        "expected a valid bbox",
    ),
    "an odd crowd": (lambda tree: tree["annotations"][0].update(iscrowd="yes"), "expected 0 or 1 as iscrowd"),
    "no height": (lambda tree: tree["images"][0].update(height=0), "expected a valid height"),
    "an unknown image": (lambda tree: tree["annotations"][0].update(image_id=99), "expected a known image_id"),
    "an unknown category": (lambda tree: tree["annotations"][0].update(category_id=2), "expected a known category_id"),
    "an image twice": (lambda tree: tree["images"].append(tree["images"][0]), "got 1 twice"),
    "a way out": (lambda tree: tree["images"][0].update(file_name="../a.png"), "expected file names within"),
    "crowds alone": (lambda tree: [one.update(iscrowd=1) for one in tree["annotations"]], "no crowds, got none"),
    "runs too short": (
        lambda tree: tree["annotations"][0].update(segmentation={"size": [96, 72], "counts": [5, 5]}),
        "runs that fill the image",
    ),
    "text of no runs": (
        lambda tree: tree["annotations"][0].update(segmentation={"size": [96, 72], "counts": "PPPPPP"}),
        "runs that fill the image",
    ),
    "another size": (
        lambda tree: tree["annotations"][0].update(segmentation={"size": [9, 9], "counts": [81]}),
        "to be of size",
    ),
    "a corner far away": (
        lambda tree: tree["annotations"][0].update(segmentation=[[0, 0, 1e9, 0, 5, 5]]),
        "in the image or near it",
    ),
    "corners that are no numbers": (
        lambda tree: tree["annotations"][0].update(segmentation=["cat"]),
        "in the image or near it",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_annotations_are_refused_in_one_line(copied: Path, name: str) -> None:
    edit, message = BROKEN[name]
    change(copied, edit)
    with pytest.raises(ValueError, match=message) as error:
        read_coco(copied)
    assert "\n" not in str(error.value)


def test_absent_images_are_named_and_counted(copied: Path) -> None:
    for number in (2, 5):
        (copied / "train2017" / f"{number:012d}.png").unlink()
    with pytest.raises(ValueError, match=r"got 2 of 6 absent, the first '000000000002.png'"):
        read_coco(copied)


def test_missing_files_and_folders(copied: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^path: expected COCO's annotations in .*instances_train2017.json"):
        read_coco(tmp_path / "nowhere")
    (copied / "val2017").rename(copied / "elsewhere")
    with pytest.raises(ValueError, match=r"^path: expected a folder of images at .*val2017"):
        read_coco(copied)


def test_categories_of_val_that_training_lacks(copied: Path) -> None:
    change(copied, lambda tree: tree["categories"].append({"id": 9, "name": "star"}), split="val2017")
    with pytest.raises(ValueError, match=r"expected the categories of train2017, got others: 9 \(star\)"):
        read_coco(copied)
