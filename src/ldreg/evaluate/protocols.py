"""Settings of evaluations: the paper's two protocols, a fit to cached representations, fine-tuning, dimensions."""

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

from ldreg.data import DataConfig
from ldreg.data.config import DATASETS
from ldreg.dimension.estimators import Convention, Estimator
from ldreg.evaluate.measure import LARGEST_STRENGTH
from ldreg.evaluate.source import READING, Source
from ldreg.inspection.inputs import check_settings
from ldreg.optim import OptimizerConfig, ScheduleConfig, scaled_lr

logger = logging.getLogger("ldreg")

ProtocolName = Literal["imagenet", "transfer", "fast"]

NEIGHBORS = 64  # as in the paper's tables
_LARGEST = 1e30  # of an option that is multiplied in float32
_FEW_STEPS = 300  # fewer hardly train by these settings


@dataclass(frozen=True)
class Plan:
    """How a classifier is trained; the batch is that of all processes."""

    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    batch_size: int
    seed: int = 0

    def steps(self, images: int) -> int:
        """Steps of one epoch; an incomplete batch is left out, with other images in each epoch."""
        return images // self.batch_size

    @property
    def peak_lr(self) -> float:
        """The learning rate that the schedule starts from."""
        return scaled_lr(self.optimizer, self.batch_size)


# "imagenet": the paper's Table tab:linear_prob_setting, and its appendix "Experimental Settings" for the batch.
# "transfer": the same appendix. It names no schedule; the cosine to 1e-6 is that of the authors' configurations
# (VISSL, which the paper refers to, divides by 10 after 8, 16 and 24 of 28 epochs; the paper has 30).
PROTOCOLS: dict[ProtocolName, Plan] = {
    "imagenet": Plan(
        OptimizerConfig("lars", lr=0.1, lr_scaling="linear", weight_decay=0.0),
        ScheduleConfig(epochs=90, warmup_epochs=0, min_lr=1e-6),
        batch_size=4096,
    ),
    "transfer": Plan(
        OptimizerConfig("sgd", lr=0.01, lr_scaling="none", weight_decay=5e-4, nesterov=True),
        ScheduleConfig(epochs=30, warmup_epochs=0, min_lr=1e-6),
        batch_size=256,
    ),
}
_TRAINED = ("epochs", "batch_size", "lr", "weight_decay", "flip", "min_scale", "seed")
_FITTED = ("strength", "iterations")


def usual_plan(config: "LinearConfig | FinetuneConfig") -> Plan:
    """The published settings of a protocol.

    Fine-tuning follows Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", ICML 2020,
    appendix B.5: SGD with Nesterov momentum, learning rate 0.05 · batch / 256 without warm-up, crops and flips alone,
    no weight decay, 30 epochs, or 60 with 1 % of the labels. Their batch of 4096 is 256 here, which needs 16 times less
    memory; the learning rate follows by the same rule.
    """
    if isinstance(config, LinearConfig):
        return PROTOCOLS[config.protocol]
    epochs = 60 if config.fraction <= 0.01 else 30
    optimizer = OptimizerConfig("sgd", lr=0.05, lr_scaling="linear", weight_decay=0.0, nesterov=True)
    return Plan(optimizer, ScheduleConfig(epochs, warmup_epochs=0, min_lr=0.0), batch_size=256)


@dataclass(frozen=True)
class LinearConfig:
    """A linear classifier on frozen representations.

    Args:
        protocol: imagenet (90 epochs, LARS, batch 4096) or transfer (30 epochs, SGD, batch 256), the paper's two, which
            train on augmented images; fast fits a logistic regression to cached representations
        epochs: passes over the training images; default the protocol's
        batch_size: images of a step over all processes; default the protocol's, or what fits a small set
        lr: base learning rate, which imagenet multiplies by batch size / 256; default the protocol's
        weight_decay: decay of the weights; default the protocol's
        flip: probability of a horizontal flip; default that of the run, else 0.5, and 0 for digits
        min_scale: smallest share of an image's area that a crop keeps; default what the run names, else 0.08
        strength: weight of the penalty of fast, as 1/C of scikit-learn; default 1
        iterations: steps of fast at most; default 1000
        seed: seed of all random draws; default 0, and fast has none

    >>> LinearConfig("fast", epochs=3)
    Traceback (most recent call last):
    ValueError: epochs: expected to be left out, as protocol fast has none, got 3
    """

    protocol: ProtocolName = "fast"
    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    weight_decay: float | None = None
    flip: float | None = None
    min_scale: float | None = None
    strength: float | None = None
    iterations: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in _TRAINED if self.protocol == "fast" else _FITTED:
            value = getattr(self, name)
            if value is not None:
                raise ValueError(f"{name}: expected to be left out, as protocol {self.protocol} has none, got {value}")
        _check_options(self)
        if self.strength is not None and not 0 <= self.strength <= LARGEST_STRENGTH:
            raise ValueError(f"strength: expected 0 to {LARGEST_STRENGTH:g}, got {self.strength}")
        if self.iterations is not None and self.iterations < 1:
            raise ValueError(f"iterations: expected at least 1, got {self.iterations}")


@dataclass(frozen=True)
class TransferConfig(LinearConfig):
    """Linear evaluation over a list of datasets.

    Args:
        datasets: names with their paths, and folders of images under names of your own, as
            photos=PATH,cifar10=PATH,food101=PATH,digits
        protocol: transfer (the paper's: 30 epochs, SGD, batch 256) or fast (cached representations)
        lr: learning rate; default the protocol's
    """

    protocol: Literal["transfer", "fast"] = "transfer"
    datasets: str = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        dataset_paths(self.datasets)


@dataclass(frozen=True)
class FinetuneConfig:
    """The whole encoder and a linear classifier, trained with labels.

    Args:
        epochs: passes over the training images; default 30, or 60 with at most 1 % of the labels
        batch_size: images of a step over all processes; default 256, or what fits a small set
        lr: base learning rate, which is multiplied by batch size / 256; default 0.05
        weight_decay: decay of the weights; default 0
        fraction: share of each class's training images that is used, always the same ones for a seed
        flip: probability of a horizontal flip; default that of the run, else 0.5, and 0 for digits
        min_scale: smallest share of an image's area that a crop keeps; default what the run names, else 0.08
        seed: seed of all random draws
    """

    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    weight_decay: float | None = None
    fraction: float = 1.0
    flip: float | None = None
    min_scale: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check_options(self)
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction: expected above 0 and at most 1, got {self.fraction}")


@dataclass(frozen=True)
class DimensionConfig:
    """Local and global dimensionality of representations.

    Args:
        split: test (as in the paper's tables) or train
        k: nearest neighbors that LID is estimated from; default the run's own monitor.k, else 64
        estimator: estimator of LID: mom (method of moments), mle (maximum likelihood), tle (tight locality)
        convention: mean over all k distances (paper) or over the first k - 1 (pseudocode)
        sample: measure this many points, drawn at random; neighbors still come from all
        html: write a self-contained page with figures to this file
        representations: write them to this .npy file, which `ldreg inspect` reads
        seed: seed of all random draws
    """

    split: Literal["test", "train"] = "test"
    k: int | None = None
    estimator: Estimator = "mom"
    convention: Convention = "paper"
    sample: int | None = None
    html: str | None = None
    representations: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed: expected 0 to 2**63 - 1, got {self.seed}")
        if self.representations is not None and Path(self.representations).suffix != ".npy":
            raise ValueError(f"representations: expected the name of a .npy file, got {self.representations!r}")
        k = NEIGHBORS if self.k is None else self.k
        check_settings(k, estimator=self.estimator, convention=self.convention, sample=self.sample, device=None)


@dataclass(frozen=True)
class OutputConfig:
    """Where the encoder's images and the results are.

    Args:
        size: side of the images, where the checkpoint does not say
        normalization: normalization of the images, where the checkpoint does not say: imagenet, cifar, half or none
        out: folder for results and checkpoints; default evaluation in the run's folder, else evaluation/NAME
        json: write the results, with what a reader needs to repeat them, to this file
    """

    size: int | None = None
    normalization: str | None = None
    out: str | None = None
    json: str | None = None


Trained = TypeVar("Trained", bound=LinearConfig | FinetuneConfig)


def _check_options(options: LinearConfig | FinetuneConfig) -> None:
    """Reject values out of range; None stands for the default."""
    for name, least, most in (
        ("epochs", 1, _LARGEST),
        ("batch_size", 2, _LARGEST),
        ("lr", 0, _LARGEST),
        ("weight_decay", 0, _LARGEST),
        ("flip", 0, 1),
        ("min_scale", 0, 1),
        ("seed", 0, 2**63 - 1),
    ):
        value = getattr(options, name)
        above = name in ("lr", "min_scale")  # 0 is no value of these
        if value is not None and not (least <= value <= most and (value > 0 or not above)):
            raise ValueError(f"{name}: expected {'above ' if above else ''}{least} to {most:g}, got {value}")


def with_run_augmentation(config: Trained, source: Source) -> Trained:
    """The config with the flip and smallest crop that the run's settings name, unless it has its own.

    Defaults of a view policy do not count: MAE pretrains on crops of at least 0.2 of the area.
    """
    if source.settings is None or (isinstance(config, LinearConfig) and config.protocol == "fast"):
        return config
    views = source.settings.views
    named = {name: getattr(views, name) for name in ("flip", "min_scale") if getattr(config, name) is None}
    return replace(config, **named)


def augmentation(options: LinearConfig | FinetuneConfig, data: DataConfig) -> dict[str, float]:
    """The flip and the smallest crop of the training views; by default, digits are not mirrored."""
    flip = options.flip if options.flip is not None else (0.0 if data.name == "digits" else 0.5)
    # The smallest crop is by default that of torchvision's RandomResizedCrop.
    return {"flip": flip, "min_scale": 0.08 if options.min_scale is None else options.min_scale}


def fitted_plan(options: LinearConfig | FinetuneConfig, *, images: int, devices: int) -> Plan:
    """The usual plan with the changes of the options, for this number of training images and processes.

    A usual batch larger than the set becomes the largest power of two that fits. A batch given as an option must fit.

    >>> plan = fitted_plan(FinetuneConfig(epochs=3), images=200, devices=1)
    >>> plan.batch_size, plan.peak_lr, plan.schedule.epochs
    (128, 0.025, 3)
    """
    usual = usual_plan(options)
    batch_size = options.batch_size or usual.batch_size
    if batch_size > images:
        if options.batch_size is not None or images < 2:
            raise ValueError(f"batch_size: expected at most the {images} training images there are, got {batch_size}")
        batch_size = 2 ** (images.bit_length() - 1)
    if batch_size % devices or batch_size // devices < 2:
        raise ValueError(f"batch_size: expected a multiple of the {devices} processes, of 2 each, got {batch_size}")
    changed = {name: getattr(options, name) for name in ("lr", "weight_decay") if getattr(options, name) is not None}
    schedule = replace(usual.schedule, epochs=options.epochs or usual.schedule.epochs)
    plan = Plan(replace(usual.optimizer, **changed), schedule, batch_size, options.seed or 0)
    if schedule.min_lr > plan.peak_lr:
        raise ValueError(f"lr: expected a peak of at least {schedule.min_lr}, the schedule's end, got {plan.peak_lr}")
    return plan


def warn_small(plan: Plan, options: LinearConfig | FinetuneConfig, *, images: int, data: str) -> None:
    """Warn about a batch that is smaller than usual, and about few steps, because the set is small."""
    usual = usual_plan(options).batch_size
    if options.batch_size is None and plan.batch_size != usual:
        logger.warning("batch_size: %d in place of %d for %d training images", plan.batch_size, usual, images)
    steps = plan.schedule.epochs * plan.steps(images)
    if steps < _FEW_STEPS:
        others = ", --epochs or --protocol fast" if isinstance(options, LinearConfig) else " or --epochs"
        logger.warning("%s: only %d optimizer steps, for a small set; --batch_size%s changes that", data, steps, others)


def dataset_paths(text: str) -> dict[str, str | None]:
    """Datasets and their paths from names separated by commas.

    >>> dataset_paths("cifar10=/data/cifar10, digits")
    {'cifar10': '/data/cifar10', 'digits': None}
    """
    found: dict[str, str | None] = {}
    for part in text.split(","):
        name, equals, path = (word.strip() for word in part.partition("="))
        if not name or (equals and not path):
            raise ValueError(f"datasets: expected names as cifar10=PATH,digits, got {text!r}")
        if name in found:
            raise ValueError(f"datasets: expected each name once, got {name!r} twice")
        found[name] = path or None
    return found


def dataset_configs(text: str, *, own: DataConfig | None, reading: DataConfig) -> dict[str, DataConfig]:
    """The datasets of a list such as "cifar10=PATH,digits,photos=PATH"; the source's `own` images need no path.

    An unknown name with a path is a folder of images.
    """
    found = {}
    for name, path in dataset_paths(text).items():
        if own is not None and own.name == name and path is None:
            found[name] = replace(own, **{key: getattr(reading, key) for key in READING})
            continue
        try:
            kind = "folder" if path is not None and name not in DATASETS else name
            found[name] = replace(reading, name=kind, path=path, size=None, limit=None)
        except ValueError as error:
            raise ValueError(f"datasets: {error}") from error
    return found
