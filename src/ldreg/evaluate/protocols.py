"""Linear evaluation: the paper's two protocols on augmented images, and a fast one on cached representations."""

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ldreg.data import DataConfig, ImageSet, worker_count
from ldreg.encoders.checkpoints import LoadedEncoder
from ldreg.evaluate.classes import load_classification
from ldreg.evaluate.compute import Compute, Synchronize
from ldreg.evaluate.features import Progress, features, plain_views
from ldreg.evaluate.judgment import Judgment
from ldreg.evaluate.kept import Kept, read, write
from ldreg.evaluate.linear import LARGEST_STRENGTH, linear_accuracy
from ldreg.evaluate.plans import (
    Plan,
    augmentation,
    check_options,
    fitted_plan,
    folder_name,
    identity,
    say_batch,
    say_steps,
)
from ldreg.optim import OptimizerConfig, ScheduleConfig
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


def linear_evaluation(
    encoder: LoadedEncoder,
    data: DataConfig,
    config: LinearConfig,
    *,
    work: Path,
    compute: Compute | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
    synchronize: Synchronize | None = None,
) -> Judgment:
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
        synchronize: as in `train_classifier`.

    Raises:
        ValueError: data without usable labels, an option that does not fit, representations that are not finite.
        ArithmeticError: the training diverged.
    """
    compute = compute or Compute()
    _check_devices(config, compute.devices)
    train, test = load_classification(data)
    if config.protocol == "fast":
        return _fast(encoder, data, config, train, test, work=work, compute=compute, cache=cache, progress=progress)
    from ldreg.evaluate.classifier import Classifier, linear_head, train_classifier  # Lightning takes seconds

    usual = PROTOCOLS[config.protocol]
    plan = fitted_plan(usual, config, images=len(train), devices=compute.devices)
    say_batch(plan, usual, config, len(train))
    say_steps(plan, len(train), data=data.name, otherwise="--batch_size, --epochs or --protocol fast")
    known = features(
        encoder, data, "test", device=compute.device, precision=compute.precision, cache=cache, progress=progress,
        images=test,
    )  # fmt: skip
    views = augmentation(config, data)
    settings = identity(encoder, plan, train, kind="linear", test=known.key, precision=compute.precision, **views)
    classifier = Classifier(
        encoder.module,
        linear_head(known.representations.shape[1], len(train.classes), normalized=True, seed=plan.seed),
        plain_views(encoder, **views),
        train=train,
        test=known,
        plan=plan,
        precision=compute.precision,
        workers=worker_count(data, processes=compute.devices),
    )
    folder = work / folder_name(f"linear-{config.protocol}-{data.name}", settings)
    return train_classifier(classifier, folder, settings, compute=compute, progress=progress, synchronize=synchronize)


def check_linear(data: DataConfig, config: LinearConfig, *, devices: int = 1) -> None:
    """Find out before the work what `linear_evaluation` would refuse of this data.

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


def _fast(
    encoder: LoadedEncoder,
    data: DataConfig,
    config: LinearConfig,
    train: ImageSet,
    test: ImageSet,
    *,
    work: Path,
    compute: Compute,
    cache: Path | None,
    progress: Progress | None,
) -> Judgment:
    """The judgment of a logistic regression on cached representations; kept in the work folder, too."""
    started = time.monotonic()
    shared: dict[str, Any] = {"device": compute.device, "precision": compute.precision, "cache": cache}
    known = features(encoder, data, "train", images=train, progress=progress, **shared)
    asked = features(encoder, data, "test", images=test, progress=progress, **shared)
    strength = STRENGTH if config.strength is None else config.strength
    iterations = config.iterations or ITERATIONS
    settings = [__version__, known.key, asked.key, strength, iterations]
    path = work / f"{folder_name(f'linear-fast-{data.name}', settings)}.json"
    kept = read(path)
    if kept is None:
        if progress is not None:
            progress("fitting", 0.0)
        rows = [part.representations.to(compute.torch_device) for part in (known, asked)]
        found = linear_accuracy(rows[0], known.labels, rows[1], asked.labels, strength=strength, iterations=iterations)
        kept = Kept(found.accuracy, found.iterations, found.converged, (time.monotonic() - started) / 60)
        write(path, kept)
    if not kept.converged and kept.iterations >= iterations:  # else it is rounding that keeps it from the tolerance
        logger.warning("iterations: %d did not bring the fit to its end", kept.iterations)
    return Judgment(
        accuracy=kept.accuracy,
        best=None,
        epochs=0,
        steps=0,
        batch_size=None,
        lr=None,
        classes=len(train.classes),
        train_images=len(known.labels),
        test_images=len(asked.labels),
        minutes=kept.minutes,
    )
