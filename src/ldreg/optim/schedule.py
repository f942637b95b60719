"""The learning rate over a training: linear warm-up, then one half cosine."""

import math
from dataclasses import dataclass

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


@dataclass(frozen=True)
class ScheduleConfig:
    """How long to train and how the learning rate moves meanwhile.

    Args:
        epochs: Passes over the data.
        warmup_epochs: Epochs, or a part of one, in which the learning rate rises linearly to its peak.
        min_lr: Learning rate of the weights at the end of the cosine.

    Raises:
        ValueError: epochs below 1, min_lr below 0, or warmup_epochs not in [0, epochs).

    >>> ScheduleConfig(epochs=10, warmup_epochs=10)
    Traceback (most recent call last):
    ...
    ValueError: warmup_epochs: expected at least 0 and fewer than the 10 epochs, got 10
    """

    epochs: int = 100
    warmup_epochs: float = 10.0
    min_lr: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        if self.epochs < 1:
            raise ValueError(f"epochs: expected at least 1, got {self.epochs}")
        if not 0 <= self.warmup_epochs < self.epochs:
            raise ValueError(
                f"warmup_epochs: expected at least 0 and fewer than the {self.epochs} epochs, got {self.warmup_epochs}"
            )
        if not 0 <= self.min_lr < math.inf:
            raise ValueError(f"min_lr: expected a finite value of at least 0, got {self.min_lr}")


def lr_factor(step: int, *, total: int, warmup: int, floor: float) -> float:
    """What multiplies the peak learning rate in optimizer step `step` of `total`, counted from 0.

    The first `warmup` steps rise linearly from 1/warmup to 1; the rest fall along a half cosine from 1 towards `floor`,
    which is the value after the last step (Loshchilov & Hutter, "SGDR", ICLR 2017, without restarts). So no step is
    spent at learning rate 0.

    Raises:
        ValueError: total is below 1, warmup is not in [0, total), floor not in [0, 1], or step not in [0, total].

    >>> [round(lr_factor(step, total=6, warmup=2, floor=0.0), 3) for step in range(7)]
    [0.5, 1.0, 1.0, 0.854, 0.5, 0.146, 0.0]
    """
    if total < 1:
        raise ValueError(f"total: expected at least 1 step, got {total}")
    if not 0 <= warmup < total:
        raise ValueError(f"warmup: expected at least 0 and fewer than the {total} steps in total, got {warmup}")
    if not 0 <= floor <= 1:
        raise ValueError(f"floor: expected a share in [0, 1], got {floor}")
    if not 0 <= step <= total:
        raise ValueError(f"step: expected 0 to {total}, got {step}")
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / (total - warmup)
    return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2


def build_scheduler(optimizer: Optimizer, config: ScheduleConfig, *, steps_per_epoch: int) -> LambdaLR:
    """The schedule of an optimizer that holds its peak learning rates; to be stepped after every optimizer step.

    All parameter groups follow the same factor; `min_lr` is what the first one ends with. It takes
    `epochs * steps_per_epoch` optimizer steps: batches over the number accumulated, where gradients are.

    Raises:
        ValueError: steps_per_epoch is below 1, min_lr is above the peak, or the warm-up leaves no step for the cosine.

    >>> from torch import nn, optim
    >>> optimizer = optim.SGD(nn.Linear(2, 2).parameters(), lr=0.8)
    >>> scheduler = build_scheduler(optimizer, ScheduleConfig(epochs=4, warmup_epochs=1), steps_per_epoch=2)
    >>> scheduler.get_last_lr()
    [0.4]
    """
    if steps_per_epoch < 1:
        raise ValueError(f"steps_per_epoch: expected at least 1, got {steps_per_epoch}")
    peak = optimizer.param_groups[0]["lr"]
    if config.min_lr > peak:
        raise ValueError(f"min_lr: expected at most the peak learning rate {peak}, got {config.min_lr}")
    total = config.epochs * steps_per_epoch
    warmup = round(config.warmup_epochs * steps_per_epoch)

    def factor(step: int) -> float:
        return lr_factor(step, total=total, warmup=warmup, floor=config.min_lr / peak)

    return LambdaLR(optimizer, factor)
