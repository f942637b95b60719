"""Files out (whole or not at all), small files in (text up to a bound, strict JSON), and locks on folders."""

import functools
import logging
import math
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

logger = logging.getLogger("ldreg")

Name = str | PathLike[str]

LARGEST_TEXT = 1 << 26  # bytes; parsed JSON takes some twenty times that in memory

_HELD: set[int] = set()  # handles of the files that are locked

# The start of every page that ldreg writes. Pages of others are never overwritten.
PAGE_START = (
    '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:"
)


def read_text(path: Name, *, largest: int = LARGEST_TEXT) -> str:
    """Read UTF-8 text, as `read_bytes` reads bytes."""
    return read_bytes(path, largest=largest).decode("utf-8")


def read_bytes(path: Name, *, largest: int) -> bytes:
    """Read a file; ValueError if it has more than `largest` bytes, or is a pipe or a device, which may have no end."""
    check_size(path, largest=largest)
    with Path(path).open("rb") as stream:
        content = stream.read(largest + 1)  # files of the system may be longer than their size says
    if len(content) > largest:
        raise ValueError(f"a file of more than {largest} bytes")
    return content


def check_size(path: Name, *, largest: int) -> None:
    """Raise ValueError for a file of more than `largest` bytes, a pipe or a device, before it is opened."""
    file = Path(path)
    if file.exists() and not (file.is_file() or file.is_dir()):  # opening a pipe would wait forever
        raise ValueError("a pipe or device")
    if file.stat().st_size > largest:
        raise ValueError(f"a file of more than {largest} bytes")


def real_path(path: Name) -> Path:
    """Resolve links; unlike `Path.resolve`, circular links are no error.

    >>> real_path("/usr/../usr").name
    'usr'
    """
    return Path(os.path.realpath(path))


def write_atomically(path: Name, content: str | bytes) -> None:
    """Write bytes, or text as UTF-8, to a temporary file in the same folder and rename it to `path`.

    A device or a pipe cannot be replaced and is written to directly.

    Raises:
        OSError: the file cannot be written; an existing one is unchanged.
    """
    target = real_path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    if target.exists() and not target.is_file():
        target.write_bytes(data)
        return
    try:
        new = tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False)  # noqa: SIM115
    except OSError as error:
        error.filename = str(path)  # not the name of the temporary file
        raise
    with new as file:
        try:
            file.write(data)
            file.close()
            umask = os.umask(0)
            os.umask(umask)
            Path(file.name).chmod(target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~umask)
            Path(file.name).replace(target)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def check_writable(path: Name) -> None:
    """Raise OSError now if `write_atomically` could not write to `path` later; leave nothing behind."""
    target = real_path(path)
    if target.is_dir():
        raise IsADirectoryError(f"cannot write {str(path)!r}: it is a directory")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {str(path)!r}: there is no directory {str(target.parent)!r}")
    if target.exists() and not target.is_file():
        return
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}."):
            pass
    except OSError as error:
        raise type(error)(f"cannot write {str(path)!r}: {error.strerror}") from error


def check_outputs(*, inputs: Iterable[Name], outputs: Iterable[Name | None]) -> None:
    """Check before the work that every output can be written and replaces no input, nor a file in an input folder.

    Raises:
        ValueError: an output is an input, or is named twice.
        OSError: an output cannot be written.

    >>> check_outputs(inputs=["a.pt"], outputs=[None, "a.pt"])
    Traceback (most recent call last):
    ValueError: cannot write 'a.pt': it is an input
    """
    read = {real_path(path) for path in inputs}
    written: set[Path] = set()
    for name in outputs:
        if name is None:
            continue
        target = real_path(name)
        if not read.isdisjoint((target, *target.parents)):
            raise ValueError(f"cannot write {str(name)!r}: it is an input")
        if target in written:
            raise ValueError(f"cannot write {str(name)!r}: another output has the same name")
        check_writable(name)
        written.add(target)


def has_content(path: Path) -> bool:
    """Whether writing to `path` would lose something: it is a file that is not empty."""
    return path.is_file() and path.stat().st_size > 0


def check_page_path(path: Path, *, option: str) -> None:
    """Raise ValueError if a page at `path`, which the option names, would replace a file that is no page of ldreg."""
    if not has_content(path):
        return
    with path.open("rb") as file:
        if file.read(len(PAGE_START)) != PAGE_START.encode():
            raise ValueError(
                f"cannot write {str(path)!r}: it is there and no page of ldreg; {option} FILE names another"
            )


def json_values(value: Any) -> Any:
    """The same nested value for strict JSON: floats to nine digits, None for NaN and inf, lists for tuples.

    >>> json_values({"a": (1 / 3, float("nan"))})
    {'a': [0.333333333, None]}
    """
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: json_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(item) for item in value]
    return value


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
    from ldreg.distributed import first_process  # which imports torch

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
