"""A data set in COCO's layout, read and checked as a whole before a training."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
from pycocotools.coco import COCO

from ldreg.detection.masks import Segmentation, fills
from ldreg.io.files import read_bytes
from ldreg.text import quoted_if_odd

Split = Literal["train2017", "val2017"]
Tree = dict[str, Any]
_IMAGE_KEYS = ("id", "file_name", "height", "width")
_ANNOTATION_KEYS = ("id", "image_id", "category_id", "bbox", "area", "segmentation")
_CATEGORY_KEYS = ("id", "name")
_MOST_BYTES = 1 << 30  # of a file; COCO's largest has 470 million
_LARGEST = 1e15  # of numbers: JSON may hold some that no float does


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
    tree, fingerprint = load_annotations(file)
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


def load_annotations(file: Path) -> tuple[Tree, str]:
    """What an annotation file holds, and the hash of it."""
    if not file.is_file():
        raise ValueError(f"path: expected COCO's annotations in {file}, got no such file")
    try:
        content = read_bytes(file, largest=_MOST_BYTES)
    except ValueError as error:
        raise ValueError(f"{file}: expected COCO's annotations, got {error}") from error
    if not content.strip():
        raise ValueError(f"{file}: expected COCO's annotations, got an empty file")
    try:
        tree = json.loads(content, parse_constant=_refuse)
    except ValueError as error:
        raise ValueError(f"{file}: expected JSON, got something else ({error})") from error
    except RecursionError as error:
        raise ValueError(f"{file}: expected COCO's annotations, got JSON that is nested too deeply") from error
    if not isinstance(tree, dict):
        raise ValueError(
            f"{file}: expected an object with images, annotations and categories, got a JSON {_kind(tree)}"
        )
    return tree, hashlib.sha256(content).hexdigest()


def check_keys(file: Path, tree: Tree) -> None:
    """Refuse lists that are missing or empty, and entries that lack a key or hold another kind of value."""
    for part, keys in (("images", _IMAGE_KEYS), ("annotations", _ANNOTATION_KEYS), ("categories", _CATEGORY_KEYS)):
        entries = tree.get(part)
        if not isinstance(entries, list) or not entries:
            raise ValueError(f"{file}: expected a list of {part}, got {'an empty one' if entries == [] else 'none'}")
        for number, entry in enumerate(entries):
            if not isinstance(entry, dict):
                raise ValueError(f"{file}: expected objects as {part}, got a JSON {_kind(entry)} at place {number}")
            if lacking := [key for key in keys if key not in entry]:
                raise ValueError(f"{file}: expected {', '.join(lacking)} in {part}[{number}], got none")
            if wrong := [key for key in keys if not _fits(key, entry[key])]:
                raise ValueError(
                    f"{file}: expected a valid {wrong[0]} in {part}[{number}], got {_brief(entry[wrong[0]])}"
                )
        numbers = Counter(entry["id"] for entry in entries)
        if part != "annotations" and len(numbers) < len(entries):
            raise ValueError(f"{file}: expected {part} with ids of their own, got {numbers.most_common(1)[0][0]} twice")


def _fits(key: str, value: object) -> bool:
    if key in ("id", "image_id", "category_id"):
        return isinstance(value, int)
    if key in ("height", "width"):
        return isinstance(value, int) and value > 0
    if key in ("file_name", "name"):
        return isinstance(value, str) and value != ""
    if key == "segmentation":
        return isinstance(value, list) or (isinstance(value, dict) and {"size", "counts"} <= value.keys())
    if key == "bbox":
        return isinstance(value, list) and len(value) == 4 and all(map(_number, value))
    return _number(value)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and -_LARGEST <= value <= _LARGEST


def read_categories(file: Path, tree: Tree, *, known: Mapping[int, str] | None) -> Mapping[int, str]:
    """The categories that labels are counted by: the known ones, or the file's in the order of their ids."""
    own = {entry["id"]: entry["name"] for entry in sorted(tree["categories"], key=lambda entry: entry["id"])}
    if known is None:
        return own
    if strange := [f"{number} ({quoted_if_odd(name)})" for number, name in own.items() if known.get(number) != name]:
        raise ValueError(f"{file}: expected the categories of train2017, got others: {', '.join(strange[:5])}")
    return known


def check_references(file: Path, tree: Tree, categories: Mapping[int, str]) -> None:
    """Refuse annotations of an image or a category that is not there."""
    images = {image["id"] for image in tree["images"]}
    for annotation in tree["annotations"]:
        for key, there in (("image_id", images), ("category_id", categories.keys())):
            if annotation[key] not in there:
                raise ValueError(
                    f"{file}: expected a known {key} in annotation {annotation['id']}, got {annotation[key]}"
                )


def check_files(file: Path, images: Sequence[Tree], *, folder: Path) -> None:
    """Refuse images that are listed and absent; one look at the folder spares a look at each of its files."""
    if not folder.is_dir():
        raise ValueError(f"path: expected a folder of images at {folder}, got none")
    for image in images:
        name = PurePosixPath(image["file_name"])
        if name.is_absolute() or ".." in name.parts:
            raise ValueError(f"{file}: expected file names within {folder.name}, got {image['file_name']!r}")
    there = {path.name for path in folder.iterdir()}
    absent = [
        image["file_name"]
        for image in images
        if image["file_name"] not in there and not (folder / image["file_name"]).is_file()
    ]
    if absent:
        raise ValueError(
            f"{file}: expected the images it lists in {folder}, got {len(absent)} of {len(images)} absent, "
            f"the first {absent[0]!r}"
        )


def drop_empty(file: Path, tree: Tree) -> int:
    """Leave out annotations with a box without area or a polygon without three corners; how many those were."""
    sizes = {image["id"]: (image["height"], image["width"]) for image in tree["images"]}
    kept = []
    for annotation in tree["annotations"]:
        if (crowd := annotation.setdefault("iscrowd", 0)) not in (0, 1):
            raise ValueError(
                f"{file}: expected 0 or 1 as iscrowd of annotation {annotation['id']}, got {_brief(crowd)}"
            )
        height, width = sizes[annotation["image_id"]]
        box = corners(annotation["bbox"], height=height, width=width)
        annotation["segmentation"] = _valid(file, annotation, height=height, width=width)
        if annotation["segmentation"] and box[0] < box[2] and box[1] < box[3]:
            kept.append(annotation)
    dropped, tree["annotations"] = len(tree["annotations"]) - len(kept), kept
    return dropped


def _valid(file: Path, annotation: Tree, *, height: int, width: int) -> Segmentation:
    """The segmentation, without polygons of fewer than three corners.

    pycocotools trusts what it is given: runs that do not fill the image leave memory as it was, and a corner far away
    takes memory for the whole way to it.
    """
    found = annotation["segmentation"]
    where = f"{file}: expected the segmentation of annotation {annotation['id']}"
    if isinstance(found, dict):
        if found["size"] != [height, width]:
            raise ValueError(f"{where} to be of size {[height, width]}, got {_brief(found['size'])}")
        if not fills(found["counts"], height * width):
            raise ValueError(f"{where} to have runs that fill the image, got {_brief(found['counts'])}")
        return found
    far = 2 * max(height, width)
    for polygon in found:
        if not _within(polygon, far):
            raise ValueError(f"{where} to hold lists of corners in the image or near it, got {_brief(polygon)}")
    return [polygon for polygon in found if len(polygon) >= 6 and len(polygon) % 2 == 0]


def _within(polygon: object, far: float) -> bool:
    """Whether it is a list of numbers of at most `far`; there are tens of millions of them, so C does the loops."""
    if not isinstance(polygon, list) or not set(map(type, polygon)) <= {int, float}:
        return False
    return not polygon or (min(polygon) >= -far and max(polygon) <= far)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def corners(box: Sequence[float], *, height: int, width: int) -> tuple[float, float, float, float]:
    """COCO's box (left, top, width, height) as corners, cut off at the image's edges."""
    left, top, across, down = (float(value) for value in box)
    return max(0.0, left), max(0.0, top), min(float(width), left + across), min(float(height), top + down)


def _kind(value: object) -> str:
    return {list: "list", str: "string", bool: "truth value", type(None): "null"}.get(type(value), "number")


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
