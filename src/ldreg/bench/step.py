"""One SimCLR training step as `ldreg pretrain` takes it, with and without LDReg, beside lightly's recipe."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from ldreg.bench.benchmark import OWN, Batches, Benchmark, Contender, Goal, Outcome, Setting


def _trained(**options: Any) -> Callable[[Setting], Outcome]:
    def measured(setting: Setting) -> Outcome:
        from ldreg.bench import training_step  # brings Lightning

        return Outcome(training_step.train(setting, **options))

    return measured


def lightly(setting: Setting) -> Outcome:
    """The CIFAR-10 recipe of lightly: its transform in worker processes, its loss, a plain loop."""
    from ldreg.bench import lightly_step

    return Outcome(lightly_step.train(setting))


def _check(size: Batches) -> None:
    if find_spec("timm") is None:  # without it nobody takes part, and the table says so
        return
    from ldreg.encoders import EncoderConfig

    try:
        EncoderConfig(size.encoder)
    except ValueError as error:
        raise ValueError(f"sizes: encoder {error}") from None


def _contender(measure: Callable[[Setting], Outcome], **options: Any) -> Contender:
    return Contender(measure, package="pytorch_lightning", install="ldreg[train]", **options)


_CIFAR = Batches(512, 32, "resnet18")

BENCHMARK = Benchmark(
    title="One training step of SimCLR",
    contenders={
        OWN: _contender(_trained(regularizer="ldreg")),
        "without LDReg": _contender(_trained(regularizer=None), counts=False),
        "authors' LDReg": _contender(_trained(regularizer="pseudocode"), counts=False),
        "ldreg (eager)": _contender(_trained(regularizer="ldreg", compiled=False), devices=("cuda",), counts=False),
        "authors' (eager)": _contender(
            _trained(regularizer="pseudocode", compiled=False), devices=("cuda",), counts=False
        ),
        "lightly": Contender(lightly, package="lightly", install="ldreg[train]"),
    },
    size=Batches,
    sizes={"cpu": (Batches(64, 32, "small_cnn"),), "cuda": (_CIFAR,)},
    quick_sizes=(Batches(48, 16, "small_cnn"),),
    goals=(
        Goal(_CIFAR, "img/s", 40_000, device="cuda"),
        Goal(_CIFAR, "LDReg", 0.02, device="cuda"),
        Goal(_CIFAR, "views", 0.10, device="cuda"),
    ),
    columns=("img/s", "per step", "LDReg", "extra MB", "time vs ldreg"),
    picture="parts",
    check=_check,
    conditions=(
        "recipe cifar10/simclr on random images of its shape, views included; bf16, compiled on CUDA, else float32. "
        "LDReg: what it adds to a step, by blocks of steps with and without it in turns"
    ),
)
