"""The collapse alarm."""

import math
from typing import Any

_WATCHED = {
    "lid": "LID",
    "lid_low": "5 % quantile of LID",
    "effective_rank": "effective rank",
    "spread": "spread",
    "degenerate": "degenerate share",
    "loss": "loss",
}
_BATCHES = ("batch", "train")  # their measures fluctuate, because every batch has other images
_SET = "set"  # the same images at every check, starting before training
# The first checks raise no alarm and do not count for the maximum, because the random features of an untrained encoder
# have a high dimension (a batch of SimCLR on digits: LID 16 at the first step, 8 from the 50th on, as accuracy rises).
_GRACE = 3
SETTLED = 50  # measures of a batch and pulls count from this optimizer step on: BYOL's rank dips and recovers
# For a set's LID the first checks count. In 150 healthy runs on CIFAR-10 and 60 on digits it stays above 0.72 of its
# maximum; below 0.65, accuracy falls too. Effective rank is not such a sign: BYOL's may fall to a tenth.
_STEADY = 0.3  # the threshold of a set's LID at a share of 0
_PATIENCE = 3  # checks in a row for which a measure of a batch has to be low
_RECOVERY = 1.1  # a measure has recovered at this multiple of the threshold, so that noise does not repeat the alarm
_LEAST_RANK = 1.05  # an effective rank of 1 is a line; after training it is a little above 1
_LEAST_SPREAD = 1e-4  # below it, all rows are equal up to rounding
_SPREAD_SHARE = 0.02  # of its maximum; that of a healthy MAE falls to 0.12
_MOST_DEGENERATE = 0.01  # a share of the points
_WORSE = 0.5  # share of the other points left at which degenerate points raise the alarm again
_DIVERGED = 10  # times the largest loss of the first checks


class CollapseAlarm:
    """Check the measures of `ldreg.evaluate.measure.measure` and the loss, and report in one line what has collapsed.

    A measure is checked if its name, after the last "/", is one of these:

    - `lid`, `lid_low`, `effective_rank`: alarm below a share of the running maximum. The first three checks, with a
      barely trained encoder, do not count. Measures of batches (`batch/…`, `train/…`) count from step 50 on and have to
      be low for three checks in a row. All checks of `set/lid` and `set/lid_low` count, since the images are the same,
      starting before training. `set/lid` hardly changes in healthy training: alarm below 0.3 + 0.7 · share.
    - `spread`: alarm below 0.0001, and below 0.02 of its maximum.
    - `degenerate`: alarm above 0.01, and again when half of the other points have become degenerate too.
    - `loss`: alarm above 10 times its largest magnitude of the first three checks.

    Values that are not finite and an effective rank below 1.05 raise the alarm at once. Each measure raises it once,
    and again only after it has recovered.

    Args:
        share: of the running maximum, below which LID or effective rank has collapsed; 0: no alarm.

    Raises:
        ValueError: share is not in [0, 1).

    >>> alarm = CollapseAlarm(0.5)
    >>> for step, lid in enumerate([10.0, 9.0, 4.0, 3.0]):
    ...     message = alarm.check({"set/lid": lid}, step=step, epoch=step / 2)
    ...     if message:
    ...         print(message)
    collapse at epoch 1.00, step 2: LID (set/lid) fell to 4, under 0.65 of its maximum 10
    """

    def __init__(self, share: float) -> None:
        if not 0 <= share < 1:
            raise ValueError(f"share: expected 0 (off) or a share under 1, got {share}")
        self.share = share
        self._checks: dict[str, int] = {}
        self._highest: dict[str, float] = {}
        self._low: dict[str, int] = {}  # checks in a row under the threshold
        self._fallen: set[str] = set()

    def check(self, values: dict[str, float], *, step: int, epoch: float) -> str | None:
        """One line on what has collapsed since the last check, how far and when; None if nothing has."""
        if self.share == 0:
            return None
        checked = [self._finding(name, value, step) for name, value in values.items() if _kind(name) in _WATCHED]
        findings = [finding for finding in checked if finding]
        return f"collapse at epoch {epoch:.2f}, step {step}: " + "; ".join(findings) if findings else None

    def state_dict(self) -> dict[str, Any]:
        """The state that lets a resumed alarm continue as an uninterrupted one."""
        return {
            "checks": dict(self._checks),
            "highest": dict(self._highest),
            "low": dict(self._low),
            "fallen": sorted(self._fallen),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of another alarm, which may be of an earlier version."""
        self._checks, self._highest = dict(state["checks"]), dict(state["highest"])
        self._low, self._fallen = dict(state.get("low", {})), set(state["fallen"])

    def _finding(self, name: str, value: float, step: int) -> str | None:
        """What is wrong with one value, if anything and not reported yet; updates the state of the measure."""
        self._checks[name] = self._checks.get(name, 0) + 1
        kind = _kind(name)
        if kind in ("lid_low", "spread") and not math.isfinite(value):
            return None  # reported by `lid`
        wrong = _degeneracy(kind, value)
        if not wrong:
            rising = kind in ("degenerate", "loss")
            wrong = self._rise(name, kind, value) if rising else self._fall(name, kind, value, step)
        if not wrong or name in self._fallen:
            return None
        self._fallen.add(name)
        return f"{_WATCHED[kind]} ({name}) {wrong}"

    def _fall(self, name: str, kind: str, value: float, step: int) -> str | None:
        """How far the value is below its maximum, if too far."""
        stage = name.split("/")[-2] if "/" in name else ""
        steady = kind == "spread" or (stage == _SET and kind in ("lid", "lid_low"))
        if not steady and (self._checks[name] <= _GRACE or (stage in _BATCHES and step < SETTLED)):
            self._fallen.discard(name)
            return None
        share = self.share
        if kind == "spread":
            share = _SPREAD_SHARE
        elif (stage, kind) == (_SET, "lid"):
            share = _STEADY + (1 - _STEADY) * self.share
        top = self._highest[name] = max(value, self._highest.get(name, 0.0))
        if value >= min(_RECOVERY * share * top, top):
            self._fallen.discard(name)
        self._low[name] = self._low.get(name, 0) + 1 if value < share * top else 0
        if self._low[name] < (_PATIENCE if stage in _BATCHES else 1):
            return None
        return f"fell to {value:.4g}, under {share:g} of its maximum {top:.4g}"

    def _rise(self, name: str, kind: str, value: float) -> str | None:
        """How far the value is above its limit, if it is."""
        if kind == "degenerate":
            if value <= _MOST_DEGENERATE:
                self._highest.pop(name, None)
                self._fallen.discard(name)
                return None
            if 1 - value < _WORSE * (1 - self._highest.get(name, value)):
                self._fallen.discard(name)
            if name not in self._fallen:
                self._highest[name] = value
            return f"is {value:.4g}, over {_MOST_DEGENERATE:g} (rows that are dead, or equal to at least k others)"
        if self._checks[name] <= _GRACE:
            self._highest[name] = max(abs(value), self._highest.get(name, 0.0))
        limit = _DIVERGED * self._highest.get(name, math.inf)
        if value <= limit:
            self._fallen.discard(name)
            return None
        return f"rose to {value:.4g}, over {_DIVERGED} times its first values"


def _kind(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _degeneracy(kind: str, value: float) -> str | None:
    """What is wrong with the value itself, if anything."""
    if not math.isfinite(value):
        cause = "no point is regular, or the representations are not finite"
        return f"is {value}" if kind == "loss" else f"is degenerate: {value} ({cause})"
    if kind == "effective_rank" and value < _LEAST_RANK:
        meaning = "all points are equal" if value == 0 else "all points lie on a line"
        return f"is degenerate: {value:.4g} ({meaning})"
    if kind == "spread" and value < _LEAST_SPREAD:
        return f"is {value:.4g}, under {_LEAST_SPREAD:g} (all points are equal but for rounding)"
    return None
