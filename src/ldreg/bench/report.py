"""Runs as tables, in a terminal and in Markdown."""

from collections.abc import Sequence
from io import StringIO
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ldreg.bench.columns import CELLS, goal_text, reached_text, seconds_text
from ldreg.bench.contest import OWN
from ldreg.bench.record import Run, Verdict
from ldreg.bench.scaling import Series, headline, series
from ldreg.bench.stopwatch import PARTS
from ldreg.bench.suite import BENCHMARKS
from ldreg.text import broken, count

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
