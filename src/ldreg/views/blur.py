"""Gaussian blur of a batch, of another width for every image."""

import torch
from torch import Tensor

from ldreg.views.resample import resample

SIGMA = (0.1, 2.0)


def sample_sigma(uniforms: Tensor) -> Tensor:
    """Standard deviations (N,) in pixels, uniform in [0.1, 2], from uniforms (N,) in [0, 1)."""
    return SIGMA[0] + (SIGMA[1] - SIGMA[0]) * uniforms


def kernel_size(size: int) -> int:
    """The odd width in pixels of the kernel for images of size x size: a tenth, as SimCLR has it, and at least 3.

    >>> kernel_size(224), kernel_size(96), kernel_size(32), kernel_size(8)
    (23, 9, 3, 3)
    """
    return max(3, size // 10 | 1)


def gaussian_blur(images: Tensor, sigma: Tensor, applied: Tensor, *, width: int) -> Tensor:
    """Blurs those of images (N, C, H, W) where applied (N,) is true, with sigma (N,) and a kernel of width pixels.

    Equal to torchvision's `gaussian_blur`. It reflects at the borders, for which H and W must exceed width // 2.
    """
    offset = torch.arange(width, dtype=images.dtype, device=images.device) - width // 2
    kernels = torch.softmax(-0.5 * (offset / sigma[:, None]).square(), dim=1)
    # A kernel of a single 1 leaves an image as it is, so that one product does for all.
    kernels = torch.where(applied[:, None], kernels, (offset == 0).to(images.dtype))
    return resample(images, _bands(kernels, images.shape[2]), _bands(kernels, images.shape[3]))


def _bands(kernels: Tensor, pixels: int) -> Tensor:
    """Matrices (N, pixels, pixels) of the convolution of a line, reflected at its ends, with kernels (N, width)."""
    width = kernels.shape[1]
    index = torch.arange(pixels, device=kernels.device)
    source = (index + torch.arange(width, device=kernels.device)[:, None] - width // 2).abs()
    source = pixels - 1 - (pixels - 1 - source).abs()
    taps = (source[:, :, None] == index).to(kernels.dtype)
    return (kernels @ taps.flatten(1)).view(-1, pixels, pixels)
