"""Runs as tables, in a terminal and in Markdown."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from io import StringIO
from typing import Any, Literal, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ldreg.bench.benchmark import OWN, VIEWS, Benchmark, Goal, Points
from ldreg.bench.measure import PARTS
from ldreg.bench.record import Result, Run, Verdict
from ldreg.bench.suite import BENCHMARKS
from ldreg.text import broken, count, number

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


_FEWEST = 3  # sizes that make a series

Axis = Literal["points", "dimensions"]


class Series(NamedTuple):
    """Sizes that differ along one axis alone, ascending."""

    axis: Axis
    fixed: int
    sizes: tuple[Points, ...]

    @property
    def title(self) -> str:
        """What grows and what stays."""
        other = "dimensions" if self.axis == "points" else "points"
        return f"over {self.axis}, at {self.fixed:,} {other}"


def series(run: Run) -> list[Series]:
    """The longest series along each axis, where there is one."""
    sizes = [size for size in run.sizes if isinstance(size, Points)]
    return [found for axis in ("points", "dimensions") if (found := _longest(axis, sizes)) is not None]


def _longest(axis: Axis, sizes: list[Points]) -> Series | None:
    groups: dict[int, list[Points]] = defaultdict(list)
    for size in sizes:
        groups[size.dimensions if axis == "points" else size.points].append(size)
    fixed, members = max(groups.items(), key=lambda group: len(group[1]), default=(0, []))
    return Series(axis, fixed, tuple(sorted(members))) if len(members) >= _FEWEST else None


def headline(run: Run) -> list[Points]:
    """The sizes that are shown in full: all but those that were run for a series alone."""
    benchmark = BENCHMARKS[run.benchmark]
    extra = set(benchmark.study.get(run.device, ())) - set(benchmark.sizes[run.device])
    in_series = {size for found in series(run) for size in found.sizes}
    return [size for size in run.sizes if size not in extra or size not in in_series]


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


_GOAL_COLUMNS = ("goal", "reached", "")
_BUSY = 0.1  # cores used by others from which on times are in doubt
_HEADING = 10  # characters of a column's heading where there are many

Grid = tuple[tuple[str, ...], list[tuple[str, ...]]]  # headings and rows


def as_text(runs: Sequence[Run], *, width: int = 80, color: bool = False) -> str:
    """Runs as lines of at most `width` columns, with terminal colors if wanted."""
    console = Console(
        file=StringIO(), width=width, force_terminal=color, color_system="standard" if color else None, highlight=False
    )
    with console.capture() as capture:
        console.print(Group(Text(machine(runs[0])), ""))
        for run in runs:
            console.print(_render(run))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()).strip("\n")


def _render(run: Run) -> RenderableType:
    parts: list[RenderableType] = [Text(title(run), style="bold"), Text(method(run)), ""]
    for size in headline(run):
        headings, content = rows(run, size)
        table = [_table(headings, content, remark=False)] if content else []
        parts += [Text(size.heading), *table, *map(Text, notes(run, size)), ""]
        if shares := part_rows(run, size):
            parts += [_table(*shares, remark=False), ""]
    for found in series(run):
        headings, content = series_rows(run, found)
        columns = [broken(name, _HEADING) for name in headings]
        parts += [Text(f"time {found.title}"), _table(columns, content, remark=False), ""]
    if run.verdicts:
        parts += [_table(_GOAL_COLUMNS, [goal_row(verdict) for verdict in run.verdicts]), ""]
    return Group(*parts)


def _table(columns: Sequence[str], content: Sequence[Sequence[str]], *, remark: bool = True) -> Table:
    """A table whose first column names, whose last remarks, and whose others hold numbers."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1))
    for place, name in enumerate(columns):
        last = remark and place == len(columns) - 1
        table.add_column(Text(name), justify="left" if place == 0 or last else "right", no_wrap=not last)
    for row in content:
        table.add_row(*map(Text, row), style="bold" if row[0] == OWN else None)
    return table


def title(run: Run) -> str:
    """What was done where, and whether to its end."""
    where = "on the CPU" if run.device == "cpu" else "on CUDA"
    return f"{BENCHMARKS[run.benchmark].title}, {where}{'' if run.complete else ' (interrupted: incomplete)'}"


def rows(run: Run, size: Any) -> Grid:
    """A row for each contender that has a time, ours first; columns that say nothing are left out."""
    results = [result for result in run.at(size).values() if result.seconds is not None]
    cells = {name: [CELLS[name](run, result) for result in results] for name in BENCHMARKS[run.benchmark].columns}
    told = {name: values for name, values in cells.items() if any(value is not None for value in values)}
    return ("", *told), [
        (result.contender, *(values[place] or "–" for values in told.values())) for place, result in enumerate(results)
    ]


def notes(run: Run, size: Any) -> list[str]:
    """What stands below a table: the fastest beside us, who is no rival, and who was not measured for what reason."""
    results = run.at(size).values()
    aside = [each.contender for each in results if each.measured and not _counts(run, each.contender)]
    reasons: dict[str, list[str]] = {}
    for result in results:
        if result.skipped:
            reasons.setdefault(result.skipped, []).append(result.contender)
    lines = [summary(run, size), f"for reference: {', '.join(aside)}" if aside else ""]
    return [line for line in lines if line] + [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]


def part_rows(run: Run, size: Any) -> Grid | None:
    """Where the time of a step goes, in milliseconds; None where that was not measured."""
    found = {key: result.measured.parts for key, result in run.at(size).items() if result.measured is not None}
    names = [name for name in PARTS if any(name in parts for parts in found.values())]
    content = [(key, *(_milliseconds(parts.get(name)) for name in names)) for key, parts in found.items() if parts]
    return (("ms", *names), content) if content else None


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{1000 * seconds:.{1 if seconds >= 0.01 else 2}f}"


def series_rows(run: Run, found: Series) -> Grid:
    """Times of a series: a row for each size, a column for each contender that was measured."""
    times = {key: [_time(run, size, key) for size in found.sizes] for key in BENCHMARKS[run.benchmark].contenders}
    told = {key: values for key, values in times.items() if any(values)}
    places = [count(getattr(size, found.axis)) for size in found.sizes]
    content = [(at, *(values[row] or "–" for values in told.values())) for row, at in enumerate(places)]
    return (found.axis, *told), content


def _time(run: Run, size: Any, key: str) -> str | None:
    result = run.at(size).get(key)
    return None if result is None or result.measured is None else seconds_text(result.measured.median)


def _counts(run: Run, key: str) -> bool:
    """Whether a contender is a rival; one that a kept run had and that is no more is none."""
    who = BENCHMARKS[run.benchmark].contenders.get(key)
    return who is not None and (who.counts or key == OWN)


def summary(run: Run, size: Any) -> str:
    """Who is the fastest beside us and by how much; empty where there is nobody to compare."""
    ratios = {key: run.ratio(result) for key, result in run.at(size).items() if key != OWN and result.measured}
    known = {key: ratio for key, ratio in ratios.items() if ratio is not None and _counts(run, key)}
    if not known:
        return ""
    best = min(known, key=lambda key: known[key])
    return f"best other: {best}, {known[best]:.2f} × the time of ldreg"


def goal_row(verdict: Verdict) -> tuple[str, str, str]:
    """The goal in words, what was reached, and whether that meets it."""
    goal = verdict.goal
    word = {None: "not measured", True: "met", False: "missed"}[verdict.met]
    without = f", without {', '.join(verdict.missing)}" if verdict.missing else ""
    against = f" ({verdict.rival}{without})" if verdict.rival else ""
    return f"{goal.size}: {goal_text(goal)}", reached_text(goal, verdict.value), word + against


def machine(run: Run) -> str:
    """Where a run was made, with a warning where other processes had much of the machine."""
    where = run.environment
    packages = ", ".join(f"{name} {version}" for name, version in where["packages"].items() if version is not None)
    others = "" if where["others"] is None else f", others used {where['others']:.2f} cores meanwhile"
    doubt = " Times are in doubt: the machine had other work." if (where["others"] or 0) > _BUSY else ""
    gpu = "" if where["gpu"] is None else f"{where['gpu']}; "
    return (
        f"{where['date']}, commit {where['commit'] or 'unknown'}. {gpu}{where['processor']}, {where['cores']} cores, "
        f"{where['memory_gb']:g} GB, {where['system']}. {where['threads']} threads each; load {where['load']:g} "
        f"before{others}.{doubt} Python {where['python']}, {packages}."
    )


def method(run: Run) -> str:
    """How a run was made."""
    off = f" Off by: {run.deviation_of}." if run.deviation_of else ""
    warm = ", after calls that compile" if run.device == "cuda" else ""
    k = f"k = {run.k}, " if any(size.candidates is not None for size in run.sizes) else ""
    return (
        f"{k}{BENCHMARKS[run.benchmark].conditions}. Median of {run.repeats} (of 1 over 10 s){warm}, a fresh "
        f"process each.{off}"
    )
