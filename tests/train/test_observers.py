"""Findings and progress of a run: where they are shown, and that looking leaves no trace in the training."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from tests.data.pictures import pixels
from tests.train.options import FOLDER, as_words, changed
from tests.train.states import assert_same

from ldreg.cli import main
from ldreg.inspection.measure import inspect, quick_report
from ldreg.inspection.report import findings_in_words
from ldreg.record import Finding
from ldreg.train import observers
from ldreg.train.checkpoints import LAST
from ldreg.train.folder import RunFolder
from ldreg.train.observers import ProgressBar
from ldreg.train.recipes import load_recipe
from ldreg.train.run import Run, pretrain
from ldreg.train.settings import Settings, resolve

QUICK = {"schedule.epochs": "1", "schedule.warmup_epochs": "0", "trainer.threads": "1", "trainer.device": "cpu"}


def digits(**options: str) -> Settings:
    return resolve(load_recipe("digits/simclr"), list(changed(QUICK, **options).items()))


@pytest.fixture
def icons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two thirds of 60 images are black squares."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LDREG_CACHE", str(tmp_path / "cache"))
    for number in range(60):
        path = tmp_path / "icons" / f"{number:02}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels(number) * np.uint8(number % 3 == 0)).save(path)
    return tmp_path / "icons"


def test_black_squares_are_said_at_the_start_and_at_the_end(icons: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = as_words(changed(FOLDER, data__path=str(icons)))
    assert main(["pretrain", *words, "--out", "run"]) == 0
    folder, output = RunFolder(Path("run")), capsys.readouterr()
    kept = json.loads(folder.card.read_text())["findings"]
    images = [found for found in kept if found["of"] == "images"]
    assert [(found["kind"], found["severity"], found["share"]) for found in images] == [
        ("degenerate", "critical", pytest.approx(2 / 3))
    ]
    assert images[0]["numbers"] == {"zero": 40, "infinite": 0, "dead": 40, "noise": 0}
    assert "degenerate" in {found["kind"] for found in kept if found["of"] == "representations"}
    log = folder.log.read_text()
    start, end = log[: log.index("before training")], log[log.index("before training") :]
    for of in ("images", "untrained encoder"):
        assert f"WARNING {of}: " in start
        assert f"\n{of}: " in output.err
    assert f"WARNING images: {images[0]['text']}" in end
    assert f"[critical] images: {images[0]['text']}" in output.out.splitlines()
    with safe_open(folder.encoder, "pt") as file:
        assert "findings" not in json.loads(file.metadata()["ldreg"])
    assert main(["pretrain", "--resume", "run"]) == 0  # which was finished before
    seconds = re.compile(r"in \d+\.\d s")  # taken from the clock
    assert seconds.sub("", capsys.readouterr().out) == seconds.sub("", output.out)


def test_nothing_unusual_is_one_line_at_the_end(tmp_path: Path) -> None:
    result = pretrain(digits(), tmp_path / "run")
    assert [(found.of, found.kind) for found in result.findings] == [("representations", "nothing_unusual")]
    assert "WARNING" not in RunFolder(tmp_path / "run").log.read_text()


def test_a_part_of_the_set_is_looked_at_and_named_by_its_place_in_the_whole(tmp_path: Path) -> None:
    run = Run(digits(monitor__points="200"), RunFolder(tmp_path))
    extract = run.findings._extract
    x, labels, *_ = extract()
    assert labels is not None
    assert extract.pixels is not None
    assert (len(x), len(extract.rows), extract.pixels.shape) == (200, 200, (200, 64))
    assert torch.equal(labels, run.images.labels[list(extract.rows)])
    assert extract.names == [run.images.classes[label] for label in labels.tolist()]
    assert torch.equal(extract.pixels, run.images.images[list(extract.rows)].flatten(1).float())  # type: ignore[union-attr]
    first = extract.pixels
    extract()
    assert extract.pixels is first  # decoding and shrinking happen once


def test_looking_leaves_no_trace_in_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(300, 16, generator=torch.Generator().manual_seed(0))
    before, numpy_before = torch.get_rng_state(), str(np.random.get_state())
    observers.look(x, "images", k=32, rows=range(300))
    assert torch.equal(torch.get_rng_state(), before)
    assert str(np.random.get_state()) == numpy_before
    pretrain(digits(), tmp_path / "with")
    monkeypatch.setattr(observers, "look", lambda *_, **__: [])
    assert pretrain(digits(), tmp_path / "without").findings == []
    states = (torch.load(tmp_path / name / "checkpoints" / LAST, weights_only=True) for name in ("with", "without"))
    assert_same(*(state["state_dict"] for state in states))


def test_values_that_are_not_finite_are_a_finding() -> None:
    x = torch.randn(40, 3)
    x[:10, 0] = float("nan")
    (found,) = observers.look(x, "representations", k=8, rows=range(40))
    assert (found.kind, found.severity, found.share) == ("not_finite", "critical", 0.25)


def test_values_beyond_float32_are_looked_at() -> None:
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    small, large = (observers.look(scale * x, "representations", k=8, rows=range(40)) for scale in (1.0, 1e37))
    assert [found.kind for found in large] == [found.kind for found in small]


def test_rows_in_words_are_those_of_the_images() -> None:
    x = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    x[7] = x[3]
    x[8] = x[4]
    report = quick_report(x, k=16)
    assert report.findings == inspect(x, k=16).findings
    found: Finding = next(one for one in findings_in_words(report, "images") if one.kind == "duplicates")
    assert "(rows 3, 4)" in found.text
    moved = next(one for one in findings_in_words(report, "images", range(1000, 1100)) if one.kind == "duplicates")
    assert "(rows 1003, 1004)" in moved.text


UNTRAINED = {"set/lid": 8.0, "set/knn": 0.3, "set/linear": 0.5}


def trainer(step: int) -> Any:
    return SimpleNamespace(global_step=step, current_epoch=step - 1, max_epochs=step, is_global_zero=True)


def said(latest: dict[str, float], then: dict[str, float], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines before training and after the first epoch, by which `latest` became `then`."""
    module: Any = SimpleNamespace(total_steps=1)
    bar = ProgressBar(latest)
    bar.on_train_start(trainer(0), module)
    latest |= then
    bar.on_train_epoch_end(trainer(1), module)
    return capsys.readouterr().err.splitlines()


def test_an_accuracy_that_training_has_not_moved_is_shown_like_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    before, after = said(dict(UNTRAINED), {"batch/loss": 4.0, "set/lid": 6.0, "set/linear": 0.7}, capsys)
    assert before.endswith("set LID 8.00  kNN 0.300  linear 0.500")
    assert after.endswith("loss 4.00  set LID 6.00  kNN 0.300  linear 0.700")


def test_what_the_untrained_encoder_had_is_not_shown_with_those_of_a_trained_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, after = said(dict(UNTRAINED), {"batch/loss": 4.0}, capsys)
    assert after.endswith("s: loss 4.00")


def test_an_untrained_encoder_without_a_lid_is_not_shown_again(capsys: pytest.CaptureFixture[str]) -> None:
    collapsed = {**UNTRAINED, "set/lid": float("nan")}
    before, after = said(dict(collapsed), {"batch/loss": 4.0}, capsys)
    assert before.endswith("set LID –  kNN 0.300  linear 0.500")
    assert after.endswith("s: loss 4.00")
    _, after = said(dict(collapsed), {"batch/loss": 4.0, "set/lid": float("nan")}, capsys)
    assert after.endswith("s: loss 4.00  set LID –  kNN 0.300  linear 0.500")
