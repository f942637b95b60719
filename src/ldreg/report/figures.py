"""Figures of a report: matplotlib `Figure`s without global state, and their SVG for a page of either color scheme."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import Any

import matplotlib
import numpy
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from numpy.typing import NDArray

from ldreg.dimension.geometry import regular
from ldreg.inspection.report import DimensionReport, MeanLID
from ldreg.report.summary import classes_of_other, shown_classes
from ldreg.text import number, printable

Array = NDArray[Any]

# Mid-tones that read on white and on near-black alike, and apart from each other for colorblind eyes.
BLUE, ORANGE, GRAY = "#3b86c6", "#e0762f", "#8a929c"
CLASS_COLORS = (
    "#3b86c6", "#e0762f", "#2a9d7c", "#c9559b", "#b8a013", "#6a5acd", "#58b4d6", "#a0522d", "#7f9f3f", "#d6455d",
)  # fmt: skip
# Lightness rises with LID, without the ends that vanish on black or on white.
COLORMAP = LinearSegmentedColormap.from_list("lid", ["#d9482b", "#e58f3a", "#9fae62", "#3fa7a0", "#3b73c6"])
INK = "#010203"  # stands for the page's text color until the SVG is written

_DECADES_ALONE = 300.0  # ratio of the ends of an axis from which 2 and 5 of every decade would crowd the labels
_LABELS = 6
DRAWN_POINTS = 20_000
DRAWN_CLASSES = 16
WIDE_RANGE = 20.0  # above this ratio of largest to smallest, an axis is logarithmic


def figures(report: DimensionReport) -> dict[str, Figure]:
    """Every figure that the report has data for, by name."""
    some = bool(regular(report.lid).any())
    return {
        **_drawn(report, [("histogram", some, histogram), ("map", some, map_by_lid)]),
        **class_figures(report),
        **_drawn(report, [("density", some, density), ("spectrum", bool((report.eigenvalues > 0).any()), spectrum)]),
    }


def class_figures(report: DimensionReport) -> dict[str, Figure]:
    """Those of them that show classes."""
    known = any(row.regular for row in report.classes)
    return _drawn(report, [("classes", known, class_bars), ("map-classes", bool(report.classes), map_by_class)])


def _drawn(
    report: DimensionReport, drawers: Sequence[tuple[str, bool, Callable[[DimensionReport], Figure]]]
) -> dict[str, Figure]:
    return {name: draw(report) for name, wanted, draw in drawers if wanted}


def histogram(report: DimensionReport) -> Figure:
    """How LID is distributed over the regular points, with the geometric mean and the quartiles."""
    values = report.lid[regular(report.lid)].double().numpy()
    figure, axes = canvas()
    wide = values.max() > WIDE_RANGE * values.min()
    bins = int(min(60, max(8, len(values) ** 0.5)))
    space = numpy.geomspace if wide else numpy.linspace
    edges = space(values.min(), values.max(), bins + 1).tolist() if values.max() > values.min() else bins
    axes.hist(values, bins=edges, color=BLUE, alpha=0.75, edgecolor="none")
    if wide:
        plain_log(axes, "x")
    axes.axvspan(report.quartiles[0], report.quartiles[2], color=INK, alpha=0.08, linewidth=0, zorder=0)
    axes.axvline(report.mean.value, color=ORANGE, linewidth=2)
    axes.margins(y=0.14)
    axes.annotate(
        f"geometric mean {number(report.mean.value)}", (report.mean.value, 0.99), (5, 0), color=ORANGE, weight="bold",
        xycoords=axes.get_xaxis_transform(), textcoords="offset points", va="top",
    )  # fmt: skip
    axes.set(xlabel="LID", ylabel="points")
    return figure


def density(report: DimensionReport) -> Figure:
    """LID of each point against the distance of its k-th neighbor."""
    keep = regular(report.lid) & (report.kth_distance > 0)
    lid, distance = thinned(report.lid[keep].numpy(), report.kth_distance[keep].numpy())
    figure, axes = canvas()
    axes.scatter(distance, lid, s=dot(len(lid)), color=BLUE, alpha=0.45, linewidths=0, rasterized=True)
    axes.axhline(report.mean.value, color=ORANGE, linewidth=1.5)
    density_axes(axes, lid, report.k)
    return figure


def density_axes(axes: Axes, lid: Array, k: int) -> None:
    """Scales and names of the axes that LID is drawn in against the distance of the k-th neighbor."""
    plain_log(axes, "x")
    if lid.max() > WIDE_RANGE * lid.min():
        plain_log(axes, "y")
    axes.set(xlabel=f"distance to neighbor {k}   (dense → sparse)", ylabel="LID")


def spectrum(report: DimensionReport) -> Figure:
    """Eigenvalues of the covariance, as shares of the largest, with the effective rank."""
    values = report.eigenvalues[report.eigenvalues > 0].numpy()
    share = values / values.max()
    figure, axes = canvas()
    axes.plot(numpy.arange(1, len(share) + 1), share, color=BLUE, linewidth=2, marker="." if len(share) < 40 else "")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(numticks=6))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.axvline(report.effective_rank, color=ORANGE, linewidth=1.5, linestyle=(0, (4, 2)))
    left = report.effective_rank > 0.6 * len(share)
    axes.annotate(
        f"effective rank {number(report.effective_rank)}", (report.effective_rank, 0.97), (-5 if left else 5, 0),
        xycoords=axes.get_xaxis_transform(), textcoords="offset points", color=ORANGE, weight="bold", va="top",
        ha="right" if left else "left",
    )  # fmt: skip
    axes.set(xlabel="principal axis", ylabel="share of largest eigenvalue")
    return figure


def map_by_lid(report: DimensionReport) -> Figure:
    """The points on their first two principal axes, colored by LID."""
    keep = regular(report.lid).numpy()
    lid = report.lid.numpy()[keep]
    return lid_map(report.coordinates.numpy()[keep], lid, scale=lid_scale(lid))


def lid_scale(lid: Array) -> LogNorm:
    """The color scale of a map: logarithmic, without the outermost fiftieths of the regular values (N,)."""
    low, high = numpy.quantile(lid, (0.02, 0.98))
    return LogNorm(low, high if high > low else low * 1.01)


def lid_map(flat: Array, lid: Array, *, scale: LogNorm) -> Figure:
    """Points (N, 2) of the plane colored by their regular LID (N,)."""
    flat, lid = thinned(flat, lid)
    figure, axes = canvas()
    # Highest LID first, so that the collapsed points end up on top.
    order = numpy.argsort(-lid, kind="stable")
    shown = axes.scatter(
        flat[order, 0],
        flat[order, 1],
        c=lid[order],
        s=dot(len(lid)),
        cmap=COLORMAP,
        alpha=0.85,
        linewidths=0,
        rasterized=True,
        norm=scale,
    )
    bar = figure.colorbar(shown, ax=axes, pad=0.02, aspect=30, extend="both")
    bar.outline.set_visible(False)
    low, high = float(scale.vmin or 0), float(scale.vmax or 0)
    ticks = numpy.geomspace(low, high, 5).tolist() if high > 1.02 * low else [low]
    bar.set_ticks(ticks, labels=[number(tick) for tick in ticks])
    bar.ax.minorticks_off()
    bar.ax.tick_params(colors=INK, labelsize=10, length=3, width=0.6)
    bar.ax.set_title("LID", fontsize=10, color=INK)
    frameless(axes)
    return figure


def map_by_class(report: DimensionReport) -> Figure:
    """The same map colored by class; with many classes, those of lowest LID stand out of the rest."""
    lowest = sorted(report.classes, key=lambda row: row.mean.value if row.regular else numpy.inf)
    few = len(report.classes) <= len(CLASS_COLORS)
    named = [row.label for row in (report.classes if few else lowest[: len(CLASS_COLORS) - 1])]
    return class_map(report.coordinates.numpy(), report.labels or (), named=named, classes=len(report.classes))


def class_map(
    flat: Array, labels: Sequence[str], *, named: Sequence[str], classes: int, principal: bool = True
) -> Figure:
    """Points (N, 2) of the plane: the `named` classes, of all `classes`, in color and the others gray."""
    rank = {label: place for place, label in enumerate(named)}
    codes = numpy.array([rank.get(label, len(CLASS_COLORS)) for label in labels])
    flat, codes = thinned(flat, codes)
    palette = numpy.array([*CLASS_COLORS, GRAY])
    figure, axes = canvas()
    for others in (True, False):
        part = (codes == len(CLASS_COLORS)) == others
        axes.scatter(
            flat[part, 0],
            flat[part, 1],
            c=palette[codes[part]],
            s=dot(len(flat)),
            alpha=0.25 if others else 0.85,
            linewidths=0,
            rasterized=True,
        )
    for place, label in enumerate(named):
        axes.scatter([], [], c=CLASS_COLORS[place], s=24, label=short(label))
    if classes > len(named):
        axes.scatter([], [], c=GRAY, s=24, label=f"{classes - len(named)} others")
    _legend(axes)
    frameless(axes, principal=principal)
    return figure


def _with_errors(means: Sequence[MeanLID]) -> tuple[Array, Array]:
    """Values (n,) and how far their intervals reach to both sides (2, n); those of a single point have none."""
    values = numpy.array([[mean.value, mean.low, mean.high] for mean in means])
    values[:, 1:] = numpy.where(numpy.isnan(values[:, 1:]), values[:, :1], values[:, 1:])
    return values[:, 0], numpy.stack([values[:, 0] - values[:, 1], values[:, 2] - values[:, 0]])


def class_bars(report: DimensionReport) -> Figure:
    """Geometric-mean LID of each class with its 95 % confidence interval, lowest on top."""
    rows = sorted((row for row in shown_classes(report, DRAWN_CLASSES) if row.regular), key=lambda row: row.mean.value)
    values, errors = _with_errors([row.mean for row in rows])
    figure, axes = canvas(height=1.1 + 0.24 * max(len(rows), 5))
    places = numpy.arange(len(rows))
    axes.barh(places, values, color=BLUE, alpha=0.75, height=0.7)
    axes.errorbar(values, places, xerr=errors, fmt="none", ecolor=INK, elinewidth=1.2, capsize=2.5)
    beside = classes_of_other(report)
    common = [(place, beside[row.label].mean) for place, row in enumerate(rows) if row.label in beside]
    if common:
        others, spans = _with_errors([mean for _, mean in common])
        at = [place for place, _ in common]
        axes.errorbar(others, at, xerr=spans, fmt="D", color=ORANGE, markersize=5, elinewidth=1.2, capsize=2.5)
    # Beside another set, orange is the other's.
    axes.axvline(report.mean.value, color=ORANGE if report.comparison is None else INK, linewidth=1.5)
    axes.set_yticks(places, [short(row.label) for row in rows])
    for tick in axes.get_yticklabels():
        tick.set_parse_math(False)
    axes.grid(visible=False, axis="y")
    axes.set(xlabel="LID", ylim=(len(rows) - 0.4, -0.6))
    return figure


def svg(figure: Figure, name: str) -> str:
    """The figure as an `<svg>` element for a page: text in the page's color and font, ids prefixed by `name`.

    The same figure gives the same text: no date, and ids that depend on `name` alone.
    """
    buffer = StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, dpi=170, metadata={"Date": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], count=1, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r'(<svg\b[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg\b[^>]*?) height="[^"]*"', r"\1", text))
    return text.replace(INK, "currentColor").strip()


@contextmanager
def plain_style() -> Iterator[None]:
    """Have matplotlib draw by its own defaults; what a matplotlibrc or a notebook sets would draw other pictures.

    Drawing and saving both take part in how a figure looks.
    """
    with style.context("default"):
        yield


def canvas(height: float = 3.1, *, width: float = 4.6) -> tuple[Figure, Axes]:
    """A figure with one pair of axes in the look of all figures."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    plain_axes(axes)
    return figure, axes


def plain_axes(axes: Axes) -> None:
    """Give axes the look of all figures."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color=INK, alpha=0.4)
    axes.tick_params(which="both", colors=INK, labelsize=10, length=3, width=0.6)
    axes.xaxis.label.set(color=INK, fontsize=10)
    axes.yaxis.label.set(color=INK, fontsize=10)
    axes.grid(visible=True, color=INK, alpha=0.1, linewidth=0.6)
    axes.set_axisbelow(True)


def plain_log(axes: Axes, which: str) -> None:
    """A logarithmic axis labeled with plain numbers, also where it spans less than a decade, or very many."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axes.set_xscale("log") if which == "x" else axes.set_yscale("log")
    low, high = axis.get_data_interval()
    narrow, wide = high < 4 * low, high > _DECADES_ALONE * low
    usual = LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=_LABELS if wide else 8)
    axis.set_major_locator(MaxNLocator(6) if narrow else usual)
    axis.set_minor_locator(NullLocator() if narrow or wide else LogLocator(subs="auto"))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def frameless(axes: Axes, *, principal: bool = True) -> None:
    """Axes of a map, where only relative places mean something; `principal` ones have names."""
    axes.set_aspect("equal", adjustable="datalim")
    axes.set(xticks=[], yticks=[])
    if principal:
        axes.set(xlabel="first principal axis", ylabel="second principal axis")
    axes.spines[["left", "bottom"]].set_visible(False)


def _legend(axes: Axes) -> None:
    legend = axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=10, handletextpad=0.2)
    for text in legend.get_texts():
        text.set(color=INK, parse_math=False)


def thinned(*arrays: Array) -> tuple[Array, ...]:
    """The arrays, or an even choice of their rows where there are more than a picture can show."""
    rows = len(arrays[0])
    if rows <= DRAWN_POINTS:
        return arrays
    chosen = numpy.linspace(0, rows - 1, DRAWN_POINTS).astype(int)
    return tuple(array[chosen] for array in arrays)


def dot(points: int) -> float:
    """Area of a dot, smaller where there are many."""
    return float(numpy.clip(12_000 / max(points, 1), 2.5, 16))


def short(label: str, most: int = 22) -> str:
    """User text of at most so many characters."""
    label = printable(label)
    return label if len(label) <= most else label[: most - 1] + "…"
