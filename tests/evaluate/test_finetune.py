"""The whole encoder learns, with all labels or a part of them, and goes on after an interruption."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ldreg.data import DataConfig
from ldreg.encoders.checkpoints import LoadedEncoder
from ldreg.evaluate.extract import Compute
from ldreg.evaluate.protocols import FinetuneConfig, LinearConfig, finetune, linear_evaluation, usual_plan
from ldreg.train.checkpoints import LAST
from ldreg.train.engine import InterruptedRunError

DIGITS = DataConfig()


def tune(encoder: LoadedEncoder, config: FinetuneConfig, path: Path, **more: Any) -> Any:
    return finetune(encoder, DIGITS, config, work=path, compute=Compute("cpu"), **more)


def test_the_usual_settings_are_those_published() -> None:
    plan = usual_plan(0.1)
    assert (plan.optimizer.name, plan.optimizer.nesterov, plan.optimizer.weight_decay) == ("sgd", True, 0)
    assert replace(plan, batch_size=4096).peak_lr == pytest.approx(0.8)
    assert plan.schedule.epochs == 30
    assert usual_plan(0.01).schedule.epochs == 60


def test_it_beats_a_probe_on_the_untrained_encoder_and_leaves_it_as_it_was(
    untrained: LoadedEncoder, tmp_path: Path
) -> None:
    before = {name: value.clone() for name, value in untrained.module.state_dict().items()}
    found = tune(untrained, FinetuneConfig(epochs=4, lr=0.4, batch_size=64, min_scale=0.8), tmp_path)
    probe = linear_evaluation(
        untrained,
        DIGITS,
        LinearConfig("transfer", epochs=4, lr=0.1, batch_size=64, min_scale=0.8),
        work=tmp_path,
        cache=tmp_path,
        compute=Compute("cpu"),
    )
    assert found.accuracy > 0.93 > probe.accuracy
    assert found.best >= found.accuracy == found.history[-1]["accuracy"]
    for name, value in untrained.module.state_dict().items():
        assert torch.equal(value, before[name])
    state = torch.load(next(tmp_path.rglob("finetune*/" + LAST)), weights_only=True)["state_dict"]
    moved = [name for name, value in before.items() if not torch.equal(state[f"encoder.{name}"], value)]
    assert set(moved) == set(before)  # batch norms' statistics among them


def test_a_part_of_the_labels_is_a_part_of_the_images(untrained: LoadedEncoder, tmp_path: Path) -> None:
    found = tune(untrained, FinetuneConfig(epochs=1, fraction=0.1), tmp_path)
    assert (found.train_images, found.test_images, found.batch_size) == (142, 360, 128)


def test_an_interrupted_training_goes_on_bitwise(untrained: LoadedEncoder, tmp_path: Path) -> None:
    config = FinetuneConfig(epochs=3, batch_size=128, fraction=0.5)
    whole = tune(untrained, config, tmp_path / "whole")

    def stop(step: str, fraction: float) -> None:
        if step.startswith("epoch 1/"):
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRunError, match=r"goes on from step 5\b"):
        tune(untrained, config, tmp_path / "broken", progress=stop)
    assert tune(untrained, config, tmp_path / "broken").history == whole.history
    one, two = (
        torch.load(next((tmp_path / name).rglob(LAST)), weights_only=True)["state_dict"] for name in ("whole", "broken")
    )
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_wrong_options_are_named() -> None:
    with pytest.raises(ValueError, match=r"fraction: expected above 0 and at most 1, got 1\.5"):
        FinetuneConfig(fraction=1.5)
    with pytest.raises(ValueError, match="epochs: expected at least 1, got 0"):
        FinetuneConfig(epochs=0)
