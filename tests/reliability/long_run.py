"""A run of `ldreg pretrain` that takes note of itself: time, memory, open files and threads of every step.

Started as a process of its own by test_long_run.py: the folder of the run, the file for the notes, and options.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

from ldreg.cli import main
from ldreg.train.observers import ProgressBar

notes: list[dict[str, float]] = []
clocks = {"seconds": time.perf_counter(), "cpu": time.process_time()}  # where the step began
IMAGES, FILTERS = torch.ones(32, 16, 16, 16), torch.ones(32, 16, 3, 3)


def measure() -> float:
    """Seconds of the processor for work that is the same every time: how fast it is right now."""
    began = time.process_time()
    torch.nn.functional.conv2d(IMAGES, FILTERS).relu().sum().item()
    return time.process_time() - began


def note(self: ProgressBar, trainer: Any, *rest: Any) -> None:
    """Where the process stands after a step; in place of moving a bar, which has no terminal here."""
    ended, cpu = time.perf_counter(), time.process_time()
    status = Path("/proc/self/statm").read_text().split()
    anonymous = int(status[1]) - int(status[2])  # resident pages that belong to no file
    notes.append({
        "step": trainer.global_step,
        "seconds": ended - clocks["seconds"],
        "cpu": cpu - clocks["cpu"],
        "yardstick": measure(),
        "bytes": anonymous * os.sysconf("SC_PAGE_SIZE"),
        "files": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - many times, and a Path for each costs more
        "threads": len(os.listdir("/proc/self/task")),  # noqa: PTH208
        "python_threads": threading.active_count(),
    })  # fmt: skip
    clocks.update(seconds=time.perf_counter(), cpu=time.process_time())


if __name__ == "__main__":
    folder, written, *options = sys.argv[1:]
    ProgressBar.on_train_batch_end = note  # type: ignore[method-assign,assignment]
    status = main(["pretrain", *options, "--out", folder])
    Path(written).write_text(json.dumps(notes))
    sys.exit(status)
