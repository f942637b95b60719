"""The accuracy of a classifier."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Judgment:
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
