"""Random resized crops and flips of a batch, another box for every image."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ldreg.views.config import Interpolation
from ldreg.views.resample import resample

TRIES = 10
BOX_DRAWS = 2 * TRIES + 2
RATIO = (3 / 4, 4 / 3)


class Boxes(NamedTuple):
    """Boxes of crops in pixels: int64 tensors (N,)."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor


def sample_boxes(uniforms: Tensor, *, height: int, width: int, scale: tuple[float, float]) -> Boxes:
    """Boxes in images of height x width from uniforms (N, BOX_DRAWS) in [0, 1), as RandomResizedCrop of torchvision.

    A box's share of the area is uniform in `scale` and its aspect ratio log-uniform in [3/4, 4/3]; of ten tries the
    first that fits counts, and where none does, the largest centered box of an allowed ratio. All tries of all images
    are drawn at once, so that the device need not be asked which fit.

    >>> boxes = sample_boxes(torch.full((1, BOX_DRAWS), 0.5), height=8, width=8, scale=(0.25, 0.25))
    >>> [value.item() for value in boxes]
    [2, 2, 4, 4]
    """
    area, ratio, position = uniforms.split([TRIES, TRIES, 2], dim=1)
    area = height * width * (scale[0] + (scale[1] - scale[0]) * area)
    ratio = torch.exp(math.log(RATIO[0]) + math.log(RATIO[1] / RATIO[0]) * ratio)
    heights, widths = (area / ratio).sqrt().round(), (area * ratio).sqrt().round()
    fits = (heights >= 1) & (heights <= height) & (widths >= 1) & (widths <= width)
    first, any_fits = fits.int().argmax(dim=1, keepdim=True), fits.any(dim=1)
    central_height, central_width = _central(height, width)
    h = torch.where(any_fits, heights.gather(1, first)[:, 0], central_height)
    w = torch.where(any_fits, widths.gather(1, first)[:, 0], central_width)
    top = torch.where(any_fits, position[:, 0] * (height - h + 1), (height - central_height) // 2)
    left = torch.where(any_fits, position[:, 1] * (width - w + 1), (width - central_width) // 2)
    return Boxes(top.long(), left.long(), h.long(), w.long())


def resized_crop(images: Tensor, boxes: Boxes, *, size: int, interpolation: Interpolation) -> Tensor:
    """Crops images (B, C, H, W) to V boxes each, (B V,) in all, and resizes to (B V, C, size, size), antialiased.

    Equal to torchvision's `resized_crop` with antialias=True of float images. Bicubic weights may overshoot the range
    of the images.
    """
    rows = _weights(
        boxes.top, boxes.height, pixels=images.shape[2], size=size, interpolation=interpolation, like=images
    )
    columns = _weights(
        boxes.left, boxes.width, pixels=images.shape[3], size=size, interpolation=interpolation, like=images
    )
    return resample(images, rows, columns)


def flip(images: Tensor, flipped: Tensor) -> Tensor:
    """Mirrors left and right those of images (N, C, H, W) where flipped (N,) is true."""
    return torch.where(flipped[:, None, None, None], images.flip(-1), images)


def _central(height: int, width: int) -> tuple[int, int]:
    """Height and width of the largest centered box of an allowed aspect ratio."""
    if width / height < RATIO[0]:
        return round(width / RATIO[0]), width
    if width / height > RATIO[1]:
        return height, round(height * RATIO[1])
    return height, width


def _weights(
    start: Tensor, length: Tensor, *, pixels: int, size: int, interpolation: Interpolation, like: Tensor
) -> Tensor:
    """Weights (N, size, pixels) that resize the window [start, start + length) of a line of pixels to size.

    The kernel is as wide as the output's pixels when shrinking, as wide as the input's when enlarging, and is cut off
    and normalized anew at the window's ends: what PIL and torchvision do.
    """
    start, length = start[:, None, None].to(like.dtype), length[:, None, None].to(like.dtype)
    output = torch.arange(size, dtype=like.dtype, device=like.device)[:, None]
    offset = torch.arange(pixels, dtype=like.dtype, device=like.device) - start
    scale = length / size
    weights = KERNELS[interpolation]((offset + 0.5 - (output + 0.5) * scale) / scale.clamp_min(1))
    weights = torch.where((offset >= 0) & (offset < length), weights, 0)
    return weights / weights.sum(dim=-1, keepdim=True)


def _triangle(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp_min(0)


def _cubic(x: Tensor) -> Tensor:
    """Keys' cubic with a = -1/2, as PIL has it and torch where it antialiases."""
    x = x.abs()
    inner, outer = (1.5 * x - 2.5) * x * x + 1, ((2.5 - 0.5 * x) * x - 4) * x + 2
    return torch.where(x < 1, inner, torch.where(x < 2, outer, 0))


KERNELS: dict[Interpolation, Callable[[Tensor], Tensor]] = {"bilinear": _triangle, "bicubic": _cubic}
