"""Linear evaluation, by the paper's two protocols or on cached representations, and fine-tuning."""

import json
import logging
import math
import time
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ldreg.data import DataConfig, ImageSet, worker_count
from ldreg.encoders.checkpoints import LoadedEncoder
from ldreg.evaluate.classes import load_classification, stratified
from ldreg.evaluate.extract import Compute
from ldreg.evaluate.features import Features, Progress, features, images_key, plain_views
from ldreg.evaluate.linear import LARGEST_STRENGTH, linear_accuracy
from ldreg.evaluate.plans import (
    ClassifierResult,
    Plan,
    augmentation,
    check_options,
    fitted_plan,
    folder_name,
    identity,
    warn_small,
)
from ldreg.io.files import read_text, write_atomically
from ldreg.optim import OptimizerConfig, ScheduleConfig
from ldreg.text import printable
from ldreg.version import __version__

logger = logging.getLogger("ldreg")

ProtocolName = Literal["imagenet", "transfer", "fast"]

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
# Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", ICML 2020, appendix B.5: SGD
# with Nesterov momentum, learning rate 0.05 · batch / 256 without warm-up, crops and flips alone, no weight decay, 30
# epochs, or 60 with 1 % of the labels. Their batch of 4096 is 256 here, which asks for 16 times less memory; the
# learning rate follows by the same rule.
USUAL = Plan(
    OptimizerConfig("sgd", lr=0.05, lr_scaling="linear", weight_decay=0.0, nesterov=True),
    ScheduleConfig(epochs=30, warmup_epochs=0, min_lr=0.0),
    batch_size=256,
)
FEW, FEW_EPOCHS = 0.01, 60
# Options that only the trained protocols have, and those that only the fitted one has.
TRAINED = ("epochs", "batch_size", "lr", "weight_decay", "flip", "min_scale", "seed")
FITTED = ("strength", "iterations")
STRENGTH, ITERATIONS = 1.0, 1000


@dataclass(frozen=True)
class LinearConfig:
    """A linear classifier on frozen representations.

    Args:
        protocol: imagenet (90 epochs, LARS, batch 4096) or transfer (30 epochs, SGD, batch 256), the paper's two, which
            train on augmented images; fast fits a logistic regression to cached representations
        epochs: passes over the training images; default the protocol's
        batch_size: images of a step over all processes; default the protocol's, or what fits a small set
        lr: base learning rate, which imagenet multiplies by batch size / 256; default the protocol's
        weight_decay: of the weights; default the protocol's
        flip: probability of a horizontal flip; default that of the run, else 0.5, and 0 for digits
        min_scale: smallest share of an image's area that a crop keeps; default what the run names, else 0.08
        strength: weight of the penalty of fast, as 1/C of scikit-learn; default 1
        iterations: steps of fast at most; default 1000
        seed: of every random draw; default 0, and fast has none

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
        if self.protocol not in (*PROTOCOLS, "fast"):
            raise ValueError(f"protocol: expected imagenet, transfer or fast, got {self.protocol!r}")
        for name in TRAINED if self.protocol == "fast" else FITTED:
            value = getattr(self, name)
            if value is not None:
                raise ValueError(f"{name}: expected to be left out, as protocol {self.protocol} has none, got {value}")
        check_options(self)
        if self.strength is not None and not 0 <= self.strength <= LARGEST_STRENGTH:
            raise ValueError(f"strength: expected 0 to {LARGEST_STRENGTH:g}, got {self.strength}")
        if self.iterations is not None and self.iterations < 1:
            raise ValueError(f"iterations: expected at least 1, got {self.iterations}")


@dataclass(frozen=True)
class FinetuneConfig:
    """The whole encoder and a linear classifier, trained with labels.

    Args:
        epochs: passes over the training images; default 30, or 60 with at most 1 % of the labels
        batch_size: images of a step over all processes; default 256, or what fits a small set
        lr: base learning rate, which is multiplied by batch size / 256; default 0.05
        weight_decay: of the weights; default 0
        fraction: share of each class's training images that is used, always the same ones for a seed
        flip: probability of a horizontal flip; default that of the run, else 0.5, and 0 for digits
        min_scale: smallest share of an image's area that a crop keeps; default what the run names, else 0.08
        seed: of every random draw

    >>> FinetuneConfig(fraction=0)
    Traceback (most recent call last):
    ValueError: fraction: expected above 0 and at most 1, got 0
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
        check_options(self)
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction: expected above 0 and at most 1, got {self.fraction}")


def usual_plan(fraction: float) -> Plan:
    """The published settings for this share of the labels.

    >>> usual_plan(1.0).schedule.epochs, usual_plan(0.01).schedule.epochs
    (30, 60)
    """
    if fraction > FEW:
        return USUAL
    return Plan(USUAL.optimizer, ScheduleConfig(FEW_EPOCHS, warmup_epochs=0, min_lr=0.0), USUAL.batch_size)


def linear_evaluation(
    encoder: LoadedEncoder,
    data: DataConfig,
    config: LinearConfig,
    *,
    work: Path,
    compute: Compute | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> ClassifierResult:
    """The accuracy of a linear classifier on the encoder's representations.

    The paper's protocols train on random resized crops with flips through the frozen encoder and test on plain images,
    whose representations come from the cache; the fast one takes both from there. After an interruption the
    same call resumes after the last whole epoch; a finished training is not repeated.

    Args:
        encoder: a loaded encoder, which stays as it is.
        data: a set with labels and both splits.
        config: the protocol and what differs from it.
        work: folder for the checkpoints of this and other evaluations.
        compute: device, processes, precision.
        cache: of representations; None: as `data.cache` or LDREG_CACHE says.
        progress: called with what is done and the fraction that is done.

    Raises:
        ValueError: data without usable labels, an option that does not fit, representations that are not finite.
        ArithmeticError: the training diverged.
    """
    compute = compute or Compute()
    _check_devices(config, compute.devices)
    train, test = load_classification(data)
    started = time.monotonic()
    shared: dict[str, Any] = {
        "device": compute.device,
        "precision": compute.precision,
        "cache": cache,
        "progress": progress,
    }
    if config.protocol == "fast":
        known = features(encoder, data, "train", images=train, **shared)
        tested = features(encoder, data, "test", images=test, **shared)
        return _fitted(
            known, tested, config, work=work, name=data.name, started=started, compute=compute, progress=progress
        )
    usual = PROTOCOLS[config.protocol]
    plan = fitted_plan(usual, config, images=len(train), devices=compute.devices)
    others = "--batch_size, --epochs or --protocol fast"
    warn_small(plan, usual, config, images=len(train), data=data.name, otherwise=others)
    return _trained(
        f"linear-{config.protocol}",
        encoder,
        data,
        config,
        plan,
        train=train,
        test=features(encoder, data, "test", images=test, **shared),
        work=work,
        compute=compute,
        progress=progress,
    )


def check_linear(data: DataConfig, config: LinearConfig, *, devices: int = 1) -> None:
    """Check what `linear_evaluation` needs of this data before the work.

    Raises:
        ValueError: data without usable labels, a batch that does not fit, processes that the protocol does not have.
    """
    _check_devices(config, devices)
    train, _ = load_classification(data, say=False)
    if config.protocol != "fast":
        fitted_plan(PROTOCOLS[config.protocol], config, images=len(train), devices=devices)


def _check_devices(config: LinearConfig, devices: int) -> None:
    if config.protocol == "fast" and devices > 1:
        raise ValueError(f"devices: expected 1 with protocol fast, which trains on no images, got {devices}")


def finetune(
    encoder: LoadedEncoder,
    data: DataConfig,
    config: FinetuneConfig,
    *,
    work: Path,
    compute: Compute | None = None,
    progress: Progress | None = None,
) -> ClassifierResult:
    """The accuracy of a copy of the encoder after training it with a linear classifier on it.

    Images are augmented by random resized crops and flips. After an interruption the same call resumes
    after the last whole epoch; a finished training is not repeated. The checkpoint in the work folder holds the
    network.

    Arguments and errors are those of `linear_evaluation`.
    """
    compute = compute or Compute()
    train, test = load_classification(data)
    if config.fraction < 1:
        train = train.take(stratified(train.labels, config.fraction, seed=config.seed))
    usual = usual_plan(config.fraction)
    plan = fitted_plan(usual, config, images=len(train), devices=compute.devices)
    warn_small(plan, usual, config, images=len(train), data=data.name)
    return _trained(
        "finetune", encoder, data, config, plan, train=train, test=test, work=work, compute=compute, progress=progress
    )


def _trained(
    title: str,
    encoder: LoadedEncoder,
    data: DataConfig,
    config: LinearConfig | FinetuneConfig,
    plan: Plan,
    *,
    train: ImageSet,
    test: ImageSet | Features,
    work: Path,
    compute: Compute,
    progress: Progress | None,
) -> ClassifierResult:
    """Train a classifier: on the frozen encoder if `test` are representations, else with a copy of the encoder."""
    from ldreg.evaluate.classifier import Classifier, linear_head, train_classifier  # Lightning takes seconds

    frozen = isinstance(test, Features)
    views = augmentation(config, data)
    settings = identity(
        encoder,
        plan,
        train,
        kind="linear" if frozen else "finetune",
        test=test.key if isinstance(test, Features) else images_key(test),
        precision=compute.precision,
        **views,
    )
    if isinstance(test, Features):
        module, dimension = encoder.module, test.representations.shape[1]
    else:
        module = deepcopy(encoder.module).requires_grad_(True).train()
        dimension = int(module.dimension)  # type: ignore[arg-type]
    classifier = Classifier(
        module,
        linear_head(dimension, len(train.classes), normalized=frozen, seed=plan.seed),
        plain_views(encoder, **views),
        train=train,
        test=test,
        plan=plan,
        precision=compute.precision,
        workers=worker_count(data, processes=compute.devices),
    )
    folder = work / folder_name(f"{title}-{data.name}", settings)
    return train_classifier(classifier, folder, settings, compute=compute, progress=progress)


@dataclass(frozen=True)
class SavedFit:
    """A fitted logistic regression: test accuracy, steps, whether it converged, and minutes."""

    accuracy: float
    iterations: int
    converged: bool
    minutes: float

    def __post_init__(self) -> None:
        if type(self.accuracy) is not float or not 0 <= self.accuracy <= 1:
            raise ValueError(f"accuracy: expected a number from 0 to 1, got {self.accuracy!r}")
        if type(self.iterations) is not int or self.iterations < 0:
            raise ValueError(f"iterations: expected a whole number from 0 on, got {self.iterations!r}")
        if type(self.converged) is not bool:
            raise ValueError(f"converged: expected true or false, got {self.converged!r}")
        if type(self.minutes) is not float or not 0 <= self.minutes < math.inf:
            raise ValueError(f"minutes: expected a finite number from 0 on, got {self.minutes!r}")


def read_fit(path: Path) -> SavedFit | None:
    """The saved fit; None if there is none, and None with a warning if the file is damaged."""
    if not path.is_file():
        return None
    try:
        content: Any = json.loads(read_text(path))
        if not isinstance(content, dict):
            raise ValueError(f"expected an object, got a {type(content).__name__}")
        return SavedFit(**content)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        reason = printable(" ".join(str(error).split()))[:200]
        logger.warning("%s: cannot be used and is made again (%s)", path, reason)
        return None


def _fitted(
    train: Features,
    test: Features,
    config: LinearConfig,
    *,
    work: Path,
    name: str,
    started: float,
    compute: Compute,
    progress: Progress | None,
) -> ClassifierResult:
    """The accuracy of a logistic regression on cached representations; the fit is saved in the work folder."""
    strength = STRENGTH if config.strength is None else config.strength
    iterations = config.iterations or ITERATIONS
    settings = [__version__, train.key, test.key, strength, iterations]
    path = work / f"{folder_name(f'linear-fast-{name}', settings)}.json"
    fit = read_fit(path)
    if fit is None:
        if progress is not None:
            progress("fitting", 0.0)
        rows = [part.representations.to(compute.torch_device) for part in (train, test)]
        found = linear_accuracy(rows[0], train.labels, rows[1], test.labels, strength=strength, iterations=iterations)
        fit = SavedFit(found.accuracy, found.iterations, found.converged, (time.monotonic() - started) / 60)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(asdict(fit)) + "\n")
    if not fit.converged and fit.iterations >= iterations:  # else rounding keeps the gradient above the tolerance
        logger.warning("iterations: %d did not bring the fit to its end", fit.iterations)
    return ClassifierResult(
        accuracy=fit.accuracy,
        best=None,
        epochs=0,
        steps=0,
        batch_size=None,
        lr=None,
        classes=len(train.classes),
        train_images=len(train.labels),
        test_images=len(test.labels),
        minutes=fit.minutes,
    )
