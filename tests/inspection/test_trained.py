"""The findings of encoders that were trained to collapse, and that were not."""

from functools import partial
from pathlib import Path

import pytest
from torch import Tensor

from ldreg.evaluate.features import features
from ldreg.evaluate.source import open_source
from ldreg.inspection.measure import inspect
from ldreg.train.recipes import load_recipe
from ldreg.train.run import pretrain
from ldreg.train.settings import resolve


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
    assert told(sound, plain) in ("similar_beside", "higher_beside")
    flat = minimized(tmp_path / "minlid")
    assert told(flat, plain) == "collapsed_beside"


def told(x: Tensor, trusted: Tensor) -> str:
    report = inspect(x, k=64, compare=trusted)
    return next(finding.kind for finding in report.findings if "lid_5" in finding.numbers)
