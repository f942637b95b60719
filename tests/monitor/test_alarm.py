"""When the alarm speaks, what it says, and when it keeps silent."""

import json
import math

import pytest

from ldreg.monitor.alarm import CollapseAlarm
from ldreg.regularizers.balance import PullWarning


def run(alarm: CollapseAlarm, values: list[float], name: str = "val/lid") -> list[int]:
    """The checks at which it spoke."""
    return [i for i, value in enumerate(values) if alarm.check({name: value}, step=50 * i, epoch=0.0)]


GRACE = [10.0, 10.0, 10.0]


# Values of a measure, one per check, and the checks at which the alarm rings.
CASES: list[tuple[str, list[float], list[int]]] = [
    # Once per fall, again after recovery, and not for noise around the threshold.
    ("val/lid", [*GRACE, 8.0, 10.0, 9.0, 4.9, 4.0, 3.0, 4.9, 6.0, 9.0, 4.9, 4.0], [6, 12]),
    ("val/lid", [*GRACE, 10.0, 4.9, 5.1, 4.9, 5.2, 4.8], [4]),
    # A batch has to be low for three checks in a row.
    ("batch/lid", [*GRACE, 10.0, 4.0, 4.0, 9.0, 4.0, 4.0], []),
    ("batch/lid", [*GRACE, 10.0, 4.0, 4.0, 9.0, 4.0, 4.0, 4.0, 4.0], [9]),
    ("batch/lid", [*GRACE, 2.0, 4.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.6], []),
    # All checks of a set's LID count, but not the first of its effective rank, here of a healthy BYOL.
    ("set/lid", [8.8, 6.4, 5.8, 5.6, 4.2], [3]),
    ("set/lid_low", [8.8, 6.4, 4.5, 4.3, 4.2], [3]),
    ("set/effective_rank", [32.8, 8.5, 2.9, 2.9, 3.1, 3.2], []),
    ("set/effective_rank", [32.0, 12.0, 14.0, 18.0, 9.1, 8.9], [5]),
    # The spread of a healthy MAE, one far under its maximum, and rounding.
    ("set/spread", [0.0824, 0.013, 0.013], []),
    ("set/spread", [0.5, 0.02, 0.009, 0.009], [2]),
    ("set/spread", [9e-5], [0]),
    ("batch/spread", [0.5, 0.5, 0.5, 9e-5], [3]),
    # Degenerate points, and again when half of the others follow.
    ("set/degenerate", [0.0, 0.009, 0.0], []),
    ("set/degenerate", [0.3, 0.3, 0.6, 0.66, 0.7, 0.9, 0.95], [0, 3, 5]),
    ("batch/degenerate", [0.0, 0.02, 0.03, 0.0, 0.02], [1, 4]),
    ("batch/loss", [2.0, 8.0, 7.0, 79.0, 5.0], []),
    ("batch/loss", [-2.0, 8.0, 7.0, 81.0, 90.0, 5.0, 81.0], [3, 6]),
    ("batch/loss", [2.0, math.nan], [1]),
]


@pytest.mark.parametrize(("name", "values", "rings"), CASES)
def test_when_a_measure_rings(name: str, values: list[float], rings: list[int]) -> None:
    assert run(CollapseAlarm(0.5), values, name) == rings


@pytest.mark.parametrize(
    ("name", "rings"),
    [("batch/lid", 7), ("ldreg/train/lid_low", 7), ("batch/effective_rank", 7), ("eval/lid", 5), ("lid", 5)],
)
def test_the_first_checks_neither_ring_nor_count_for_the_maximum(name: str, rings: int) -> None:
    assert run(CollapseAlarm(0.5), [90.0, 80.0, 3.0, 3.0, 3.0, 2.0, 2.0, 2.0], name) == []
    assert run(CollapseAlarm(0.5), [90.0, 80.0, 3.0, 3.0, 3.0, 1.4, 1.4, 1.4], name) == [rings]


def test_batches_of_the_first_steps_do_not_count() -> None:
    alarm = CollapseAlarm(0.5)
    for step in range(0, 50, 5):
        assert alarm.check({"batch/effective_rank": 44.0 / (1 + step / 5)}, step=step, epoch=0.0) is None


def test_the_share_moves_the_threshold_and_zero_is_off() -> None:
    assert run(CollapseAlarm(0.2), [8.8, 4.0, 3.8], "set/lid") == [2]
    assert run(CollapseAlarm(0), [*GRACE, 10.0, 0.01, math.nan]) == []


def pulled(warning: PullWarning, values: list[float]) -> list[int]:
    """The checks at which it was said."""
    return [i for i, value in enumerate(values) if warning.check(value)]


def test_a_pull_is_reported_once_after_three_checks_in_a_row() -> None:
    assert pulled(PullWarning(), [0.006, 0.4, 0.004, 0.004, 0.6, 0.6, 0.4, math.nan, math.nan, math.nan]) == []
    assert pulled(PullWarning(), [0.1, 0.004, 0.004, 0.004, 0.004, 0.1, 0.6, 0.6, 0.6]) == [3]
    assert pulled(PullWarning(), [0.6, math.inf, 7.0]) == [2]


@pytest.mark.parametrize("cut", range(5))
def test_a_resumed_pull_is_reported_as_an_unbroken_one(cut: int) -> None:
    values, first, second = [0.001, 0.001, 0.001, 0.001, 0.001], PullWarning(), PullWarning()
    spoken = pulled(first, values[:cut])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert spoken + [cut + i for i in pulled(second, values[cut:])] == [2]


def test_the_line_says_which_how_far_and_where() -> None:
    alarm = CollapseAlarm(0.25)
    for step in range(4):
        assert alarm.check({"val/lid": 12.0, "val/effective_rank": 80.0}, step=step, epoch=0.0) is None
    message = alarm.check({"val/lid": 2.5, "val/effective_rank": 10.0}, step=150, epoch=7.5)
    assert message == (
        "collapse at epoch 7.50, step 150: LID (val/lid) fell to 2.5, under 0.25 of its maximum 12; "
        "effective rank (val/effective_rank) fell to 10, under 0.25 of its maximum 80"
    )


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("set/lid", math.nan, "LID (set/lid) is degenerate: nan"),
        ("set/lid", math.inf, "LID (set/lid) is degenerate: inf"),
        ("set/effective_rank", math.nan, "effective rank (set/effective_rank) is degenerate: nan"),
        ("set/effective_rank", 0.0, "effective rank (set/effective_rank) is degenerate: 0 "),
        ("set/effective_rank", 1.0001, "effective rank (set/effective_rank) is degenerate: 1 "),
    ],
)
def test_degenerate_values_speak_at_once_and_once(name: str, value: float, words: str) -> None:
    alarm = CollapseAlarm(0.5)
    message = alarm.check({name: value}, step=1, epoch=0.0)
    assert message is not None
    assert words in message
    assert alarm.check({name: value}, step=2, epoch=0.0) is None
    assert alarm.check({name: 20.0}, step=3, epoch=0.0) is None
    assert alarm.check({name: value}, step=4, epoch=0.0) is not None


def test_measures_have_their_own_maxima_and_others_are_not_watched() -> None:
    alarm = CollapseAlarm(0.5)
    for step in range(6):
        values = {"set/lid": 20.0, "batch/lid": 5.0, "batch/loss": 10.0**-step, "set/knn": math.nan}
        assert alarm.check(values, step=step, epoch=0.0) is None


@pytest.mark.parametrize("share", [-0.1, 1.0, math.nan])
def test_a_wrong_share_is_named(share: float) -> None:
    with pytest.raises(ValueError, match="share: expected 0"):
        CollapseAlarm(share)


@pytest.mark.parametrize("cut", range(13))
def test_a_resumed_alarm_speaks_as_an_unbroken_one(cut: int) -> None:
    values = [*GRACE, 8.0, 10.0, 9.0, 4.9, 4.0, 3.0, 9.0, 4.0, math.nan, 4.0]
    first, second = CollapseAlarm(0.5), CollapseAlarm(0.5)
    spoken = run(first, values[:cut])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert spoken + [cut + i for i in run(second, values[cut:])] == [6, 10]


def test_the_state_of_an_earlier_version_is_taken_up() -> None:
    alarm = CollapseAlarm(0.5)
    alarm.load_state_dict({"checks": {"val/lid": 9}, "highest": {"val/lid": 10.0}, "fallen": []})
    assert run(alarm, [6.0, 4.0, 4.0]) == [1]
