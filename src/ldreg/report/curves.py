"""Figures that show several runs together: a color and a dash for each run, the same in every figure."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from ldreg.report.figures import CLASS_COLORS, WIDE_RANGE, canvas, class_map, lid_map, lid_scale, plain_log

Array = NDArray[Any]
Line = Sequence[tuple[float, float]]
Values = Sequence[float] | Array

_DASHES: tuple[tuple[float, ...], ...] = ((), (4, 1.6), (1.2, 1.2), (5, 1.6, 1.2, 1.6))
_WIDTH = 2.0
_MARKED = 12  # a line of fewer points shows them
MARKED_RUNS = 3  # where there are more runs, means and ranks are left to the tables
_DEPTH = 1e-8  # shares of the largest eigenvalue below this are rounding


class Style(NamedTuple):
    """Color and dash pattern (in line widths, empty for a solid line) of a run."""

    color: str
    dashes: tuple[float, ...]


def style(place: int) -> Style:
    """The style of the run at this place: neighbors differ in color and, without color, in their dashes."""
    return Style(CLASS_COLORS[place % len(CLASS_COLORS)], _DASHES[place % len(_DASHES)])


def curve(lines: Sequence[Line], *, share: bool) -> Figure:
    """A value over epochs, one line for each run (empty where it has none); `share` values are in percent."""
    figure, axes = canvas(height=2.8)
    drawn = [_finite(line) for line in lines]
    for place, line in enumerate(drawn):
        few = numpy.isfinite(line[:, 1]).sum() < _MARKED
        axes.plot(line[:, 0], line[:, 1], **_look(place), marker="o" if few else "", markersize=4)
    values = numpy.concatenate([line[:, 1] for line in drawn])
    values = values[numpy.isfinite(values)]
    if values.min() > 0 and values.max() > WIDE_RANGE * values.min():
        plain_log(axes, "y")
    if share:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set(xlabel="epoch")
    return figure


def drawable(lines: Sequence[Line]) -> bool:
    """Whether there is a finite value among them."""
    return any(math.isfinite(epoch) and math.isfinite(value) for line in lines for epoch, value in line)


def regular_values(lid: Values) -> Array:
    """The finite values above zero."""
    values: Array = numpy.asarray(lid, dtype=float)
    return values[numpy.isfinite(values) & (values > 0)]


def histograms(lids: Sequence[Values], means: Sequence[float] | None = None) -> Figure:
    """How LID is distributed in each run, as shares of its points over common bins, with the means of few.

    `means` are the geometric means, where the runs have more points than are given here.
    """
    runs = [regular_values(lid) for lid in lids]
    pooled = numpy.concatenate(runs)
    figure, axes = canvas()
    wide = pooled.max() > WIDE_RANGE * pooled.min()
    low, high = (pooled.min(), pooled.max()) if pooled.max() > pooled.min() else (pooled[0] * 0.9, pooled[0] * 1.1)
    bins = int(min(40, max(8, max(map(len, runs)) ** 0.5)))
    edges = (numpy.geomspace if wide else numpy.linspace)(low, high, bins + 1)
    for place, values in enumerate(runs):
        if not len(values):
            continue
        shares = numpy.histogram(values, edges)[0] / len(values)
        if len(runs) > MARKED_RUNS:
            axes.plot((edges[1:] + edges[:-1]) / 2, shares, **_look(place))
            continue
        axes.stairs(shares, edges, **_look(place))
        axes.stairs(shares, edges, color=style(place).color, alpha=0.15, fill=True, linewidth=0)
        mean = math.exp(numpy.log(values).mean()) if means is None else means[place]
        if math.isfinite(mean):
            axes.axvline(mean, **{**_look(place), "linewidth": 1.2})
    if wide:
        plain_log(axes, "x")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    axes.set(xlabel="LID", ylabel="share of points", ylim=(0, None))
    return figure


def spectra(spectra_of_runs: Sequence[Values], ranks: Sequence[float]) -> Figure:
    """Eigenvalues as shares of the largest on logarithmic axes, with the ranks of few runs."""
    figure, axes = canvas()
    lowest = 1.0
    for place, (eigenvalues, rank) in enumerate(zip(spectra_of_runs, ranks, strict=True)):
        values = numpy.sort(regular_values(eigenvalues))[::-1]
        if not len(values):
            continue
        share = values / values[0]
        lowest = min(lowest, share[share > _DEPTH].min())
        axes.plot(numpy.arange(1, len(share) + 1), share, **_look(place), marker="." if len(share) == 1 else "")
        if math.isfinite(rank) and rank > 0 and len(ranks) <= MARKED_RUNS:
            axes.axvline(rank, **{**_look(place), "linewidth": 1.2})
    plain_log(axes, "x")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(numticks=6))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set(xlabel="principal axis", ylabel="share of largest eigenvalue", ylim=(lowest / 1.5, 1.5))
    return figure


def lid_maps(maps: Sequence[Sequence[tuple[float, float]]], lids: Sequence[Sequence[float]]) -> list[Figure | None]:
    """The map of each run colored by LID, on one scale for all; None for a run without a map or regular LIDs."""
    runs = [_mapped(flat, lid) for flat, lid in zip(maps, lids, strict=True)]
    known = [lid for _, lid in runs if len(lid)]
    if not known:
        return [None] * len(runs)
    scale = lid_scale(numpy.concatenate(known))
    return [lid_map(flat, lid, scale=scale) if len(lid) else None for flat, lid in runs]


def class_maps(
    maps: Sequence[Sequence[tuple[float, float]]], labels: Sequence[Sequence[str] | None], *, principal: bool = True
) -> list[Figure | None]:
    """The map of each run colored by class, the same colors in all; None for a run without a map or labels.

    `principal` says whether the axes are principal axes, and so have names.
    """
    classes = class_order(labels)
    named = classes if len(classes) <= len(CLASS_COLORS) else classes[: len(CLASS_COLORS) - 1]
    return [
        class_map(numpy.asarray(flat, dtype=float), own, named=named, classes=len(classes), principal=principal)
        if flat and own
        else None
        for flat, own in zip(maps, labels, strict=True)
    ]


def class_order(labels: Sequence[Sequence[str] | None]) -> list[str]:
    """All classes once, numbers by their value and before words.

    >>> class_order([["10", "b", "9"], None, ["a", "9"]])
    ['9', '10', 'a', 'b']
    """
    found = {label for own in labels for label in own or ()}
    return sorted(found, key=lambda label: (0, int(label), "") if label.isdecimal() else (1, 0, label))


def _mapped(flat: Sequence[tuple[float, float]], lid: Sequence[float]) -> tuple[Array, Array]:
    """Points (N, 2) and their LID (N,), without those that have none."""
    if not (flat and lid):
        return numpy.empty((0, 2)), numpy.empty(0)
    points, values = numpy.asarray(flat, dtype=float), numpy.asarray(lid, dtype=float)
    keep = numpy.isfinite(values) & (values > 0)
    return points[keep], values[keep]


def _finite(line: Line) -> Array:
    """The pairs (N, 2) by epoch, with gaps where a value is not finite."""
    pairs = numpy.asarray(sorted(line, key=lambda pair: pair[0]), dtype=float).reshape(-1, 2)
    return numpy.where(numpy.isfinite(pairs), pairs, numpy.nan)


def _look(place: int) -> dict[str, Any]:
    color, dashes = style(place)
    return {"color": color, "linestyle": (0, dashes) if dashes else "solid", "linewidth": _WIDTH}
