"""Random crops in two steps: boxes drawn where a file is read, pixels cut where they lie."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ldreg.views import Views
from ldreg.views.transforms import BOX_DRAWS, Boxes, resized_crop, sample_boxes

PADDED = 1 << 24  # pixels of images, padded to one size, that are cut at once

Box = list[int]
"""Top, left, height and width in pixels."""


class RandomCrops:
    """The crops of `Views.crop`, which may also be drawn first and then cut from many images of any sizes at once.

    Cut at once they are rounded at the end, where `Views.crop` rounds between its two directions as well: values differ
    by at most one gray level. Bicubic ones may differ by more where the first direction overshoots black or white,
    which `Views.crop` cuts off at once.

    >>> from ldreg.views import ViewsConfig
    >>> crops = RandomCrops(Views(ViewsConfig("simclr"), size=8, channels=3))
    >>> images = [torch.zeros(3, 20, 30, dtype=torch.uint8), torch.zeros(3, 16, 16, dtype=torch.uint8)]
    >>> boxes = [crops.draw(*image.shape[1:], torch.Generator().manual_seed(0)) for image in images]
    >>> crops.cut(images, boxes).shape
    torch.Size([2, 2, 3, 8, 8])
    """

    def __init__(self, views: Views) -> None:
        self.views = views

    def __call__(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """The crops (V, C, S, S) of one image uint8 (C, H, W)."""
        return self.views.crop(image, generator)

    def draw(self, height: int, width: int, generator: torch.Generator) -> list[Box]:
        """The V boxes that calling this with an image of height x width would cut."""
        uniforms = torch.rand(self.views.count, BOX_DRAWS, generator=generator, dtype=torch.float32)
        boxes = sample_boxes(uniforms, height=height, width=width, scale=self.views.policy.scale)
        drawn: list[Box] = torch.stack(boxes, dim=1).tolist()
        return drawn

    def cut(self, images: Sequence[Tensor], boxes: Sequence[list[Box]]) -> Tensor:
        """The crops (B, V, C, S, S) of images uint8 (C, H, W) on one device to V boxes each, antialiased."""
        parts = [self._cut(images[start:end], boxes[start:end]) for start, end in _spans(images)]
        return torch.cat(parts)

    def _cut(self, images: Sequence[Tensor], boxes: Sequence[list[Box]]) -> Tensor:
        padded = _padded(images)
        corners = torch.tensor(boxes, dtype=torch.int64, device=padded.device)
        crops = resized_crop(
            padded,
            Boxes(*corners.flatten(0, 1).unbind(1)),
            size=self.views.size,
            interpolation=self.views.policy.interpolation,
        )
        rounded: Tensor = crops.round_().clamp_(0, 255).to(torch.uint8)
        return rounded.view(*corners.shape[:2], *rounded.shape[1:])


def _padded(images: Sequence[Tensor]) -> Tensor:
    """Images as one float32 (B, C, H, W), in memory as (B, H, C, W), with anything beyond their right and bottom ends.

    No box reaches there, so that the weights are zero.
    """
    height, width = (max(image.shape[dim] for image in images) for dim in (1, 2))
    padded = images[0].new_zeros(len(images), height, images[0].shape[0], width)
    for row, image in zip(padded, images, strict=True):
        row[: image.shape[1], :, : image.shape[2]] = image.transpose(0, 1)
    return padded.float().transpose(1, 2)


def _spans(images: Sequence[Tensor]) -> Iterator[tuple[int, int]]:
    """Where successive images begin and end that, padded to one size, have at most PADDED pixels, or are alone."""
    start, height, width = 0, 0, 0
    for end, image in enumerate(images):
        height, width = max(height, image.shape[1]), max(width, image.shape[2])
        if end > start and (end + 1 - start) * height * width > PADDED:
            yield start, end
            start, height, width = end, image.shape[1], image.shape[2]
    yield start, len(images)
