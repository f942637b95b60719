"""How a classifier is trained, adapted to the number of images, and what its result depends on."""

import hashlib
import json
import logging
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from ldreg.data import DataConfig, ImageSet
from ldreg.encoders.checkpoints import LoadedEncoder
from ldreg.evaluate.features import images_key
from ldreg.optim import OptimizerConfig, ScheduleConfig, scaled_lr

if TYPE_CHECKING:
    from ldreg.evaluate.protocols import FinetuneConfig, LinearConfig

    Options: TypeAlias = FinetuneConfig | LinearConfig  # None in them stands for the default

logger = logging.getLogger("ldreg")

LARGEST = 1e30  # of an option that is multiplied in float32
FEW_STEPS = 300  # fewer hardly train by these settings
MIN_SCALE = 0.08  # the default of torchvision's RandomResizedCrop


@dataclass(frozen=True)
class Plan:
    """How a classifier is trained; the batch size is that of all processes."""

    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    batch_size: int
    seed: int = 0

    def steps(self, images: int) -> int:
        """Steps of one epoch; a batch that is not full is left out, with other images each time."""
        return images // self.batch_size

    @property
    def peak_lr(self) -> float:
        """The learning rate that the schedule starts from."""
        return scaled_lr(self.optimizer, self.batch_size)


@dataclass(frozen=True)
class ClassifierResult:
    """The accuracy of a classifier and how it was trained.

    Args:
        accuracy: share of the test images classified correctly after the last epoch: what is reported.
        best: the same after the best epoch, which the test images themselves have chosen; None without epochs.
        epochs: passes over the training images; 0 for a classifier fitted to cached representations.
        steps: of the optimizer, over all epochs; 0 without epochs.
        batch_size: images of a step over all processes, or None.
        lr: peak learning rate, or None.
        classes: how many.
        train_images: how many.
        test_images: how many were classified.
        minutes: of the training, over all interruptions.
        history: loss and accuracy after every epoch.
    """

    accuracy: float
    best: float | None
    epochs: int
    steps: int
    batch_size: int | None
    lr: float | None
    classes: int
    train_images: int
    test_images: int
    minutes: float
    history: tuple[dict[str, float], ...] = ()


def check_options(options: "Options") -> None:
    """Raise ValueError for a value out of range."""
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


def fitted_plan(usual: Plan, options: "Options", *, images: int, devices: int) -> Plan:
    """The usual plan, changed by the options, for this number of training images and processes.

    A usual batch that is larger than the set becomes the largest power of two that fits, which `warn_small` reports; a
    learning rate that scales with the batch follows. A batch that was asked for must fit.

    Raises:
        ValueError: a batch that does not fit the images or the processes, or a learning rate below the schedule's end.

    >>> from ldreg.evaluate.protocols import USUAL, FinetuneConfig
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


def warn_small(
    plan: Plan,
    usual: Plan,
    options: "Options",
    *,
    images: int,
    data: str,
    otherwise: str = "--batch_size or --epochs",
) -> None:
    """Warn about a batch that is smaller than usual, and about few steps, because the set is small."""
    if options.batch_size is None and plan.batch_size != usual.batch_size:
        logger.warning(
            "batch_size: %d in place of %d, as there are %d training images", plan.batch_size, usual.batch_size, images
        )
    steps = plan.schedule.epochs * plan.steps(images)
    if steps < FEW_STEPS:
        logger.warning(
            "%s: only %d optimizer steps: the protocol is made for larger sets; %s changes that", data, steps, otherwise
        )


def augmentation(options: "Options", data: DataConfig) -> dict[str, float]:
    """The flip and the smallest crop of the training views; by default, digits are not mirrored."""
    flip = options.flip if options.flip is not None else (0.0 if data.name == "digits" else 0.5)
    return {"flip": flip, "min_scale": MIN_SCALE if options.min_scale is None else options.min_scale}


def identity(encoder: LoadedEncoder, plan: Plan, train: ImageSet, **more: Any) -> dict[str, Any]:
    """Everything that decides what a training ends with; the number of processes does not."""
    settings = asdict(plan)
    del settings["optimizer"]["decay_all"]  # no protocol sets it, and checkpoints of older versions lack it
    return {"encoder": encoder.key, "plan": settings, "train": images_key(train), **more}


def folder_name(title: str, identity: Any) -> str:
    """A name with a hash of the identity, so that one evaluation never takes the checkpoint of another.

    >>> folder_name("linear", "a") != folder_name("linear", "b")
    True
    """
    text = json.dumps(identity, sort_keys=True)
    return f"{title}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
