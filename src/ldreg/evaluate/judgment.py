"""What a classifier is worth."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ldreg.data import ImageSet
from ldreg.evaluate.plans import Plan

if TYPE_CHECKING:  # imported where it is used, as it brings Lightning
    from ldreg.evaluate.fit import Fitted


@dataclass(frozen=True)
class Judgment:
    """The accuracy of a classifier and how it came about.

    Args:
        accuracy: share of the test images classified rightly after the last epoch: what is reported.
        best: the same after the best epoch, which the test images themselves have chosen; None without epochs.
        epochs: passes over the training images; 0 where a classifier was fitted to cached representations.
        steps: of the optimizer, over all epochs; 0 without epochs.
        batch_size: images of a step over all processes, or None.
        lr: peak learning rate, or None.
        classes: how many.
        train_images: how many.
        test_images: how many were classified.
        minutes: of the training, over all its parts.
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


def judged(fitted: "Fitted", plan: Plan, train: ImageSet, *, tested: int) -> Judgment:
    """The judgment of a trained classifier, of which `tested` images were classified."""
    return Judgment(
        accuracy=fitted.accuracy,
        best=fitted.best,
        epochs=len(fitted.history),
        steps=len(fitted.history) * plan.steps(len(train)),
        batch_size=plan.batch_size,
        lr=plan.peak_lr,
        classes=len(train.classes),
        train_images=len(train),
        test_images=tested,
        minutes=fitted.minutes,
        history=fitted.history,
    )
