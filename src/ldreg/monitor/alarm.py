"""The collapse alarm: says when a dimension falls far under what it once was, or is no dimension any more."""

import math
from typing import Any

_WATCHED = {"lid": "LID", "effective_rank": "effective rank"}
# First checks of a measure that neither ring nor count for its maximum: the random features of an untrained encoder
# are of high dimension (SimCLR on digits: LID 16 at the first step, 8 from the 50th on, while its accuracy rises).
_GRACE = 3
_LEAST_RANK = 1.05  # an effective rank of 1 is a line; what training leaves of one is a little above it
_RECOVERY = 1.1  # a measure has recovered this far above the threshold, lest noise around it ring again and again


class CollapseAlarm:
    """Watches every LID and effective rank it is shown, each against a share of its own running maximum.

    A measure is watched if its name, after the last "/", is `lid` or `effective_rank`. It speaks once per fall, and
    again only after the measure has recovered. The first three checks of a measure, of an encoder hardly trained, do
    not count. Degenerate values (NaN, inf, or an effective rank of 1 and less) need no maximum to be compared with and
    speak at once.

    Args:
        share: of the running maximum, under which a value has fallen; 0: never speaks.

    Raises:
        ValueError: share is not in [0, 1).

    >>> alarm = CollapseAlarm(0.5)
    >>> for step, lid in enumerate([18.0, 12.0, 9.0, 9.0, 10.0, 4.0, 3.0]):
    ...     message = alarm.check({"set/lid": lid}, step=step, epoch=step / 2)
    ...     if message:
    ...         print(message)
    collapse at epoch 2.50, step 5: LID (set/lid) fell to 4, under 0.5 of its maximum 10
    """

    def __init__(self, share: float) -> None:
        if not 0 <= share < 1:
            raise ValueError(f"share: expected 0 (off) or a share under 1, got {share}")
        self.share = share
        self._checks: dict[str, int] = {}
        self._highest: dict[str, float] = {}
        self._fallen: set[str] = set()

    def check(self, values: dict[str, float], *, step: int, epoch: float) -> str | None:
        """One line that says what has fallen since the last check, how far, and when; None where nothing has."""
        if self.share == 0:
            return None
        findings = [self._finding(name, value) for name, value in values.items() if _noun(name)]
        spoken = [finding for finding in findings if finding]
        return f"collapse at epoch {epoch:.2f}, step {step}: " + "; ".join(spoken) if spoken else None

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs to go on as if never interrupted."""
        return {"checks": dict(self._checks), "highest": dict(self._highest), "fallen": sorted(self._fallen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of another alarm."""
        self._checks, self._highest = dict(state["checks"]), dict(state["highest"])
        self._fallen = set(state["fallen"])

    def _finding(self, name: str, value: float) -> str | None:
        """What is to be said of one value, if anything; keeps its count, maximum and whether it lies fallen."""
        self._checks[name] = self._checks.get(name, 0) + 1
        wrong = _degeneracy(name, value)
        if not wrong:
            if self._checks[name] <= _GRACE:
                self._fallen.discard(name)
                return None
            highest = self._highest[name] = max(value, self._highest.get(name, value))
            threshold = self.share * highest
            if value >= min(_RECOVERY * threshold, highest):
                self._fallen.discard(name)
            if value >= threshold:
                return None
            wrong = f"fell to {value:.4g}, under {self.share:g} of its maximum {highest:.4g}"
        if name in self._fallen:
            return None
        self._fallen.add(name)
        return f"{_noun(name)} ({name}) {wrong}"


def _noun(name: str) -> str | None:
    return _WATCHED.get(name.rsplit("/", 1)[-1])


def _degeneracy(name: str, value: float) -> str | None:
    if not math.isfinite(value):
        return f"is degenerate: {value} (no point is regular, or the representations are not finite)"
    if name.endswith("effective_rank") and value < _LEAST_RANK:
        meaning = "all points are equal" if value == 0 else "all points lie on a line"
        return f"is degenerate: {value:.4g} ({meaning})"
    return None
