"""The words of encoders that were trained to collapse, and that were not."""

from functools import partial
from pathlib import Path

import pytest
from torch import Tensor

from ldreg.assessment.source import open_source
from ldreg.evaluation.features import features
from ldreg.inspection import inspect
from ldreg.reporting.record import Beside
from ldreg.training.recipes import load_recipe
from ldreg.training.run import pretrain
from ldreg.training.settings import resolve


def representations(folder: Path, recipe: str = "digits/simclr", **options: str) -> Tensor:
    """Of the training images, by an encoder that was trained for a quarter of the recipe's epochs."""
    few = {"schedule.epochs": "20", "monitor.every_epochs": "20", "monitor.probe": "false", "monitor.knn": "false"}
    changes = [*few.items(), *((name.replace("__", "."), value) for name, value in options.items())]
    pretrain(resolve(load_recipe(recipe), changes), folder, command="test")
    source = open_source(folder)
    assert source.data is not None
    return features(source.encoder, source.data, "train", cache=folder / "cache").representations


@pytest.mark.slow
def test_an_encoder_that_minimized_lid_is_told_from_sound_ones(tmp_path: Path) -> None:
    plain = representations(tmp_path / "plain")
    sound = representations(tmp_path / "ldreg", "digits/simclr_ldreg")
    minimized = partial(representations, regularizer="minlid", minlid__k="32", minlid__beta="10")
    alone = inspect(plain, k=64)
    assert alone.guidance.verdict == "lower"
    assert alone.in_words().count("collapse") == 1  # as one of several causes
    assert "fill few directions" not in alone.in_words()
    assert told(sound, plain) == "similar"
    flat = minimized(tmp_path / "minlid")
    assert told(flat, plain) == "collapse"
    assert "As a whole they fill few directions" in inspect(flat, k=64).in_words()


def told(x: Tensor, trusted: Tensor) -> Beside | None:
    report = inspect(x, k=64, compare=trusted)
    assert report.comparison is not None
    assert ("Local collapse beside" in report.in_words()) == (report.comparison.verdict == "collapse")
    return report.comparison.verdict
