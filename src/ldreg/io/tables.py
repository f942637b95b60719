"""Tables (.csv, .tsv, .parquet) as embeddings: one numeric column per dimension, or one Parquet column of lists."""

import contextlib
import csv
import math
import re
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from ldreg.io.guard import check_unpacked, parse_errors
from ldreg.text import listed, one_line

MAX_LINE = 1 << 24  # characters, each cell of which becomes a string; a million dimensions fit
BATCH_ROWS = 4096  # of a Parquet file read at a time, which bounds the memory besides the result
Rows = Iterator[tuple[int, list[str]]]  # cells with the number of their line
# What a column holds instead of a dimension, by its name in lower case with _ between words. pandas names a column made
# of a row index nothing, Unnamed: 0 or __index_level_0__. Names ending in a number, such as cls_0, cls_1, … for the
# coordinates of a token, are those of dimensions.
KINDS = {
    "row numbers": re.compile(r"|unnamed_\d+|index(_level_\d+)?|row"),
    "ids": re.compile(r"(.*_)?(id|ids|idx|uid|uuid)|id_.*\D"),
    "labels": re.compile(r"(.*_)?(label|labels|class|cls)|classes|targets?|category|categories|ground_truth|y|y_true"),
}
MIN_ROWS = 20  # in fewer rows, ordinary whole numbers may happen to be the row numbers
UNIQUE_SHARE = 0.95  # share of distinct values from which on a column identifies rows
_MISSING = ("", "na", "n/a", "nan", "none", "null", "-", "?")  # what tables have in place of a number
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_FIRST_ROWS = 20  # by which columns of words are told from those of numbers
OBJECT_BYTES = 64  # of a cell as a Python object
SAMPLED_ROWS = 256  # by which columns are preselected before a look at all rows


# CSV


def csv_embeddings(
    path: Path, key: str | None, exclude: Sequence[str], include: Sequence[str], empty_as_nan: bool
) -> NDArray[Any]:
    """A numeric CSV as float64 (N, D), which keeps every number as written."""
    if key is not None:
        raise ValueError(f"a table holds no arrays to choose from, so --key {key!r} does not apply; see --exclude")
    names, rows = csv_table(path)
    words, rows = _csv_words(names, rows)
    kept = [i for i in dimension_columns(names, exclude, include) if names[i] not in words or names[i] in include]
    if not kept:
        raise ValueError(f"expected columns of numbers, got columns of words: {listed(words)}")
    kept_names = [names[i] for i in kept]
    values = array("d")
    for line, cells in rows:
        chosen = cells if len(kept) == len(names) else [cells[i] for i in kept]
        values.extend(_numbers(chosen, line, kept_names, empty_as_nan))
    if not values:
        raise ValueError("holds a header but no rows")
    table = np.frombuffer(values, dtype=np.float64).reshape(-1, len(kept))
    check_dimensions(kept_names, table, include)
    return table


def word_columns(path: Path, *, beside_lists: bool = True) -> list[str]:
    """The columns of a table that hold words and so are no dimensions; none of other files.

    `beside_lists` is whether to name those beside a Parquet column of lists, where all other columns are left out.
    """
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        kinds = {field.name: str(field.type) for field in open_parquet(path).schema_arrow}
        if not beside_lists and any(map(_LIST.match, kinds.values())):
            return []
        return [name for name, kind in kinds.items() if re.fullmatch(_WORDS, kind)]
    return _csv_words(*csv_table(path))[0] if suffix in (".csv", ".tsv") else []


def other_columns(path: Path, exclude: Sequence[str], include: Sequence[str]) -> dict[str, list[Any]]:
    """The columns of a table that are no dimensions, by name: words, those excluded, and all beside a list.

    Lists and maps are left out.
    """
    suffix = path.suffix.lower()
    words = [name for name in word_columns(path) if name not in include]
    if suffix == ".parquet":
        file = open_parquet(path)
        kinds = {field.name: str(field.type) for field in file.schema_arrow}
        lists = any(map(_LIST.match, kinds.values()))
        wanted = [name for name in kinds if lists or name in [*words, *exclude]]
        kept = [name for name in wanted if not (_LIST.match(kinds[name]) or kinds[name].startswith("map<"))]
        check_parquet_memory(file, kept, path, size=OBJECT_BYTES)
        found: dict[str, list[Any]] = {name: [] for name in kept}
        for batch in parquet_batches(file, kept) if kept else ():
            for name in kept:
                found[name] += batch.column(name).to_pylist()
        return found
    if suffix not in (".csv", ".tsv"):
        return {}
    names, rows = csv_table(path)
    places = [i for i, name in enumerate(names) if name in [*words, *exclude]]
    cells = [[cells[i] for i in places] for _, cells in rows]
    return {names[i]: list(column) for i, column in zip(places, zip(*cells, strict=True), strict=True)}


def _csv_words(names: Sequence[str], rows: Rows) -> tuple[list[str], Rows]:
    """The columns of words, by the first rows of a CSV, and all rows again."""
    first = list(islice(rows, _FIRST_ROWS))
    columns = {name: [cells[i].strip() for _, cells in first] for i, name in enumerate(names)}
    return [name for name, cells in columns.items() if _are_words(cells)], chain(first, rows)


def _are_words(cells: Sequence[str]) -> bool:
    """Whether most cells are words or dates, and not missing numbers or numbers in another notation."""
    known = [cell for cell in cells if cell.lower() not in _MISSING]
    words = [cell for cell in known if not _is_number(cell)]
    return len(words) > len(known) / 2 and all(_is_name(cell) or _DATE.match(cell) for cell in words)


def _numbers(cells: list[str], line: int, names: Sequence[str], empty_as_nan: bool) -> list[float]:
    if empty_as_nan:
        cells = ["nan" if cell.strip().lower() in _MISSING else cell for cell in cells]
    with contextlib.suppress(ValueError):
        numbers = list(map(float, cells))
        # float() accepts 1_000, as no other reader of CSV does. The sum tests fast: NaN comes of a NaN or of inf - inf.
        allowed = empty_as_nan or not (math.isnan(sum(numbers)) and any(map(math.isnan, numbers)))
        if allowed and "_" not in "".join(cells):
            return numbers
    name, cell = next((name, cell) for name, cell in zip(names, cells, strict=True) if not _is_number(cell))
    words = {name: "words" for name, cell in zip(names, cells, strict=True) if cell and _is_name(cell)}
    hint = f"; {advice(words | kinds_by_name(names))}" if name in words else ""
    raise ValueError(f"line {line}, column {name!r}: {one_line(cell, 40)!r} is not a number{hint}")


def _is_number(cell: str) -> bool:
    try:
        return not math.isnan(float(cell)) and "_" not in cell
    except ValueError:
        return False


def csv_table(path: Path) -> tuple[list[str], Rows]:
    """Column names (1, 2, … without a header row), and the other rows with their line numbers."""
    rows = csv_rows(path)
    head = [row for row in (next(rows, None), next(rows, None)) if row is not None]
    if not head:
        raise ValueError("holds no rows")
    cells = [[cell.strip() for cell in row] for _, row in head]
    if is_header(cells[0], cells[1] if len(cells) > 1 else None):
        return cells[0], chain(head[1:], rows)
    return [str(i + 1) for i in range(len(cells[0]))], chain(head, rows)


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


def csv_rows(path: Path) -> Rows:
    """Rows of cells, all of one length, with their line numbers; the delimiter is a tab, `;` or `,`."""
    with path.open(encoding="utf-8-sig", newline="") as stream:
        unquoted = re.sub(r'"[^"]*"', "", next(bounded_lines(stream), ""))
        delimiter = next((mark for mark in "\t;," if mark in unquoted), ",")
        stream.seek(0)
        # skipinitialspace allows `, "quoted"`; it would also skip tabs, so it is off where they delimit.
        reader = csv.reader(bounded_lines(stream), delimiter=delimiter, skipinitialspace=delimiter != "\t", strict=True)
        width, blank = 0, 0
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise ValueError(f"line {reader.line_num}: {error}") from error
            if not cells:
                blank = blank or reader.line_num
                continue
            if blank:
                raise ValueError(f"line {blank} is blank")
            width = width or len(cells)
            if len(cells) != width:
                raise ValueError(f"line {reader.line_num} has {len(cells)} cells, the first row has {width}")
            yield reader.line_num, cells


def bounded_lines(stream: TextIO) -> Iterator[str]:
    """The lines of a text with their ends; ValueError for one of more than 16 million characters."""
    number = 0
    while line := stream.readline(MAX_LINE):
        number += 1
        if len(line) == MAX_LINE and not line.endswith("\n"):
            raise ValueError(f"line {number} has {MAX_LINE} characters or more")
        yield line


# Parquet; pyarrow is optional

_LIST = re.compile(r"(large_|fixed_size_)?list<")  # the names of Arrow's types
_WORDS = r"(large_)?string(_view)?|binary|dictionary<.*"
_NUMBER = re.compile(r"u?int\d+|halffloat|float|double")


class VectorColumns(NamedTuple):
    """The columns of a table that hold the embeddings: one of lists, or one for each dimension."""

    names: list[str]
    dtype: np.dtype[Any]
    block: Callable[..., NDArray[Any]]  # from the columns of a batch, their names and the rows before it to (n, D)
    lists: bool = True
    row_index: Sequence[str] = ()  # columns that the file calls so

    def check(self, values: NDArray[Any], include: Collection[str]) -> None:
        """Raise ValueError for columns of `values` (N, D) that do not look like dimensions."""
        if not self.lists:
            check_dimensions(self.names, values, include, self.row_index)


def parquet_embeddings(
    path: Path, key: str | None, exclude: Sequence[str], include: Sequence[str], empty_as_nan: bool
) -> NDArray[Any]:
    """The list column `key`, else the only list column, else all columns of a Parquet file as (N, D)."""
    file = open_parquet(path)
    columns = vector_columns(file.schema_arrow, key, exclude, include, empty_as_nan)
    values = _read_columns(file, columns.names, path, columns.dtype, columns.block)
    columns.check(values, include)
    return values


def vector_columns(
    schema: Any, key: str | None, exclude: Sequence[str], include: Sequence[str], empty_as_nan: bool
) -> VectorColumns:
    """The list column `key`, else the only list column, else all columns of numbers in an Arrow schema.

    With `empty_as_nan`, empty cells are NaN; otherwise they are an error.
    """
    names = [schema.names[i] for i in dimension_columns(schema.names, exclude, include)]
    if key is not None and key not in names:
        raise ValueError(f"holds no column {key!r}, only {listed(names)}")
    lists = [name for name in names if _LIST.match(str(schema.field(name).type)) and key in (None, name)]
    if len(lists) > 1:
        raise ValueError(f"holds several columns of lists: {listed(lists)}; choose one with --key NAME")
    if key is not None and not lists:
        raise ValueError(f"column {key!r} is of {schema.field(key).type}, expected lists of numbers")
    if lists and include:
        raise ValueError(f"column {lists[0]!r} of lists is read, so --include {include[0]!r} does not apply")
    if lists:
        kind = schema.field(lists[0]).type.value_type
        if not _NUMBER.fullmatch(str(kind)):
            raise ValueError(f"column {lists[0]!r} is of lists of {kind}, not of numbers")
        return VectorColumns(lists, _numpy_dtype(kind, empty_as_nan), partial(_list_block, empty_as_nan=empty_as_nan))
    with parse_errors("a Parquet file"):  # the index of a DataFrame, as pandas notes it; a mere range has no column
        index = [name for name in (schema.pandas_metadata or {}).get("index_columns", []) if name in names]
    texts = [name for name in names if re.fullmatch(_WORDS, str(schema.field(name).type)) and name not in include]
    names = [name for name in names if name not in texts]
    if not names:
        raise ValueError(f"expected columns of numbers, got columns of words: {listed(texts)}")
    if words := {name: "words" for name in names if not _NUMBER.fullmatch(str(schema.field(name).type))}:
        name = next(iter(words))
        hint = advice(words | kinds_by_name(names, index))
        raise ValueError(f"column {name!r} is of {schema.field(name).type}, not of numbers; {hint}")
    dtype = np.result_type(*(_numpy_dtype(schema.field(name).type, empty_as_nan) for name in names))
    return VectorColumns(names, dtype, partial(_column_block, empty_as_nan=empty_as_nan), lists=False, row_index=index)


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
    kinds = {field.name: str(field.type) for field in open_parquet(path).schema_arrow}
    if not any(map(_LIST.match, kinds.values())):
        return []
    patterns = (_WORDS, r"u?int\d+")
    return [name for pattern in patterns for name, kind in kinds.items() if re.fullmatch(pattern, kind)]


def _numpy_dtype(kind: Any, empty_as_nan: bool) -> np.dtype[Any]:
    """The dtype for numbers of an Arrow type: floating, except for whole numbers that float32 may not hold.

    With `empty_as_nan` it is floating in any case.
    """
    dtype = np.dtype(kind.to_pandas_dtype())
    if empty_as_nan:
        return np.result_type(dtype, np.float16 if dtype.kind == "f" else np.float32)
    return dtype if dtype.kind == "f" or dtype.itemsize >= 4 else np.dtype(np.float32)  # their values decide later


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


def _column_block(columns: Sequence[Any], names: Sequence[str], done: int, *, empty_as_nan: bool) -> NDArray[Any]:
    for name, column in zip(names, columns, strict=True):
        if column.null_count and not empty_as_nan:
            row = done + column.is_null().index(True).as_py() + 1
            raise ValueError(f"column {name!r} has an empty cell in row {row}")
    return np.stack([column.to_numpy(zero_copy_only=False) for column in columns], axis=1)


def _list_block(columns: Sequence[Any], names: Sequence[str], done: int, *, empty_as_nan: bool) -> NDArray[Any]:
    import pyarrow.compute as pc

    (column,), (name,) = columns, names
    lengths = pc.list_value_length(column).fill_null(-1).to_numpy(zero_copy_only=False)
    odd = np.flatnonzero((lengths != lengths[0]) | (lengths < 1))
    if len(odd):
        length, row = int(lengths[odd[0]]), done + int(odd[0]) + 1
        what = "no list" if length < 0 else f"a list of {length}"
        raise ValueError(f"column {name!r} has {what} in row {row}, expected lists of one length above zero")
    flat = column.flatten()
    if flat.null_count and not empty_as_nan:
        row = done + flat.is_null().index(True).as_py() // int(lengths[0]) + 1
        raise ValueError(f"column {name!r} has an empty value in row {row}")
    return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(len(column), int(lengths[0]))


# Columns that are no dimensions


def dimension_columns(names: Sequence[str], exclude: Sequence[str], include: Sequence[str]) -> list[int]:
    """Positions of the columns that are not excluded."""
    if missing := [name for name in (*exclude, *include) if name not in names]:
        raise ValueError(f"holds no column {missing[0]!r}, only {listed(names)}")
    if len(set(names)) < len(names):
        raise ValueError(f"several columns are called {next(n for n in names if list(names).count(n) > 1)!r}")
    if both := set(exclude) & set(include):
        raise ValueError(f"column {min(both)!r} is to be left out, so --include {min(both)!r} does not apply")
    kept = [i for i, name in enumerate(names) if name not in exclude]
    if not kept:
        raise ValueError("--exclude leaves no column" if exclude else "holds no columns")
    return kept


def check_dimensions(
    names: Sequence[str], values: NDArray[Any], include: Collection[str], index: Sequence[str] = ()
) -> None:
    """Raise ValueError for columns of `values` (N, D) that look like ids, row numbers or labels, by name or value.

    Those in `include` are dimensions whatever they look like; `index` is the row index according to the file.
    """
    kinds = kinds_by_name(names, index)
    kinds |= _kinds_by_value(names, values, kinds)
    found = {name: kinds[name] for name in names if name in kinds and name not in include}
    if found:
        looks = [f"{kind} ({listed(n for n in found if found[n] == kind)})" for kind in KINDS if kind in found.values()]
        raise ValueError(
            f"expected dimensions, got columns that look like {', '.join(looks)}; {advice(found)}, "
            "--include NAME,... takes columns as dimensions"
        )


def kinds_by_name(names: Sequence[str], index: Sequence[str] = ()) -> dict[str, str]:
    """The columns that are no dimensions by their names, each with a key of `KINDS`.

    >>> kinds_by_name(["imageId", "f0", "y"]), kinds_by_name(["x", "y", "z"])
    ({'imageId': 'ids', 'y': 'labels'}, {})
    """
    kinds = {name: kind for name in names for kind, pattern in KINDS.items() if pattern.fullmatch(_words_of(name))}
    kinds |= dict.fromkeys(index, "row numbers")
    return {name: kind for name, kind in kinds.items() if name not in _coordinates(names)}


def _coordinates(names: Sequence[str]) -> list[str]:
    """The columns x, y and z if there are at least two of them; y alone is often the label."""
    found = [name for name in names if _words_of(name) in ("x", "y", "z")]
    return found if len(found) > 1 else []


def _words_of(name: str) -> str:
    """A name in lower case with _ between words: image_id for `Image ID`, `imageId` and `image.id`."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.strip())
    return re.sub(r"[\W_]+", "_", apart).strip("_").lower() or apart


def _kinds_by_value(names: Sequence[str], values: NDArray[Any], known: Collection[str]) -> dict[str, str]:
    """Row numbers and ids among the columns not known yet: whole numbers that are nearly all distinct.

    They are row numbers if they are sorted or without gaps, unless most columns are so, as in a table of ranks. Else
    they are ids if at least as many columns are not of whole numbers; in a table of counts or of quantized embeddings
    they are dimensions. So are x, y and z of points.
    """
    if len(values) < MIN_ROWS:
        return {}
    known = {*known, *_coordinates(names)}
    sample = values[:: max(1, len(values) // SAMPLED_ROWS)]
    asked = [i for i, name in enumerate(names) if name not in known]
    whole = [i for i in asked if _is_whole_column(sample[:, i])]
    distinct = [i for i in whole if all(nearly_unique(x[:, i]) and _is_whole_column(x[:, i]) for x in (sample, values))]
    counting = [i for i in distinct if _counts_rows(values[:, i])]
    ids = [i for i in distinct if i not in counting]
    kinds = dict.fromkeys(counting if 2 * len(counting) <= len(asked) else [], "row numbers")
    kinds |= dict.fromkeys(ids if len(ids) <= len(asked) - len(whole) else [], "ids")
    return {names[i]: kind for i, kind in kinds.items()}


def _is_whole_column(column: NDArray[Any]) -> bool:
    return bool(np.isfinite(column).all() and (column == np.floor(column)).all())


def nearly_unique(values: NDArray[Any] | Sequence[object]) -> bool:
    """Whether values identify rows, as ids do, rather than kinds of rows, as labels do.

    >>> nearly_unique(["a", "b", "c"]), nearly_unique(["a", "b", "a"])
    (True, False)
    """
    count = len(np.unique(values)) if isinstance(values, np.ndarray) else len(set(values))
    return count >= UNIQUE_SHARE * len(values)


def _counts_rows(column: NDArray[Any]) -> bool:
    """Whether whole numbers are sorted, or are all those of a range, in any order."""
    later, earlier = column[1:], column[:-1]
    if (later > earlier).all() or (later < earlier).all():
        return True
    return len(np.unique(column)) == len(column) and int(column.max()) - int(column.min()) == len(column) - 1


def advice(kinds: Mapping[str, str]) -> str:
    """The options that leave columns out, or read one of them as labels."""
    left_out = ",".join(repr(one_line(name, 60)) for name in kinds)
    labels = next((repr(one_line(name, 60)) for name, kind in kinds.items() if kind == "labels"), "NAME")
    return f"--exclude {left_out} leaves them out, --label-key {labels} reads labels"
