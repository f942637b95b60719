"""The collapse alarm: says when representations collapse, in part or as a whole, and when a regularizer is off."""

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
_BATCHES = ("batch", "train")  # whose measures fluctuate, since each is of other images
_SET = "set"  # the same images at every check, from before training on
# First checks that neither ring nor count for the maximum: the random features of an untrained encoder are of high
# dimension (a batch of SimCLR on digits: LID 16 at the first step, 8 from the 50th on, while its accuracy rises).
_GRACE = 3
_SETTLED = 50  # optimizer steps that no measure of a batch counts before, nor a pull: BYOL's rank dips and recovers
# Of a set they do count. In 150 healthy trainings on CIFAR-10 and 20 on digits LID stays over 0.72 of its maximum, and
# where it falls under 0.65, accuracy falls too. The effective rank of BYOL falls to 0.2 before it recovers.
_STEADY = 0.3  # at a share of 0 the threshold of a set's LID would be this
_FIRST_RANK = 0.25  # by how much a set's first effective ranks count
_PATIENCE = 3  # checks in a row that a batch measure has to lie low
_RECOVERY = 1.1  # a measure has recovered this far above the threshold, lest noise around it ring again and again
_LEAST_RANK = 1.05  # an effective rank of 1 is a line; what training leaves of one is a little above it
_LEAST_SPREAD = 1e-4  # under it all rows are equal but for rounding
_SPREAD_SHARE = 0.02  # of its maximum; that of a healthy MAE falls to 0.12
_MOST_DEGENERATE = 0.01  # a share of the points
_WORSE = 0.5  # of the other points, how many are left when the degenerate share is told again
_DIVERGED = 10  # times the largest loss of the first checks
_NEGLIGIBLE, _DOMINANT = 0.005, 0.5  # pulls of a regularizer


class CollapseAlarm:
    """Watches the measures of `measures.measure`, and the loss, and says in one line what has collapsed.

    A measure is watched if its name, after the last "/", is one of these:

    - `lid`, `lid_low`, `effective_rank`: rings under a share of its own running maximum. The first three checks, of an
      encoder hardly trained, do not count. Measures of batches (`batch/…`, `train/…`) count from step 50 on, and have
      to lie there for three checks in a row. Of `set/…`, the same images from before training on, all checks count, the
      first three effective ranks by a quarter; its LID hardly moves in a healthy training and rings under
      0.3 + 0.7 · share of its maximum.
    - `spread`: rings under 0.0001, and under 0.02 of its maximum.
    - `degenerate`: rings over 0.01, and again when half of the other points have become degenerate too.
    - `loss`: rings over 10 times its largest magnitude of the first three checks.

    Values that are not finite and an effective rank of 1 and less ring at once. Each measure rings once, and again
    only after it has recovered.

    Args:
        share: of the running maximum, under which LID or effective rank has fallen; 0: never speaks.

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
        self._first: dict[str, float] = {}  # the highest of the first checks, where those count less
        self._low: dict[str, int] = {}  # checks in a row under the threshold
        self._fallen: set[str] = set()

    def check(self, values: dict[str, float], *, step: int, epoch: float) -> str | None:
        """One line that says what has fallen since the last check, how far, and when; None where nothing has."""
        if self.share == 0:
            return None
        findings = [self._finding(name, value, step) for name, value in values.items() if _kind(name) in _WATCHED]
        spoken = [finding for finding in findings if finding]
        return f"collapse at epoch {epoch:.2f}, step {step}: " + "; ".join(spoken) if spoken else None

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs to go on as if never interrupted."""
        kept: dict[str, Any] = {"checks": dict(self._checks), "highest": dict(self._highest)}
        return {**kept, "first": dict(self._first), "low": dict(self._low), "fallen": sorted(self._fallen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of another alarm, or of one of an earlier version."""
        self._checks, self._highest = dict(state["checks"]), dict(state["highest"])
        self._first, self._low = dict(state.get("first", {})), dict(state.get("low", {}))
        self._fallen = set(state["fallen"])

    def _finding(self, name: str, value: float, step: int) -> str | None:
        """What is to be said of one value, if anything; keeps its count, maximum and whether it lies fallen."""
        self._checks[name] = self._checks.get(name, 0) + 1
        kind = _kind(name)
        if kind in ("lid_low", "spread") and not math.isfinite(value):
            return None  # of which `lid` speaks
        wrong = _degeneracy(kind, value)
        if not wrong:
            rising = kind in ("degenerate", "loss")
            wrong = self._rise(name, kind, value) if rising else self._fall(name, kind, value, step)
        if not wrong or name in self._fallen:
            return None
        self._fallen.add(name)
        return f"{_WATCHED[kind]} ({name}) {wrong}"

    def _fall(self, name: str, kind: str, value: float, step: int) -> str | None:
        """How far the value lies under its maximum, where that is too far."""
        stage = name.split("/")[-2] if "/" in name else ""
        early = self._checks[name] <= _GRACE or (stage in _BATCHES and step < _SETTLED)
        early = early and kind != "spread" and (stage != _SET or kind == "effective_rank")
        highest = self._first if early else self._highest
        highest[name] = max(value, highest.get(name, 0.0))
        share = self.share if (stage, kind) != (_SET, "lid") else _STEADY + (1 - _STEADY) * self.share
        share, most = _SPREAD_SHARE if kind == "spread" else share, "maximum"
        top = self._highest.get(name, 0.0)
        first = self._first.get(name, 0.0) if stage == _SET else 0.0
        if _FIRST_RANK * first > top:
            share, most, top = _FIRST_RANK * share, "first maximum", first
        if value >= min(_RECOVERY * share * top, top):
            self._fallen.discard(name)
        self._low[name] = self._low.get(name, 0) + 1 if value < share * top else 0
        if self._low[name] < (_PATIENCE if stage in _BATCHES else 1):
            return None
        return f"fell to {value:.4g}, under {share:g} of its {most} {top:.4g}"

    def _rise(self, name: str, kind: str, value: float) -> str | None:
        """How far the value lies over what is usual, where that is too far."""
        if kind == "degenerate":
            if value <= _MOST_DEGENERATE:
                self._highest.pop(name, None)
                self._fallen.discard(name)
                return None
            if 1 - value < _WORSE * (1 - self._highest.get(name, value)):
                self._fallen.discard(name)
            if name not in self._fallen:
                self._highest[name] = value
            return f"is {value:.4g}, over {_MOST_DEGENERATE:g} (rows that are dead, or equal to more than k others)"
        if self._checks[name] <= _GRACE:
            self._highest[name] = max(abs(value), self._highest.get(name, 0.0))
        limit = _DIVERGED * self._highest.get(name, math.inf)
        if value <= limit:
            self._fallen.discard(name)
            return None
        return f"rose to {value:.4g}, over {_DIVERGED} times its first values"


class PullWarning:
    """Says once that a regularizer's pull is negligible or dominant: under 0.005 or over 0.5 three times in a row.

    It looks from step 50 on: before, the loss of BYOL hardly pulls.

    The pull is the norm of the regularizer's gradient at the representations over that of the method's loss.

    >>> warning = PullWarning()
    >>> for step in (50, 60, 70, 80):
    ...     message = warning.check(0.002, step=step, epoch=step / 5)
    ...     if message:
    ...         print(message)
    regularizer at epoch 14.00, step 70: pull on the gradient (terms/pull) is negligible: 0.002, under 0.005; raise beta
    """

    def __init__(self) -> None:
        self._last: str | None = None  # what the last pull was
        self._row = 0  # checks in a row with it
        self._told = False

    def check(self, pull: float, *, step: int, epoch: float) -> str | None:
        """The line, at the check at which it is due."""
        if step < _SETTLED:
            return None
        low = pull < _NEGLIGIBLE
        found = "negligible" if low else "dominant" if pull > _DOMINANT else None
        self._row = self._row + 1 if found == self._last else 1
        self._last = found
        if self._told or found is None or self._row < _PATIENCE:
            return None
        self._told = True
        limit = f"under {_NEGLIGIBLE}; raise beta" if low else f"over {_DOMINANT}; lower beta"
        return (
            f"regularizer at epoch {epoch:.2f}, step {step}: pull on the gradient (terms/pull) is {found}: "
            f"{pull:.4g}, {limit}"
        )

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs to go on as if never interrupted."""
        return {"last": self._last, "row": self._row, "told": self._told}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of another one."""
        self._last, self._row, self._told = state["last"], state["row"], state["told"]


def _kind(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _degeneracy(kind: str, value: float) -> str | None:
    """What is wrong with a value that needs no other to be compared with."""
    if not math.isfinite(value):
        cause = "no point is regular, or the representations are not finite"
        return f"is {value}" if kind == "loss" else f"is degenerate: {value} ({cause})"
    if kind == "effective_rank" and value < _LEAST_RANK:
        meaning = "all points are equal" if value == 0 else "all points lie on a line"
        return f"is degenerate: {value:.4g} ({meaning})"
    if kind == "spread" and value < _LEAST_SPREAD:
        return f"is {value:.4g}, under {_LEAST_SPREAD:g} (all points are equal but for rounding)"
    return None
