"""Settings: where values come from, and what is refused."""

import re
from typing import Any

import pytest

from ldreg.data import DataConfig
from ldreg.optim import OptimizerConfig
from ldreg.options import options_help
from ldreg.train.recipes import flattened, load_recipe
from ldreg.train.settings import resolve, run_options
from ldreg.views import ViewsConfig


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
        ([("batch_size", "30"), ("trainer.accumulate", "4")], "batch_size: expected a multiple of"),
        ([("optimizer.lr", None)], "optimizer.lr: expected a value, got none"),
    ],
)
def test_bad_options_say_what_was_expected(options: list[tuple[str, str | None]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve({}, options)


# Each row sets options that are wrong, or do not go together; the error begins with the first of them.
OUT_OF_RANGE = """
data.path=x
data.decode=cuda
data.resident=maybe
data.resident_limit=nan
data.workers=-1
data.max_unreadable=1.0
data.max_unreadable=-0.1
data.validation=1.0
data.validation=nan
data.size=0
data.limit=0
views.policy=moco
views.normalization=unit
views.interpolation=nearest
views.flip=1.5
views.flip=nan
views.grayscale=-0.1
views.jitter=-1.0
views.jitter=2.6
views.jitter=5.1 views.policy=byol
views.max_scale=0.0
views.max_scale=1.1
views.min_scale=0.0
views.min_scale=0.6 views.max_scale=0.5
views.max_scale=0.1 views.policy=mae
views.jitter=0.5 views.policy=mae
views.grayscale=0.2 views.policy=mae
views.blur=true views.policy=mae
optimizer.name=adam
optimizer.lr_scaling=cubic
optimizer.lr=0.0
optimizer.lr=nan
optimizer.bias_lr=-1.0
optimizer.trust_coefficient=0.0
optimizer.weight_decay=-0.1
optimizer.momentum=1.0
optimizer.betas=[0.9,1.0] optimizer.name=adamw
optimizer.momentum=0.0 optimizer.name=sgd optimizer.nesterov=true
optimizer.nesterov=true
optimizer.betas=[0.9,0.999]
optimizer.trust_coefficient=0.1 optimizer.name=sgd
optimizer.momentum=0.5 optimizer.name=adamw
optimizer.decay_all=true
optimizer.decay_all=true optimizer.name=sgd optimizer.weight_decay=0.0
schedule.epochs=0
schedule.warmup_epochs=10 schedule.epochs=5
schedule.warmup_epochs=-1
schedule.min_lr=-0.1
monitor.k=1
monitor.every_steps=0
monitor.every_epochs=0
monitor.knn_k=0
monitor.points=64
monitor.alarm=1.0
monitor.alarm=-0.1
monitor.stop_on_alarm=true monitor.alarm=0
simclr.temperature=-1
batch_size=1
trainer.device=tpu
trainer.clip_norm=0
seed=-1
regularizer_start=-1
regularizer_start=1
regularizer_start=100 regularizer=koleo
"""


@pytest.mark.parametrize("words", OUT_OF_RANGE.split("\n")[1:-1])
def test_a_value_out_of_range_is_named(words: str) -> None:
    options: list[tuple[str, str | None]] = [tuple(word.split("=")) for word in words.split()]  # type: ignore[misc]
    with pytest.raises(ValueError, match=f"^{re.escape(options[0][0])}: expected "):
        resolve({}, options)


def test_the_bounds_themselves_are_in_range() -> None:
    options = {"k": "2", "points": "3", "every_steps": "1", "every_epochs": "1", "knn_k": "1", "alarm": "0"}
    monitor = resolve({}, [(f"monitor.{name}", value) for name, value in options.items()]).monitor
    assert (monitor.k, monitor.points, monitor.alarm) == (2, 3, 0)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        *((DataConfig, name) for name in ("decode", "resident")),
        *((ViewsConfig, name) for name in ("policy", "normalization", "interpolation")),
        *((OptimizerConfig, name) for name in ("name", "lr_scaling")),
    ],
)
def test_an_unknown_choice_is_named_in_python_too(config: Any, name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: expected "):
        config(**{name: "another"})


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
