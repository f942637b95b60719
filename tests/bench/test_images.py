"""Benchmarks of views and of a training step."""

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
import torch
from PIL import Image

from ldreg.bench import step, views
from ldreg.bench.measure import Batches, Pictures, Setting, input_bytes
from ldreg.bench.regularizer import pseudocode_penalty
from ldreg.regularizers import LDReg

SETTING = Setting(Batches(16, 16, "small_cnn"), k=8, repeats=2)


@pytest.mark.parametrize("name", views.MAKERS)
@pytest.mark.parametrize("files", [False, True])
def test_every_maker_gives_two_normalized_views(name: str, files: bool, tmp_path: Path) -> None:
    setting = Setting(Pictures(6, 32, files=files), threads=1)
    batches: Any = views.MAKERS[name](setting, tmp_path)
    for _ in range(2):
        first, second = next(batches)
        assert first.shape == second.shape == (6, 3, 32, 32)
        assert first.dtype == torch.float32
        assert not torch.equal(first, second)
    # Values from 0 to 1, less a mean near 0.45, by a deviation near 0.225.
    assert -2.2 < first.min() < -0.3
    assert 0.3 < first.max() < 2.7
    batches.close()


def test_pictures_depend_on_the_seed_and_have_the_bits_of_photographs(tmp_path: Path) -> None:
    size = Pictures(2, 224)
    pictures = views.draw(size, seed=0)
    assert torch.equal(views.draw(size, seed=0), pictures)
    assert not torch.equal(views.draw(size, seed=2), pictures)
    path = views.write_files(pictures, tmp_path)[1]
    with Image.open(path) as read:
        assert read.size == (400, 350)
        decoded = torch.frombuffer(bytearray(read.tobytes()), dtype=torch.uint8).view(350, 400, 3).permute(2, 0, 1)
    assert (decoded.float() - pictures[1].float()).abs().mean() < 10
    assert 3 < 8 * path.stat().st_size / (350 * 400) < 6  # bits a pixel; ImageNet's have about five
    assert views.as_pil(pictures)[0].getpixel((7, 5)) == tuple(pictures[0, :, 5, 7].tolist())
    assert input_bytes(size) == pictures.numel()
    assert Pictures(1, 32).shape == (32, 32)


def test_views_follow_the_recipes() -> None:
    small, large = views.config_of(Pictures(1, 32)).resolve(), views.config_of(Pictures(1, 224)).resolve()
    assert (small.blur[0], large.blur[0]) == (0, 0.5)
    assert small.jitter[0] == large.jitter[0] / 2


@pytest.mark.parametrize(("workers", "together"), [(True, 3), (False, 1)])
def test_workers_are_timed_together(workers: bool, together: int) -> None:
    batches = MagicMock()
    batches.__next__.return_value = ()
    setting = Setting(Pictures(4, 16), repeats=2, threads=3)
    measured, deviation = views.measure_batches(lambda *_: batches, setting, workers=workers)
    assert batches.__next__.call_count == together * (views._RESERVE + 2)
    assert len(measured.seconds) == 2
    assert (deviation, measured.extra_mb, measured.host) == (None, None, None)


def test_settings_are_those_of_the_recipe() -> None:
    cifar = Setting(Batches(512, 32, "resnet18"), device="cuda")
    settings = step.settings_of(cifar, recipe="simclr_ldreg")
    trainer = settings.trainer
    assert (settings.run.batch_size, settings.encoder.name, settings.encoder.stem) == (512, "resnet18", "cifar")
    assert (trainer.precision, trainer.compile, trainer.channels_last) == ("bf16", True, True)
    assert (settings.run.regularizer, settings.regularizer["k"], settings.regularizer["beta"]) == ("ldreg", 64, 0.03)
    assert not step.settings_of(cifar, compiled=False).trainer.compile
    plain = step.settings_of(SETTING)
    assert (plain.run.regularizer, plain.trainer.precision, plain.trainer.compile) == ("none", "fp32", False)
    assert plain.encoder.stem is None


def test_blocks_with_and_without_ldreg_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Mock(side_effect=LDReg.forward)
    monkeypatch.setattr(LDReg, "forward", lambda *arguments: counted(*arguments))
    measured, _ = step.train(SETTING, regularizer="ldreg")
    assert counted.call_count == 1 + 2 * 3  # a step that warms up, and two blocks of three
    assert len(measured.seconds) == 2
    assert measured.without is not None
    assert 0 < measured.without < 10 * measured.median
    assert tuple(measured.parts) == step.PARTS
    # The parts are all there is except the wait for the first batch of a block.
    assert 0.5 * measured.median < sum(measured.parts.values()) < 2 * measured.median


def test_the_authors_way_takes_the_place_of_ldreg(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Mock(side_effect=pseudocode_penalty)
    monkeypatch.setattr(step, "pseudocode_penalty", counted)
    measured, _ = step.train(SETTING, regularizer="pseudocode")
    assert counted.call_count == 7
    (representations,), options = counted.call_args
    assert len(representations) == 32  # both views of every image
    assert options == {"k": 8}
    assert measured.parts["LDReg"] > 0


def test_a_step_without_a_regularizer_has_no_part_for_it() -> None:
    measured, _ = step.train(SETTING, regularizer=None)
    assert (measured.without, set(measured.parts)) == (None, {*step.PARTS} - {"LDReg"})


@pytest.mark.slow
def test_lightly_steps() -> None:
    measured, _ = step.train_lightly(SETTING)
    assert (len(measured.seconds), measured.parts) == (2, {})
