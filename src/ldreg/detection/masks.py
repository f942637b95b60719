"""Masks as COCO writes them (polygons, run lengths), as arrays, and as a net predicts them inside a box."""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pycocotools import mask as coco
from torch import Tensor
from torch.nn.functional import grid_sample
from torchvision.ops import roi_align

Rle = dict[str, Any]
Segmentation = list[list[float]] | Rle


def rasterize(segmentation: Segmentation, *, height: int, width: int) -> NDArray[np.uint8]:
    """A COCO segmentation (polygons, or run lengths as numbers or as a string) as 0 and 1, (height, width).

    >>> rasterize([[1, 0, 3, 0, 3, 2, 1, 2]], height=2, width=4)
    array([[0, 1, 1, 0],
           [0, 1, 1, 0]], dtype=uint8)
    >>> rasterize({"size": [2, 2], "counts": [1, 2, 1]}, height=2, width=2)
    array([[0, 1],
           [1, 0]], dtype=uint8)
    """
    found: Any
    if isinstance(segmentation, list):
        found = coco.merge(coco.frPyObjects(segmentation, height, width))
    elif isinstance(segmentation["counts"], list):
        found = coco.frPyObjects(segmentation, height, width)
    else:
        found = segmentation
    with _without_numpy_advice():
        mask: NDArray[np.uint8] = coco.decode(found)
    return mask


def encode(masks: Tensor) -> list[Rle]:
    """Masks (N, H, W) of 0 and 1 as N run-length masks, whose counts are text, as JSON needs.

    >>> [rasterize(rle, height=2, width=2).tolist() for rle in encode(torch.eye(2, dtype=torch.bool)[None])]
    [[[1, 0], [0, 1]]]
    """
    if not len(masks):
        return []
    columns_first = np.asfortranarray(masks.to("cpu", torch.uint8).permute(1, 2, 0).numpy())
    with _without_numpy_advice():
        return [{**found, "counts": found["counts"].decode()} for found in coco.encode(columns_first)]


def fills(counts: object, pixels: int) -> bool:
    """Whether run lengths, as numbers or as COCO's text, are valid and cover exactly so many pixels.

    >>> fills([1, 2, 1], 4), fills([1, 2], 4), fills(encode(torch.eye(2)[None])[0]["counts"], 4), fills("junk", 4)
    (True, False, True, False)
    """
    if isinstance(counts, list):
        return all(type(run) is int and run >= 0 for run in counts) and sum(counts) == pixels
    runs = _read_runs(counts) if isinstance(counts, str) else None
    return runs is not None and bool((runs >= 0).all()) and int(runs.sum()) == pixels


def _read_runs(text: str) -> NDArray[np.int64] | None:
    """The run lengths in COCO's text; None where it is no such text.

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


@contextmanager
def _without_numpy_advice() -> Iterator[None]:
    """Leave out what NumPy 2 tells pycocotools of its __array__, which lacks an argument; nothing is wrong with it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        yield


def mask_targets(masks: Tensor, boxes: Tensor, owners: Tensor, *, side: int) -> Tensor:
    """What lies of the masks inside boxes: 0 and 1, (R, side, side), float.

    The masks (N, H, W) are those of the objects of one image, `boxes` (R, 4) are in their pixels, and `owners` (R,)
    says which mask is meant. As detectron2 does with bit masks: averaged in each cell, and cut at one half.
    """
    if not len(boxes):
        return boxes.new_zeros((0, side, side))
    rows = torch.cat((owners[:, None].to(boxes), boxes), dim=1)
    cells = roi_align(masks[:, None].to(boxes), rows, (side, side), 1.0, 0, aligned=True)
    targets: Tensor = (cells[:, 0] >= 0.5).to(boxes)
    return targets


def paste(masks: Tensor, boxes: Tensor, *, height: int, width: int) -> Tensor:
    """Predicted masks (N, M, M), probabilities inside `boxes` (N, 4), as bool (N, height, width) of the image.

    Each pixel's center is looked up in the mask, bilinearly, zero outside it; half and more counts as inside.

    >>> paste(torch.ones(1, 4, 4), torch.tensor([[1.0, 0.0, 3.0, 2.0]]), height=2, width=4).int()
    tensor([[[0, 1, 1, 0],
             [0, 1, 1, 0]]], dtype=torch.int32)
    """
    pasted = torch.zeros((len(masks), height, width), dtype=torch.bool, device=masks.device)
    for whole, mask, box in zip(pasted, masks, boxes.tolist(), strict=True):
        left, top, right, bottom = _window(box, height=height, width=width)
        if left < right and top < bottom:
            xs = _positions(left, right, start=box[0], end=box[2], device=masks.device)
            ys = _positions(top, bottom, start=box[1], end=box[3], device=masks.device)
            grid = torch.stack(torch.meshgrid(xs, ys, indexing="xy"), dim=-1)[None]
            found = grid_sample(mask[None, None].float(), grid, align_corners=False)
            whole[top:bottom, left:right] = found[0, 0] >= 0.5
    return pasted


def _window(box: Sequence[float], *, height: int, width: int) -> tuple[int, int, int, int]:
    """The pixels of the image that a box can touch: left, top, right, bottom."""
    left, top = max(0, math.floor(box[0])), max(0, math.floor(box[1]))
    return left, top, min(width, math.ceil(box[2])), min(height, math.ceil(box[3]))


def _positions(first: int, last: int, *, start: float, end: float, device: torch.device) -> Tensor:
    """Where the centers of pixels first to last lie between start (-1) and end (1)."""
    centers = torch.arange(first, last, dtype=torch.float32, device=device) + 0.5
    return (centers - start) / (end - start) * 2 - 1
