"""Array files (.npy, .npz, .pt, .safetensors): what they hold, the choice of one array, and the reading of it."""

import io
import math
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from ldreg.io.formats import parsing
from ldreg.io.memory import check_unpacked
from ldreg.io.torch_files import load_torch
from ldreg.text import listed, one_line

Array = NDArray[Any]
Shape = tuple[int, ...]

WHOLE = (
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
)  # fmt: skip
DISCRETE = "iuUS"  # kinds of NumPy's dtypes: whole numbers, words
NUMPY_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
WEIGHTS_ADVICE = "; ldreg evaluate dimension measures what a model makes of images"
HEADER_BYTES = 1 << 14  # NumPy refuses headers above 10000 bytes, but reads up to 4 GiB of them first


@dataclass(frozen=True)
class Entry:
    """An array in a file, not read yet: its name (None where the file is that one array), shape, and reader.

    `discrete` says whether its dtype is one of whole numbers or words.
    """

    name: str | None
    shape: Shape
    read: Callable[[], Array | Tensor]
    discrete: bool


def choose(
    entries: Sequence[Entry], key: str | None, *, fits: Callable[[Shape], bool], what: str, option: str
) -> Entry:
    """The entry called `key`, or without a key the only one of a fitting shape.

    Raises:
        ValueError: there is no such entry, or several; the message names those there are.
    """
    if key is not None and any(entry.name is None for entry in entries):
        raise ValueError(f"holds a single array without a name, so {option} {key!r} does not apply")
    if key is not None and key not in [entry.name for entry in entries]:
        raise ValueError(f"holds no array {key!r}, only {_shapes(entries)}")
    named = [entry for entry in entries if key is None or entry.name == key]
    fitting = [entry for entry in named if fits(entry.shape)]
    if len(fitting) > 1:
        raise ValueError(f"holds several: {_shapes(fitting)}; choose one with {option} NAME")
    if not fitting:
        hint = "; pool or flatten all axes but the first" if all(len(entry.shape) > 2 for entry in named) else ""
        raise ValueError(f"expected {what}, got {_shapes(named)}{hint if named else ''}")
    if 0 in fitting[0].shape:
        raise ValueError(f"expected at least one row and one column, got shape {fitting[0].shape}")
    return fitting[0]


def check_no_weights(entries: Sequence[Entry]) -> None:
    """ValueError where every matrix is a weight by its name: a state dict, whose last layer would pass for points."""
    names = [entry.name or "" for entry in entries if len(entry.shape) == 2]
    if names and all(name.rpartition(".")[2] == "weight" for name in names):
        raise ValueError(
            f"holds the weights of a model ({listed(names, 1)}), expected embeddings{WEIGHTS_ADVICE}, "
            "--key NAME a weight all the same"
        )


def _shapes(entries: Sequence[Entry]) -> str:
    shown = [f"{'' if e.name is None else repr(one_line(e.name, 60)) + ' of '}shape {e.shape}" for e in entries]
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "") or "no arrays"


def npy_entries(path: Path) -> list[Entry]:
    """The array of a .npy file, to be memory-mapped."""
    with path.open("rb") as stream:
        start = io.BytesIO(stream.read(HEADER_BYTES))
    shape, fortran, dtype = _npy_header(start, path.stat().st_size)
    offset = start.tell()
    _check_numpy_dtype(dtype)

    def read() -> Array:
        # Copy-on-write: torch wants memory that may be written to, and the file stays as it is.
        return np.memmap(path, dtype, mode="c", offset=offset, shape=shape, order="F" if fortran else "C")

    return [Entry(None, shape, read, dtype.kind in DISCRETE)]


def npz_entries(path: Path) -> list[Entry]:
    """The arrays of a .npz archive, of which the chosen one is loaded."""
    with parsing("a .npz archive"), zipfile.ZipFile(path) as archive:
        members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
    # Others unpack without end from what a first look takes; NumPy writes none of them.
    if odd := [info.filename for info in members if info.compress_type not in NUMPY_METHODS]:
        raise ValueError(f"holds {listed(odd)} compressed in another way than NumPy does")
    with parsing("a .npz archive"), zipfile.ZipFile(path) as archive:
        starts = [_start(archive, info) for info in members]
    headers = [_npy_header(start, info.file_size) for start, info in zip(starts, members, strict=True)]

    def read(member: zipfile.ZipInfo, dtype: np.dtype[Any]) -> Array:
        _check_numpy_dtype(dtype)
        check_unpacked(member.file_size, packed=path.stat().st_size)
        with parsing("a .npz archive"), zipfile.ZipFile(path) as archive, archive.open(member) as stream:
            return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))

    return [
        Entry(info.filename.removesuffix(".npy"), shape, partial(read, info, dtype), dtype.kind in DISCRETE)
        for info, (shape, _, dtype) in zip(members, headers, strict=True)
    ]


def _start(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> IO[bytes]:
    with archive.open(member) as stream:
        return io.BytesIO(stream.read(HEADER_BYTES))


def _npy_header(stream: IO[bytes], size: int) -> tuple[Shape, bool, np.dtype[Any]]:
    """Shape, Fortran order and dtype from a header, checked against the `size` of the whole in bytes."""
    with parsing("a .npy array"):
        version = np.lib.format.read_magic(stream)
        # Version 3 is version 2 with UTF-8 field names, and arrays with fields are refused.
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
            (3, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, fortran, dtype = read_header(stream)
    expected, found = math.prod(shape) * dtype.itemsize, size - stream.tell()
    if min(shape, default=0) < 0 or max(shape, default=0) >= 2**63 or bool in map(type, shape):
        raise ValueError(f"header says the impossible shape {shape}")
    if dtype.itemsize == 0:
        raise ValueError(f"header says dtype {dtype}, which holds nothing")
    if not dtype.hasobject and expected != found:
        raise ValueError(f"header says shape {shape} of {dtype}, {expected} bytes, but {found} bytes follow it")
    return shape, fortran, dtype


def _check_numpy_dtype(dtype: np.dtype[Any]) -> None:
    if dtype.hasobject:
        raise ValueError(
            "holds Python objects (dtype object), which are never unpickled because that can run code; save numbers "
            "(np.stack makes one array of vectors) or words (astype(str))"
        )
    if dtype.names is not None:
        raise ValueError(f"has a structured dtype with fields {listed(dtype.names)}, expected a plain one")


def safetensors_entries(path: Path) -> list[Entry]:
    """The tensors of a .safetensors file, to be memory-mapped."""
    with parsing("a safetensors file"), safe_open(path, framework="pt") as tensors:
        slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118 - no dict
        found = {name: (tuple(part.get_shape()), part.get_dtype()[0] in "IU") for name, part in slices.items()}

    def read(name: str) -> Tensor:
        with parsing("a safetensors file"), safe_open(path, framework="pt") as tensors:
            tensor: Tensor = tensors.get_tensor(name)
        return tensor

    return [Entry(name, shape, partial(read, name), discrete) for name, (shape, discrete) in found.items()]


def torch_entries(path: Path) -> list[Entry]:
    """The tensor, or the tensors of the flat dict, in a file of `torch.save`, memory-mapped."""
    content = load_torch(path)
    if isinstance(content, Tensor):
        return [_torch_entry(None, content)]
    if not isinstance(content, dict):
        several = "; torch.stack makes one tensor of vectors, torch.cat of batches, a dict names what is not alike"
        hint = several if isinstance(content, list | tuple) else ""
        raise ValueError(f"expected a tensor or a flat dict of tensors, got {type(content).__name__}{hint}")
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        nested = any(isinstance(value, dict) for value in content.values())
        raise ValueError(
            f"expected a tensor or a flat dict of tensors, got a dict of {listed(map(str, content))}"
            f"{WEIGHTS_ADVICE if nested else ''}"
        )
    return [_torch_entry(name, value) for name, value in tensors.items()]


def _torch_entry(name: str | None, tensor: Tensor) -> Entry:
    return Entry(name, tuple(tensor.shape), partial(_plain, tensor), tensor.dtype in WHOLE)


def _plain(tensor: Tensor) -> Tensor:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        raise ValueError(f"expected a dense tensor, got one of layout {tensor.layout} and dtype {tensor.dtype}")
    # An expanded tensor of a few stored bytes can claim any number of rows.
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise ValueError(f"expected every value to be stored, got an expanded view of shape {tuple(tensor.shape)}")
    return tensor.detach()


READERS: dict[str, Callable[[Path], list[Entry]]] = {
    ".npy": npy_entries,
    ".npz": npz_entries,
    ".pt": torch_entries,
    ".pth": torch_entries,
    ".safetensors": safetensors_entries,
}
