"""Time and memory over the amount of work, and time over points and over dimensions, on logarithmic axes."""

from collections import defaultdict
from collections.abc import Callable
from statistics import geometric_mean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from ldreg.bench.contest import OWN
from ldreg.bench.measure import Measurement
from ldreg.bench.plot_style import GRAY, logarithmic, look
from ldreg.bench.record import Run
from ldreg.bench.scaling import Series, headline, series
from ldreg.bench.suite import BENCHMARKS

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
