"""Sets of images, as one array or as files, and the order in which they are drawn.

Files that fit are decoded once into an array, which is stored in the cache.
"""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ldreg.data.config import DataConfig, Decode, available_cores, cache_folder
from ldreg.data.decoding import Decoded, UnreadableImageError, image_size, read_image
from ldreg.io.files import filling
from ldreg.text import quoted_if_odd

logger = logging.getLogger("ldreg")

SAMPLED = 64  # files that are looked at for their size
VERSION = 2  # of decoding; part of every fingerprint

Stored = tuple[Tensor, list["Failure"], int]
"""Decoded images, failures, and the number of transparent images."""


class Batch(NamedTuple):
    """A batch of a loader.

    images: uint8, (B, C, H, W), or (B, V, C, S, S) if workers already made V crops; labels: int64 (B,), -1 where
    unknown; indices: int64 (B,), the positions of the images in the set.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor

    def to(self, device: torch.device | str) -> "Batch":
        """The batch on the device."""
        return Batch(*(part.to(device, non_blocking=True) for part in self))


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
    the last whole pass over the set, or over a part of it. `notes` are the lines logged so far.
    """

    def __init__(self, count: int, *, max_share: float) -> None:
        self.count = count
        self.max_share = max_share
        self.transparent = 0
        self.notes: list[str] = []
        self._failures: dict[str, Failure] = {}
        self._read = 0

    @property
    def listed(self) -> list[str]:
        """The unreadable images met so far, each as its path and the reason."""
        return [str(failure) for failure in self._failures.values()]

    def add(self, failures: Iterable[Failure]) -> None:
        """Count and log new failures; ValueError if the share of unreadable images is above the bound."""
        for failure in failures:
            if failure.path not in self._failures:
                self._failures[failure.path] = failure
                self._note(f"unreadable image: {failure}")
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
            self._note(f"{transparent} of {read} images have transparent pixels; composited onto white")
            self._read = read

    def _note(self, line: str) -> None:
        self.notes.append(line)
        logger.warning(line)


class _Images:
    """What sets of images share: `labels` int64 (N,), -1 where unknown, the names of the classes, and its own name."""

    def __init__(self, count: int, labels: Tensor, classes: Sequence[str], name: str) -> None:
        if labels.dtype != torch.int64 or labels.shape != (count,):
            raise ValueError(f"labels: expected int64 ({count},), got {labels.dtype} {tuple(labels.shape)}")
        if count and not -1 <= int(labels.min()) <= int(labels.max()) < max(1, len(classes)):
            span = f"{int(labels.min())} to {int(labels.max())}"
            raise ValueError(f"labels: expected -1 to {len(classes) - 1}, got {span}")
        self.labels = labels
        self.classes = tuple(classes)
        self.name = name

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def labeled(self) -> bool:
        """Whether every image has a label."""
        return bool((self.labels >= 0).all())

    @property
    def labeled_indices(self) -> Tensor:
        """The positions of the images with a label, int64 (M,)."""
        return (self.labels >= 0).nonzero().squeeze(1)


class ResidentImages(_Images):
    """Square images of one size as one uint8 array (N, C, S, S), with labels int64 (N,), -1 where unknown.

    `tally` counts the files that could not be decoded, which are left out.

    Raises:
        ValueError: the array or the labels have another dtype or shape.

    >>> images = ResidentImages(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1]), ("a", "b"), "tiny")
    >>> len(images), images.channels, images.size, images.labeled
    (2, 1, 8, True)
    """

    def __init__(
        self, images: Tensor, labels: Tensor, classes: Sequence[str], name: str, *, tally: Tally | None = None
    ) -> None:
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[2] != images.shape[3]:
            raise ValueError(f"images: expected uint8 (N, C, S, S), got {images.dtype} {tuple(images.shape)}")
        super().__init__(len(images), labels, classes, name)
        self.images = images
        self.tally = tally or Tally(len(images), max_share=0)

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
        return ResidentImages(self.images[indices], self.labels[indices], self.classes, self.name, tally=self.tally)


class ImageFiles(_Images):
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
        super().__init__(len(paths), labels, classes, name)
        # One array instead of a million strings: worker processes share it, as no reference counts change.
        self._paths = np.array([os.fsencode(path) for path in paths], dtype=np.bytes_)
        self.size = size
        self.decoding = decoding
        self.tally = Tally(len(paths), max_share=max_unreadable)

    def path(self, index: int) -> str:
        """The path of image `index`."""
        return os.fsdecode(bytes(self._paths[index]))

    def read(self, index: int) -> Decoded:
        """Image `index` as uint8 (3, H, W), and whether it was transparent; UnreadableImageError if it is damaged."""
        return read_image(self.path(index))

    def take(self, indices: Tensor) -> "ImageFiles":
        """The set of only these images, in this order; it shares the tally of the whole set."""
        paths = [self.path(index) for index in indices.tolist()]
        taken = ImageFiles(paths, self.labels[indices], self.classes, self.name, size=self.size, decoding=self.decoding)
        taken.tally = self.tally
        return taken


ImageSet = ResidentImages | ImageFiles


class DifferentSizesError(ValueError):
    """Images of different sizes, which are no single array."""


def resident_or_files(files: ImageFiles, config: DataConfig) -> ImageSet:
    """The files as one array if `config.resident` asks for it or they fit, else the files with their size."""
    files.size = _common_side(files)
    if config.resident == "no":
        return files
    try:
        if files.size is None:
            raise DifferentSizesError(f"resident: expected square images of one size in {files.name}, got several")
        if config.resident == "auto" and len(files) * 3 * files.size**2 > config.resident_limit * 1e9:
            return files
        if config.decode == "gpu":
            raise ValueError(
                f"decode: expected auto or cpu where the images are held in memory (or resident: no), got gpu for "
                f"{files.name} with resident: {config.resident}"
            )
        return _decode_all(files, cache=cache_folder(config), side=files.size)
    except DifferentSizesError:
        if config.resident == "yes":
            raise
        files.size = None
        return files


def _common_side(files: ImageFiles) -> int | None:
    """The side of the images if they are squares of one size, judged by a few spread over the set."""
    sizes = set()
    for index in range(0, len(files), -(-len(files) // SAMPLED)):
        with suppress(UnreadableImageError):  # which is counted when it is decoded
            sizes.add(image_size(files.path(index)))
    height, width = sizes.pop() if len(sizes) == 1 else (0, 1)
    return height if height == width else None


def _decode_all(files: ImageFiles, *, cache: Path, side: int) -> ResidentImages:
    """All readable files as one array, from the cache if the same files have been decoded before."""
    store = cache / "decoded" / f"{files.name}-{fingerprint(files)}.safetensors"
    with filling(store):
        stored = _read(store) if store.exists() else None
        images, failures, transparent = stored or decode_into_memory(files, side=side)
        files.tally.add(failures)
        readable = torch.ones(len(files), dtype=torch.bool)
        readable[[failure.index for failure in failures]] = False
        if stored is None:
            images = images[readable] if failures else images
            _write(store, (images, failures, transparent))
    files.tally.finish_pass(len(images), transparent=transparent)
    return ResidentImages(images, files.labels[readable], files.classes, files.name, tally=files.tally)


def decode_into_memory(files: ImageFiles, *, side: int) -> Stored:
    """Decode every file to uint8 (N, 3, side, side); rows of failures are undefined."""
    images = torch.empty(len(files), 3, side, side, dtype=torch.uint8)

    def decode_one(index: int) -> Failure | bool:
        try:
            image, is_transparent = files.read(index)
        except UnreadableImageError as error:
            return Failure(index, files.path(index), str(error))
        if image.shape != images.shape[1:]:
            got = f"{image.shape[1]}x{image.shape[2]} in {quoted_if_odd(files.path(index))}"
            raise DifferentSizesError(f"resident: expected square images of side {side}, got {got}")
        images[index] = image
        return is_transparent

    # Decoding a small image takes less time than threads lose to the interpreter's lock.
    threads = available_cores() if side > 64 else 1
    parts = [range(start, min(start + 256, len(files))) for start in range(0, len(files), 256)]
    failures: list[Failure] = []
    transparent = 0
    with ThreadPoolExecutor(threads) as pool:
        try:
            for found in pool.map(lambda part: [decode_one(index) for index in part], parts):
                failures += [failure for failure in found if isinstance(failure, Failure)]
                transparent += found.count(True)
                if files.tally.exceeds(len(failures)):
                    break
        finally:
            pool.shutdown(cancel_futures=True)
    return images, failures, transparent


def fingerprint(files: ImageFiles) -> str:
    """Hex digits that change with any file's name, size or modification time, and with how files are decoded."""
    digest = hashlib.sha256(f"{VERSION}\n".encode())
    for index in range(len(files)):
        path = files.path(index)
        try:
            status = os.stat(path)  # noqa: PTH116 - a Path for each of many files costs more than the call
            state = f"{status.st_size}\0{status.st_mtime_ns}"
        except OSError as error:
            state = f"{error.strerror}"  # a dangling link: counted as unreadable when it is decoded
        digest.update(f"{path}\0{state}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:24]


def _read(store: Path) -> Stored | None:
    try:
        with safe_open(store, framework="pt") as file:
            notes = file.metadata()
            failures = [Failure(*failure) for failure in json.loads(notes["failures"])]
            return file.get_tensor("images"), failures, int(notes["transparent"])
    except (SafetensorError, OSError) as error:
        logger.warning("%s: cannot be read and is made again (%s)", store, error)
        return None


def _write(store: Path, stored: Stored) -> None:
    """Keep the decoded images; a cache that cannot be written costs time at the next start, but not this run."""
    images, failures, transparent = stored
    notes = {"failures": json.dumps([astuple(failure) for failure in failures]), "transparent": str(transparent)}
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".writing-", dir=store.parent) as folder:
            save_file({"images": images}, Path(folder, "images"), metadata=notes)
            Path(folder, "images").replace(store)
    except (SafetensorError, OSError) as error:
        logger.warning("%s: the decoded images cannot be kept (%s)", store, error)


# The order of images: a function of seed, epoch and rank


def derived_seed(*parts: int) -> int:
    """A seed below 2**63 for a tuple of integers; different tuples give unrelated seeds."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    # The generator takes 64 bits but shows seeds as signed numbers.
    return int.from_bytes(digest, "little") >> 1


def batches_per_epoch(count: int, *, world: int, batch_size: int) -> int:
    """The number of whole global batches of world·batch_size images in `count` images."""
    if count < world * batch_size:
        ranks = f" on each of {world} ranks" if world > 1 else ""
        raise ValueError(f"batch_size: expected at most {count // world}{ranks} for {count} images, got {batch_size}")
    return count // (world * batch_size)


def epoch_order(count: int, *, seed: int, epoch: int, rank: int = 0, world: int = 1, batch_size: int) -> Tensor:
    """The indices of one rank's batches of an epoch, (batches, batch_size) int64.

    Ranks share one permutation of the images; every world·batch_size of its indices are one global batch. At each step,
    two ranks with batches of 4 together see the images that one rank with batches of 8 sees. The incomplete batch at
    the end is dropped.

    >>> order = epoch_order(10, seed=0, epoch=0, batch_size=4)
    >>> order.shape, len(order.unique())
    (torch.Size([2, 4]), 8)
    """
    batches = batches_per_epoch(count, world=world, batch_size=batch_size)
    generator = torch.Generator().manual_seed(derived_seed(seed, epoch))
    permutation = torch.randperm(count, generator=generator)
    whole = permutation[: batches * world * batch_size]
    return whole.view(batches, world, batch_size)[:, rank].contiguous()
