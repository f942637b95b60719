"""Batches of files: read, decoded and prepared by worker processes; or decoded and prepared on the device."""

import math
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from ldreg.data.decoding import Decoded, Decoder, decode, device_decoder, log_once, plain_jpeg_size, read_content
from ldreg.data.images import Batch, Failure
from ldreg.data.samples import Sample, Source

AHEAD = 2  # batches that a thread makes in advance

Item = TypeVar("Item")
Made = tuple[Batch | None, list[Failure], int]
"""A batch, or None if nothing is readable, the unreadable files met, and the number of transparent images in it."""


class FileBatches:
    """Makes the batches of lists of keys, in their order.

    If the device decodes, the worker processes (or, without any, a thread) read files, draw the boxes of crops and
    decode all but plain JPEGs. A thread has the device decode and prepare the next batches, which stay there.

    Raises:
        ValueError: the files are to be decoded on a GPU that cannot.
    """

    def __init__(
        self, source: Source, keys: Iterable[list[Any]], *, workers: int, device: torch.device | str = "cpu"
    ) -> None:
        import torchvision.transforms.v2.functional  # noqa: F401 - once, before worker processes fork

        self._source = source
        self._device = torch.device(device)
        self._decoder = device_decoder(source.files.decoding, device)
        self._loader: DataLoader[Any] = DataLoader(
            _Samples(source, coded=self._decoder is not None),
            batch_sampler=keys,
            num_workers=workers,  # torch gives each one thread
            collate_fn=_collate if self._decoder is None else _pack,
            worker_init_fn=_ignore_other_signals,
            persistent_workers=workers > 0,
            prefetch_factor=2 if workers else None,  # a batch of 256 at 224 pixels takes 77 MB in two views
            pin_memory=torch.cuda.is_available(),
            # Else every epoch would draw the workers' seeds, which nothing here uses, from torch's global generator.
            generator=torch.Generator(),
        )

    def batches(self) -> Generator[Made, None, None]:
        """The batches of the current keys; leave one iteration before the next begins."""
        # Worker processes start here, not in the thread: forking is safest where the process does nothing else.
        with _interrupts_delayed():
            items = iter(self._loader)
        if self._decoder is None:
            yield from items
            return
        made = _on_device(items, self._source, decoder=self._decoder, device=self._device)
        yield from _ahead(made, device=self._device)

    def close(self) -> None:
        """End the worker processes; a further iteration starts them again.

        torch leaves this to a destructor, which does not run while the traceback of an error refers to the workers,
        waits five seconds for each if the garbage collector has found their queues first, and loses a Ctrl-C.
        """
        running, self._loader._iterator = self._loader._iterator, None
        if isinstance(running, _MultiProcessingDataLoaderIter):
            running._shutdown_workers()


@contextmanager
def report_lost_workers() -> Iterator[None]:
    """Turn torch's error for a lost worker process, which it raises at any moment, into one of a line.

    Raises:
        ChildProcessError: a worker process was ended from outside.
    """
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


class _Samples(Dataset[Sample]):
    """Samples that are decoded and prepared; or, if `coded`, bytes of JPEGs for the device and pixels of others."""

    def __init__(self, source: Source, *, coded: bool) -> None:
        self.source, self.coded = source, coded

    def __getitem__(self, key: Any) -> Sample:
        if self.coded:
            return self._coded(key)
        found = self.source.find(key, self.source.files.read)
        return found if found.image is None else replace(found, image=self.source.prepare(found))

    def _coded(self, key: Any) -> Sample:
        size = (0, 0)

        def read(index: int) -> Decoded:
            nonlocal size
            content = read_content(self.source.files.path(index))
            plain = plain_jpeg_size(content)
            if plain is not None:
                size = plain
                return Decoded(torch.frombuffer(bytearray(content), dtype=torch.uint8), transparent=False)
            found = decode(content)
            size = (found.pixels.shape[1], found.pixels.shape[2])
            return found

        found = self.source.find(key, read)
        return found if found.image is None else replace(found, boxes=self.source.draw(key, *size))


def _collate(samples: list[Sample]) -> Made:
    # torch's own function stacks tensors right in the memory that worker processes share with the main one.
    return _batch(samples, lambda found: default_collate([sample.image for sample in found]))


def _batch(samples: list[Sample], stack: Callable[[list[Sample]], Tensor]) -> Made:
    """A batch of the readable samples, whose images `stack` makes."""
    failures = [failure for sample in samples for failure in sample.failures]
    found = [sample for sample in samples if sample.image is not None]
    if not found:
        return None, failures, 0
    labels, indices = (torch.tensor([getattr(sample, name) for sample in found]) for name in ("label", "index"))
    return Batch(stack(found), labels, indices), failures, sum(sample.transparent for sample in found)


@dataclass(frozen=True)
class _Packed:
    """Samples whose images lie one after the other in one tensor of bytes; each one of its own would take a file."""

    content: Tensor
    shapes: list[tuple[int, ...] | None]
    samples: list[Sample]

    def pin_memory(self) -> "_Packed":
        return replace(self, content=self.content.pin_memory())

    def unpacked(self) -> list[Sample]:
        parts = iter(self.content.split([math.prod(shape) for shape in self.shapes if shape is not None]))
        return [
            sample if shape is None else replace(sample, image=_unflattened(next(parts), shape))
            for sample, shape in zip(self.samples, self.shapes, strict=True)
        ]


def _pack(samples: list[Sample]) -> _Packed:
    # Bytes (n,) as they are; pixels as they lie in memory, (H, W, 3).
    images = [
        image if image is None or image.ndim == 1 else image.permute(1, 2, 0) for image in (s.image for s in samples)
    ]
    found = [image.flatten() for image in images if image is not None]
    content = torch.cat(found) if found else torch.empty(0, dtype=torch.uint8)
    shapes = [None if image is None else tuple(image.shape) for image in images]
    return _Packed(content, shapes, [replace(sample, image=None) for sample in samples])


def _unflattened(content: Tensor, shape: tuple[int, ...]) -> Tensor:
    return content if len(shape) == 1 else content.view(shape).permute(2, 0, 1)


def _on_device(
    items: Iterator[_Packed], source: Source, *, decoder: Decoder, device: torch.device
) -> Generator[Made, None, None]:
    for packed in items:
        yield batch_on_device(packed.unpacked(), source, decoder=decoder, device=device)


def batch_on_device(samples: list[Sample], source: Source, *, decoder: Decoder, device: torch.device) -> Made:
    """A batch on the device from samples with the bytes of JPEGs or pixels.

    JPEGs that the device's decoder fails on are read again by the CPU's, which decides what is unreadable.
    """
    coded = [number for number, sample in enumerate(samples) if sample.image is not None and sample.image.ndim == 1]
    images = decode_or_none([samples[number].pixels for number in coded], decoder)
    for number, image in zip(coded, images, strict=True):
        sample = samples[number]
        if image is None:
            samples[number] = source.find(sample.key, source.files.read, tried=sample)
        else:
            samples[number] = replace(sample, image=image)

    # In a list that lives until the synchronization below.
    moved = [
        sample if sample.image is None else replace(sample, image=sample.image.to(device, non_blocking=True))
        for sample in samples
    ]
    batch, failures, transparent = _batch(moved, source.prepare_all)
    if batch is not None:
        batch = Batch(*(part.to(device, non_blocking=True) for part in batch))
        if device.type == "cuda":
            # The decoder may write to the images' memory as soon as they are freed, whatever still reads them.
            torch.cuda.current_stream(device).synchronize()
    return batch, failures, transparent


def decode_or_none(contents: list[Tensor], decoder: Decoder) -> list[Tensor | None]:
    """Decode JPEGs, with None for each that fails; as the decoder gives all or nothing, halves are tried.

    >>> def odd_ones(contents):
    ...     if any(len(content) % 2 == 0 for content in contents):
    ...         raise RuntimeError("even")
    ...     return [content + 1 for content in contents]
    >>> decode_or_none([torch.zeros(1), torch.zeros(2), torch.ones(1)], odd_ones)
    [tensor([1.]), None, tensor([2.])]
    """
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


# Batches made in advance by a thread

_END = object()


def prefetched(
    items: Generator[Item, None, None],
    *,
    ahead: int = AHEAD,
    surroundings: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Generator[Item, None, None]:
    """The items, made by a thread that is up to `ahead` of them in advance, each inside `surroundings()`.

    Errors of the items are raised here, in their place. Closing this generator ends the thread and closes the items.

    >>> list(prefetched(letter for letter in "abc"))
    ['a', 'b', 'c']
    """

    def make() -> Item | object:
        with surroundings():
            return next(items, _END)

    with closing(items), ThreadPoolExecutor(1, thread_name_prefix="ldreg-prefetch") as thread:
        pending = deque(thread.submit(make) for _ in range(ahead + 1))
        try:
            while (item := pending.popleft().result()) is not _END:
                pending.append(thread.submit(make))
                yield item  # type: ignore[misc]  # not _END
        finally:
            for future in pending:
                future.cancel()


def _ahead(items: Generator[Made, None, None], *, device: torch.device) -> Generator[Made, None, None]:
    """Batches that a thread makes, on a CUDA device in a stream of its own, ready for the current stream here."""
    if device.type != "cuda":
        yield from prefetched(items)
        return
    stream = torch.cuda.Stream(device)
    with closing(prefetched(items, surroundings=lambda: _on_stream(stream))) as batches:
        for item in batches:
            for part in item[0] or ():
                # Else the thread could write to the memory, once freed, while this stream still reads it.
                part.record_stream(torch.cuda.current_stream(device))
            yield item


@contextmanager
def _on_stream(stream: torch.cuda.Stream) -> Iterator[None]:
    with torch.cuda.device(stream.device), torch.cuda.stream(stream):
        yield
