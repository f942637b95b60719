"""What every monitor shares: settings, the latest values, the collapse alarm, and Lightning's `Callback`."""

import importlib
import importlib.util
import logging
import sys
from dataclasses import dataclass

from ldreg.monitor.alarm import CollapseAlarm

logger = logging.getLogger("ldreg")


class Watch:
    """The base of all monitors: their latest values and the collapse alarm.

    Args:
        alarm: as in `CollapseAlarm`.

    Attributes:
        latest: the last value of every measure.
        alarms: all alarms raised, in order.
    """

    def __init__(self, alarm: float) -> None:
        self.latest: dict[str, float] = {}
        self.alarms: list[str] = []
        self._alarm = CollapseAlarm(alarm)

    def check(self, values: dict[str, float], *, step: int, epoch: float, log: bool = True) -> str | None:
        """The alarm that the values raise, if any; it is kept and logged."""
        # Terms of a loss may have the names of measures.
        watched = {name: value for name, value in values.items() if not name.startswith("terms/")}
        message = self._alarm.check(watched, step=step, epoch=epoch)
        if message:
            self.alarms.append(message)
            if log:
                logger.warning(message)
        return message


@dataclass(frozen=True)
class MonitorConfig:
    """What is measured during training, and how often.

    Args:
        k: neighbors that local intrinsic dimensionality is estimated from; fewer than the points and the rows of a
            batch.
        every_steps: optimizer steps between measurements of the batch (loss, dimensions, learning rate, speed); the
            batch is also measured whenever the set is.
        every_epochs: epochs between measurements of the set (dimensions, kNN, linear probe).
        points: measure dimensions of at most this many rows; of the training images always the same ones.
        knn_k: neighbors that vote in kNN classification; by default 200, or all images of a smaller set.
        probe: whether to fit a linear probe at every measurement of the set, if there are labels.
        knn: whether to take kNN accuracy at every measurement of the set, if there are labels.
        alarm: share of its running maximum below which LID, its 5 % quantile or effective rank raises the alarm, which
            also watches spread, degenerate share and loss (`alarm.CollapseAlarm`); 0: no alarm.
        stop_on_alarm: whether the alarm ends the run.

    Raises:
        ValueError: a setting is out of range, or stop_on_alarm is given without an alarm.

    >>> MonitorConfig(k=64, points=64)
    Traceback (most recent call last):
    ...
    ValueError: points: expected more than k (64), got 64
    """

    k: int = 64
    every_steps: int = 50
    every_epochs: int = 1
    points: int = 2000
    knn_k: int | None = None
    probe: bool = True
    knn: bool = True
    alarm: float = 0.5
    stop_on_alarm: bool = False

    def __post_init__(self) -> None:
        for name, bound in {"k": 2, "every_steps": 1, "every_epochs": 1, "knn_k": 1}.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise ValueError(f"{name}: expected at least {bound}, got {value}")
        check_settings(k=self.k, points=self.points, alarm=self.alarm, stop_on_alarm=self.stop_on_alarm)


def check_settings(*, k: int, points: int, alarm: float, stop_on_alarm: bool = False) -> None:
    """Raise ValueError if settings of a monitor are out of range or contradict one another."""
    if points <= k:
        raise ValueError(f"points: expected more than k ({k}), got {points}")
    if not 0 <= alarm < 1:
        raise ValueError(f"alarm: expected 0 (off) or a share under 1, got {alarm}")
    if stop_on_alarm and alarm == 0:
        raise ValueError("stop_on_alarm: expected an alarm above 0 to stop on, got alarm 0 (off)")


def callback_bases() -> tuple[type, ...]:
    """Lightning's `Callback` from each of its two packages that is loaded, or else from one that is installed.

    A trainer calls hooks by name and accepts any callback in a list; only a callback passed alone must be an instance
    of its own package's class.

    Raises:
        ModuleNotFoundError: neither package is installed.
    """
    packages = "pytorch_lightning", "lightning.pytorch"
    loaded = [package for package in packages if sys.modules.get(package)]
    if not loaded:
        loaded = [package for package in packages if importlib.util.find_spec(package.split(".")[0])][:1]
    if not loaded:
        raise ModuleNotFoundError("a monitor needs Lightning: install ldreg[train], pytorch-lightning or lightning")
    return tuple(importlib.import_module(package).Callback for package in loaded)
