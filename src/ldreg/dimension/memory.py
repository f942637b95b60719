"""Work in parts that fit in memory: row slices, free memory, and retries with half the budget."""

import gc
import os
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch

T = TypeVar("T")

_MEMINFO = Path("/proc/meminfo")


def slices(n: int, step: int) -> Iterator[slice]:
    """Consecutive slices of length `step` that cover range(n); the last may be shorter.

    >>> list(slices(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return (slice(start, min(start + step, n)) for start in range(0, n, step))


def even_slices(n: int, limit: int) -> list[slice]:
    """The fewest slices of nearly equal length, at most `limit`, that cover range(n).

    >>> even_slices(5, 4)
    [slice(0, 2, None), slice(2, 5, None)]
    """
    parts = -(-n // limit)
    edges = [n * part // parts for part in range(parts + 1)]
    return [slice(edges[part], edges[part + 1]) for part in range(parts)]


def within_memory(run: Callable[[int], T], budget: int, *, floor: int = 16 << 20) -> T:
    """Return `run(budget)`; halve the budget and retry each time it runs out of memory.

    It warns once per process.

    Args:
        run: takes a number of bytes to stay within; it may be called again from the start.
        budget: bytes of the first call.
        floor: smallest budget to retry with.

    Raises:
        torch.OutOfMemoryError: `run` ran out of memory and half the budget is below the floor.

    >>> within_memory(lambda budget: f"{budget >> 20} MiB", 64 << 20)
    '64 MiB'
    """
    while True:
        try:
            return run(budget)
        except torch.OutOfMemoryError:
            if budget // 2 < floor:
                raise
        # The error, its traceback and the tensors of the attempt are only freed after the handler.
        budget //= 2
        _release()
        _warn_once()


def free_bytes(device: torch.device) -> int:
    """Memory that can still be allocated on a CUDA device, or on the host for the CPU.

    On CUDA this is what the driver reports as free plus what torch holds unused, within the share that
    `torch.cuda.set_per_process_memory_fraction` allows this process.

    >>> free_bytes(torch.device("cpu")) > 0
    True
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_reserved(device)
        share = int(torch.cuda.get_per_process_memory_fraction(device) * total)
        return max(0, min(free, share - held) + held - torch.cuda.memory_allocated(device))
    if _MEMINFO.exists():  # on Linux; includes the file cache, which the system can reclaim
        entries = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        return int(entries["MemAvailable"].split()[0]) << 10
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _release() -> None:
    gc.collect()  # frames of the traceback may be part of cycles
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


@cache
def _warn_once() -> None:
    warnings.warn("out of memory: continuing with half as much at a time; the numbers are the same", stacklevel=3)
