"""Loaders of batches: shuffled by (seed, epoch, rank) for training, or in order without augmentation."""

from collections.abc import Iterator
from contextlib import closing

import torch
from torch import Tensor

from ldreg.data.file_batches import Crop, FileBatches, Source, resize_and_crop
from ldreg.data.images import Batch, ImageFiles, ImageSet, ResidentImages, batches_per_epoch, epoch_order


class Loader:
    """An epoch's batches in the order of (seed, epoch, rank), from any batch on.

    Iterating gives the epoch set by `set_epoch`, from its beginning. After `load_state_dict` the next iteration leaves
    out the batches already seen.

    Images held in memory are moved to the device by the first iteration, and batches (B, C, S, S) are gathered there.
    Of files, `crop` makes batches (B, V, C, S, S). The seed of its generator is derived from (seed, epoch, index),
    so neither the number of workers nor resuming a run changes a crop. An unreadable file is replaced by the next
    readable one. Batches of files lie on the device if it decodes (see `files.decoding`), else on the CPU.

    Raises:
        ValueError: the images do not fill one global batch, or are to be decoded on a GPU that cannot; while
            iterating, too many are unreadable.

    >>> images = ResidentImages(torch.zeros(10, 1, 8, 8, dtype=torch.uint8), torch.arange(10), "0123456789", "tiny")
    >>> [batch.images.shape for batch in Loader(images, batch_size=4, seed=0)]
    [torch.Size([4, 1, 8, 8]), torch.Size([4, 1, 8, 8])]
    """

    def __init__(
        self,
        images: ImageSet,
        *,
        batch_size: int,
        seed: int,
        crop: Crop | None = None,
        rank: int = 0,
        world: int = 1,
        workers: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.images, self.batch_size, self.seed = images, batch_size, seed
        self.rank, self.world, self.device = rank, world, torch.device(device)
        self.epoch = 0
        self._length = batches_per_epoch(len(images), world=world, batch_size=batch_size)
        self._start = self._yielded = 0
        self._moved: tuple[Tensor, Tensor] | None = None
        self._keys = _Keys()
        self._files: FileBatches | None = None
        if isinstance(images, ImageFiles):
            source = Source(images, crop=crop, seed=seed)
            self._files = FileBatches(source, self._keys, workers=workers, device=device)

    def __len__(self) -> int:
        return self._length

    @property
    def sampler(self) -> "Loader":
        """Itself: Lightning calls `set_epoch` of a loader's sampler."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, or stay in the current one."""
        if epoch != self.epoch:
            self.epoch = epoch
            self._start = self._yielded = 0

    def state_dict(self) -> dict[str, int]:
        """The epoch and how many of its batches have been yielded."""
        return {"epoch": self.epoch, "batches": self._yielded}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from the state of a loader of the same images, batch size, seed and world."""
        batches = state["batches"]
        if not 0 <= batches <= len(self):
            raise ValueError(f"batches: expected 0 to {len(self)}, the batches of an epoch, got {batches}")
        self.epoch, self._start, self._yielded = state["epoch"], batches, batches

    def close(self) -> None:
        """End worker processes and threads; a further iteration starts them again."""
        if self._files is not None:
            self._files.close()

    def __iter__(self) -> Iterator[Batch]:
        start, self._start = self._start, 0
        self._yielded = start
        place = {"rank": self.rank, "world": self.world}
        order = epoch_order(len(self.images), seed=self.seed, epoch=self.epoch, batch_size=self.batch_size, **place)
        for batch in self._batches(order[start:]):
            self._yielded += 1
            yield batch

    def _batches(self, order: Tensor) -> Iterator[Batch]:
        if self._files is not None:
            self._keys.epoch, self._keys.order = self.epoch, order
            yield from self._files
            return
        if self._moved is None:
            assert isinstance(self.images, ResidentImages)
            self._moved = self.images.images.to(self.device), self.images.labels.to(self.device)
        images, labels = self._moved
        for indices in order.to(self.device):
            yield Batch(images.index_select(0, indices), labels.index_select(0, indices), indices)


class _Keys:
    """The batches of (epoch, index) keys that worker processes are sent; set before every epoch."""

    epoch = 0
    order = torch.empty(0, 0, dtype=torch.int64)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for indices in self.order:
            yield [(self.epoch, index) for index in indices.tolist()]


def batches_in_order(
    images: ImageSet,
    *,
    batch_size: int,
    size: int,
    device: torch.device | str = "cpu",
    workers: int = 0,
) -> Iterator[Batch]:
    """All images in order without augmentation, in batches uint8 (B, C, size, size) on the device; the last is shorter.

    They are resized by `resize_and_crop`, whether held as an array or in files. Unreadable files are left out, as the
    `indices` show.

    Raises:
        ValueError: the images are to be decoded on a GPU that cannot, or too many are unreadable.

    >>> images = ResidentImages(torch.zeros(5, 1, 8, 8, dtype=torch.uint8), torch.arange(5), "01234", "tiny")
    >>> [batch.indices.tolist() for batch in batches_in_order(images, batch_size=2, size=8)]
    [[0, 1], [2, 3], [4]]
    """
    chunks = torch.arange(len(images)).split(batch_size)
    if isinstance(images, ResidentImages):
        return _resident_in_order(images, chunks, size=size, device=device)
    keys = [chunk.tolist() for chunk in chunks]
    return _files_in_order(FileBatches(Source(images, size=size), keys, workers=workers, device=device), device=device)


def _resident_in_order(
    images: ResidentImages, chunks: tuple[Tensor, ...], *, size: int, device: torch.device | str
) -> Iterator[Batch]:
    for indices in chunks:
        chosen = images.images[indices[0] : indices[-1] + 1].to(device)
        yield Batch(resize_and_crop(chosen, size=size), images.labels[indices], indices).to(device)


def _files_in_order(batches: FileBatches, *, device: torch.device | str) -> Iterator[Batch]:
    with closing(batches):
        for batch in batches:
            yield batch.to(device)
