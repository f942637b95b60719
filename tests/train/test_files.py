"""`ldreg pretrain` on folders and archives of images as people have them, and what it leaves and says."""

import json
import os
import signal
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
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


def write_images(folder: Path, count: int = COUNT, *, suffix: str = ".png") -> list[Path]:
    """Images of different sizes."""
    generator = np.random.default_rng(count)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:02}{suffix}" for number in range(count)]
    for path in paths:
        height, width = generator.integers(10, 15, 2)
        Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path)
    return paths


def write_splits(root: Path) -> Path:
    for split, count in (("train", COUNT // 2), ("val", 6)):
        for name in ("cat", "dog"):
            write_images(root / split / name, count)
    return root


def write_unreadable(folder: Path) -> list[Path]:
    """Three files that look like images and are none: cut short, empty, and text."""
    [whole] = write_images(folder / "whole", 1, suffix=".jpg")
    cut, empty, text = folder / "cut.jpg", folder / "empty.png", folder / "text.jpg"
    cut.write_bytes(whole.read_bytes()[:-200])
    whole.unlink()
    whole.parent.rmdir()
    empty.touch()
    text.write_text("not an image at all")
    return [cut, empty, text]


def pretrain(path: Path, *words: str, out: str = "run", **options: str) -> int:
    given = changed(FOLDER, data__path=str(path), **options)
    return main(["pretrain", *as_words(given), *words, "--out", out])


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that says what was wrong."""
    said = capsys.readouterr().err
    assert "Traceback" not in said
    [line] = [line for line in said.splitlines() if "error" in line]
    return line


def test_unreadable_images_are_left_out_and_listed(tmp_path: Path) -> None:
    write_splits(tmp_path / "images")
    bad = write_unreadable(tmp_path / "images" / "train" / "cat")
    assert pretrain(tmp_path / "images", data__max_unreadable="0.1") == 0
    log = RunFolder(tmp_path / "run").log.read_text()
    reasons = ("truncated", "the file is empty", "not an image of a known format")
    for path, reason in zip(bad, reasons, strict=True):
        lines = [line for line in log.splitlines() if f"unreadable image: {path}: " in line]
        assert lines, log
        assert all(reason in line.lower() for line in lines)
    assert RunFolder(tmp_path / "run").encoder.exists()


def test_each_unreadable_image_is_listed_once(tmp_path: Path) -> None:
    write_splits(tmp_path / "images")
    bad = write_unreadable(tmp_path / "images" / "train" / "cat")
    assert pretrain(tmp_path / "images", data__max_unreadable="0.1", schedule__epochs="3") == 0
    log = RunFolder(tmp_path / "run").log.read_text()
    assert [log.count(f"unreadable image: {path}: ") for path in bad] == [1, 1, 1]


def test_images_of_one_size_with_unreadable_ones_train_too(tmp_path: Path) -> None:
    for path in write_images(tmp_path / "images" / "cat"):
        Image.open(path).resize((8, 8)).save(path)
    bad = write_unreadable(tmp_path / "images" / "cat")
    assert pretrain(tmp_path / "images", data__max_unreadable="0.1") == 0
    log = RunFolder(tmp_path / "run").log.read_text()
    assert all(f"unreadable image: {path}: " in log for path in bad)


def test_too_many_unreadable_images_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_images(tmp_path / "images" / "cat")
    write_unreadable(tmp_path / "images" / "cat")
    assert pretrain(tmp_path / "images", data__max_unreadable="0.05") == 2
    line = error_of(capsys)
    assert "data.max_unreadable: expected at most 5.00% unreadable images, got 3 of 43" in line
    assert not RunFolder(tmp_path / "run").encoder.exists()


def test_the_share_is_of_all_images_and_not_of_those_the_monitor_looks_at(tmp_path: Path) -> None:
    # A tenth is unreadable, and borne. Of the eight images that the monitor looks at, one would be more than a tenth:
    # wherever they lie, one of these ten sets has one of them unreadable.
    for start in range(0, COUNT, 4):
        images = tmp_path / f"images{start}"
        for path in write_images(images / "cat")[start : start + 4]:
            path.write_bytes(b"no image")
        assert pretrain(images, data__max_unreadable="0.1", monitor__points="8", out=f"run{start}") == 0


def test_a_folder_without_a_test_split_trains_without_probes(tmp_path: Path) -> None:
    write_images(tmp_path / "images" / "train" / "cat", COUNT // 2)
    write_images(tmp_path / "images" / "train" / "dog", COUNT // 2)
    assert pretrain(tmp_path / "images") == 0
    logged = read_metrics(RunFolder(tmp_path / "run").metrics)
    assert "set/lid" in logged
    assert not logged.keys() & {"set/linear", "set/knn"}


def test_loose_images_train(tmp_path: Path) -> None:
    write_images(tmp_path / "images")
    assert pretrain(tmp_path / "images") == 0
    logged = read_metrics(RunFolder(tmp_path / "run").metrics)
    assert len(logged["batch/loss"]) == 2 * (COUNT // 16)
    assert "set/linear" not in logged


def test_a_set_with_fewer_images_than_vote_by_default_trains(tmp_path: Path) -> None:
    write_splits(tmp_path / "images")
    assert pretrain(tmp_path / "images", monitor__knn_k="null") == 0
    assert "set/knn" in read_metrics(RunFolder(tmp_path / "run").metrics)


def test_too_many_neighbors_for_the_set_are_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_images(tmp_path / "images")
    assert pretrain(tmp_path / "images", monitor__k="64") == 2
    assert "monitor.k: expected" in error_of(capsys)
    assert not (tmp_path / "run").exists()


def test_an_archive_trains_and_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_damaged_archive_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_splits(tmp_path / "images")
    packed = tmp_path / "images.tar.xz"
    with tarfile.open(packed, "w:xz") as tar:
        tar.add(tmp_path / "images", "images")
    packed.write_bytes(packed.read_bytes()[:-1000])
    assert pretrain(packed) == 2
    assert "the archive is truncated or damaged" in error_of(capsys)
    assert not (tmp_path / "run").exists()


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
    # It is as the alarm says: the last value of a measure of the set lies under its share of the largest.
    logged = read_metrics(folder.metrics)
    watched = ([value for _, _, value in logged[name]] for name in ("set/lid", "set/lid_low"))
    assert any(values[-1] < 0.65 * max(values) for values in watched)


def test_two_runs_of_one_process_choose_two_folders(tmp_path: Path) -> None:
    write_images(tmp_path / "images")
    words = as_words(changed(FOLDER, data__path=str(tmp_path / "images"), schedule__epochs="1"))
    assert main(["pretrain", *words]) == 0
    assert main(["pretrain", *words]) == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_a_killed_reading_process_is_told_with_where_the_run_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root, first = write_splits(tmp_path / "images"), os.getpid()

    def killed(self: ImageFiles, index: int) -> Decoded:
        assert os.getpid() != first
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    monkeypatch.setattr(ImageFiles, "read", killed)
    words = as_words(changed(FOLDER, **{"data.path": str(root), "data.workers": "1", "data.resident": "no"}))
    assert main(["pretrain", *words, "--out", "run"]) == 2
    assert "fewer data.workers need less; nothing was saved yet" in capsys.readouterr().err
