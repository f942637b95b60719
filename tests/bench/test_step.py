import pytest
import torch

from ldreg.bench import lightly_step, training_step
from ldreg.bench.benchmark import Batches, Setting
from ldreg.bench.measure import PARTS, Stopwatch
from ldreg.bench.regularizer import pseudocode_penalty
from ldreg.regularizers import LDReg

SETTING = Setting(Batches(16, 16, "small_cnn"), k=8, repeats=2)


def test_settings_are_those_of_the_recipe() -> None:
    cifar = Setting(Batches(512, 32, "resnet18"), device="cuda")
    settings = training_step.settings_of(cifar, regularized=True)
    assert (settings.run.batch_size, settings.encoder.name, settings.encoder.stem) == (512, "resnet18", "cifar")
    assert (settings.trainer.precision, settings.trainer.compile, settings.trainer.channels_last) == (
        "bf16",
        True,
        True,
    )
    assert (settings.run.regularizer, settings.regularizer["k"], settings.regularizer["beta"]) == ("ldreg", 64, 0.03)
    assert not training_step.settings_of(cifar, regularized=True, compiled=False).trainer.compile
    plain = training_step.settings_of(SETTING, regularized=False)
    assert (plain.run.regularizer, plain.trainer.precision, plain.trainer.compile) == ("none", "fp32", False)
    assert plain.encoder.stem is None


def test_blocks_with_and_without_ldreg_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    forward = LDReg.forward

    def counted(self: LDReg, *arguments: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return forward(self, *arguments)

    monkeypatch.setattr(LDReg, "forward", counted)
    measured = training_step.train(SETTING, regularizer="ldreg")
    assert len(calls) == 1 + 2 * 3  # a step that warms up, and two blocks of three
    assert len(measured.seconds) == 2
    assert measured.without is not None
    assert 0 < measured.without < 10 * measured.median
    assert tuple(measured.parts) == PARTS
    # The parts are all there is but for the wait for the first batch of a block.
    assert 0.5 * measured.median < sum(measured.parts.values()) < 2 * measured.median


def test_a_step_without_a_regularizer_has_no_part_for_it() -> None:
    measured = training_step.train(SETTING, regularizer=None)
    assert measured.without is None
    assert set(measured.parts) == {*PARTS} - {"LDReg"}


def test_the_authors_way_takes_the_place_of_ldreg(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Size] = []

    def noted(representations: torch.Tensor, *, k: int) -> torch.Tensor:
        assert k == 8
        seen.append(representations.shape)
        return pseudocode_penalty(representations, k=k)

    monkeypatch.setattr(training_step, "pseudocode_penalty", noted)
    measured = training_step.train(SETTING, regularizer="pseudocode")
    assert len(seen) == 7
    assert seen[0][0] == 32  # both views of every image
    assert measured.parts["LDReg"] > 0


def test_marks_belong_to_their_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Stopwatch("cpu")
    clock = iter([0.0, 1.0, 3.0, 10.0, 14.0])
    monkeypatch.setattr(watch, "_now", lambda: next(clock))
    watch.mark("views")  # the clock stands
    watch.begin()
    watch.mark("views")
    watch.mark("loss")
    watch.end_step()
    watch.stop()
    watch.begin()
    watch.mark("views")
    watch.end_step()
    assert watch.parts() == {"views": 2.5, "loss": 1.0}


@pytest.mark.slow
def test_lightly_steps() -> None:
    measured = lightly_step.train(SETTING)
    assert len(measured.seconds) == 2
    assert measured.parts == {}
