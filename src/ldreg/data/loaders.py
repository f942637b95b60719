"""Batches of images: from an array on the device, or from files through worker processes."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision.transforms.v2 import functional as tvf

from ldreg.data.images import Batch, ImageFiles, ImageSet, ResidentImages
from ldreg.data.order import batches_per_epoch, derived_seed, epoch_order
from ldreg.data.unreadable import Failure, UnreadableImageError

LONGEST = 4  # times the shorter side: how much of an image is resized; the middle of it is kept anyway

Crop = Callable[[Tensor, torch.Generator], Tensor]


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
    """Batches (B, V, C, S, S) of crops that worker processes make from files.

    `crop(image, generator)` gives V crops, uint8 (V, C, S, S), of an image uint8 (3, H, W). Its generator's seed is
    derived from (seed, epoch, index), so that neither the number of workers nor a resumed run changes a crop. An
    unreadable file gives its place to the next readable one of the set.

    Raises:
        ValueError: where the images do not fill one global batch; while iterating, where too many are unreadable.
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
    ) -> None:
        super().__init__(files, batch_size=batch_size, seed=seed, rank=rank, world=world)
        self._tally = files.tally
        self._keys = _Keys()
        self._loader = _data_loader(_Crops(files, crop=crop, seed=seed), self._keys, workers=workers)

    @property
    def unreadable(self) -> list[str]:
        """The unreadable files of the set met so far by this rank, each with the reason."""
        return self._tally.listed

    def _batches(self, order: Tensor) -> Iterator[Batch]:
        self._keys.epoch, self._keys.order = self.epoch, order
        for batch, failures in self._loader:
            self._tally.add(failures)
            if batch is not None:  # none readable is past the bound
                yield batch


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


@dataclass(frozen=True)
class _Sample:
    """One image, or None where there is no readable one, and the unreadable files met in search of it."""

    image: Tensor | None
    label: int
    index: int
    failures: list[Failure]


class _Crops(Dataset[_Sample]):
    """Crops of the image of an (epoch, index) key."""

    def __init__(self, files: ImageFiles, *, crop: Crop, seed: int) -> None:
        self.files = files
        self.crop = crop
        self.seed = seed

    def __getitem__(self, key: tuple[int, int]) -> _Sample:
        epoch, index = key
        generator = torch.Generator().manual_seed(derived_seed(self.seed, epoch, index))
        failures: list[Failure] = []
        # Past the bound the main process stops anyway, so the search need not go through the whole set.
        while not self.files.tally.exceeds(len(failures)):
            try:
                image = self.files.decode(index)
            except UnreadableImageError as error:
                failures.append(Failure(index, self.files.path(index), str(error)))
                index = (index + 1) % len(self.files)
                continue
            return _Sample(self.crop(image, generator), int(self.files.labels[index]), index, failures)
        return _Sample(None, -1, index, failures)


class _Plain(Dataset[_Sample]):
    """The images in order, each resized and cropped in the middle."""

    def __init__(self, files: ImageFiles, *, size: int) -> None:
        self.files = files
        self.size = size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> _Sample:
        try:
            image = self.files.decode(index)
        except UnreadableImageError as error:
            return _Sample(None, -1, index, [Failure(index, self.files.path(index), str(error))])
        if self.files.size != self.size or image.shape[1:] != (self.size, self.size):
            image = resize_and_crop(image, size=self.size)
        return _Sample(image, int(self.files.labels[index]), index, [])


def resize_and_crop(image: Tensor, *, size: int) -> Tensor:
    """The middle (C, size, size) of an image uint8 (C, H, W) whose shorter side is made size·256/224.

    >>> resize_and_crop(torch.zeros(3, 300, 500, dtype=torch.uint8), size=224).shape
    torch.Size([3, 224, 224])
    """
    longest = LONGEST * min(image.shape[1:])
    # A long thin image would be enlarged beyond memory. Cutting as much from either end leaves the middle in place.
    image = tvf.center_crop(image, [min(side, longest + (side - longest) % 2) for side in image.shape[1:]])
    resized = tvf.resize(image, [round(size * 256 / 224)], antialias=True)
    cropped: Tensor = tvf.center_crop(resized, [size, size])
    return cropped


def batches_in_order(
    images: ImageSet,
    *,
    batch_size: int,
    size: int,
    device: torch.device | str = "cpu",
    workers: int = 0,
) -> Iterator[Batch]:
    """All images in order without augmentation, in batches uint8 (B, C, size, size) on the device; the last is shorter.

    An array's images are resized where they have another size. Files that are all squares of this size are taken as
    they are; others are resized to a shorter side of size·256/224 and cropped in the middle. Unreadable files are
    left out, as `indices` tells.

    Raises:
        ValueError: where the batch size is not positive, or too many images are unreadable.

    >>> images = ResidentImages(torch.zeros(5, 1, 8, 8, dtype=torch.uint8), torch.arange(5), "01234", "tiny")
    >>> [batch.indices.tolist() for batch in batches_in_order(images, batch_size=2, size=8)]
    [[0, 1], [2, 3], [4]]
    """
    if batch_size < 1:
        raise ValueError(f"batch_size: expected at least 1, got {batch_size}")
    if isinstance(images, ResidentImages):
        return _resident_in_order(images, batch_size=batch_size, size=size, device=device)
    return _files_in_order(images, batch_size=batch_size, size=size, device=device, workers=workers)


def _resident_in_order(
    images: ResidentImages, *, batch_size: int, size: int, device: torch.device | str
) -> Iterator[Batch]:
    for indices in torch.arange(len(images)).split(batch_size):
        chosen = images.images[indices[0] : indices[-1] + 1].to(device)
        if images.size != size:
            chosen = tvf.resize(chosen, [size, size], antialias=True)
        yield Batch(chosen, images.labels[indices].to(device), indices.to(device))


def _files_in_order(
    files: ImageFiles, *, batch_size: int, size: int, device: torch.device | str, workers: int
) -> Iterator[Batch]:
    chunks = [chunk.tolist() for chunk in torch.arange(len(files)).split(batch_size)]
    for batch, failures in _data_loader(_Plain(files, size=size), chunks, workers=workers):
        files.tally.add(failures)
        if batch is not None:
            yield Batch(*(part.to(device, non_blocking=True) for part in batch))


def _collate(samples: list[_Sample]) -> tuple[Batch | None, list[Failure]]:
    """The readable samples as a batch, and all failures."""
    failures = [failure for sample in samples for failure in sample.failures]
    found = [sample for sample in samples if sample.image is not None]
    if not found:
        return None, failures
    # Torch's own function stacks tensors right in the memory that worker processes share with the main one.
    images = default_collate([sample.image for sample in found])
    labels = torch.tensor([sample.label for sample in found])
    return Batch(images, labels, torch.tensor([sample.index for sample in found])), failures


def _data_loader(
    dataset: Dataset[_Sample], batches: Iterable[list[Any]], *, workers: int
) -> Iterable[tuple[Batch | None, list[Failure]]]:
    """Worker processes (one torch thread each, as torch sets them up) that make the batches of these keys."""
    return DataLoader(
        dataset,
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=_collate,
        persistent_workers=workers > 0,
        prefetch_factor=4 if workers else None,
        pin_memory=torch.cuda.is_available(),
        # Else every epoch would draw the workers' seeds, which nothing here uses, from torch's global generator.
        generator=torch.Generator(),
    )
