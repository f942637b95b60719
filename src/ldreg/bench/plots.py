"""Runs as pictures."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from statistics import geometric_mean
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from ldreg.bench import BENCHMARKS
from ldreg.bench.benchmark import OWN
from ldreg.bench.measure import PARTS
from ldreg.bench.results import Result, Run, Series, headline, quantity, series
from ldreg.report.style import COLORS, GRAY, log_axis, plain_axes, plain_style
from ldreg.text import count

PictureKind = Literal["svg", "png"]

_MARKERS = "os^Dv*PX"
_PART_COLORS = ("#c9ced6", "#58b4d6", "#3b86c6", "#2a9d7c", "#d6455d", "#e0762f", "#b8a013", "#e6e9ee")
_REST = "rest"
_PARTS = dict(zip((*PARTS, _REST), _PART_COLORS, strict=True))
_POWERS = {"points": 2, "dimensions": 1}  # the cost is proportional to points² × dimensions
_NEAR = 0.18  # share of the axis at which two labels would touch
_ROW = 0.34  # inches of a bar


@plain_style()
def draw(run: Run) -> Figure:
    """The figure that suits the benchmark."""
    figure = {"scaling": _scaling, "rates": _rates, "parts": _parts}[BENCHMARKS[run.benchmark].picture](run)
    if not run.complete:
        figure.suptitle("interrupted: not all was measured", fontsize=10)
    return figure


@plain_style()
def picture(figure: Figure, kind: PictureKind) -> bytes:
    """The figure as an SVG, or as a PNG of twice the usual density; the same bytes for the same numbers."""
    content = BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "ldreg", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(content, format=kind, dpi=144, metadata={"Date" if kind == "svg" else "Software": None})
    return content.getvalue()


def _scaling(run: Run) -> Figure:
    """Seconds and extra memory over points² × dimensions, and time along each series below."""
    found = series(run)
    rows = 1 + bool(found)
    figure = Figure(figsize=(11, 4.6 * rows), layout="constrained")
    panels = figure.subplots(rows, 2, squeeze=False)
    readings: dict[str, Callable[[Result], float | None]] = {
        "seconds": lambda result: result.seconds,
        "extra memory in MB": lambda result: quantity(result, "extra memory"),
    }
    for axes, (label, reading) in zip(panels[0], readings.items(), strict=True):
        _over_work(axes, run, reading, label)
    for axes, one in zip(panels[1:].flat, [*found, None], strict=False):
        axes.set_visible(one is not None)
        if one is not None:
            _over_axis(axes, run, one)
    handles, labels = panels[0][0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    return figure


def _over_work(axes: Axes, run: Run, reading: Callable[[Result], float | None], label: str) -> None:
    sizes = headline(run)
    for key in BENCHMARKS[run.benchmark].contenders:
        values = _values(run, key, sizes, reading)
        at: dict[float, list[float]] = defaultdict(list)  # sizes of the same work share a place
        for size, value in values.items():
            at[size.work].append(value)
        steps, look = sorted(at), _look(run, key)
        if values:
            axes.plot(steps, [geometric_mean(at[step]) for step in steps], **{**look, "marker": ""})
            axes.plot([size.work for size in values], list(values.values()), **{**look, "linestyle": ""})
            axes.plot([], [], **look, label=key)
    if label == "seconds":
        _slope(axes, {size.work: value for size, value in _values(run, OWN, sizes, reading).items()}, 1)
    _logarithmic(axes)
    _label_sizes(axes, sizes)
    axes.set(xlabel="points × dimensions, at points² × dimensions", ylabel=label)


def _values(run: Run, key: str, sizes: Sequence[Any], reading: Callable[[Result], float | None]) -> dict[Any, float]:
    """A contender's measured values by size; a logarithmic axis has no place for 0."""
    results = {size: run.at(size).get(key) for size in sizes}
    read = {size: reading(result) for size, result in results.items() if result and result.measured}
    return {size: value for size, value in read.items() if value}


def _look(run: Run, key: str) -> dict[str, Any]:
    """Color, marker and line width of a contender, the same in every panel."""
    place = list(BENCHMARKS[run.benchmark].contenders).index(key)
    marker = _MARKERS[place % len(_MARKERS)]
    return {"color": COLORS[place % len(COLORS)], "marker": marker, "linewidth": 2.5 if key == OWN else 1.2}


def _slope(axes: Axes, own: Mapping[float, float], power: int) -> None:
    """A dashed line through our largest value, along which cost is proportional to this power."""
    if len(own) >= 2:
        low, high = min(own), max(own)
        ends = [own[high] * (low / high) ** power, own[high]]
        axes.plot([low, high], ends, color=GRAY, linewidth=1, linestyle="--", label="proportional")


def _logarithmic(axes: Axes) -> None:
    plain_axes(axes)
    if axes.lines:
        log_axis(axes, "x")
        log_axis(axes, "y")


def _label_sizes(axes: Axes, sizes: Sequence[Any]) -> None:
    """The sizes as ticks; labels that would touch share one."""
    names: dict[float, list[str]] = defaultdict(list)
    for size in sizes:
        names[size.work].append(str(size))
    apart = (max(names, default=1.0) / min(names, default=1.0)) ** _NEAR
    merged: list[tuple[float, list[str]]] = []
    for at in sorted(names):
        if merged and at < merged[-1][0] * apart:
            merged[-1][1].extend(names[at])
        else:
            merged.append((at, list(names[at])))
    axes.set_xticks([at for at, _ in merged], ["\n".join(group) for _, group in merged])
    axes.xaxis.set_minor_locator(NullLocator())


def _over_axis(axes: Axes, run: Run, found: Series) -> None:
    """Time over one of the numbers, while the other stays."""
    for key in BENCHMARKS[run.benchmark].contenders:
        values = _values(run, key, found.sizes, lambda result: result.seconds)
        at = {getattr(size, found.axis): value for size, value in values.items()}
        if at:
            axes.plot(list(at), list(at.values()), **_look(run, key))
        if key == OWN:
            _slope(axes, at, _POWERS[found.axis])
    _logarithmic(axes)
    places = [getattr(size, found.axis) for size in found.sizes]
    axes.set_xticks(places, [count(place) for place in places])
    axes.xaxis.set_minor_locator(NullLocator())
    power = "²" if found.axis == "points" else ""
    axes.set(xlabel=f"{found.axis}, {found.title.partition(', ')[2]} (dashed: ∝ {found.axis}{power})", ylabel="seconds")


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
    """Milliseconds of a step, its parts one after the other, a panel for each size."""
    figure, panels = _panels(run, width=10, margin=1.6, space=0.6)
    seen: set[str] = set()
    for axes, size in zip(panels, run.sizes, strict=True):
        results = _measured(run, size)
        # A slow step without parts must not squeeze those that have them.
        divided = [result for result in results if result.measured and result.measured.parts]
        limit = 1400 * max((result.seconds or 0.0 for result in divided or results), default=1.0)
        for result in results:
            seen |= _stack(axes, result, limit)
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


def _stack(axes: Axes, result: Result, limit: float) -> set[str]:
    """One step as a bar; the rest, which no mark measures, is gray. Return the names of its parts."""
    measured = result.measured
    assert measured
    rest = max(0.0, measured.median - sum(measured.parts.values()))
    left, total = 0.0, 1000 * measured.median
    for name, seconds in (*measured.parts.items(), (_REST, rest)):
        axes.barh([result.contender], [1000 * seconds], left=left, color=_PARTS[name])
        left += 1000 * seconds
    rate, beyond = f"{quantity(result, 'img/s'):,.0f} img/s", left > limit
    label, place = (f"{rate}, {total:.0f} ms → ", limit) if beyond else (f" {rate}", left)
    axes.annotate(label, (place, result.contender), ha="right" if beyond else "left", va="center", fontsize=9)
    return {*measured.parts, _REST}


def _measured(run: Run, size: Any) -> list[Result]:
    return [result for result in run.results if result.size == size and result.measured]
