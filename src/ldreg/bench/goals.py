"""What was reached of the goals."""

import math
from collections.abc import Callable

from ldreg.bench.contest import OWN, VIEWS, Benchmark, Goal
from ldreg.bench.record import Result, Run, Verdict

_GOAL_K = 64  # the goals are set for this number of neighbors


def verdicts(record: Run, benchmark: Benchmark) -> tuple[Verdict, ...]:
    """What was reached of those goals whose size was run on their device with the k that they are set for."""
    goals = [goal for goal in benchmark.goals if goal.device == record.device and goal.size in record.sizes]
    return tuple(_verdict(goal, record.at(goal.size), benchmark) for goal in goals if record.k == _GOAL_K)


def _verdict(goal: Goal, results: dict[str, Result], benchmark: Benchmark) -> Verdict:
    able = [key for key, who in benchmark.contenders.items() if goal.device in who.devices and key != OWN]
    asked = [goal.rival] if goal.rival else [key for key in able if benchmark.contenders[key].counts]
    if goal.quantity not in ("speed", "memory share"):
        asked = []
    measured = {key: result for key, result in results.items() if result.measured is not None}
    rivals, missing = [key for key in asked if key in measured], tuple(key for key in asked if key not in measured)
    if goal.of not in measured or (asked and not rivals):
        return Verdict(goal, None, None, missing=missing)
    best = min(rivals, key=lambda key: measured[key].seconds or 0.0, default=goal.of)
    value = _VALUES[goal.quantity](measured[goal.of], measured[best])
    met = None if value is None else value >= goal.limit if goal.quantity in AT_LEAST else value <= goal.limit
    return Verdict(goal, value, met, best if asked else "", missing)


AT_LEAST = ("speed", "img/s", "views/s")  # the other quantities have to be at most the limit


def _speed(own: Result, rival: Result) -> float:
    return (rival.seconds or 0.0) / (own.seconds or math.inf)


def _memory_share(own: Result, rival: Result) -> float | None:
    return None if own.extra_mb is None or not rival.extra_mb else own.extra_mb / rival.extra_mb


def images_per_second(result: Result) -> float:
    """Images that were taken in a second, of a size that has images."""
    assert result.measured
    return float(result.size.images / result.measured.median)


def regularizer_share(result: Result) -> float | None:
    """What LDReg adds to a step, relative to one without it; None where that was not measured."""
    if result.measured is None or result.measured.without is None:
        return None
    return result.measured.median / result.measured.without - 1


def views_share(result: Result) -> float | None:
    """What the views take of a step; None where that was not measured."""
    if result.measured is None or "views" not in result.measured.parts:
        return None
    return result.measured.parts["views"] / result.measured.median


_VALUES: dict[str, Callable[[Result, Result], float | None]] = {
    "speed": _speed,
    "extra memory": lambda own, _: own.extra_mb,
    "memory share": _memory_share,
    "time": lambda own, _: own.seconds,
    "host time": lambda own, _: own.host,
    "deviation": lambda own, _: own.deviation,
    "img/s": lambda own, _: images_per_second(own),
    "views/s": lambda own, _: VIEWS * images_per_second(own),
    "LDReg": lambda own, _: regularizer_share(own),
    "views": lambda own, _: views_share(own),
}
