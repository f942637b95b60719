"""Every plot: a function of numbers that returns a matplotlib `Figure`; draw it within `plain_style()`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from ldreg.inspection.report import ClassLID, Layer, MeanLID
from ldreg.record import PointCloud
from ldreg.report.style import (
    BLUE,
    COLORS,
    GRAY,
    INK,
    ORANGE,
    WIDE_RANGE,
    WIDTH,
    Array,
    add_legend,
    canvas,
    label_axes,
    legend_below,
    legend_columns,
    line_style,
    log_axis,
    percent_axis,
    plain_axes,
    short,
    wrapped,
)
from ldreg.text import label_order, number

Point = tuple[float, float]
Values = Sequence[float | None]
Panel = tuple[str, Sequence[Point], Sequence[str] | None]

DRAWN_POINTS = 20_000
MARKED_SETS = 3  # with more sets, means and ranks are not marked

# Lightness rises with LID, without the ends that vanish on black or on white.
COLORMAP = LinearSegmentedColormap.from_list("lid", ["#d9482b", "#e58f3a", "#9fae62", "#3fa7a0", "#3b73c6"])
_CLOUD_SCALE = LogNorm(0.8, 2.6)  # from a line to above the plane's 2, where estimates scatter
_CLASS_COLORS = numpy.array([*COLORS, GRAY])  # by the place of a class; the last is of all others
_COLLAPSED = "collapsed"  # label of an undefined value
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">")
_MARKED = 12  # lines with fewer points mark each of them
_SMALLEST_SHARE = 1e-8  # smaller shares of the largest eigenvalue are rounding errors
_TICKED = 8  # values that all have ticks: of a logarithmic axis, and layers
_LEVEL = 6  # longer names of layers are turned
_PANELS_IN_A_ROW = 4
_PALE = 0.4  # opacity of the first of several series of bars


# Sets of representations


def regular_values(lid: Sequence[float] | Array) -> Array:
    """The finite values above zero."""
    values: Array = numpy.asarray(lid, dtype=float)
    return values[numpy.isfinite(values) & (values > 0)]


def histogram(
    lids: Sequence[Sequence[float] | Array],
    means: Sequence[float],
    *,
    quartiles: tuple[float, float, float] | None = None,
) -> Figure:
    """LID of each set as shares of its points over common bins, with the means of few sets.

    `quartiles` are those of a single set, to shade its middle half.
    """
    sets = [regular_values(lid) for lid in lids]
    pooled = numpy.concatenate(sets)
    figure, axes = canvas()
    low, high = (pooled.min(), pooled.max()) if pooled.max() > pooled.min() else (pooled[0] * 0.9, pooled[0] * 1.1)
    wide = high > WIDE_RANGE * low
    bins = int(min(60 if len(sets) == 1 else 40, max(8, max(map(len, sets)) ** 0.5)))
    edges = (numpy.geomspace if wide else numpy.linspace)(low, high, bins + 1)
    if quartiles is not None:
        axes.axvspan(quartiles[0], quartiles[2], color=INK, alpha=0.08, linewidth=0, zorder=0)
    for place, values in enumerate(sets):
        if not len(values):
            continue
        shares, style = numpy.histogram(values, edges)[0] / len(values), line_style(place)
        if len(sets) > MARKED_SETS:
            axes.plot((edges[1:] + edges[:-1]) / 2, shares, **style)
            continue
        opacity = 0.75 if len(sets) == 1 else 0.15
        axes.stairs(shares, edges, color=style["color"], alpha=opacity, fill=True, linewidth=0)
        if len(sets) > 1:
            axes.stairs(shares, edges, **style)
            axes.axvline(means[place], **{**style, "linewidth": 1.2})
    if wide:
        log_axis(axes, "x")
    percent_axis(axes)
    axes.set(xlabel="LID", ylabel="share of points", ylim=(0, None))
    if len(sets) == 1:
        axes.margins(y=0.14)
        _mark_number(axes, "geometric mean", means[0])
    return figure


def spectrum(spectra: Sequence[Sequence[float] | Array], ranks: Sequence[float]) -> Figure:
    """Eigenvalues of each set as shares of its largest, with the effective ranks of few sets."""
    figure, axes = canvas()
    lowest, longest = 1.0, 1
    for place, (eigenvalues, rank) in enumerate(zip(spectra, ranks, strict=True)):
        values = numpy.sort(regular_values(eigenvalues))[::-1]
        if not len(values):
            continue
        share, style = values / values[0], line_style(place)
        lowest, longest = min(lowest, share[share > _SMALLEST_SHARE].min()), max(longest, len(share))
        marker = "." if len(share) == 1 or (len(spectra) == 1 and len(share) < 40) else ""
        axes.plot(numpy.arange(1, len(share) + 1), share, **style, marker=marker)
        if rank > 0 and 1 < len(ranks) <= MARKED_SETS:
            axes.axvline(rank, **{**style, "linewidth": 1.2})
    log_axis(axes, "x")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(numticks=6))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set(xlabel="principal axis", ylabel="share of largest eigenvalue", ylim=(lowest / 1.5, 1.5))
    if len(spectra) == 1 and ranks[0] > 0:
        # The curve leaves the lower left corner free.
        _mark_number(axes, "effective rank", ranks[0], low=True, left=ranks[0] > longest**0.5, linestyle=(0, (4, 2)))
    return figure


def _mark_number(axes: Axes, name: str, value: float, *, low: bool = False, left: bool = False, **look: Any) -> None:
    """A vertical line at a number of a single set, with its name and value at the top or low, right or left of it."""
    if not math.isfinite(value):
        return
    axes.axvline(value, color=ORANGE, **{"linewidth": 2.0, **look})
    axes.annotate(
        f"{name} {number(value)}", (value, 0.03 if low else 0.99), (-5 if left else 5, 0), color=ORANGE, weight="bold",
        va="bottom" if low else "top", ha="right" if left else "left", xycoords=axes.get_xaxis_transform(),
        textcoords="offset points",
    )  # fmt: skip


def density(distances: Sequence[Array], lids: Sequence[Array], means: Sequence[float], *, k: int) -> Figure:
    """LID of each point of each set against the distance to its k-th neighbor, with the means of the sets."""
    sets = [numpy.stack(_thinned(*columns), axis=1) for columns in zip(distances, lids, strict=True)]
    pooled = numpy.concatenate(sets)
    colors = numpy.repeat([line_style(place)["color"] for place in range(len(sets))], list(map(len, sets)))
    order = numpy.random.default_rng(0).permutation(len(pooled))  # else the last set would cover the others
    figure, axes = canvas()
    _draw_dots(axes, pooled[order], c=colors[order], s=_dot_size(len(pooled)), alpha=0.5)
    for place, points in enumerate(sets):
        if len(points):
            style = {**line_style(place), "linewidth": 1.5}
            axes.axhline(means[place], **(style if len(sets) > 1 else {**style, "color": ORANGE}))
    log_axis(axes, "x")
    if pooled[:, 1].max() > WIDE_RANGE * pooled[:, 1].min():
        log_axis(axes, "y")
    axes.set(xlabel=f"distance to neighbor {k}   (dense → sparse)", ylabel="LID")
    return figure


def curve(lines: Sequence[Sequence[Point]], *, share: bool) -> Figure:
    """A value over epochs, one line per run (empty if it has none); `share` shows percent."""
    figure, axes = canvas(height=2.8)
    for place, line in enumerate(lines):
        pairs = _sorted(line, 2)
        pairs = numpy.where(numpy.isfinite(pairs), pairs, numpy.nan)
        few = numpy.isfinite(pairs[:, 1]).sum() < _MARKED
        axes.plot(*pairs.T, **line_style(place), marker="o" if few else "", markersize=4)
    values = numpy.array([value for line in lines for _, value in line if math.isfinite(value)])
    if values.min() > 0 and values.max() > WIDE_RANGE * values.min():
        log_axis(axes, "y")
    if share:
        percent_axis(axes)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set(xlabel="epoch")
    return figure


def over_depth(models: Sequence[Sequence[Layer]], what: Literal["lid", "effective_rank"]) -> Figure:
    """LID with its 95 % interval, or effective rank, of each layer of each model.

    Models whose layers have other names are drawn over the share of their depth.
    """
    figure, axes = canvas(height=2.8)
    names = [layer.name for layer in models[0]]
    shared = all([layer.name for layer in layers] == names for layers in models)
    for place, layers in enumerate(models):
        at = [order if shared else order / max(1, len(layers) - 1) for order in range(len(layers))]
        if what == "effective_rank":
            values = numpy.array([layer.effective_rank for layer in layers])
        else:
            values, errors = _errors([layer.mean for layer in layers])
            axes.errorbar(at, values, yerr=errors, fmt="none", ecolor=COLORS[place], elinewidth=1.2, capsize=2.5)
        axes.plot(
            at, numpy.where(numpy.isfinite(values), values, numpy.nan), **line_style(place), marker="o", markersize=4
        )
        if (values > 0).all() and values.max() > WIDE_RANGE * values.min():
            log_axis(axes, "y")
    axes.set(xlabel="layer" if shared else "share of the depth", ylabel="LID" if what == "lid" else "effective rank")
    if shared:  # the last one is always named
        places = [place for place in range(len(names)) if (len(names) - 1 - place) % -(-len(names) // _TICKED) == 0]
        shown = [short(names[place], 12) for place in places]
        turned: dict[str, Any] = {"rotation": 30, "ha": "right"} if max(map(len, shown)) > _LEVEL else {}
        axes.set_xticks(places, shown, parse_math=False, **turned)
    return figure


def class_bars(classes: Sequence[ClassLID], mean: float, others: Mapping[str, ClassLID] | None = None) -> Figure:
    """LID of each class with its 95 % confidence interval, lowest on top, and the mean of all.

    `others` are the same classes of a second set, shown as diamonds.
    """
    rows = sorted((row for row in classes if row.regular), key=lambda row: row.mean.value)
    figure, axes = canvas(height=1.1 + 0.24 * max(len(rows), 5))
    values, errors = _errors([row.mean for row in rows])
    axes.barh(numpy.arange(len(rows)), values, color=BLUE, alpha=0.75, height=0.7)
    axes.errorbar(values, range(len(rows)), xerr=errors, fmt="none", ecolor=INK, elinewidth=1.2, capsize=2.5)
    common = [place for place, row in enumerate(rows) if row.label in (others or {})]
    if others and common:
        values, errors = _errors([others[rows[place].label].mean for place in common])
        axes.errorbar(values, common, xerr=errors, fmt="D", color=ORANGE, markersize=5, elinewidth=1.2, capsize=2.5)
    axes.axvline(mean, color=ORANGE if others is None else INK, linewidth=1.5)  # orange is the second set, if any
    axes.set_yticks(range(len(rows)), [short(row.label) for row in rows])
    for tick in axes.get_yticklabels():
        tick.set_parse_math(False)
    axes.grid(visible=False, axis="y")
    axes.set(xlabel="LID", ylim=(len(rows) - 0.4, -0.6))
    return figure


def _errors(means: Sequence[MeanLID]) -> tuple[Array, Array]:
    """Values (n,) and the reach of their intervals to both sides (2, n), 0 where there is no interval."""
    values = numpy.array([[mean.value, mean.low, mean.high] for mean in means])
    values[:, 1:] = numpy.where(numpy.isnan(values[:, 1:]), values[:, :1], values[:, 1:])
    return values[:, 0], numpy.stack([values[:, 0] - values[:, 1], values[:, 2] - values[:, 0]])


# Maps: points of the plane


def lid_maps(
    maps: Sequence[Sequence[Point] | Array], lids: Sequence[Sequence[float] | Array], *, principal: bool = True
) -> list[Figure | None]:
    """The map (N, 2) of each set colored by LID on one color scale; None for a set without a map or regular LIDs."""
    sets = []
    for flat, lid in zip(maps, lids, strict=True):
        points, values = numpy.asarray(flat, dtype=float).reshape(-1, 2), numpy.asarray(lid, dtype=float)
        regular = numpy.isfinite(values) & (values > 0)
        sets.append((points[regular], values[regular]) if len(points) and len(values) else (points[:0], values[:0]))
    known = [values for _, values in sets if len(values)]
    if not known:
        return [None] * len(sets)
    low, high = numpy.quantile(numpy.concatenate(known), (0.02, 0.98))
    scale = LogNorm(low, high if high > low else low * 1.01)
    return [_lid_map(points, values, scale, principal) if len(values) else None for points, values in sets]


def _lid_map(points: Array, lid: Array, scale: LogNorm, principal: bool) -> Figure:
    points, lid = _thinned(*_on_map(points, lid))
    figure, axes = canvas()
    order = numpy.argsort(-lid, kind="stable")  # the collapsed points come out on top
    dots = _draw_dots(axes, points[order], c=lid[order], cmap=COLORMAP, norm=scale, s=_dot_size(len(lid)), alpha=0.85)
    bar = figure.colorbar(dots, ax=axes, pad=0.02, aspect=30, extend="both")
    bar.outline.set_visible(False)
    low, high = float(scale.vmin or 0), float(scale.vmax or 0)
    ticks = numpy.geomspace(low, high, 5).tolist() if high > 1.02 * low else [low]
    bar.set_ticks(ticks, labels=[number(tick) for tick in ticks])
    bar.ax.minorticks_off()
    bar.ax.tick_params(colors=INK, labelsize=10, length=3, width=0.6)
    bar.ax.set_title("LID", fontsize=10, color=INK)
    _map_axes(axes, principal=principal)
    return figure


def class_maps(
    maps: Sequence[Sequence[Point]], labels: Sequence[Sequence[str] | None], *, principal: bool = True
) -> list[Figure | None]:
    """The map of each run colored by class, the same colors in all; None for a run without a map or labels."""
    classes = class_order(labels)
    named = colored_classes(classes)
    return [
        class_map(numpy.asarray(flat, dtype=float), own, named, classes=len(classes), principal=principal)
        if flat and own
        else None
        for flat, own in zip(maps, labels, strict=True)
    ]


def class_map(
    points: Array, labels: Sequence[str], named: Sequence[str], *, classes: int, principal: bool = True
) -> Figure:
    """Points (N, 2) with the `named` of all `classes` in color, the others gray; `principal` names the axes."""
    points, codes = _thinned(*_on_map(points, _class_codes(labels, named)))
    figure, axes = canvas()
    for gray in (True, False):
        part = (codes == len(COLORS)) == gray
        size, opacity = _dot_size(len(points)), 0.25 if gray else 0.85
        _draw_dots(axes, points[part], c=_CLASS_COLORS[codes[part]], s=size, alpha=opacity)
    add_legend(axes, _class_handles(named, classes - len(named)), loc="center left", bbox_to_anchor=(1.0, 0.5))
    _map_axes(axes, principal=principal)
    return figure


def _map_axes(axes: Axes, *, principal: bool = True) -> None:
    axes.set_aspect("equal", adjustable="datalim")
    axes.set(xticks=[], yticks=[])
    if principal:
        axes.set(xlabel="first principal axis", ylabel="second principal axis")
    axes.spines[["left", "bottom"]].set_visible(False)


def scatter_panels(panels: Sequence[Panel], *, columns: int) -> Figure:
    """Points of the plane side by side, such as t-SNE maps, with the same class colors and one legend.

    A panel is a title, points (N, 2) and their classes, or None for points of one color. A panel without a finite
    point says "collapsed".
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
        finite = numpy.isfinite(flat).all(1)
        if not finite.any():
            axes.text(0.5, 0.5, _COLLAPSED, transform=axes.transAxes, ha="center", va="center", fontsize=10, color=INK)
            continue
        codes = _class_codes(labels, named) if labels else numpy.zeros(len(flat), dtype=int)
        flat, codes = _thinned(flat[finite], codes[finite])
        _draw_dots(axes, flat, c=_CLASS_COLORS[codes], s=min(9.0, _dot_size(len(flat))), alpha=0.85)
        axes.set_aspect("equal", adjustable="datalim")
        axes.margins(0.06)
    if named:
        add_legend(figure, _class_handles(named, len(classes) - len(named), most=16), loc="outside right center")
    return figure


def draw_cloud(cloud: PointCloud, *, close: bool = False) -> Figure:
    """One point cloud colored by LID, without its numbers."""
    figure = Figure(figsize=(2.9, 2.9), layout="constrained")
    _draw_cloud(figure.add_subplot(), cloud, close=close)
    return figure


def cloud_panels(clouds: Sequence[PointCloud], *, columns: int, close: bool = False) -> Figure:
    """Point clouds side by side with their numbers as titles, as in the paper's Figure 1(c) and Appendix A."""
    rows = -(-len(clouds) // columns)
    figure = Figure(figsize=(2.7 * columns + 0.5, 3.2 * rows), layout="constrained")
    grid = [figure.add_subplot(rows, columns, place + 1) for place in range(len(clouds))]
    for axes, one in zip(grid, clouds, strict=True):
        dots = _draw_cloud(axes, one, close=close)
        axes.set_title(f"{one.caption}\n{cloud_numbers(one)}", fontsize=9, color=INK)
    bar = figure.colorbar(dots, ax=grid, fraction=0.03, aspect=30, ticks=[1, 1.5, 2])
    bar.ax.set_yticklabels(["1", "1.5", "2"])
    bar.ax.minorticks_off()
    bar.ax.set_title("LID", fontsize=9)
    return figure


def cloud_numbers(cloud: PointCloud) -> str:
    """Mean LID, its Fisher-Rao distance to the plane's 2, and the global dimension, on one line."""
    return f"mLID {number(cloud.mean_lid)} · FR {cloud.fisher_rao:.2f} · GID {number(cloud.global_dimension)}"


def _draw_cloud(axes: Axes, cloud: PointCloud, *, close: bool) -> PathCollection:
    """The whole cloud or, if `close`, the surroundings of its anchor, five times as wide as its neighborhood."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(color=INK, alpha=0.3)
    look = {"c": cloud.lid.numpy(), "cmap": COLORMAP, "norm": _CLOUD_SCALE, "s": 9 if close else 4}
    dots = _draw_dots(axes, cloud.points.numpy(), **look)
    axes.set_aspect("equal", adjustable="box" if close else "datalim")
    if close:
        x, y = cloud.points[cloud.anchor].tolist()
        reach = 5 * cloud.radius
        axes.set(xlim=(x - reach, x + reach), ylim=(y - reach, y + reach))
        axes.add_patch(Circle((x, y), cloud.radius, fill=False, color=INK, linewidth=1, linestyle=(0, (4, 3))))
        axes.plot([x], [y], marker="*", markersize=13, color="#d9482b", markeredgecolor=INK, markeredgewidth=0.6)
    return dots


def class_order(labels: Sequence[Sequence[str] | None]) -> list[str]:
    """All classes once: numbers by value, then words."""
    return sorted({label for own in labels for label in own or ()}, key=label_order)


def colored_classes(classes: Sequence[str]) -> Sequence[str]:
    """The classes that get a color; the others are gray."""
    return classes if len(classes) <= len(COLORS) else classes[: len(COLORS) - 1]


def _class_codes(labels: Sequence[str], named: Sequence[str]) -> Array:
    """The place of each label among the `named` classes, and `len(COLORS)` for the others."""
    place = {label: place for place, label in enumerate(named)}
    return numpy.array([place.get(label, len(COLORS)) for label in labels], dtype=int)


def _class_handles(named: Sequence[str], others: int, *, most: int = 22) -> list[Line2D]:
    """Entries of a legend of classes."""
    entries = [(short(label, most), COLORS[place]) for place, label in enumerate(named)]
    entries += [(f"{others} others", GRAY)] if others else []
    return [Line2D([], [], color=color, marker="o", linestyle="none", label=label) for label, color in entries]


def _on_map(points: Array, values: Array) -> tuple[Array, Array]:
    """The points that have a place, and their values."""
    placed = numpy.isfinite(points).all(axis=1)
    return points[placed], values[placed]


def _thinned(*arrays: Array) -> tuple[Array, ...]:
    """At most `DRAWN_POINTS` evenly chosen rows of each array."""
    rows = len(arrays[0])
    if rows <= DRAWN_POINTS:
        return arrays
    chosen = numpy.linspace(0, rows - 1, DRAWN_POINTS).astype(int)
    return tuple(array[chosen] for array in arrays)


def _dot_size(points: int) -> float:
    return float(numpy.clip(12_000 / max(points, 1), 2.5, 16))


def _draw_dots(axes: Axes, points: Array, **look: Any) -> PathCollection:
    """Points (N, 2), as one picture within an SVG."""
    return axes.scatter(points[:, 0], points[:, 1], linewidths=0, rasterized=True, **look)


# Lines and bars of studies


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
    every = numpy.concatenate([_sorted(one.points, 2) for one in series])
    values = every[numpy.isfinite(every[:, 1]), 1]
    if share:
        percent_axis(axes)
    if not len(values):
        axes.set_yticks([])
    elif not share and values.min() > 0 and values.max() > WIDE_RANGE * values.min():
        log_axis(axes, "y")
    _scale_x(axes, numpy.unique(every[:, 0]), logx=logx)
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
        handles.append(Line2D([], [], color=GRAY, marker="x", linestyle="none", label=_COLLAPSED))
    legend_below(figure, handles, [one.name for one in series])


def _draw_line(axes: Axes, one: Series, place: int) -> None:
    points, look = _sorted(one.points, 2), one.look()
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


def _scale_x(axes: Axes, distinct: Array, *, logx: bool) -> None:
    if not logx:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=bool((distinct == distinct.round()).all())))
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
    end, color, rotation = 0.0, INK, 90
    if value is None:
        text, color = "not measured", GRAY
    elif not math.isfinite(value):
        text = _COLLAPSED
    else:
        axes.bar(x, value, **look, linewidth=0)
        text, end, rotation = f"{100 * value:.1f}" if share else number(value), value, 0
        if error is not None and math.isfinite(error):
            axes.errorbar(x, value, yerr=error, fmt="none", ecolor=INK, elinewidth=1.1, capsize=2.5)
            end += math.copysign(error, value)
    axes.annotate(
        text, (x, end), (0, 2 if end >= 0 else -2), textcoords="offset points", ha="center",
        va="bottom" if end >= 0 else "top", fontsize=8, color=color, rotation=rotation,
    )  # fmt: skip
