"""Labels from a file, as class names."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

from ldreg.loading.arrays import READERS, choose
from ldreg.loading.files import check_file, listed, named, one_line, parsing
from ldreg.loading.tables import csv_rows, is_header, is_whole, open_parquet, stripped

# What a header over a single column of words may be called, where nothing else tells it from a label.
HEADERS = ("label", "labels", "class", "classes", "target", "targets", "y")


def load_labels(path: str | Path, *, key: str | None = None, count: int | None = None) -> list[str]:
    r"""Class names, one per point, from any file that `load_embeddings` reads, or a .txt of one label per line.

    Labels are words or whole numbers; `3` and `3.0` in an array are both the class "3".

    Args:
        path: the file; its suffix says the format, and its content must be of that format.
        key: which array of a .npz, .pt or .safetensors, or which column of a table (1, 2, … in a CSV without a
            header row). Without it, the only 1-d array or the only column is taken.
        count: how many labels there must be; it also tells whether the first of a column of words is a header,
            which otherwise has to be a word such as `label` or `class`.

    Raises:
        OSError: there is no such file, or it is a directory or may not be read.
        ValueError: anything else wrong with the file, in one line that begins with its name.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "labels.csv")
    ...     _ = file.write_text("label\ncat\ndog\n")
    ...     load_labels(file)
    ['cat', 'dog']
    """
    path = Path(path)
    with named(path):
        suffix = check_file(path, [*READERS, *TABLES])
        values = TABLES[suffix](path, key, count) if suffix in TABLES else _array_labels(path, suffix, key)
        labels = [_label(value, i + 1) for i, value in enumerate(values)]
        if not labels:
            raise ValueError("holds no labels")
        if count is not None and len(labels) != count:
            raise ValueError(f"expected {count} labels, one for each point, got {len(labels)}")
        return labels


def _label(value: object, position: int) -> str:
    if isinstance(value, bytes):
        value = value.decode()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int | str):
        shown = one_line(repr(value), 40)
        raise ValueError(f"label {position} is {shown}, expected a whole number or a word")
    name = str(value).strip()
    if not name:
        raise ValueError(f"label {position} is empty")
    return name


def _array_labels(path: Path, suffix: str, key: str | None) -> Iterable[object]:
    entry = choose(READERS[suffix](path), key, fits=_is_column, what="a 1-d array (N,)", option="--label-key")
    values = entry.read()
    if not isinstance(values, Tensor) and values.dtype.kind not in "biufUS":
        raise ValueError(f"expected whole numbers or words, got dtype {values.dtype}")
    flat: list[object] = values.reshape(-1).tolist()
    return flat


def _is_column(shape: tuple[int, ...]) -> bool:
    return len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)


def _text_labels(path: Path, key: str | None, count: int | None) -> Iterable[object]:
    if key is not None:
        raise ValueError(f"a .txt file has no columns, so --label-key {key!r} does not apply")
    return path.read_text(encoding="utf-8-sig").rstrip("\n").split("\n")


def _csv_labels(path: Path, key: str | None, count: int | None) -> Iterable[object]:
    rows = [stripped(cells) for _, cells in csv_rows(path)]
    if not rows:
        return []
    header = is_header(rows[0], rows[1] if len(rows) > 1 else None)
    if header and len(rows[0]) == 1:
        header = rows[0][0] == key or _heads([cells[0] for cells in rows], count)
    names = rows[0] if header else [str(i + 1) for i in range(len(rows[0]))]
    column = names.index(_column(names, key))
    return [cells[column] for cells in rows[header:]]


def _heads(cells: list[str], count: int | None) -> bool:
    """Whether the first cell of a column, a word, is its header rather than a label."""
    if len(cells) > 1 and all(is_whole(cell) for cell in cells[1:]):
        return True
    if count in (len(cells), len(cells) - 1):
        return count == len(cells) - 1
    return cells[0].lower() in HEADERS


def _column(names: list[str], key: str | None) -> str:
    if key is None and len(names) > 1:
        raise ValueError(f"holds {len(names)} columns: {listed(names)}; choose one with --label-key NAME")
    if key is not None and names.count(key) != 1:
        found = "several columns" if key in names else "no column"
        raise ValueError(f"holds {found} {key!r}; its columns are {listed(names)}")
    return names[0] if key is None else key


def _parquet_labels(path: Path, key: str | None, count: int | None) -> Iterable[object]:
    file = open_parquet(path)
    if not file.schema_arrow.names:
        raise ValueError("holds no columns")
    name = _column(file.schema_arrow.names, key)
    with parsing("a Parquet file"):
        values: list[Any] = file.read(columns=[name]).column(name).to_pylist()
    return values


TABLES: dict[str, Callable[[Path, str | None, int | None], Iterable[object]]] = {
    ".csv": _csv_labels,
    ".tsv": _csv_labels,
    ".txt": _text_labels,
    ".parquet": _parquet_labels,
}
