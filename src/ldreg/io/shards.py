"""Embeddings in many files (Parquet, Arrow, .npy) as one matrix that is read in blocks and never held as a whole."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ldreg.extras import require
from ldreg.io.embeddings import HEADER_BYTES, npy_header
from ldreg.io.guard import check_file, check_fits, named_errors, parse_errors
from ldreg.io.labels import as_label, as_name
from ldreg.io.tables import BATCH_ROWS, VectorColumns, vector_columns
from ldreg.text import counted, listed, one_line

SUFFIXES = (".parquet", ".arrow", ".feather", ".npy")
_BLOCK_BYTES = 1 << 28  # of rows that are worked on at a time; up to three such blocks are in memory
_BUFFER = 1 << 20  # bytes of a Parquet column that are read at a time
_OF_A_RUN = "of a run folder, --model takes the encoder"
_KINDS = {".parquet": "a Parquet file", ".arrow": "an Arrow file", ".feather": "an Arrow file"}

# From the first row that is wanted to the rows of a shard from there on, a few thousand at a time.
_Read = Callable[[int], Iterator[NDArray[Any]]]


def is_shards(path: str) -> bool:
    """Whether embeddings at this path are read as shards: a folder, a pattern, a URL, or a file of Arrow.

    >>> is_shards("parts/*.npy"), is_shards("s3://bucket/parts"), is_shards("x.npy")
    (True, True, False)
    """
    file = Path(path)
    pattern = any(mark in path for mark in "*?[") and not file.exists()
    return "://" in path or pattern or file.is_dir() or file.suffix.lower() in (".arrow", ".feather")


@dataclass(frozen=True)
class Shard:
    """A file: its name, the number of its first row among those of all files, and how to read it."""

    name: str
    start: int
    rows: int
    read: _Read
    column: Callable[[str], Iterator[Any]]  # from the name of a column to its Arrow arrays, a few rows at a time

    @property
    def stop(self) -> int:
        """The number after that of its last row."""
        return self.start + self.rows


class Block(NamedTuple):
    """Rows (n, D), the number of the first, and the number in the files of the row after the last."""

    start: int
    rows: Tensor
    stop: int


class Shards:
    """The rows of all files in the order of their names, as a matrix (N, D) that is read in blocks.

    Only some rows are kept in memory, for `shards[rows]`. Rows can be left out; the others are then numbered as if
    they were all.

    Args:
        shards: the files, none without rows.
        width: D.
        dtype: of the rows in memory.
        label_key: the column with the labels.
        name_key: the column with the names.
        fingerprint: changes if a file changes.
    """

    device = torch.device("cpu")

    def __init__(
        self,
        shards: Sequence[Shard],
        width: int,
        dtype: torch.dtype,
        *,
        label_key: str | None = None,
        name_key: str | None = None,
        fingerprint: str = "",
    ) -> None:
        self.shards, self.width, self.dtype, self.fingerprint = shards, width, dtype, fingerprint
        self.label_key, self.name_key = label_key, name_key
        self.left_out = torch.empty(0, dtype=torch.int64)  # rows of the files, ascending
        self._kept_rows, self._kept = self.left_out, torch.empty(0, width, dtype=dtype)

    @property
    def rows(self) -> int:
        """Rows in the files, with those left out."""
        return self.shards[-1].stop

    @property
    def shape(self) -> tuple[int, int]:
        """(N, D)."""
        return self.rows - len(self.left_out), self.width

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Some of the rows that are kept."""
        return self._kept[torch.searchsorted(self._kept_rows, rows)]

    def keep(self, rows: Tensor, values: Tensor) -> None:
        """Keep the values (n, D) of some rows, ascending."""
        self._kept_rows, self._kept = rows, values

    def blocks(self, first: int = 0, last: int | None = None) -> Iterator[Block]:
        """Blocks of the rows of the files from `first` to `last`, without those left out, in order.

        The next block is read while one is used.
        """
        with ThreadPoolExecutor(1) as pool:
            blocks = self._blocks(first, self.rows if last is None else last)
            coming = pool.submit(next, blocks, None)
            while (block := coming.result()) is not None:
                coming = pool.submit(next, blocks, None)
                yield block

    def load(self) -> Tensor:
        """All rows (N, D). Raises ValueError where memory does not hold them."""
        try:
            check_fits(self.rows * self.width * self.dtype.itemsize)
        except ValueError as error:
            raise ValueError(
                f"{error}; sample=N (--sample N) measures N rows among all without holding them"
            ) from error
        whole = torch.empty(self.shape, dtype=self.dtype)
        for start, block, _ in self.blocks():
            whole[start : start + len(block)] = block
        return whole

    def labels(self, rows: Tensor | None = None) -> list[str] | None:
        """The labels of some rows of the files, ascending, or of all; None if no column was named for them."""
        return self._words(self.label_key, rows, as_label)

    def names(self, rows: Tensor | None = None) -> list[str] | None:
        """The names of some rows of the files, as `labels`."""
        return self._words(self.name_key, rows, as_name)

    def place(self, row: int) -> str:
        """The file that a row is in, and its number there."""
        shard = next(shard for shard in self.shards if row < shard.stop)
        return f"row {row - shard.start} of {shard.name}"

    def _words(self, key: str | None, rows: Tensor | None, convert: Callable[[object, int], str]) -> list[str] | None:
        if key is None:
            return None
        wanted = np.arange(self.rows) if rows is None else rows.numpy()
        found: list[str] = []
        for shard in self.shards:
            start = shard.start
            if not np.searchsorted(wanted, shard.start) < np.searchsorted(wanted, shard.stop):
                continue
            with named_errors(Path(shard.name)):
                for values in shard.column(key):
                    first, last = np.searchsorted(wanted, (start, start + len(values)))
                    some = values.take(wanted[first:last] - start).to_pylist() if last > first else []
                    found += [convert(value, start + i + 1) for i, value in zip(wanted[first:last], some, strict=True)]
                    start += len(values)
        return found

    def _blocks(self, first: int, last: int) -> Iterator[Block]:
        size = max(1, _BLOCK_BYTES // (self.width * self.dtype.itemsize))
        pieces, rest = self._pieces(first), np.empty((0, self.width))
        for start in range(first, last, size):
            stop = min(start + size, last)
            block = torch.empty(stop - start, self.width, dtype=self.dtype)
            target, done = block.numpy(), 0
            while done < len(block):
                if not len(rest):
                    rest = next(pieces)
                part, rest = rest[: len(block) - done], rest[len(block) - done :]
                target[done : done + len(part)] = part
                done += len(part)
            before, inside = torch.searchsorted(self.left_out, torch.tensor([start, stop])).tolist()
            if before < inside:
                keep = torch.ones(len(block), dtype=torch.bool)
                keep[self.left_out[before:inside] - start] = False
                block = block[keep]
            if len(block):
                yield Block(start - before, block, stop)

    def _pieces(self, first: int) -> Iterator[NDArray[Any]]:
        for shard in self.shards:
            if shard.stop <= first:
                continue
            done = skipped = max(0, first - shard.start)
            with named_errors(Path(shard.name)):
                for values in shard.read(skipped):
                    if values.shape[1] != self.width:
                        got = f"one of {values.shape[1]} from row {done} on"
                        raise ValueError(f"expected rows of {self.width} numbers, as in the other shards, got {got}")
                    done += len(values)
                    yield values
                if done != shard.rows:
                    raise ValueError(f"expected {shard.rows} rows by its header, got {done}")


def open_shards(
    path: str,
    *,
    key: str | None = None,
    label_key: str | None = None,
    name_key: str | None = None,
    exclude: Sequence[str] = (),
    include: Sequence[str] = (),
    empty_as_nan: bool = False,
) -> Shards:
    """Open the shards of a folder (with those in it), a pattern such as "parts/*.npy", or a URL that fsspec knows.

    The first rows of every shard are read, to refuse what does not fit before any work.

    Args:
        path: of .parquet, .arrow, .feather or .npy files, all of one kind.
        key: the column of lists with the embeddings. Default: the only one, else all columns of numbers.
        label_key: the column with the labels.
        name_key: the column with the names.
        exclude: columns that are no dimensions.
        include: columns that are dimensions although they do not look so.
        empty_as_nan: whether empty cells of a table are NaN; otherwise they are an error.

    Raises:
        OSError: there is no such folder or file.
        ValueError: anything else is wrong; one line that begins with the name of the path or shard.
        ModuleNotFoundError: fsspec or, for tables, pyarrow is not installed.
    """
    require("shards")
    files, names = _files(path)
    suffix = Path(names[0]).suffix.lower()
    if suffix == ".npy":
        named = {"key": key, "label-key": label_key, "name-key": name_key, "exclude": exclude, "include": include}
        for option, value in named.items():
            if value:
                raise ValueError(f"{path}: .npy shards have no columns, so --{option} does not apply, got {value!r}")
    else:
        require("parquet")
    words = [name for name in dict.fromkeys((label_key, name_key)) if name is not None and name not in exclude]
    fingerprint = sha256(repr((key, exclude, include, empty_as_nan)).encode())
    shards, dtypes, start = list[Shard](), list[np.dtype[Any]](), 0
    known: tuple[list[str], int] | None = None  # columns and width of the first shard
    for name in names:
        with named_errors(Path(name)):
            if _is_local(files):
                check_file(Path(name), SUFFIXES)
            if suffix == ".npy":
                rows, dtype, read, column = _npy(files, name)
                columns, check = list[str](), None
            else:
                rows, schema = _table(files, name, suffix)
                vectors = vector_columns(schema, key, [*exclude, *words], include, empty_as_nan)
                columns, dtype, check = vectors.names, vectors.dtype, vectors.check
                read = partial(_vectors, files, name, suffix, vectors)
                column = partial(_column, files, name, suffix)
            if rows == 0:
                continue
            first = next(read(0))
            if known is None:
                known = columns, first.shape[1]
                if check is not None:
                    check(first, include)
            if columns != known[0]:
                raise ValueError(f"expected columns {listed(known[0])}, as in {shards[0].name}, got {listed(columns)}")
            if first.shape[1] != known[1]:
                raise ValueError(f"expected {known[1]} dimensions, as in {shards[0].name}, got {first.shape[1]}")
            dtypes.append(dtype)
            fingerprint.update(f"{name} {rows} {files.ukey(name)}".encode())
        shards.append(Shard(name, start, rows, read, column))
        start += rows
    if known is None:
        raise ValueError(f"{path}: expected rows, got {len(names)} shards without any")
    held = _floating(np.result_type(*dtypes))
    return Shards(shards, known[1], held, label_key=label_key, name_key=name_key, fingerprint=fingerprint.hexdigest())


def _floating(dtype: np.dtype[Any]) -> torch.dtype:
    """The floating dtype that holds numbers of a dtype."""
    if dtype.kind == "f" and dtype.itemsize <= 8:
        return torch.from_numpy(np.empty(0, dtype.newbyteorder("="))).dtype
    return torch.float64 if dtype.itemsize >= 4 else torch.float32


# Where files are


def _files(path: str) -> tuple[Any, list[str]]:
    """The file system of a path, and the names of its shards, sorted; all have one suffix."""
    import fsspec

    try:
        files, root = fsspec.core.url_to_fs(path)
        folder = files.isdir(root)
        listed_files = files.find(root) if folder else [root] if files.exists(root) else files.glob(root)
    except Exception as error:  # each kind of URL fails in its own ways
        if "://" not in path:
            raise
        raise ValueError(f"{path}: {one_line(str(error), 200) or type(error).__name__}") from error
    found = [
        name
        for name in listed_files
        if not folder or not any(part.startswith((".", "_")) for part in name[len(root) :].strip("/").split("/"))
    ]
    names = sorted(name for name in found if name.lower().endswith(SUFFIXES))
    if not names:
        got = f"got {counted(len(found), 'other file')}" if found else "got none"
        hint = f"; {_OF_A_RUN}" if folder else ""
        raise FileNotFoundError(f"{path}: expected shards ({', '.join(SUFFIXES)}), {got}{hint}")
    if len(kinds := {Path(name).suffix.lower() for name in names}) > 1:
        raise ValueError(f"{path}: expected shards of one kind, got {' and '.join(sorted(kinds))}")
    if _is_local(files) and not ("://" in path or Path(path).is_absolute()):
        names = [os.path.relpath(name) for name in names]
    return files, names


def local_files(path: str) -> list[str]:
    """The folder and files of this machine that shards are read from.

    >>> local_files("memory://parts")
    []
    """
    if "://" in path and not path.startswith(("file://", "local://")):
        return []
    require("shards")
    files, names = _files(path)
    root = path.partition("://")[2] or path
    return [*names, *([root] if files.isdir(root) else [])]


def _is_local(files: Any) -> bool:
    return "file" in files.protocol


# .npy


def _npy(files: Any, name: str) -> tuple[int, np.dtype[Any], _Read, Callable[[str], Iterator[Any]]]:
    """Rows, dtype and readers of a .npy file; unlike a mapped file, it takes no more memory as it is read."""
    with files.open(name, "rb") as stream:
        start = BytesIO(stream.read(HEADER_BYTES))
    shape, fortran, dtype = npy_header(start, files.size(name))
    if len(shape) != 2 or shape[1] == 0:
        raise ValueError(f"expected a 2-d array (N, D), got shape {shape}")
    if dtype.kind not in "fiub" or dtype.itemsize > 8:
        raise ValueError(f"expected real numbers of at most 64 bits, got dtype {dtype}")
    if fortran and min(shape) > 1:
        raise ValueError(
            "expected rows one after another, got columns (Fortran order); save it with np.ascontiguousarray"
        )
    width, offset = dtype.itemsize * shape[1], start.tell()

    def read(first: int) -> Iterator[NDArray[Any]]:
        with files.open(name, "rb") as stream:
            stream.seek(offset + first * width)
            for row in range(first, shape[0], BATCH_ROWS):
                data = stream.read(width * min(BATCH_ROWS, shape[0] - row))
                if len(data) % width:
                    raise ValueError(f"expected {shape[0]} rows, got fewer")
                yield np.frombuffer(data, dtype).reshape(-1, shape[1])

    def column(key: str) -> Iterator[Any]:
        raise ValueError(f"a .npy file has no column {key!r}")

    return shape[0], dtype, read, column


# Parquet and Arrow


def _source(files: Any, name: str) -> Any:
    """A file for pyarrow, not mapped, so that memory holds a batch at a time."""
    import pyarrow

    return pyarrow.OSFile(name) if _is_local(files) else files.open(name, "rb")


def _table(files: Any, name: str, suffix: str) -> tuple[int, Any]:
    """Rows and schema of a table."""
    from pyarrow import dataset, parquet

    with parse_errors(_KINDS[suffix]), _source(files, name) as source:
        if suffix == ".parquet":
            file = parquet.ParquetFile(source)
            return file.metadata.num_rows, file.schema_arrow
        reader, stream = _reader(source)
        if stream:
            return sum(len(batch) for batch in reader), reader.schema
        return dataset.dataset(name, format="ipc", filesystem=files).count_rows(), reader.schema


def _reader(source: Any, columns: Sequence[str] | None = None) -> tuple[Any, bool]:
    """The reader of an Arrow file or stream, of some columns, and whether it is of a stream."""
    import pyarrow

    start = bytes(source.read(6))
    source.seek(0)
    stream = start != b"ARROW1"
    opened = pyarrow.ipc.open_stream if stream else pyarrow.ipc.open_file
    reader = opened(source)
    if columns is None:
        return reader, stream
    places = [reader.schema.get_field_index(name) for name in columns]
    source.seek(0)
    return opened(source, options=pyarrow.ipc.IpcReadOptions(included_fields=places)), stream


def _batches(files: Any, name: str, suffix: str, columns: Sequence[str], first: int = 0) -> Iterator[Any]:
    """Batches of some columns of a table, from row `first` on."""
    with _source(files, name) as source:
        with parse_errors(_KINDS[suffix]):
            if suffix == ".parquet":
                batches, row = _parquet_from(source, columns, first)
            else:
                reader, stream = _reader(source, columns)
                batches = reader if stream else map(reader.get_batch, range(reader.num_record_batches))
                batches, row = iter(batches), 0
        while True:
            with parse_errors(_KINDS[suffix]):
                batch = next(batches, None)
            if batch is None:
                return
            row += len(batch)
            if row > first and len(batch):
                yield batch if row - len(batch) >= first else batch.slice(len(batch) - (row - first))


def _parquet_from(source: Any, columns: Sequence[str], first: int) -> tuple[Iterator[Any], int]:
    """Batches from the group of rows on that a row is in, and the first row of that group."""
    from pyarrow import parquet

    file = parquet.ParquetFile(source, buffer_size=_BUFFER, pre_buffer=False)
    starts = np.cumsum([0, *(file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups))])
    group = int(np.searchsorted(starts, first, "right")) - 1
    groups = list(range(group, len(starts) - 1))
    return file.iter_batches(batch_size=BATCH_ROWS, row_groups=groups, columns=list(columns)), int(starts[group])


def _vectors(files: Any, name: str, suffix: str, columns: VectorColumns, first: int) -> Iterator[NDArray[Any]]:
    for batch in _batches(files, name, suffix, columns.names, first):
        values = columns.block([batch.column(one) for one in columns.names], columns.names, first)
        first += len(values)
        yield values


def _column(files: Any, name: str, suffix: str, key: str) -> Iterator[Any]:
    return (batch.column(key) for batch in _batches(files, name, suffix, [key]))
