"""A set in COCO's layout, read and checked whole before anything is trained on it."""

import json
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pycocotools.coco import COCO

from ldreg.detection.annotations import (
    Tree,
    check_files,
    check_keys,
    check_references,
    corners,
    drop_empty,
    load,
    read_categories,
)
from ldreg.detection.masks import Segmentation

Split = Literal["train2017", "val2017"]


@dataclass(frozen=True)
class Instance:
    """One object: its box (left, top, right, bottom) within the image, its label from 1 on, its segmentation."""

    box: tuple[float, float, float, float]
    label: int
    segmentation: Segmentation


@dataclass(frozen=True)
class Scene:
    """One image and the objects in it."""

    id: int
    path: str
    height: int
    width: int
    instances: tuple[Instance, ...]


class Scenes(Sequence[Scene]):
    """Scenes packed into one array of bytes.

    Worker processes share it without copying; hundreds of thousands of Python objects would be copied, page by page,
    as their reference counts change.
    """

    def __init__(self, scenes: Sequence[Scene]) -> None:
        packed = [json.dumps(_as_tree(scene)).encode() for scene in scenes]
        self._ends = np.cumsum([len(one) for one in packed])
        self._bytes = np.frombuffer(b"".join(packed), dtype=np.uint8)
        self.landscape = np.array([scene.width > scene.height for scene in scenes])

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = self._ends[index - 1] if index else 0
        tree = json.loads(self._bytes[start : self._ends[index]].tobytes())
        instances = tuple(Instance(tuple(box), label, mask) for box, label, mask in tree.pop("instances"))
        return Scene(**tree, instances=instances)


@dataclass(frozen=True, eq=False)
class CocoSplit:
    """The images of one split, ready to be drawn from, and the annotations as pycocotools holds them.

    `scenes` holds the images; crowds, and objects with an empty box or without a valid mask, are left out of them.
    `dropped` counts the latter. `annotations` is empty for training. `categories` maps COCO's ids to names, in the
    order of the labels. `fingerprint` is a hash of the annotation file.
    """

    scenes: Scenes
    annotations: COCO
    categories: Mapping[int, str]
    dropped: int
    fingerprint: str


def read_coco(root: Path) -> tuple[CocoSplit, CocoSplit]:
    """The training and the validation split of a set in COCO's layout; images without objects are left out of training.

    Objects count as labels 1, 2, ... in the order of the training split's category ids.

    Raises:
        ValueError: an annotation file that is missing, empty, not JSON or not COCO's; an image that is listed and
            absent; categories in the validation split that are not in the training split.
    """
    train = read_split(root, "train2017", empty=False)
    val = read_split(root, "val2017", categories=train.categories)
    # Of the training split the scenes are enough; the rest would take gigabytes in every process.
    return replace(train, annotations=COCO()), val


def read_split(
    root: Path, split: Split, *, categories: Mapping[int, str] | None = None, empty: bool = True
) -> CocoSplit:
    """The images of one split, with `empty` also those without objects, labeled by `categories` or else its own.

    Raises:
        ValueError: as `read_coco` says.
    """
    file = _annotation_file(root, split)
    tree, fingerprint = load(file)
    check_keys(file, tree)
    found = read_categories(file, tree, known=categories)
    check_references(file, tree, found)
    check_files(file, tree["images"], folder=root / split)
    dropped = drop_empty(file, tree)
    annotations = _index(tree)
    labels = {category: label for label, category in enumerate(found, start=1)}
    scenes = [_scene(image, annotations.imgToAnns[image["id"]], root / split, labels) for image in tree["images"]]
    some = [scene for scene in scenes if scene.instances]
    if not some:
        raise ValueError(f"{file}: expected objects that are no crowds, got none")
    return CocoSplit(Scenes(scenes if empty else some), annotations, found, dropped, fingerprint)


def _annotation_file(root: Path, split: Split) -> Path:
    return root / "annotations" / f"instances_{split}.json"


def _index(tree: Tree) -> COCO:
    """The annotations as pycocotools holds them, without its prints.

    They are numbered anew from 1: its evaluation takes id 0 for "no match", and its index keeps one of equal ids.
    """
    for number, annotation in enumerate(tree["annotations"], start=1):
        annotation["id"] = number
    annotations = COCO()
    annotations.dataset = tree
    with redirect_stdout(StringIO()):
        annotations.createIndex()
    return annotations


def _scene(image: Tree, annotations: Sequence[Tree], folder: Path, labels: Mapping[int, int]) -> Scene:
    height, width = image["height"], image["width"]
    instances = tuple(
        Instance(
            corners(annotation["bbox"], height=height, width=width),
            labels[annotation["category_id"]],
            annotation["segmentation"],
        )
        for annotation in annotations
        if not annotation["iscrowd"]
    )
    return Scene(image["id"], str(folder / image["file_name"]), height, width, instances)


def _as_tree(scene: Scene) -> Tree:
    instances = [(one.box, one.label, one.segmentation) for one in scene.instances]
    return {**vars(scene), "instances": instances}
