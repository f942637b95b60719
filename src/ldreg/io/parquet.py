"""Parquet tables as embeddings: one numeric column per dimension, or one column of lists."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ldreg.io.formats import parsing
from ldreg.io.memory import check_unpacked
from ldreg.io.tables import advice, check_dimensions, kept_columns, kinds_by_name
from ldreg.text import listed

BATCH_ROWS = 4096  # at a time, which bounds the memory besides the result


def parquet_embeddings(path: Path, key: str | None, exclude: Sequence[str], include: Sequence[str]) -> NDArray[Any]:
    """The list column `key`, else the only list column, else all columns of a Parquet file as (N, D)."""
    file = open_parquet(path)
    schema = file.schema_arrow
    names = [schema.names[i] for i in kept_columns(schema.names, exclude, include)]
    if key is not None and key not in names:
        raise ValueError(f"holds no column {key!r}, only {listed(names)}")
    lists = [name for name in names if _is_list(schema.field(name).type) and key in (None, name)]
    if len(lists) > 1:
        raise ValueError(f"holds several columns of lists: {listed(lists)}; choose one with --key NAME")
    if key is not None and not lists:
        raise ValueError(f"column {key!r} is of {schema.field(key).type}, expected lists of numbers")
    if lists and include:
        raise ValueError(f"column {lists[0]!r} of lists is read, so --include {include[0]!r} does not apply")
    if lists:
        kind = schema.field(lists[0]).type.value_type
        if not _is_number(kind):
            raise ValueError(f"column {lists[0]!r} is of lists of {kind}, not of numbers")
        dtype = _dtype(kind)
        check_values(file, lists, path, size=dtype.itemsize)
        return _fill(file, lists, dtype, _list_block)
    index = [name for name in _index_columns(schema) if name in names]
    if words := {name: "words" for name in names if not _is_number(schema.field(name).type)}:
        name = next(iter(words))
        hint = advice(words | kinds_by_name(names, index))
        raise ValueError(f"column {name!r} is of {schema.field(name).type}, not of numbers; {hint}")
    dtype = np.result_type(*(_dtype(schema.field(name).type) for name in names))
    check_values(file, names, path, size=dtype.itemsize)
    values = _fill(file, names, dtype, _column_block)
    check_dimensions(names, values, include, index)
    return values


def _index_columns(schema: Any) -> list[str]:
    """Columns that were the index of a DataFrame, as pandas notes in the file; an index that only counts has none."""
    with parsing("a Parquet file"):
        found = (schema.pandas_metadata or {}).get("index_columns", [])
        return [name for name in found if isinstance(name, str)]


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _dtype(kind: Any) -> np.dtype[Any]:
    """The dtype to read numbers of an Arrow type in: floating, but for whole numbers that float32 may not hold."""
    import pyarrow as pa

    if pa.types.is_integer(kind) and kind.bit_width >= 32:
        return np.dtype(
            np.int64 if pa.types.is_signed_integer(kind) else np.uint64
        )  # to be looked at when they are read
    bits = 32 if pa.types.is_integer(kind) else kind.bit_width  # Arrow's own answer asks pandas before version 16
    return np.dtype(f"float{bits}")


def check_values(file: Any, names: Sequence[str], path: Path, *, size: int) -> None:
    """Refuse columns whose values, of `size` bytes each, take more memory than a file like this one may.

    Raises:
        ValueError: they do.
    """
    with parsing("a Parquet file"):
        metadata = file.metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        columns = [group.column(i) for group in groups for i in range(group.num_columns)]
        # The values of a list column are called by a longer path.
        chosen = [c for c in columns if any(f"{c.path_in_schema}.".startswith(f"{name}.") for name in names)]
        values = sum(max(size * column.num_values, column.total_uncompressed_size) for column in chosen)
        rows = size * metadata.num_rows
    check_unpacked(max(values, rows), packed=path.stat().st_size)


def open_parquet(path: Path, *, words: Sequence[str] = ()) -> Any:
    """A `pyarrow.parquet.ParquetFile`, memory-mapped; columns of `words` keep each word once, where stored so."""
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ValueError("reading .parquet needs pyarrow: pip install 'ldreg[parquet]'") from error
    with parsing("a Parquet file"):
        return pq.ParquetFile(path, memory_map=True, read_dictionary=list(words))


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_words(kind: Any) -> bool:
    """Whether an Arrow type is of text or bytes."""
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def label_columns(path: Path) -> list[str]:
    """Columns of words or whole numbers that lie beside a column of lists, words first; else all are dimensions."""
    import pyarrow as pa

    fields = list(open_parquet(path).schema_arrow)
    if not any(_is_list(field.type) for field in fields):
        return []
    words = [
        field.name
        for field in fields
        if is_words(field.type) or pa.types.is_large_string(field.type) or pa.types.is_dictionary(field.type)
    ]
    return words + [field.name for field in fields if pa.types.is_integer(field.type)]


def _fill(file: Any, names: list[str], dtype: np.dtype[Any], block: Callable[..., NDArray[Any]]) -> NDArray[Any]:
    """All rows, a batch at a time, in one array."""
    rows, done = file.metadata.num_rows, 0
    if rows == 0:
        raise ValueError("holds no rows")
    result: NDArray[Any] | None = None
    batches = file.iter_batches(batch_size=BATCH_ROWS, columns=names)
    while (batch := next_batch(batches)) is not None:
        values = block([batch.column(name) for name in names], names, done)
        if result is None:
            result = np.empty((rows, values.shape[1]), dtype)
        if values.shape[1] != result.shape[1]:
            raise ValueError(f"row {done + 1} has a list of {values.shape[1]}, earlier rows have {result.shape[1]}")
        result[done : done + len(values)] = values
        done += len(values)
    if result is None or done != rows:
        raise ValueError(f"metadata says {rows} rows, but {done} are there")
    return result


def next_batch(batches: Iterator[Any]) -> Any:
    """The next rows of a Parquet file, or None."""
    with parsing("a Parquet file"):
        return next(batches, None)


def _column_block(columns: Sequence[Any], names: Sequence[str], done: int) -> NDArray[Any]:
    for name, column in zip(names, columns, strict=True):
        if column.null_count:
            raise ValueError(
                f"column {name!r} has an empty cell in row {done + column.is_null().index(True).as_py() + 1}"
            )
    return np.stack([column.to_numpy(zero_copy_only=False) for column in columns], axis=1)


def _list_block(columns: Sequence[Any], names: Sequence[str], done: int) -> NDArray[Any]:
    import pyarrow.compute as pc

    (column,), (name,) = columns, names
    lengths = pc.list_value_length(column).fill_null(-1).to_numpy(zero_copy_only=False)
    odd = np.flatnonzero((lengths != lengths[0]) | (lengths < 1))
    if len(odd):
        length, row = int(lengths[odd[0]]), done + int(odd[0]) + 1
        what = "no list" if length < 0 else f"a list of {length}"
        raise ValueError(f"column {name!r} has {what} in row {row}, expected lists of one length above zero")
    flat = column.flatten()
    if flat.null_count:
        row = done + flat.is_null().index(True).as_py() // int(lengths[0]) + 1
        raise ValueError(f"column {name!r} has an empty value in row {row}")
    return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(len(column), int(lengths[0]))
