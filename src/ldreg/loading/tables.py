"""Tables (.csv, .parquet) as embeddings: one numeric column per dimension, or one Parquet column of lists."""

import csv
import math
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ldreg.loading.files import listed, one_line, parsing

BATCH_ROWS = 4096  # of a Parquet file at a time, which bounds the memory besides the result

# Names that pandas gives to a row index it wrote as a column.
INDEX_COLUMN = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
LABEL_COLUMNS = {"label", "labels", "class", "classes", "target", "targets"}
ID_COLUMNS = {"id", "ids", "idx", "index", "row"}


def csv_embeddings(path: Path, key: str | None, exclude: Sequence[str]) -> NDArray[Any]:
    """A numeric CSV as float64 (N, D), which keeps every number as written."""
    if key is not None:
        raise ValueError(f"a table holds no arrays to choose from, so --key {key!r} does not apply; see --exclude")
    names, rows = csv_table(path)
    kept = _kept(names, exclude)
    kept_names = [names[i] for i in kept]
    _check_dimensions(kept_names)
    values = array("d")
    for line, cells in rows:
        values.extend(_numbers(cells if len(kept) == len(names) else [cells[i] for i in kept], line, kept_names))
    if not values:
        raise ValueError("holds a header but no rows")
    return np.frombuffer(values, dtype=np.float64).reshape(-1, len(kept))


def _numbers(cells: list[str], line: int, names: Sequence[str]) -> list[float]:
    try:
        numbers = list(map(float, cells))
    except ValueError as error:
        raise ValueError(_bad_cell(cells, line, names)) from error
    # float() takes 1_000 for a number, as no other reader of CSV does.
    # The sum, which is fast, is NaN where a number is, but also for inf - inf.
    if (math.isnan(sum(numbers)) and any(map(math.isnan, numbers))) or "_" in "".join(cells):
        raise ValueError(_bad_cell(cells, line, names))
    return numbers


def _bad_cell(cells: list[str], line: int, names: Sequence[str]) -> str:
    name, cell = next((name, cell) for name, cell in zip(names, cells, strict=True) if not _is_number(cell))
    hint = f" (--exclude {name!r} leaves the column out)" if cell and _is_name(cell) else ""
    return f"line {line}, column {name!r}: {one_line(cell, 40)!r} is not a number{hint}"


def _is_number(cell: str) -> bool:
    try:
        return not math.isnan(float(cell)) and "_" not in cell
    except ValueError:
        return False


def _kept(names: Sequence[str], exclude: Sequence[str]) -> list[int]:
    """Positions of the columns that are not excluded."""
    missing = [name for name in exclude if name not in names]
    if missing:
        raise ValueError(f"--exclude {missing[0]!r}: no such column, only {listed(names)}")
    if len(set(names)) < len(names):
        raise ValueError(f"several columns are called {next(n for n in names if list(names).count(n) > 1)!r}")
    kept = [i for i, name in enumerate(names) if name not in exclude]
    if not kept:
        raise ValueError("--exclude leaves no column" if exclude else "holds no columns")
    return kept


def _check_dimensions(names: Sequence[str]) -> None:
    """ValueError where a column's name says that it holds no dimension."""
    for name in names:
        if INDEX_COLUMN.fullmatch(name):
            raise ValueError(
                f"column {name!r} looks like the row index that pandas writes; leave it out with --exclude {name!r}"
            )
        if name.strip().lower() in LABEL_COLUMNS:
            raise ValueError(
                f"column {name!r} looks like labels; read it as such with --label-key {name!r}, "
                f"or leave it out with --exclude {name!r}"
            )
        if name.strip().lower() in ID_COLUMNS:
            raise ValueError(f"column {name!r} looks like row numbers; leave it out with --exclude {name!r}")


def csv_table(path: Path) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """Column names (1, 2, … without a header row), and the other rows with their line numbers."""
    rows = csv_rows(path)
    head = [row for row in (next(rows, None), next(rows, None)) if row is not None]
    if not head:
        raise ValueError("holds no rows")
    cells = [stripped(row) for _, row in head]
    if is_header(cells[0], cells[1] if len(cells) > 1 else None):
        return cells[0], chain(head[1:], rows)
    return [str(i + 1) for i in range(len(cells[0]))], chain(head, rows)


def stripped(cells: Sequence[str]) -> list[str]:
    """The cells without the blanks around them."""
    return [cell.strip() for cell in cells]


def is_header(first: Sequence[str], second: Sequence[str] | None) -> bool:
    """Whether the first row names the columns: it has words, and besides them whole numbers at most.

    A row 0, 1, … D-1, the names that pandas gives, counts too, for D = 2 unless the second row has whole numbers alone.

    >>> is_header(["x", "y"], ["1", "2"]), is_header(["0.5", "2"], ["1", "2"]), is_header(["0", "1", "2"], None)
    (True, False, True)
    """
    words = [cell for cell in first if not is_whole(cell)]
    if words:
        return all(_is_name(cell) for cell in words)
    numbered = list(first) == [str(i) for i in range(len(first))]
    whole = second is None or all(is_whole(cell) for cell in second)
    return numbered and (len(first) > 2 or (len(first) == 2 and not whole))


def is_whole(cell: str) -> bool:
    """Whether a cell is written in the digits 0 to 9 alone."""
    return cell.isascii() and cell.isdigit()


def _is_name(cell: str) -> bool:
    """Whether a cell can name a column: blank, or with a letter and no number; 1,5 is a number written otherwise."""
    try:
        float(cell)
    except ValueError:
        return not cell or any(character.isalpha() for character in cell)
    return False


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Rows of cells, all of one length, with their line numbers; the delimiter is a tab, `;` or `,`."""
    with path.open(encoding="utf-8-sig", newline="") as stream:
        unquoted = re.sub(r'"[^"]*"', "", stream.readline())
        delimiter = next((mark for mark in "\t;," if mark in unquoted), ",")
        stream.seek(0)
        # A space after the delimiter may precede a quote; a tab is then both, so the option is off for it.
        reader = csv.reader(stream, delimiter=delimiter, skipinitialspace=delimiter != "\t", strict=True)
        width, blank = 0, 0
        while (cells := _next_row(reader)) is not None:
            if not cells:
                blank = blank or reader.line_num
                continue
            if blank:
                raise ValueError(f"line {blank} is blank")
            width = width or len(cells)
            if len(cells) != width:
                raise ValueError(f"line {reader.line_num} has {len(cells)} cells, the first row has {width}")
            yield reader.line_num, cells


def _next_row(reader: Any) -> list[str] | None:
    try:
        row: list[str] | None = next(reader, None)
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from error
    return row


def parquet_embeddings(path: Path, key: str | None, exclude: Sequence[str]) -> NDArray[Any]:
    """The list column `key`, else the only list column, else all columns of a Parquet file as (N, D)."""
    file = open_parquet(path)
    schema = file.schema_arrow
    names = [schema.names[i] for i in _kept(schema.names, exclude)]
    if key is not None and key not in names:
        raise ValueError(f"holds no column {key!r}, only {listed(names)}")
    lists = [name for name in names if _is_list(schema.field(name).type) and key in (None, name)]
    if len(lists) > 1:
        raise ValueError(f"holds several columns of lists: {listed(lists)}; choose one with --key NAME")
    if key is not None and not lists:
        raise ValueError(f"column {key!r} is of {schema.field(key).type}, expected lists of numbers")
    if lists:
        return _fill(file, lists, _dtype(lists[0], schema.field(lists[0]).type.value_type), _list_block)
    _check_dimensions(names)
    dtypes = [_dtype(name, schema.field(name).type) for name in names]
    return _fill(file, names, np.result_type(*dtypes), _column_block)


def _dtype(name: str, kind: Any) -> np.dtype[Any]:
    """The floating dtype for numbers of an Arrow type."""
    import pyarrow as pa

    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise ValueError(f"column {name!r} is of {kind}, not of numbers (--exclude {name!r} leaves the column out)")
    return np.dtype(np.float32 if pa.types.is_integer(kind) else kind.to_pandas_dtype())


def open_parquet(path: Path) -> Any:
    """A `pyarrow.parquet.ParquetFile`, memory-mapped."""
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ValueError("reading .parquet needs pyarrow: pip install 'ldreg[parquet]'") from error
    with parsing("a Parquet file"):
        return pq.ParquetFile(path, memory_map=True)


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _fill(file: Any, names: list[str], dtype: np.dtype[Any], block: Callable[..., NDArray[Any]]) -> NDArray[Any]:
    """All rows, a batch at a time, in one array."""
    rows, done = file.metadata.num_rows, 0
    if rows == 0:
        raise ValueError("holds no rows")
    result: NDArray[Any] | None = None
    batches = file.iter_batches(batch_size=BATCH_ROWS, columns=names)
    while (batch := _next_batch(batches)) is not None:
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


def _next_batch(batches: Iterator[Any]) -> Any:
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
