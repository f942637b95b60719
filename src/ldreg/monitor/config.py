"""Settings of the monitor."""

from dataclasses import dataclass

from ldreg.evaluate.knn import voters


@dataclass(frozen=True)
class MonitorConfig:
    """What is watched during training, and how often.

    Args:
        k: neighbors that local intrinsic dimensionality is read from; fewer than the points and the rows of a batch.
        every_steps: optimizer steps between measurements of the batch (loss, dimensions, learning rate, speed), which
            is also measured where the set is.
        every_epochs: epochs between measurements of the set (dimensions, kNN, linear probe).
        points: rows that dimensions are measured of, at most; of the training images always the same ones.
        knn_k: neighbors that vote in kNN classification; by default 200, or all images measured where those are fewer.
        probe: whether a linear probe is fitted at every measurement of the set, if there are labels.
        knn: whether kNN accuracy is taken at every measurement of the set, if there are labels.
        alarm: share of its running maximum under which LID, its 5 % quantile or effective rank raises the alarm, which
            also watches spread, degenerate share and loss (`alarm.CollapseAlarm`); 0: no alarm.
        stop_on_alarm: whether the alarm ends the run.

    Raises:
        ValueError: for a setting out of range, or stop_on_alarm without an alarm.

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

    def voters(self, count: int) -> int:
        """How many of `count` images vote in kNN classification.

        >>> MonitorConfig().voters(1000), MonitorConfig().voters(50), MonitorConfig(knn_k=20).voters(50)
        (200, 50, 20)
        """
        return voters(count, self.knn_k)

    def __post_init__(self) -> None:
        least = {"k": 2, "every_steps": 1, "every_epochs": 1, "knn_k": 1}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise ValueError(f"{name}: expected at least {bound}, got {value}")
        if self.points <= self.k:
            raise ValueError(f"points: expected more than k ({self.k}), got {self.points}")
        if not 0 <= self.alarm < 1:
            raise ValueError(f"alarm: expected 0 (off) or a share under 1, got {self.alarm}")
        if self.stop_on_alarm and self.alarm == 0:
            raise ValueError("stop_on_alarm: expected an alarm above 0 to stop on, got alarm 0 (off)")
