"""Tables (.csv, .tsv) as embeddings: one numeric column per dimension."""

import csv
import math
import re
from array import array
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from ldreg.loading.files import listed, one_line

MOST_CHARACTERS = 1 << 24  # of a line, which is held as a string for every cell; a million dimensions fit

# Names that pandas gives to a row index it wrote as a column.
INDEX_COLUMN = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
LABEL_COLUMNS = {"label", "labels", "class", "classes", "target", "targets"}
ID_COLUMNS = {"id", "ids", "idx", "index", "row"}


def csv_embeddings(path: Path, key: str | None, exclude: Sequence[str]) -> NDArray[Any]:
    """A numeric CSV as float64 (N, D), which keeps every number as written."""
    if key is not None:
        raise ValueError(f"a table holds no arrays to choose from, so --key {key!r} does not apply; see --exclude")
    names, rows = csv_table(path)
    kept = kept_columns(names, exclude)
    kept_names = [names[i] for i in kept]
    check_dimensions(kept_names)
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


def kept_columns(names: Sequence[str], exclude: Sequence[str]) -> list[int]:
    """Positions of the columns that are not excluded."""
    missing = [name for name in exclude if name not in names]
    if missing:
        raise ValueError(f"holds no column {missing[0]!r}, only {listed(names)}")
    if len(set(names)) < len(names):
        raise ValueError(f"several columns are called {next(n for n in names if list(names).count(n) > 1)!r}")
    kept = [i for i, name in enumerate(names) if name not in exclude]
    if not kept:
        raise ValueError("--exclude leaves no column" if exclude else "holds no columns")
    return kept


def check_dimensions(names: Sequence[str]) -> None:
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
        unquoted = re.sub(r'"[^"]*"', "", next(lines(stream), ""))
        delimiter = next((mark for mark in "\t;," if mark in unquoted), ",")
        stream.seek(0)
        # A space after the delimiter may precede a quote; a tab is then both, so the option is off for it.
        reader = csv.reader(lines(stream), delimiter=delimiter, skipinitialspace=delimiter != "\t", strict=True)
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


def lines(stream: TextIO) -> Iterator[str]:
    """The lines of a text with their ends, none of which may take all memory.

    Raises:
        ValueError: a line has more than 16 million characters.
    """
    number = 0
    while line := stream.readline(MOST_CHARACTERS):
        number += 1
        if len(line) == MOST_CHARACTERS and not line.endswith("\n"):
            raise ValueError(f"line {number} has {MOST_CHARACTERS} characters or more")
        yield line


def _next_row(reader: Any) -> list[str] | None:
    try:
        row: list[str] | None = next(reader, None)
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from error
    return row
