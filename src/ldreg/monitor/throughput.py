"""Images per second of training, on the wall clock, without the time of measuring."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor


class Throughput:
    """Count images between readings.

    Args:
        clock: returns seconds, like `time.perf_counter`.

    >>> seconds = iter([0.0, 2.0, 2.5])
    >>> speed = Throughput(clock=lambda: next(seconds))
    >>> speed.add(100)
    >>> speed.rate() is None  # nothing to measure from yet: the first steps compile and warm up
    True
    >>> speed.restart()
    >>> speed.add(100)
    >>> speed.rate()
    50.0
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._start: float | None = None
        self._images = 0

    def add(self, images: int) -> None:
        """Count the images of one step."""
        self._images += images

    def rate(self) -> float | None:
        """Images per second since the last restart; None before the first restart or without images."""
        if self._start is None or self._images == 0:
            return None
        return self._images / (self._clock() - self._start)

    def restart(self) -> None:
        """Start counting again."""
        self._images = 0
        self._start = self._clock()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time of the block."""
        before = self._clock()
        yield
        if self._start is not None:
            self._start += self._clock() - before


def batch_size(batch: Any) -> int:
    """Rows of the first tensor in a batch of tensors, tuples, lists and mappings; 0 if there is none.

    >>> import torch
    >>> batch_size({"name": "a", "images": [torch.ones(3, 1), torch.ones(5)]})
    3
    """
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else 0
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return next((size for part in parts if (size := batch_size(part))), 0)
