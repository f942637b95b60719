"""Clocks and memory gauges of the devices."""

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

_MB = 1e6
_BURST = 0.02  # seconds that calls on a GPU are timed together, so that waiting for it weighs little
_MOST_CALLS = 50  # in one burst, or the host would wait for room in the device's queue
_SETTLING = 3  # calls after the first until CUDA graphs are recorded and replayed
_SLOW = 1.0  # seconds of a call that settles no further, as of worker processes
_LONG = 10.0


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
        while first <= _LONG and len(settled) < _SETTLING and max(settled, default=0.0) <= _SLOW:
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
