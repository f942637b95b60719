"""Pictures to make views of: drawn at random, smooth as photographs are, in memory or written as JPEG files."""

from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from ldreg.bench.benchmark import Pictures

_GRAIN = 8  # pixels between independent colors
_NOISE = 12.0  # gray levels of what varies from pixel to pixel, so that files take as many bits as photographs do
_QUALITY = 90  # of the JPEG files
CLASS = "pictures"  # the one folder that the files lie in, as loaders want classes


def draw(size: Pictures, *, seed: int) -> Tensor:
    """Random pictures, uint8 (N, 3, H, W).

    >>> draw(Pictures(2, 224), seed=0).shape
    torch.Size([2, 3, 350, 400])
    """
    generator = torch.Generator().manual_seed(seed)
    height, width = size.shape
    coarse = torch.rand(size.images, 3, -(-height // _GRAIN) + 1, -(-width // _GRAIN) + 1, generator=generator)
    smooth = 255 * functional.interpolate(coarse, size=(height, width), mode="bicubic")
    return smooth.add_(torch.randn(smooth.shape, generator=generator), alpha=_NOISE).clamp_(0, 255).to(torch.uint8)


def as_pil(pictures: Tensor) -> list[Image.Image]:
    """Pictures uint8 (N, 3, H, W) as Pillow has them."""
    return [Image.fromarray(picture.permute(1, 2, 0).contiguous().numpy()) for picture in pictures]


def write_files(pictures: Tensor, folder: Path) -> list[Path]:
    """The pictures as JPEG files in the one class folder below `folder`."""
    (folder / CLASS).mkdir()
    paths = [folder / CLASS / f"{number:06d}.jpg" for number in range(len(pictures))]
    for path, picture in zip(paths, as_pil(pictures), strict=True):
        picture.save(path, quality=_QUALITY)
    return paths
