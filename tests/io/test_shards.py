"""Shards: every format gives the rows that were written, in the order of names, from any row on."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray

from ldreg.io import shards
from ldreg.io.shards import is_shards, open_shards

CUTS = [0, 1, 130, 140, 140, 333, 500]
Array = NDArray[Any]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_BLOCK_BYTES", 70 * 6 * 4)
    monkeypatch.setattr(shards, "BATCH_ROWS", 32)


@pytest.fixture
def rows() -> Array:
    return np.random.default_rng(0).normal(size=(CUTS[-1], 6)).astype(np.float32)


def write(folder: Path, kind: str, rows: Array) -> str:
    """Uneven shards of rows, one without any, with names and labels where the format has columns."""
    folder.mkdir()
    for i, (first, last) in enumerate(pairwise(CUTS)):
        part, path = rows[first:last], folder / f"part-{i}"
        if kind == "npy":
            np.save(path.with_suffix(".npy"), part)
            continue
        if kind == "columns":
            vectors: dict[str, Any] = {f"f{j}": part[:, j] for j in range(6)}
        elif i % 2:
            vectors = {"v": pa.array(list(part), pa.list_(pa.float32()))}
        else:
            vectors = {"v": pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), 6)}
        words = {"name": [f"row {j}" for j in range(first, last)], "y": np.arange(first, last) % 3}
        table = pa.table({"name": words["name"], **vectors, "y": words["y"]})
        if kind in ("parquet", "columns"):
            pq.write_table(table, path.with_suffix(".parquet"), row_group_size=50)
            continue
        new = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
        with pa.OSFile(str(path.with_suffix(".arrow")), "wb") as file, new(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=40)
    return str(folder)


@pytest.mark.parametrize("kind", ["npy", "parquet", "columns", "arrow", "stream"])
def test_every_format_has_the_rows_in_order(kind: str, rows: Array, tmp_path: Path) -> None:
    words: dict[str, Any] = {} if kind == "npy" else {"label_key": "y", "name_key": "name"}
    found = open_shards(write(tmp_path / "x", kind, rows), **words)
    assert (found.shape, found.dtype, len(found.shards)) == (rows.shape, torch.float32, 5)
    assert np.array_equal(found.load(), rows)
    for first, last in ((0, 500), (129, 141), (335, 499), (499, 500)):
        blocks = list(found.blocks(first, last))
        assert np.array_equal(torch.cat([block.rows for block in blocks]), rows[first:last])
        assert [block.start for block in blocks] == [first, *(block.stop for block in blocks[:-1])]
        assert max(len(block.rows) for block in blocks) <= 70
    if words:
        assert found.names(torch.tensor([0, 129, 130, 499])) == ["row 0", "row 129", "row 130", "row 499"]
        assert found.labels() == [str(i % 3) for i in range(500)]
    assert found.place(131) == f"row 1 of {tmp_path / 'x' / 'part-2'}{Path(found.shards[0].name).suffix}"
    found.left_out = torch.tensor([0, 139, 140, 141, 499])
    assert np.array_equal(found.load(), np.delete(rows, found.left_out, axis=0))


def test_patterns_urls_and_folders_are_the_same(rows: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    folder = write(tmp_path / "x", "npy", rows)
    (tmp_path / "x" / "_ignored.npy").write_bytes(b"")
    memory = fsspec.filesystem("memory")
    memory.put(folder + "/part-*.npy", "/x/")
    monkeypatch.chdir(tmp_path)
    paths = [folder, f"{folder}/part-*.npy", f"file://{folder}", "memory://x", "memory://x/part-*.npy", "x"]
    for path in paths:
        assert is_shards(path)
        assert np.array_equal(open_shards(path).load(), rows), path
    assert open_shards("x").shards[0].name == "x/part-0.npy"
    assert not is_shards("x/part-0.npy")


@pytest.mark.parametrize(
    ("dtype", "loaded"), [("f2", "float16"), (">f4", "float32"), ("u1", "float32"), ("i4", "float64")]
)
def test_numbers_are_floating(dtype: str, loaded: str, tmp_path: Path) -> None:
    x = np.arange(12).reshape(4, 3).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    found = open_shards(str(tmp_path))
    assert str(found.dtype) == f"torch.{loaded}"
    assert np.array_equal(found.load(), x)


def test_a_changed_file_changes_the_state(rows: Array, tmp_path: Path) -> None:
    folder = write(tmp_path / "x", "npy", rows)
    before = open_shards(folder).fingerprint
    assert open_shards(folder).fingerprint == before
    np.save(tmp_path / "x" / "part-5.npy", rows[333:] + 1)
    assert open_shards(folder).fingerprint != before


def bad(folder: Path) -> Iterator[tuple[str, str, dict[str, Any], str]]:
    x = np.ones((4, 3), np.float32)

    def shard(where: str, name: str, **columns: Any) -> None:
        (folder / where).mkdir(exist_ok=True)
        if name.endswith(".npy"):
            np.save(folder / where / name, columns["x"])
        else:
            pq.write_table(pa.table(columns), folder / where / name)

    lists = pa.array(list(x), pa.list_(pa.float32()))
    shard("width", "a.npy", x=x)
    shard("width", "b.npy", x=np.ones((4, 2)))
    yield "width", "b.npy", {}, "expected 3 dimensions"
    shard("columns", "a.parquet", v=lists)
    shard("columns", "b.parquet", w=lists)
    yield "columns", "b.parquet", {}, "expected columns 'v'"
    shard("labels", "a.parquet", v=lists, y=[1, 2, 3, 4])
    shard("labels", "b.parquet", v=lists)
    yield "labels", "b.parquet", {"label_key": "y"}, "'y'"
    shard("uneven", "a.parquet", v=lists)
    shard("uneven", "b.parquet", v=pa.array([[1.0], [1.0, 2.0]]))
    yield "uneven", "b.parquet", {}, "row 2"
    shard("cut", "a.npy", x=x)
    (folder / "cut" / "b.npy").write_bytes((folder / "cut" / "a.npy").read_bytes()[:-4])
    yield "cut", "b.npy", {}, "48 bytes, but 44"
    shard("noise", "a.parquet", v=lists)
    (folder / "noise" / "b.parquet").write_bytes(b"PAR1" + bytes(50))
    yield "noise", "b.parquet", {}, "cannot be read as a Parquet file"
    shard("text", "a.npy", x=np.array([["a"]]))
    yield "text", "a.npy", {}, "dtype"
    shard("key", "a.npy", x=x)
    yield "key", "", {"key": "v"}, "--key"
    shard("mixed", "a.npy", x=x)
    shard("mixed", "a.parquet", v=lists)
    yield "mixed", "", {}, "of one kind"
    shard("none", "a.npy", x=x[:0])
    yield "none", "", {}, "expected rows"


def test_what_is_wrong_is_named_before_the_work(tmp_path: Path) -> None:
    for where, name, options, message in bad(tmp_path):
        path = tmp_path / where
        with pytest.raises(ValueError, match=rf"^{re.escape(str(path / name))}: .*{re.escape(message)}"):
            open_shards(str(path), **options)


@pytest.mark.parametrize("path", ["empty", "absent/*.npy", "file:///absent"])
def test_no_shards_are_an_error_that_names_the_path(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    with pytest.raises(FileNotFoundError, match=rf"^{re.escape(path)}: expected shards"):
        open_shards(path)


def test_an_unknown_kind_of_url_is_named() -> None:
    with pytest.raises(ValueError, match=r"^nowhere://x: "):
        open_shards("nowhere://x")


def test_more_than_memory_is_refused_before_it_is_read(
    rows: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = open_shards(write(tmp_path / "x", "npy", rows))
    monkeypatch.setattr("ldreg.io.guard.free_bytes", lambda: 100)
    with pytest.raises(ValueError, match=r"does not fit into memory.*--sample"):
        found.load()
