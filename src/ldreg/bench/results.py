"""What a run of a benchmark measured: JSON, verdicts on goals, tables."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from ldreg.bench import BENCHMARKS
from ldreg.bench.measure import OWN, VIEWS, Device, Goal, Measurement, Points, candidates
from ldreg.bench.step import PARTS
from ldreg.report.tables import Cell, Table, rendered, table_markdown, text_parts
from ldreg.text import count, number

_GOAL_K = 64  # the goals are for this number of neighbors
_FEWEST = 3  # sizes that make a series
_BUSY = 0.1  # cores used by others above which times are in doubt


@dataclass(frozen=True)
class Result:
    """One contender at one size."""

    contender: str
    size: Any  # of the benchmark's type
    measured: Measurement | None = None
    deviation: float | None = None  # the error of its result, if known
    skipped: str = ""  # why it was not measured
    estimate: float | None = None  # seconds that it would take, if it was skipped for that

    @property
    def seconds(self) -> float | None:
        """The time of a call, measured or estimated."""
        return self.measured.median if self.measured else self.estimate


@dataclass(frozen=True)
class Verdict:
    """Whether a goal is met by a value, compared with a rival, without the missing ones; None if unknown."""

    goal: Goal
    value: float | None
    met: bool | None
    rival: str = ""
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """One run of one benchmark on one device: results, and where and how it ran."""

    benchmark: str
    device: Device
    command: str
    k: int
    seed: int
    repeats: int
    environment: dict[str, Any]
    results: tuple[Result, ...] = ()
    complete: bool = True  # False if it was interrupted

    @property
    def measured(self) -> bool:
        """Whether anything was measured."""
        return any(result.measured for result in self.results)

    @property
    def verdicts(self) -> list[Verdict]:
        """Verdicts on the goals for the run's device and sizes, if it has the k that goals are for."""
        goals = [goal for goal in BENCHMARKS[self.benchmark].goals if self.k == _GOAL_K and goal.device == self.device]
        return [_verdict(goal, self) for goal in goals if goal.size in self.sizes]

    @property
    def sizes(self) -> tuple[Any, ...]:
        """The sizes in the order they were run."""
        return tuple(dict.fromkeys(result.size for result in self.results))

    def at(self, size: Any) -> dict[str, Result]:
        """Results of one size by contender."""
        return {result.contender: result for result in self.results if result.size == size}

    def ratio(self, result: Result) -> float | None:
        """Time of a contender, measured or estimated, over ours at the same size."""
        own = self.at(result.size).get(OWN)
        return _ratio(result.seconds, own.seconds) if own and own.measured else None


def to_json(runs: Sequence[Run]) -> str:
    """Runs as a JSON list, with the medians of the repeats and the verdicts on goals."""

    def fields(value: Any) -> dict[str, Any]:
        if isinstance(value, Run):
            deviation_of = BENCHMARKS[value.benchmark].deviation_of
            return {**vars(value), "verdicts": value.verdicts, "deviation_of": deviation_of}
        return {**vars(value), "median": value.median} if isinstance(value, Measurement) else vars(value)

    return json.dumps(runs, indent=1, default=fields) + "\n"


def from_json(text: str) -> list[Run]:
    """The runs that `to_json` wrote.

    Raises:
        ValueError: the text is not JSON or not of this shape.
    """
    try:
        return [_run(content) for content in json.loads(text)]
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"expected runs as ldreg bench writes them, got another shape ({reason})") from error


def to_measurement(fields: dict[str, Any]) -> Measurement:
    """The measurement with these fields, as JSON has them."""
    kept = {name: value for name, value in fields.items() if name != "median"}
    return Measurement(**{**kept, "seconds": tuple(kept["seconds"])})


def _run(content: dict[str, Any]) -> Run:
    if content["benchmark"] not in BENCHMARKS:
        raise ValueError(f"benchmark: expected one of {', '.join(BENCHMARKS)}, got {content['benchmark']!r}")
    kind: Any = BENCHMARKS[content["benchmark"]].size
    results = []
    for entry in content["results"]:
        measured = to_measurement(entry["measured"]) if entry["measured"] else None
        results.append(Result(**{**entry, "size": kind(*entry["size"]), "measured": measured}))
    kept = {name: value for name, value in content.items() if name not in ("verdicts", "deviation_of")}  # follow
    return Run(**{**kept, "results": tuple(results)})


def seconds_text(value: float) -> str:
    """A time in the unit that suits it.

    >>> seconds_text(12.5), seconds_text(0.125), seconds_text(0.0125), seconds_text(0.0003)
    ('12.50 s', '125 ms', '12.5 ms', '0.300 ms')
    """
    if value >= 1:
        return f"{number(value)} s"
    return f"{1000 * value:.{sum(value < bound for bound in (0.1, 0.01, 0.001))}f} ms"


_TEXTS: dict[str, Callable[[float], str]] = {
    "time": seconds_text,
    "host time": seconds_text,
    "extra memory": "{:.0f} MB".format,
    "deviation": "{:.0e}".format,
    "img/s": "{:,.0f}".format,
    "views/s": "{:,.0f}".format,
    "LDReg": "{:.1%}".format,
    "views": "{:.1%}".format,
    "time vs ldreg": "{:.2f} ×".format,
    "speed": "{:.2f}".format,
    "memory share": "{:.2f}".format,
}
_MEASURED: dict[str, Callable[[Any, Measurement], float | None]] = {
    "host time": lambda size, measured: measured.host,
    "extra memory": lambda size, measured: measured.extra_mb,
    "img/s": lambda size, measured: size.images / measured.median,
    "views/s": lambda size, measured: VIEWS * size.images / measured.median,
    "LDReg": lambda size, measured: None if measured.without is None else measured.median / measured.without - 1,
    "views": lambda size, measured: measured.parts["views"] / measured.median if "views" in measured.parts else None,
}
_AT_LEAST = ("speed", "img/s", "views/s")  # goals for the other quantities are upper limits
_RATIOS = ("speed", "memory share")  # of two contenders


def quantity(result: Result, name: str) -> float | None:
    """A quantity of a result: "LDReg" is the share that it adds to a step, "views" their share of a step.

    >>> quantity(Result("ldreg", Points(9, 3), Measurement((0.5,), 12.0)), "extra memory")
    12.0
    """
    if name == "time":
        return result.seconds
    if name == "deviation":
        return result.deviation
    return _MEASURED[name](result.size, result.measured) if result.measured else None


def _verdict(goal: Goal, run: Run) -> Verdict:
    measured = {key: result for key, result in run.at(goal.size).items() if result.measured}
    rivals: list[str] = []
    if goal.quantity in _RATIOS:
        contenders = BENCHMARKS[run.benchmark].contenders
        counted = [key for key, who in contenders.items() if who.counts and goal.device in who.devices and key != OWN]
        rivals = [goal.rival] if goal.rival else counted
    missing = tuple(key for key in rivals if key not in measured)
    known = [key for key in rivals if key in measured]
    best = min(known, key=lambda key: measured[key].seconds or math.inf, default="")
    value, own = None, measured.get(goal.of)
    if own and goal.quantity == "speed" and best:
        value = _ratio(measured[best].seconds, own.seconds)
    elif own and goal.quantity == "memory share" and best:
        value = _ratio(quantity(own, "extra memory"), quantity(measured[best], "extra memory"))
    elif own and not rivals:
        value = quantity(own, goal.quantity)
    met = None if value is None else value >= goal.limit if goal.quantity in _AT_LEAST else value <= goal.limit
    return Verdict(goal, value, met, best if own else "", missing)


def _ratio(value: float | None, other: float | None) -> float | None:
    return None if value is None or not other else value / other


def goal_line(verdict: Verdict) -> str:
    """Whether a goal is met, its limit and the value.

    >>> goal_line(Verdict(Goal(Points(9, 3), "speed", 1.3), 1.5, True, "faiss"))
    'met: speed at 9×3 ≥ 1.3 × best other; reached 1.50 (faiss)'
    """
    goal, text = verdict.goal, _TEXTS[verdict.goal.quantity]
    limit = f"{goal.limit:g} × {goal.rival or 'best other'}" if goal.quantity in _RATIOS else text(goal.limit)
    by = "" if goal.of == OWN else f" by {goal.of}"
    without = f", without {', '.join(verdict.missing)}" if verdict.missing else ""
    against = f" ({verdict.rival}{without})" if verdict.rival else ""
    word = {None: "not measured", True: "met", False: "missed"}[verdict.met]
    reached = "" if verdict.value is None else f"; reached {text(verdict.value)}{against}"
    return f"{word}: {goal.quantity} at {goal.size} {'≥' if goal.quantity in _AT_LEAST else '≤'} {limit}{by}{reached}"


def series(run: Run) -> dict[str, list[Points]]:
    """By axis, points or dimensions, the longest ascending series of sizes that differ in it only."""
    found = {}
    sizes = [size for size in run.sizes if isinstance(size, Points)]
    for place, axis in enumerate(Points._fields if sizes else ()):
        fixed, often = Counter(size[1 - place] for size in sizes).most_common(1)[0]
        if often >= _FEWEST:
            found[axis] = sorted(size for size in sizes if size[1 - place] == fixed)
    return found


def fixed_at(axis: str, sizes: Sequence[Points]) -> str:
    """What stays the same along a series."""
    return f"at {sizes[0].dimensions:,} dimensions" if axis == "points" else f"at {sizes[0].points:,} points"


def headline(run: Run) -> list[Any]:
    """The sizes that have their own table: all but those of the study that a series shows."""
    benchmark = BENCHMARKS[run.benchmark]
    extra = set(benchmark.study.get(run.device, ())) - set(benchmark.sizes[run.device])
    in_series = {size for sizes in series(run).values() for size in sizes}
    return [size for size in run.sizes if size not in extra or size not in in_series]


def as_markdown(runs: Sequence[Run]) -> str:
    """Runs as a Markdown page, with the plots in the same folder."""
    intro = "Written by `ldreg bench --out`; the last run of each benchmark on each device."
    parts = ["# Benchmark results", intro]
    for run in runs:
        plot = f"![{BENCHMARKS[run.benchmark].title}]({run.benchmark}-{run.device}.svg)"
        command = [f"## {title(run)}", f"`{run.command}`", machine(run)]
        content = [table_markdown(part) if isinstance(part, Table) else part for part in _content(run)]
        parts += [*command, *content, plot]
    return "\n\n".join(parts) + "\n"


def as_text(runs: Sequence[Run], *, width: int = 80, color: bool = False) -> str:
    """Runs as lines of at most `width` columns, with terminal colors if wanted."""
    parts: list[Any] = [Text(machine(runs[0])), ""]
    for run in runs:
        parts += [Text(title(run), style="bold")]
        for part in _content(run):
            parts += text_parts(part, width=width) if isinstance(part, Table) else [Text(part.lstrip("# ")), ""]
    return rendered(parts, width=width, color=color).strip("\n")


def _content(run: Run) -> Iterator[str | Table]:
    """Paragraphs and headings of a run in Markdown, and its tables."""
    yield method(run)
    if run.verdicts:
        yield "\n".join(f"- {goal_line(verdict)}" for verdict in run.verdicts)
    for size in headline(run):
        results = list(run.at(size).values())
        yield f"### {size}"
        if timed := [result for result in results if result.seconds is not None]:
            names = BENCHMARKS[run.benchmark].columns
            columns = {name: [_text(run, result, name) for result in timed] for name in names}
            yield _table("", [result.contender for result in timed], columns)
        yield from _notes(run, results)
        parts = {result.contender: result.measured.parts for result in results if result.measured}
        if divided := {key: seconds for key, seconds in parts.items() if seconds}:
            yield _table(
                "ms",
                list(divided),
                {
                    name: [f"{1000 * seconds[name]:.2f}" if name in seconds else None for seconds in divided.values()]
                    for name in PARTS
                },
            )
    for axis, sizes in series(run).items():
        yield f"### Time over {axis}, {fixed_at(axis, sizes)}"
        columns = {}
        for key in BENCHMARKS[run.benchmark].contenders:
            times = [run.at(size).get(key, Result(key, size)).measured for size in sizes]
            columns[key] = [seconds_text(each.median) if each else None for each in times]
        yield _table(axis, [count(getattr(size, axis)) for size in sizes], columns)


def _table(axis: str, names: Sequence[str], columns: Mapping[str, Sequence[str | None]]) -> Table:
    """A row for each name; columns without a value are left out."""
    shown = {title: texts for title, texts in columns.items() if any(texts)}
    rows = zip(names, *shown.values(), strict=True)
    return Table((axis, *shown), [[Cell(text or "–") for text in row] for row in rows])


def _text(run: Run, result: Result, name: str) -> str | None:
    value = run.ratio(result) if name == "time vs ldreg" else quantity(result, name)
    return None if value is None else ("" if result.measured else "≈ ") + _TEXTS[name](value)


def _notes(run: Run, results: Sequence[Result]) -> Iterator[str]:
    """The fastest rival, the contenders for reference, and why others were not measured."""
    contenders = BENCHMARKS[run.benchmark].contenders
    measured = [result for result in results if result.measured and result.contender != OWN]
    rivals = [each for each in measured if each.contender in contenders and contenders[each.contender].counts]
    ratios = [(ratio, each.contender) for each in rivals if (ratio := run.ratio(each)) is not None]
    if ratios:
        ratio, best = min(ratios)
        yield f"best other: {best}, {ratio:.2f} × the time of ldreg"
    if aside := [each.contender for each in measured if each not in rivals]:
        yield f"for reference: {', '.join(aside)}"
    for reason in dict.fromkeys(result.skipped for result in results if result.skipped):
        yield f"{', '.join(result.contender for result in results if result.skipped == reason)}: {reason}"


def title(run: Run) -> str:
    """The work and the device, and whether the run is complete."""
    where = "on the CPU" if run.device == "cpu" else "on CUDA"
    return f"{BENCHMARKS[run.benchmark].title}, {where}{'' if run.complete else ' (interrupted: incomplete)'}"


def machine(run: Run) -> str:
    """The machine of a run, with a warning if other processes used it."""
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
    """How a run measured."""
    benchmark = BENCHMARKS[run.benchmark]
    deviation = f" Deviation: {benchmark.deviation_of}." if benchmark.deviation_of else ""
    warm = ", after calls that compile" if run.device == "cuda" else ""
    k = f"k = {run.k}, " if any(candidates(size) is not None for size in run.sizes) else ""
    return (
        f"{k}{benchmark.conditions}. Median of {run.repeats} (of 1 over 10 s){warm}, a fresh process each.{deviation}"
    )
