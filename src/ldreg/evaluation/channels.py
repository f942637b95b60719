"""Images of one channel for encoders of three, and the other way round."""

from torch import Tensor


def with_channels(images: Tensor, channels: int) -> Tensor:
    """Images (..., C, H, W) with so many channels: gray is repeated, color becomes luminance (ITU-R 601).

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
        from torchvision.transforms.v2.functional import rgb_to_grayscale

        gray: Tensor = rgb_to_grayscale(images, num_output_channels=1)
        return gray
    return images.expand(*images.shape[:-3], 3, *images.shape[-2:])
