"""Where the time of a training step goes, on the device's own clock."""

import time
from typing import Any

import torch

from ldreg.bench.measure import Device

PARTS = ("input", "views", "encoder", "loss", "LDReg", "backward", "update")  # of a step, in their order


class Stopwatch:
    """Marks between the parts of steps; cheap enough to run along.

    >>> watch = Stopwatch("cpu")
    >>> watch.begin()
    >>> watch.mark("views")
    >>> watch.end_step()
    >>> list(watch.parts())
    ['views']
    """

    def __init__(self, device: Device) -> None:
        self._cuda = device == "cuda"
        self._marks: list[tuple[str | None, Any]] = []
        self._steps = 0
        self.running = False

    def begin(self) -> None:
        """Start the clock: what was before belongs to no part."""
        self.running = True
        self._marks.append((None, self._now()))

    def mark(self, part: str) -> None:
        """Say that what passed since the last mark belongs to this one of PARTS; nothing while the clock stands."""
        if self.running:
            self._marks.append((part, self._now()))

    def end_step(self) -> None:
        """Count a step."""
        self._steps += self.running

    def stop(self) -> None:
        """Stop the clock until it begins anew."""
        self.running = False

    def parts(self) -> dict[str, float]:
        """Seconds of every part in the mean of the steps."""
        if self._cuda:
            torch.cuda.synchronize()
        total: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        for (_, start), (part, end) in zip(self._marks, self._marks[1:], strict=False):
            if part is not None:
                seconds = start.elapsed_time(end) / 1e3 if self._cuda else end - start
                total[part] += seconds
        return {part: seconds / self._steps for part, seconds in total.items() if seconds}

    def _now(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
