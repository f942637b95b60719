"""Time and peak memory of a call in this process, and the parts of a training step."""

import gc
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import torch

_MB = 1e6
_BURST = 0.02  # seconds that calls on a GPU are timed together, so that waiting for it weighs little
_MOST_CALLS = 50  # in one burst, or the host would wait for room in the device's queue
_SETTLING = 3  # calls after the first until CUDA graphs are recorded and replayed
_SLOW = 1.0  # seconds of a call that settles no further, as of worker processes
_SLOWEST = 10.0


class Timing(NamedTuple):
    """Seconds of one call, those of them until it returned (None where that is all), and the last result."""

    seconds: float
    host: float | None
    result: Any


class CpuMeter:
    """The clock of the wall, and the peak of resident memory."""

    least_seconds = 0.0

    def __init__(self) -> None:
        gc.collect()
        self._before = _restart_peak()

    def calls(self, work: Callable[[], Any]) -> int:
        """How many calls to time together: one, and none before it."""
        return 1

    def time(self, work: Callable[[], Any], calls: int) -> Timing:
        """Time so many calls."""
        start = time.perf_counter()
        for _ in range(calls):
            result = work()
        return Timing((time.perf_counter() - start) / calls, None, result)

    @property
    def extra_mb(self) -> float | None:
        """Memory in MB that the process had at most beyond what it had at first; None where the system is silent."""
        return None if self._before is None else max(0.0, (_status("VmHWM") - self._before) / _MB)


class CudaMeter:
    """Events on the device's own clock, and the peak of what PyTorch has allocated there."""

    least_seconds = 0.3

    def __init__(self) -> None:
        gc.collect()
        torch.cuda.synchronize()
        self._before = torch.cuda.memory_allocated()

    def calls(self, work: Callable[[], Any]) -> int:
        """How many calls to time together, found after calls that compile and record whatever has to be."""
        first = self.time(work, 1).seconds
        settled: list[float] = []
        while first <= _SLOWEST and len(settled) < _SETTLING and max(settled, default=0.0) <= _SLOW:
            settled.append(self.time(work, 1).seconds)
        torch.cuda.reset_peak_memory_stats()
        return max(1, min(_MOST_CALLS, round(_BURST / min(settled, default=first))))

    def time(self, work: Callable[[], Any], calls: int) -> Timing:
        """Time so many calls between two events; the host's time is that until the last call has returned."""
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start = time.perf_counter()
        begin.record()
        for _ in range(calls):
            result = None  # the memory of the last result is the next one's
            result = work()
        end.record()
        host = time.perf_counter() - start
        torch.cuda.synchronize()
        return Timing(begin.elapsed_time(end) / 1e3 / calls, host / calls, result)

    @property
    def extra_mb(self) -> float:
        """Memory in MB that was allocated at most beyond what was at first."""
        return max(0.0, (torch.cuda.max_memory_allocated() - self._before) / _MB)


METERS: dict[str, Callable[[], CpuMeter | CudaMeter]] = {"cpu": CpuMeter, "cuda": CudaMeter}


def available_bytes(device: str = "cpu") -> int:
    """Memory of the device that new work may take."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
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
