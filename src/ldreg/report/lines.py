"""Values over epochs, strengths or any other number, a line for each series."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from ldreg.report.figures import CLASS_COLORS, GRAY, INK, WIDE_RANGE, canvas, plain_axes, plain_log, short
from ldreg.report.legends import COLLAPSED, label_axes, legend_below, legend_rows, percent_axis, wrapped

Array = NDArray[Any]

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">")
_MARKED = 12  # a line of fewer points shows them all
_TICKED = 8  # a logarithmic axis with fewer values has its ticks at them
_ACROSS = 4  # panels in a row


@dataclass(frozen=True)
class Series:
    """One line: (x, y) points, which may have gaps, with the spread around them.

    Args:
        name: in the legend
        points: pairs of x and y in any order; a y that is not finite is a gap with the mark "collapsed"
        band: triples of x, lowest and highest value, such as those of several seeds
        dashed: whether the line is dashed, such as that without a regularizer
        color_group: lines of one group have one color and one marker
        area: whether it is a level: its band an area also where points are few, its points without markers
    """

    name: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] | None = None
    dashed: bool = False
    color_group: int = 0
    area: bool = False


def lines(series: Sequence[Series], *, xlabel: str, ylabel: str, logx: bool = False, share: bool = False) -> Figure:
    """Values over epochs, strengths or any other number, with a legend below; `share` values are in percent.

    Raises:
        ValueError: there is no series, or a logarithmic axis would have values that are not above 0.
    """
    _check_lines(series, logx=logx)
    drawn = [_sorted(one.points, 2) for one in series]
    figure, axes = canvas(height=2.9 + 0.22 * legend_rows([one.name for one in series]))
    for place, (one, points) in enumerate(zip(series, drawn, strict=True)):
        _line(axes, one, points, place)
    values = numpy.concatenate([points[numpy.isfinite(points[:, 1]), 1] for points in drawn])
    if share:
        percent_axis(axes)
    if not len(values):
        axes.set_yticks([])
    elif not share and values.min() > 0 and values.max() > WIDE_RANGE * values.min():
        plain_log(axes, "y")
    _x_axis(axes, numpy.concatenate([points[:, 0] for points in drawn]), logx=logx)
    label_axes(axes, xlabel, ylabel)
    _legend(figure, series, drawn)
    return figure


def line_panels(panels: Sequence[tuple[str, Sequence[Series]]], *, xlabel: str, ylabel: str) -> Figure:
    """Lines in titled panels side by side, on the same axes, with one legend, which has every name once.

    Raises:
        ValueError: there is no panel, or none of its lines; an x is not finite.
    """
    every = [one for _, series in panels for one in series]
    _check_lines(every, logx=False)
    columns = min(_ACROSS, len(panels))
    rows = -(-len(panels) // columns)
    points = [point for one in every for point in one.points]
    whole, valued = all(x == round(x) for x, _ in points), any(math.isfinite(y) for _, y in points)
    figure = Figure(figsize=(0.6 + 2.1 * columns, 0.8 + 1.85 * rows), layout="constrained")
    first: Axes | None = None
    for place, (title, series) in enumerate(panels):
        axes = figure.add_subplot(rows, columns, place + 1, sharex=first, sharey=first)
        first = first or axes
        plain_axes(axes)
        for number, one in enumerate(series):
            _line(axes, one, _sorted(one.points, 2), number)
        axes.set_title(wrapped(title, 26), fontsize=10, color=INK).set_parse_math(False)
        lowest, leftmost = place + columns >= len(panels), place % columns == 0
        axes.tick_params(labelbottom=lowest, labelleft=leftmost)
        label_axes(axes, xlabel if lowest else "", ylabel if leftmost else "")
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10], integer=whole))
        if not valued:
            axes.set_yticks([])
    named = {one.name: one for one in every}
    drawn = [_sorted([point for one in every if one.name == name for point in one.points], 2) for name in named]
    _legend(figure, list(named.values()), drawn)
    return figure


def _legend(figure: Figure, series: Sequence[Series], drawn: Sequence[Array]) -> None:
    handles = [_handle(one, points) for one, points in zip(series, drawn, strict=True)]
    if any(len(_gaps(points)) for points in drawn):
        handles.append(Line2D([], [], color=GRAY, marker="x", linestyle="none", label=COLLAPSED))
    legend_below(figure, handles, names=[one.name for one in series])


def _check_lines(series: Sequence[Series], *, logx: bool) -> None:
    if not series:
        raise ValueError("series: expected at least one, got none")
    for one in series:
        for x, _ in one.points:
            if not math.isfinite(x) or (logx and x <= 0):
                wanted = "finite x, above 0 on a logarithmic axis," if logx else "finite x"
                raise ValueError(f"series: expected {wanted} in {one.name!r}, got {x}")


def _line(axes: Axes, one: Series, points: Array, place: int) -> None:
    look = _look(one)
    dense = len(points) >= _MARKED
    every = max(1, len(points) // 6) if dense else None
    axes.plot(*numpy.where(numpy.isfinite(points), points, numpy.nan).T, **look, markevery=every)
    if one.band:
        x, low, high = _sorted(one.band, 3).T
        if dense or one.area:
            axes.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)
        else:
            axes.vlines(x, low, high, color=look["color"], linewidth=1.3)
            for ends in (low, high):
                axes.plot(x, ends, color=look["color"], marker="_", markersize=6, linestyle="none")
    gaps = _gaps(points)
    if len(gaps):
        height = 0.04 + 0.06 * (place % 6)  # above those of the other series
        axes.plot(
            gaps, [height] * len(gaps), color=look["color"], marker="x", markersize=7, markeredgewidth=2,
            linestyle="none", transform=axes.get_xaxis_transform(),
        )  # fmt: skip


def _look(one: Series) -> dict[str, Any]:
    return {
        "color": CLASS_COLORS[one.color_group % len(CLASS_COLORS)],
        "marker": "" if one.area else _MARKERS[one.color_group % len(_MARKERS)],
        "markersize": 4.5,
        "markerfacecolor": "none" if one.dashed else CLASS_COLORS[one.color_group % len(CLASS_COLORS)],
        "linewidth": 2.0,
        "linestyle": (0, (3.2, 1.4)) if one.dashed else "solid",
    }


def _handle(one: Series, points: Array) -> Line2D:
    look = _look(one)
    return Line2D(
        [], [], **{**look, "linestyle": look["linestyle"] if len(points) > 1 else "none"}, label=short(one.name, 40)
    )


def _gaps(points: Array) -> Array:
    """The x of points without a finite y."""
    gaps: Array = points[~numpy.isfinite(points[:, 1]), 0]
    return gaps


def _sorted(rows: Sequence[tuple[float, ...]], width: int) -> Array:
    """Rows (N, width) by their first number."""
    return numpy.asarray(sorted(rows, key=lambda row: row[0]), dtype=float).reshape(-1, width)


def _x_axis(axes: Axes, values: Array, *, logx: bool) -> None:
    distinct = numpy.unique(values)
    if not logx:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=bool((values == values.round()).all())))
        if len(distinct) == 1:
            axes.set_xticks(distinct.tolist())
        return
    plain_log(axes, "x")
    if len(distinct) == 1:
        axes.set_xlim(distinct[0] / 2, distinct[0] * 2)
    if 0 < len(distinct) <= _TICKED:
        axes.xaxis.set_major_locator(FixedLocator(distinct.tolist()))
        axes.xaxis.set_minor_locator(NullLocator())
