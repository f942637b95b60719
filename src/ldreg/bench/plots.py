"""Runs as pictures."""

import math
from collections import defaultdict
from collections.abc import Callable
from io import BytesIO, StringIO
from statistics import geometric_mean
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from ldreg.bench.benchmark import OWN, VIEWS
from ldreg.bench.measure import PARTS, Measurement
from ldreg.bench.record import Result, Run
from ldreg.bench.suite import BENCHMARKS
from ldreg.bench.tables import Series, headline, images_per_second, series
from ldreg.report.style import plain_style
from ldreg.text import count

_COLORS = ("#d6455d", "#3b86c6", "#58b4d6", "#2a9d7c", "#e0762f", "#8a929c", "#6a5acd", "#b8a013")
_MARKERS = "os^Dv*PX"
GRAY = "#8a929c"
_FEW_DECADES = 300  # up to this ratio an axis has room for 2 and 5 between the powers of ten


def look(run: Run, key: str) -> dict[str, Any]:
    """Color, marker and line width of a contender, the same in every panel."""
    place = list(BENCHMARKS[run.benchmark].contenders).index(key)
    color, marker = _COLORS[place % len(_COLORS)], _MARKERS[place % len(_MARKERS)]
    return {"color": color, "marker": marker, "linewidth": 2.5 if key == OWN else 1.2}


def logarithmic(axes: Axes, *, x: bool = True, y: bool = True) -> None:
    """Logarithmic axes with plain numbers, a faint grid and no box; call it when all is drawn."""
    for wanted, scale, axis in ((x, axes.set_xscale, axes.xaxis), (y, axes.set_yscale, axes.yaxis)):
        if not wanted:
            continue
        scale("log")
        low, high = axis.get_view_interval()
        if high < _FEW_DECADES * low:
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set_axisbelow(True)
    axes.grid(visible=True, alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


_SLOPES = {"points": 2, "dimensions": 1}  # of cost that is proportional to points² × dimensions
_NEAR = 0.18  # share of the axis under which two labels would touch

Reading = Callable[[Measurement], float | None]


def draw_scaling(run: Run) -> Figure:
    """Seconds and extra memory over points² × dimensions, and below the series, each with the proportional slope."""
    found = series(run)
    height = 1 + bool(found)
    figure = Figure(figsize=(11, 4.6 * height), layout="constrained")
    panels = figure.subplots(height, 2, squeeze=False)
    left, right = panels[0]
    _over_work(left, run, lambda measured: measured.median, "seconds")
    _over_work(right, run, lambda measured: measured.extra_mb, "extra memory in MB")
    for place in range(2 if found else 0):
        if place < len(found):
            _over_axis(panels[1][place], run, found[place])
        else:
            panels[1][place].set_visible(False)
    handles, labels = left.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    return figure


def _over_work(axes: Axes, run: Run, reading: Reading, label: str) -> None:
    sizes = headline(run)
    for key in BENCHMARKS[run.benchmark].contenders:
        if values := _read(run, key, sizes, reading):
            _line(axes, run, key, values)
    if label == "seconds":
        _slope(axes, {size.work: value for size, value in _read(run, OWN, sizes, reading).items()}, 1)
    logarithmic(axes)
    _label_sizes(axes, sizes)
    axes.set(xlabel="points × dimensions, at points² × dimensions", ylabel=label)


def _read(run: Run, key: str, sizes: list[Any], reading: Reading) -> dict[Any, float]:
    """A contender's values by size; a logarithmic axis has no place for what took nothing."""
    results = {size: run.at(size).get(key) for size in sizes}
    read = {size: reading(result.measured) for size, result in results.items() if result and result.measured}
    return {size: value for size, value in read.items() if value}


def _line(axes: Axes, run: Run, key: str, values: dict[Any, float]) -> None:
    """A marker for each size, and a line that takes the mean where two sizes are the same work."""
    at: dict[float, list[float]] = defaultdict(list)
    for size, value in values.items():
        at[size.work].append(value)
    steps, style = sorted(at), look(run, key)
    axes.plot(steps, [geometric_mean(at[step]) for step in steps], **{**style, "marker": ""})
    single = [(step, value) for step in steps for value in at[step]]
    axes.plot([step for step, _ in single], [value for _, value in single], **{**style, "linestyle": ""})
    axes.plot([], [], **style, label=key)


def _slope(axes: Axes, own: dict[float, float], power: int) -> None:
    """A dashed line through our largest value along which cost is proportional to this power."""
    if len(own) < 2:
        return
    low, high = min(own), max(own)
    ends = [own[high] * (low / high) ** power, own[high]]
    axes.plot([low, high], ends, color=GRAY, linewidth=1, linestyle="--", label="proportional")


def _label_sizes(axes: Axes, sizes: list[Any]) -> None:
    """The sizes as ticks; those that would touch a tick before them stand below its text."""
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
        values = _read(run, key, list(found.sizes), lambda measured: measured.median)
        places = [getattr(size, found.axis) for size in values]
        if values:
            axes.plot(places, list(values.values()), **look(run, key))
    own = _read(run, OWN, list(found.sizes), lambda measured: measured.median)
    _slope(axes, {getattr(size, found.axis): value for size, value in own.items()}, _SLOPES[found.axis])
    logarithmic(axes)
    axes.set_xticks([getattr(size, found.axis) for size in found.sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    power = "²" if found.axis == "points" else ""
    axes.set(xlabel=f"{found.axis}, {found.title.partition(', ')[2]} (dashed: ∝ {found.axis}{power})", ylabel="seconds")


_PART_COLORS = ("#c9ced6", "#58b4d6", "#3b86c6", "#2a9d7c", "#d6455d", "#e0762f", "#b8a013")
_REST = "not told apart"
_PARTS = {**dict(zip(PARTS, _PART_COLORS, strict=True)), _REST: "#e6e9ee"}
_ROW = 0.34  # inches of a bar


def draw_rates(run: Run) -> Figure:
    """Views per second of every contender, a panel for each size, with what is asked for as a dashed line."""
    heights = [max(1, len(_measured(run, size))) for size in run.sizes]
    figure = Figure(figsize=(9, 0.9 * len(heights) + _ROW * sum(heights)), layout="constrained")
    panels = figure.subplots(len(heights), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    every = [VIEWS * images_per_second(result) for result in run.results if result.measured] or [1.0]
    highest, lowest = max(every), 10 ** math.floor(math.log10(min(every) / 2))  # bars have no beginning on this axis
    for axes, size in zip(panels, run.sizes, strict=True):
        results = _measured(run, size)
        rates = [VIEWS * images_per_second(result) for result in results]
        bars = axes.barh([result.contender for result in results], rates, color=[_color(run, each) for each in results])
        axes.bar_label(bars, [count(round(rate)) for rate in rates], padding=3, fontsize=9)
        for goal in (verdict.goal for verdict in run.verdicts if verdict.goal.size == size):
            axes.axvline(goal.limit, color=GRAY, linestyle="--", linewidth=1)
        logarithmic(axes, y=False)
        axes.grid(visible=False, axis="y")
        axes.set_xlim(left=lowest, right=2.5 * highest)
        axes.invert_yaxis()
        axes.set_title(size.heading, loc="left", fontsize=10)
    panels[-1].set_xlabel(f"views per second{' (dashed: asked for)' if run.verdicts else ''}")
    return figure


def draw_parts(run: Run) -> Figure:
    """Milliseconds of a step, its parts one after the other, a panel for each size."""
    heights = [max(1, len(_measured(run, size))) for size in run.sizes]
    figure = Figure(figsize=(10, 1.6 + 0.6 * len(heights) + _ROW * sum(heights)), layout="constrained")
    panels = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    seen: dict[str, BarContainer] = {}
    for axes, size in zip(panels, run.sizes, strict=True):
        limit = _longest(_measured(run, size))
        for result in _measured(run, size):
            _stack(axes, result, seen, limit)
        axes.set_axisbelow(True)
        axes.grid(visible=True, axis="x", alpha=0.3, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(0, limit)
        axes.invert_yaxis()
        axes.set_title(size.heading, loc="left", fontsize=10)
    panels[-1].set_xlabel("milliseconds per step")
    if seen:
        names = [name for name in _PARTS if name in seen]
        patches = [seen[name].patches[0] for name in names]
        figure.legend(patches, names, loc="outside lower center", ncols=8, frameon=False)
    return figure


def _longest(results: list[Result]) -> float:
    """Milliseconds that the axis shows: a slow step without parts must not squeeze those that have them."""
    told = [result.seconds or 0.0 for result in results if result.measured and result.measured.parts]
    return 1400 * max(told or [result.seconds or 0.0 for result in results], default=1.0)


def _stack(axes: Axes, result: Result, seen: dict[str, BarContainer], limit: float) -> None:
    """One step as a bar; what no mark tells is gray."""
    assert result.measured
    left, total = 0.0, 1000 * result.measured.median
    parts = {name: 1000 * seconds for name, seconds in result.measured.parts.items()}
    rest = {_REST: max(0.0, total - sum(parts.values()))}
    for name, width in (*parts.items(), *rest.items()):
        bar = axes.barh([result.contender], [width], left=left, color=_PARTS[name])
        seen.setdefault(name, bar)
        left += width
    rate = f"{count(round(images_per_second(result)))} img/s"
    beyond = left > limit
    label, place = (f"{rate}, {total:.0f} ms → ", limit) if beyond else (f" {rate}", left)
    axes.annotate(label, (place, result.contender), ha="right" if beyond else "left", va="center", fontsize=9)


def _measured(run: Run, size: object) -> list[Result]:
    return [result for result in run.results if result.size == size and result.measured is not None]


def _color(run: Run, result: Result) -> str:
    return str(look(run, result.contender)["color"])


_PICTURES: dict[str, Callable[[Run], Figure]] = {"scaling": draw_scaling, "rates": draw_rates, "parts": draw_parts}


@plain_style()
def draw(run: Run) -> Figure:
    """The figure that suits the benchmark."""
    figure = _PICTURES[BENCHMARKS[run.benchmark].picture](run)
    if not run.complete:
        figure.suptitle("interrupted: not all was measured", fontsize=10)
    return figure


@plain_style()
def svg(figure: Figure) -> str:
    """The figure as SVG text that is the same for the same numbers."""
    text = StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "ldreg", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


@plain_style()
def png(figure: Figure) -> bytes:
    """The figure as a PNG of twice the usual density."""
    content = BytesIO()
    figure.savefig(content, format="png", dpi=144, metadata={"Software": None})
    return content.getvalue()
