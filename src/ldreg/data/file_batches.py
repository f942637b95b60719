"""Batches of files: read, decoded and prepared by worker processes; or decoded and prepared on the device."""

import math
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from ldreg.data.decoding import (
    Decoder,
    UnreadableImageError,
    decode,
    device_decoder,
    log_once,
    plain_jpeg_size,
    read_content,
)
from ldreg.data.images import Batch, Failure, ImageFiles, derived_seed
from ldreg.views import Box, Views

AHEAD = 2  # batches that a thread makes in advance
LONGEST = 4  # times the shorter side: the part of an image's middle that is resized

Crop = Callable[[Tensor, torch.Generator], Tensor] | Views
"""Makes V crops (V, C, S, S) of an image uint8 (C, H, W); views crop on a GPU too, many images at once."""
Made = tuple[Batch | None, list[Failure], int]
"""A batch, or None if nothing is readable, the unreadable files met, and the number of transparent images in it."""


def resize_and_crop(image: Tensor, *, size: int) -> Tensor:
    """Images uint8 (..., C, H, W) as an encoder takes them without augmentation, (..., C, size, size).

    Squares are resized. Of other images the shorter side is resized to size·256/224 and the middle is taken. The result
    depends on the image and the size, not on the set that it is in.
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


@dataclass(frozen=True)
class Sample:
    """The image of a key, and the unreadable files met on the way to it.

    `image` is uint8: pixels (C, H, W), the bytes of a JPEG (n,), finished crops, or empty if no file is readable.
    `boxes` are those of the crops if they have been drawn already.
    """

    key: Any
    image: Tensor
    label: int
    index: int
    failures: list[Failure]
    transparent: bool = False
    boxes: list[Box] | None = None


NO_IMAGE = torch.empty(0, dtype=torch.uint8)


class Source(Dataset[Sample]):
    """Finds and prepares the images of keys.

    With a `crop`, keys are (epoch, index), and images become random crops, uint8 (V, C, S, S); the seed of their
    generator is derived from (seed, epoch, index), and the next readable file replaces an unreadable one. Without,
    keys are indices, and images are resized to uint8 (C, size, size). If `coded`, samples are not prepared yet: they
    are bytes of plain JPEGs, which the device decodes, and pixels of other files.
    """

    coded = False

    def __init__(self, files: ImageFiles, *, crop: Crop | None = None, seed: int = 0, size: int = 0) -> None:
        self.files, self.crop, self.seed, self.size = files, crop, seed, size

    def __getitem__(self, key: Any) -> Sample:
        found = self.find(key, coded=self.coded)
        return found if self.coded or not len(found.image) else replace(found, image=self._prepared(found))

    def find(self, key: Any, *, coded: bool = False, tried: Sample | None = None) -> Sample:
        """The first readable image; `tried` is a sample to continue from."""
        index, failures = (key if self.crop is None else key[1]), list[Failure]()
        if tried is not None:
            index, failures = tried.index, list(tried.failures)
        # Past the bound the main process stops anyway, so the search need not go through the whole set.
        while not failures or (self.crop is not None and not self.files.tally.exceeds(len(failures))):
            try:
                image, transparent, boxes = self._coded(key, index) if coded else (*self.files.read(index), None)
            except UnreadableImageError as error:
                failures.append(Failure(index, self.files.path(index), str(error)))
                index = (index + 1) % len(self.files)
            else:
                return Sample(key, image, int(self.files.labels[index]), index, failures, transparent, boxes)
        return Sample(key, NO_IMAGE, -1, index, failures)

    def _coded(self, key: Any, index: int) -> tuple[Tensor, bool, list[Box] | None]:
        """The bytes of a plain JPEG, or pixels; whether they are transparent; the boxes of the crops."""
        content = read_content(self.files.path(index))
        if size := plain_jpeg_size(content):
            return torch.frombuffer(bytearray(content), dtype=torch.uint8), False, self._drawn(key, size)
        pixels, transparent = decode(content)
        return pixels, transparent, self._drawn(key, (pixels.shape[1], pixels.shape[2]))

    def _generator(self, key: tuple[int, int]) -> torch.Generator:
        return torch.Generator().manual_seed(derived_seed(self.seed, *key))

    def _drawn(self, key: Any, size: tuple[int, int]) -> list[Box] | None:
        """The boxes of the crops, if they can be drawn before the image is decoded."""
        return self.crop.draw_boxes(*size, self._generator(key)) if isinstance(self.crop, Views) else None

    def _prepared(self, sample: Sample) -> Tensor:
        if self.crop is None:
            return resize_and_crop(sample.image, size=self.size)
        crop = self.crop.crop if isinstance(self.crop, Views) else self.crop
        return crop(sample.image, self._generator(sample.key))

    def batch_on_device(self, samples: list[Sample], *, decoder: Decoder, device: torch.device) -> Made:
        """A batch on the device from samples that are coded.

        JPEGs that the device's decoder fails on are read again by the CPU's, which decides what is unreadable.
        """
        coded = [number for number, sample in enumerate(samples) if sample.image.ndim == 1 and len(sample.image)]
        images = decode_or_none([samples[number].image for number in coded], decoder)
        for number, image in zip(coded, images, strict=True):
            tried = samples[number]
            samples[number] = self.find(tried.key, tried=tried) if image is None else replace(tried, image=image)
        # In a list that lives until the synchronization below.
        moved = [replace(sample, image=sample.image.to(device, non_blocking=True)) for sample in samples]
        batch, failures, transparent = _batch(moved, self._prepare_all)
        if batch is not None:
            batch = batch.to(device)
            if device.type == "cuda":
                # The decoder may write to the images' memory as soon as they are freed, whatever still reads them.
                torch.cuda.current_stream(device).synchronize()
        return batch, failures, transparent

    def _prepare_all(self, samples: Sequence[Sample]) -> Tensor:
        """Several images on one device, stacked; crops are cut at once if the boxes can be drawn first."""
        if not isinstance(self.crop, Views):
            return torch.stack([self._prepared(sample) for sample in samples])
        images = [sample.image for sample in samples]
        boxes = [
            sample.boxes or self.crop.draw_boxes(image.shape[1], image.shape[2], self._generator(sample.key))
            for sample, image in zip(samples, images, strict=True)
        ]
        return self.crop.crop_batch(images, boxes)


def _batch(samples: list[Sample], stack: Callable[[list[Sample]], Tensor]) -> Made:
    """A batch of the readable samples, whose images `stack` makes."""
    failures = [failure for sample in samples for failure in sample.failures]
    found = [sample for sample in samples if len(sample.image)]
    if not found:
        return None, failures, 0
    labels, indices = (torch.tensor([getattr(sample, name) for sample in found]) for name in ("label", "index"))
    return Batch(stack(found), labels, indices), failures, sum(sample.transparent for sample in found)


def _collate(samples: list[Sample]) -> Made:
    # torch's own function stacks tensors right in the memory that worker processes share with the main one.
    return _batch(samples, lambda found: default_collate([sample.image for sample in found]))


@dataclass(frozen=True)
class _Packed:
    """Samples whose images lie one after the other in one tensor of bytes; each one of its own would take a file."""

    content: Tensor
    shapes: list[tuple[int, ...]]
    samples: list[Sample]

    @classmethod
    def of(cls, samples: list[Sample]) -> "_Packed":
        # Bytes (n,) as they are; pixels as they lie in memory, (H, W, 3).
        images = [sample.image.permute(1, 2, 0) if sample.image.ndim == 3 else sample.image for sample in samples]
        bare = [replace(sample, image=NO_IMAGE) for sample in samples]
        return cls(torch.cat([image.flatten() for image in images]), [tuple(image.shape) for image in images], bare)

    def pin_memory(self) -> "_Packed":
        return replace(self, content=self.content.pin_memory())

    def unpacked(self) -> list[Sample]:
        parts = self.content.split([math.prod(shape) for shape in self.shapes])
        images = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return [
            replace(sample, image=image.permute(2, 0, 1) if image.ndim == 3 else image)
            for sample, image in zip(self.samples, images, strict=True)
        ]


class FileBatches:
    """Makes the batches of lists of keys, in their order, and counts unreadable and transparent files.

    If the device decodes, the worker processes (or, without any, a thread) read files, draw the boxes of crops and
    decode all but plain JPEGs. A thread has the device decode and prepare the next batches, which stay there.
    """

    def __init__(
        self, source: Source, keys: Iterable[list[Any]], *, workers: int, device: torch.device | str = "cpu"
    ) -> None:
        import torchvision.transforms.v2.functional  # noqa: F401 - once, before worker processes fork

        self._source = source
        self._device = torch.device(device)
        self._decoder = device_decoder(source.files.decoding, device)
        self._running: Generator[Made, None, None] | None = None
        source.coded = self._decoder is not None
        self._loader: DataLoader[Any] = DataLoader(
            source,
            batch_sampler=keys,
            num_workers=workers,  # torch gives each one thread
            collate_fn=_Packed.of if source.coded else _collate,
            worker_init_fn=_ignore_other_signals,
            persistent_workers=workers > 0,
            prefetch_factor=2 if workers else None,  # a batch of 256 at 224 pixels takes 77 MB in two views
            pin_memory=torch.cuda.is_available(),
            # Else every epoch would draw the workers' seeds, which nothing here uses, from torch's global generator.
            generator=torch.Generator(),
        )

    def __iter__(self) -> Iterator[Batch]:
        """The batches of the current keys; ends an earlier iteration.

        Raises:
            ValueError: too many files are unreadable.
        """
        self._end_iteration()
        tally, read, transparent = self._source.files.tally, 0, 0
        with closing(self._made()) as self._running:
            for batch, failures, count in self._running:
                tally.add(failures)
                if batch is not None:
                    read, transparent = read + len(batch.labels), transparent + count
                    yield batch
        tally.finish_pass(read, transparent=transparent)

    def _made(self) -> Generator[Made, None, None]:
        # Worker processes start here, not in the thread: forking is safest where the process does nothing else.
        with _interrupts_delayed():
            items = iter(self._loader)
        if self._decoder is None:
            yield from items
            return
        decoder, device = self._decoder, self._device
        yield from prefetched(
            (self._source.batch_on_device(packed.unpacked(), decoder=decoder, device=device) for packed in items),
            device=device,
        )

    def _end_iteration(self) -> None:
        if self._running is not None:  # the thread of an abandoned iteration may still be at work
            self._running.close()

    def close(self) -> None:
        """End the iteration, its thread and the worker processes; a further iteration starts them again.

        torch leaves this to a destructor, which does not run while the traceback of an error refers to the workers,
        waits five seconds for each if the garbage collector has found their queues first, and loses a Ctrl-C.
        """
        self._end_iteration()
        running, self._loader._iterator = self._loader._iterator, None
        if isinstance(running, _MultiProcessingDataLoaderIter):
            running._shutdown_workers()


@contextmanager
def report_lost_workers() -> Iterator[None]:
    """Turn torch's error for a lost worker process, which it raises at any moment, into one of a line."""
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker (pid"):
            raise
        message = "a process that reads images was ended, perhaps for lack of memory; fewer data.workers need less"
        raise ChildProcessError(message) from error


@contextmanager
def _interrupts_delayed() -> Iterator[None]:
    """Delay Ctrl-C while worker processes start; they inherit this handler and so ignore it.

    Python loses an interrupt during a fork, and torch cannot end half of its workers. A terminal sends Ctrl-C to the
    workers too; one that received it would end silently, and this process would fail for it.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
        yield
        return
    received: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if received:
            signal.raise_signal(signal.SIGINT)


def _ignore_other_signals(worker: int) -> None:
    """Let SIGTERM end a worker process only if its parent sent it.

    Systems that end a job send SIGTERM to all of its processes. The one that trains then finishes and saves a step, for
    which it may need another batch. A worker whose parent was killed ends within a second.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for processes that do not inherit the parent's handler
    if not hasattr(signal, "sigtimedwait"):  # macOS, Windows
        return
    parent = os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def listen() -> None:
        received = None
        while os.getppid() == parent and (received is None or received.si_pid != parent):
            received = signal.sigtimedwait({signal.SIGTERM}, 1.0)
        os._exit(0)  # whatever the process is doing

    threading.Thread(target=listen, name="ldreg-termination", daemon=True).start()


def decode_or_none(contents: list[Tensor], decoder: Decoder) -> list[Tensor | None]:
    """Decode JPEGs, with None for each that fails; as the decoder gives all or nothing, halves are tried."""
    if not contents:
        return []
    try:
        return list(decoder(contents))
    except RuntimeError:
        if len(contents) == 1:
            log_once("some images are decoded on the CPU, as nvJPEG fails on them")
            return [None]
    half = len(contents) // 2
    return decode_or_none(contents[:half], decoder) + decode_or_none(contents[half:], decoder)


def prefetched(
    items: Generator[Made, None, None], *, device: torch.device, ahead: int = AHEAD
) -> Generator[Made, None, None]:
    """The items, made by a thread that is up to `ahead` of them in advance, on a CUDA device in a stream of its own.

    Errors of the items are raised here, in their place. Closing this generator ends the thread and closes the items.
    """
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def make() -> Made | None:
        if stream is None:
            return next(items, None)
        with torch.cuda.device(stream.device), torch.cuda.stream(stream):
            return next(items, None)

    with closing(items), ThreadPoolExecutor(1, thread_name_prefix="ldreg-prefetch") as thread:
        pending = deque(thread.submit(make) for _ in range(ahead + 1))
        try:
            while (item := pending.popleft().result()) is not None:
                pending.append(thread.submit(make))
                for part in (item[0] or ()) if stream is not None else ():
                    # Else the thread could write to the memory, once freed, while this stream still reads it.
                    part.record_stream(torch.cuda.current_stream(device))
                yield item
        finally:
            for future in pending:
                future.cancel()
