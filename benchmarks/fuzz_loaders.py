"""Every reader of files fed with damaged ones: what it loads, what it refuses in one line, and anything else.

python benchmarks/fuzz_loaders.py --minutes 10              all readers in turn
python benchmarks/fuzz_loaders.py --only npz --inputs 500   one reader
python benchmarks/fuzz_loaders.py --seed 0 --replay 1234    that input again, with its traceback

Inputs are valid files with mutations: bits, numbers, words and pieces of the bytes; or of the content of a zip, of a
compressed stream or of a header, packed again so that checksums fit. Input i of a seed is always the same. They are
read in a child process with bounded memory, in which starting a program, opening a socket or unpickling a class is
seen. Findings, for which the exit status is 1, are: another exception than ValueError and OSError, a message of several
lines, with control characters or of more than 20,000 others, the death of the process, more than 20 seconds, more than
1.5 GiB of memory, code that ran, and files made outside of the folder that an archive is unpacked into.
"""

import argparse
import io
import json
import lzma
import os
import random
import resource
import select
import shutil
import signal
import struct
import sys
import tarfile
import tempfile
import time
import traceback
import unicodedata
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from PIL import Image
from safetensors.torch import save

from ldreg.data.archives import unpack
from ldreg.data.decoding import decode, image_size, plain_jpeg_size
from ldreg.encoders import EncoderConfig, build_encoder
from ldreg.encoders.checkpoints import load_encoder
from ldreg.evaluate.detection.coco import read_coco
from ldreg.evaluate.records import curves_of, evaluated, origin_of
from ldreg.evaluate.source import open_source
from ldreg.io.embeddings import load_embeddings
from ldreg.io.labels import load_labels
from ldreg.record import Record
from ldreg.train.checkpoints import SETTINGS, latest
from ldreg.train.folder import RunFolder, existing
from ldreg.train.recipes import load_recipe
from ldreg.train.settings import resolve

SECONDS, MEMORY, LIMIT, ROUND, LONGEST = 20, 3 << 29, 8 << 30, 200, 20_000
FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.", "pickle.find_class", "ctypes.")

WORDS = [
    *(b"nan", b"-1", b"1e999", b"0", b"[" * 2000, b"{" * 2000, b"null", b"true", b'"', b"'", b"\0", b"\n", b",", b":"),
    *("猫 \u202e".encode(), b"\xff\xfe", b"../", b"/etc/passwd", b"18446744073709551616", b"-9223372036854775808"),
    *(b"!!python/object/apply:os.system ['true']", b"&a", b"*a", b"1:2:3", b"9" * 5000, b"<script>", b"\x1b[31m"),
    *(b"cos\nsystem\n(S'true'\ntR.", b"\x80\x02", b"(" * 500, b"h\x00h\x00\x86", b"q\x00", b"}", b"]", b"a", b"s"),
]
NUMBERS = [0, 1, 2, 127, 128, 255, 256, 65535, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 60), (1 << 63) - 1]


# Mutations


def mutated(data: bytes, chance: random.Random, count: int) -> bytes:
    """The bytes after `count` mutations."""
    content = bytearray(data)
    for _ in range(count):
        chance.choice(MUTATIONS)(content, chance)
    return bytes(content)


def _place(content: bytearray, chance: random.Random) -> int:
    """Anywhere, and as often in the first 256 bytes or the last, where formats keep what they are."""
    size = len(content)
    near = chance.choice((range(size), range(min(256, size)), range(max(0, size - 256), size)))
    return chance.choice(near) if near else 0


def _flip(content: bytearray, chance: random.Random) -> None:
    if content:
        content[_place(content, chance)] ^= 1 << chance.randrange(8)


def _byte(content: bytearray, chance: random.Random) -> None:
    if content:
        content[_place(content, chance)] = chance.randrange(256)


def _number(content: bytearray, chance: random.Random) -> None:
    place, size = _place(content, chance), chance.choice((1, 2, 4, 8))
    value = chance.choice(NUMBERS) % (1 << 8 * size)
    content[place : place + size] = value.to_bytes(size, chance.choice(("little", "big")))


def _digits(content: bytearray, chance: random.Random) -> None:
    """Another number in the place of one written in digits."""
    starts = [place for place, byte in enumerate(content[:20000]) if 48 <= byte < 58]
    if starts:
        place = chance.choice(starts)
        content[place : place + 1] = str(chance.choice((*NUMBERS, -1, 1 << 70))).encode()


def _word(content: bytearray, chance: random.Random) -> None:
    place = _place(content, chance)
    content[place : place + chance.choice((0, 0, 1, 8))] = chance.choice(WORDS)


def _cut(content: bytearray, chance: random.Random) -> None:
    place = _place(content, chance)
    del content[place : chance.choice((len(content), place + chance.randrange(1, 64)))]


def _copy(content: bytearray, chance: random.Random) -> None:
    """A piece again, elsewhere or many times."""
    place = _place(content, chance)
    piece = content[place : place + chance.randrange(1, 200)]
    content[(at := _place(content, chance)) : at] = piece * chance.choice((1, 1, 2, 100))


MUTATIONS = [_flip, _byte, _number, _digits, _word, _cut, _copy]


def mutated_zip(data: bytes, chance: random.Random, count: int) -> bytes:
    """A zip with the content or the name of one member mutated, with checksums that fit."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(target, "w") as packed:
        members = [(info.filename, source.read(info)) for info in source.infolist()]
        place = chance.randrange(len(members))
        for i, (name, content) in enumerate(members):
            if i == place and chance.random() < 0.2:
                name = mutated(name.encode(), chance, 1).decode(errors="replace")
            elif i == place:
                content = mutated(content, chance, count)
            packed.writestr(zipfile.ZipInfo(name), content, compress_type=chance.choice((0, 8)))
    return target.getvalue()


def mutated_tar(data: bytes, chance: random.Random, count: int) -> bytes:
    """A compressed tar with its stream mutated, and sums of headers that fit."""
    packs = {b"\x1f\x8b": (lambda x: zlib.decompress(x, 31), _gzip), b"\xfd7": (lzma.decompress, lzma.compress)}
    unpacked, pack = packs.get(data[:2], (bytes, bytes))
    content = bytearray(mutated(unpacked(data), chance, count))
    for start in range(0, len(content) - 511, 512):
        if content[start + 257 : start + 262] == b"ustar":
            content[start + 148 : start + 156] = b" " * 8
            content[start + 148 : start + 156] = b"%06o\0 " % sum(content[start : start + 512])
    return pack(bytes(content))


def _gzip(data: bytes) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    return packer.compress(data) + packer.flush()


def mutated_safetensors(data: bytes, chance: random.Random, count: int) -> bytes:
    """A safetensors file with its header mutated, and the length of it right."""
    length = struct.unpack("<Q", data[:8])[0]
    header = mutated(data[8 : 8 + length], chance, count)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def mutated_png(data: bytes, chance: random.Random, count: int) -> bytes:
    """A PNG with one chunk mutated, and lengths and checksums that fit."""
    chunks, place = [], 8
    while place < len(data):
        length = int.from_bytes(data[place : place + 4], "big")
        chunks.append(data[place + 4 : place + 8 + length])
        place += 12 + length
    chosen = chance.randrange(len(chunks))
    chunks[chosen] = mutated(chunks[chosen], chance, count)
    packed = (struct.pack(">I", len(c) - 4 if len(c) > 4 else 0) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks)
    return data[:8] + b"".join(packed)


Mutation = Callable[[bytes, random.Random, int], bytes]

# How the inside of a format is mutated, by its first bytes.
INNER: dict[bytes, Mutation] = {
    b"PK": mutated_zip,
    b"\x89P": mutated_png,
    b"\x1f\x8b": mutated_tar,
    b"\xfd7": mutated_tar,
}


def inner_mutation(name: str, content: bytes) -> Mutation:
    """What mutates the inside of a file; for formats without an inside, that of its bytes."""
    if name.endswith(".safetensors"):
        return mutated_safetensors
    return mutated_tar if name.endswith(".tar") else INNER.get(content[:2], mutated)


# Readers, and valid files for them


@dataclass(frozen=True)
class Reader:
    """Valid files by name, and what reads the folder that they are in."""

    files: dict[str, bytes]
    read: Callable[[Path], object]


def _single(name: str, content: bytes, load: Callable[[Path], object]) -> Reader:
    return Reader({name: content}, lambda folder: load(folder / name))


def _written(write: Callable[[io.BytesIO], object]) -> bytes:
    stream = io.BytesIO()
    write(stream)
    return stream.getvalue()


def _embeddings(path: Path) -> object:
    x = load_embeddings(path)
    x.sum()  # all of the memory is there
    return x


def _torch(content: object, **options: Any) -> bytes:
    return _written(lambda stream: torch.save(content, stream, **options))


def _deflated(data: bytes) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in source.namelist():
            packed.writestr(name, source.read(name))
    return target.getvalue()


def array_readers() -> dict[str, Reader]:
    x, words = np.random.default_rng(0).normal(size=(9, 4)).astype("f4"), np.array(list("abcabcabc"))
    several = {"x": torch.from_numpy(x), "y": torch.arange(9), "meta": {"a": [1, (2, 3)], "b": "c"}}
    table = pa.table({f"d{i}": x[:, i] for i in range(4)})
    rows = pa.table({"x": pa.array(list(x), pa.list_(pa.float32())), "y": list(words)})
    npz, pt, st = _written(lambda s: np.savez(s, x=x, y=words)), _torch(several), save({"x": several["x"]})
    text = "a,b\n" + "".join(f"{row[0]},{row[1]}\n" for row in x)
    return {
        "npy": _single("x.npy", _written(lambda s: np.save(s, x)), _embeddings),
        "npz": _single("x.npz", npz, _embeddings),
        "pt": _single("x.pt", pt, _embeddings),
        "pt deflated": _single("x.pt", _deflated(pt), _embeddings),
        "pt legacy": _single("x.pt", _torch(several, _use_new_zipfile_serialization=False), _embeddings),
        "safetensors": _single("x.safetensors", st, _embeddings),
        "csv": _single("x.csv", text.encode(), _embeddings),
        "parquet": _single("x.parquet", _written(lambda s: pq.write_table(table, s)), _embeddings),
        "parquet lists": _single("x.parquet", _written(lambda s: pq.write_table(rows, s)), _embeddings),
        "labels npy": _single("y.npy", _written(lambda s: np.save(s, words)), load_labels),
        "labels txt": _single("y.txt", "\n".join(words).encode(), load_labels),
        "labels csv": _single("y.csv", b"id,label\n1,cat\n2,dog\n", lambda path: load_labels(path, key="label")),
        "labels parquet": _single(
            "y.parquet",
            _written(lambda s: pq.write_table(rows, s, compression="zstd")),
            lambda path: load_labels(path, key="y"),
        ),
    }


def _tar(kind: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=kind, format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
        for name in ("set/a/0.png", "set/a/" + "long" * 40 + ".png", "set/b/2.png"):
            member = tarfile.TarInfo(name)
            member.size = 600
            tar.addfile(member, io.BytesIO(bytes(600)))
        link = tarfile.TarInfo("set/b/link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "2.png"
        tar.addfile(link)
    return stream.getvalue()


def _zip(stream: io.BytesIO) -> None:
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in ("set/a/0.png", "set/b/1.png"):
            packed.writestr(name, bytes(600))


def _unpacked(archive: Path) -> object:
    """Unpack, and look whether anything was made elsewhere or a link leads there."""
    cache = archive.parent / "cache"
    before = {path.name for path in archive.parent.parent.iterdir()}
    folder = unpack(archive, cache, limit=1_000_000)
    assert {path.name for path in archive.parent.iterdir()} == {archive.name, "cache"}, "made files beside the cache"
    assert {path.name for path in archive.parent.parent.iterdir()} == before, "made files above the cache"
    for path in folder.rglob("*"):
        assert path.resolve().is_relative_to(folder.resolve()), f"{path} leads outside"
    return folder


def archive_readers() -> dict[str, Reader]:
    kinds = {"tar": "w", "tar.gz": "w:gz", "tar.xz": "w:xz"}
    tars = {name: _single(f"a.{name}", _tar(kind), _unpacked) for name, kind in kinds.items()}
    return tars | {"zip": _single("a.zip", _written(_zip), _unpacked)}


def run_readers() -> dict[str, Reader]:
    recipe = "base: digits/simclr_ldreg\nseed: 3\nldreg: {beta: 0.01, k: 16}\nviews: {min_scale: 0.3}\n"
    tree = resolve(load_recipe("digits/simclr_ldreg")).tree
    encoder = build_encoder(EncoderConfig("small_cnn"), channels=1, size=8)
    card = {"encoder": {"name": "small_cnn"}, "input": {"channels": 1, "size": 8, "mean": [0.5], "std": [0.5]}}
    weights = save(dict(encoder.state_dict()), metadata={"ldreg": json.dumps(card)})
    state = {"global_step": 5, "epoch": 1, SETTINGS: "{}", "state_dict": {"a": torch.zeros(2)}, "loops": {"x": [1]}}
    log = b"epoch,step,name,value\n1.0,5,set/lid,4.5\n2.0,10,set/lid,nan\n"
    told = {"kind": "knn", "source": {"key": None}, "data": {"name": "digits"}, "results": {"knn": 0.5, "k": 20}}
    files = {
        "run/config.yaml": yaml.safe_dump(tree).encode(),
        "run/encoder.safetensors": save(dict(encoder.state_dict())),
        "run/card.json": json.dumps(card | {"minutes": 1.5, "epochs": 3}).encode(),
        "run/environment.json": b'{"command": "ldreg", "cores": 2, "ldreg": "1"}',
        "run/metrics.csv": log,
        "run/checkpoints/last.ckpt": _torch(state),
        "run/evaluation/knn.json": json.dumps(told).encode(),
    }
    record = _written_record()
    return {
        "recipe": _single("r.yaml", recipe.encode(), lambda path: resolve(load_recipe(str(path)))),
        "checkpoint": _single("last.ckpt", _torch(state), lambda path: latest(path.parent)),
        "encoder": _single("e.safetensors", weights, load_encoder),
        "encoder pt": _single("e.pt", _torch({"model": encoder.state_dict()}), _load_pt),
        "record": _single("r.json", record, Record.from_json),
        "run folder": Reader(_keyed(files), _run),
    }


def _load_pt(path: Path) -> object:
    return load_encoder(path, encoder=EncoderConfig("small_cnn"), size=8)


def _keyed(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files of a run, whose results are of the encoder in it."""
    with tempfile.TemporaryDirectory() as folder:
        _write(files, Path(folder))
        key = open_source(Path(folder, "run")).encoder.key
    name = "run/evaluation/knn.json"
    return files | {name: files[name].replace(b"null", f'"{key}"'.encode())}


def _run(folder: Path) -> object:
    path = RunFolder(folder / "run")
    last = latest(path.checkpoints)
    _, tree = existing(path.path)
    source = open_source(path.path)
    return last, tree, curves_of(path), origin_of(path, source.settings), evaluated(source)


def _written_record() -> bytes:
    record = Record(
        "a", {"seed": 0, "ldreg.beta": 0.01}, {"lid": 5.0, "knn": 0.5}, {"lid": [(1, 2.0)]}, [1.0, 2.0], [2.0, 1.0],
        [(0.0, 1.0), (1.0, 2.0)], ["a", "b"], {"command": "x", "epochs": 3},
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        record.to_json(Path(folder) / "r.json")
        return (Path(folder) / "r.json").read_bytes()


def _image(path: Path) -> object:
    content = path.read_bytes()
    plain_jpeg_size(content)
    image_size(str(path))
    return decode(content).pixels


def image_readers() -> dict[str, Reader]:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 20, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels)
    deep = Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 256)
    kinds = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP", "tif": "TIFF", "bmp": "BMP", "ppm": "PPM", "gif": "GIF"}
    made = {name: _written(lambda s, kind=kind: picture.save(s, kind)) for name, kind in kinds.items()}  # type: ignore[misc]
    made["16.png"] = _written(lambda s: deep.save(s, "PNG"))
    made["palette.png"] = _written(lambda s: picture.convert("P").save(s, "PNG", transparency=0))
    made["cmyk.jpg"] = _written(lambda s: picture.convert("CMYK").save(s, "JPEG"))
    return {f"image {name}": _single(f"i.{name}", content, _image) for name, content in made.items()}


def coco_readers() -> dict[str, Reader]:
    runs = {"size": [8, 8], "counts": [10, 4, 50]}
    shapes = [[[1, 1, 6, 1, 6, 6]], runs]
    tree = {
        "images": [{"id": 1, "file_name": "1.jpg", "height": 8, "width": 8}],
        "annotations": [
            {"id": i, "image_id": 1, "category_id": 3, "bbox": [1, 1, 5.5, 5], "area": 9, "segmentation": shape}
            for i, shape in enumerate(shapes)
        ],
        "categories": [{"id": 3, "name": "cat"}],
    }
    names = ("annotations/instances_train2017.json", "annotations/instances_val2017.json")
    files = {name: json.dumps(tree).encode() for name in names}
    return {"coco": Reader(files | {"train2017/1.jpg": b"x", "val2017/1.jpg": b"x"}, _coco)}


def _coco(folder: Path) -> object:
    splits = read_coco(folder)
    return [scene for split in splits for scene in split.scenes]


def readers() -> dict[str, Reader]:
    return array_readers() | archive_readers() | run_readers() | image_readers() | coco_readers()


# Runs


def make_input(reader: Reader, chance: random.Random, folder: Path) -> None:
    """Write the files of a reader, one of them damaged."""
    name, count = chance.choice(list(reader.files)), chance.choice((1, 1, 2, 4, 16))
    content = reader.files[name]
    mutation = inner_mutation(name, content) if chance.random() < 0.6 else mutated
    _write(reader.files | {name: mutation(content, chance, count)}, folder)


def _write(files: dict[str, bytes], folder: Path) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def outcome(reader: Reader, folder: Path) -> tuple[str, str]:
    """What became of an input: loaded, refused, or what makes it a finding."""
    try:
        reader.read(folder)
    except (ValueError, OSError) as error:
        message = str(error)
        if len(message.splitlines()) > 1 or any(unicodedata.category(letter) == "Cc" for letter in message):
            return "several lines", traceback.format_exc()
        if len(message) > LONGEST:
            return "message without end", traceback.format_exc()[:3000]
        return "refused", ""
    except BaseException as error:
        return type(error).__name__, traceback.format_exc()[-3000:]
    return "loaded", ""


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


def _watched(event: str, arguments: object) -> None:
    if event.startswith(FORBIDDEN):
        raise SystemExit(f"{event} {arguments}")


def child(tasks: Iterator[int], seed: int, chosen: dict[str, Reader], out: int) -> None:
    """Read inputs one after the other, telling of each what it is and what became of it."""
    resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") + LIMIT,) * 2)
    sys.addaudithook(_watched)
    warnings.simplefilter("ignore")
    sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    for index in tasks:
        name, reader, chance = pick(index, seed, chosen)
        os.write(out, f"{index}\t".encode())
        with tempfile.TemporaryDirectory(prefix="fuzz-") as above:
            folder = Path(above, "in")
            folder.mkdir()
            make_input(reader, chance, folder)
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            before = _status("VmRSS")
            kind, detail = outcome(reader, folder)
            if (grown := _status("VmHWM") - before) > MEMORY:
                kind, detail = "memory", f"{grown >> 20} MiB more"
        os.write(out, json.dumps([name, kind, detail]).encode() + b"\n")


def pick(index: int, seed: int, chosen: dict[str, Reader]) -> tuple[str, Reader, random.Random]:
    name = list(chosen)[index % len(chosen)]
    return name, chosen[name], random.Random(f"{seed} {index}")


def round_of(tasks: range, seed: int, chosen: dict[str, Reader]) -> Iterator[tuple[int, str, str, str]]:
    """Inputs read by a process of their own, with reader, outcome and detail of each; ends after one that killed it."""
    into, out = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(into)
        child(iter(tasks), seed, chosen, out)
        os._exit(0)
    os.close(out)
    rest = b""
    while select.select([into], [], [], SECONDS)[0] and (part := os.read(into, 1 << 16)):
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            index, _, told = line.decode().partition("\t")
            yield int(index), *json.loads(told)
    os.close(into)
    try:
        os.kill(process, signal.SIGKILL)
    finally:
        _, status = os.waitpid(process, 0)
    if rest:
        index = int(rest.decode().partition("\t")[0])
        died = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        kind = "no end" if died == signal.SIGKILL else f"died of signal {died}"
        yield index, pick(index, seed, chosen)[0], kind, ""


def fuzz(asked: argparse.Namespace, chosen: dict[str, Reader]) -> tuple[dict[str, Counter[str]], list[dict[str, Any]]]:
    """Rounds until the time or the inputs are used up; outcomes by reader, and the findings."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in chosen}
    findings: list[dict[str, Any]] = []
    start, done = time.monotonic(), 0
    while done < asked.inputs and time.monotonic() - start < 60 * asked.minutes:
        for index, name, kind, detail in round_of(range(done, min(done + ROUND, asked.inputs)), asked.seed, chosen):
            counts[name][kind if kind in ("loaded", "refused") else "findings"] += 1
            done = index + 1
            if kind not in ("loaded", "refused"):
                findings.append({"index": index, "reader": name, "kind": kind, "detail": detail})
                print(f"input {index}, {name}: {kind}\n{detail}", file=sys.stderr, flush=True)
    return counts, findings


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="when to end")
    parser.add_argument("--inputs", type=int, default=1 << 60, help="after how many inputs to end")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="names of readers, separated by commas")
    parser.add_argument(
        "--replay", type=int, metavar="INPUT", help="one input alone; it stays in the folder 'replayed'"
    )
    return parser.parse_args()


def replay(asked: argparse.Namespace, chosen: dict[str, Reader]) -> None:
    """Read one input again, in this process, and leave it there."""
    name, reader, chance = pick(asked.replay, asked.seed, chosen)
    folder = Path("replayed")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    make_input(reader, chance, folder)
    print(name, *outcome(reader, folder))
    reader.read(folder)


def main() -> int:
    """The counts as a table; 1 where something was found."""
    asked = arguments()
    torch.set_num_threads(1)
    all_readers = readers()
    chosen = all_readers if asked.only is None else {name: all_readers[name] for name in asked.only.split(",")}
    if asked.replay is not None:
        replay(asked, chosen)
        return 0
    start = time.monotonic()
    counts, findings = fuzz(asked, chosen)
    total: Counter[str] = sum(counts.values(), Counter())
    print("| reader | inputs | loaded | refused | findings |\n|---|---|---|---|---|")
    for name, count in [*counts.items(), ("all", total)]:
        print(f"| {name} | {count.total()} | {count['loaded']} | {count['refused']} | {count['findings']} |")
    print(f"\n{total.total()} inputs in {(time.monotonic() - start) / 60:.1f} minutes, seed {asked.seed}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
