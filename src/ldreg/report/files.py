"""Files that are either whole or not there, and text of a size that is read at once."""

import os
import tempfile
from collections.abc import Iterable
from os import PathLike
from pathlib import Path

Name = str | PathLike[str]

LARGEST = 1 << 26  # of a text, in bytes; JSON takes some twenty times that in memory


def read_text(path: Name, *, largest: int = LARGEST) -> str:
    """The UTF-8 text of a file of at most `largest` bytes.

    Raises:
        ValueError: it is larger, not UTF-8, or a pipe or device.
        OSError: it cannot be read.
    """
    return read_bytes(path, largest=largest).decode("utf-8")


def read_bytes(path: Name, *, largest: int) -> bytes:
    """The content of a file of at most `largest` bytes.

    Raises:
        ValueError: it is larger, or a pipe or device, of which some have no end.
        OSError: it cannot be read.
    """
    check_size(path, largest=largest)
    with Path(path).open("rb") as stream:
        content = stream.read(largest + 1)  # some files of the system are longer than they say
    if len(content) > largest:
        raise ValueError(f"a file of more than {largest} bytes")
    return content


def check_size(path: Name, *, largest: int) -> None:
    """Refuse a file of more than `largest` bytes before it is opened.

    Raises:
        ValueError: it is larger, or a pipe or device, of which some have no end.
        OSError: there is none.
    """
    file = Path(path)
    if file.exists() and not (file.is_file() or file.is_dir()):  # opening a pipe would wait forever
        raise ValueError("a pipe or device")
    if file.stat().st_size > largest:
        raise ValueError(f"a file of more than {largest} bytes")


def real_path(path: Name) -> Path:
    """Where links lead; `Path.resolve` would raise RuntimeError for those that lead in a circle.

    >>> real_path("/usr/../usr").name
    'usr'
    """
    return Path(os.path.realpath(path))


def write_atomically(path: Name, content: str | bytes) -> None:
    """Write bytes, or text as UTF-8, to a new file beside `path`, then put it in the place of `path` in one step.

    A device or a pipe, which cannot be replaced, is written to directly. Raises OSError.
    """
    target = real_path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    if target.exists() and not target.is_file():
        target.write_bytes(data)
        return
    try:
        new = tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False)  # noqa: SIM115
    except OSError as error:
        error.filename = str(path)  # the one that was asked for
        raise
    with new as file:
        try:
            file.write(data)
            file.close()
            Path(file.name).chmod(_mode(target))
            Path(file.name).replace(target)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def check_writable(path: Name) -> None:
    """Raise OSError now if `write_atomically` could not write to `path` later; leaves nothing behind."""
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
    """Find out before the work that a result could not be written, or would replace an input or another result.

    Args:
        inputs: files that are read, and folders of which no file may be replaced.
        outputs: files to be written; None stands for none.

    Raises:
        ValueError: an output is an input, or comes twice.
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


def _mode(target: Path) -> int:
    """The permissions of the file to be replaced, or those that a new file would get."""
    if target.exists():
        return target.stat().st_mode & 0o777
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
