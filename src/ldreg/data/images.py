"""Sets of images: one uint8 array, or files that are decoded when drawn."""

import os
from collections.abc import Sequence
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ldreg.data.config import Decode
from ldreg.data.pixels import Decoded, decoded, reason_of
from ldreg.data.unreadable import Tally, UnreadableImageError

MOST_BYTES = 1 << 30  # of an image file; the most pixels that are decoded take less


class Batch(NamedTuple):
    """What loaders yield.

    images: uint8, (B, C, H, W), or (B, V, C, S, S) where workers already made V crops; labels: int64 (B,), -1 where
    unknown; indices: int64 (B,), where in the set the images stand.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor


class _Labeled:
    """Of a set with `labels` int64 (N,), -1 where unknown: which images have one."""

    labels: Tensor

    @property
    def labeled(self) -> bool:
        """Whether every image has a label."""
        return bool((self.labels >= 0).all())

    @property
    def labeled_indices(self) -> Tensor:
        """Where in the set the images with a label stand, int64 (M,)."""
        return (self.labels >= 0).nonzero().squeeze(1)


class ResidentImages(_Labeled):
    """Square images of one size as one uint8 array (N, C, S, S), with labels int64 (N,), -1 where unknown.

    `unreadable` lists the files that were left out because they could not be decoded, each with the reason.
    `transparent` is how many of how many decoded files had transparent pixels.

    Raises:
        ValueError: where the array's type or shape, or the labels', is another.

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
        self.labels = checked_labels(labels, count=len(images), classes=classes)
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
        """The set of these images alone, in this order."""
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

    `size` is the side of the images where they are squares of one size (as far as has been looked), else None.
    `tally` counts the files that cannot be decoded, of which a share of `max_unreadable` is borne. `decoding` says
    where loaders decode JPEGs.

    Raises:
        ValueError: where labels and paths differ in number.
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
        # One array instead of a million strings: worker processes share it without copying, as no counts change.
        self._paths = np.array([os.fsencode(path) for path in paths], dtype=np.bytes_)
        self.labels = checked_labels(labels, count=len(paths), classes=classes)
        self.classes = tuple(classes)
        self.name = name
        self.size = size
        self.decoding = decoding
        self.tally = Tally(len(paths), max_share=max_unreadable)

    def __len__(self) -> int:
        return len(self._paths)

    def path(self, index: int) -> str:
        """Where image `index` is."""
        return os.fsdecode(bytes(self._paths[index]))

    def content(self, index: int) -> bytes:
        """The bytes of image `index`.

        Raises:
            UnreadableImageError: where the file cannot be read or is empty.
        """
        return content_of(self.path(index))

    def decode(self, index: int) -> Tensor:
        """Image `index` as uint8 (3, H, W).

        Raises:
            UnreadableImageError: where the file cannot be decoded.
        """
        return decode(self.path(index))

    def read(self, index: int) -> Decoded:
        """The same, and whether it was transparent.

        Raises:
            UnreadableImageError: where the file cannot be decoded.
        """
        return decoded(self.content(index))

    def take(self, indices: Tensor) -> "ImageFiles":
        """The set of these images alone, in this order; unreadable ones count in the tally of the whole."""
        paths = [self.path(index) for index in indices.tolist()]
        taken = ImageFiles(paths, self.labels[indices], self.classes, self.name, size=self.size, decoding=self.decoding)
        taken.tally = self.tally
        return taken


ImageSet = ResidentImages | ImageFiles


def checked_labels(labels: Tensor, *, count: int, classes: Sequence[str]) -> Tensor:
    """The labels themselves, int64 (count,), each -1 or the number of a class.

    Raises:
        ValueError: where they are not.
    """
    if labels.dtype != torch.int64 or labels.shape != (count,):
        raise ValueError(f"labels: expected int64 ({count},), got {labels.dtype} {tuple(labels.shape)}")
    if count and not -1 <= int(labels.min()) <= int(labels.max()) < max(1, len(classes)):
        span = f"{int(labels.min())} to {int(labels.max())}"
        raise ValueError(f"labels: expected -1 to {len(classes) - 1}, got {span}")
    return labels


def decode(path: str) -> Tensor:
    """An image file as uint8 RGB, (3, H, W).

    Gray, palette, CMYK and 16-bit images (the high byte is kept) are converted, and transparent ones composited onto
    white. The first frame of several is read. The EXIF orientation is not applied: as with torchvision's datasets, the
    stored pixels count.

    Raises:
        UnreadableImageError: where the file cannot be read or decoded.
    """
    return decoded(content_of(path)).pixels


def content_of(path: str) -> bytes:
    """The bytes of a file.

    Raises:
        UnreadableImageError: where it cannot be read, is empty, too large, or a pipe or device.
    """
    try:
        with open(path, "rb", buffering=0, opener=_at_once) as stream:
            state = os.fstat(stream.fileno())
            if not S_ISREG(state.st_mode):
                raise UnreadableImageError("a pipe or device")
            if state.st_size > MOST_BYTES:
                raise UnreadableImageError(f"a file of {state.st_size} bytes, expected at most {MOST_BYTES}")
            content = stream.read()
    except OSError as error:
        raise UnreadableImageError(reason_of(error)) from error
    if not content:
        raise UnreadableImageError("the file is empty")
    return content


def _at_once(path: str, flags: int) -> int:
    """Open a file without waiting for who would write into it, were it a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
