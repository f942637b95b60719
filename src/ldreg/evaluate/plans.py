"""How a classifier is trained, made to fit the images that there are; and what makes a training the same as another."""

import hashlib
import json
import logging
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from ldreg.data import DataConfig, ImageSet
from ldreg.encoders.checkpoints import LoadedEncoder
from ldreg.evaluate.features import images_key
from ldreg.optim import OptimizerConfig, ScheduleConfig, scaled_lr

logger = logging.getLogger("ldreg")

LARGEST = 1e30  # of an option that float32 arithmetic multiplies by, with room for its scaling
FEW_STEPS = 300  # under which training by these settings has hardly begun
MIN_SCALE = 0.08  # of torchvision's RandomResizedCrop, and of ImageNet training everywhere


@dataclass(frozen=True)
class Plan:
    """How a classifier is trained: optimizer, schedule, images of a step over all processes, seed of every draw."""

    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    batch_size: int
    seed: int = 0

    def steps(self, images: int) -> int:
        """Steps of one epoch; what does not fill a whole batch at its end is left out, other images each time."""
        return images // self.batch_size

    @property
    def peak_lr(self) -> float:
        """The learning rate that the schedule starts from."""
        return scaled_lr(self.optimizer, self.batch_size)


class Options(Protocol):
    """What the configs of trained classifiers have in common; None: by default."""

    @property
    def epochs(self) -> int | None:
        """Passes over the training images."""

    @property
    def batch_size(self) -> int | None:
        """Images of a step over all processes."""

    @property
    def lr(self) -> float | None:
        """Base learning rate."""

    @property
    def weight_decay(self) -> float | None:
        """Of the weights."""

    @property
    def flip(self) -> float | None:
        """Probability of a horizontal flip."""

    @property
    def min_scale(self) -> float | None:
        """Smallest share of an image's area that a crop keeps."""

    @property
    def seed(self) -> int | None:
        """Of every random draw."""


def check_options(options: Options) -> None:
    """Refuse values out of range.

    Raises:
        ValueError: for the first of them.
    """
    for name, value, least in (("epochs", options.epochs, 1), ("batch_size", options.batch_size, 2)):
        if value is not None and value < least:
            raise ValueError(f"{name}: expected at least {least}, got {value}")
    if options.lr is not None and not 0 < options.lr <= LARGEST:
        raise ValueError(f"lr: expected a number above 0 and at most {LARGEST:g}, got {options.lr}")
    if options.weight_decay is not None and not 0 <= options.weight_decay <= LARGEST:
        raise ValueError(f"weight_decay: expected 0 to {LARGEST:g}, got {options.weight_decay}")
    if options.flip is not None and not 0 <= options.flip <= 1:
        raise ValueError(f"flip: expected between 0 and 1, got {options.flip}")
    if options.min_scale is not None and not 0 < options.min_scale <= 1:
        raise ValueError(f"min_scale: expected above 0 and at most 1, got {options.min_scale}")
    if options.seed is not None and not 0 <= options.seed < 2**63:
        raise ValueError(f"seed: expected 0 to 2**63 - 1, got {options.seed}")


def fitted_plan(usual: Plan, options: Options, *, images: int, devices: int) -> Plan:
    """The usual plan with what the options change, for so many training images and processes.

    A batch larger than the set is an error where it was asked for. Where it is the usual one, the largest power of two
    that fits is taken, which `say_batch` says; a learning rate that scales with the batch follows.

    Raises:
        ValueError: a batch that does not fit the images or the processes, or a learning rate under the schedule's end.

    >>> from ldreg.evaluate.finetune import USUAL, FinetuneConfig
    >>> plan = fitted_plan(USUAL, FinetuneConfig(epochs=3), images=200, devices=1)
    >>> plan.batch_size, plan.peak_lr, plan.schedule.epochs
    (128, 0.025, 3)
    """
    batch_size = options.batch_size or usual.batch_size
    if batch_size > images:
        if options.batch_size is not None or images < 2:
            raise ValueError(f"batch_size: expected at most the {images} training images there are, got {batch_size}")
        batch_size = 2 ** (images.bit_length() - 1)
    if batch_size % devices or batch_size // devices < 2:
        raise ValueError(f"batch_size: expected a multiple of the {devices} processes, of 2 each, got {batch_size}")
    lr = usual.optimizer.lr if options.lr is None else options.lr
    decay = usual.optimizer.weight_decay if options.weight_decay is None else options.weight_decay
    schedule = replace(usual.schedule, epochs=options.epochs or usual.schedule.epochs)
    plan = Plan(replace(usual.optimizer, lr=lr, weight_decay=decay), schedule, batch_size, options.seed or 0)
    if schedule.min_lr > plan.peak_lr:
        raise ValueError(
            f"lr: expected a peak of at least {schedule.min_lr}, where the schedule ends, got {plan.peak_lr}"
        )
    return plan


def say_batch(plan: Plan, usual: Plan, options: Options, images: int) -> None:
    """Say that the batch is smaller than usual because the set is small."""
    if options.batch_size is None and plan.batch_size != usual.batch_size:
        logger.warning(
            "batch_size: %d in place of %d, as there are %d training images", plan.batch_size, usual.batch_size, images
        )


def say_steps(plan: Plan, images: int, *, data: str, otherwise: str = "--batch_size or --epochs") -> None:
    """Say that the set is too small for the settings, which are made for larger ones."""
    steps = plan.schedule.epochs * plan.steps(images)
    if steps < FEW_STEPS:
        logger.warning(
            "%s: only %d optimizer steps: the protocol is made for larger sets; %s changes that", data, steps, otherwise
        )


def augmentation(options: Options, data: DataConfig) -> dict[str, float]:
    """The flip and the smallest crop of the training views; digits are not mirrored unless that is asked for."""
    flip = options.flip if options.flip is not None else (0.0 if data.name == "digits" else 0.5)
    return {"flip": flip, "min_scale": MIN_SCALE if options.min_scale is None else options.min_scale}


def identity(encoder: LoadedEncoder, plan: Plan, train: ImageSet, **more: Any) -> str:
    """All that decides what a training ends with, as text; how many processes share it does not."""
    plan_told = asdict(plan)
    del plan_told["optimizer"]["decay_all"]  # which no protocol sets: trainings of before the option are the same
    told = {"encoder": encoder.key, "plan": plan_told, "train": images_key(train), **more}
    return json.dumps(told, sort_keys=True)


def folder_name(title: str, identity: str) -> str:
    """A name that is another for another identity, so that one evaluation never takes another's checkpoint.

    >>> folder_name("linear", "a") != folder_name("linear", "b")
    True
    """
    return f"{title}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
