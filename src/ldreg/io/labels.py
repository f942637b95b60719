"""Labels from a file, as class names."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from torch import Tensor

from ldreg.io.arrays import READERS, choose
from ldreg.io.formats import check_file, named, parsing
from ldreg.io.memory import check_fits
from ldreg.io.parquet import BATCH_ROWS, check_values, is_words, label_columns, next_batch, open_parquet
from ldreg.io.tables import csv_rows, is_header, is_whole, lines, nearly_unique, stripped
from ldreg.text import listed, one_line

MOST_CHARACTERS = 1000  # of a label, which tables and figures have to show
LOOKED = 1 << 16  # values that tell labels from ids
OBJECT = 64  # bytes that a label takes as an object of Python
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
        values = TABLES[suffix](path, key, count) if suffix in TABLES else _array_labels(path, suffix, key, count)
        labels = [_label(value, i + 1) for i, value in enumerate(values)]
        if not labels:
            raise ValueError("holds no labels")
        _check_count(len(labels), count)
        return labels


def label_arrays(path: str | Path, count: int) -> list[str]:
    """Names of the arrays, or of columns beside one of lists, that look like labels of `count` points.

    They have one whole number or word for each, and not nearly as many of them as points, as ids have.
    """
    path = Path(path)
    with named(path):
        suffix = check_file(path, [*READERS, *TABLES])
        entries = READERS[suffix](path) if suffix in READERS else []
        names = [entry.name for entry in entries if entry.discrete and entry.shape == (count,)]
        names += label_columns(path) if suffix == ".parquet" else []
    shown = [name for name in names if name is not None and name == one_line(name)]
    return [name for name in shown if _repeats(path, suffix, name)]


def _repeats(path: Path, suffix: str, name: str) -> bool:
    """Whether the first values of an array or column are not nearly unique; those that cannot be read are no labels."""
    try:
        values = _parquet_values(path, name) if suffix == ".parquet" else _array_labels(path, suffix, name, None)
        return not nearly_unique([hash(value) for value in islice(values, LOOKED)])  # texts may be long
    except (ValueError, TypeError):
        return False


def _check_count(found: int, count: int | None) -> None:
    if count is not None and found != count:
        raise ValueError(f"expected {count} labels, one for each point, got {found}")


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
    if len(name) > MOST_CHARACTERS:
        raise ValueError(f"label {position} has {len(name)} characters, expected at most {MOST_CHARACTERS}")
    return name


def _array_labels(path: Path, suffix: str, key: str | None, count: int | None) -> Iterable[object]:
    entry = choose(READERS[suffix](path), key, fits=_is_column, what="a 1-d array (N,)", option="--label-key")
    _check_count(entry.shape[0], count)
    check_fits(OBJECT * entry.shape[0])
    values = entry.read()
    if not isinstance(values, Tensor) and values.dtype.kind not in "biufUS":
        raise ValueError(f"expected whole numbers or words, got dtype {values.dtype}")
    with parsing("an array of labels"):  # words may have letters beyond those of Unicode
        flat: list[object] = values.reshape(-1).tolist()
    return flat


def _is_column(shape: tuple[int, ...]) -> bool:
    return len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)


def _text_labels(path: Path, key: str | None, count: int | None) -> Iterable[object]:
    if key is not None:
        raise ValueError(f"a .txt file has no columns, so --label-key {key!r} does not apply")
    with path.open(encoding="utf-8-sig") as stream:
        cells = [line.removesuffix("\n") for line in lines(stream)]
    while len(cells) > 1 and not cells[-1]:
        cells.pop()
    return cells


def _csv_labels(path: Path, key: str | None, count: int | None) -> Iterable[object]:
    rows = (cells for _, cells in csv_rows(path))
    head = [stripped(cells) for cells in islice(rows, 2)]
    if not head:
        return []
    header = is_header(head[0], head[1] if len(head) > 1 else None)
    if header and len(head[0]) == 1:
        cells = _cells(chain(head, rows), 0)
        header = cells[0] == key or _heads(cells, count)
        _column(cells[:1] if header else ["1"], key)
        return cells[header:]
    names = head[0] if header else [str(i + 1) for i in range(len(head[0]))]
    return _cells(chain(head[header:], rows), names.index(_column(names, key)))


def _cells(rows: Iterable[list[str]], column: int) -> list[str]:
    """One column; the others are not kept, as they may be the embeddings."""
    return [cells[column].strip() for cells in rows]


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
    if file.metadata.num_rows:
        _check_count(file.metadata.num_rows, count)
    check_values(file, [name], path, size=OBJECT)
    return _parquet_values(path, name)


def _parquet_values(path: Path, name: str) -> Iterator[object]:
    """The values of a column, read a batch at a time."""
    file = open_parquet(path)
    if is_words(file.schema_arrow.field(name).type):  # what is stored once for all its rows is read so, too
        file = open_parquet(path, words=[name])
    batches = file.iter_batches(batch_size=BATCH_ROWS, columns=[name])
    while (batch := next_batch(batches)) is not None:
        yield from _batch_labels(batch.column(name))


def _batch_labels(column: Any) -> Iterator[object]:
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        yield from column.to_pylist()
        return
    words = column.dictionary.to_pylist()
    for place in column.indices.to_pylist():
        yield None if place is None else words[place]


TABLES: dict[str, Callable[[Path, str | None, int | None], Iterable[object]]] = {
    ".csv": _csv_labels,
    ".tsv": _csv_labels,
    ".txt": _text_labels,
    ".parquet": _parquet_labels,
}
