"""What a run says of itself while it goes on."""

from types import SimpleNamespace
from typing import Any

import pytest

from ldreg.train.observers import ProgressBar

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


def test_an_accuracy_that_training_has_not_moved_is_told_like_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    before, after = said(dict(UNTRAINED), {"batch/loss": 4.0, "set/lid": 6.0, "set/linear": 0.7}, capsys)
    assert before.endswith("set LID 8.00  kNN 0.300  linear 0.500")
    assert after.endswith("loss 4.00  set LID 6.00  kNN 0.300  linear 0.700")


def test_what_the_untrained_encoder_had_is_not_told_beside_a_trained_one(capsys: pytest.CaptureFixture[str]) -> None:
    _, after = said(dict(UNTRAINED), {"batch/loss": 4.0}, capsys)
    assert after.endswith("s: loss 4.00")


def test_an_untrained_encoder_without_a_lid_is_not_told_again(capsys: pytest.CaptureFixture[str]) -> None:
    collapsed = {**UNTRAINED, "set/lid": float("nan")}
    before, after = said(dict(collapsed), {"batch/loss": 4.0}, capsys)
    assert before.endswith("set LID –  kNN 0.300  linear 0.500")
    assert after.endswith("s: loss 4.00")
    _, after = said(dict(collapsed), {"batch/loss": 4.0, "set/lid": float("nan")}, capsys)
    assert after.endswith("s: loss 4.00  set LID –  kNN 0.300  linear 0.500")
