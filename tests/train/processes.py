"""Processes of `ldreg pretrain` that tests start, and the states that they leave."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

PATIENCE = 600.0  # seconds that a process may take to end, or to show what is waited for, on a machine with other work


def start(*arguments: str, folder: Path, **environment: str) -> subprocess.Popen[str]:
    """The command itself, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "ldreg", "pretrain", *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stderr=subprocess.PIPE,
        # A shell has the processes of a background job ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit status and stderr; a process that does not end in time is killed, and its test fails."""
    try:
        _, said = process.communicate(timeout=PATIENCE)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return process.returncode, said


def finish(process: subprocess.Popen[str]) -> str:
    """What a process that ends well says on stderr."""
    status, said = ended(process)
    assert status == 0, said
    return said


def wait_for(
    shown: Callable[[], bool], process: subprocess.Popen[Any] | None = None, *, seconds: float = PATIENCE
) -> bool:
    """Wait until it is shown or the process has ended; whether it is shown."""
    deadline = time.monotonic() + seconds
    while not shown():
        assert time.monotonic() < deadline, "nothing to be seen"
        if process is not None and process.poll() is not None:
            return shown()
        time.sleep(0.001)
    return True


def state(path: Path) -> dict[str, Any]:
    """The content of a checkpoint."""
    loaded: dict[str, Any] = torch.load(path, weights_only=True)
    return loaded
