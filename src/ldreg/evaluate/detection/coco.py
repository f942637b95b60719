"""Data sets in COCO's layout: read and checked as a whole before training, or generated; masks as COCO stores them."""

import hashlib
import json
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pycocotools import mask as rle
from pycocotools.coco import COCO
from torch import Tensor

from ldreg.io.files import read_bytes, write_atomically
from ldreg.text import quoted_if_odd

Split = Literal["train2017", "val2017"]
Tree = dict[str, Any]
Rle = dict[str, Any]
Segmentation = list[list[float]] | Rle

_MOST_BYTES = 1 << 30  # of a file; COCO's largest has 470 million
_LARGEST = 1e15  # of numbers: JSON may hold some that no float does


class Instance(NamedTuple):
    """One object: its box (left, top, right, bottom) in the image, its label from 1 on, its segmentation."""

    box: tuple[float, float, float, float]
    label: int
    segmentation: Segmentation


class Scene(NamedTuple):
    """One image and the objects in it."""

    id: int
    path: str
    height: int
    width: int
    instances: tuple[Instance, ...]


class Scenes(Sequence[Scene]):
    """Scenes packed into one array of bytes.

    Worker processes share it without copying. Python objects would be copied, as their reference counts change.
    """

    def __init__(self, scenes: Sequence[Scene]) -> None:
        packed = [json.dumps(scene).encode() for scene in scenes]
        self._ends = np.cumsum([len(one) for one in packed])
        self._bytes = np.frombuffer(b"".join(packed), dtype=np.uint8)
        self.landscape = np.array([scene.width > scene.height for scene in scenes])

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = self._ends[index - 1] if index else 0
        number, path, height, width, instances = json.loads(self._bytes[start : self._ends[index]].tobytes())
        return Scene(number, path, height, width, tuple(Instance(tuple(box), *rest) for box, *rest in instances))


@dataclass(frozen=True, eq=False)
class CocoSplit:
    """The images of one split and their annotations."""

    scenes: Scenes  # without crowds and without objects that have an empty box or no valid mask
    annotations: COCO  # empty for training
    categories: Mapping[int, str]  # COCO's ids and their names, in the order of the labels
    dropped: int  # objects with an empty box or no valid mask
    fingerprint: str  # hash of the annotation file


def read_coco(root: Path) -> tuple[CocoSplit, CocoSplit]:
    """The training and the validation split of a set; training leaves out images without objects.

    Objects have the labels 1, 2, ... in the order of the training split's category ids.

    Raises:
        ValueError: an annotation file that is missing, empty, not JSON or not COCO's; an image that is listed and
            absent; categories in the validation split that are not in the training split.
    """
    train = read_split(root, "train2017", empty=False)
    val = read_split(root, "val2017", categories=train.categories)
    # The scenes are enough for training; the annotations would take gigabytes in every process.
    return replace(train, annotations=COCO()), val


def read_split(
    root: Path, split: Split, *, categories: Mapping[int, str] | None = None, empty: bool = True
) -> CocoSplit:
    """One split, with images without objects if `empty`, labeled by `categories` or else by its own."""
    file = root / "annotations" / f"instances_{split}.json"
    tree, fingerprint = load_annotations(file)
    _check_entries(file, tree)
    own = {entry["id"]: entry["name"] for entry in sorted(tree["categories"], key=lambda entry: entry["id"])}
    found = own if categories is None else categories
    if strange := [f"{number} ({quoted_if_odd(name)})" for number, name in own.items() if found.get(number) != name]:
        raise ValueError(f"{file}: expected the categories of train2017, got others: {', '.join(strange[:5])}")
    _check_files(file, tree["images"], folder=root / split)
    dropped = _drop_empty(file, tree, found)
    annotations = _index(tree)
    labels = {category: label for label, category in enumerate(found, start=1)}
    scenes = [_scene(image, annotations.imgToAnns[image["id"]], root / split, labels) for image in tree["images"]]
    some = [scene for scene in scenes if scene.instances]
    if not some:
        raise ValueError(f"{file}: expected objects that are no crowds, got none")
    return CocoSplit(Scenes(scenes if empty else some), annotations, found, dropped, fingerprint)


def _index(tree: Tree) -> COCO:
    """The annotations as pycocotools holds them, without its prints.

    They are numbered anew from 1: its evaluation takes id 0 for "no match", and its index has one of equal ids.
    """
    for number, annotation in enumerate(tree["annotations"], start=1):
        annotation["id"] = number
    annotations = COCO()
    annotations.dataset = tree
    with redirect_stdout(StringIO()):
        annotations.createIndex()
    return annotations


def _scene(image: Tree, annotations: Sequence[Tree], folder: Path, labels: Mapping[int, int]) -> Scene:
    instances = tuple(
        Instance(_corners(one["bbox"], image), labels[one["category_id"]], one["segmentation"])
        for one in annotations
        if not one["iscrowd"]
    )
    return Scene(image["id"], str(folder / image["file_name"]), image["height"], image["width"], instances)


def _corners(box: Sequence[float], image: Tree) -> tuple[float, float, float, float]:
    """COCO's box (left, top, width, height) as corners, cut off at the image's edges."""
    left, top, across, down = (float(value) for value in box)
    right, bottom = min(float(image["width"]), left + across), min(float(image["height"]), top + down)
    return max(0.0, left), max(0.0, top), right, bottom


def load_annotations(file: Path) -> tuple[Tree, str]:
    """The JSON object in an annotation file, and the hash of the file."""
    if not file.is_file():
        raise ValueError(f"path: expected COCO's annotations in {file}, got no such file")
    try:
        content = read_bytes(file, largest=_MOST_BYTES)
        if not content.strip():
            raise ValueError("an empty file")
        tree = json.loads(content, parse_constant=_reject_constant)
        if not isinstance(tree, dict):
            raise ValueError(f"a JSON {_kind(tree)}")
    except RecursionError as error:
        raise ValueError(f"{file}: expected COCO's annotations, got JSON that is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"{file}: expected COCO's annotations as JSON, got {error}") from error
    return tree, hashlib.sha256(content).hexdigest()


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant}, which is no number of JSON")


def _is_id(value: Any) -> bool:
    return isinstance(value, int)


def _is_side(value: Any) -> bool:
    return isinstance(value, int) and value > 0


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and -_LARGEST <= value <= _LARGEST


def _is_box(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 4 and all(map(_is_number, value))


def _is_segmentation(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, dict) and {"size", "counts"} <= value.keys())


_KEYS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "images": {"id": _is_id, "file_name": _is_name, "height": _is_side, "width": _is_side},
    "annotations": {
        **dict.fromkeys(("id", "image_id", "category_id"), _is_id),
        "bbox": _is_box,
        "area": _is_number,
        "segmentation": _is_segmentation,
    },
    "categories": {"id": _is_id, "name": _is_name},
}


def _check_entries(file: Path, tree: Tree) -> None:
    """Reject missing and empty lists, and entries without a key or with a value of another kind."""
    for part, keys in _KEYS.items():
        entries = tree.get(part)
        if not isinstance(entries, list) or not entries:
            raise ValueError(f"{file}: expected a list of {part}, got {'an empty one' if entries == [] else 'none'}")
        for number, entry in enumerate(entries):
            if not isinstance(entry, dict):
                raise ValueError(f"{file}: expected objects as {part}, got a JSON {_kind(entry)} at place {number}")
            for key, fits in keys.items():
                if key not in entry or not fits(entry[key]):
                    got = _brief(entry[key]) if key in entry else "none"
                    raise ValueError(f"{file}: expected a valid {key} in {part}[{number}], got {got}")
        number, times = Counter(entry["id"] for entry in entries).most_common(1)[0]
        if part != "annotations" and times > 1:
            raise ValueError(f"{file}: expected {part} with ids of their own, got {number} twice")


def _check_files(file: Path, images: Sequence[Tree], *, folder: Path) -> None:
    """Reject images that are listed and absent; listing the folder is faster than looking for each file."""
    if not folder.is_dir():
        raise ValueError(f"path: expected a folder of images at {folder}, got none")
    names = [image["file_name"] for image in images]
    for name in map(PurePosixPath, names):
        if name.is_absolute() or ".." in name.parts:
            raise ValueError(f"{file}: expected file names within {folder.name}, got {str(name)!r}")
    there = {path.name for path in folder.iterdir()}
    if absent := [name for name in names if name not in there and not (folder / name).is_file()]:
        missing = f"{len(absent)} of {len(names)} absent, the first {absent[0]!r}"
        raise ValueError(f"{file}: expected the images it lists in {folder}, got {missing}")


def _drop_empty(file: Path, tree: Tree, categories: Mapping[int, str]) -> int:
    """Remove annotations with a box without area or without a valid mask; return how many."""
    images, kept = {image["id"]: image for image in tree["images"]}, []
    for annotation in tree["annotations"]:
        where = f"annotation {annotation['id']}"
        for key, known in (("image_id", images.keys()), ("category_id", categories.keys())):
            if annotation[key] not in known:
                raise ValueError(f"{file}: expected a known {key} in {where}, got {annotation[key]}")
        if (crowd := annotation.setdefault("iscrowd", 0)) not in (0, 1):
            raise ValueError(f"{file}: expected 0 or 1 as iscrowd of {where}, got {_brief(crowd)}")
        image = images[annotation["image_id"]]
        try:
            annotation["segmentation"] = _valid(annotation["segmentation"], image["height"], image["width"])
        except ValueError as error:
            raise ValueError(f"{file}: expected the segmentation of {where} {error}") from error
        left, top, right, bottom = _corners(annotation["bbox"], image)
        if annotation["segmentation"] and left < right and top < bottom:
            kept.append(annotation)
    dropped, tree["annotations"] = len(tree["annotations"]) - len(kept), kept
    return dropped


def _valid(found: Segmentation, height: int, width: int) -> Segmentation:
    """The segmentation, without polygons of fewer than three corners.

    pycocotools trusts its input: runs that do not fill the image leave memory uninitialized, and a corner far away
    takes memory for the whole way to it.
    """
    if isinstance(found, dict):
        if found["size"] != [height, width]:
            raise ValueError(f"to be of size {[height, width]}, got {_brief(found['size'])}")
        if not covers(found["counts"], height * width):
            raise ValueError(f"to have runs that fill the image, got {_brief(found['counts'])}")
        return found
    far = 2 * max(height, width)
    for polygon in found:
        if not _within(polygon, far):
            raise ValueError(f"to hold lists of corners in the image or near it, got {_brief(polygon)}")
    return [polygon for polygon in found if len(polygon) >= 6 and len(polygon) % 2 == 0]


def _within(polygon: object, far: float) -> bool:
    """Whether it is a list of numbers of at most `far`; there are tens of millions, so the loops run in C."""
    if not isinstance(polygon, list) or not set(map(type, polygon)) <= {int, float}:
        return False
    return not polygon or (min(polygon) >= -far and max(polygon) <= far)


def _kind(value: object) -> str:
    return {list: "list", str: "string", bool: "truth value", type(None): "null"}.get(type(value), "number")


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def rasterize(segmentation: Segmentation, *, height: int, width: int) -> NDArray[np.uint8]:
    """A COCO segmentation (polygons, or run lengths as numbers or as a string) as 0 and 1, (height, width).

    >>> rasterize([[1, 0, 3, 0, 3, 2, 1, 2]], height=2, width=4)
    array([[0, 1, 1, 0],
           [0, 1, 1, 0]], dtype=uint8)
    """
    found: Any = segmentation
    if isinstance(segmentation, list):
        found = rle.merge(rle.frPyObjects(segmentation, height, width))
    elif isinstance(segmentation["counts"], list):
        found = rle.frPyObjects(segmentation, height, width)
    with _without_numpy_advice():
        mask: NDArray[np.uint8] = rle.decode(found)
    return mask


def encode(masks: Tensor) -> list[Rle]:
    """Masks (N, H, W) of 0 and 1 as N run-length masks, whose counts are text, as JSON needs."""
    if not len(masks):
        return []
    columns_first = np.asfortranarray(masks.to("cpu").byte().permute(1, 2, 0).numpy())
    with _without_numpy_advice():
        return [{**found, "counts": found["counts"].decode()} for found in rle.encode(columns_first)]


@contextmanager
def _without_numpy_advice() -> Iterator[None]:
    """Hide NumPy 2's warning to pycocotools that its __array__ lacks an argument."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        yield


def covers(counts: object, pixels: int) -> bool:
    """Whether run lengths, as numbers or as COCO's text, are valid and cover exactly so many pixels.

    >>> covers([1, 2, 1], 4), covers([1, 2], 4), covers("junk", 4)
    (True, False, False)
    """
    if isinstance(counts, list):
        return all(type(run) is int and run >= 0 for run in counts) and sum(counts) == pixels
    runs = _read_runs(counts) if isinstance(counts, str) else None
    return runs is not None and bool((runs >= 0).all()) and int(runs.sum()) == pixels


def _read_runs(text: str) -> NDArray[np.int64] | None:
    """The run lengths in COCO's text; None if it is no such text.

    Each character holds five bits of a number, lowest first, and whether more follow; from the fourth on, a number is
    the difference to the one before the last.
    """
    if not text or not all("0" <= character <= "o" for character in text):
        return None
    values = np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64) - 48
    last = (values & 32) == 0
    starts = np.concatenate(([0], np.flatnonzero(last)[:-1] + 1))
    places = np.arange(len(values)) - np.repeat(starts, np.diff(np.append(starts, len(values))))
    if not last[-1] or places.max() > 6:  # seven characters hold any number of 32 bits
        return None
    runs = np.add.reduceat((values & 31) << (5 * places), starts)
    ends = np.flatnonzero(last)
    runs -= ((values[ends] & 16) >> 4) << (5 * (places[ends] + 1))
    for parity in (1, 2):
        runs[parity::2] = runs[parity::2].cumsum()
    return runs


# Of the generated set: one color each, so that a net tells them apart after few steps; ids with gaps, as COCO's.
_SHAPES = {"circle": (1, (220, 60, 60)), "square": (3, (60, 190, 80)), "triangle": (7, (70, 90, 230))}


def write_generated(root: Path, *, train: int, val: int, size: int, seed: int = 0) -> None:
    """Write a small set under `root`, the same for the same arguments: filled shapes on noisy ground.

    Each image has one to three shapes that do not overlap, about `size` pixels a side, in landscape and in portrait.
    Squares and triangles have polygons, circles run-length masks, and all masks are exact.
    """
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    for split, first, count in (("train2017", 1, train), ("val2017", train + 1, val)):
        (root / split).mkdir(exist_ok=True)
        categories = [{"id": number, "name": name, "supercategory": "shape"} for name, (number, _) in _SHAPES.items()]
        content: Tree = {"images": [], "annotations": [], "categories": categories}
        for number in range(first, first + count):
            _add_image(content, root / split, number=number, size=size, seed=seed)
        write_atomically(root / "annotations" / f"instances_{split}.json", json.dumps(content))


def _add_image(content: Tree, folder: Path, *, number: int, size: int, seed: int) -> None:
    draw = np.random.default_rng((seed, number))
    sides = size, size * 3 // 4
    height, width = sides if number % 2 else sides[::-1]
    pixels = draw.integers(90, 166, (height, width, 3), dtype=np.uint8)
    taken = np.zeros((height, width), dtype=bool)
    for _ in range(int(draw.integers(1, 4))):
        name = list(_SHAPES)[int(draw.integers(len(_SHAPES)))]
        category, color = _SHAPES[name]
        segmentation, mask = _shape(name, draw, height=height, width=width)
        if (mask & taken).any():
            continue
        taken |= mask
        pixels[mask] = color
        annotation = {
            "id": len(content["annotations"]) + 1,
            "image_id": number,
            "category_id": category,
            "bbox": [float(value) for value in rle.toBbox(rle.encode(np.asfortranarray(mask.astype(np.uint8))))],
            "area": float(mask.sum()),
            "segmentation": segmentation,
            "iscrowd": 0,
        }
        content["annotations"].append(annotation)
    file = f"{number:012d}.png"
    Image.fromarray(pixels).save(folder / file)
    content["images"].append({"id": number, "file_name": file, "height": height, "width": width})


def _shape(name: str, draw: np.random.Generator, *, height: int, width: int) -> tuple[Segmentation, NDArray[np.bool_]]:
    """A shape somewhere in the image: its COCO segmentation and its mask (height, width)."""
    shorter = min(height, width)
    radius = int(draw.integers(shorter // 6, shorter // 3))
    x, y = int(draw.integers(radius, width - radius)), int(draw.integers(radius, height - radius))
    if name == "circle":
        rows, columns = np.mgrid[:height, :width]
        mask = (columns + 0.5 - x) ** 2 + (rows + 0.5 - y) ** 2 <= radius**2
        flat = mask.flatten(order="F")
        runs = np.diff([0, *np.flatnonzero(np.diff(flat)) + 1, flat.size])  # of zeros and ones in turn, zeros first
        return {"size": [height, width], "counts": runs.tolist()}, mask
    if name == "square":
        corners = [(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)]
    else:
        corners = [(math.sin(angle), -math.cos(angle)) for angle in (0.0, 2 * math.pi / 3, 4 * math.pi / 3)]
    polygon = [float(round(value)) for dx, dy in corners for value in (x + radius * dx, y + radius * dy)]
    return [polygon], rasterize([polygon], height=height, width=width).astype(bool)
