import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ldreg.io import files
from ldreg.io.files import check_writable, filling, locked, write_atomically


def test_writes_text_as_utf8(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.txt", "naïve 猫\n")
    assert (tmp_path / "a.txt").read_bytes() == "naïve 猫\n".encode()
    assert os.listdir(tmp_path) == ["a.txt"]  # noqa: PTH208


def test_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(tmp_path / "a.txt", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"


def test_permissions_are_kept_or_those_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_atomically(tmp_path / "atomic", "")
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "plain").stat().st_mode
    (tmp_path / "plain").chmod(0o640)
    write_atomically(tmp_path / "plain", "new")
    assert (tmp_path / "plain").stat().st_mode & 0o777 == 0o640


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_device_is_written_to_and_not_replaced() -> None:
    check_writable("/dev/null")
    write_atomically("/dev/null", "text")
    assert Path("/dev/null").is_char_device()


def test_check_finds_what_cannot_be_written_and_leaves_nothing_behind(tmp_path: Path) -> None:
    check_writable(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(IsADirectoryError, match="it is a directory"):
        check_writable(tmp_path)
    for check in (check_writable, lambda path: write_atomically(path, "")):
        with pytest.raises(FileNotFoundError, match=r"absent"):
            check(tmp_path / "absent" / "a")
    if os.geteuid():  # root may write anywhere
        tmp_path.chmod(0o500)
        with pytest.raises(PermissionError, match="cannot write"):
            check_writable(tmp_path / "a")


# Locks, which Windows lacks

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
    command = [sys.executable, "-c", HOLDER, files.__file__, str(lock), kind]
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
