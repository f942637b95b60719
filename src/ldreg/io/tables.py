"""Tables (.csv, .tsv, .parquet) as embeddings: one numeric column per dimension, or one Parquet column of lists."""

import csv
import math
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from ldreg.io.columns import advice, check_dimensions, dimension_columns, kinds_by_name
from ldreg.io.guard import check_unpacked, parse_errors
from ldreg.text import listed, one_line

MAX_LINE = 1 << 24  # characters, each cell of which becomes a string; a million dimensions fit
BATCH_ROWS = 4096  # of a Parquet file read at a time, which bounds the memory besides the result


# CSV


def csv_embeddings(path: Path, key: str | None, exclude: Sequence[str], include: Sequence[str]) -> NDArray[Any]:
    """A numeric CSV as float64 (N, D), which keeps every number as written."""
    if key is not None:
        raise ValueError(f"a table holds no arrays to choose from, so --key {key!r} does not apply; see --exclude")
    names, rows = csv_table(path)
    kept = dimension_columns(names, exclude, include)
    kept_names = [names[i] for i in kept]
    values = array("d")
    for line, cells in rows:
        values.extend(_numbers(cells if len(kept) == len(names) else [cells[i] for i in kept], line, kept_names))
    if not values:
        raise ValueError("holds a header but no rows")
    table = np.frombuffer(values, dtype=np.float64).reshape(-1, len(kept))
    check_dimensions(kept_names, table, include)
    return table


def _numbers(cells: list[str], line: int, names: Sequence[str]) -> list[float]:
    try:
        numbers = list(map(float, cells))
    except ValueError as error:
        raise ValueError(_bad_cell(cells, line, names)) from error
    # float() accepts 1_000, as no other reader of CSV does. The sum tests fast: it is NaN for a NaN or for inf - inf.
    if (math.isnan(sum(numbers)) and any(map(math.isnan, numbers))) or "_" in "".join(cells):
        raise ValueError(_bad_cell(cells, line, names))
    return numbers


def _bad_cell(cells: list[str], line: int, names: Sequence[str]) -> str:
    name, cell = next((name, cell) for name, cell in zip(names, cells, strict=True) if not _is_number(cell))
    words = {name: "words" for name, cell in zip(names, cells, strict=True) if cell and _is_name(cell)}
    hint = f"; {advice(words | kinds_by_name(names))}" if name in words else ""
    return f"line {line}, column {name!r}: {one_line(cell, 40)!r} is not a number{hint}"


def _is_number(cell: str) -> bool:
    try:
        return not math.isnan(float(cell)) and "_" not in cell
    except ValueError:
        return False


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
    """The cells without surrounding blanks."""
    return [cell.strip() for cell in cells]


def is_header(first: Sequence[str], second: Sequence[str] | None) -> bool:
    """Whether the first row names the columns: it has words, and otherwise only whole numbers.

    A row 0, 1, … D-1 (the names that pandas gives) or 1, 2, … D counts too; for D = 2 only if the second row has other
    than whole numbers.

    >>> is_header(["x", "y"], ["1", "2"]), is_header(["0.5", "2"], ["1", "2"]), is_header(["1", "2", "3"], None)
    (True, False, True)
    """
    words = [cell for cell in first if not is_whole(cell)]
    if words:
        return all(_is_name(cell) for cell in words)
    numbered = any(list(first) == [str(i + start) for i in range(len(first))] for start in (0, 1))
    whole = second is None or all(is_whole(cell) for cell in second)
    return numbered and (len(first) > 2 or (len(first) == 2 and not whole))


def is_whole(cell: str) -> bool:
    """Whether a cell has only the digits 0 to 9."""
    return cell.isascii() and cell.isdigit()


def _is_name(cell: str) -> bool:
    """Whether a cell can name a column: blank, or with a letter and no number; 1,5 is a number in another notation."""
    try:
        float(cell)
    except ValueError:
        return not cell or any(character.isalpha() for character in cell)
    return False


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Rows of cells, all of one length, with their line numbers; the delimiter is a tab, `;` or `,`."""
    with path.open(encoding="utf-8-sig", newline="") as stream:
        unquoted = re.sub(r'"[^"]*"', "", next(bounded_lines(stream), ""))
        delimiter = next((mark for mark in "\t;," if mark in unquoted), ",")
        stream.seek(0)
        # skipinitialspace allows `, "quoted"`; it would also skip tabs, so it is off where they delimit.
        reader = csv.reader(bounded_lines(stream), delimiter=delimiter, skipinitialspace=delimiter != "\t", strict=True)
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


def bounded_lines(stream: TextIO) -> Iterator[str]:
    """The lines of a text with their ends; ValueError for one of more than 16 million characters."""
    number = 0
    while line := stream.readline(MAX_LINE):
        number += 1
        if len(line) == MAX_LINE and not line.endswith("\n"):
            raise ValueError(f"line {number} has {MAX_LINE} characters or more")
        yield line


# Parquet; pyarrow is optional


def parquet_embeddings(path: Path, key: str | None, exclude: Sequence[str], include: Sequence[str]) -> NDArray[Any]:
    """The list column `key`, else the only list column, else all columns of a Parquet file as (N, D)."""
    file = open_parquet(path)
    schema = file.schema_arrow
    names = [schema.names[i] for i in dimension_columns(schema.names, exclude, include)]
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
        if not _is_numeric(kind):
            raise ValueError(f"column {lists[0]!r} is of lists of {kind}, not of numbers")
        return _read_columns(file, lists, path, _numpy_dtype(kind), _list_block)
    with parse_errors("a Parquet file"):  # the index of a DataFrame, as pandas notes it; a mere range has no column
        index = [name for name in (schema.pandas_metadata or {}).get("index_columns", []) if name in names]
    if words := {name: "words" for name in names if not _is_numeric(schema.field(name).type)}:
        name = next(iter(words))
        hint = advice(words | kinds_by_name(names, index))
        raise ValueError(f"column {name!r} is of {schema.field(name).type}, not of numbers; {hint}")
    dtype = np.result_type(*(_numpy_dtype(schema.field(name).type) for name in names))
    values = _read_columns(file, names, path, dtype, _column_block)
    check_dimensions(names, values, include, index)
    return values


def open_parquet(path: Path, *, words: Sequence[str] = ()) -> Any:
    """A memory-mapped `pyarrow.parquet.ParquetFile`; columns named in `words` keep each distinct word once."""
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ValueError("reading .parquet needs pyarrow: pip install 'ldreg[parquet]'") from error
    with parse_errors("a Parquet file"):
        return pq.ParquetFile(path, memory_map=True, read_dictionary=list(words))


def check_parquet_memory(file: Any, names: Sequence[str], path: Path, *, size: int) -> None:
    """Raise ValueError if columns of values of `size` bytes take more memory than a file like this may."""
    with parse_errors("a Parquet file"):
        metadata = file.metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        columns = [group.column(i) for group in groups for i in range(group.num_columns)]
        # The values of a list column have a longer path.
        chosen = [c for c in columns if any(f"{c.path_in_schema}.".startswith(f"{name}.") for name in names)]
        values = sum(max(size * column.num_values, column.total_uncompressed_size) for column in chosen)
        rows = size * metadata.num_rows
    check_unpacked(max(values, rows), packed=path.stat().st_size)


def parquet_batches(file: Any, names: Sequence[str]) -> Iterator[Any]:
    """Batches of rows of some columns."""
    batches = file.iter_batches(batch_size=BATCH_ROWS, columns=list(names))
    while True:
        with parse_errors("a Parquet file"):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def parquet_label_columns(path: Path) -> list[str]:
    """Columns of words or whole numbers beside a column of lists, words first; without lists all are dimensions."""
    import pyarrow as pa

    fields = list(open_parquet(path).schema_arrow)
    if not any(_is_list(field.type) for field in fields):
        return []
    words = [
        field.name
        for field in fields
        if is_text(field.type) or pa.types.is_large_string(field.type) or pa.types.is_dictionary(field.type)
    ]
    return words + [field.name for field in fields if pa.types.is_integer(field.type)]


def is_text(kind: Any) -> bool:
    """Whether an Arrow type is of text or bytes."""
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_numeric(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _numpy_dtype(kind: Any) -> np.dtype[Any]:
    """The dtype for numbers of an Arrow type: floating, except for whole numbers that float32 may not hold."""
    import pyarrow as pa

    if pa.types.is_integer(kind) and kind.bit_width >= 32:  # their values decide later
        return np.dtype(np.int64 if pa.types.is_signed_integer(kind) else np.uint64)
    bits = 32 if pa.types.is_integer(kind) else kind.bit_width  # Arrow's own conversion needs pandas before version 16
    return np.dtype(f"float{bits}")


def _read_columns(
    file: Any, names: list[str], path: Path, dtype: np.dtype[Any], block: Callable[..., NDArray[Any]]
) -> NDArray[Any]:
    """All rows of some columns, a batch at a time, in one array (N, D)."""
    check_parquet_memory(file, names, path, size=dtype.itemsize)
    rows, done = file.metadata.num_rows, 0
    if rows == 0:
        raise ValueError("holds no rows")
    result: NDArray[Any] | None = None
    for batch in parquet_batches(file, names):
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


def _column_block(columns: Sequence[Any], names: Sequence[str], done: int) -> NDArray[Any]:
    for name, column in zip(names, columns, strict=True):
        if column.null_count:
            row = done + column.is_null().index(True).as_py() + 1
            raise ValueError(f"column {name!r} has an empty cell in row {row}")
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
