"""Small files that claim to be large: refused in one line, soon, without the memory or the disk that they ask for."""

import io
import json
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ldreg.data import unpack
from ldreg.encoders.checkpoints import load_encoder
from ldreg.io import guard
from ldreg.io.embeddings import load_embeddings
from ldreg.io.guard import largest_tuple
from ldreg.io.labels import load_labels

Refused = Callable[..., str]


def npy_header(shape: object, *, descr: str = "<f4") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def deflated_zip(path: Path, name: str, head: bytes, mebibytes: int) -> None:
    """A zip of one member: `head` and so many MiB of zeros, truly deflated; only the checksum is not computed."""

    def packed(data: bytes, end: int) -> bytes:
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        return packer.compress(data) + packer.flush(end)

    start, zeros, end = packed(head, zlib.Z_FULL_FLUSH), packed(bytes(1 << 20), zlib.Z_FULL_FLUSH), packed(b"", 4)
    inside = start + zeros * mebibytes + end
    extra = struct.pack("<HHQQ", 1, 16, len(head) + (mebibytes << 20), len(inside))
    known = (zipfile.ZIP_DEFLATED, 0, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF, len(name), len(extra))
    local = struct.pack("<4s5HIIIHH", b"PK\x03\x04", 45, 0, *known) + name.encode() + extra
    central = struct.pack("<4s6HIIIHHHHHII", b"PK\x01\x02", 45, 45, 0, *known, 0, 0, 0, 0, 0) + name.encode() + extra
    ending = struct.pack("<4s4HIIH", b"PK\x05\x06", 0, 0, 1, 1, len(central), len(local) + len(inside), 0)
    path.write_bytes(local + inside + central + ending)


def pickled(path: Path, pickle: bytes) -> None:
    """A torch file around a pickle."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {"data.pkl": pickle, "byteorder": b"little", "version": b"3\n"}.items():
            archive.writestr(f"archive/{name}", content)


def claimed(path: Path, numbers: dict[bytes, int]) -> None:
    """A torch file of a tensor (2, 2), with other numbers in its pickle."""
    buffer = io.BytesIO()
    torch.save(torch.zeros(2, 2), buffer)
    with zipfile.ZipFile(buffer) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("data.pkl"):
                for known, number in numbers.items():
                    assert known in content
                    large = b"\x8a\x08" + number.to_bytes(8, "little", signed=True)
                    content = content.replace(known, large + known[2:], 1)
            target.writestr(name, content)


def tensors(path: Path, **entries: Any) -> None:
    """A safetensors file with this header and 16 bytes after it."""
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))


def tensor(*shape: int, offsets: tuple[int, int] = (0, 16)) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": offsets}


def doubling(levels: int) -> bytes:
    """A pickle of {t: 1}, t a tuple of twice the same tuple of twice the same …"""
    pairs = b"".join(b"h" + bytes([level]) + b"\x86q" + bytes([level + 1]) for level in range(levels))
    return b"\x80\x02}K\x01q\x00" + pairs + b"K\x01s."


def sparse(path: Path, start: bytes, size: int = 5 << 30) -> None:
    """A file that goes on with zeros that take no room on the disk."""
    with path.open("wb") as stream:
        stream.write(start)
        stream.truncate(size)


def parquet(path: Path, columns: dict[str, Any]) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(columns), path, compression="zstd", row_group_size=1 << 40)


def run_lengths(path: Path) -> None:
    zeros = np.zeros(15_000_000)
    parquet(path, {f"d{i}": zeros for i in range(10)})
    assert path.stat().st_size < 1_000_000


EMBEDDINGS: dict[str, tuple[Callable[[Path], object], str]] = {
    "header of 4 GiB.npy": (lambda p: sparse(p, b"\x93NUMPY\x02\x00\xff\xff\xff\xff"), "array header"),
    "2^60.npy": (lambda p: p.write_bytes(npy_header((1 << 60, 2)) + bytes(8)), "bytes follow it"),
    "negative.npy": (lambda p: p.write_bytes(npy_header((-2, -2)) + bytes(16)), "impossible shape"),
    "integers.npy": (lambda p: sparse(p, npy_header((1 << 40, 1), descr="|i1"), (1 << 40) + 128), "memory"),
    "zeros.npz": (lambda p: deflated_zip(p, "x.npy", npy_header((8 << 20, 256)), 8 << 10), "unpack to 8.0 GiB"),
    "2^40.npz": (lambda p: deflated_zip(p, "x.npy", npy_header((1 << 30, 256)), 1), "bytes follow it"),
    "storage.pt": (lambda p: claimed(p, {b"K\x02K\x02\x86": 1 << 60}), "cannot be read as a torch file"),
    "zeros.pt": (lambda p: deflated_zip(p, "archive/data.pkl", b"\x80\x02", 2 << 10), "unpack to 2.0 GiB"),
    "long.pt": (lambda p: deflated_zip(p, "archive/data.pkl", b"\x80\x02", 300), "besides its tensors"),
    "doubling.pt": (lambda p: pickled(p, doubling(60)), "a tuple of more than 10000000 parts"),
    "bytes.pt": (lambda p: pickled(p, b"\x80\x02cbuiltins\nbytearray\n\x8a\x06\0\0\0\0\0\x10\x85R."), "memory"),
    "deep.pt": (lambda p: pickled(p, b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b"."), "got list"),
    "2^60.safetensors": (lambda p: tensors(p, a=tensor(1 << 60, 2)), "cannot be read as a safetensors file"),
    "twice.safetensors": (lambda p: tensors(p, a=tensor(2, 2), b=tensor(2, 2)), "ffset"),
    "empty.safetensors": (lambda p: tensors(p, a=tensor(1 << 60, 0, offsets=(0, 0)), b=tensor(4)), "at least one row"),
    "line.csv": (lambda p: p.write_bytes(b"1," * 20_000_000), "line 1 has 16777216 characters or more"),
    "zeros.csv": (lambda p: sparse(p, b"1,2\n" * 2000), "line 2001 has 16777216 characters or more"),
    "quote.csv": (lambda p: p.write_bytes(b'"' + b"1\n" * 1_000_000), "field larger than field limit"),
    "run lengths.parquet": (run_lengths, "unpack to 1.1 GiB"),
}


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_embeddings_that_would_take_all_memory_are_refused(name: str, refused: Refused, tmp_path: Path) -> None:
    write, message = EMBEDDINGS[name]
    write(tmp_path / name)
    assert message in refused("inspect", tmp_path / name)


def repeated_word(path: Path) -> None:
    """One word of 20 MB, for 900 rows: 18 GB."""
    pa = pytest.importorskip("pyarrow")
    words = pa.DictionaryArray.from_arrays(pa.array(np.zeros(900, "i4")), pa.array(["x" * 20_000_000]))
    parquet(path, {"y": words})
    assert path.stat().st_size < 10_000


LABELS: dict[str, tuple[Callable[[Path], object], str]] = {
    "zeros.txt": (lambda p: sparse(p, b"cat\n" * 2000), "line 2001 has 16777216 characters or more"),
    "word.csv": (
        lambda p: p.write_bytes(b"label\n" + b"x" * 2000),
        "label 1 has 2000 characters, expected at most 1000",
    ),
    "run lengths.parquet": (lambda p: parquet(p, {"y": np.zeros(20_000_000, "i1")}), "expected 900 labels"),
    "word.parquet": (repeated_word, "label 1 has 20000000 characters"),
    "zeros.npy": (lambda p: sparse(p, npy_header((1 << 40,), descr="|i1"), (1 << 40) + 128), "expected 900 labels"),
    "letters.npy": (lambda p: p.write_bytes(npy_header((900,), descr="<U1") + b"\xff" * 3600), "an array of labels"),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_that_would_take_all_memory_are_refused(name: str, refused: Refused, tmp_path: Path) -> None:
    write, message = LABELS[name]
    write(tmp_path / name)
    np.save(tmp_path / "x.npy", np.zeros((900, 4)))
    assert message in refused("inspect", tmp_path / "x.npy", "--labels", tmp_path / name)


def test_content_above_free_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.zeros((500, 1000), "f4")
    np.savez_compressed(tmp_path / "x.npz", x=x)
    parquet(tmp_path / "x.parquet", {"x": list(x)})
    np.save(tmp_path / "x.npy", x.astype(">f4"))
    torch.save(torch.ones(500, 1000, dtype=torch.uint8), tmp_path / "x.pt")
    files = [tmp_path / f"x.{suffix}" for suffix in ("npz", "parquet", "npy", "pt")]
    for path in files:
        assert load_embeddings(path).shape == (500, 1000)
    monkeypatch.setattr(guard, "free_bytes", lambda: 1_900_000)
    for path in files:
        with pytest.raises(ValueError, match=r"does not fit into memory: it takes 0\.0 GiB"):
            load_embeddings(path)
    np.save(tmp_path / "y.npy", np.zeros(100_000, "i1"))
    with pytest.raises(ValueError, match="does not fit into memory"):
        load_labels(tmp_path / "y.npy")


def test_free_memory_is_that_of_the_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "groups/job/step"
    inner.mkdir(parents=True)
    (tmp_path / "own").write_text("0::/job/step\n")
    for group, most in ((inner, "max"), (inner.parent, "5000000")):
        (group / "memory.max").write_text(f"{most}\n")
        (group / "memory.current").write_text("3000000\n")
        (group / "memory.stat").write_text("anon 5\ninactive_file 1000000\n")
    monkeypatch.setattr(guard, "_GROUP", tmp_path / "own")
    monkeypatch.setattr(guard, "_GROUPS", tmp_path / "groups")
    assert guard.free_bytes() == 3_000_000
    (inner.parent / "memory.max").write_text("max\n")
    assert guard.free_bytes() > 3_000_000


def test_nested_tuples_in_pickles_are_counted() -> None:
    assert largest_tuple(io.BytesIO(doubling(3))) == 15
    assert largest_tuple(io.BytesIO(doubling(200))) > 10_000_000
    buffer = io.BytesIO()
    torch.save({"a": torch.zeros(3), "b": [(1, (2, 3))] * 4}, buffer)
    with zipfile.ZipFile(buffer) as archive, archive.open("archive/data.pkl") as stream:
        assert largest_tuple(stream) < 30


# Encoders


def carded(path: Path, name: str) -> None:
    card = {"encoder": {"name": name}, "input": {"channels": 3, "size": 224, "mean": [0.5] * 3, "std": [0.5] * 3}}
    save_file({"a": torch.zeros(2)}, path, metadata={"ldreg": json.dumps(card)})


ENCODERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "giant.safetensors": (lambda p: carded(p, "eva02_enormous_patch14_clip_224"), "does not fit eva02_enormous"),
    "itself.pt": (lambda p: pickled(p, b"\x80\x02}q\x00X\x05\0\0\0modelh\x00s."), "without end"),
    "prefixes.pt": (lambda p: torch.save({"model." * 3000 + "x": torch.zeros(1)}, p), "without end"),
    "prefixes.safetensors": (lambda p: save_file({"model." * 3000 + "x": torch.zeros(1)}, p), "without end"),
    "doubling.pt": (lambda p: pickled(p, doubling(60)), "a tuple of more than 10000000 parts"),
    "zeros.pt": (lambda p: deflated_zip(p, "archive/data.pkl", b"\x80\x02", 2 << 10), "unpack to 2.0 GiB"),
    "deep.safetensors": (
        lambda p: tensors(p, __metadata__={"ldreg": "[" * 50_000}, a=tensor(4)),
        "card of an ldreg run",
    ),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_that_would_take_all_memory_are_refused(name: str, refused: Refused, tmp_path: Path) -> None:
    write, message = ENCODERS[name]
    write(tmp_path / name)
    assert message in refused("evaluate", "knn", tmp_path / name, "--data.name", "digits")


def test_weights_that_are_not_stored_are_refused(tmp_path: Path) -> None:
    import timm

    with torch.device("meta"):
        weights = timm.create_model("resnet50", num_classes=0).state_dict()
    few = {name: torch.zeros((), dtype=found.dtype).expand(found.shape) for name, found in weights.items()}
    torch.save(few, tmp_path / "few.pt")
    assert (tmp_path / "few.pt").stat().st_size < 200_000
    with pytest.raises(ValueError, match="expected every value to be stored, found an expanded view"):
        load_encoder(tmp_path / "few.pt")


# YAML and JSON


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("1:" * 400_000 + "1", "got a time without quotes"),
        ("1:" * 400_000 + "1.5", "got a time without quotes"),
        ("0x" + "f" * 900_000, "got a value of 900002 characters"),
        ("9" * 900_000, "got a value of 900000 characters"),
        ("x" * 900_000, "got a value of 900000 characters"),
        ("[" * 900_000, "maximum recursion depth"),
    ],
    ids=["base 60", "float of base 60", "hexadecimal", "digits", "text", "brackets"],
)
def test_yaml_that_would_take_all_time_is_refused(value: str, message: str, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(f"seed: {value}")
    assert message in refused("pretrain", "--recipe", tmp_path / "r.yaml", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["[" * 1_000_000, '{"name": ' + "9" * 1_000_000, '{"a": 1e999}', "{}", None])
def test_other_json_than_records_is_refused(text: str | None, refused: Refused, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    if text is None:
        sparse(path, b"{}")
    else:
        path.write_text(text)
    said = refused("report", path, "--out", tmp_path / "report.html")
    assert ("a file of more than" if text is None else "expected the record of a run") in said


# Archives


def header(name: str, size: int, kind: bytes = b"0") -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.USTAR_FORMAT)


def extended(**pairs: str) -> bytes:
    text = b""
    for key, value in pairs.items():
        line = f" {key.replace('_', '.')}={value}\n"
        length = next(size for size in range(len(line), len(line) + 9) if size == len(line) + len(str(size)))
        text += f"{length}{line}".encode()
    return header("pax", len(text), b"x") + text + bytes(-len(text) % 512)


def many(count: int, name: Callable[[int], str], content: bytes = b"x") -> bytes:
    return b"".join(header(name(i), len(content)) + content.ljust(512, b"\0") for i in range(count))


SPARSE = {"GNU_sparse_major": "1", "GNU_sparse_minor": "0", "GNU_sparse_name": "a", "GNU_sparse_realsize": "1"}

STREAMS: dict[str, tuple[Callable[[], bytes], str]] = {
    "files of a byte": (lambda: many(1000, lambda i: f"{i}.png"), "its content is larger than"),
    "folders": (lambda: many(25, lambda i: f"{i}/" + "a/" * 45 + "x"), "its content is larger than"),
    "a deep folder": (lambda: extended(path="a/" * 1900 + "x") + header("x", 0), "too long a name or too deep"),
    "a long name": (lambda: extended(path="a" * 4000) + header("x", 0), "too long a name or too deep"),
    "a header of 100 MB": (lambda: header("x", 100 << 20, b"x") + b"9" * (100 << 20), "a header of it has"),
    "a name of 100 MB": (lambda: header("x", 100 << 20, b"L") + b"9" * (100 << 20), "a header of it has"),
    "headers of digits": (lambda: (header("x", 8192, b"g") + b"9" * 8192) * 9, "is larger than"),
    "a sparse file": (lambda: extended(**SPARSE) + header("a", 1 << 20) + b"9" * (60 << 20), "a sparse file"),
    "an old sparse file": (lambda: header("a", 512, b"S") + bytes(1024), "a sparse file"),
    "a size below 0": (lambda: extended(size="-512") + header("a", 512) + bytes(512), "larger than|damaged"),
    "a time without end": (lambda: extended(mtime="9" * 300) + header("a", 0) + bytes(1024), "damaged"),
}


@pytest.mark.parametrize("name", STREAMS)
def test_archives_that_would_fill_the_disk_are_refused(name: str, tmp_path: Path) -> None:
    make, message = STREAMS[name]
    archive = tmp_path / "a.tar.xz"
    archive.write_bytes(lzma.compress(make(), preset=0))
    with pytest.raises(ValueError, match=message) as caught:
        unpack(archive, tmp_path / "cache", limit=4_000_000)
    assert str(caught.value).startswith(f"{archive}: ")
    assert len(str(caught.value)) < 1000
    assert not list((tmp_path / "cache" / "archives").iterdir())


def test_a_zip_of_tiny_files_is_refused(tmp_path: Path) -> None:
    """Of the length that an archive has, folders of a file each could fill a disk."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        for i in range(20):
            packed.writestr(f"{i}/" + "a/" * 10 + "x", b"x")
    with pytest.raises(ValueError, match="its content is larger than 900000 bytes"):
        unpack(tmp_path / "a.zip", tmp_path / "cache", limit=900_000)
    assert unpack(tmp_path / "a.zip", tmp_path / "cache", limit=1_000_000)


def test_an_archive_is_refused_by_the_command_line(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "a.tar.xz").write_bytes(lzma.compress(header("zeros", 1 << 30) + bytes(1 << 28), preset=0))
    words = ["--recipe", "digits/simclr", "--out", tmp_path / "out", "--data.name", "folder"]
    said = refused("pretrain", *words, "--data.path", tmp_path / "a.tar.xz", "--data.cache", tmp_path / "cache")
    assert "refused to unpack, its content is larger than" in said
    assert not (tmp_path / "out").exists()
