"""Which columns of a table are dimensions, and which look like ids, row numbers or labels."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ldreg.text import listed, one_line

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
SAMPLED_ROWS = 256  # by which columns are preselected before a look at all rows


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
    """Raise ValueError for columns that look like ids, row numbers or labels, by name or value, and are not included.

    Args:
        names: of the columns of `values` (N, D).
        values: all rows.
        include: columns that are dimensions whatever they look like.
        index: columns that are the row index according to the file.
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
    distinct = [
        i
        for i in whole
        if nearly_unique(sample[:, i]) and _is_whole_column(values[:, i]) and nearly_unique(values[:, i])
    ]
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
