"""Time and peak memory of a call in this process."""

import gc
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ldreg.benchmarking.contest import Array

_LONG = 10.0  # seconds after which one measurement is enough
_MB = 1e6


@dataclass(frozen=True)
class Measurement:
    """Seconds of every repeat, and the memory in MB that the process had at most beyond what it had before.

    `extra_mb` is None where the system does not tell (other than Linux).
    """

    seconds: tuple[float, ...]
    extra_mb: float | None

    @property
    def median(self) -> float:
        """Seconds of the repeat in the middle."""
        return statistics.median(self.seconds)


def measure(work: Callable[[], Array], *, repeats: int) -> tuple[Measurement, Array]:
    """Measure `work` and return its last result; one repeat is enough where it takes over ten seconds.

    >>> import numpy
    >>> measured, result = measure(lambda: numpy.zeros(3), repeats=2)
    >>> len(measured.seconds), result.shape
    (2, (3,))
    """
    gc.collect()
    before = _restart_peak()
    seconds: list[float] = []
    while True:
        start = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - start)
        if len(seconds) == repeats or seconds[0] > _LONG:
            break
        del result  # or the next repeat would be charged for it
    extra = None if before is None else max(0.0, (_status("VmHWM") - before) / _MB)
    return Measurement(tuple(seconds), extra), result


def available_bytes() -> int:
    """Memory that new work may take without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except FileNotFoundError:  # not Linux: all there is
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))


def _restart_peak() -> int | None:
    """Let the peak of resident memory start anew from what is resident now, and return that in bytes."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _status("VmRSS")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
