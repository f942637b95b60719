"""One image after the other: found in a set of files, with what stands in for unreadable ones, and prepared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ldreg.data.crops import Box, RandomCrops
from ldreg.data.images import Batch, ImageFiles
from ldreg.data.order import derived_seed
from ldreg.data.pixels import Decoded
from ldreg.data.unreadable import Failure, UnreadableImageError

LONGEST = 4  # times the shorter side: how much of an image is resized; the middle of it is kept anyway

Crop = Callable[[Tensor, torch.Generator], Tensor]
Read = Callable[[int], Decoded]
Made = tuple[Batch | None, list[Failure], int]
"""A batch, or None where nothing is readable, the unreadable files met, and how many images of it are transparent."""


@dataclass(frozen=True)
class Sample:
    """The image of a key, or None where there is no readable one, and the unreadable files met in search of it.

    `image` is uint8: pixels (C, H, W), or a JPEG's bytes (n,), or what is made of an image. `boxes` are its crops'
    where they have been drawn already. `transparent` says whether pixels of it were.
    """

    key: Any
    image: Tensor | None
    label: int
    index: int
    failures: list[Failure]
    transparent: bool = False
    boxes: list[Box] | None = None


class Source(Protocol):
    """How a key becomes a sample."""

    files: ImageFiles

    def find(self, key: Any, read: Read, *, tried: Sample | None = None) -> Sample:
        """The image of a key as `read(index)` gives it; in place of `tried`, whose image `read` may not like either."""
        ...

    def draw(self, key: Any, height: int, width: int) -> list[Box] | None:
        """The boxes that `prepare` would cut from an image of this size, where they can be told without it."""
        ...

    def prepare(self, sample: Sample) -> Tensor:
        """What the encoder's views are made of, from a sample's pixels."""
        ...

    def prepare_all(self, samples: Sequence[Sample]) -> Tensor:
        """The same of several samples with pixels on one device, stacked."""
        ...


class Crops:
    """Random crops, uint8 (V, C, S, S), of the image of an (epoch, index) key.

    The seed of its generator is derived from (seed, epoch, index). An unreadable file gives its place to the next.
    """

    def __init__(self, files: ImageFiles, *, crop: Crop, seed: int) -> None:
        self.files, self.crop, self.seed = files, crop, seed

    def find(self, key: tuple[int, int], read: Read, *, tried: Sample | None = None) -> Sample:
        """The image, else the next readable one after it."""
        index, failures = (key[1], []) if tried is None else (tried.index, list(tried.failures))
        # Past the bound the main process stops anyway, so the search need not go through the whole set.
        while not self.files.tally.exceeds(len(failures)):
            try:
                found = read(index)
                return Sample(
                    key, found.pixels, int(self.files.labels[index]), index, failures, transparent=found.transparent
                )
            except UnreadableImageError as error:
                failures.append(Failure(index, self.files.path(index), str(error)))
                index = (index + 1) % len(self.files)
        return Sample(key, None, -1, index, failures)

    def draw(self, key: tuple[int, int], height: int, width: int) -> list[Box] | None:
        """The boxes, where the crops are such that these can be drawn first."""
        return self.crop.draw(height, width, self._generator(key)) if isinstance(self.crop, RandomCrops) else None

    def prepare(self, sample: Sample) -> Tensor:
        """The crops of one image."""
        return self.crop(pixels(sample), self._generator(sample.key))

    def prepare_all(self, samples: Sequence[Sample]) -> Tensor:
        """The crops of several images, at once where boxes can be drawn first."""
        if not isinstance(self.crop, RandomCrops):
            return torch.stack([self.prepare(sample) for sample in samples])
        images = [pixels(sample) for sample in samples]
        boxes = [
            sample.boxes or self.crop.draw(image.shape[1], image.shape[2], self._generator(sample.key))
            for sample, image in zip(samples, images, strict=True)
        ]
        return self.crop.cut(images, boxes)

    def _generator(self, key: tuple[int, int]) -> torch.Generator:
        return torch.Generator().manual_seed(derived_seed(self.seed, *key))


class Plain:
    """The image of an index, uint8 (C, size, size), as `resize_and_crop` makes it; None where unreadable."""

    def __init__(self, files: ImageFiles, *, size: int) -> None:
        self.files, self.size = files, size

    def find(self, key: int, read: Read, *, tried: Sample | None = None) -> Sample:
        """The image, which has none in its place."""
        try:
            found = read(key)
            return Sample(key, found.pixels, int(self.files.labels[key]), key, [], transparent=found.transparent)
        except UnreadableImageError as error:
            return Sample(key, None, -1, key, [Failure(key, self.files.path(key), str(error))])

    def draw(self, key: int, height: int, width: int) -> None:
        """Nothing is random here."""

    def prepare(self, sample: Sample) -> Tensor:
        """The image resized."""
        return resize_and_crop(pixels(sample), size=self.size)

    def prepare_all(self, samples: Sequence[Sample]) -> Tensor:
        """The same one by one."""
        return torch.stack([self.prepare(sample) for sample in samples])


def pixels(sample: Sample) -> Tensor:
    """The image of a sample that has one."""
    assert sample.image is not None
    return sample.image


def resize_and_crop(image: Tensor, *, size: int) -> Tensor:
    """Images uint8 (..., C, H, W) as an encoder takes them without augmentation, (..., C, size, size).

    Squares are resized whole, or left as they are. Of others the shorter side is made size·256/224 and the middle is
    taken. What becomes of an image depends on the image and the size alone, not on the set that it is in.

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
