"""Labels and names of points from a file."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from torch import Tensor

from ldreg.io.embeddings import ARRAYS, choose
from ldreg.io.guard import check_file, check_fits, named_errors, parse_errors
from ldreg.io.tables import (
    OBJECT_BYTES,
    bounded_lines,
    check_parquet_memory,
    csv_rows,
    is_header,
    is_whole,
    nearly_unique,
    open_parquet,
    parquet_batches,
    parquet_label_columns,
    word_columns,
)
from ldreg.text import listed, one_line

MAX_CHARACTERS = 1000  # of a label, which tables and figures have to show
SAMPLED = 1 << 16  # values by which labels are told from ids
# Names for a header over a single column of words, if nothing else tells it from a label or text.
HEADERS = (
    "label", "labels", "class", "classes", "target", "targets", "y",
    "name", "names", "text", "texts", "sentence", "sentences",
)  # fmt: skip


def load_labels(path: str | Path, *, key: str | None = None, count: int | None = None) -> list[str]:
    r"""Load class names, one per point, from any file that `load_embeddings` reads, or a .txt of one label per line.

    Labels are words or whole numbers; `3` and `3.0` in an array are both the class "3".

    Args:
        path: the file; its suffix gives the format, and its content must be of that format.
        key: the array of a .npz, .pt or .safetensors, or the column of a table (1, 2, … in a CSV without a header
            row). Default: the only 1-d array or the only column.
        count: how many labels there must be. It also decides whether the first of a column of words is a header, which
            otherwise has to be a word such as `label` or `class`.

    Raises:
        OSError: there is no such file, or it is a directory or may not be read.
        ValueError: anything else is wrong with the file; one line that begins with its name.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "labels.csv")
    ...     _ = file.write_text("label\ncat\ndog\n")
    ...     load_labels(file)
    ['cat', 'dog']
    """
    return _load(path, as_label, key, count)


def load_names(path: str | Path, *, key: str | None = None, count: int | None = None) -> list[str]:
    """Load names or texts, one per point, from the files that `load_labels` reads; they may be long, equal or empty.

    Args and errors are those of `load_labels`.
    """
    try:
        return _load(path, as_name, key, count)
    except ValueError as error:
        raise ValueError(str(error).replace("--label-key", "--name-key").replace(" labels", " names")) from error


def _load(path: str | Path, convert: Callable[[object, int], str], key: str | None, count: int | None) -> list[str]:
    path = Path(path)
    with named_errors(path):
        suffix = check_file(path, [*ARRAYS, *TABLES])
        values = TABLES[suffix](path, key, count) if suffix in TABLES else _array_labels(path, suffix, key, count)
        labels = [convert(value, i + 1) for i, value in enumerate(values)]
        if not labels:
            raise ValueError("holds no labels")
        _check_count(len(labels), count)
        return labels


def name_array(
    path: str | Path, count: int, exclude: Sequence[str] = (), *, fits: Callable[[list[object]], bool] | None = None
) -> str | None:
    """The array of a file, or the column of a table, that looks like names or texts of `count` points.

    The first one of words of which nearly all differ, or that `fits`, without those to exclude; None if there is none.
    """
    path = Path(path)
    with named_errors(path):
        suffix = check_file(path, [*ARRAYS, *TABLES])
        entries = ARRAYS[suffix](path) if suffix in ARRAYS else []
        names = [entry.name for entry in entries if entry.discrete and entry.shape == (count,)]
        names += word_columns(path)
    for name in names:
        values = [] if name is None or name in exclude or name != one_line(name) else _sample(path, suffix, name)
        fitting = fits(values) if fits else nearly_unique([hash(value) for value in values])
        words = [value for value in values if value is not None]
        if words and isinstance(words[0], str) and fitting:
            return name
    return None


def label_arrays(path: str | Path, count: int) -> list[str]:
    """Names of the arrays, or of the columns beside one of lists, that look like labels of `count` points.

    They have one whole number or word for each point, and fewer distinct ones than ids would have.
    """
    path = Path(path)
    with named_errors(path):
        suffix = check_file(path, [*ARRAYS, *TABLES])
        entries = ARRAYS[suffix](path) if suffix in ARRAYS else []
        names = [entry.name for entry in entries if entry.discrete and entry.shape == (count,)]
        names += parquet_label_columns(path) if suffix == ".parquet" else []
    printable = [name for name in names if name is not None and name == one_line(name)]
    return [name for name in printable if _repeats(path, suffix, name)]


def _repeats(path: Path, suffix: str, name: str) -> bool:
    """Whether the first values of an array or column are not nearly unique; unreadable ones are no labels."""
    values = _sample(path, suffix, name)
    return bool(values) and not nearly_unique([hash(value) for value in values])  # texts may be long


def _sample(path: Path, suffix: str, name: str) -> list[object]:
    """The first values of an array or column; none of one that cannot be read."""
    try:
        values = TABLES[suffix](path, name, None) if suffix in TABLES else _array_labels(path, suffix, name, None)
        return list(islice(values, SAMPLED))
    except (ValueError, TypeError):
        return []


def _check_count(found: int, count: int | None) -> None:
    if count is not None and found != count:
        raise ValueError(f"expected {count} labels, one for each point, got {found}")


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode()
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def as_name(value: object, position: int) -> str:
    """A name of a point as text; empty where there is none."""
    return "" if value is None else _text(value)


def as_label(value: object, position: int) -> str:
    """A label as text; ValueError for one that is empty, too long, or neither a word nor a whole number."""
    if not isinstance(value, int | str | bytes) and not (isinstance(value, float) and value.is_integer()):
        raise ValueError(f"label {position} is {one_line(repr(value), 40)}, expected a whole number or a word")
    name = _text(value).strip()
    if not name:
        raise ValueError(f"label {position} is empty")
    if len(name) > MAX_CHARACTERS:
        raise ValueError(f"label {position} has {len(name)} characters, expected at most {MAX_CHARACTERS}")
    return name


def _array_labels(path: Path, suffix: str, key: str | None, count: int | None) -> Iterable[object]:
    entry = choose(ARRAYS[suffix](path), key, fits=_is_column, what="a 1-d array (N,)", option="--label-key")
    _check_count(entry.shape[0], count)
    check_fits(OBJECT_BYTES * entry.shape[0])
    values = entry.read()
    if not isinstance(values, Tensor) and values.dtype.kind not in "biufUS":
        raise ValueError(f"expected whole numbers or words, got dtype {values.dtype}")
    with parse_errors("an array of labels"):  # words may have letters beyond those of Unicode
        flat: list[object] = values.reshape(-1).tolist()
    return flat


def _is_column(shape: tuple[int, ...]) -> bool:
    return len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)


def _text_labels(path: Path, key: str | None, count: int | None) -> Iterable[object]:
    if key is not None:
        raise ValueError(f"a .txt file has no columns, so --label-key {key!r} does not apply")
    with path.open(encoding="utf-8-sig") as stream:
        cells = [line.removesuffix("\n") for line in bounded_lines(stream)]
    while len(cells) > max(1, count or 1) and not cells[-1]:  # the last of `count` names may be empty
        cells.pop()
    return cells


def _csv_labels(path: Path, key: str | None, count: int | None) -> Iterable[object]:
    rows = (cells for _, cells in csv_rows(path))
    head = [[cell.strip() for cell in cells] for cells in islice(rows, 2)]
    if not head:
        return []
    header = is_header(head[0], head[1] if len(head) > 1 else None)
    if header and len(head[0]) == 1:
        cells = _cells(chain(head, rows), 0)
        header = cells[0] == key or _has_header(cells, count)
        _column(cells[:1] if header else ["1"], key)
        return cells[header:]
    names = head[0] if header else [str(i + 1) for i in range(len(head[0]))]
    return _cells(chain(head[header:], rows), names.index(_column(names, key)))


def _cells(rows: Iterable[list[str]], column: int) -> list[str]:
    """One column; the others may be the embeddings and are not kept."""
    return [cells[column].strip() for cells in rows]


def _has_header(cells: list[str], count: int | None) -> bool:
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
    check_parquet_memory(file, [name], path, size=OBJECT_BYTES)
    return _parquet_values(path, name)


def _parquet_values(path: Path, name: str) -> Iterator[object]:
    """The values of a column, read a batch at a time; words stored once for all their rows stay so."""
    file = open_parquet(path)
    if str(file.schema_arrow.field(name).type) in ("string", "binary"):
        file = open_parquet(path, words=[name])
    for batch in parquet_batches(file, [name]):
        column = batch.column(name)
        if str(column.type).startswith("dictionary"):
            words = column.dictionary.to_pylist()
            yield from (None if place is None else words[place] for place in column.indices.to_pylist())
        else:
            yield from column.to_pylist()


TABLES: dict[str, Callable[[Path, str | None, int | None], Iterable[object]]] = {
    ".csv": _csv_labels,
    ".tsv": _csv_labels,
    ".txt": _text_labels,
    ".parquet": _parquet_labels,
}
