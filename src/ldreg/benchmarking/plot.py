"""Time and memory over the amount of work, on logarithmic axes."""

from collections import defaultdict
from io import StringIO
from statistics import geometric_mean

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from ldreg.benchmarking.contest import OWN, Size
from ldreg.benchmarking.measure import Measurement
from ldreg.benchmarking.record import Run
from ldreg.benchmarking.suite import BENCHMARKS

_COLORS = ("#d6455d", "#3b86c6", "#58b4d6", "#2a9d7c", "#e0762f", "#8a929c", "#6a5acd", "#b8a013")
_MARKERS = "os^Dv*PX"


def draw(run: Run) -> Figure:
    """Seconds and extra memory of every contender over points² × dimensions, with the slope of proportional cost."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for place, key in enumerate(BENCHMARKS[run.benchmark].contenders):
        found = {size: run.at(size)[key].measured for size in run.sizes if key in run.at(size)}
        measured = {size: value for size, value in found.items() if value is not None}
        if measured:
            _line(left, key, place, {size: value.median for size, value in measured.items()})
            _line(right, key, place, {size: value.extra_mb for size, value in _with_memory(measured)})
    _slope(left, run)
    _finish(left, run, "seconds")
    _finish(right, run, "extra memory in MB")
    if left.get_legend_handles_labels()[0]:
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=8, frameon=False)
    return figure


def _with_memory(measured: dict[Size, Measurement]) -> list[tuple[Size, Measurement]]:
    # A logarithmic axis has no place for a contender that took nothing.
    return [(size, value) for size, value in measured.items() if value.extra_mb]


def work(size: Size) -> int:
    """Multiplications in all pairs of points.

    >>> work(Size(10, 3))
    300
    """
    return size.points**2 * size.dimensions


def _line(axes: Axes, key: str, place: int, values: dict[Size, float | None]) -> None:
    """A marker for each size, and a line that takes the mean where two sizes are the same work."""
    at: dict[int, list[float]] = defaultdict(list)
    for size, value in values.items():
        if value is not None:
            at[work(size)].append(value)
    steps = sorted(at)
    color, marker = _COLORS[place % len(_COLORS)], _MARKERS[place % len(_MARKERS)]
    width = 2.5 if key == OWN else 1.2
    axes.plot(steps, [geometric_mean(at[step]) for step in steps], color=color, linewidth=width)
    single = [(step, value) for step in steps for value in at[step]]
    axes.plot([step for step, _ in single], [value for _, value in single], color=color, marker=marker, linestyle="")
    axes.plot([], [], color=color, marker=marker, label=key, linewidth=width)


def _slope(axes: Axes, run: Run) -> None:
    """A dashed line through our largest size along which cost is proportional to the work."""
    own = {size: run.at(size)[OWN].measured for size in run.sizes if OWN in run.at(size)}
    known = {work(size): value.median for size, value in own.items() if value is not None}
    if len(known) < 2:
        return
    low, high = min(known), max(known)
    ends = [known[high] * low / high, known[high]]
    axes.plot([low, high], ends, color="#8a929c", linewidth=1, linestyle="--", label="proportional")


def _finish(axes: Axes, run: Run, label: str) -> None:
    names: dict[int, list[str]] = defaultdict(list)
    for size in run.sizes:
        names[work(size)].append(str(size))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(list(names), ["\n".join(group) for group in names.values()])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True, alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set(xlabel="points × dimensions, at points² × dimensions", ylabel=label)


def svg(figure: Figure) -> str:
    """The figure as SVG text that is the same for the same numbers."""
    text = StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "ldreg", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
