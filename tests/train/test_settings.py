"""Settings: where values come from, and what is refused."""

import re
from typing import Any

import pytest

from ldreg.options import options_help
from ldreg.train.recipes import flattened, load_recipe
from ldreg.train.settings import resolve, run_options


def test_the_command_line_beats_the_recipe_which_beats_defaults() -> None:
    found = resolve({"batch_size": 128, "seed": 3}, [("seed", "4")])
    assert (found.run.batch_size, found.run.seed, found.run.method) == (128, 4, "simclr")


def test_values_are_typed() -> None:
    found = resolve({}, [("simclr.projector", "[64, 32]"), ("trainer.compile", None), ("optimizer.lr", "1e-3")])
    assert found.method.projector == (64, 32)
    assert found.trainer.compile is True
    assert found.optimizer.lr == 1e-3


def test_the_tree_gives_the_same_settings_again() -> None:
    for name in ("digits/moco_ldreg", "imagenet/simclr_vit", "cifar10/mae_ldreg"):
        found = resolve(load_recipe(name), [("seed", "5")])
        assert resolve(found.tree) == found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([("metod", "byol")], "unknown setting 'metod'; nearest: 'method'"),
        ([("method", "byoll")], "method: expected one of .* got 'byoll'; nearest: 'byol'"),
        ([("regularizer", "ldregg")], "regularizer: expected one of none, ldreg, .* nearest: 'ldreg'"),
        ([("simclr.temprature", "1")], "'simclr.temperature'"),
        ([("byol.momentum", "0.9")], "byol.momentum: expected options of the method 'simclr', got one of 'byol'"),
        ([("ldreg.k", "3")], "expected options of the regularizer 'none', got one of 'ldreg'"),
        ([("data.name", "cifar11")], "data.name: expected a known dataset, got 'cifar11'; nearest: cifar10"),
        ([("simclr.temperature", "-1")], "simclr.temperature: expected"),
        ([("batch_size", "1")], "batch_size: expected at least 2"),
        ([("batch_size", "30"), ("trainer.accumulate", "4")], "batch_size: expected a multiple of"),
        ([("trainer.device", "tpu")], "trainer.device: expected one of 'auto', 'cpu', 'cuda', got tpu"),
        ([("trainer.clip_norm", "0")], "trainer.clip_norm: expected a finite number above 0"),
        ([("seed", "-1")], "seed: expected 0 to"),
        ([("regularizer_start", "-1")], "regularizer_start: expected"),
        ([("regularizer_start", "1")], "regularizer_start: expected 0 without a regularizer"),
        ([("regularizer", "koleo"), ("regularizer_start", "100")], "regularizer_start: expected fewer than the 100"),
        ([("optimizer.lr", None)], "optimizer.lr: expected a value, got none"),
    ],
)
def test_bad_options_say_what_was_expected(options: list[tuple[str, str | None]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve({}, options)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"batch_size": "many"}, "batch_size: expected int, got many"),
        ({"batch_size": ""}, "batch_size: expected int, got ''"),  # as an unset $VARIABLE
        ({"data": {"size": "large"}}, "data.size: expected int, got large"),
        ({"data": {"size": ""}}, "data.size: expected int, got ''"),
        ({"views": {"jitter": ""}}, "views.jitter: expected float, got ''"),
        ({"optimizer": {"lr": "fast"}}, "optimizer.lr: expected float, got fast"),
        ({"optimizer": {"learning_rate": 1.0}}, "unknown setting 'optimizer.learning_rate'"),
        ({"trainer": {"precision": "fp64"}}, "trainer.precision: expected one of 'fp32', 'bf16', 'fp16', got fp64"),
        ({"simclr": {"projector": ["wide"]}}, "simclr.projector: expected"),
    ],
)
def test_bad_values_of_a_recipe_are_refused_as_on_the_command_line(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        resolve(tree)
    [(key, value)] = flattened(tree).items()
    if isinstance(value, str):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            resolve({}, [(key, value)])


def test_who_replaces_the_regularizer_need_not_know_the_recipes_options() -> None:
    found = resolve(load_recipe("digits/simclr_ldreg"), [("regularizer", "koleo"), ("koleo.beta", "0.2")])
    assert found.regularizer == {"beta": 0.2, "normalize": True}
    assert "ldreg" not in found.tree


def test_help_has_the_options_of_the_choice_alone() -> None:
    text = options_help(run_options("byol", "minlid"))
    assert "--byol.momentum" in text
    assert "--minlid.beta" in text
    assert "--simclr" not in text
    assert "--minlid.direction" not in text  # settled by the name
    assert "--minlid.gather" not in text
