"""When the alarm speaks, what it says, and when it keeps silent."""

import json
import math

import pytest

from ldreg.monitor.alarm import CollapseAlarm


def run(alarm: CollapseAlarm, values: list[float], name: str = "set/lid") -> list[int]:
    """The checks at which it spoke."""
    return [i for i, value in enumerate(values) if alarm.check({name: value}, step=i, epoch=0.0)]


GRACE = [10.0, 10.0, 10.0]


def test_speaks_once_per_fall_and_again_after_recovery() -> None:
    values = [8.0, 10.0, 9.0, 4.9, 4.0, 3.0, 4.9, 6.0, 9.0, 4.9, 4.0]
    assert run(CollapseAlarm(0.5), GRACE + values) == [6, 12]


def test_noise_around_the_threshold_does_not_ring_again() -> None:
    assert run(CollapseAlarm(0.5), [*GRACE, 10.0, 4.9, 5.1, 4.9, 5.2, 4.8]) == [4]


def test_the_first_checks_neither_ring_nor_count_for_the_maximum() -> None:
    assert run(CollapseAlarm(0.5), [90.0, 80.0, 3.0, 3.0, 3.0, 2.0]) == []
    assert run(CollapseAlarm(0.5), [90.0, 80.0, 3.0, 3.0, 3.0, 1.0]) == [5]


def test_a_rising_or_slowly_moving_dimension_keeps_it_silent() -> None:
    assert run(CollapseAlarm(0.5), [*GRACE, 2.0, 4.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.6]) == []


def test_the_line_says_which_how_far_and_where() -> None:
    alarm = CollapseAlarm(0.25)
    for step in range(4):
        assert alarm.check({"batch/lid": 12.0, "batch/effective_rank": 80.0}, step=step, epoch=0.0) is None
    message = alarm.check({"batch/lid": 2.5, "batch/effective_rank": 10.0}, step=150, epoch=7.5)
    assert message == (
        "collapse at epoch 7.50, step 150: LID (batch/lid) fell to 2.5, under 0.25 of its maximum 12; "
        "effective rank (batch/effective_rank) fell to 10, under 0.25 of its maximum 80"
    )


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("set/lid", math.nan, "LID (set/lid) is degenerate: nan"),
        ("set/lid", math.inf, "LID (set/lid) is degenerate: inf"),
        ("set/effective_rank", math.nan, "effective rank (set/effective_rank) is degenerate: nan"),
        ("set/effective_rank", 0.0, "effective rank (set/effective_rank) is degenerate: 0 (all points are equal)"),
        (
            "set/effective_rank",
            1.0001,
            "effective rank (set/effective_rank) is degenerate: 1 (all points lie on a line)",
        ),
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


def test_a_share_of_zero_is_off() -> None:
    assert run(CollapseAlarm(0), [*GRACE, 10.0, 0.01, math.nan]) == []


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
