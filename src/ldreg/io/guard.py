"""Files from strangers: checks of format and memory before they are read, torch files without code, one-line errors."""

import pickle
import pickletools
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import IO, Any

from ldreg.text import one_line, quoted_if_odd

# What `_format_of` must find in a file of each suffix.
FORMATS = {
    **{f".{name}": name for name in ("npy", "npz", "pt", "safetensors", "parquet")},
    ".pth": "pt",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".csv": "text",
    ".tsv": "text",
    ".txt": "text",
}
DESCRIPTIONS = {
    "npy": "a NumPy .npy array",
    "npz": "a NumPy .npz archive",
    "pt": "a torch file",
    "safetensors": "a safetensors file",
    "parquet": "a Parquet file",
    "arrow": "an Arrow file or stream",
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
MAX_PICKLE = 1 << 28  # bytes of names and shapes; those of a thousand tensors take a quarter of a MB
OBJECT_BYTES = 64  # of memory that a byte of a pickle can become
MAX_PARTS = 10_000_000  # of a tuple, repeated parts counted each time
LEGACY_PICKLES = 5  # magic number, protocol, system, content, keys of the storages


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
    if found != FORMATS[suffix]:
        raise ValueError(f"not a {suffix} file: it holds {DESCRIPTIONS[found]}")
    return suffix


def _format_of(path: Path) -> str:
    """The format by the first bytes, or the member names of a zip archive: a key of `DESCRIPTIONS`."""
    with path.open("rb") as stream:
        head = stream.read(4096)
    if head.startswith(b"\x93NUMPY"):
        return "npy"
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        try:
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
        except (zipfile.BadZipFile, ValueError, NotImplementedError):
            return "broken zip"
        if any(name.rpartition("/")[2] == "data.pkl" for name in names):
            return "pt"
        return "npz" if any(name.endswith(".npy") for name in names) else "zip"
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return "arrow"
    if head.startswith(LEGACY_TORCH):
        return "pt"
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        # A safetensors header of 0x0280 bytes begins alike, but then a "{" follows its eight bytes of length.
        return "safetensors" if head[2:9] == b"\0\0\0\0\0\0{" else "pickle"
    if head[8:9] == b"{" and b"\0" in head[:8]:
        return "safetensors"
    return "binary" if b"\0" in head else "text"


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
    """Memory that this process may still take, from the machine and from its control groups (version 2).

    >>> free_bytes() > 0
    True
    """
    free = 1 << 62  # systems other than Linux end a process that takes too much
    if _MEMORY.exists():
        entries = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines())
        free = int(entries["MemAvailable"].split()[0]) << 10
    for line in _GROUP.read_text().splitlines() if _GROUP.exists() else []:
        inner = _GROUPS / line[3:].strip("/")
        for group in (inner, *inner.parents) if line.startswith("0::") else ():
            limit = group / "memory.max"
            if group.is_relative_to(_GROUPS) and limit.exists() and (most := limit.read_text().strip()) != "max":
                counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                # The system takes the cache of files back.
                used = int((group / "memory.current").read_text()) - int(counts["inactive_file"])
                free = min(free, int(most) - used)
    return free


# Files of torch.save


def load_torch(path: Path) -> object:
    """The content of a file of `torch.save`, tensors memory-mapped if possible; ValueError for code and damage."""
    import torch

    if path.exists() and not (path.is_file() or path.is_dir()):  # opening a pipe would wait forever
        raise ValueError("is not a regular file")
    with path.open("rb") as stream:
        legacy = stream.read(len(LEGACY_TORCH)) == LEGACY_TORCH
        stream.seek(0)
        for _ in range(LEGACY_PICKLES if legacy else 0):
            with parse_errors("a torch file"):
                parts = largest_tuple(stream)
            _check_parts(parts)
    mapped = not legacy and _check_zipped(path)
    try:
        with parse_errors("a torch file"):
            content: object = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except ValueError as error:
        if isinstance(error.__cause__, pickle.UnpicklingError):
            raise ValueError(
                "holds pickled objects other than tensors, refused because they can run code; save its tensors alone"
            ) from error
        raise
    return content


def _check_zipped(path: Path) -> bool:
    """Reject content out of bounds; return whether torch may map the file, as it reads compressed ones wrongly."""
    with parse_errors("a torch file"), zipfile.ZipFile(path) as archive:
        members = [(info.filename.rpartition("/")[2], info) for info in archive.infolist()]
    if any(name == "constants.pkl" for name, _ in members):
        raise ValueError("holds a program of TorchScript, refused because it is code; save its state dict instead")
    packed = sum(info.file_size for _, info in members if info.compress_type != zipfile.ZIP_STORED)
    check_unpacked(packed, packed=path.stat().st_size)
    for info in (info for name, info in members if name == "data.pkl"):
        if info.file_size > MAX_PICKLE:
            raise ValueError(f"pickles {info.file_size} bytes besides its tensors, expected at most {MAX_PICKLE}")
        check_fits(OBJECT_BYTES * info.file_size)
        with parse_errors("a torch file"), zipfile.ZipFile(path) as archive, archive.open(info) as stream:
            parts = largest_tuple(stream)
        _check_parts(parts)
    return not packed


def _check_parts(parts: int) -> None:
    if parts > MAX_PARTS:
        raise ValueError(f"pickles a tuple of more than {MAX_PARTS} parts, which would take forever to read")


def largest_tuple(stream: IO[bytes]) -> int:
    """The number of parts of the largest tuple in a pickle, nested tuples counted by their parts; stops past the bound.

    A pickle can hold a tuple of the same tuple twice, of the same twice, …: it is short, and hashing it takes forever.
    This executes the pickle's operations with numbers in place of objects.

    >>> import io
    >>> largest_tuple(io.BytesIO(pickle.dumps(((1, 2, 3), [4, 5]))))
    6
    """
    stack: list[int | None] = []  # None is a mark
    memo: dict[Any, int | None] = {}
    most = 0
    for operation, argument, _ in pickletools.genops(stream):
        name = operation.name
        if name == "MARK":
            stack.append(None)
        elif "GET" in name:
            stack.append(memo.get(argument, 1))
        elif name == "MEMOIZE" or "PUT" in name:
            memo[len(memo) if argument is None else argument] = stack[-1]
        elif name == "DUP":
            stack.append(stack[-1])
        else:
            # Its operands: all down to a mark if it uses one, and as many as it names.
            before, parts = operation.stack_before, list[int]()
            marked = pickletools.markobject in before
            while marked and (top := stack.pop()) is not None:
                parts.append(top)
            for _ in range(before.index(pickletools.markobject) if marked else len(before)):
                parts.append(stack.pop() or 1)
            weight = 1 + sum(parts) if name.startswith("TUPLE") else 1
            most = max(most, weight)
            if most > MAX_PARTS:
                return most
            stack.extend([weight] * len(operation.stack_after))
    return most
