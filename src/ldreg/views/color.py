"""Color jitter, grayscale and solarization of a batch in [0, 1], with other parameters for every image."""

from typing import NamedTuple

import torch
from torch import Tensor

JITTER_DRAWS = 9
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


class Jitter(NamedTuple):
    """Color jitter of N images: factors (N, 4) of brightness, contrast, saturation, hue; order (N, 4) of their use.

    Factors 1, 1, 1 and 0 leave an image as it is; order[:, p] is the index of the factor used p-th.
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
    """Adjusts brightness, contrast, saturation and hue of images (N, C, H, W) in [0, 1], each image in its own order.

    Each step equals torchvision's. Images of one channel have neither saturation nor hue, and keep them.

    The first three steps mix the image with black, its mean or its gray, so that one mix with three coefficients does
    for all; as hue is the costly one, the mixes that come before it are done first, then hue once for all images,
    then the mixes that come after.
    """
    before, after = _coefficients(jitter)
    for step in (0, 1, 2):
        images = _mix(images, *before[..., step])
    if images.shape[1] == 3:
        images = _turn_hue(images, jitter.factors[:, HUE])
    for step in (1, 2, 3):
        images = _mix(images, *after[..., step])
    return images


def grayscale(images: Tensor, applied: Tensor) -> Tensor:
    """Takes the color out of those of images (N, C, H, W) where applied (N,) is true."""
    return torch.where(applied[:, None, None, None], luminance(images), images)


def solarize(images: Tensor, applied: Tensor) -> Tensor:
    """Inverts the values from 0.5 on in those of images (N, C, H, W) where applied (N,) is true."""
    return torch.where(applied[:, None, None, None] & (images >= 0.5), 1 - images, images)


def luminance(images: Tensor) -> Tensor:
    """The gray (N, 1, H, W) of images (N, C, H, W), by the weights of ITU-R BT.601; one channel is gray already."""
    if images.shape[1] == 1:
        return images
    return (0.2989 * images[:, :1]).add(images[:, 1:2], alpha=0.587).add(images[:, 2:], alpha=0.114)


def _coefficients(jitter: Jitter) -> Tensor:
    """Shares (2, 3, N, 4) of the image, its mean and its gray in the mix at each position, before and after hue.

    Black has the rest. Positions on the other side of hue, and hue itself, keep the image.
    """
    ordered = jitter.factors.gather(1, jitter.order)
    hue_at = (jitter.order == HUE).int().argmax(dim=1, keepdim=True)
    position = torch.arange(4, device=ordered.device)
    own = torch.where(torch.stack([position < hue_at, position > hue_at]), ordered, 1)
    mean = torch.where(jitter.order == CONTRAST, 1 - own, 0)
    gray = torch.where(jitter.order == SATURATION, 1 - own, 0)
    return torch.stack([own, mean, gray], dim=1)


def _mix(images: Tensor, own: Tensor, to_mean: Tensor, to_gray: Tensor) -> Tensor:
    """Mixes images (N, C, H, W) with the mean of their gray and with their gray, by shares (N,)."""
    own, to_mean, to_gray = (share[:, None, None, None] for share in (own, to_mean, to_gray))
    gray = luminance(images)
    mixed = torch.addcmul(to_mean * gray.mean(dim=(1, 2, 3), keepdim=True), to_gray, gray)
    return torch.addcmul(mixed, own, images).clamp_(0, 1)


def _turn_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Turns the hue of images (N, 3, H, W) by turns (N,) of the color circle, in HSV space.

    With chroma = max - min, the channel that lies n sixths of the circle on is
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
