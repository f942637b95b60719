"""Plots of runs."""

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import geometric_mean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from ldreg.bench import BENCHMARKS
from ldreg.bench.measure import OWN
from ldreg.bench.results import Result, Run, fixed_at, headline, quantity, series
from ldreg.bench.step import PARTS
from ldreg.report.style import COLORS, GRAY, log_axis, plain_axes, plain_style
from ldreg.text import count

_MARKERS = "os^Dv*PX"
_PART_COLORS = ("#c9ced6", "#58b4d6", "#3b86c6", "#2a9d7c", "#d6455d", "#e0762f", "#b8a013", "#e6e9ee")
_REST = "rest"
_PARTS = dict(zip((*PARTS, _REST), _PART_COLORS, strict=True))
_NEAR = 0.18  # share of the axis at which two labels would touch
_ROW = 0.34  # inches of a bar


@plain_style()
def draw(run: Run) -> Figure:
    """The figure that suits the benchmark."""
    figure = {"scaling": _scaling, "rates": _rates, "parts": _parts}[BENCHMARKS[run.benchmark].picture](run)
    if not run.complete:
        figure.suptitle("interrupted: not all was measured", fontsize=10)
    return figure


def _scaling(run: Run) -> Figure:
    """Seconds and extra memory over points² × dimensions; below, seconds along each series."""
    sizes = headline(run)
    rows = 1 + bool(series(run))
    figure = Figure(figsize=(11, 4.6 * rows), layout="constrained")
    panels = figure.subplots(rows, 2, squeeze=False)
    for axes, name, label in zip(panels[0], ("time", "extra memory"), ("seconds", "extra memory in MB"), strict=True):
        _curves(axes, run, sizes, "work", name, power=1 if name == "time" else None)
        _label_sizes(axes, sizes)
        axes.set(xlabel="points × dimensions, at points² × dimensions", ylabel=label)
    below = list(panels[1:].flat)
    for axis, along in series(run).items():
        axes, cost = below.pop(0), f"∝ {axis}{'²' if axis == 'points' else ''}"
        _curves(axes, run, along, axis, "time", power=2 if axis == "points" else 1)
        places = [getattr(size, axis) for size in along]
        axes.set_xticks(places, [count(place) for place in places])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set(xlabel=f"{axis}, {fixed_at(axis, along)} (dashed: {cost})", ylabel="seconds")
    for axes in below:
        axes.set_visible(False)
    handles, labels = panels[0][0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    return figure


def _curves(axes: Axes, run: Run, sizes: Sequence[Any], axis: str, name: str, *, power: int | None) -> None:
    """A quantity of each contender over an attribute of the sizes, and a dashed line where cost has this power."""
    plain_axes(axes)
    own: dict[float, float] = {}
    for key in BENCHMARKS[run.benchmark].contenders:
        at: dict[float, list[float]] = defaultdict(list)  # sizes may share a place
        for size in sizes:
            result = run.at(size).get(key)
            if result and result.measured and (value := quantity(result, name)):  # logarithmic axes have no 0
                at[getattr(size, axis)].append(value)
        if not at:
            continue
        look, curve = _look(run, key), {place: geometric_mean(at[place]) for place in sorted(at)}
        axes.plot(list(curve), list(curve.values()), **{**look, "marker": ""})
        points = [(place, value) for place, values in at.items() for value in values]
        axes.plot(*zip(*points, strict=True), **{**look, "linestyle": ""})
        axes.plot([], [], **look, label=key)
        own = curve if key == OWN else own
    if power and len(own) >= 2:
        low, high = min(own), max(own)
        ends = [own[high] * (low / high) ** power, own[high]]
        axes.plot([low, high], ends, color=GRAY, linewidth=1, linestyle="--", label="proportional")
    if axes.lines:
        log_axis(axes, "x")
        log_axis(axes, "y")


def _look(run: Run, key: str) -> dict[str, Any]:
    """Color, marker and line width of a contender, the same in every panel."""
    place = list(BENCHMARKS[run.benchmark].contenders).index(key)
    marker = _MARKERS[place % len(_MARKERS)]
    return {"color": COLORS[place % len(COLORS)], "marker": marker, "linewidth": 2.5 if key == OWN else 1.2}


def _label_sizes(axes: Axes, sizes: Sequence[Any]) -> None:
    """The sizes as ticks; labels that would touch share one."""
    ticks: dict[float, list[str]] = {}
    ordered, last = sorted(sizes, key=lambda size: size.work), 0.0
    for size in ordered:
        if size.work >= last * (ordered[-1].work / ordered[0].work) ** _NEAR:
            last = size.work
        ticks.setdefault(last, []).append(str(size))
    axes.set_xticks(list(ticks), ["\n".join(names) for names in ticks.values()])
    axes.xaxis.set_minor_locator(NullLocator())


def _rates(run: Run) -> Figure:
    """Views per second of every contender, a panel for each size, with goals as dashed lines."""
    figure, panels = _panels(run, width=9, margin=0.0, space=0.9, sharex=True)
    every = [quantity(result, "views/s") or math.nan for result in run.results if result.measured] or [1.0]
    for axes, size in zip(panels, run.sizes, strict=True):
        results = _measured(run, size)
        rates = [quantity(result, "views/s") or math.nan for result in results]
        colors = [_look(run, result.contender)["color"] for result in results]
        bars = axes.barh([result.contender for result in results], rates, color=colors)
        axes.bar_label(bars, [count(round(rate)) for rate in rates], padding=3, fontsize=9)
        for goal in (verdict.goal for verdict in run.verdicts if verdict.goal.size == size):
            axes.axvline(goal.limit, color=GRAY, linestyle="--", linewidth=1)
        axes.set_xlim(10 ** math.floor(math.log10(min(every) / 2)), 2.5 * max(every))  # bars have no beginning here
        log_axis(axes, "x")
    panels[-1].set_xlabel(f"views per second{' (dashed: goal)' if run.verdicts else ''}")
    return figure


def _parts(run: Run) -> Figure:
    """Milliseconds of a step, its parts one after the other, a panel for each size; the unmarked rest is gray."""
    figure, panels = _panels(run, width=10, margin=1.6, space=0.6)
    seen: set[str] = set()
    for axes, size in zip(panels, run.sizes, strict=True):
        bars = {result.contender: measured for result in _measured(run, size) if (measured := result.measured)}
        # A slow step without parts must not squeeze those that have them.
        divided = [measured.median for measured in bars.values() if measured.parts]
        limit = 1400 * max(divided or [measured.median for measured in bars.values()], default=1.0)
        for name, measured in bars.items():
            rest = max(0.0, measured.median - sum(measured.parts.values()))
            left, total = 0.0, 1000 * measured.median
            for part, seconds in (*measured.parts.items(), (_REST, rest)):
                axes.barh([name], [1000 * seconds], left=left, color=_PARTS[part])
                left += 1000 * seconds
                seen.add(part)
            rate, beyond = f"{size.images / measured.median:,.0f} img/s", left > limit
            label, place = (f"{rate}, {total:.0f} ms → ", limit) if beyond else (f" {rate}", left)
            axes.annotate(label, (place, name), ha="right" if beyond else "left", va="center", fontsize=9)
        axes.set_xlim(0, limit)
    panels[-1].set_xlabel("milliseconds per step")
    if seen:
        handles = [Patch(color=color, label=name) for name, color in _PARTS.items() if name in seen]
        figure.legend(handles=handles, loc="outside lower center", ncols=8, frameon=False)
    return figure


def _panels(run: Run, *, width: float, margin: float, space: float, **options: Any) -> tuple[Figure, list[Axes]]:
    """A panel for each size, as high as its bars need."""
    heights = [max(1, len(_measured(run, size))) for size in run.sizes]
    height = margin + space * len(heights) + _ROW * sum(heights)
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = list(figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights, **options)[:, 0])
    for axes, size in zip(panels, run.sizes, strict=True):
        plain_axes(axes)
        axes.grid(visible=False, axis="y")
        axes.invert_yaxis()
        axes.set_title(str(size), loc="left", fontsize=10)
    return figure, panels


def _measured(run: Run, size: Any) -> list[Result]:
    return [result for result in run.results if result.size == size and result.measured]
