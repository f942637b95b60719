"""Batches of files: read, decoded and prepared by worker processes, or only read by them and the rest on the device."""

import math
import os
import signal
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from ldreg.data.decoding import Decoder, device_decoder, say_once
from ldreg.data.images import Batch
from ldreg.data.jpeg import plain_size
from ldreg.data.pixels import Decoded, decoded
from ldreg.data.prefetch import made_ahead
from ldreg.data.samples import Made, Sample, Source, pixels
from ldreg.data.unreadable import Failure


class FileBatches:
    """Makes the batches of lists of keys, in their order.

    Where the device decodes, the worker processes (or, without any, a thread) read files, draw the crops' boxes and
    decode what is no plain JPEG; a thread has the device decode and prepare the next batches, which lie there.

    Raises:
        ValueError: where the files are to be decoded on a GPU that cannot.
    """

    def __init__(
        self, source: Source, keys: Iterable[list[Any]], *, workers: int, device: torch.device | str = "cpu"
    ) -> None:
        import torchvision.transforms.v2.functional  # noqa: F401 - here, for all worker processes that fork from this one

        self._source = source
        self._device = torch.device(device)
        self._decoder = device_decoder(source.files.decoding, device)
        self._loader: DataLoader[Any] = DataLoader(
            _Prepared(source) if self._decoder is None else _Coded(source),
            batch_sampler=keys,
            num_workers=workers,  # torch gives each one thread
            collate_fn=_collate if self._decoder is None else _pack,
            worker_init_fn=_heed_parent_alone,
            persistent_workers=workers > 0,
            prefetch_factor=2 if workers else None,  # a batch of 256 at 224 pixels takes 77 MB in two views
            pin_memory=torch.cuda.is_available(),
            # Else every epoch would draw the workers' seeds, which nothing here uses, from torch's global generator.
            generator=torch.Generator(),
        )

    def batches(self) -> Generator[Made, None, None]:
        """The batches of the keys as they are now; leave one iteration before the next begins."""
        # Worker processes begin here, not in the thread: forking is safest where the process does nothing else.
        with _held_back():
            items = iter(self._loader)
        if self._decoder is None:
            yield from items
            return
        made = _on_device(items, self._source, decoder=self._decoder, device=self._device)
        yield from made_ahead(made, device=self._device)

    def close(self) -> None:
        """End the worker processes, which a further iteration begins anew.

        Left to torch, that is done by a destructor: not while the traceback of an error refers to them, with a wait of
        five seconds for each where the garbage collector has found their queues first, and a Ctrl-C in it is lost.
        """
        running, self._loader._iterator = self._loader._iterator, None
        if isinstance(running, _MultiProcessingDataLoaderIter):
            running._shutdown_workers()


@contextmanager
def watched() -> Iterator[None]:
    """Have the loss of a worker process said in a line; torch raises its own error for it wherever the process is.

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
def _held_back() -> Iterator[None]:
    """Hold Ctrl-C back while worker processes begin, and from them for good: they end when this process does.

    In the midst of a fork Python loses it, and torch cannot end half of its workers. A terminal sends it to them too;
    one that has heard it ends without a word, for which this process then fails.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
        yield
        return
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if heard:
            signal.raise_signal(signal.SIGINT)


def _heed_parent_alone(worker: int) -> None:
    """Have SIGTERM end a worker process where it comes from the process that began it, and not where others send it.

    Systems that end a job send it to all of its processes. The one that trains then goes on to the end of a step, to
    save it, and for that may need another batch. A worker whose parent was killed ends within a second.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # also where a process does not inherit what its parent does
    if not hasattr(signal, "sigtimedwait"):  # macOS, Windows
        return
    parent = os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def listen() -> None:
        asked = None
        while os.getppid() == parent and (asked is None or asked.si_pid != parent):
            asked = signal.sigtimedwait({signal.SIGTERM}, 1.0)
        os._exit(0)  # whatever the process is at

    threading.Thread(target=listen, name="ldreg-termination", daemon=True).start()


class _Prepared(Dataset[Sample]):
    """Samples that are decoded and prepared."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __getitem__(self, key: Any) -> Sample:
        found = self.source.find(key, self.source.files.read)
        return found if found.image is None else replace(found, image=self.source.prepare(found))


class _Coded(Dataset[Sample]):
    """Samples with the bytes of a JPEG that the device decodes, or with the pixels of any other image."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __getitem__(self, key: Any) -> Sample:
        size = (0, 0)

        def read(index: int) -> Decoded:
            nonlocal size
            content = self.source.files.content(index)
            plain = plain_size(content)
            if plain is not None:
                size = plain
                return Decoded(torch.frombuffer(bytearray(content), dtype=torch.uint8), transparent=False)
            found = decoded(content)
            size = (found.pixels.shape[1], found.pixels.shape[2])
            return found

        found = self.source.find(key, read)
        return found if found.image is None else replace(found, boxes=self.source.draw(key, *size))


def _collate(samples: list[Sample]) -> Made:
    """The readable samples as a batch, all failures, and how many are transparent."""
    found, failures = _readable(samples)
    if not found:
        return None, failures, 0
    # Torch's own function stacks tensors right in the memory that worker processes share with the main one.
    return _batch(found, default_collate([sample.image for sample in found])), failures, _transparent(found)


def _readable(samples: list[Sample]) -> tuple[list[Sample], list[Failure]]:
    """The samples that have an image, and the unreadable files met by all."""
    failures = [failure for sample in samples for failure in sample.failures]
    return [sample for sample in samples if sample.image is not None], failures


def _transparent(samples: list[Sample]) -> int:
    return sum(sample.transparent for sample in samples)


def _batch(samples: list[Sample], images: Tensor) -> Batch:
    labels, indices = ([getattr(sample, name) for sample in samples] for name in ("label", "index"))
    return Batch(images, torch.tensor(labels), torch.tensor(indices))


@dataclass(frozen=True)
class _Packed:
    """Samples whose images lie one after the other in one tensor of bytes; sent one by one, each would take a file."""

    content: Tensor
    shapes: list[tuple[int, ...] | None]
    samples: list[Sample]

    def pin_memory(self) -> "_Packed":
        return replace(self, content=self.content.pin_memory())

    def unpacked(self) -> list[Sample]:
        parts = iter(self.content.split([math.prod(shape) for shape in self.shapes if shape is not None]))
        return [
            sample if shape is None else replace(sample, image=_laid_out(next(parts), shape))
            for sample, shape in zip(self.samples, self.shapes, strict=True)
        ]


def _pack(samples: list[Sample]) -> _Packed:
    images = [_lines(sample.image) for sample in samples]
    found = [image.flatten() for image in images if image is not None]
    content = torch.cat(found) if found else torch.empty(0, dtype=torch.uint8)
    shapes = [None if image is None else tuple(image.shape) for image in images]
    return _Packed(content, shapes, [replace(sample, image=None) for sample in samples])


def _lines(image: Tensor | None) -> Tensor | None:
    """Pixels as they lie in memory, (H, W, 3); bytes as they are."""
    return image if image is None or image.ndim == 1 else image.permute(1, 2, 0)


def _laid_out(content: Tensor, shape: tuple[int, ...]) -> Tensor:
    return content if len(shape) == 1 else content.view(shape).permute(2, 0, 1)


def _on_device(
    items: Iterator[_Packed], source: Source, *, decoder: Decoder, device: torch.device
) -> Generator[Made, None, None]:
    for packed in items:
        yield made_on_device(packed.unpacked(), source, decoder=decoder, device=device)


def made_on_device(samples: list[Sample], source: Source, *, decoder: Decoder, device: torch.device) -> Made:
    """A batch on the device of samples with JPEGs' bytes or pixels.

    What the device's decoder fails on is read again by the CPU's, which has the last word on what is unreadable.
    """
    coded = [number for number, sample in enumerate(samples) if sample.image is not None and sample.image.ndim == 1]
    images = decoded_or_none([pixels(samples[number]) for number in coded], decoder)
    for number, image in zip(coded, images, strict=True):
        sample = samples[number]
        if image is None:
            samples[number] = source.find(sample.key, source.files.read, tried=sample)
        else:
            samples[number] = replace(sample, image=image)
    found, failures = _readable(samples)
    if not found:
        return None, failures, 0
    found = [replace(sample, image=pixels(sample).to(device, non_blocking=True)) for sample in found]
    batch = _batch(found, source.prepare_all(found))
    batch = Batch(*(part.to(device, non_blocking=True) for part in batch))
    if device.type == "cuda":
        # The decoder may write to the images' memory as soon as they are freed, whatever still reads them.
        torch.cuda.current_stream(device).synchronize()
    return batch, failures, _transparent(found)


def decoded_or_none(contents: list[Tensor], decoder: Decoder) -> list[Tensor | None]:
    """What the decoder makes of JPEGs, None of each that it fails on; it gives all or nothing, so the halves are tried.

    >>> def odd_ones(contents):
    ...     if any(len(content) % 2 == 0 for content in contents):
    ...         raise RuntimeError("even")
    ...     return [content + 1 for content in contents]
    >>> decoded_or_none([torch.zeros(1), torch.zeros(2), torch.ones(1)], odd_ones)
    [tensor([1.]), None, tensor([2.])]
    """
    if not contents:
        return []
    try:
        return list(decoder(contents))
    except RuntimeError:
        if len(contents) == 1:
            say_once("some images are decoded on the CPU, as nvJPEG fails on them")
            return [None]
    half = len(contents) // 2
    return decoded_or_none(contents[:half], decoder) + decoded_or_none(contents[half:], decoder)
