"""Sets of images: one uint8 array, or files decoded when they are drawn; and the unreadable files of a set."""

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ldreg.data.config import Decode
from ldreg.data.decoding import Decoded, read_image
from ldreg.text import quoted_if_odd

logger = logging.getLogger("ldreg")


class Batch(NamedTuple):
    """A batch of a loader.

    images: uint8, (B, C, H, W), or (B, V, C, S, S) if workers already made V crops; labels: int64 (B,), -1 where
    unknown; indices: int64 (B,), the positions of the images in the set.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor


@dataclass(frozen=True)
class Failure:
    """An image of a set that could not be read: its index, its path and the reason."""

    index: int
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{quoted_if_odd(self.path)}: {quoted_if_odd(self.reason)}"


class Tally:
    """Counts the unreadable files of a set of `count`; a share of up to `max_share` is tolerated.

    Each file is logged once, however often it is met. `transparent` is the number of images with transparent pixels in
    the last whole pass over the set, or over a part of it.

    >>> tally = Tally(200, max_share=0.01)
    >>> tally.add([Failure(7, "a.jpg", "truncated"), Failure(7, "a.jpg", "truncated")])
    >>> tally.listed
    ['a.jpg: truncated']
    """

    def __init__(self, count: int, *, max_share: float) -> None:
        self.count = count
        self.max_share = max_share
        self.transparent = 0
        self._failures: dict[str, Failure] = {}
        self._read = 0

    @property
    def listed(self) -> list[str]:
        """The unreadable images met so far, each as its path and the reason."""
        return [str(failure) for failure in self._failures.values()]

    def add(self, failures: Iterable[Failure]) -> None:
        """Count and log new failures.

        Raises:
            ValueError: the share of unreadable images is above the bound.
        """
        for failure in failures:
            if failure.path not in self._failures:
                self._failures[failure.path] = failure
                logger.warning("unreadable image: %s", failure)
        bad = len(self._failures)
        if self.exceeds(bad):
            raise ValueError(
                f"max_unreadable: expected at most {self.max_share:.2%} unreadable images, got {bad} of {self.count} "
                f"({bad / self.count:.2%}) so far, among them {'; '.join(self.listed[:3])}"
            )

    def exceeds(self, unreadable: int) -> bool:
        """Whether this number of unreadable images is above the bound."""
        return unreadable > 0 and unreadable / self.count > self.max_share  # a product would be rounded past the bound

    def finish_pass(self, read: int, *, transparent: int) -> None:
        """Log how many of the images read in one pass are transparent, unless a pass as long has logged it."""
        self.transparent = transparent
        if transparent and read > self._read:
            logger.warning(transparency_note(transparent, read))
            self._read = read


def transparency_note(transparent: int, read: int) -> str:
    """The log line about transparent images.

    >>> transparency_note(662, 978)
    '662 of 978 images have transparent pixels; composited onto white'
    """
    return f"{transparent} of {read} images have transparent pixels; composited onto white"


class _Labeled:
    """A set with `labels` int64 (N,), -1 where unknown."""

    labels: Tensor

    @property
    def labeled(self) -> bool:
        """Whether every image has a label."""
        return bool((self.labels >= 0).all())

    @property
    def labeled_indices(self) -> Tensor:
        """The positions of the images with a label, int64 (M,)."""
        return (self.labels >= 0).nonzero().squeeze(1)


class ResidentImages(_Labeled):
    """Square images of one size as one uint8 array (N, C, S, S), with labels int64 (N,), -1 where unknown.

    `unreadable` lists the files left out because they could not be decoded, each with the reason. `transparent` is the
    number of decoded files with transparent pixels, and the number of decoded files.

    Raises:
        ValueError: the array or the labels have another dtype or shape.

    >>> images = ResidentImages(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1]), ("a", "b"), "tiny")
    >>> len(images), images.channels, images.size, images.labeled
    (2, 1, 8, True)
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        classes: Sequence[str],
        name: str,
        *,
        unreadable: Sequence[str] = (),
        transparent: tuple[int, int] = (0, 0),
    ) -> None:
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[2] != images.shape[3]:
            raise ValueError(f"images: expected uint8 (N, C, S, S), got {images.dtype} {tuple(images.shape)}")
        self.images = images
        self.labels = _checked_labels(labels, count=len(images), classes=classes)
        self.classes = tuple(classes)
        self.name = name
        self.unreadable = tuple(unreadable)
        self.transparent = transparent

    def __len__(self) -> int:
        return len(self.images)

    @property
    def channels(self) -> int:
        """Channels of every image."""
        return self.images.shape[1]

    @property
    def size(self) -> int:
        """Side of every image."""
        return self.images.shape[2]

    def take(self, indices: Tensor) -> "ResidentImages":
        """The set of only these images, in this order."""
        return ResidentImages(
            self.images[indices],
            self.labels[indices],
            self.classes,
            self.name,
            unreadable=self.unreadable,
            transparent=self.transparent,
        )


class ImageFiles(_Labeled):
    """Image files of any sizes with labels int64 (N,), -1 where unknown; decoded to RGB when drawn.

    `size` is the side of the images if they are squares of one size (judged by a sample), else None. `tally` counts
    the files that cannot be decoded; a share of up to `max_unreadable` is tolerated. `decoding` says where loaders
    decode JPEGs.

    Raises:
        ValueError: labels and paths differ in number.
    """

    channels = 3

    def __init__(
        self,
        paths: Sequence[str | Path],
        labels: Tensor,
        classes: Sequence[str],
        name: str,
        *,
        size: int | None = None,
        max_unreadable: float = 0.01,
        decoding: Decode = "auto",
    ) -> None:
        # One array instead of a million strings: worker processes share it, as no reference counts change.
        self._paths = np.array([os.fsencode(path) for path in paths], dtype=np.bytes_)
        self.labels = _checked_labels(labels, count=len(paths), classes=classes)
        self.classes = tuple(classes)
        self.name = name
        self.size = size
        self.decoding = decoding
        self.tally = Tally(len(paths), max_share=max_unreadable)

    def __len__(self) -> int:
        return len(self._paths)

    def path(self, index: int) -> str:
        """The path of image `index`."""
        return os.fsdecode(bytes(self._paths[index]))

    def read(self, index: int) -> Decoded:
        """Image `index` as uint8 (3, H, W), and whether it was transparent.

        Raises:
            UnreadableImageError: the file cannot be decoded.
        """
        return read_image(self.path(index))

    def take(self, indices: Tensor) -> "ImageFiles":
        """The set of only these images, in this order; it shares the tally of the whole set."""
        paths = [self.path(index) for index in indices.tolist()]
        taken = ImageFiles(paths, self.labels[indices], self.classes, self.name, size=self.size, decoding=self.decoding)
        taken.tally = self.tally
        return taken


ImageSet = ResidentImages | ImageFiles


def _checked_labels(labels: Tensor, *, count: int, classes: Sequence[str]) -> Tensor:
    if labels.dtype != torch.int64 or labels.shape != (count,):
        raise ValueError(f"labels: expected int64 ({count},), got {labels.dtype} {tuple(labels.shape)}")
    if count and not -1 <= int(labels.min()) <= int(labels.max()) < max(1, len(classes)):
        span = f"{int(labels.min())} to {int(labels.max())}"
        raise ValueError(f"labels: expected -1 to {len(classes) - 1}, got {span}")
    return labels
