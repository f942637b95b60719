"""Time and peak memory of a call in this process, and the parts of a training step."""

import gc
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

Device = Literal["cpu", "cuda"]
T = TypeVar("T")

_LONG = 10.0  # seconds after which one measurement is enough
_MOST = 100  # repeats of very short calls
_LEAST = 0.3  # seconds that all calls on a GPU take together
_BURST = 0.02  # seconds of calls on a GPU that are timed together, so that waiting for it weighs little
_MOST_CALLS = 50  # in one burst; more would fill the device's queue
_SETTLING = 3  # calls after the first until CUDA graphs are recorded and replayed
_SLOW = 1.0  # seconds of a call that settles no further


@dataclass(frozen=True)
class Measurement:
    """What one way to do the work takes.

    Args:
        seconds: of every repeat.
        extra_mb: peak memory in MB beyond that before the call, on the device; None if the system does not say.
        host: seconds until a call returns that need not wait for the device; None on the CPU.
        without: seconds of the same training step without LDReg, measured in turns with it; None if it has none.
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


class Memory:
    """Peak memory since it was made: resident in this process, or allocated by PyTorch on CUDA."""

    def __init__(self, device: Device) -> None:
        gc.collect()
        self._cuda = device == "cuda"
        if self._cuda:
            torch.cuda.synchronize()
        self._before = torch.cuda.memory_allocated() if self._cuda else _restart_peak()

    @property
    def extra_mb(self) -> float | None:
        """The peak in MB beyond what there was at first; None if the system does not say."""
        if self._before is None:
            return None
        peak = torch.cuda.max_memory_allocated() if self._cuda else _status("VmHWM")
        return max(0.0, (peak - self._before) / 1e6)


def _restart_peak() -> int | None:
    """Let the peak of resident memory start anew, and return the resident bytes."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _status("VmRSS")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def available_bytes(device: str = "cpu") -> int:
    """Memory of the device that new work may take."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except FileNotFoundError:  # not Linux: all there is
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))


def now(device: Device) -> float:
    """The clock after all work of the device is done."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def measure(work: Callable[[], T], *, repeats: int, device: Device = "cpu") -> tuple[Measurement, T]:
    """Measure `work` and return its last result; one repeat is enough if it takes over ten seconds.

    On CUDA, calls that compile come first, and short calls are timed in bursts by events on the device's clock.

    >>> measured, result = measure(lambda: [0] * 3, repeats=2)
    >>> len(measured.seconds), len(result)
    (2, 3)
    """
    cuda = device == "cuda"
    memory = Memory(device)
    calls = _settled_calls(work) if cuda else 1
    seconds: list[float] = []
    host: list[float] = []
    while True:
        result: Any = None  # or this repeat would be charged for the result of the last
        if cuda:
            once, until_return, result = _on_device(work, calls)
            host.append(until_return)
        else:
            start = time.perf_counter()
            result = work()
            once = time.perf_counter() - start
        seconds.append(once)
        enough = len(seconds) >= repeats and (not cuda or sum(seconds) * calls >= _LEAST)
        if enough or seconds[0] > _LONG or len(seconds) >= max(repeats, _MOST):
            break
    return Measurement(tuple(seconds), memory.extra_mb, statistics.median(host) if host else None), result


def _settled_calls(work: Callable[[], Any]) -> int:
    """Call until all is compiled and recorded; return how many calls to time together."""
    first = _on_device(work, 1)[0]
    settled: list[float] = []
    while first <= _LONG and len(settled) < _SETTLING and max(settled, default=0.0) <= _SLOW:
        settled.append(_on_device(work, 1)[0])
    torch.cuda.reset_peak_memory_stats()
    return max(1, min(_MOST_CALLS, round(_BURST / min(settled, default=first))))


def _on_device(work: Callable[[], Any], calls: int) -> tuple[float, float, Any]:
    """Seconds of a call between two events, seconds of the host until it returns, and the last result."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start = now("cuda")
    begin.record()
    for _ in range(calls):
        result = None  # its memory is free for the next
        result = work()
    end.record()
    host = time.perf_counter() - start
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / calls, host / calls, result


PARTS = ("input", "views", "encoder", "loss", "LDReg", "backward", "update")  # of a step, in their order


class Stopwatch:
    """Marks between the parts of steps, without waiting for the device.

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
        """Start the clock; the time before belongs to no part."""
        self.running = True
        self._marks.append((None, self._now()))

    def mark(self, part: str) -> None:
        """Count the time since the last mark as this one of PARTS, if the clock is running."""
        if self.running:
            self._marks.append((part, self._now()))

    def end_step(self) -> None:
        """Count a step, if the clock is running."""
        self._steps += self.running

    def parts(self) -> dict[str, float]:
        """Mean seconds of every part of a step."""
        if self._cuda:
            torch.cuda.synchronize()
        total: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        for (_, start), (part, end) in zip(self._marks, self._marks[1:], strict=False):
            if part is not None:
                total[part] += start.elapsed_time(end) / 1e3 if self._cuda else end - start
        return {part: seconds / self._steps for part, seconds in total.items() if seconds}

    def _now(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
