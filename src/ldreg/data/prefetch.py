"""A thread that makes the next items while the last ones are used."""

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch

from ldreg.data.samples import Made

Item = TypeVar("Item")

AHEAD = 2


@dataclass(frozen=True)
class _Raised:
    """What ended the thread."""

    error: BaseException


_END = object()


def prefetched(
    items: Generator[Item, None, None],
    *,
    ahead: int = AHEAD,
    surroundings: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Generator[Item, None, None]:
    """The items, made by a thread that is up to `ahead` of them in advance, inside `surroundings()`.

    An error of theirs is raised here, in its place. Closing this generator ends the thread, which closes theirs.

    >>> list(prefetched(letter for letter in "abc"))
    ['a', 'b', 'c']
    """
    made: queue.Queue[object] = queue.Queue(ahead)
    stop = threading.Event()

    def work() -> None:
        try:
            with surroundings(), closing(items):
                for item in items:
                    made.put(item)
                    if stop.is_set():
                        return
            made.put(_END)
        except BaseException as error:  # whatever it is, the loop that waits must hear of it
            if not stop.is_set():
                made.put(_Raised(error))

    thread = threading.Thread(target=work, name="ldreg-prefetch", daemon=True)
    thread.start()
    try:
        while (item := made.get()) is not _END:
            if isinstance(item, _Raised):
                raise item.error
            yield item  # type: ignore[misc]  # the queue also holds what is no item
    finally:
        stop.set()
        # The thread may wait for room; once it has put one more it sees that it is to stop.
        while not made.empty():
            made.get_nowait()
        thread.join()


def made_ahead(items: Generator[Made, None, None], *, device: torch.device) -> Generator[Made, None, None]:
    """Batches that a thread makes on a CUDA stream of its own, ready for the stream that is current here."""
    if device.type != "cuda":
        yield from prefetched(items)
        return
    stream = torch.cuda.Stream(device)
    with closing(prefetched(items, surroundings=lambda: _on(stream))) as batches:
        for item in batches:
            for part in item[0] or ():
                # Else the memory, once freed, could be written to by the thread while this stream still reads it.
                part.record_stream(torch.cuda.current_stream(device))
            yield item


@contextmanager
def _on(stream: torch.cuda.Stream) -> Iterator[None]:
    with torch.cuda.device(stream.device), torch.cuda.stream(stream):
        yield
