"""Plots of any numbers: lines over epochs or strengths, bars, and panels of points.

Each is a function of values that returns a matplotlib `Figure` without global state; draw it within `plain_style()`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from ldreg.report.style import (
    COLLAPSED,
    COLORS,
    GRAY,
    INK,
    PALETTE,
    WIDE_RANGE,
    WIDTH,
    Array,
    Point,
    add_legend,
    canvas,
    class_codes,
    class_handles,
    class_order,
    colored_classes,
    dot_size,
    draw_dots,
    label_axes,
    legend_below,
    legend_columns,
    log_axis,
    percent_axis,
    plain_axes,
    short,
    thinned,
    wrapped,
)
from ldreg.text import number

Values = Sequence[float | None]
Panel = tuple[str, Sequence[Point], Sequence[str] | None]

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">")
_MARKED = 12  # lines with fewer points mark each of them
_TICKED = 8  # a logarithmic axis with at most this many values has its ticks there
_PANELS_IN_A_ROW = 4
_PALE = 0.4  # opacity of the first of several series of bars


@dataclass(frozen=True)
class Series:
    """One line: (x, y) points with gaps and a spread.

    Args:
        name: in the legend
        points: pairs of x and y in any order; a y that is not finite is a gap marked "collapsed"
        band: triples of x, lowest and highest value, such as over seeds
        dashed: whether the line is dashed, such as a run without a regularizer
        color_group: lines of one group share color and marker
        area: draw a level: always an area for the band, no markers
    """

    name: str
    points: Sequence[Point]
    band: Sequence[tuple[float, float, float]] | None = None
    dashed: bool = False
    color_group: int = 0
    area: bool = False

    def sorted_points(self) -> Array:
        """The points (N, 2) by x."""
        return _sorted(self.points, 2)

    def look(self) -> dict[str, Any]:
        """Color, marker and line for matplotlib."""
        color = COLORS[self.color_group % len(COLORS)]
        return {
            "color": color,
            "marker": "" if self.area else _MARKERS[self.color_group % len(_MARKERS)],
            "markersize": 4.5,
            "markerfacecolor": "none" if self.dashed else color,
            "linewidth": 2.0,
            "linestyle": (0, (3.2, 1.4)) if self.dashed else "solid",
        }


def lines(series: Sequence[Series], *, xlabel: str, ylabel: str, logx: bool = False, share: bool = False) -> Figure:
    """Lines over epochs, strengths or any other number, with a legend below; `share` shows percent."""
    rows = -(-len(series) // legend_columns([one.name for one in series]))
    figure, axes = canvas(height=2.9 + 0.22 * rows)
    for place, one in enumerate(series):
        _draw_line(axes, one, place)
    every = numpy.concatenate([one.sorted_points() for one in series])
    values = every[numpy.isfinite(every[:, 1]), 1]
    if share:
        percent_axis(axes)
    if not len(values):
        axes.set_yticks([])
    elif not share and values.min() > 0 and values.max() > WIDE_RANGE * values.min():
        log_axis(axes, "y")
    _scale_x(axes, every[:, 0], logx=logx)
    label_axes(axes, xlabel, ylabel)
    _line_legend(figure, series)
    return figure


def line_panels(panels: Sequence[tuple[str, Sequence[Series]]], *, xlabel: str, ylabel: str) -> Figure:
    """Lines in titled panels side by side on the same axes, with one legend."""
    every = [one for _, series in panels for one in series]
    columns = min(_PANELS_IN_A_ROW, len(panels))
    rows = -(-len(panels) // columns)
    points = [point for one in every for point in one.points]
    whole, any_value = all(x == round(x) for x, _ in points), any(math.isfinite(y) for _, y in points)
    figure = Figure(figsize=(0.6 + 2.1 * columns, 0.8 + 1.85 * rows), layout="constrained")
    first: Axes | None = None
    for place, (title, series) in enumerate(panels):
        axes = figure.add_subplot(rows, columns, place + 1, sharex=first, sharey=first)
        first = first or axes
        plain_axes(axes)
        for position, one in enumerate(series):
            _draw_line(axes, one, position)
        axes.set_title(wrapped(title, 26), fontsize=10, color=INK).set_parse_math(False)
        lowest, leftmost = place + columns >= len(panels), place % columns == 0
        axes.tick_params(labelbottom=lowest, labelleft=leftmost)
        label_axes(axes, xlabel if lowest else "", ylabel if leftmost else "")
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10], integer=whole))
        if not any_value:
            axes.set_yticks([])
    _line_legend(figure, every)
    return figure


def _line_legend(figure: Figure, series: Sequence[Series]) -> None:
    """A legend with every name once, and an entry for gaps if there are any."""
    handles = []
    for name, one in {one.name: one for one in series}.items():
        points = sum(len(other.points) for other in series if other.name == name)
        look = {**one.look(), **({} if points > 1 else {"linestyle": "none"})}
        handles.append(Line2D([], [], **look, label=short(name, 40)))
    if any(not math.isfinite(y) for one in series for _, y in one.points):
        handles.append(Line2D([], [], color=GRAY, marker="x", linestyle="none", label=COLLAPSED))
    legend_below(figure, handles, [one.name for one in series])


def _draw_line(axes: Axes, one: Series, place: int) -> None:
    points, look = one.sorted_points(), one.look()
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
    gaps = points[~numpy.isfinite(points[:, 1]), 0]
    if len(gaps):
        height = 0.04 + 0.06 * (place % 6)  # each series has a height of its own
        axes.plot(
            gaps, [height] * len(gaps), color=look["color"], marker="x", markersize=7, markeredgewidth=2,
            linestyle="none", transform=axes.get_xaxis_transform(),
        )  # fmt: skip


def _sorted(rows: Sequence[tuple[float, ...]], width: int) -> Array:
    return numpy.asarray(sorted(rows, key=lambda row: row[0]), dtype=float).reshape(-1, width)


def _scale_x(axes: Axes, values: Array, *, logx: bool) -> None:
    distinct = numpy.unique(values)
    if not logx:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=bool((values == values.round()).all())))
        if len(distinct) == 1:
            axes.set_xticks(distinct.tolist())
        return
    log_axis(axes, "x")
    if len(distinct) == 1:
        axes.set_xlim(distinct[0] / 2, distinct[0] * 2)
    if 0 < len(distinct) <= _TICKED:
        axes.xaxis.set_major_locator(FixedLocator(distinct.tolist()))
        axes.xaxis.set_minor_locator(NullLocator())


def bars(
    groups: Sequence[str],
    series: Sequence[tuple[str, Values]],
    *,
    errors: Sequence[Values | None] | None = None,
    ylabel: str,
    share: bool = False,
) -> Figure:
    """A group of bars per name, with one bar from each series and its value above it.

    Args:
        groups: names below the axis, such as methods; each has a color.
        series: name and values, one per group; earlier series are paler. NaN is shown as "collapsed", None as "not
            measured".
        errors: half lengths of error bars for each series, or None.
        ylabel: what is shown.
        share: whether values are shares, shown in percent.
    """
    figure, axes = canvas(height=3.3, width=max(WIDTH, 1.0 + len(groups) * (0.42 * len(series) + 0.28)))
    axes.grid(visible=False, axis="x")
    width = 0.8 / len(series)
    opacity = [1.0] if len(series) == 1 else numpy.linspace(_PALE, 1, len(series)).tolist()
    for place, (_, values) in enumerate(series):
        own = (errors[place] if errors is not None else None) or [None] * len(groups)
        for group, (value, error) in enumerate(zip(values, own, strict=True)):
            x = group + (place - (len(series) - 1) / 2) * width
            color = COLORS[group % len(COLORS)]
            _draw_bar(axes, x, value, error, share=share, width=0.92 * width, color=color, alpha=opacity[place])
    axes.axhline(0, color=INK, alpha=0.4, linewidth=0.8)
    axes.set_xticks(range(len(groups)), [wrapped(name) for name in groups])
    for tick in axes.get_xticklabels():
        tick.set_parse_math(False)
    axes.margins(y=0.12)
    axes.set_xlim(-0.6, len(groups) - 0.4)
    axes.yaxis.set_major_locator(MaxNLocator(6))
    if share:
        percent_axis(axes)
    label_axes(axes, "", ylabel)
    if len(series) > 1:
        names = [name for name, _ in series]
        patches = [
            Patch(facecolor=GRAY, alpha=alpha, label=short(name, 40))
            for name, alpha in zip(names, opacity, strict=True)
        ]
        legend_below(figure, patches, names)
    return figure


def _draw_bar(axes: Axes, x: float, value: float | None, error: float | None, *, share: bool, **look: Any) -> None:
    """A bar with its value at its end, or a word where there is no value."""
    if value is None or not math.isfinite(value):
        text, end, color, rotation = (COLLAPSED, 0.0, INK, 90) if value is not None else ("not measured", 0.0, GRAY, 90)
    else:
        axes.bar(x, value, **look, linewidth=0)
        reach = 0.0
        if error is not None and math.isfinite(error):
            axes.errorbar(x, value, yerr=error, fmt="none", ecolor=INK, elinewidth=1.1, capsize=2.5)
            reach = math.copysign(error, value)
        text, end, color, rotation = f"{100 * value:.1f}" if share else number(value), value + reach, INK, 0
    axes.annotate(
        text, (x, end), (0, 2 if end >= 0 else -2), textcoords="offset points", ha="center",
        va="bottom" if end >= 0 else "top", fontsize=8, color=color, rotation=rotation,
    )  # fmt: skip


def scatter_panels(panels: Sequence[Panel], *, columns: int) -> Figure:
    """Points of the plane side by side, such as t-SNE maps, with the same class colors and one legend.

    Args:
        panels: title, points (N, 2) and their classes, or None for points of one color. A panel without a finite point
            says "collapsed".
        columns: panels in a row.
    """
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    classes = class_order([labels for _, _, labels in panels])
    named = colored_classes(classes)
    figure = Figure(figsize=(2.4 * columns + (1.1 if named else 0), 2.65 * rows), layout="constrained")
    for place, (title, points, labels) in enumerate(panels):
        axes = figure.add_subplot(rows, columns, place + 1)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set(color=INK, alpha=0.3)
        axes.set_title(wrapped(title, 30), fontsize=10, color=INK).set_parse_math(False)
        flat = numpy.asarray(points, dtype=float).reshape(-1, 2)
        keep = numpy.isfinite(flat).all(1)
        if not keep.any():
            axes.text(0.5, 0.5, COLLAPSED, transform=axes.transAxes, ha="center", va="center", fontsize=10, color=INK)
            continue
        codes = class_codes(labels, named) if labels else numpy.zeros(len(flat), dtype=int)
        flat, codes = thinned(flat[keep], codes[keep])
        size = min(9.0, dot_size(len(flat)))
        draw_dots(axes, flat, c=PALETTE[codes], s=size, alpha=0.85)
        axes.set_aspect("equal", adjustable="datalim")
        axes.margins(0.06)
    if named:
        add_legend(figure, class_handles(named, len(classes) - len(named), most=16), loc="outside right center")
    return figure
