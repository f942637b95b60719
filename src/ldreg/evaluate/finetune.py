"""Fine-tuning: the whole encoder and a linear classifier trained with all labels or with a part of them."""

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from ldreg.data import DataConfig, worker_count
from ldreg.encoders.checkpoints import LoadedEncoder
from ldreg.evaluate.classes import load_classification, stratified
from ldreg.evaluate.compute import Compute, Synchronize
from ldreg.evaluate.features import Progress, images_key, plain_views
from ldreg.evaluate.judgment import Judgment
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


def finetune(
    encoder: LoadedEncoder,
    data: DataConfig,
    config: FinetuneConfig,
    *,
    work: Path,
    compute: Compute | None = None,
    progress: Progress | None = None,
    synchronize: Synchronize | None = None,
) -> Judgment:
    """The accuracy of a copy of the encoder after training it with a linear classifier on it.

    Images are augmented by random resized crops and flips. After an interruption the same call resumes
    after the last whole epoch; a finished training is not repeated. The checkpoint in the work folder holds the
    network.

    Args:
        encoder: a loaded encoder, which stays as it is.
        data: a set with labels and both splits.
        config: what differs from the usual settings.
        work: folder for the checkpoints of this and other evaluations.
        compute: device, processes, precision.
        progress: called with what is done and the fraction that is done.
        synchronize: as in `train_classifier`.

    Raises:
        ValueError: data without usable labels, an option that does not fit, representations that are not finite.
        ArithmeticError: the training diverged.
    """
    from ldreg.evaluate.classifier import Classifier, linear_head, train_classifier  # Lightning takes seconds

    compute = compute or Compute()
    train, test = load_classification(data)
    if config.fraction < 1:
        train = train.take(stratified(train.labels, config.fraction, seed=config.seed))
    usual = usual_plan(config.fraction)
    plan = fitted_plan(usual, config, images=len(train), devices=compute.devices)
    say_batch(plan, usual, config, len(train))
    say_steps(plan, len(train), data=data.name)
    views = augmentation(config, data)
    settings = identity(
        encoder, plan, train, kind="finetune", test=images_key(test), precision=compute.precision, **views
    )
    module = deepcopy(encoder.module).requires_grad_(True).train()
    classifier = Classifier(
        module,
        linear_head(int(module.dimension), len(train.classes), normalized=False, seed=config.seed),  # type: ignore[arg-type]
        plain_views(encoder, **views),
        train=train,
        test=test,
        plan=plan,
        precision=compute.precision,
        workers=worker_count(data, processes=compute.devices),
    )
    folder = work / folder_name(f"finetune-{data.name}", settings)
    return train_classifier(classifier, folder, settings, compute=compute, progress=progress, synchronize=synchronize)
