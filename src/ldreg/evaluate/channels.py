"""Images of one channel for encoders of three, and the other way round."""

from torch import Tensor


def with_channels(images: Tensor, channels: int) -> Tensor:
    """Images uint8 (..., C, H, W) with so many channels: gray is repeated, color becomes luminance (ITU-R 601).

    Luminance is rounded as by Pillow, so that gray held in three channels stays what it is.

    Raises:
        ValueError: channels, or those of the images, are neither 1 nor 3.

    >>> import torch
    >>> with_channels(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), 3).shape
    torch.Size([2, 3, 8, 8])
    """
    present = images.shape[-3]
    if present == channels:
        return images
    if {present, channels} != {1, 3}:
        raise ValueError(f"channels: expected 1 or 3, got images of {present} for an encoder of {channels}")
    if channels == 1:
        red, green, blue = images.int().split(1, dim=-3)
        gray: Tensor = (19595 * red + 38470 * green + 7471 * blue + (1 << 15)) >> 16
        return gray.to(images.dtype)
    return images.expand(*images.shape[:-3], 3, *images.shape[-2:])
