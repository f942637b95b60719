"""Embeddings from array files (.npy, .npz, .pt, .safetensors) and tables, as a floating tensor (N, D)."""

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

from ldreg.io.guard import check_file, check_fits, check_unpacked, load_torch, named_errors, parse_errors
from ldreg.io.tables import csv_embeddings, csv_table, open_parquet, parquet_embeddings
from ldreg.text import listed, one_line

Array = NDArray[Any]
Shape = tuple[int, ...]

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
)  # fmt: skip
DISCRETE = "iuUS"  # kinds of NumPy dtypes: whole numbers, words
NUMPY_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
WEIGHTS_ADVICE = "; ldreg evaluate dimension measures what a model makes of images"
HEADER_BYTES = 1 << 14  # NumPy rejects headers above 10000 bytes, but reads up to 4 GiB of them first


def load_embeddings(
    path: str | Path,
    *,
    key: str | None = None,
    exclude: Sequence[str] = (),
    include: Sequence[str] = (),
    empty_as_nan: bool = False,
) -> Tensor:
    """Load embeddings (N, D) from a .npy, .npz, .pt, .pth, .safetensors, .csv, .tsv or .parquet file.

    Arrays of .npy, .pt and .safetensors are memory-mapped: rows are read when they are used. float16, bfloat16,
    float32 and float64 stay, integers become float32, the numbers of a CSV float64. NaN and inf are kept for the
    caller to check, except for empty and `nan` cells of a table, which are an error. No code in a file is ever run.

    Args:
        path: the file; its suffix gives the format, and its content must be of that format.
        key: the array of a .npz, .pt or .safetensors, or the list column of a .parquet. Default: the only 2-d array.
        exclude: columns of a .csv or .parquet that are no dimensions; 1, 2, … in a CSV without header row.
        include: columns of a .csv or .parquet that are dimensions although they look like ids, row numbers or labels
            by their names or values; without this, such columns are an error.
        empty_as_nan: whether empty and `nan` cells of a table are NaN instead.

    Raises:
        OSError: there is no such file, or it is a directory or may not be read.
        ValueError: anything else is wrong with the file; one line that begins with its name.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(Path(folder, "x.npy"), np.eye(3, 2))
    ...     load_embeddings(Path(folder, "x.npy"))
    tensor([[1., 0.],
            [0., 1.],
            [0., 0.]], dtype=torch.float64)
    """
    path = Path(path)
    for option, columns in (("exclude", exclude), ("include", include)):
        if isinstance(columns, str):
            raise ValueError(f"{option} must be a sequence of column names, got the string {columns!r}")
    with named_errors(path):
        suffix = check_file(path, [*ARRAYS, *TABLES])
        if suffix in TABLES:
            return floating(TABLES[suffix](path, key, exclude, include, empty_as_nan))
        if exclude or include:
            option = "--exclude" if exclude else "--include"
            raise ValueError(f"{option} names columns of a table, and a {suffix} file has none")
        entries = ARRAYS[suffix](path)
        matrices = [entry.name or "" for entry in entries if len(entry.shape) == 2]
        # The last layer of a state dict would pass for points.
        if key is None and matrices and all(name.rpartition(".")[2] == "weight" for name in matrices):
            raise ValueError(
                f"holds the weights of a model ({listed(matrices, 1)}), expected embeddings{WEIGHTS_ADVICE}, "
                "--key NAME a weight all the same"
            )
        entry = choose(entries, key, fits=lambda shape: len(shape) == 2, what="a 2-d array (N, D)", option="--key")
        return floating(entry.read())


def table_columns(path: str | Path) -> list[str]:
    """The column names of a table (1, 2, … in a CSV without a header row); none of other files."""
    path = Path(path)
    with named_errors(path):
        suffix = check_file(path, [*ARRAYS, *TABLES])
        if suffix == ".parquet":
            return list(open_parquet(path).schema_arrow.names)
        return csv_table(path)[0] if suffix in TABLES else []


@dataclass(frozen=True)
class Entry:
    """An array in a file, not read yet."""

    name: str | None  # None if the file is that one array
    shape: Shape
    read: Callable[[], Array | Tensor]
    discrete: bool  # whether it holds whole numbers or words


def choose(
    entries: Sequence[Entry], key: str | None, *, fits: Callable[[Shape], bool], what: str, option: str
) -> Entry:
    """The entry called `key`, or without a key the only one of a fitting shape; an error lists the entries."""
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


def _shapes(entries: Sequence[Entry]) -> str:
    shapes = [f"{'' if e.name is None else repr(one_line(e.name, 60)) + ' of '}shape {e.shape}" for e in entries]
    return ", ".join(shapes[:12]) + (f" and {len(shapes) - 12} more" if len(shapes) > 12 else "") or "no arrays"


def _npy_entries(path: Path) -> list[Entry]:
    """The array of a .npy file, to be memory-mapped."""
    with path.open("rb") as stream:
        start = io.BytesIO(stream.read(HEADER_BYTES))
    shape, fortran, dtype = npy_header(start, path.stat().st_size)
    _check_numpy_dtype(dtype)

    def read() -> Array:
        # Copy-on-write: torch wants writable memory, and the file stays unchanged.
        return np.memmap(path, dtype, mode="c", offset=start.tell(), shape=shape, order="F" if fortran else "C")

    return [Entry(None, shape, read, dtype.kind in DISCRETE)]


def _npz_entries(path: Path) -> list[Entry]:
    """The arrays of a .npz archive; only a chosen one is loaded."""
    with parse_errors("a .npz archive"), zipfile.ZipFile(path) as archive:
        members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
    # Other methods can unpack without end at the first read; NumPy writes none of them.
    if odd := [info.filename for info in members if info.compress_type not in NUMPY_METHODS]:
        raise ValueError(f"holds {listed(odd)} compressed in another way than NumPy does")
    with parse_errors("a .npz archive"), zipfile.ZipFile(path) as archive:
        starts = [io.BytesIO(archive.open(info).read(HEADER_BYTES)) for info in members]

    def read(member: zipfile.ZipInfo, dtype: np.dtype[Any]) -> Array:
        _check_numpy_dtype(dtype)
        check_unpacked(member.file_size, packed=path.stat().st_size)
        with parse_errors("a .npz archive"), zipfile.ZipFile(path) as archive, archive.open(member) as stream:
            return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))

    entries = []
    for info, start in zip(members, starts, strict=True):
        shape, _, dtype = npy_header(start, info.file_size)
        name = info.filename.removesuffix(".npy")
        entries.append(Entry(name, shape, partial(read, info, dtype), dtype.kind in DISCRETE))
    return entries


def npy_header(stream: IO[bytes], size: int) -> tuple[Shape, bool, np.dtype[Any]]:
    """Shape, Fortran order and dtype from a header, checked against the `size` of the array file in bytes."""
    with parse_errors("a .npy array"):
        version = np.lib.format.read_magic(stream)
        # Version 3 is version 2 with UTF-8 field names, and arrays with fields are rejected.
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


def _safetensors_entries(path: Path) -> list[Entry]:
    """The tensors of a .safetensors file, to be memory-mapped."""
    with parse_errors("a safetensors file"), safe_open(path, framework="pt") as tensors:
        slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118 - no dict
        found = {name: (tuple(part.get_shape()), part.get_dtype()[0] in "IU") for name, part in slices.items()}

    def read(name: str) -> Tensor:
        with parse_errors("a safetensors file"), safe_open(path, framework="pt") as tensors:
            tensor: Tensor = tensors.get_tensor(name)
        return tensor

    return [Entry(name, shape, partial(read, name), discrete) for name, (shape, discrete) in found.items()]


def _torch_entries(path: Path) -> list[Entry]:
    """The tensor, or the tensors of the flat dict, in a file of `torch.save`, memory-mapped."""
    content = load_torch(path)
    named: dict[Any, object] = content if isinstance(content, dict) else {None: content}
    tensors = {name: value for name, value in named.items() if isinstance(value, Tensor)}
    if not tensors:
        got, hint = type(content).__name__, ""
        if isinstance(content, dict):
            got = f"a dict of {listed(map(str, content))}"
            hint = WEIGHTS_ADVICE if any(isinstance(value, dict) for value in content.values()) else ""
        elif isinstance(content, list | tuple):
            hint = "; torch.stack makes one tensor of vectors, torch.cat of batches, a dict names different tensors"
        raise ValueError(f"expected a tensor or a flat dict of tensors, got {got}{hint}")
    return [
        Entry(
            None if isinstance(content, Tensor) else str(name),
            tuple(tensor.shape),
            partial(_dense, tensor),
            tensor.dtype in INTEGERS,
        )
        for name, tensor in tensors.items()
    ]


def _dense(tensor: Tensor) -> Tensor:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        raise ValueError(f"expected a dense tensor, got one of layout {tensor.layout} and dtype {tensor.dtype}")
    # An expanded tensor of a few stored bytes can claim any number of rows.
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise ValueError(f"expected every value to be stored, got an expanded view of shape {tuple(tensor.shape)}")
    return tensor.detach()


ARRAYS: dict[str, Callable[[Path], list[Entry]]] = {
    ".npy": _npy_entries,
    ".npz": _npz_entries,
    ".pt": _torch_entries,
    ".pth": _torch_entries,
    ".safetensors": _safetensors_entries,
}
TABLES: dict[str, Callable[[Path, str | None, Sequence[str], Sequence[str], bool], Array]] = {
    ".csv": csv_embeddings,
    ".tsv": csv_embeddings,
    ".parquet": parquet_embeddings,
}


def floating(values: Array | Tensor) -> Tensor:
    """A real array as a floating tensor, sharing its memory if its dtype allows.

    Whole numbers become float32 if that holds all of them, else float64.

    Raises:
        ValueError: the values are no real numbers, or float64 or the memory does not hold them.

    >>> floating(np.array([[1, 2]], dtype=">i2")), floating(np.array([[2**24 + 1]])).dtype
    (tensor([[1., 2.]]), torch.float64)
    """
    tensor = values if isinstance(values, Tensor) else _from_numpy(values)
    if tensor.dtype not in (*FLOATS, torch.bool, *INTEGERS):
        raise ValueError(f"expected real numbers, got dtype {tensor.dtype}")
    if tensor.dtype in FLOATS:
        return tensor
    dtype = torch.float32
    if tensor.numel() and tensor.dtype.itemsize >= 4:
        # By NumPy, as torch lacks extremes of some dtypes; both signs separately, as -2^63 has no abs.
        numbers = tensor.numpy()
        largest = max(abs(int(numbers.min())), abs(int(numbers.max())))
        if largest >= 2**53:
            got = f"some of {float(largest):.3g}"
            raise ValueError(f"expected whole numbers under 2^53, which float64 holds, got {got}")
        dtype = torch.float32 if largest <= 2**24 else torch.float64
    check_fits(dtype.itemsize * tensor.numel())
    return tensor.to(dtype)


def _from_numpy(values: Array) -> Tensor:
    dtype = values.dtype
    if dtype.kind == "V":
        raise ValueError(f"has raw dtype {dtype}, perhaps bfloat16, which NumPy cannot name; save it as .safetensors")
    if not (dtype.kind in "iub" or (dtype.kind == "f" and dtype.itemsize <= 8)):
        raise ValueError(f"expected real numbers of at most 64 bits, got dtype {dtype}")
    # torch takes aligned, writable memory in the machine's byte order; anything else is copied.
    if not (dtype.isnative and values.flags.aligned and values.flags.writeable):
        check_fits(values.nbytes)
    return torch.from_numpy(np.require(values, dtype.newbyteorder("="), ["A", "W"]))
