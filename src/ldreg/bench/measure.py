"""Time and peak memory of a call in this process."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from ldreg.bench.meters import METERS

Device = Literal["cpu", "cuda"]
T = TypeVar("T")

_LONG = 10.0  # seconds after which one measurement is enough
_MOST = 100  # repeats of what takes no time


@dataclass(frozen=True)
class Measurement:
    """What one way to do the work takes.

    Args:
        seconds: of every repeat.
        extra_mb: memory in MB at most beyond what was taken before, on the device; None where the system does not tell.
        host: seconds until a call returns that need not wait for the device; None on the CPU.
        without: seconds of the same step without LDReg, measured in turns with it; None where it has none.
        parts: seconds of the parts of a training step.
    """

    seconds: tuple[float, ...]
    extra_mb: float | None
    host: float | None = None
    without: float | None = None
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """Seconds of the repeat in the middle."""
        return statistics.median(self.seconds)


def measure(work: Callable[[], T], *, repeats: int, device: Device = "cpu") -> tuple[Measurement, T]:
    """Measure `work` and return its last result; one repeat is enough where it takes over ten seconds.

    On CUDA, calls come first that compile whatever has to be, and short calls are repeated more often.

    >>> measured, result = measure(lambda: [0] * 3, repeats=2)
    >>> len(measured.seconds), len(result)
    (2, 3)
    """
    meter = METERS[device]()
    calls = meter.calls(work)
    seconds: list[float] = []
    host: list[float] = []
    while True:
        timing = meter.time(work, calls)
        seconds.append(timing.seconds)
        host += [] if timing.host is None else [timing.host]
        enough = len(seconds) >= repeats and sum(seconds) * calls >= meter.least_seconds
        if enough or seconds[0] > _LONG or len(seconds) >= max(repeats, _MOST):
            break
        del timing  # or the next repeat would be charged for its result
    found = Measurement(tuple(seconds), meter.extra_mb, statistics.median(host) if host else None)
    return found, timing.result
