"""Points of the plane in panels side by side, colored by class."""

from collections.abc import Sequence

import numpy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ldreg.report.curves import class_order
from ldreg.report.figures import CLASS_COLORS, GRAY, INK, dot, short, thinned
from ldreg.report.legends import COLLAPSED, as_text, wrapped

Panel = tuple[str, Sequence[tuple[float, float]], Sequence[str] | None]


def scatter_panels(panels: Sequence[Panel], *, columns: int) -> Figure:
    """Points of the plane side by side, such as those of t-SNE, in the same colors of classes and with one legend.

    Args:
        panels: title, points (N, 2) and their classes, or None for points of one color; without a finite point a panel
            says "collapsed".
        columns: panels in a row.

    Raises:
        ValueError: there is no panel, `columns` is below 1, or a panel has not as many labels as points.
    """
    if not panels or columns < 1:
        raise ValueError(f"panels: expected at least one, in 1 or more columns, got {len(panels)} in {columns}")
    for title, points, labels in panels:
        if labels is not None and len(labels) != len(points):
            raise ValueError(f"panels: expected {len(points)} labels in {title!r}, got {len(labels)}")
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    classes = class_order([labels for _, _, labels in panels])
    named = classes if len(classes) <= len(CLASS_COLORS) else classes[: len(CLASS_COLORS) - 1]
    figure = Figure(figsize=(2.4 * columns + (1.1 if named else 0), 2.65 * rows), layout="constrained")
    for place, (title, points, labels) in enumerate(panels):
        axes = figure.add_subplot(rows, columns, place + 1)
        _panel(axes, points, labels, named)
        axes.set_title(wrapped(title, 30), fontsize=10, color=INK).set_parse_math(False)
    if named:
        _class_legend(figure, named, others=len(classes) - len(named))
    return figure


def _panel(
    axes: Axes, points: Sequence[tuple[float, float]], labels: Sequence[str] | None, named: Sequence[str]
) -> None:
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(color=INK, alpha=0.3)
    flat = numpy.asarray(points, dtype=float).reshape(-1, 2)
    keep = numpy.isfinite(flat).all(1)
    if not keep.any():
        axes.text(0.5, 0.5, COLLAPSED, transform=axes.transAxes, ha="center", va="center", fontsize=10, color=INK)
        return
    rank = {label: place for place, label in enumerate(named)}
    codes = numpy.array([rank.get(label, len(CLASS_COLORS)) for label in labels or ()] or [0] * len(flat))
    flat, codes = thinned(flat[keep], codes[keep])
    palette = numpy.array([*CLASS_COLORS, GRAY])
    size = min(9.0, dot(len(flat)))
    axes.scatter(flat[:, 0], flat[:, 1], c=palette[codes], s=size, alpha=0.85, linewidths=0, rasterized=True)
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.06)


def _class_legend(figure: Figure, named: Sequence[str], *, others: int) -> None:
    entries = [(short(label, 16), CLASS_COLORS[place]) for place, label in enumerate(named)]
    if others:
        entries.append((f"{others} others", GRAY))
    handles = [Line2D([], [], color=color, marker="o", linestyle="none", label=label) for label, color in entries]
    legend = figure.legend(handles=handles, loc="outside right center", frameon=False, fontsize=10, handletextpad=0.2)
    as_text(legend)
