"""Checks before a file from a stranger is read: its format, its size in memory; and errors of one line."""

import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from ldreg.text import one_line, quoted_if_odd

# What `_format_of` must find in a file of each suffix.
FORMATS = {
    ".npy": ("npy",),
    ".npz": ("npz",),
    ".pt": ("pt", "legacy pt"),
    ".pth": ("pt", "legacy pt"),
    ".safetensors": ("safetensors",),
    ".csv": ("text",),
    ".tsv": ("text",),
    ".txt": ("text",),
    ".parquet": ("parquet",),
}
DESCRIPTIONS = {
    "npy": "a NumPy .npy array",
    "npz": "a NumPy .npz archive",
    "pt": "a torch file",
    "legacy pt": "a torch file",
    "safetensors": "a safetensors file",
    "parquet": "a Parquet file",
    "text": "text",
    "pickle": "a pickle, which is never loaded because it can run code",
    "zip": "a zip archive without arrays",
    "broken zip": "a truncated or damaged zip archive",
    "binary": "binary data of no known format",
}
LEGACY_TORCH = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."  # a pickled number, at the start of files before torch 1.6

LONGEST_MESSAGE = 900  # characters; a message may name many columns

MAX_RATIO = 100  # of unpacked to packed bytes
ALWAYS_ALLOWED = 1 << 30  # bytes of memory, whatever the file's size
_MEMORY = Path("/proc/meminfo")
_GROUP, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Begin the message of every error raised inside with the file's name, on one line."""
    name = quoted_if_odd(path)
    try:
        yield
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 text ({error.reason}, byte 0x{error.object[error.start]:02x})") from error
    except ValueError as error:
        raise ValueError(f"{name}: {one_line(str(error), LONGEST_MESSAGE)}") from error
    except MemoryError as error:
        raise ValueError(f"{name}: does not fit into memory") from error
    except OSError as error:
        raise type(error)(f"{name}: {one_line(error.strerror or str(error))}") from error


@contextmanager
def parse_errors(what: str) -> Iterator[None]:
    """Turn any error of a library on a damaged or hostile file, which may be of nearly any class, into a ValueError."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        detail = one_line(str(error)) or type(error).__name__
        raise ValueError(f"cannot be read as {what}, truncated or damaged? ({detail})") from error


def check_file(path: Path, suffixes: Collection[str]) -> str:
    """The path's suffix in lower case, after checking that the file is regular, not empty, and of that format."""
    status = path.stat()
    if S_ISDIR(status.st_mode):
        raise IsADirectoryError("is a directory, expected a file")
    suffix = path.suffix.lower()
    if suffix not in suffixes:
        raise ValueError(f"unknown suffix {suffix!r}, expected one of {' '.join(suffixes)}")
    if not S_ISREG(status.st_mode):
        raise ValueError("is not a regular file")
    if status.st_size == 0:
        raise ValueError("is empty (0 bytes)")
    found = _format_of(path)
    if found not in FORMATS[suffix]:
        raise ValueError(f"not a {suffix} file: it holds {DESCRIPTIONS[found]}")
    return suffix


def _format_of(path: Path) -> str:
    """The format by the first bytes, or the member names of a zip archive: a key of `DESCRIPTIONS`."""
    with path.open("rb") as stream:
        head = stream.read(4096)
    if head.startswith(b"\x93NUMPY"):
        return "npy"
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _zip_format(path)
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(LEGACY_TORCH):
        return "legacy pt"
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        # A safetensors header of 0x0280 bytes begins alike, but then a "{" follows its eight bytes of length.
        return "safetensors" if head[2:9] == b"\0\0\0\0\0\0{" else "pickle"
    if head[8:9] == b"{" and b"\0" in head[:8]:
        return "safetensors"
    return "binary" if b"\0" in head else "text"


def _zip_format(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return "broken zip"
    if any(name.rpartition("/")[2] == "data.pkl" for name in names):
        return "pt"
    return "npz" if any(name.endswith(".npy") for name in names) else "zip"


def check_unpacked(needed: int, *, packed: int) -> None:
    """Reject content of `needed` bytes of memory in a file of `packed` bytes, before any of it is read.

    A few bytes of a .npz or a Parquet file can stand for any number of equal values. Embeddings pack to about half of
    their size. Sparse ones, which may pack to less than a hundredth, can be saved uncompressed.

    Raises:
        ValueError: the content takes more than is free, or more than 1 GiB and 100 times the file.

    >>> check_unpacked(1 << 30, packed=100)
    >>> check_unpacked(1 << 50, packed=100)
    Traceback (most recent call last):
    ...
    ValueError: would unpack to 1048576.0 GiB of memory from a file of 100 bytes, ...
    """
    if needed > max(ALWAYS_ALLOWED, MAX_RATIO * packed):
        raise ValueError(
            f"would unpack to {needed / (1 << 30):.1f} GiB of memory from a file of {packed} bytes, expected at most "
            f"{MAX_RATIO} times as much; a file that is not compressed is read whatever its size"
        )
    check_fits(needed)


def check_fits(needed: int) -> None:
    """Raise ValueError if fewer bytes of memory are free."""
    if needed > (free := free_bytes()):
        size, left = (f"{count / (1 << 30):.1f} GiB" for count in (needed, free))
        raise ValueError(f"does not fit into memory: it takes {size}, and {left} are free")


def free_bytes() -> int:
    """Memory that this process may still take, from the machine and from its control groups.

    >>> free_bytes() > 0
    True
    """
    return min([_free_of_machine(), *_free_of_groups()])


def _free_of_machine() -> int:
    if not _MEMORY.exists():  # systems other than Linux end a process that takes too much
        return 1 << 62
    entries = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines())
    return int(entries["MemAvailable"].split()[0]) << 10


def _free_of_groups() -> list[int]:
    """What is left to each control group (version 2) of this process that has a limit."""
    lines = _GROUP.read_text().splitlines() if _GROUP.exists() else []
    own = next((line[3:] for line in lines if line.startswith("0::")), None)
    if own is None:
        return []
    inner = _GROUPS / own.strip("/")
    limits = [(group, group / "memory.max") for group in (inner, *inner.parents) if group.is_relative_to(_GROUPS)]
    known = [(group, limit.read_text().strip()) for group, limit in limits if limit.exists()]
    return [int(most) - _used(group) for group, most in known if most != "max"]


def _used(group: Path) -> int:
    """The memory of a group without the cache of files, which the system takes back."""
    entries = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int((group / "memory.current").read_text()) - int(entries["inactive_file"])
