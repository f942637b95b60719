"""Living within the memory of a device: how much there is, and less of it at a time where that was too much."""

import gc
import os
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch

T = TypeVar("T")

_MEMORY = Path("/proc/meminfo")


def within_memory(run: Callable[[int], T], budget: int, *, floor: int = 16 << 20) -> T:
    """What `run(budget)` returns, with half the budget each time that it runs out of memory.

    Says so by one warning per process.

    Args:
        run: takes a number of bytes to stay within, and may be called again from the start.
        budget: the bytes of the first call.
        floor: no call with fewer bytes than this follows one that ran out.

    Raises:
        torch.OutOfMemoryError: as `run` raised it, where half the budget would be under the floor.

    >>> within_memory(lambda budget: f"{budget >> 20} MiB", 64 << 20)
    '64 MiB'
    """
    while True:
        try:
            return run(budget)
        except torch.OutOfMemoryError:
            if budget // 2 < floor:
                raise
        # Only here, after the handler, are the error, its traceback and with that the tensors of the attempt gone.
        budget //= 2
        _release()
        _say_once()


def free_bytes(device: torch.device) -> int:
    """How much memory may still be taken on a CUDA device, or on the machine for the CPU.

    On CUDA that is what the driver says to be free and what torch holds unused, within the share of the device that
    `torch.cuda.set_per_process_memory_fraction` leaves to this process.

    >>> free_bytes(torch.device("cpu")) > 0
    True
    """
    return _free_on_cuda(device) if device.type == "cuda" else _free_on_host()


def _free_on_cuda(device: torch.device) -> int:
    free, total = torch.cuda.mem_get_info(device)
    held = torch.cuda.memory_reserved(device)
    share = int(torch.cuda.get_per_process_memory_fraction(device) * total)
    return max(0, min(free, share - held) + held - torch.cuda.memory_allocated(device))


def _free_on_host() -> int:
    if _MEMORY.exists():  # on Linux, where it counts what the system could take back from its file cache
        entries = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines())
        return int(entries["MemAvailable"].split()[0]) << 10
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _release() -> None:
    """Give back what the failed attempt held."""
    gc.collect()  # frames of its traceback may be part of cycles
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


@cache
def _say_once() -> None:
    warnings.warn("out of memory: going on with half as much at a time; the numbers are the same", stacklevel=3)
