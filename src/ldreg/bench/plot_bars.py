"""Rates and parts as bars."""

import math

from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from ldreg.bench.contest import VIEWS
from ldreg.bench.goals import images_per_second
from ldreg.bench.plot_style import GRAY, logarithmic, look
from ldreg.bench.record import Result, Run
from ldreg.bench.stopwatch import PARTS
from ldreg.text import count

_COLORS = ("#c9ced6", "#58b4d6", "#3b86c6", "#2a9d7c", "#d6455d", "#e0762f", "#b8a013")
_REST = "not told apart"
_PARTS = {**dict(zip(PARTS, _COLORS, strict=True)), _REST: "#e6e9ee"}
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
