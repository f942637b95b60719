"""Tables (.csv, .tsv) as embeddings: one numeric column per dimension."""

import csv
import math
import re
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from ldreg.text import listed, one_line

MOST_CHARACTERS = 1 << 24  # of a line, which is held as a string for every cell; a million dimensions fit

# What a column holds instead of a dimension, by its name in lower case with _ between words. Pandas calls a row index
# that it wrote as a column nothing, Unnamed: 0 or __index_level_0__. Names that end in a number, such as those of the
# coordinates cls_0, cls_1, … of a token, are those of dimensions.
KINDS = {
    "row numbers": re.compile(r"|unnamed_\d+|index(_level_\d+)?|row"),
    "ids": re.compile(r"(.*_)?(id|ids|idx|uid|uuid)|id_.*\D"),
    "labels": re.compile(r"(.*_)?(label|labels|class|cls)|classes|targets?|category|categories|ground_truth|y|y_true"),
}
FEWEST = 20  # rows; in fewer, ordinary whole numbers may happen to be the row numbers
NEARLY = 0.95  # share of distinct values from which on a column tells rows apart rather than kinds of rows
SAMPLED = 256  # rows that tell which columns need a look at all of them


def csv_embeddings(path: Path, key: str | None, exclude: Sequence[str], include: Sequence[str]) -> NDArray[Any]:
    """A numeric CSV as float64 (N, D), which keeps every number as written."""
    if key is not None:
        raise ValueError(f"a table holds no arrays to choose from, so --key {key!r} does not apply; see --exclude")
    names, rows = csv_table(path)
    kept = kept_columns(names, exclude, include)
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
    # float() takes 1_000 for a number, as no other reader of CSV does.
    # The sum, which is fast, is NaN where a number is, but also for inf - inf.
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


def kept_columns(names: Sequence[str], exclude: Sequence[str], include: Sequence[str]) -> list[int]:
    """Positions of the columns that are not excluded."""
    missing = [name for name in (*exclude, *include) if name not in names]
    if missing:
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
    """ValueError where columns look like ids, row numbers or labels, by name or by value, and are not to be included.

    Args:
        names: of the columns of `values` (N, D).
        values: all rows.
        include: columns that are dimensions whatever they look like.
        index: columns that the file says are its row index.
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
    """What columns hold that are no dimensions by their names: a key of `KINDS` for each.

    >>> kinds_by_name(["imageId", "f0", "y"]), kinds_by_name(["x", "y", "z"])
    ({'imageId': 'ids', 'y': 'labels'}, {})
    """
    kinds = {name: kind for name in names for kind, pattern in KINDS.items() if pattern.fullmatch(_plain(name))}
    kinds |= dict.fromkeys(index, "row numbers")
    return {name: kind for name, kind in kinds.items() if name not in _coordinates(names)}


def _coordinates(names: Sequence[str]) -> list[str]:
    """The columns x, y and z, where at least two of them are there; y without another is often the label."""
    found = [name for name in names if _plain(name) in ("x", "y", "z")]
    return found if len(found) > 1 else []


def _plain(name: str) -> str:
    """A column's name in lower case, with _ between its words: image_id of `Image ID`, `imageId` and `image.id`."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.strip())
    return re.sub(r"[\W_]+", "_", apart).strip("_").lower() or apart


def _kinds_by_value(names: Sequence[str], values: NDArray[Any], known: Collection[str]) -> dict[str, str]:
    """Row numbers and ids among the columns not known yet: whole numbers that are nearly all distinct.

    Where they rise or fall throughout, or leave no gap, they are row numbers, unless most columns are so, as of ranks.
    Else they are ids where at least as many columns are not of whole numbers: in a table of counts or of quantized
    embeddings they are dimensions. x, y and z of points are, too.
    """
    if len(values) < FEWEST:
        return {}
    known = {*known, *_coordinates(names)}
    sample = values[:: max(1, len(values) // SAMPLED)]
    asked = [i for i, name in enumerate(names) if name not in known]
    whole = [i for i in asked if _is_whole_column(sample[:, i])]
    distinct = [
        i
        for i in whole
        if nearly_unique(sample[:, i]) and _is_whole_column(values[:, i]) and nearly_unique(values[:, i])
    ]
    counting = [i for i in distinct if _counts(values[:, i])]
    ids = [i for i in distinct if i not in counting]
    kinds = dict.fromkeys(counting if 2 * len(counting) <= len(asked) else [], "row numbers")
    kinds |= dict.fromkeys(ids if len(ids) <= len(asked) - len(whole) else [], "ids")
    return {names[i]: kind for i, kind in kinds.items()}


def _is_whole_column(column: NDArray[Any]) -> bool:
    return bool(np.isfinite(column).all() and (column == np.floor(column)).all())


def nearly_unique(values: NDArray[Any] | Sequence[object]) -> bool:
    """Whether values tell rows apart, as ids do, rather than kinds of rows, as labels do.

    >>> nearly_unique(["a", "b", "c"]), nearly_unique(["a", "b", "a"])
    (True, False)
    """
    count = len(np.unique(values)) if isinstance(values, np.ndarray) else len(set(values))
    return count >= NEARLY * len(values)


def _counts(column: NDArray[Any]) -> bool:
    """Whether whole numbers rise or fall throughout, or are all those of a range, in any order."""
    later, earlier = column[1:], column[:-1]
    if (later > earlier).all() or (later < earlier).all():
        return True
    return len(np.unique(column)) == len(column) and int(column.max()) - int(column.min()) == len(column) - 1


def advice(kinds: Mapping[str, str]) -> str:
    """Which options leave columns out, or read one of them as labels."""
    left_out = ",".join(repr(one_line(name, 60)) for name in kinds)
    labels = next((repr(one_line(name, 60)) for name, kind in kinds.items() if kind == "labels"), "NAME")
    return f"--exclude {left_out} leaves them out, --label-key {labels} reads labels"


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

    A row 0, 1, … D-1, the names that pandas gives, counts too, as does 1, 2, … D, for D = 2 unless the second row has
    whole numbers alone.

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
