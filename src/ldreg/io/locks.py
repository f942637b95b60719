"""Locks on folders and caches: one process works on each at a time, and the lock ends with its process."""

import functools
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ldreg.distributed import first_process

logger = logging.getLogger("ldreg")

_HELD: set[int] = set()


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold the lock of a folder, or of a file, which is created if missing and stays; no lock on Windows.

    Processes forked meanwhile do not hold it: workers that load images outlive a killed run by seconds.

    Raises:
        BlockingIOError: another process holds it, and `wait` is False.
        OSError: the file cannot be opened, or its file system has no locks.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    _release_in_forks()
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o666)
    _HELD.add(handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        try:
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)  # also for a process forked at this very moment
    finally:
        _HELD.discard(handle)
        os.close(handle)


@contextmanager
def exclusive(folder: Path, file: Path | None = None) -> Iterator[None]:
    """Keep other runs out of a folder, by a lock on it and on a file in it; a warning if neither can be locked.

    The processes that the first one starts pass through. A file may be moved away, but some file systems lock only
    files.

    Raises:
        ValueError: another process uses the folder.
    """
    places = [folder] if file is None else [folder, file]
    failures: list[str] = []
    with ExitStack() as stack:
        for place in places if first_process() else []:
            try:
                stack.enter_context(locked(place, wait=False))
            except BlockingIOError:
                message = f"{folder}: expected a run that no other process works on, got one in use"
                raise ValueError(message) from None
            except OSError as error:
                failures.append(error.strerror or str(error))
        if len(failures) == len(places):
            logger.warning("%s cannot be kept from other processes (%s)", folder, failures[-1])
        yield


@contextmanager
def filling(place: Path) -> Iterator[None]:
    """Be the only process that fills this place of a cache, cache/KIND/NAME; wait for another one that does.

    The lock lies in cache/locks. Without locks work may be done twice, which is harmless: entries of a cache are put
    there in one step.
    """
    lock = place.parent.parent / "locks" / f"{place.parent.name}-{place.name}.lock"
    with ExitStack() as stack:
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            try:
                stack.enter_context(locked(lock, wait=False))
            except BlockingIOError:
                logger.warning("waiting for another process that fills %s", place)  # shown even before there is a log
                stack.enter_context(locked(lock, wait=True))
        except OSError as error:
            logger.info("%s: there is no lock for it (%s)", place, error.strerror)
        yield


@functools.cache
def _release_in_forks() -> None:
    os.register_at_fork(after_in_child=_release_all)


def _release_all() -> None:
    while _HELD:
        os.close(_HELD.pop())
