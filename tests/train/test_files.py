"""`ldreg pretrain` on folders and archives of images as people have them: odd files are read, or listed."""

import json
import os
import shutil
import signal
import struct
import tarfile
import zlib
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.pictures import pixels, save, save_transparent
from tests.train.options import FOLDER, as_words, changed

from ldreg.cli import main
from ldreg.data import ImageFiles, archives
from ldreg.data.decoding import Decoded
from ldreg.monitor.log import read_metrics
from ldreg.train.folder import RunFolder

COUNT = 40


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test with a folder, a cache and an environment of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LDREG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LDREG_RUN", "")  # so that what a run leaves there is taken back
    monkeypatch.delenv("LDREG_RUN")


def write_images(folder: Path, count: int = COUNT) -> list[Path]:
    """Images of different sizes."""
    return [save(folder / f"{number:02}.png", number, 10 + number % 5, 10 + number % 4) for number in range(count)]


def write_splits(root: Path) -> Path:
    for split, count in (("train", COUNT // 2), ("val", 6)):
        for name in ("cat", "dog"):
            write_images(root / split / name, count)
    return root


def pretrain(path: Path, *words: str, out: str = "run", **options: str) -> int:
    given = changed(FOLDER, data__path=str(path), **options)
    return main(["pretrain", *as_words(given), *words, "--out", out])


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that says what was wrong."""
    said = capsys.readouterr().err
    assert "Traceback" not in said
    [line] = [line for line in said.splitlines() if "error" in line]
    return line


def test_the_share_is_of_all_images_and_not_of_those_the_monitor_looks_at(tmp_path: Path) -> None:
    # A tenth is unreadable, and borne. Of the eight images that the monitor looks at, one would be more than a tenth:
    # wherever they lie, one of these ten sets has one of them unreadable.
    for start in range(0, COUNT, 4):
        images = tmp_path / f"images{start}"
        for path in write_images(images / "cat")[start : start + 4]:
            path.write_bytes(b"no image")
        assert pretrain(images, data__max_unreadable="0.1", monitor__points="8", out=f"run{start}") == 0


@pytest.mark.parametrize("folders", [("",), ("train/cat", "train/dog")], ids=["loose", "without a test split"])
def test_images_without_a_test_split_train_without_probes(folders: tuple[str, ...], tmp_path: Path) -> None:
    for folder in folders:
        write_images(tmp_path / "images" / folder, COUNT // len(folders))
    assert pretrain(tmp_path / "images") == 0
    logged = read_metrics(RunFolder(tmp_path / "run").metrics)
    assert len(logged["batch/loss"]) == 2 * (COUNT // 16)
    assert "set/lid" in logged
    assert not logged.keys() & {"set/linear", "set/knn"}


def test_a_set_with_fewer_images_than_vote_by_default_trains(tmp_path: Path) -> None:
    write_splits(tmp_path / "images")
    assert pretrain(tmp_path / "images", monitor__knn_k="null") == 0
    assert "set/knn" in read_metrics(RunFolder(tmp_path / "run").metrics)


def test_an_archive_trains_and_is_unpacked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_splits(tmp_path / "images")
    packed = tmp_path / "images.tar.xz"
    with tarfile.open(packed, "w:xz") as tar:
        tar.add(tmp_path / "images", "images")
    unpacked: list[Path] = []
    extract = archives._extract

    def counted(archive: Path, folder: Path, limit: int) -> None:
        unpacked.append(archive)
        extract(archive, folder, limit)

    monkeypatch.setattr(archives, "_extract", counted)
    assert pretrain(packed, out="first") == 0
    assert pretrain(packed, out="second") == 0
    assert unpacked == [packed]
    first, second = (RunFolder(tmp_path / name) for name in ("first", "second"))
    logged = read_metrics(first.metrics)
    assert {"set/linear", "set/knn"} <= logged.keys()
    assert logged["batch/loss"] == read_metrics(second.metrics)["batch/loss"]
    assert list((tmp_path / "cache" / "archives").glob(".*")) == []
    packed.write_bytes(packed.read_bytes()[:-1000])
    capsys.readouterr()
    assert pretrain(packed, out="damaged") == 2
    assert "the archive is truncated or damaged" in error_of(capsys)
    assert not (tmp_path / "damaged").exists()


def test_tensorboard_gets_what_the_metrics_file_gets(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    write_images(tmp_path / "images")
    assert pretrain(tmp_path / "images", "--trainer.log_to", "[tensorboard]") == 0
    folder = RunFolder(tmp_path / "run")
    [events] = folder.path.rglob("events.out.tfevents.*")
    found = accumulator.EventAccumulator(str(events))
    found.Reload()
    logged = read_metrics(folder.metrics)
    assert set(found.Tags()["scalars"]) >= logged.keys()
    losses = [(event.step, event.value) for event in found.Scalars("batch/loss")]
    assert losses == [(step, pytest.approx(value)) for step, _, value in logged["batch/loss"]]


def test_a_missing_logger_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None if name == "wandb" else object())
    write_images(tmp_path / "images")
    assert pretrain(tmp_path / "images", "--trainer.log_to", "[wandb]") == 2
    assert "trainer.log_to: wandb is not installed; pip install 'ldreg[wandb]'" in error_of(capsys)
    assert not (tmp_path / "run").exists()


def test_the_alarm_stops_a_run_that_collapses_and_the_card_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {
        "recipe": "digits/simclr",
        "regularizer": "minlid",
        "minlid.beta": "100",
        "minlid.k": "32",
        "schedule.epochs": "60",
        "monitor.every_steps": "1",
        "monitor.every_epochs": "5",
        "monitor.stop_on_alarm": "true",
        "trainer.device": "cpu",
        "trainer.threads": "1",
    }
    assert main(["pretrain", *as_words(options), "--out", "run"]) == 0
    folder = RunFolder(tmp_path / "run")
    card = json.loads(folder.card.read_text())
    assert card["stopped"].startswith("collapse at epoch ")
    assert card["epochs"] < 60
    assert card["stopped"] in folder.log.read_text()
    assert f"stopped: {card['stopped']}" in capsys.readouterr().out


def test_two_runs_of_one_process_choose_two_folders(tmp_path: Path) -> None:
    write_images(tmp_path / "images")
    words = as_words(changed(FOLDER, data__path=str(tmp_path / "images"), schedule__epochs="1"))
    assert [main(["pretrain", *words]) for _ in range(2)] == [0, 0]
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_a_killed_reading_process_is_reported_with_where_the_run_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root, first = write_splits(tmp_path / "images"), os.getpid()

    def killed(self: ImageFiles, index: int) -> Decoded:
        assert os.getpid() != first
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    monkeypatch.setattr(ImageFiles, "read", killed)
    assert pretrain(root, data__workers="1", data__resident="no") == 2
    assert "fewer data.workers need less; nothing was saved yet" in capsys.readouterr().err


BOMB = 60_000  # side of an image of 3.6 gigapixels, in a file of some kilobytes


def image(seed: int) -> Image.Image:
    return Image.fromarray(pixels(seed, 12, 14))


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
    """Files that are named like images, with a part of the reason for each."""
    image(1).save(folder / "whole.jpg")
    image(2).save(folder / "whole.png")
    jpeg, png = (bytearray((folder / f"whole.{kind}").read_bytes()) for kind in ("jpg", "png"))
    for kind in ("jpg", "png"):
        (folder / f"whole.{kind}").unlink()
    corrupt = png.copy()
    corrupt[60:200] = bytes(140)
    files = {
        "truncated.jpg": (bytes(jpeg[:-150]), "truncated"),
        "truncated.png": (bytes(png[:150]), "truncated"),
        "corrupt.png": (bytes(corrupt), ""),
        "zero.png": (b"", "the file is empty"),
        "bomb.png": (bomb(), "exceeds limit"),
        "text.jpg": (b"not an image at all", "not an image of a known format"),
        "page.png": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EOF\n", "not an image of a known format"),
        "archive.bmp": (b"PK\x03\x04" + bytes(60), "not an image of a known format"),
    }
    for name, (content, _) in files.items():
        (folder / name).write_bytes(content)
    return {folder / name: reason for name, (_, reason) in files.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images as usual, in two classes."""
    for number in range(COUNT):
        save(tmp_path / "images" / ("cat", "dog")[number % 2] / f"{number:02}.png", number, 12, 14)
    return tmp_path / "images"


@pytest.mark.parametrize("workers", ["0", "2"])
def test_odd_files_are_read_or_counted_listed_and_left_out(
    workers: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    readable, bad = write_readable(folder / "cat"), write_unreadable(folder / "dog")
    assert pretrain(Path("images"), data__max_unreadable="0.2", data__workers=workers) == 0
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
        for number in range(COUNT):
            path = save(folder.parent / "squares" / split / "cat" / f"{number:02}.png", number)
        bad.append(path.with_name("zero.png"))
        bad[-1].touch()
    assert pretrain(Path("squares"), data__max_unreadable="0.1", data__resident="yes") == 0
    log = RunFolder(Path("run")).log.read_text()
    assert [log.count(f"unreadable image: {path.relative_to(folder.parent)}: ") for path in bad] == [1, 1]


@pytest.mark.parametrize("resident", ["yes", "no"])
def test_the_log_counts_transparent_images(folder: Path, resident: str) -> None:
    for number in range(COUNT):
        path = folder.parent / "icons" / "train" / "cat" / f"{number:02}.png"
        (save_transparent if number < 5 else save)(path, number, 12, 12)
    assert pretrain(Path("icons"), data__resident=resident) == 0
    assert RunFolder(Path("run")).log.read_text().count(f"5 of {COUNT} images have transparent pixels") == 1


def test_one_more_than_the_share_that_is_borne_ends_the_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = write_unreadable(folder / "dog")
    assert pretrain(Path("images"), data__max_unreadable=str((len(bad) - 0.5) / (COUNT + len(bad)))) == 2
    line = error_of(capsys)
    assert "data.max_unreadable: expected at most " in line
    assert f"got {len(bad)} of {COUNT + len(bad)}" in line
    assert not RunFolder(Path("run")).encoder.exists()


def test_a_failed_resume_keeps_the_run(folder: Path) -> None:
    """A new run that fails before its first step leaves no folder; one that is resumed loses nothing."""
    options = {"data__resident": "no", "data__max_unreadable": "0.5"}
    assert pretrain(Path("images"), **options) == 0
    shutil.rmtree("run/checkpoints")
    Path("run/card.json").unlink()
    encoder, config = Path("run/encoder.safetensors"), Path("run/config.yaml")
    before = encoder.read_bytes(), config.read_bytes()
    for path in sorted(folder.rglob("*.png"))[1:]:
        path.write_bytes(b"")
    assert main(["pretrain", "--resume", "run"]) == 2
    assert (encoder.read_bytes(), config.read_bytes()) == before
    encoder.parent.rename("elsewhere")
    assert pretrain(Path("images"), **options) == 2
    assert not Path("run").exists()
