import json
import os
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from ldreg.io.embeddings import load_embeddings
from ldreg.io.labels import load_labels, load_names, name_array

Write = Callable[[Path, NDArray[Any]], None]


def table() -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)


def refused(load: Callable[[], object], path: Path, *words: str, error: type[Exception] = ValueError) -> None:
    """The call fails with one line that begins with the file's name and has all the words."""
    with pytest.raises(error) as caught:
        load()
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert message.isprintable()
    for word in words:
        assert word in message


def refuse(path: Path, *words: str, error: type[Exception] = ValueError, **options: Any) -> None:
    refused(lambda: load_embeddings(path, **options), path, *words, error=error)


def refuse_labels(path: Path, *words: str, **options: Any) -> None:
    refused(lambda: load_labels(path, **options), path, *words)


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def parquet(path: Path, columns: dict[str, Any]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path)
    return path


def npy_bytes(header: str, data: bytes = b"") -> bytes:
    text = header.encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


# Formats and dtypes


def write_parquet_columns(path: Path, x: NDArray[Any]) -> None:
    parquet(path, {f"x{j}": x[:, j] for j in range(x.shape[1])})


def write_parquet_list(path: Path, x: NDArray[Any]) -> None:
    parquet(path, {"id": list(range(len(x))), "text": ["t"] * len(x), "embedding": list(x)})


def write_npy(path: Path, x: NDArray[Any]) -> None:
    with path.open("wb") as stream:  # np.save would add .npy to another suffix
        np.save(stream, x)


WRITERS: dict[str, tuple[str, Write]] = {
    "npy": ("x.npy", lambda p, x: np.save(p, x)),
    "npy upper case": ("X.NPY", write_npy),
    "npy fortran": ("x.npy", lambda p, x: np.save(p, np.asfortranarray(x))),
    "npy big endian": ("x.npy", lambda p, x: np.save(p, x.astype(">f4"))),
    "npz": ("x.npz", lambda p, x: np.savez(p, x=x, labels=np.arange(len(x)))),
    "npz compressed": ("x.npz", lambda p, x: np.savez_compressed(p, x=x)),
    "pt": ("x.pt", lambda p, x: torch.save(torch.from_numpy(x), p)),
    "pt dict": ("x.pth", lambda p, x: torch.save({"x": torch.from_numpy(x), "y": torch.arange(len(x)), "n": 3}, p)),
    "pt parameter": ("x.pt", lambda p, x: torch.save(torch.nn.Parameter(torch.from_numpy(x)), p)),
    "pt legacy": ("x.pt", lambda p, x: torch.save(torch.from_numpy(x), p, _use_new_zipfile_serialization=False)),
    "safetensors": ("x.safetensors", lambda p, x: save_file({"x": torch.from_numpy(x), "y": torch.ones(7)}, p)),
    "csv": ("x.csv", lambda p, x: np.savetxt(p, x, delimiter=",")),
    "csv header": ("x.csv", lambda p, x: np.savetxt(p, x, delimiter=",", header="a,b,c", comments="")),
    "tsv": ("x.tsv", lambda p, x: np.savetxt(p, x, delimiter="\t")),
    "parquet columns": ("x.parquet", write_parquet_columns),
    "parquet list": ("x.parquet", write_parquet_list),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_back_what_was_written(name: str, tmp_path: Path) -> None:
    file, write = WRITERS[name]
    write(tmp_path / file, table())
    content = (tmp_path / file).read_bytes()
    x = load_embeddings(tmp_path / file)
    assert x.dtype == (torch.float64 if name in ("csv", "csv header", "tsv") else torch.float32)
    assert not x.requires_grad
    assert torch.equal(x.float(), torch.from_numpy(table()))
    x.zero_()  # the memory may be written to, the file stays as it was
    assert (tmp_path / file).read_bytes() == content


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", ["npy", "parquet columns", "pt", "safetensors"])
def test_floats_keep_their_dtype(dtype: str, name: str, tmp_path: Path) -> None:
    file, write = WRITERS[name]
    write(tmp_path / file, x := table().astype(dtype))
    assert torch.equal(load_embeddings(tmp_path / file), torch.from_numpy(x))


@pytest.mark.parametrize("dtype", ["?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", ">i4"])
def test_integers_become_float32(dtype: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[0, 1], [1, 0]], dtype=dtype))
    x = load_embeddings(str(tmp_path / "x.npy"))
    assert x.dtype == torch.float32
    assert x.tolist() == [[0, 1], [1, 0]]


def test_bfloat16_stays(tmp_path: Path) -> None:
    x = torch.from_numpy(table()).bfloat16()
    torch.save(x, tmp_path / "x.pt")
    save_file({"x": x}, tmp_path / "x.safetensors")
    for file in ("x.pt", "x.safetensors"):
        assert load_embeddings(tmp_path / file).dtype == x.dtype
        assert torch.equal(load_embeddings(tmp_path / file), x)


def test_nan_and_inf_in_arrays_are_left_to_the_caller(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[np.nan, np.inf]]))
    assert load_embeddings(tmp_path / "x.npy").isfinite().tolist() == [[False, False]]


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_versions(version: tuple[int, int], tmp_path: Path) -> None:
    with (tmp_path / "x.npy").open("wb") as stream:
        np.lib.format.write_array(stream, table(), version=version)
    assert torch.equal(load_embeddings(tmp_path / "x.npy"), torch.from_numpy(table()))
    content = (tmp_path / "x.npy").read_bytes()
    for unknown in (b"\x04\x00", b"\x01\x01", b"\x00\x00"):
        refuse(written(tmp_path / "x.npy", content[:6] + unknown + content[8:]), ".npy array")


@pytest.mark.skipif(sys.platform != "linux", reason="reads the process's memory figures from /proc")
@pytest.mark.parametrize("name", ["npy", "pt", "safetensors"])
def test_arrays_are_memory_mapped(name: str, tmp_path: Path) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    file, write = WRITERS[name]
    write(tmp_path / file, np.ones((16384, 1024), np.float32))  # 64 MiB
    load_embeddings(tmp_path / file)  # whatever is imported or allocated once
    before = resident()
    loaded = load_embeddings(tmp_path / file)
    assert resident() - before < 16 << 20
    assert loaded[16383, 1023] == 1


def test_transposed_and_recompressed_torch_files(tmp_path: Path) -> None:
    x = torch.from_numpy(table())
    torch.save(x.T, tmp_path / "x.pt")
    assert torch.equal(load_embeddings(tmp_path / "x.pt"), x.T)
    # torch itself, memory-mapping, takes the compressed bytes for the values.
    with zipfile.ZipFile(tmp_path / "x.pt") as source, zipfile.ZipFile(tmp_path / "c.pt", "w", 8) as target:
        for info in source.infolist():
            target.writestr(info.filename, source.read(info))
    assert torch.equal(load_embeddings(tmp_path / "c.pt"), x.T)


# Several arrays in one file


def save_several(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    if path.suffix == ".npz":
        np.savez(path, allow_pickle=False, **arrays)
    elif path.suffix == ".pt":
        torch.save(tensors, path)
    else:
        save_file(tensors, path)


@pytest.mark.parametrize("suffix", [".npz", ".pt", ".safetensors"])
def test_choice_of_an_array(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    save_several(path, {"train": table(), "test": table()[:2], "y": np.arange(7), "images": np.ones((2, 2, 2))})
    assert load_embeddings(path, key="test").shape == (2, 3)
    assert load_embeddings(path, key="train").shape == (7, 3)
    refuse(path, "'train' of shape (7, 3)", "'test' of shape (2, 3)", "--key NAME")
    refuse(path, "'nope'", "'train' of shape (7, 3)", "'y' of shape (7,)", key="nope")
    refuse(path, "2-d", "'y' of shape (7,)", key="y")
    save_several(path, {"y": np.arange(7), "images": np.ones((2, 2, 2))})
    refuse(path, "2-d", "'y' of shape (7,)", "'images' of shape (2, 2, 2)")


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_state_dict_is_not_taken_for_embeddings(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    save_several(path, {"conv.weight": np.ones((2, 2, 2)), "fc.weight": np.ones((7, 3)), "fc.bias": np.ones(7)})
    refuse(path, "holds the weights of a model ('fc.weight')", "ldreg evaluate dimension")
    assert load_embeddings(path, key="fc.weight").shape == (7, 3)
    save_several(path, {"conv.weight": np.ones((2, 2, 2)), "features": np.ones((7, 3))})
    assert load_embeddings(path).shape == (7, 3)


def test_options_that_do_not_apply_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", table())
    torch.save(torch.ones(2, 2), tmp_path / "x.pt")
    written(tmp_path / "x.csv", "1,2\n")
    for file in ("x.npy", "x.pt", "x.csv"):
        refuse(tmp_path / file, "--key 'x' does not apply", key="x")
    for option in ("exclude", "include"):
        wrong: dict[str, Any] = {option: "label"}
        with pytest.raises(ValueError, match=f"^{option} must be a sequence"):
            load_embeddings(tmp_path / "x.csv", **wrong)
        wrong[option] = ["x"]
        refuse(tmp_path / "x.npy", f"--{option}", **wrong)


# Files that cannot be embeddings


def test_missing_directory_unknown_suffix_empty(tmp_path: Path) -> None:
    refuse(tmp_path / "none.npy", "No such file", error=FileNotFoundError)
    (tmp_path / "folder.npy").mkdir()
    refuse(tmp_path / "folder.npy", "is a directory", error=IsADirectoryError)
    refuse(written(tmp_path / "x.mat", b"x"), "'.mat'", ".npy .npz .pt .pth .safetensors .csv .tsv .parquet")
    refuse(written(tmp_path / "x.txt", b"x"), "'.txt'")
    for suffix in ("npy", "npz", "pt", "safetensors", "csv", "parquet"):
        refuse(written(tmp_path / f"x.{suffix}", b""), "is empty (0 bytes)")
    os.mkfifo(tmp_path / "pipe.npy")
    refuse(tmp_path / "pipe.npy", "not a regular file")


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    np.save(tmp_path / "x.npy", table())
    monkeypatch.setattr(Path, "open", denied)  # file modes do not stop root
    refuse(tmp_path / "x.npy", "Permission denied", error=PermissionError)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4), (0, 3), (3, 0)])
def test_wrong_shapes(shape: tuple[int, ...], tmp_path: Path) -> None:
    x = torch.zeros(shape)
    np.save(tmp_path / "x.npy", x.numpy())
    np.savez(tmp_path / "x.npz", x=x.numpy())
    torch.save(x, tmp_path / "x.pt")
    save_file({"x": x}, tmp_path / "x.safetensors")
    for file in ("x.npy", "x.npz", "x.pt", "x.safetensors"):
        refuse(tmp_path / file, f"shape {shape}")


@pytest.mark.parametrize("name", WRITERS)
def test_content_of_another_format(name: str, tmp_path: Path) -> None:
    file, write = WRITERS[name]
    write(tmp_path / file, table())
    own = {".pth": ".pt", ".tsv": ".csv"}.get(Path(file).suffix.lower(), Path(file).suffix.lower())
    for suffix in (".npy", ".npz", ".pt", ".safetensors", ".csv", ".parquet"):
        if suffix != own:
            refuse(written(tmp_path / f"other{suffix}", (tmp_path / file).read_bytes()), f"not a {suffix} file")


def test_truncated_files(tmp_path: Path) -> None:
    for name in ("npy", "npz", "pt", "pt legacy", "safetensors", "parquet columns", "parquet list"):
        file, write = WRITERS[name]
        write(tmp_path / file, table())
        content = (tmp_path / file).read_bytes()
        for size in (9, len(content) // 2, len(content) - 1):
            refuse(written(tmp_path / file, content[:size]))


def test_dtypes_that_are_no_real_numbers(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    for dtype in ("complex64", "datetime64[s]", "U3", "S3", "longdouble"):
        np.save(path, np.zeros((2, 2), dtype=dtype))
        refuse(path, "real numbers")
    np.save(path, np.zeros((2, 2), dtype=[("a", "f4"), ("b", "f4")]))
    refuse(path, "structured", "'a', 'b'")
    np.save(path, np.zeros((2, 2), dtype="V2"))
    refuse(path, "raw dtype", "bfloat16")
    torch.save(torch.zeros(2, 2, dtype=torch.complex64), tmp_path / "x.pt")
    refuse(tmp_path / "x.pt", "torch.complex64")
    save_file({"x": torch.zeros(2, 2).to(torch.float8_e5m2)}, tmp_path / "x.safetensors")
    refuse(tmp_path / "x.safetensors", "torch.float8_e5m2")


@pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # as torch 2.11 says of every sparse tensor
def test_torch_files_of_other_things(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    for content, words in (
        ([torch.ones(2, 2)], "got list"),
        ({"state_dict": {"w": torch.ones(2, 2)}}, "flat dict of tensors, got a dict of 'state_dict'; ldreg evaluate"),
        (3, "got int"),
        (torch.ones(1).expand(1000, 1000), "expanded view of shape (1000, 1000)"),
        (torch.eye(2).to_sparse(), "layout torch.sparse_coo"),
    ):
        torch.save(content, path)
        refuse(path, words)


@pytest.mark.parametrize(
    "header",
    [
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**90}, 2)}}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (True, 2)}",
        "{'descr': '|S0', 'fortran_order': False, 'shape': (3, 2)}",
        f"{{'descr': '|S0', 'fortran_order': False, 'shape': ({10**30}, 2)}}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': 2}",
        "{'descr': 'nonsense', 'fortran_order': False, 'shape': (2, 1)}",
        "{'descr': '<f4', 'fortran_order': False}",
        "__import__('os').abort()",
        "(" * 5000,
    ],
)
def test_absurd_npy_headers(header: str, tmp_path: Path) -> None:
    content = npy_bytes(header, b"\0" * 8)
    refuse(written(tmp_path / "x.npy", content))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", content)
    refuse(tmp_path / "x.npz")


# Code in a file is not run


# CSV


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("1,2\n3,4\n", [[1, 2], [3, 4]]),
        ("1,2\r\n3,4", [[1, 2], [3, 4]]),
        ("\ufeff1,2\n3,4\n\n\n", [[1, 2], [3, 4]]),
        ("a;b\n1;2\n", [[1, 2]]),
        ("a\tb\n1\t2\n", [[1, 2]]),
        ('"a,x";"b;y"\n"1";"-2e3"\n', [[1, -2000]]),
        (' "a", "b"\n 1, "2"\n', [[1, 2]]),
        ("x\n1\n2\n", [[1], [2]]),
        ("5\n6\n", [[5], [6]]),
        ("0,1,2\n5,6,7\n", [[5, 6, 7]]),  # the column numbers that pandas writes
        ("0,1\n0.5,6\n", [[0.5, 6]]),
        ("0,1\n5,6\n", [[0, 1], [5, 6]]),
        ("1,2,3\n5,6,7\n", [[5, 6, 7]]),
        ("1,2\n0.5,6\n", [[0.5, 6]]),
        ("1,2\n5,6\n", [[1, 2], [5, 6]]),
        ("2,3,4\n5,6,7\n", [[2, 3, 4], [5, 6, 7]]),
        ("1,2,4\n5,6,7\n", [[1, 2, 4], [5, 6, 7]]),
        ("1e999,2,-inf\n", [[float("inf"), 2, -float("inf")]]),
    ],
)
def test_csv_dialects(content: str, expected: list[list[float]], tmp_path: Path) -> None:
    assert load_embeddings(written(tmp_path / "x.csv", content)).tolist() == expected


def test_csv_keeps_float64_digits(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((4, 5)) + 1e6
    np.savetxt(tmp_path / "x.csv", x, delimiter=",", fmt="%.17g")
    assert np.array_equal(load_embeddings(tmp_path / "x.csv").numpy(), x)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("1,2\n3,nan\n", ["line 2", "column '2'", "'nan'"]),
        ("a,b,c\ninf,-inf,nan\n", ["line 2", "column 'c'"]),
        ("a,b\n1,2\n,3\n", ["line 3", "column 'a'", "''"]),
        ("a,b\n1,2\n3,1_000\n", ["line 3", "column 'b'", "'1_000'"]),
        ("1.5,abc\n3,4\n", ["line 1", "column '2'", "'abc'"]),
        ("name,kind\na,cat\n", ["columns of numbers", "'name', 'kind'"]),
        ("x,kind\n1,2\n3,cat\n", ["line 3", "column 'kind'", "'cat'", "--exclude 'kind'"]),
        ("1,2,3\n4,5,6\n7,8\n", ["line 3 has 2 cells", "3"]),
        ("1,2\n3,4,5\n", ["line 2 has 3 cells", "2"]),
        ("1,2\n\n3,4\n", ["line 2 is blank"]),
        ("a,b\n", ["no rows"]),
        ("\n\n", ["no rows"]),
        ("a,a\n1,2\n", ["several columns", "'a'"]),
        ("1,5;2,5\n3;4\n", ["line 1", "column '1'", "'1,5'"]),
        ("id,x,kind,label\n1,2,cat,3\n2,3,4,3\n", ["line 2", "column 'kind'", "--exclude 'kind','id','label'"]),
        (",0,1\n0,0.5,0.6\n", ["row numbers", "--exclude ''"]),
        ('a,b\n1,"2\n', ["line 2"]),
        ('"a\n\nb",c\n1,2,3\n', ["line 4"]),
        ("1 2 3\n4 5 6\n", ["line 1", "'1 2 3' is not a number"]),
        (b"1,2\n3,\xff\n", ["not UTF-8", "0xff"]),
        ("1,2\n3,4".encode("utf-16"), ["not a .csv file"]),
        (b"1" * 200_000 + b"\n", ["line 1", "limit"]),
    ],
)
def test_csv_faults_are_named(content: str | bytes, words: list[str], tmp_path: Path) -> None:
    refuse(written(tmp_path / "x.csv", content), *words)


def test_csv_columns_left_out(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", ",a,label,b\n0,1.5,cat,2\n1,3,dog,4\n")
    assert load_embeddings(path, exclude=["", "label"]).tolist() == [[1.5, 2], [3, 4]]
    refuse(path, "holds no column 'nope'", "'a', 'label', 'b'", exclude=["nope"])
    refuse(path, "leaves no column", exclude=["", "a", "b", "label"])
    assert load_labels(path, key="label") == ["cat", "dog"]
    rows = zip(range(60), *features().values(), strict=True)
    counted = written(tmp_path / "n.csv", "".join(",".join(map(str, row)) + "\n" for row in rows))
    refuse(counted, "row numbers ('1')", "--exclude '1'")
    assert load_embeddings(counted, exclude=["1"]).shape == (60, 3)
    headless = written(tmp_path / "y.csv", "0.5,cat\n1.5,dog\n")
    assert load_embeddings(headless, exclude=["2"]).tolist() == [[0.5], [1.5]]
    assert load_labels(headless, key="2") == ["cat", "dog"]


# Parquet


def test_parquet_lists_of_every_kind(tmp_path: Path) -> None:
    import pyarrow as pa

    rows = np.asarray(table().tolist(), dtype=np.float16)
    for kind in (pa.list_(pa.float32()), pa.list_(pa.float64(), 3), pa.large_list(pa.float16()), pa.list_(pa.int16())):
        path = parquet(tmp_path / "x.parquet", {"e": pa.array([list(row) for row in rows], type=kind, safe=False)})
        x = load_embeddings(path)
        whole = kind.value_type == pa.int16()
        assert torch.equal(x.double(), torch.tensor(rows).double().trunc() if whole else torch.tensor(rows).double())
        assert x.element_size() * 8 == (32 if whole else kind.value_type.bit_width)


def test_parquet_in_several_batches_and_row_groups(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    x = np.random.default_rng(0).standard_normal((10_000, 3)).astype(np.float32)
    for columns in ({"e": list(x)}, {f"a.{j}": x[:, j] for j in range(3)}):
        pq.write_table(pa.table(columns), tmp_path / "x.parquet", row_group_size=3000)
        assert torch.equal(load_embeddings(tmp_path / "x.parquet"), torch.from_numpy(x))


def test_parquet_choice_of_columns(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    parquet(path, {"a": [[1.0], [2.0]], "b": [[3.0], [4.0]], "y": ["cat", "dog"], "n": [1, 2]})
    refuse(path, "several columns of lists", "'a', 'b'", "--key NAME")
    assert load_embeddings(path, key="b").tolist() == [[3], [4]]
    assert load_embeddings(path, exclude=["b"]).tolist() == [[1], [2]]
    refuse(path, "no column 'nope'", "'a', 'b', 'y', 'n'", key="nope")
    refuse(path, "column 'n'", "int64", "lists", key="n")
    refuse(path, "column 'y'", "string", exclude=["a", "b"], include=["y"])
    assert load_embeddings(path, exclude=["a", "b"]).tolist() == [[1], [2]]  # words are no dimensions
    refuse(path, "--include 'n' does not apply", key="a", include=["n"])
    assert load_embeddings(path, exclude=["a", "b", "y"]).tolist() == [[1], [2]]
    assert load_labels(path, key="y") == ["cat", "dog"]
    parquet(path, {"x": [1.5], "n": [2]})
    assert load_embeddings(path).tolist() == [[1.5, 2]]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"x": [1.0, None], "y": [1.0, 2.0]}, ["column 'x'", "row 2"]),
        ({"e": [[1.0], [1.0, 2.0]]}, ["column 'e'", "row 2", "a list of 2"]),
        ({"e": [[1.0], None]}, ["column 'e'", "row 2", "no list"]),
        ({"e": [[1.0, 2.0], [1.0, 2.0], [1.0, None]]}, ["column 'e'", "row 3"]),
        ({"e": [[]]}, ["column 'e'", "null"]),
        ({"e": [[1.0]] * 4096 + [[1.0, 2.0]]}, ["row 4097", "a list of 2"]),
        ({"e": [[[1.0]]]}, ["column 'e'", "list<"]),
        ({"e": [["a"]]}, ["column 'e'", "string"]),
        ({"flag": [True]}, ["column 'flag'", "bool"]),
        ({"x": [1.0], "__index_level_0__": [3]}, ["row numbers", "--exclude '__index_level_0__'"]),
        ({"id": [1], "name": ["a"], "flag": [True]}, ["column 'flag'", "bool", "--exclude 'flag','id'"]),
        ({"name": ["a"], "kind": ["b"]}, ["columns of numbers", "'name', 'kind'"]),
        ({"x": np.zeros(0)}, ["no rows"]),
        ({}, ["no columns"]),
    ],
)
def test_parquet_faults_are_named(columns: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    refuse(parquet(tmp_path / "x.parquet", columns), *words)


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = parquet(tmp_path / "x.parquet", {"x": [1.0]})
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    refuse(path, "pip install 'ldreg[parquet]'")
    refuse_labels(path, "pip install 'ldreg[parquet]'")


# Labels


def test_labels_of_array_files(tmp_path: Path) -> None:
    y = np.array([3, 0, 12])
    for name, array in {"y": y.astype(">i8"), "float": y.astype(float), "column": y[:, None]}.items():
        np.save(tmp_path / f"{name}.npy", array)
    torch.save(torch.from_numpy(y), tmp_path / "bare.pt")
    for suffix in (".npz", ".pt", ".safetensors"):
        save_several(tmp_path / f"y{suffix}", {"x": np.ones((3, 2)), "y": y})
    for path in tmp_path.iterdir():
        assert load_labels(path) == load_labels(path, count=3) == ["3", "0", "12"]
        refuse_labels(path, "expected 4 labels", "got 3", count=4)
    assert load_labels(tmp_path / "y.npz", key="y") == ["3", "0", "12"]


def test_labels_that_are_words(tmp_path: Path) -> None:
    np.save(tmp_path / "u.npy", np.array(["cat", "häst"]))
    np.save(tmp_path / "s.npy", np.array([b"cat", "häst".encode()]))
    written(tmp_path / "y.txt", "\ufeffcat\r\nhäst\r\n")
    written(tmp_path / "y.csv", "cat\nhäst\ncat\nhäst\n")
    parquet(tmp_path / "y.parquet", {"y": ["cat", "häst"]})
    for file in ("u.npy", "s.npy", "y.txt", "y.parquet"):
        assert load_labels(tmp_path / file) == ["cat", "häst"]
    assert load_labels(tmp_path / "y.csv") == ["cat", "häst", "cat", "häst"]


def test_labels_of_a_dictionary_encoded_parquet(tmp_path: Path) -> None:
    import pyarrow as pa

    path = parquet(tmp_path / "y.parquet", {"y": pa.array(["b", "a", "b"]).dictionary_encode(), "n": [1, 2, 3]})
    assert load_labels(path, key="y") == ["b", "a", "b"]
    assert load_labels(path, key="n") == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("content", "count", "expected"),
    [
        ("label\ncat\ndog\n", None, ["cat", "dog"]),
        ("Class\n3\n4\n", None, ["3", "4"]),
        ("species\n3\n4\n", None, ["3", "4"]),
        ("species\ncat\n", None, ["species", "cat"]),
        ("species\ncat\n", 1, ["cat"]),
        ("species\ncat\n", 2, ["species", "cat"]),
        ("label\ncat\n", 2, ["label", "cat"]),
        ("0\n1\n2\n", None, ["0", "1", "2"]),
        ('"cat, big"\n"dog"\n', None, ["cat, big", "dog"]),
    ],
)
def test_header_of_a_single_column(content: str, count: int | None, expected: list[str], tmp_path: Path) -> None:
    assert load_labels(written(tmp_path / "y.csv", content), count=count) == expected


def test_labels_refused(tmp_path: Path) -> None:
    for array, words in (
        (np.array([0.0, 0.5]), ("label 2", "0.5")),
        (np.array([0.0, np.nan]), ("label 2", "nan")),
        (np.ones((3, 2)), ("1-d", "shape (3, 2)")),
        (np.ones(0), ("shape (0,)",)),
        (np.ones(2, dtype=complex), ("complex128",)),
    ):
        np.save(tmp_path / "y.npy", array)
        refuse_labels(tmp_path / "y.npy", *words)
    assert load_labels(written(tmp_path / "y.csv", "species\ncat\n"), key="species") == ["cat"]
    np.savez(tmp_path / "y.npz", a=np.arange(3), b=np.arange(3))
    refuse_labels(tmp_path / "y.npz", "'a' of shape (3,)", "--label-key NAME")
    refuse_labels(written(tmp_path / "y.csv", "x,y\n1,cat\n"), "2 columns", "'x', 'y'", "--label-key NAME")
    refuse_labels(tmp_path / "y.csv", "no column 'z'", "'x', 'y'", key="z")
    refuse_labels(written(tmp_path / "y.csv", "label\n"), "no labels")
    refuse_labels(written(tmp_path / "y.txt", "cat\n\ndog\n"), "label 2 is empty")
    refuse_labels(tmp_path / "y.txt", "--label-key 'y' does not apply", key="y")
    refuse_labels(written(tmp_path / "y.txt", b"cat\xff"), "not UTF-8")
    refuse_labels(written(tmp_path / "y.txt", npy_bytes("x")), "not a .txt file", "NumPy")
    refuse_labels(parquet(tmp_path / "y.parquet", {"y": ["cat", None]}), "label 2 is None")
    refuse_labels(parquet(tmp_path / "y.parquet", {"y": [[1]]}), "label 1 is [1]")
    refuse_labels(written(tmp_path / "y.json", "[1]"), "'.json'", ".txt")


# Columns that are no dimensions


def features(rows: int = 60) -> dict[str, NDArray[Any]]:
    x = np.random.default_rng(0).standard_normal((rows, 3))
    return {f"f{j}": x[:, j] for j in range(3)}


def write_table(path: Path, columns: dict[str, Any]) -> Path:
    if path.suffix == ".parquet":
        return parquet(path, columns)
    mark = "," if path.suffix == ".csv" else "\t"
    rows = zip(*columns.values(), strict=True)
    return written(path, "".join(mark.join(map(str, row)) + "\n" for row in [list(columns), *rows]))


RNG = np.random.default_rng(1)
SUFFIXES = [".csv", ".tsv", ".parquet"]

KEYS = RNG.integers(0, 2**40, 60)

# fmt: off
BY_NAME = [
    "id", "Ids", "idx", "image_id", "imageId", "Image ID", "image.id", "_id", "id_", "id_of_image",
    "Unnamed: 0", "__index_level_0__", "index", "row",
    "y", "Y", "cls", "target", "Targets", "label", "fine_label", "class", "classes", "y_true", "category",
]
# fmt: on
BY_VALUE = {
    "count from 0": np.arange(60),
    "count from 1": np.arange(1, 61),
    "count as floats": np.arange(60.0),
    "count down": np.arange(60)[::-1],
    "filtered": np.flatnonzero(RNG.random(200) < 0.5)[:60],
    "permutation from 0": RNG.permutation(60),
    "permutation from 1": RNG.permutation(60) + 1,
    "keys": KEYS,
    "keys with a twin": np.append(KEYS[:-1], KEYS[0]),
}
NO_DIMENSIONS: dict[str, NDArray[Any]] = {name: np.arange(60) % 3 for name in BY_NAME} | BY_VALUE


@pytest.mark.parametrize("name", NO_DIMENSIONS)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_columns_that_are_no_dimensions_are_refused(tmp_path: Path, suffix: str, name: str) -> None:
    odd = NO_DIMENSIONS[name]
    path = write_table(tmp_path / f"x{suffix}", {"f0": features()["f0"], name: odd, "f1": features()["f1"]})
    refuse(path, f"--exclude {name!r}", "--label-key", "--include")
    kept = load_embeddings(path, exclude=[name])
    assert np.array_equal(kept, np.stack([features()["f0"], features()["f1"]], 1))
    taken = load_embeddings(path, include=[name])
    assert np.array_equal(taken[:, 1], odd)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_all_columns_that_are_no_dimensions_are_named_at_once(tmp_path: Path, suffix: str) -> None:
    rows = np.arange(60)
    odd = {"image_id": rows * 7, "n": RNG.permutation(60), "key": KEYS, "target": rows % 2}
    path = write_table(tmp_path / f"x{suffix}", odd | features())
    words = ["row numbers ('n')", "ids ('image_id', 'key')", "labels ('target')", "--label-key 'target'"]
    refuse(path, "--exclude 'image_id','n','key','target'", *words)
    refuse(path, "--exclude 'image_id','target'", exclude=["n"], include=["key"])
    assert load_embeddings(path, exclude=["image_id", "n"], include=["key", "target"]).shape == (60, 5)
    refuse(path, "no column 'nope'", include=["nope"])
    refuse(path, "--include 'n' does not apply", exclude=["n"], include=["n"])
    many = {f"{'long' * 5}_{i}_id": rows for i in range(12)}
    refuse(write_table(path, many | features()), *map(repr, many), "--exclude", "--include")


def test_the_index_of_a_frame_is_no_dimension(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "x.parquet"
    table = pa.table(features() | {"when": np.linspace(0, 1, 60)})
    for index, refused in (([{"kind": "range", "start": 0, "stop": 60, "step": 1}], False), (["when"], True)):
        pandas = json.dumps({"index_columns": index, "columns": []})  # as DataFrame.to_parquet notes it
        pq.write_table(table.replace_schema_metadata({"pandas": pandas}), path)
        if refused:
            refuse(path, "row numbers ('when')", "--exclude 'when'")
        assert load_embeddings(path, exclude=["when"]).shape == (60, 3)
        assert load_embeddings(path, include=["when"]).shape == (60, 4)


def test_ids_are_judged_by_all_rows(tmp_path: Path) -> None:
    few = features(19) | {"n": np.arange(19)}
    assert load_embeddings(write_table(tmp_path / "x.csv", few)).shape == (19, 4)
    refuse(write_table(tmp_path / "x.csv", few | {"id": few["f0"]}), "--exclude 'id'")
    x = features(10_000)
    assert load_embeddings(parquet(tmp_path / "x.parquet", x)).shape == (10_000, 3)
    key = RNG.permutation(10_000)
    refuse(parquet(tmp_path / "x.parquet", {"n": key, **x}), "row numbers ('n')")
    key[5000:] %= 100  # no longer distinct
    assert load_embeddings(parquet(tmp_path / "x.parquet", {"n": key, **x})).shape == (10_000, 4)
    whole = np.append(np.arange(9999), 0.5)  # no longer of whole numbers
    assert load_embeddings(parquet(tmp_path / "x.parquet", {"n": whole, **x})).shape == (10_000, 4)


def columns(x: NDArray[Any], names: str = "f") -> dict[str, NDArray[Any]]:
    return {f"{names}{j}": x[:, j] for j in range(x.shape[1])}


HEALTHY: dict[str, Callable[[np.random.Generator, int], dict[str, NDArray[Any]]]] = {
    "floats": lambda rng, n: columns(rng.normal(size=(n, 16))),
    "sorted floats": lambda rng, n: columns(np.sort(rng.normal(size=(n, 4)), axis=0)),
    "evenly spaced floats": lambda rng, n: columns(np.stack([np.linspace(0, 1, n), rng.normal(size=n)], 1)),
    "pixels": lambda rng, n: columns(rng.integers(0, 256, (n, 64)), "pixel"),
    "pixels with a dark border": lambda rng, n: columns(rng.integers(0, 256, (n, 64)) * (np.arange(64) % 8 > 3)),
    "counts": lambda rng, n: columns(rng.poisson(np.geomspace(0.01, 1e6, 32), (n, 32))),
    "quantized": lambda rng, n: columns((rng.normal(size=(n, 16)) * 1e6).round().astype(int), "dim_"),
    "one-hot": lambda rng, n: columns(np.eye(10, dtype=int)[rng.integers(0, 10, n)], "class_"),
    "ranks": lambda rng, n: columns(np.argsort(rng.normal(size=(n, 8)), axis=0)),
    "sparse": lambda rng, n: columns(rng.normal(size=(n, 16)) * (rng.random((n, 16)) < 0.1)),
    "few whole numbers": lambda rng, n: columns(rng.normal(size=(n, 4))) | {"age": rng.integers(0, n // 2, n)},
    "points": lambda rng, n: dict(zip("xyz", rng.normal(size=(3, n)), strict=True)),
    "curve": lambda rng, n: {"x": np.arange(n), "y": rng.normal(size=n)},
    "grid": lambda rng, n: dict(zip("XYZ", np.indices((4, 5, n // 20)).reshape(3, -1), strict=True)),
    "token": lambda rng, n: columns(rng.normal(size=(n, 8)), "cls_") | columns(rng.normal(size=(n, 8)), "id_"),
    "names": lambda rng, n: dict(
        zip(["grid", "valid", "centroid", "refractive_index", "class_0", "x1"], rng.normal(size=(6, n)), strict=True)
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_dimensions_are_not_taken_for_ids(tmp_path: Path, suffix: str, name: str) -> None:
    for seed, rows in enumerate((20, 40, 100, 400, 2000)):
        made = HEALTHY[name](np.random.default_rng(seed), rows)
        assert load_embeddings(write_table(tmp_path / f"x{suffix}", made)).shape == (rows, len(made))


@pytest.mark.parametrize("name", ["npy", "npz", "parquet columns", "parquet list", "pt", "safetensors"])
def test_whole_numbers_keep_all_their_digits(name: str, tmp_path: Path) -> None:
    file, write = WRITERS[name]
    path = tmp_path / file
    for dtype in ("i4", "i8"):
        x: NDArray[Any] = (np.random.default_rng(0).integers(0, 9, (20, 3)) + 2**30).astype(dtype)
        write(path, x)
        assert np.array_equal(load_embeddings(path).numpy(), x)
    write(path, x % 100)
    assert load_embeddings(path).dtype == torch.float32
    write(path, x - 2**30 + 2**53)
    refuse(path, "expected whole numbers under 2^53", "9.01e+15")


def test_names_may_be_long_equal_or_empty(tmp_path: Path) -> None:
    texts = ["", "x" * 5000, "a", "a"]
    assert load_names(parquet(tmp_path / "x.parquet", {"t": texts, "n": [1, 2, 3, 4]}), key="t") == texts
    assert load_names(tmp_path / "x.parquet", key="n") == ["1", "2", "3", "4"]
    assert load_names(written(tmp_path / "x.txt", "a b\nc\n")) == ["a b", "c"]
    with pytest.raises(ValueError, match=r"^.*x.parquet: .*choose one with --name-key NAME"):
        load_names(tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=r"^.*x.txt: expected 3 names, one for each point, got 2"):
        load_names(tmp_path / "x.txt", count=3)


def test_names_are_found_in_the_file_of_the_embeddings(tmp_path: Path) -> None:
    paths, kinds = [f"{i}.png" for i in range(60)], ["cat", "dog"] * 30
    columns = {"kind": kinds, "path": paths, "x": np.arange(60) / 7, "y2": np.arange(60) % 7}
    lists = {"kind": kinds, "path": paths, "e": [[1.0, i] for i in range(60)]}
    assert name_array(parquet(tmp_path / "x.parquet", columns), 60) == "path"
    assert name_array(parquet(tmp_path / "lists.parquet", lists), 60) == "path"
    rows = "\n".join(f"{k},{p},{i / 7},{i % 7}" for i, (k, p) in enumerate(zip(kinds, paths, strict=True)))
    assert name_array(written(tmp_path / "x.csv", "kind,path,x,y2\n" + rows), 60) == "path"
    assert load_embeddings(tmp_path / "x.csv").shape == load_embeddings(tmp_path / "x.parquet").shape == (60, 2)
    np.savez(tmp_path / "x.npz", x=np.zeros((60, 2)), kind=np.array(kinds), ids=np.arange(60), path=np.array(paths))
    assert name_array(tmp_path / "x.npz", 60) == "path"
    np.save(tmp_path / "x.npy", np.zeros((60, 2)))
    assert name_array(tmp_path / "x.npy", 60) is None


@pytest.mark.parametrize("missing", ["NA", "None", "-", "n/a", "1,5"])
def test_missing_and_foreign_numbers_make_no_column_of_words(tmp_path: Path, missing: str) -> None:
    rows = "".join(f"{i};{missing}\n" for i in range(25)) + "25;3\n"
    refuse(written(tmp_path / "x.csv", "x;y\n" + rows), "line 2", "column 'y'", repr(missing))


def test_words_may_be_dates_blank_or_look_like_numbers_here_and_there(tmp_path: Path) -> None:
    words = ["2024-01-01", "", "=x", "1984", "b"] * 5
    rows = "".join(f"{i},{word},{i / 7}\n" for i, word in enumerate(words))
    found = load_embeddings(written(tmp_path / "x.csv", "a,title,b\n" + rows), include=["a"])
    assert found.shape == (25, 2)


def test_bytes_that_are_no_text_are_no_names(tmp_path: Path) -> None:
    images = [b"\x89PNG" + bytes([i]) for i in range(60)]
    path = parquet(tmp_path / "x.parquet", {"e": [[1.0, i] for i in range(60)], "image": images})
    assert name_array(path, 60) is None
    assert load_embeddings(path).shape == (60, 2)
