"""Places that one process works on at a time; the lock goes with the process, in whatever way it ends."""

import functools
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

logger = logging.getLogger("ldreg")

_HELD: set[int] = set()


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold the lock of a folder, or of a file, which is made where there is none and stays; not on Windows.

    Processes that are forked meanwhile do not hold it: those that load images outlive a killed run by seconds.

    Raises:
        BlockingIOError: another process holds it, and it is not to be waited for.
        OSError: the file cannot be opened, or its file system knows no locks.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    _watch_forks()
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o666)
    _HELD.add(handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        try:
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)  # also for a process that was forked this very moment
    finally:
        _HELD.discard(handle)
        os.close(handle)


@contextmanager
def filling(place: Path) -> Iterator[None]:
    """Be the only process that fills this place, cache/KIND/NAME; another one that does so already is waited for.

    The lock lies in cache/locks. Where there can be none, work may be done twice: what is put into a cache is put there
    in one step anyway.
    """
    lock = place.parent.parent / "locks" / f"{place.parent.name}-{place.name}.lock"
    with ExitStack() as stack:
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            _wait_for(stack, lock, place)
        except OSError as error:
            logger.info("%s: there is no lock for it (%s)", place, error.strerror)
        yield


def _wait_for(stack: ExitStack, lock: Path, place: Path) -> None:
    try:
        stack.enter_context(locked(lock, wait=False))
    except BlockingIOError:
        logger.warning("waiting for another process that fills %s", place)  # said also where there is no log yet
        stack.enter_context(locked(lock, wait=True))


@functools.cache
def _watch_forks() -> None:
    """Have forked processes let go of locks, once for all."""
    os.register_at_fork(after_in_child=_let_go)


def _let_go() -> None:
    while _HELD:
        os.close(_HELD.pop())
