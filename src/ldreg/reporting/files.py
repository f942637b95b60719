"""Files that are either whole or not there."""

import os
import tempfile
from os import PathLike
from pathlib import Path


def write_atomically(path: str | PathLike[str], content: str | bytes) -> None:
    """Write bytes, or text as UTF-8, to a new file beside `path`, then put it in the place of `path` in one step.

    A device or a pipe, which cannot be replaced, is written to directly. Raises OSError.
    """
    target = Path(path).resolve()
    data = content.encode("utf-8") if isinstance(content, str) else content
    if target.exists() and not target.is_file():
        target.write_bytes(data)
        return
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
        try:
            file.write(data)
            file.close()
            Path(file.name).chmod(_mode(target))
            Path(file.name).replace(target)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def check_writable(path: str | PathLike[str]) -> None:
    """Raise OSError now if `write_atomically` could not write to `path` later; leaves nothing behind."""
    target = Path(path).resolve()
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


def _mode(target: Path) -> int:
    """The permissions of the file to be replaced, or those that a new file would get."""
    if target.exists():
        return target.stat().st_mode & 0o777
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
