"""Folders with every kind of odd file: what can be read is trained on, the rest is counted, listed and left out."""

import shutil
import struct
import zlib
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data.pictures import save, save_transparent
from tests.train.options import FOLDER, as_words, changed

from ldreg.cli import main
from ldreg.data import DataConfig, ImageFiles, load_images
from ldreg.data.images import transparency_note
from ldreg.train.folder import RunFolder

COUNT = 32
BOMB = 60_000  # side of an image of 3.6 gigapixels, in a file of some kilobytes


def image(seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (12, 14, 3), dtype=np.uint8))


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb() -> bytes:
    """A PNG of black pixels that are many times what memory holds; the first rows of it are there."""
    header = struct.pack(">IIBBBBB", BOMB, BOMB, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(1 + 3 * BOMB) * 100, 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def write_readable(folder: Path) -> set[Path]:
    """Images that are unusual, and images all the same."""
    image(1).convert("CMYK").save(folder / "cmyk.jpg")
    image(2).convert("P").save(folder / "palette.png")
    transparent = image(3).convert("P")
    transparent.save(folder / "transparent.png", transparency=0)
    deep = np.random.default_rng(4).integers(0, 65536, (12, 14), dtype=np.uint16)
    Image.fromarray(deep).save(folder / "sixteen.png")
    Image.fromarray(deep).save(folder / "sixteen.tif")
    image(5).save(folder / "misnamed.png", format="JPEG")
    image(6).convert("P").save(folder / "gif.jpg", format="GIF")
    image(7).convert("LA").save(folder / "alpha.png")
    image(8).convert("1").save(folder / "bits.bmp")
    return set(folder.iterdir())


def write_unreadable(folder: Path) -> dict[Path, str]:
    """Files that are named like images, with a part of the reason that is to be told of each."""
    image(1).save(folder / "whole.jpg")
    image(2).save(folder / "whole.png")
    jpeg, png = (bytearray((folder / f"whole.{kind}").read_bytes()) for kind in ("jpg", "png"))
    for kind in ("jpg", "png"):
        (folder / f"whole.{kind}").unlink()
    corrupt = png.copy()
    corrupt[60:200] = bytes(140)
    told = {
        "truncated.jpg": (bytes(jpeg[:-150]), "truncated"),
        "truncated.png": (bytes(png[:150]), "truncated"),
        "corrupt.png": (bytes(corrupt), ""),
        "zero.png": (b"", "the file is empty"),
        "bomb.png": (bomb(), "exceeds limit"),
        "text.jpg": (b"not an image at all", "not an image of a known format"),
        "page.png": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EOF\n", "not an image of a known format"),
        "archive.bmp": (b"PK\x03\x04" + bytes(60), "not an image of a known format"),
    }
    for name, (content, _) in told.items():
        (folder / name).write_bytes(content)
    return {folder / name: reason for name, (_, reason) in told.items()}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Images as usual, in two classes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LDREG_CACHE", str(tmp_path / "cache"))
    for number in range(COUNT):
        path = tmp_path / "images" / ("cat", "dog")[number % 2] / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image(number).save(path)
    return tmp_path / "images"


def pretrain(**options: str) -> int:
    return main(["pretrain", *as_words(changed({**FOLDER, "data.path": "images"}, **options)), "--out", "run"])


@pytest.mark.parametrize("workers", ["0", "2"])
def test_odd_files_are_read_or_counted_listed_and_left_out(
    workers: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    readable, bad = write_readable(folder / "cat"), write_unreadable(folder / "dog")
    assert pretrain(data__max_unreadable="0.2", data__workers=workers) == 0
    log = RunFolder(Path("run")).log.read_text()
    for path, reason in bad.items():
        name = path.relative_to(folder.parent)
        [line] = [line for line in log.splitlines() if f"unreadable image: {name}: " in line]
        assert reason in line.lower()
    assert log.count("unreadable image: ") == len(bad)
    images = COUNT // 2 + len(readable) + len(bad)
    count = f"{len(bad)} of {images} images could not be read and were left out; run/log.txt lists them"
    assert count in log
    assert count in capfd.readouterr().err
    assert RunFolder(Path("run")).encoder.exists()
    assert not active_children()


def test_images_decoded_before_there_is_a_log_are_listed_in_it_too(folder: Path) -> None:
    bad = []
    for split in ("train", "test"):
        (folder.parent / "squares" / split / "cat").mkdir(parents=True)
        for number in range(COUNT):
            image(number).resize((8, 8)).save(folder.parent / "squares" / split / "cat" / f"{number:02}.png")
        bad.append(folder.parent / "squares" / split / "cat" / "zero.png")
        bad[-1].touch()
    assert pretrain(data__path="squares", data__max_unreadable="0.1", data__resident="yes") == 0
    log = RunFolder(Path("run")).log.read_text()
    assert [log.count(f"unreadable image: {path.relative_to(folder.parent)}: ") for path in bad] == [1, 1]


@pytest.mark.parametrize("resident", ["yes", "no"])
def test_the_log_counts_transparent_images(folder: Path, resident: str) -> None:
    for number in range(COUNT):
        path = folder.parent / "icons" / "train" / "cat" / f"{number:02}.png"
        (save_transparent if number < 5 else save)(path, number, 12, 12)
    assert pretrain(data__path="icons", data__resident=resident) == 0
    assert RunFolder(Path("run")).log.read_text().count(transparency_note(5, COUNT)) == 1


def test_one_more_than_the_share_that_is_borne_ends_the_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = write_unreadable(folder / "dog")
    assert pretrain(data__max_unreadable=str((len(bad) - 0.5) / (COUNT + len(bad)))) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert f"got {len(bad)} of {COUNT + len(bad)}" in said
    assert not RunFolder(Path("run")).encoder.exists()


def test_a_failed_resume_keeps_the_run(folder: Path) -> None:
    """A new run that fails before its first step leaves no folder; one that is resumed loses nothing."""
    options = {"data__resident": "no", "data__max_unreadable": "0.5"}
    assert pretrain(**options) == 0
    shutil.rmtree("run/checkpoints")
    Path("run/card.json").unlink()
    encoder, config = Path("run/encoder.safetensors"), Path("run/config.yaml")
    before = encoder.read_bytes(), config.read_bytes()
    for path in sorted(folder.rglob("*.png"))[1:]:
        path.write_bytes(b"")
    assert main(["pretrain", "--resume", "run"]) == 2
    assert (encoder.read_bytes(), config.read_bytes()) == before
    encoder.parent.rename("elsewhere")
    assert pretrain(**options) == 2
    assert not Path("run").exists()


def test_odd_images_have_the_pixels_that_they_show(folder: Path) -> None:
    write_readable(folder / "cat")
    files = load_images(DataConfig("folder", path=str(folder)), "train")
    assert isinstance(files, ImageFiles)
    found = {Path(files.path(index)).name: files.read(index).pixels for index in range(len(files))}
    assert {tuple(pixels.shape) for pixels in found.values()} == {(3, 12, 14)}
    deep = np.random.default_rng(4).integers(0, 65536, (12, 14), dtype=np.uint16)
    expected = torch.from_numpy((deep >> 8).astype(np.uint8)).expand(3, -1, -1)
    assert torch.equal(found["sixteen.png"], expected)
    assert torch.equal(found["sixteen.tif"], expected)
    for name, seed in (("palette.png", 2), ("gif.jpg", 6)):
        shown = np.asarray(image(seed).convert("P").convert("RGB"))
        assert torch.equal(found[name], torch.from_numpy(shown.copy()).permute(2, 0, 1)), name
    shown = np.asarray(image(1).convert("CMYK").convert("RGB")).astype(int)
    assert np.abs(found["cmyk.jpg"].permute(1, 2, 0).numpy() - shown).mean() < 40  # noise is what JPEG keeps worst
