"""Locks held by one process, which end with it."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ldreg.io import locks
from ldreg.io.locks import filling, locked

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")

# The module alone, without the package: torchvision takes seconds to import.
HOLDER = """
import multiprocessing, os, runpy, sys, time
from pathlib import Path

def wait(message):
    print(message, flush=True)
    time.sleep(60)

with runpy.run_path(sys.argv[1])["locked"](Path(sys.argv[2]), wait=False):
    if sys.argv[3] == "forks":
        multiprocessing.get_context("fork").Process(target=lambda: wait(os.getpid())).start()
    else:
        print(0, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["alone", "forks"])  # a child has let go of the lock by the time that it speaks
def test_lock_is_refused_until_its_process_is_killed(kind: str, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    command = [sys.executable, "-c", HOLDER, str(locks.__file__), str(lock), kind]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    with pytest.raises(BlockingIOError), locked(lock, wait=False):
        pytest.fail("held by both")
    holder.kill()
    holder.wait()
    with locked(lock, wait=False):
        if child:
            os.kill(child, signal.SIGKILL)  # which is there still
    holder.stdout.close()


def test_filling_waits_for_another_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ldreg")
    place, order = tmp_path / "decoded" / "digits", []
    entered = threading.Event()

    def first() -> None:
        with filling(place):
            entered.set()
            time.sleep(0.3)
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    entered.wait()
    with filling(place):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]
    assert caplog.messages == [f"waiting for another process that fills {place}"]
    with filling(place.with_name("other")), filling(place):  # different places do not wait for one another
        pass
    assert sorted(path.name for path in (tmp_path / "locks").iterdir()) == ["decoded-digits.lock", "decoded-other.lock"]


def test_cache_without_locks_is_filled_anyway(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ldreg")
    (tmp_path / "file").touch()
    with filling(tmp_path / "file" / "decoded" / "digits"):
        pass
    [message] = caplog.messages
    assert "there is no lock for it (" in message


def test_errors_inside_pass_through_the_lock(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="inside"), filling(tmp_path / "a" / "b"):
        raise OSError("inside")
    with filling(tmp_path / "a" / "b"):
        pass
