"""One image after the other from a set of files: read it, or the next one if unreadable, then crop or resize it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ldreg.data.decoding import Decoded, UnreadableImageError
from ldreg.data.images import Failure, ImageFiles
from ldreg.data.order import derived_seed
from ldreg.views import Views
from ldreg.views.transforms import BOX_DRAWS, Boxes, resized_crop, sample_boxes

LONGEST = 4  # times the shorter side: the part of an image's middle that is resized; less than that is kept
PADDED = 1 << 24  # pixels of images, padded to one size, that are cropped at once

Crop = Callable[[Tensor, torch.Generator], Tensor]
Read = Callable[[int], Decoded]
Box = list[int]
"""Top, left, height and width in pixels."""


class RandomCrops:
    """The crops of `Views.crop`; their boxes may also be drawn first and cut from many images of any sizes at once.

    Cut at once they are rounded at the end, whereas `Views.crop` also rounds between its two directions: values differ
    by at most one gray level. Bicubic crops may differ by more where the first direction overshoots black or white,
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
        """The V boxes that a call with an image of height x width would cut."""
        uniforms = torch.rand(self.views.count, BOX_DRAWS, generator=generator, dtype=torch.float32)
        boxes = sample_boxes(uniforms, height=height, width=width, scale=self.views.policy.scale)
        drawn: list[Box] = torch.stack(boxes, dim=1).tolist()
        return drawn

    def cut(self, images: Sequence[Tensor], boxes: Sequence[list[Box]]) -> Tensor:
        """The crops (B, V, C, S, S) of images uint8 (C, H, W) on one device to V boxes each, antialiased."""
        parts = [self._cut(images[start:end], boxes[start:end]) for start, end in _chunks(images)]
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
    """Images as one float32 (B, C, H, W), in memory as (B, H, C, W), padded at their right and bottom ends.

    The values of the padding do not matter, as no box reaches there.
    """
    height, width = (max(image.shape[dim] for image in images) for dim in (1, 2))
    padded = images[0].new_zeros(len(images), height, images[0].shape[0], width)
    for row, image in zip(padded, images, strict=True):
        row[: image.shape[1], :, : image.shape[2]] = image.transpose(0, 1)
    return padded.float().transpose(1, 2)


def _chunks(images: Sequence[Tensor]) -> Iterator[tuple[int, int]]:
    """Start and end of runs of images that, padded to one size, have at most PADDED pixels, or are single images."""
    start, height, width = 0, 0, 0
    for end, image in enumerate(images):
        height, width = max(height, image.shape[1]), max(width, image.shape[2])
        if end > start and (end + 1 - start) * height * width > PADDED:
            yield start, end
            start, height, width = end, image.shape[1], image.shape[2]
    yield start, len(images)


@dataclass(frozen=True)
class Sample:
    """The image of a key, or None if none is readable, and the unreadable files met on the way.

    `image` is uint8: pixels (C, H, W), the bytes of a JPEG (n,), or the finished crops. `boxes` are those of the crops
    if they have been drawn already. `transparent` says whether some pixels were.
    """

    key: Any
    image: Tensor | None
    label: int
    index: int
    failures: list[Failure]
    transparent: bool = False
    boxes: list[Box] | None = None

    @property
    def pixels(self) -> Tensor:
        """The image of a sample that has one."""
        assert self.image is not None
        return self.image


class CropSource:
    """Makes random crops, uint8 (V, C, S, S), of the image of an (epoch, index) key.

    The seed of its generator is derived from (seed, epoch, index). An unreadable file is replaced by the next one.
    """

    def __init__(self, files: ImageFiles, *, crop: Crop, seed: int) -> None:
        self.files, self.crop, self.seed = files, crop, seed

    def find(self, key: tuple[int, int], read: Read, *, tried: Sample | None = None) -> Sample:
        """The image as `read(index)` gives it, else the next readable one; `tried` is a sample to continue from."""
        index, failures = (key[1], []) if tried is None else (tried.index, list(tried.failures))
        # Past the bound the main process stops anyway, so the search need not go through the whole set.
        while not self.files.tally.exceeds(len(failures)):
            try:
                found = read(index)
            except UnreadableImageError as error:
                failures.append(Failure(index, self.files.path(index), str(error)))
                index = (index + 1) % len(self.files)
            else:
                label = int(self.files.labels[index])
                return Sample(key, found.pixels, label, index, failures, transparent=found.transparent)
        return Sample(key, None, -1, index, failures)

    def draw(self, key: tuple[int, int], height: int, width: int) -> list[Box] | None:
        """The boxes of the crops from an image of this size, if they can be drawn before it is decoded."""
        return self.crop.draw(height, width, self._generator(key)) if isinstance(self.crop, RandomCrops) else None

    def prepare(self, sample: Sample) -> Tensor:
        """The crops of one image."""
        return self.crop(sample.pixels, self._generator(sample.key))

    def prepare_all(self, samples: Sequence[Sample]) -> Tensor:
        """The crops of several images on one device, stacked; cut at once if the boxes can be drawn first."""
        if not isinstance(self.crop, RandomCrops):
            return torch.stack([self.prepare(sample) for sample in samples])
        images = [sample.pixels for sample in samples]
        boxes = [
            sample.boxes or self.crop.draw(image.shape[1], image.shape[2], self._generator(sample.key))
            for sample, image in zip(samples, images, strict=True)
        ]
        return self.crop.cut(images, boxes)

    def _generator(self, key: tuple[int, int]) -> torch.Generator:
        return torch.Generator().manual_seed(derived_seed(self.seed, *key))


class PlainSource:
    """Makes the image of an index without augmentation, uint8 (C, size, size); None if it is unreadable."""

    def __init__(self, files: ImageFiles, *, size: int) -> None:
        self.files, self.size = files, size

    def find(self, key: int, read: Read, *, tried: Sample | None = None) -> Sample:
        """The image as `read(index)` gives it; no other image replaces it."""
        try:
            found = read(key)
        except UnreadableImageError as error:
            return Sample(key, None, -1, key, [Failure(key, self.files.path(key), str(error))])
        return Sample(key, found.pixels, int(self.files.labels[key]), key, [], transparent=found.transparent)

    def draw(self, key: int, height: int, width: int) -> None:
        """Nothing is random here."""

    def prepare(self, sample: Sample) -> Tensor:
        """The image resized."""
        return resize_and_crop(sample.pixels, size=self.size)

    def prepare_all(self, samples: Sequence[Sample]) -> Tensor:
        """Several images resized one by one, stacked."""
        return torch.stack([self.prepare(sample) for sample in samples])


Source = CropSource | PlainSource


def resize_and_crop(image: Tensor, *, size: int) -> Tensor:
    """Images uint8 (..., C, H, W) as an encoder takes them without augmentation, (..., C, size, size).

    Squares are resized. Of other images the shorter side is resized to size·256/224 and the middle is taken. The result
    depends on the image and the size, not on the set that it is in.

    >>> resize_and_crop(torch.zeros(3, 300, 500, dtype=torch.uint8), size=224).shape
    torch.Size([3, 224, 224])
    """
    from torchvision.transforms.v2 import functional as tvf

    height, width = image.shape[-2:]
    if height == width:
        whole: Tensor = image if height == size else tvf.resize(image, [size, size], antialias=True)
        return whole
    longest = LONGEST * min(height, width)
    # A long thin image would be enlarged beyond memory. Cutting as much from either end leaves the middle in place.
    image = tvf.center_crop(image, [min(side, longest + (side - longest) % 2) for side in (height, width)])
    resized = tvf.resize(image, [round(size * 256 / 224)], antialias=True)
    cropped: Tensor = tvf.center_crop(resized, [size, size])
    return cropped
