"""A small set in COCO's layout, made on the spot: filled shapes on noisy ground, with their exact masks."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pycocotools import mask as rle

from ldreg.detection.masks import rasterize
from ldreg.io.files import write_atomically

CATEGORIES = ("circle", "square", "triangle")
# One color each, so that a net finds them apart after few steps; ids are apart as COCO's own are.
COLORS = {"circle": (220, 60, 60), "square": (60, 190, 80), "triangle": (70, 90, 230)}
IDS = {"circle": 1, "square": 3, "triangle": 7}


def write_generated(root: Path, *, train: int, val: int, size: int, seed: int = 0) -> None:
    """Write a set with so many training and validation images under `root`, the same for the same arguments.

    Each image has one to three shapes that do not overlap, about `size` pixels a side, in landscape and in portrait.
    Squares and triangles have polygons, circles run-length masks, and all masks are exact.

    Raises:
        ValueError: a count below 1, or a size below 48.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_generated(Path(folder), train=2, val=1, size=64)
    ...     sorted(path.name for path in Path(folder).rglob("*.*"))
    ['000000000001.png', '000000000002.png', '000000000003.png', 'instances_train2017.json', 'instances_val2017.json']
    """
    for name, value, least in (("train", train, 1), ("val", val, 1), ("size", size, 48)):
        if value < least:
            raise ValueError(f"{name}: expected at least {least}, got {value}")
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    for split, first, count in (("train2017", 1, train), ("val2017", train + 1, val)):
        (root / split).mkdir(exist_ok=True)
        content: dict[str, Any] = {"images": [], "annotations": [], "categories": []}
        content["categories"] = [{"id": IDS[name], "name": name, "supercategory": "shape"} for name in CATEGORIES]
        for number in range(first, first + count):
            _add_image(content, root / split, number=number, size=size, seed=seed)
        write_atomically(root / "annotations" / f"instances_{split}.json", json.dumps(content))


def _add_image(content: dict[str, Any], folder: Path, *, number: int, size: int, seed: int) -> None:
    draw = np.random.default_rng((seed, number))
    sides = size, size * 3 // 4
    height, width = sides if number % 2 else sides[::-1]
    pixels = draw.integers(90, 166, (height, width, 3), dtype=np.uint8)
    taken = np.zeros((height, width), dtype=bool)
    for _ in range(int(draw.integers(1, 4))):
        name = CATEGORIES[int(draw.integers(len(CATEGORIES)))]
        segmentation, mask = _shape(name, draw, height=height, width=width)
        if (mask & taken).any():
            continue
        taken |= mask
        pixels[mask] = COLORS[name]
        found = rle.encode(np.asfortranarray(mask.astype(np.uint8)))
        annotation = {
            "id": len(content["annotations"]) + 1,
            "image_id": number,
            "category_id": IDS[name],
            "bbox": [float(value) for value in rle.toBbox(found)],
            "area": float(mask.sum()),
            "segmentation": segmentation,
            "iscrowd": 0,
        }
        content["annotations"].append(annotation)
    file = f"{number:012d}.png"
    Image.fromarray(pixels).save(folder / file)
    content["images"].append({"id": number, "file_name": file, "height": height, "width": width})


def _shape(name: str, draw: np.random.Generator, *, height: int, width: int) -> tuple[Any, NDArray[np.bool_]]:
    """A shape somewhere in the image: its COCO segmentation and its mask (height, width)."""
    shorter = min(height, width)
    radius = int(draw.integers(shorter // 6, shorter // 3))
    x, y = int(draw.integers(radius, width - radius)), int(draw.integers(radius, height - radius))
    if name == "circle":
        rows, columns = np.mgrid[:height, :width]
        mask = (columns + 0.5 - x) ** 2 + (rows + 0.5 - y) ** 2 <= radius**2
        return {"size": [height, width], "counts": _run_lengths(mask)}, mask
    if name == "square":
        corners = [(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)]
    else:
        corners = [(math.sin(angle), -math.cos(angle)) for angle in (0.0, 2 * math.pi / 3, 4 * math.pi / 3)]
    polygon = [float(round(value)) for dx, dy in corners for value in (x + radius * dx, y + radius * dy)]
    return [polygon], rasterize([polygon], height=height, width=width).astype(bool)


def _run_lengths(mask: NDArray[np.bool_]) -> list[int]:
    """COCO's uncompressed run lengths: column by column, of zeros and ones in turn, zeros first."""
    flat = mask.flatten(order="F")
    changes = np.flatnonzero(np.diff(flat)) + 1
    lengths = np.diff(np.concatenate(([0], changes, [flat.size]))).tolist()
    return [0, *lengths] if flat[0] else lengths
