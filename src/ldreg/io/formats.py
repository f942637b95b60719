"""What every reader shares: a file whose content is what its suffix says, and errors of one line."""

import zipfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from ldreg.text import one_line

# What `kind_of` must find in a file of each suffix.
KINDS = {
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

LONGEST = 900  # characters of a message, which may name many columns

# The pickled number that files of torch before 1.6 begin with.
LEGACY_TORCH = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Begin the message of every error raised inside with the file's name, on one line."""
    name = str(path) if str(path).isprintable() else repr(str(path))
    try:
        yield
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 text ({error.reason}, byte 0x{error.object[error.start]:02x})") from error
    except ValueError as error:
        raise ValueError(f"{name}: {one_line(str(error), LONGEST)}") from error
    except MemoryError as error:
        raise ValueError(f"{name}: does not fit into memory") from error
    except OSError as error:
        raise type(error)(f"{name}: {one_line(error.strerror or str(error))}") from error


@contextmanager
def parsing(what: str) -> Iterator[None]:
    """Report whatever a library raises on a damaged or hostile file as a ValueError.

    Parsers that meet hostile bytes raise nearly any exception class, hence the broad catch around their calls alone.
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        detail = one_line(str(error)) or type(error).__name__
        raise ValueError(f"cannot be read as {what}, truncated or damaged? ({detail})") from error


def check_file(path: Path, suffixes: Collection[str]) -> str:
    """The path's suffix in lower case, once the file is seen to be regular, not empty, and of that suffix's format."""
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
    kind = kind_of(path)
    if kind not in KINDS[suffix]:
        raise ValueError(f"not a {suffix} file: it holds {DESCRIPTIONS[kind]}")
    return suffix


def kind_of(path: Path) -> str:
    """The format that the first bytes (and for zip archives the member names) speak of, a key of `DESCRIPTIONS`."""
    with path.open("rb") as stream:
        head = stream.read(4096)
    if head.startswith(b"\x93NUMPY"):
        return "npy"
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _zip_kind(path)
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(LEGACY_TORCH):
        return "legacy pt"
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        # A safetensors header of 0x0280 bytes begins likewise, but then a "{" follows its eight bytes of length.
        return "safetensors" if head[2:9] == b"\0\0\0\0\0\0{" else "pickle"
    if head[8:9] == b"{" and b"\0" in head[:8]:
        return "safetensors"
    return "binary" if b"\0" in head else "text"


def _zip_kind(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names: Sequence[str] = archive.namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return "broken zip"
    if any(name.rpartition("/")[2] == "data.pkl" for name in names):
        return "pt"
    return "npz" if any(name.endswith(".npy") for name in names) else "zip"
