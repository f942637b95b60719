"""Batches of images: from an array on the device, or from files through worker processes."""

from collections.abc import Generator, Iterator
from contextlib import closing

import torch
from torch import Tensor

from ldreg.data.file_batches import FileBatches
from ldreg.data.images import Batch, ImageFiles, ImageSet, ResidentImages
from ldreg.data.order import batches_per_epoch, epoch_order
from ldreg.data.samples import Crop, Crops, Made


class Loader:
    """An epoch's batches in the order of (seed, epoch, rank), from any batch on.

    Iterating gives the epoch set by `set_epoch`, from its beginning; after `skip` or `load_state_dict` the next
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
        """Go to the beginning of an epoch; the present one keeps its place."""
        if epoch != self.epoch:
            self.epoch = epoch
            self._start = self._yielded = 0

    def skip(self, batches: int) -> None:
        """Let the next iteration begin after so many batches.

        Raises:
            ValueError: where the epoch has fewer.
        """
        if not 0 <= batches <= len(self):
            raise ValueError(f"batches: expected 0 to {len(self)}, the batches of an epoch, got {batches}")
        self._start = self._yielded = batches

    def state_dict(self) -> dict[str, int]:
        """The epoch and how many of its batches have been yielded."""
        return {"epoch": self.epoch, "batches": self._yielded}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue where a loader of the same images, batch size, seed and world stood."""
        self.set_epoch(state["epoch"])
        self.skip(state["batches"])

    def close(self) -> None:
        """End what makes batches in advance; a further iteration begins it anew."""

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
    """Batches (B, C, S, S) gathered on the device, where the images lie from the first iteration on.

    Raises:
        ValueError: where the images do not fill one global batch.

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
    """Batches (B, V, C, S, S) of crops made from files: by worker processes, or on the device where it decodes.

    `crop(image, generator)` gives V crops, uint8 (V, C, S, S), of an image uint8 (3, H, W) on any device. Its
    generator's seed is derived from (seed, epoch, index), so that neither the number of workers nor a resumed run
    changes a crop. `RandomCrops` is the one that is fast on a GPU. An unreadable file gives its place to the next
    readable one of the set. Decoded on the device (as `files.decoding` says), batches lie there; else on the CPU.

    Raises:
        ValueError: where the images do not fill one global batch, or are to be decoded on a GPU that cannot; while
            iterating, where too many are unreadable.
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
        self._tally = files.tally
        self._keys = _Keys()
        self._made = FileBatches(Crops(files, crop=crop, seed=seed), self._keys, workers=workers, device=device)
        self._running: Generator[Made, None, None] | None = None

    @property
    def unreadable(self) -> list[str]:
        """The unreadable files of the set met so far by this rank, each with the reason."""
        return self._tally.listed

    def close(self) -> None:
        """End the iteration, its thread and the worker processes; a further iteration begins them anew."""
        self._end_iteration()
        self._made.close()

    def _end_iteration(self) -> None:
        if self._running is not None:  # one that was left, whose thread may still be at work
            self._running.close()

    def _batches(self, order: Tensor) -> Iterator[Batch]:
        self._end_iteration()
        self._keys.epoch, self._keys.order = self.epoch, order
        with closing(self._made.batches()) as self._running:
            read = transparent = 0
            for batch, failures, count in self._running:
                self._tally.add(failures)
                if batch is not None:  # none readable is past the bound
                    read, transparent = read + len(batch.labels), transparent + count
                    yield batch
            self._tally.passed(read, transparent=transparent)


class _Keys:
    """The batches of (epoch, index) keys that worker processes are sent; set anew before every epoch."""

    def __init__(self) -> None:
        self.epoch = 0
        self.order = torch.empty(0, 0, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for indices in self.order:
            yield [(self.epoch, index) for index in indices.tolist()]
