"""Plots of dimensionality: histograms, spectra and maps of one or several sets, values over epochs, point clouds."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from ldreg.inspection.report import ClassLID, MeanLID
from ldreg.record import PointCloud
from ldreg.report.style import (
    BLUE,
    INK,
    ORANGE,
    PALETTE,
    WIDE_RANGE,
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
    line_style,
    log_axis,
    percent_axis,
    short,
    thinned,
)
from ldreg.text import number

MARKED_SETS = 3  # with more sets, means and ranks are not marked

# Lightness rises with LID, without the ends that vanish on black or on white.
_COLORMAP = LinearSegmentedColormap.from_list("lid", ["#d9482b", "#e58f3a", "#9fae62", "#3fa7a0", "#3b73c6"])
_CLOUD_SCALE = LogNorm(0.8, 2.6)  # from a line to above the plane's 2, where estimates scatter
_MARKED = 12  # curves with fewer points mark each of them
_SMALLEST_SHARE = 1e-8  # smaller shares of the largest eigenvalue are rounding errors


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
    """How LID is distributed in each set, as shares of its points over common bins, with the means of few sets.

    Args:
        lids: LID of the points of each set; undefined values are left out.
        means: geometric means, NaN where there is none.
        quartiles: of a single set, to shade its middle half.
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
    sets = [numpy.stack(thinned(*columns), axis=1) for columns in zip(distances, lids, strict=True)]
    pooled = numpy.concatenate(sets)
    colors = numpy.repeat([line_style(place)["color"] for place in range(len(sets))], list(map(len, sets)))
    order = numpy.random.default_rng(0).permutation(len(pooled))  # else the last set would cover the others
    figure, axes = canvas()
    draw_dots(axes, pooled[order], c=colors[order], s=dot_size(len(pooled)), alpha=0.5)
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
        pairs = numpy.asarray(sorted(line, key=lambda pair: pair[0]), dtype=float).reshape(-1, 2)
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


def lid_maps(maps: Sequence[Sequence[Point] | Array], lids: Sequence[Sequence[float] | Array]) -> list[Figure | None]:
    """The map (N, 2) of each set colored by LID on one color scale; None for a set without a map or regular LIDs."""
    sets = []
    for flat, lid in zip(maps, lids, strict=True):
        points, values = numpy.asarray(flat, dtype=float).reshape(-1, 2), numpy.asarray(lid, dtype=float)
        keep = numpy.isfinite(values) & (values > 0)
        sets.append((points[keep], values[keep]) if len(points) and len(values) else (points[:0], values[:0]))
    known = [values for _, values in sets if len(values)]
    if not known:
        return [None] * len(sets)
    low, high = numpy.quantile(numpy.concatenate(known), (0.02, 0.98))
    scale = LogNorm(low, high if high > low else low * 1.01)
    return [_lid_map(points, values, scale) if len(values) else None for points, values in sets]


def _lid_map(points: Array, lid: Array, scale: LogNorm) -> Figure:
    points, lid = thinned(points, lid)
    figure, axes = canvas()
    order = numpy.argsort(-lid, kind="stable")  # the collapsed points come out on top
    shown = draw_dots(axes, points[order], c=lid[order], cmap=_COLORMAP, norm=scale, s=dot_size(len(lid)), alpha=0.85)
    bar = figure.colorbar(shown, ax=axes, pad=0.02, aspect=30, extend="both")
    bar.outline.set_visible(False)
    low, high = float(scale.vmin or 0), float(scale.vmax or 0)
    ticks = numpy.geomspace(low, high, 5).tolist() if high > 1.02 * low else [low]
    bar.set_ticks(ticks, labels=[number(tick) for tick in ticks])
    bar.ax.minorticks_off()
    bar.ax.tick_params(colors=INK, labelsize=10, length=3, width=0.6)
    bar.ax.set_title("LID", fontsize=10, color=INK)
    _map_axes(axes)
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
    """Points (N, 2) with the `named` of all `classes` in color and the others gray; `principal` names the axes."""
    points, codes = thinned(points, class_codes(labels, named))
    figure, axes = canvas()
    for gray in (True, False):
        part = (codes == len(PALETTE) - 1) == gray
        draw_dots(axes, points[part], c=PALETTE[codes[part]], s=dot_size(len(points)), alpha=0.25 if gray else 0.85)
    add_legend(axes, class_handles(named, classes - len(named)), loc="center left", bbox_to_anchor=(1.0, 0.5))
    _map_axes(axes, principal=principal)
    return figure


def _map_axes(axes: Axes, *, principal: bool = True) -> None:
    """Axes of a map, where only relative places mean something."""
    axes.set_aspect("equal", adjustable="datalim")
    axes.set(xticks=[], yticks=[])
    if principal:
        axes.set(xlabel="first principal axis", ylabel="second principal axis")
    axes.spines[["left", "bottom"]].set_visible(False)


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


def draw_cloud(cloud: PointCloud, *, close: bool = False) -> Figure:
    """One point cloud colored by LID, for a page that writes its numbers beside it."""
    figure = Figure(figsize=(2.9, 2.9), layout="constrained")
    _draw_cloud(figure.add_subplot(), cloud, close=close)
    return figure


def cloud_panels(clouds: Sequence[PointCloud], *, columns: int, close: bool = False) -> Figure:
    """Point clouds side by side with their numbers as titles, as in the paper's Figure 1(c) and Appendix A."""
    rows = -(-len(clouds) // columns)
    figure = Figure(figsize=(2.7 * columns + 0.5, 3.2 * rows), layout="constrained")
    grid = [figure.add_subplot(rows, columns, place + 1) for place in range(len(clouds))]
    for axes, one in zip(grid, clouds, strict=True):
        marks = _draw_cloud(axes, one, close=close)
        axes.set_title(f"{one.caption}\n{cloud_numbers(one)}", fontsize=9, color=INK)
    bar = figure.colorbar(marks, ax=grid, fraction=0.03, aspect=30, ticks=[1, 1.5, 2])
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
    look = {"c": cloud.lid.numpy(), "cmap": _COLORMAP, "norm": _CLOUD_SCALE, "s": 9 if close else 4}
    marks = draw_dots(axes, cloud.points.numpy(), **look)
    axes.set_aspect("equal", adjustable="box" if close else "datalim")
    if close:
        x, y = cloud.points[cloud.anchor].tolist()
        reach = 5 * cloud.radius
        axes.set(xlim=(x - reach, x + reach), ylim=(y - reach, y + reach))
        axes.add_patch(Circle((x, y), cloud.radius, fill=False, color=INK, linewidth=1, linestyle=(0, (4, 3))))
        axes.plot([x], [y], marker="*", markersize=13, color="#d9482b", markeredgecolor=INK, markeredgewidth=0.6)
    return marks
