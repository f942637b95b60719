"""The augmentations of a batch: crop, flip, color, blur. Each image has its own parameters, drawn from uniforms."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ldreg.views.config import Interpolation

TRIES = 10
BOX_DRAWS = 2 * TRIES + 2
RATIO = (3 / 4, 4 / 3)

JITTER_DRAWS = 9
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)

SIGMA = (0.1, 2.0)


class Boxes(NamedTuple):
    """Boxes of crops in pixels: int64 tensors (N,)."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor


def sample_boxes(uniforms: Tensor, *, height: int, width: int, scale: tuple[float, float]) -> Boxes:
    """Boxes in images of height x width from uniforms (N, BOX_DRAWS) in [0, 1), as RandomResizedCrop of torchvision.

    A box's share of the area is uniform in `scale` and its aspect ratio log-uniform in [3/4, 4/3]. The first of ten
    tries that fits is taken, or else the largest centered box of an allowed ratio. All tries of all images are drawn
    at once, so that nothing waits for the device.
    """
    area, ratio, position = uniforms.split([TRIES, TRIES, 2], dim=1)
    area = height * width * (scale[0] + (scale[1] - scale[0]) * area)
    ratio = torch.exp(math.log(RATIO[0]) + math.log(RATIO[1] / RATIO[0]) * ratio)
    heights, widths = (area / ratio).sqrt().round(), (area * ratio).sqrt().round()
    fits = (heights >= 1) & (heights <= height) & (widths >= 1) & (widths <= width)
    first, any_fits = fits.int().argmax(dim=1, keepdim=True), fits.any(dim=1)
    central_height, central_width = _central_box(height, width)
    h = torch.where(any_fits, heights.gather(1, first)[:, 0], central_height)
    w = torch.where(any_fits, widths.gather(1, first)[:, 0], central_width)
    top = torch.where(any_fits, position[:, 0] * (height - h + 1), (height - central_height) // 2)
    left = torch.where(any_fits, position[:, 1] * (width - w + 1), (width - central_width) // 2)
    return Boxes(top.long(), left.long(), h.long(), w.long())


def _central_box(height: int, width: int) -> tuple[int, int]:
    if width / height < RATIO[0]:
        return round(width / RATIO[0]), width
    if width / height > RATIO[1]:
        return height, round(height * RATIO[1])
    return height, width


def resized_crop(images: Tensor, boxes: Boxes, *, size: int, interpolation: Interpolation) -> Tensor:
    """Crop images (B, C, H, W) to V boxes each, (B V,) in all, and resize to (B V, C, size, size), antialiased.

    Equal to torchvision's `resized_crop` with antialias=True of float images. Bicubic weights may overshoot the range
    of the images.
    """
    rows = _resize_weights(boxes.top, boxes.height, images.shape[2], size, interpolation, images)
    columns = _resize_weights(boxes.left, boxes.width, images.shape[3], size, interpolation, images)
    return resample(images, rows, columns)


def _resize_weights(
    start: Tensor, length: Tensor, pixels: int, size: int, interpolation: Interpolation, like: Tensor
) -> Tensor:
    """Weights (N, size, pixels) that resize the window [start, start + length) of a line of pixels to size.

    As in PIL and torchvision, the kernel is as wide as the output's pixels when shrinking and as the input's when
    enlarging. It is cut off at the window's ends and normalized again.
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
    """Keys' cubic with a = -1/2, which PIL uses, and torch when it antialiases."""
    x = x.abs()
    inner, outer = (1.5 * x - 2.5) * x * x + 1, ((2.5 - 0.5 * x) * x - 4) * x + 2
    return torch.where(x < 1, inner, torch.where(x < 2, outer, 0))


KERNELS: dict[Interpolation, Callable[[Tensor], Tensor]] = {"bilinear": _triangle, "bicubic": _cubic}


def resample(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Multiply images (B, C, H, W) by rows (B V, S, H) and columns (B V, T, W), giving (B V, C, S, T).

    Image b is multiplied by the V maps from b V on, without being copied V times. The result lies in memory as
    (B V, S, C, T); images already laid out like this are not copied.
    """
    count, channels, height, width = images.shape
    maps, size, _ = rows.shape
    lines = images.transpose(1, 2).reshape(count, height, channels * width)
    weighed = (rows.reshape(count, -1, height) @ lines).view(maps, size * channels, width)
    return (weighed @ columns.transpose(1, 2)).view(maps, size, channels, -1).transpose(1, 2)


def flip(images: Tensor, flipped: Tensor) -> Tensor:
    """Mirror those of images (N, C, H, W) left to right for which flipped (N,) is true."""
    return torch.where(flipped[:, None, None, None], images.flip(-1), images)


class Jitter(NamedTuple):
    """Color jitter of N images: factors (N, 4) of brightness, contrast, saturation, hue, and their order (N, 4).

    Factors 1, 1, 1 and 0 leave an image unchanged; order[:, p] is the index of the factor applied p-th.
    """

    factors: Tensor
    order: Tensor


def sample_jitter(uniforms: Tensor, *, intensities: tuple[float, float, float, float], probability: float) -> Jitter:
    """Color jitter from uniforms (N, JITTER_DRAWS) in [0, 1), as ColorJitter of torchvision under RandomApply.

    Brightness, contrast and saturation are uniform in [max(0, 1 - intensity), 1 + intensity], hue in
    [-intensity, intensity], in turns of the color circle.
    """
    applied = uniforms[:, 0] < probability
    factors = []
    for index, intensity in enumerate(intensities):
        neutral = 0.0 if index == HUE else 1.0
        low = neutral - intensity if index == HUE else max(0.0, neutral - intensity)
        drawn = low + (neutral + intensity - low) * uniforms[:, 1 + index]
        factors.append(torch.where(applied, drawn, neutral))
    return Jitter(torch.stack(factors, dim=1), uniforms[:, 5:].argsort(dim=1))


def color_jitter(images: Tensor, jitter: Jitter) -> Tensor:
    """Adjust brightness, contrast, saturation and hue of images (N, C, H, W) in [0, 1], each image in its own order.

    Each step equals torchvision's. Images of one channel keep their (absent) saturation and hue.

    Brightness, contrast and saturation each mix the image with black, its mean or its gray, so one mix with three
    coefficients does for all. Hue is the costly step and is done once for all images: after the mixes that precede it
    in an image's order and before those that follow it.
    """
    before, after = _mix_coefficients(jitter)
    for step in (0, 1, 2):
        images = _mix(images, *before[..., step])
    if images.shape[1] == 3:
        images = _turn_hue(images, jitter.factors[:, HUE])
    for step in (1, 2, 3):
        images = _mix(images, *after[..., step])
    return images


def _mix_coefficients(jitter: Jitter) -> Tensor:
    """Shares (2, 3, N, 4) of the image, its mean and its gray in the mix at each position, before and after hue.

    The rest is black. Hue itself, and positions on its other side, keep the image.
    """
    ordered = jitter.factors.gather(1, jitter.order)
    hue_at = (jitter.order == HUE).int().argmax(dim=1, keepdim=True)
    position = torch.arange(4, device=ordered.device)
    own = torch.where(torch.stack([position < hue_at, position > hue_at]), ordered, 1)
    mean = torch.where(jitter.order == CONTRAST, 1 - own, 0)
    gray = torch.where(jitter.order == SATURATION, 1 - own, 0)
    return torch.stack([own, mean, gray], dim=1)


def _mix(images: Tensor, own: Tensor, to_mean: Tensor, to_gray: Tensor) -> Tensor:
    """Mix images (N, C, H, W) with the mean of their gray and with their gray, by shares (N,)."""
    own, to_mean, to_gray = (share[:, None, None, None] for share in (own, to_mean, to_gray))
    gray = luminance(images)
    mixed = torch.addcmul(to_mean * gray.mean(dim=(1, 2, 3), keepdim=True), to_gray, gray)
    return torch.addcmul(mixed, own, images).clamp_(0, 1)


def _turn_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Turn the hue of images (N, 3, H, W) by turns (N,) of the color circle, in HSV space.

    With chroma = max - min, the channel n sixths of the circle on is
    max - chroma x min(k, 4 - k, 1), k = (n + 6 hue) mod 6, cut at 0; saturation itself is not needed.
    """
    red, green, blue = images.unbind(dim=1)
    high = torch.maximum(torch.maximum(red, green), blue)
    chroma = high - torch.minimum(torch.minimum(red, green), blue)
    safe = torch.where(chroma == 0, 1, chroma)
    sixths = torch.where(
        high == red,
        (green - blue) / safe,
        torch.where(high == green, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    turned = (sixths + 6 * turns[:, None, None])[:, None]
    channel = torch.arange(5, 0, -2, dtype=images.dtype, device=images.device)[:, None, None]
    k = (turned + channel) % 6
    return high[:, None] - chroma[:, None] * torch.minimum(k, 4 - k).clamp_(0, 1)


def grayscale(images: Tensor, applied: Tensor) -> Tensor:
    """Take the color out of those of images (N, C, H, W) for which applied (N,) is true."""
    return torch.where(applied[:, None, None, None], luminance(images), images)


def solarize(images: Tensor, applied: Tensor) -> Tensor:
    """Invert values from 0.5 on in those of images (N, C, H, W) for which applied (N,) is true."""
    return torch.where(applied[:, None, None, None] & (images >= 0.5), 1 - images, images)


def luminance(images: Tensor) -> Tensor:
    """The gray (N, 1, H, W) of images (N, C, H, W), by the weights of ITU-R BT.601; one channel is gray already."""
    if images.shape[1] == 1:
        return images
    return (0.2989 * images[:, :1]).add(images[:, 1:2], alpha=0.587).add(images[:, 2:], alpha=0.114)


def sample_sigma(uniforms: Tensor) -> Tensor:
    """Standard deviations (N,) of the blur in pixels, uniform in [0.1, 2], from uniforms (N,) in [0, 1)."""
    return SIGMA[0] + (SIGMA[1] - SIGMA[0]) * uniforms


def kernel_size(size: int) -> int:
    """The odd width in pixels of the blur's kernel for images of size x size: a tenth, as in SimCLR, and at least 3."""
    return max(3, size // 10 | 1)


def gaussian_blur(images: Tensor, sigma: Tensor, applied: Tensor, *, width: int) -> Tensor:
    """Blur those of images (N, C, H, W) for which applied (N,) is true, with sigma (N,) and a kernel of width pixels.

    Equal to torchvision's `gaussian_blur`, which reflects at the borders; H and W must exceed width // 2.
    """
    offset = torch.arange(width, dtype=images.dtype, device=images.device) - width // 2
    kernels = torch.softmax(-0.5 * (offset / sigma[:, None]).square(), dim=1)
    # A kernel of a single 1 leaves an image unchanged, so one product does for all.
    kernels = torch.where(applied[:, None], kernels, (offset == 0).to(images.dtype))
    return resample(images, _blur_matrix(kernels, images.shape[2]), _blur_matrix(kernels, images.shape[3]))


def _blur_matrix(kernels: Tensor, pixels: int) -> Tensor:
    """Matrices (N, pixels, pixels) of the convolution of a line, reflected at its ends, with kernels (N, width)."""
    width = kernels.shape[1]
    index = torch.arange(pixels, device=kernels.device)
    source = (index + torch.arange(width, device=kernels.device)[:, None] - width // 2).abs()
    source = pixels - 1 - (pixels - 1 - source).abs()
    taps = (source[:, :, None] == index).to(kernels.dtype)
    return (kernels @ taps.flatten(1)).view(-1, pixels, pixels)
