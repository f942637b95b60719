"""All images of a set in order, without augmentation."""

from collections.abc import Iterator
from contextlib import closing

import torch

from ldreg.data.file_batches import FileBatches
from ldreg.data.images import Batch, ImageFiles, ImageSet, ResidentImages
from ldreg.data.samples import Plain, resize_and_crop


def batches_in_order(
    images: ImageSet,
    *,
    batch_size: int,
    size: int,
    device: torch.device | str = "cpu",
    workers: int = 0,
) -> Iterator[Batch]:
    """All images in order without augmentation, in batches uint8 (B, C, size, size) on the device; the last is shorter.

    They are resized by `resize_and_crop`, whether they are held as an array or in files. Unreadable files are left out,
    as `indices` tells.

    Raises:
        ValueError: where the batch size is not positive, the images are to be decoded on a GPU that cannot, or too
            many are unreadable.

    >>> images = ResidentImages(torch.zeros(5, 1, 8, 8, dtype=torch.uint8), torch.arange(5), "01234", "tiny")
    >>> [batch.indices.tolist() for batch in batches_in_order(images, batch_size=2, size=8)]
    [[0, 1], [2, 3], [4]]
    """
    if batch_size < 1:
        raise ValueError(f"batch_size: expected at least 1, got {batch_size}")
    if isinstance(images, ResidentImages):
        return _resident_in_order(images, batch_size=batch_size, size=size, device=device)
    chunks = [chunk.tolist() for chunk in torch.arange(len(images)).split(batch_size)]
    batches = FileBatches(Plain(images, size=size), chunks, workers=workers, device=device)
    return _files_in_order(images, batches, device=device)


def _resident_in_order(
    images: ResidentImages, *, batch_size: int, size: int, device: torch.device | str
) -> Iterator[Batch]:
    for indices in torch.arange(len(images)).split(batch_size):
        chosen = images.images[indices[0] : indices[-1] + 1].to(device)
        yield Batch(resize_and_crop(chosen, size=size), images.labels[indices].to(device), indices.to(device))


def _files_in_order(files: ImageFiles, batches: FileBatches, *, device: torch.device | str) -> Iterator[Batch]:
    with closing(batches), closing(batches.batches()) as made:
        read = transparent = 0
        for batch, failures, count in made:
            files.tally.add(failures)
            if batch is not None:
                read, transparent = read + len(batch.labels), transparent + count
                yield Batch(*(part.to(device, non_blocking=True) for part in batch))
        files.tally.passed(read, transparent=transparent)
