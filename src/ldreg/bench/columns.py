"""What the columns of a benchmark's tables say."""

from collections.abc import Callable

from ldreg.bench.contest import OWN, VIEWS, Goal
from ldreg.bench.goals import AT_LEAST, images_per_second, regularizer_share
from ldreg.bench.record import Result, Run
from ldreg.text import count, number

Cell = Callable[[Run, Result], str | None]  # None where there is nothing to say


def seconds_text(value: float | None) -> str | None:
    """A time in the unit that suits it.

    >>> seconds_text(12.5), seconds_text(0.125), seconds_text(0.0125), seconds_text(0.0003), seconds_text(None)
    ('12.50 s', '125 ms', '12.5 ms', '0.300 ms', None)
    """
    if value is None:
        return None
    if value >= 1:
        return f"{number(value)} s"
    return f"{1000 * value:.{sum(value < bound for bound in (0.1, 0.01, 0.001))}f} ms"


def percent_text(share: float | None) -> str | None:
    """A share, which may be below 0 by chance.

    >>> percent_text(0.0123), percent_text(-0.001)
    ('1.2 %', '-0.1 %')
    """
    return None if share is None else f"{100 * share:.1f} %"


def _median(result: Result) -> str:
    return f"{'≈ ' if result.measured is None else ''}{seconds_text(result.seconds)}"


def _rate(result: Result, each: int = 1) -> str | None:
    return None if result.measured is None else count(round(each * images_per_second(result)))


def _memory(result: Result) -> str | None:
    return None if result.extra_mb is None else f"{result.extra_mb:.0f}"


def _ratio(run: Run, result: Result) -> str | None:
    ratio = run.ratio(result)
    return None if ratio is None else f"{'≈ ' if result.measured is None else ''}{ratio:.2f} ×"


CELLS: dict[str, Cell] = {
    "time": lambda run, result: _median(result),
    "per step": lambda run, result: _median(result),
    "host time": lambda run, result: seconds_text(result.host),
    "extra MB": lambda run, result: _memory(result),
    "time vs ldreg": _ratio,
    "off by": lambda run, result: None if result.deviation is None else f"{result.deviation:.0e}",
    "img/s": lambda run, result: _rate(result),
    "views/s": lambda run, result: _rate(result, VIEWS),
    "LDReg": lambda run, result: percent_text(regularizer_share(result)),
}

_UNITS: dict[str, Callable[[float], str | None]] = {
    "speed": "{:.2f}×".format,
    "extra memory": "{:.0f} MB".format,
    "memory share": "{:.2f}".format,
    "time": seconds_text,
    "host time": seconds_text,
    "deviation": "{:.0e}".format,
    "img/s": lambda value: f"{count(round(value))}/s",
    "views/s": lambda value: f"{count(round(value))}/s",
    "LDReg": percent_text,
    "views": percent_text,
}


def reached_text(goal: Goal, value: float | None) -> str:
    """What was reached, in the goal's unit."""
    return "–" if value is None else _UNITS[goal.quantity](value) or "–"


def goal_text(goal: Goal) -> str:
    """What a goal asks for.

    >>> goal_text(Goal((), "speed", 1.3)), goal_text(Goal((), "extra memory", 150))
    ('speed ≥ 1.3 × best other', 'extra memory ≤ 150 MB')
    >>> goal_text(Goal((), "host time", 3e-4, of="compiled")), goal_text(Goal((), "views", 0.1))
    ('host time ≤ 0.300 ms by compiled', "views' share ≤ 10.0 %")
    """
    name = {"LDReg": "LDReg's share", "views": "views' share", "memory share": "extra memory"}.get(
        goal.quantity, goal.quantity
    )
    limit = _UNITS[goal.quantity](goal.limit)
    if goal.quantity in ("speed", "memory share"):
        limit = f"{goal.limit:g} × {goal.rival or 'best other'}"
    elif goal.quantity in AT_LEAST:
        limit = count(round(goal.limit))
    who = "" if goal.of == OWN else f" by {goal.of}"
    return f"{name} {'≥' if goal.quantity in AT_LEAST else '≤'} {limit}{who}"
