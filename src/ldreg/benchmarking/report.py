"""Runs as tables in a terminal and in Markdown, and the folder that holds the last run of each benchmark."""

from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ldreg.benchmarking.contest import OWN, Goal, Size
from ldreg.benchmarking.plot import draw, svg
from ldreg.benchmarking.record import Result, Run, Verdict, from_json, to_json
from ldreg.benchmarking.suite import BENCHMARKS
from ldreg.reporting.files import write_atomically
from ldreg.reporting.text import count, number

RESULTS = "RESULTS.md"
_COLUMNS = ("", "seconds", "extra MB", "vs ldreg", "off by", "")
_GOAL_COLUMNS = ("goal", "reached", "")
_BUSY = 0.1  # cores used by others from which on times are in doubt


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
    parts: list[RenderableType] = [Text(BENCHMARKS[run.benchmark].title, style="bold"), Text(method(run)), ""]
    for size in run.sizes:
        parts += [_table((heading(size), *_COLUMNS[1:]), rows(run, size)), Text(summary(run, size)), ""]
    if run.verdicts:
        parts += [_table(_GOAL_COLUMNS, [goal_row(verdict) for verdict in run.verdicts]), ""]
    return Group(*parts)


def _table(columns: Sequence[str], content: Sequence[Sequence[str]]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1))
    for place, name in enumerate(columns):
        last = place == len(columns) - 1
        right = 0 < place < len(columns) - 1
        table.add_column(Text(name), justify="right" if right else "left", no_wrap=not last)
    for row in content:
        table.add_row(*map(Text, row), style="bold" if row[0] == OWN else None)
    return table


def heading(size: Size) -> str:
    """A size in words."""
    return f"{count(size.points)} × {count(size.dimensions)}"


def rows(run: Run, size: Size) -> list[tuple[str, ...]]:
    """Contender, seconds, extra memory, time relative to ours, deviation from our result, remark; ours first."""
    counts = {key: who.counts for key, who in BENCHMARKS[run.benchmark].contenders.items()}
    return [_row(run, result, counts[result.contender]) for result in run.at(size).values()]


def _row(run: Run, result: Result, counts: bool) -> tuple[str, ...]:
    if result.measured is None:
        return (result.contender, "–", "–", "–", "–", result.skipped)
    memory = "–" if result.measured.extra_mb is None else f"{result.measured.extra_mb:.0f}"
    ratio = run.ratio(result)
    deviation = "–" if result.deviation is None or result.contender == OWN else f"{result.deviation:.0e}"
    return (
        result.contender,
        number(result.measured.median),
        memory,
        "–" if ratio is None else f"{ratio:.2f} ×",
        deviation,
        "" if counts else "for reference",
    )


def summary(run: Run, size: Size) -> str:
    """Who is the fastest beside us and by how much; empty where there is nobody to compare."""
    ratios = {key: run.ratio(result) for key, result in run.at(size).items() if key != OWN}
    counted = {key: who.counts for key, who in BENCHMARKS[run.benchmark].contenders.items()}
    known = {key: ratio for key, ratio in ratios.items() if ratio is not None and counted[key]}
    if not known:
        return ""
    best = min(known, key=lambda key: known[key])
    return f"best other: {best}, {known[best]:.2f} × the time of ldreg"


def goal_row(verdict: Verdict) -> tuple[str, str, str]:
    """The goal in words, what was reached, and whether that meets it."""
    goal = verdict.goal
    unit: Callable[[float], str] = {
        "speed": "{:.2f}×".format,
        "extra memory": "{:.0f} MB".format,
        "memory share": "{:.2f}".format,
    }[goal.quantity]
    word = {None: "not measured", True: "met", False: "missed"}[verdict.met]
    without = f", without {', '.join(verdict.missing)}" if verdict.missing else ""
    against = f" ({verdict.rival}{without})" if verdict.rival else ""
    return f"{goal.size}: {goal_text(goal)}", "–" if verdict.value is None else unit(verdict.value), word + against


def goal_text(goal: Goal) -> str:
    """What a goal asks for.

    >>> goal_text(Goal(Size(10_000, 2048), "speed", 1.3)), goal_text(Goal(Size(10_000, 2048), "extra memory", 150))
    ('speed ≥ 1.3 × best other', 'extra memory ≤ 150 MB')
    """
    rival = goal.rival or "best other"
    return {
        "speed": f"speed ≥ {goal.limit:g} × {rival}",
        "extra memory": f"extra memory ≤ {goal.limit:g} MB",
        "memory share": f"extra memory ≤ {goal.limit:g} × {rival}",
    }[goal.quantity]


def machine(run: Run) -> str:
    """Where a run was made, with a warning where other processes had much of the machine."""
    where = run.environment
    packages = ", ".join(f"{name} {version}" for name, version in where["packages"].items() if version is not None)
    others = "" if where["others"] is None else f", others used {where['others']:.2f} cores meanwhile"
    doubt = " Times are in doubt: the machine had other work." if (where["others"] or 0) > _BUSY else ""
    return (
        f"{where['date']}, commit {where['commit'] or 'unknown'}. {where['processor']}, {where['cores']} cores, "
        f"{where['memory_gb']:g} GB, {where['system']}. {where['threads']} threads each; load {where['load']:g} "
        f"before{others}.{doubt} Python {where['python']}, {packages}."
    )


def method(run: Run) -> str:
    """How a run was made."""
    return (
        f"k = {run.k}, float32 normal points. Median of {run.repeats} (of 1 over 10 s), a fresh process each. "
        f"Off by: {BENCHMARKS[run.benchmark].deviation_of}, against ldreg."
    )


def as_markdown(runs: Sequence[Run]) -> str:
    """Runs as a Markdown page, with the plots that lie beside it."""
    parts = ["# Benchmark results", "Written by `ldreg bench --out`; the last run of each benchmark."]
    for run in runs:
        parts += [f"## {BENCHMARKS[run.benchmark].title}", f"`{run.command}`", machine(run), method(run)]
        if run.verdicts:
            parts.append(_markdown_table(_GOAL_COLUMNS, [goal_row(verdict) for verdict in run.verdicts]))
        for size in run.sizes:
            parts += [f"### {heading(size)}", _markdown_table(_COLUMNS, rows(run, size)), summary(run, size)]
        parts.append(f"![time and memory over size]({run.benchmark}.svg)")
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown_table(columns: Sequence[str], content: Sequence[Sequence[str]]) -> str:
    rule = ["---:" if 0 < place < len(columns) - 1 else "---" for place in range(len(columns))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, rule, *content))


def write_folder(folder: Path, runs: Sequence[Run]) -> list[Path]:
    """Write each run's JSON and plot into the folder, and RESULTS.md of all runs that then lie there."""
    written = []
    for run in runs:
        for suffix, text in ((".json", to_json([run])), (".svg", svg(draw(run)))):
            written.append(folder / f"{run.benchmark}{suffix}")
            write_atomically(written[-1], text)
    present = [path for name in BENCHMARKS if (path := folder / f"{name}.json").exists()]
    last = [run for path in present for run in from_json(path.read_text(encoding="utf-8"))]
    write_atomically(folder / RESULTS, as_markdown(last))
    return [*written, folder / RESULTS]
