"""Loaders of batches: shuffled by (seed, epoch, rank) for training, or in order without augmentation."""

from collections.abc import Generator, Iterator
from contextlib import closing

import torch
from torch import Tensor

from ldreg.data.file_batches import Crop, FileBatches, Made, Source, resize_and_crop
from ldreg.data.images import Batch, ImageFiles, ImageSet, ResidentImages
from ldreg.data.order import batches_per_epoch, epoch_order


class Loader:
    """An epoch's batches in the order of (seed, epoch, rank), from any batch on.

    Iterating gives the epoch set by `set_epoch`, from its beginning. After `skip` or `load_state_dict` the next
    iteration leaves out the batches already seen. `unreadable` lists the files that could not be decoded.
    """

    def __init__(self, images: ImageSet, *, batch_size: int, seed: int, rank: int, world: int) -> None:
        self.images = images
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.world = world
        self.epoch = 0
        self._length = batches_per_epoch(len(images), world=world, batch_size=batch_size)
        self._start = 0
        self._yielded = 0

    def __len__(self) -> int:
        return self._length

    @property
    def unreadable(self) -> list[str]:
        """The unreadable files met so far, each with the reason."""
        raise NotImplementedError

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, or stay in the current one."""
        if epoch != self.epoch:
            self.epoch = epoch
            self._start = self._yielded = 0

    def skip(self, batches: int) -> None:
        """Start the next iteration after this number of batches.

        Raises:
            ValueError: the epoch has fewer.
        """
        if not 0 <= batches <= len(self):
            raise ValueError(f"batches: expected 0 to {len(self)}, the batches of an epoch, got {batches}")
        self._start = self._yielded = batches

    def state_dict(self) -> dict[str, int]:
        """The epoch and how many of its batches have been yielded."""
        return {"epoch": self.epoch, "batches": self._yielded}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from the state of a loader of the same images, batch size, seed and world."""
        self.set_epoch(state["epoch"])
        self.skip(state["batches"])

    def close(self) -> None:
        """End worker processes and threads; a further iteration starts them again."""

    def __iter__(self) -> Iterator[Batch]:
        start, self._start = self._start, 0
        self._yielded = start
        order = epoch_order(
            len(self.images),
            seed=self.seed,
            epoch=self.epoch,
            rank=self.rank,
            world=self.world,
            batch_size=self.batch_size,
        )
        for batch in self._batches(order[start:]):
            self._yielded += 1
            yield batch

    def _batches(self, order: Tensor) -> Iterator[Batch]:
        raise NotImplementedError


class ResidentLoader(Loader):
    """Batches (B, C, S, S) gathered on the device, to which the images are moved by the first iteration.

    Raises:
        ValueError: the images do not fill one global batch.

    >>> images = ResidentImages(torch.zeros(10, 1, 8, 8, dtype=torch.uint8), torch.arange(10), "0123456789", "tiny")
    >>> loader = ResidentLoader(images, batch_size=4, seed=0)
    >>> [batch.images.shape for batch in loader]
    [torch.Size([4, 1, 8, 8]), torch.Size([4, 1, 8, 8])]
    """

    def __init__(
        self,
        images: ResidentImages,
        *,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(images, batch_size=batch_size, seed=seed, rank=rank, world=world)
        self.device = torch.device(device)
        self._source = images
        self._moved: tuple[Tensor, Tensor] | None = None

    @property
    def unreadable(self) -> list[str]:
        """The files left out when the images were decoded, each with the reason."""
        return list(self._source.unreadable)

    def _batches(self, order: Tensor) -> Iterator[Batch]:
        if self._moved is None:
            self._moved = self._source.images.to(self.device), self._source.labels.to(self.device)
        images, labels = self._moved
        for indices in order.to(self.device):
            yield Batch(images.index_select(0, indices), labels.index_select(0, indices), indices)


class FileLoader(Loader):
    """Batches (B, V, C, S, S) of crops made from files: by worker processes, or on the device if it decodes.

    `crop(image, generator)` gives V crops, uint8 (V, C, S, S), of an image uint8 (3, H, W) on any device. The seed of
    its generator is derived from (seed, epoch, index), so neither the number of workers nor resuming a run changes a
    crop. `RandomCrops` is fast on a GPU. An unreadable file is replaced by the next readable one of the set. Batches
    lie on the device if it decodes (see `files.decoding`), else on the CPU.

    Raises:
        ValueError: the images do not fill one global batch, or are to be decoded on a GPU that cannot; while
            iterating, too many are unreadable.
    """

    def __init__(
        self,
        files: ImageFiles,
        *,
        batch_size: int,
        seed: int,
        crop: Crop,
        rank: int = 0,
        world: int = 1,
        workers: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(files, batch_size=batch_size, seed=seed, rank=rank, world=world)
        self._files = files
        self._keys = _Keys()
        self._made = FileBatches(Source(files, crop=crop, seed=seed), self._keys, workers=workers, device=device)
        self._running: Generator[Made, None, None] | None = None

    @property
    def unreadable(self) -> list[str]:
        """The unreadable files of the set met so far by this rank, each with the reason."""
        return self._files.tally.listed

    def close(self) -> None:
        """End the iteration, its thread and the worker processes; a further iteration starts them again."""
        self._end_iteration()
        self._made.close()

    def _end_iteration(self) -> None:
        if self._running is not None:  # the thread of an abandoned iteration may still be at work
            self._running.close()

    def _batches(self, order: Tensor) -> Iterator[Batch]:
        self._end_iteration()
        self._keys.epoch, self._keys.order = self.epoch, order
        with closing(self._made.batches()) as self._running:
            yield from _counted(self._running, self._files)


class _Keys:
    """The batches of (epoch, index) keys that worker processes are sent; set before every epoch."""

    def __init__(self) -> None:
        self.epoch = 0
        self.order = torch.empty(0, 0, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for indices in self.order:
            yield [(self.epoch, index) for index in indices.tolist()]


def _counted(made: Iterator[Made], files: ImageFiles) -> Iterator[Batch]:
    """The batches that have images; unreadable and transparent files are counted."""
    read = transparent = 0
    for batch, failures, count in made:
        files.tally.add(failures)
        if batch is not None:
            read, transparent = read + len(batch.labels), transparent + count
            yield batch
    files.tally.finish_pass(read, transparent=transparent)


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
        ValueError: the batch size is not positive, the images are to be decoded on a GPU that cannot, or too many are
            unreadable.

    >>> images = ResidentImages(torch.zeros(5, 1, 8, 8, dtype=torch.uint8), torch.arange(5), "01234", "tiny")
    >>> [batch.indices.tolist() for batch in batches_in_order(images, batch_size=2, size=8)]
    [[0, 1], [2, 3], [4]]
    """
    if batch_size < 1:
        raise ValueError(f"batch_size: expected at least 1, got {batch_size}")
    chunks = torch.arange(len(images)).split(batch_size)
    if isinstance(images, ResidentImages):
        return _resident_in_order(images, chunks, size=size, device=device)
    keys = [chunk.tolist() for chunk in chunks]
    batches = FileBatches(Source(images, size=size), keys, workers=workers, device=device)
    return _files_in_order(images, batches, device=device)


def _resident_in_order(
    images: ResidentImages, chunks: tuple[Tensor, ...], *, size: int, device: torch.device | str
) -> Iterator[Batch]:
    for indices in chunks:
        chosen = images.images[indices[0] : indices[-1] + 1].to(device)
        yield Batch(resize_and_crop(chosen, size=size), images.labels[indices].to(device), indices.to(device))


def _files_in_order(files: ImageFiles, batches: FileBatches, *, device: torch.device | str) -> Iterator[Batch]:
    with closing(batches), closing(batches.batches()) as made:
        for batch in _counted(made, files):
            yield Batch(*(part.to(device, non_blocking=True) for part in batch))
