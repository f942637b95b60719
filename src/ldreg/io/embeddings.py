"""Embeddings from a file, as a floating tensor (N, D)."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ldreg.io.arrays import READERS, WHOLE, check_no_weights, choose
from ldreg.io.formats import check_file, named
from ldreg.io.memory import check_fits
from ldreg.io.parquet import open_parquet, parquet_embeddings
from ldreg.io.tables import csv_embeddings, csv_table

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

TABLES: dict[str, Callable[[Path, str | None, Sequence[str], Sequence[str]], NDArray[Any]]] = {
    ".csv": csv_embeddings,
    ".tsv": csv_embeddings,
    ".parquet": parquet_embeddings,
}


def load_embeddings(
    path: str | Path, *, key: str | None = None, exclude: Sequence[str] = (), include: Sequence[str] = ()
) -> Tensor:
    """Embeddings (N, D) from a .npy, .npz, .pt, .pth, .safetensors, .csv, .tsv or .parquet file.

    Arrays of .npy, .pt and .safetensors are memory-mapped: rows are read when they are used. float16, bfloat16,
    float32 and float64 stay as they are, integers become float32, the numbers of a CSV float64. NaN and inf are
    left to whoever measures, except in a CSV, where a `nan` cell is refused. No code in a file is ever run.

    Args:
        path: the file; its suffix says the format, and its content must be of that format.
        key: which array of a .npz, .pt or .safetensors, or which list column of a .parquet. Without it, the only
            2-d array is taken.
        exclude: names of columns of a .csv or .parquet that are no dimensions; 1, 2, … in a CSV without header row.
        include: names of columns of a .csv or .parquet that are dimensions, though they look like ids, row numbers or
            labels by their names or values; others that do are refused.

    Raises:
        OSError: there is no such file, or it is a directory or may not be read.
        ValueError: anything else wrong with the file, in one line that begins with its name.

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
    with named(path):
        suffix = check_file(path, [*READERS, *TABLES])
        if suffix in TABLES:
            return floating(TABLES[suffix](path, key, exclude, include))
        if exclude or include:
            option = "--exclude" if exclude else "--include"
            raise ValueError(f"{option} names columns of a table, and a {suffix} file has none")
        entries = READERS[suffix](path)
        if key is None:
            check_no_weights(entries)
        entry = choose(entries, key, fits=_is_matrix, what="a 2-d array (N, D)", option="--key")
        return floating(entry.read())


def table_columns(path: str | Path) -> list[str]:
    """The columns of a .csv, .tsv or .parquet file by name, 1, 2, … in a CSV without a header row; else none.

    Raises:
        OSError: there is no such file, or it is a directory or may not be read.
        ValueError: anything else wrong with the file, in one line that begins with its name.
    """
    path = Path(path)
    with named(path):
        suffix = check_file(path, [*READERS, *TABLES])
        if suffix == ".parquet":
            return list(open_parquet(path).schema_arrow.names)
        return csv_table(path)[0] if suffix in TABLES else []


def _is_matrix(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2


def floating(values: NDArray[Any] | Tensor) -> Tensor:
    """A real array as a floating tensor, sharing its memory where its dtype allows.

    Whole numbers become float32 where that holds all of them, else float64.

    Raises:
        ValueError: they are no real numbers, or float64 does not hold them, or memory does not.

    >>> floating(np.array([[1, 2]], dtype=">i2")), floating(np.array([[2**24 + 1]])).dtype
    (tensor([[1., 2.]]), torch.float64)
    """
    tensor = values if isinstance(values, Tensor) else _from_numpy(values)
    if tensor.dtype not in (*FLOATS, torch.bool, *WHOLE):
        raise ValueError(f"expected real numbers, got dtype {tensor.dtype}")
    if tensor.dtype in FLOATS:
        return tensor
    dtype = _holding(tensor)
    check_fits(dtype.itemsize * tensor.numel())
    return tensor.to(dtype)


def _holding(whole: Tensor) -> torch.dtype:
    """The smallest of float32 and float64 that holds whole numbers."""
    if whole.numel() == 0 or whole.dtype.itemsize < 4:
        return torch.float32
    # Not all of torch knows the extremes of every width; those of both signs are apart, as -2^63 has no abs.
    numbers = whole.numpy()
    largest = max(abs(int(numbers.min())), abs(int(numbers.max())))
    if largest >= 2**53:
        raise ValueError(f"expected whole numbers under 2^53, which float64 holds, got some of {float(largest):.3g}")
    return torch.float32 if largest <= 2**24 else torch.float64


def _from_numpy(values: NDArray[Any]) -> Tensor:
    dtype = values.dtype
    if dtype.kind == "V":
        raise ValueError(f"has raw dtype {dtype}, perhaps bfloat16, which NumPy cannot name; save it as .safetensors")
    if not (dtype.kind in "iub" or (dtype.kind == "f" and dtype.itemsize <= 8)):
        raise ValueError(f"expected real numbers of at most 64 bits, got dtype {dtype}")
    # torch takes aligned, writable memory in the machine's byte order; this copies only what is otherwise.
    if not (dtype.isnative and values.flags.aligned and values.flags.writeable):
        check_fits(values.nbytes)
    return torch.from_numpy(np.require(values, dtype.newbyteorder("="), ["A", "W"]))
