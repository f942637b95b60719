"""Other processes that never outlive this one's interest in them."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

_ENDING = 5.0  # seconds that a process has to remove what it left on the disk


class TerminatedError(KeyboardInterrupt):
    """The process was asked to end; `status` is what it is to end with."""

    def __init__(self, number: int) -> None:
        super().__init__("terminated")
        self.status = 128 + number


@contextmanager
def stoppable() -> Iterator[None]:
    """Have SIGTERM, and a terminal that goes away, raise as Ctrl-C does; what is ignored (nohup) stays so."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TerminatedError(number)

    main = threading.current_thread() is threading.main_thread()  # no other may set handlers
    numbers = (signal.SIGTERM, signal.SIGHUP) if main else ()
    before: dict[signal.Signals, Any] = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in before:
            if before[number] == signal.SIG_DFL:
                signal.signal(number, stop)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def output_of(command: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command and catch what it prints; whatever ends the wait, a signal too, ends it and its children."""
    # A session of its own: Ctrl-C reaches this process alone, which then ends the whole group.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True
    )
    try:
        stdout, stderr = process.communicate()
    except BaseException:
        _end(process)
        raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def _end(process: subprocess.Popen[str]) -> None:
    try:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_ENDING)
    finally:  # a second signal cuts the wait short
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
