"""The common look of plots, and plots as SVG for a page or as files."""

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO, StringIO
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal

import matplotlib
import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from numpy.typing import NDArray

from ldreg.io.files import write_atomically
from ldreg.text import printable

Array = NDArray[Any]

# Mid-tones that read on white and on near-black, and differ for color-blind eyes.
COLORS = (
    "#3b86c6", "#e0762f", "#2a9d7c", "#c9559b", "#b8a013", "#6a5acd", "#58b4d6", "#a0522d", "#7f9f3f", "#d6455d",
)  # fmt: skip
BLUE, ORANGE, GRAY = COLORS[0], COLORS[1], "#8a929c"
INK = "#010203"  # becomes the page's text color in an SVG
WIDE_RANGE = 20.0  # an axis is logarithmic if largest / smallest exceeds this
WIDTH = 4.6  # of a figure, in inches
_DASHES: tuple[tuple[float, ...], ...] = ((), (4, 1.6), (1.2, 1.2), (5, 1.6, 1.2, 1.6))  # in line widths
_MANY_DECADES = 300.0  # an axis with a larger ratio labels powers of ten only


@contextmanager
def plain_style() -> Iterator[None]:
    """Use matplotlib's defaults, not those of a matplotlibrc or a notebook; needed for drawing and for saving."""
    with matplotlib.style.context("default"), warnings.catch_warnings():
        # An emoji in a label: an SVG holds it as text, which the browser has a font for.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def svg(figure: Figure, name: str) -> str:
    """The figure as SVG in the colors of the page; all ids start with `name`. Equal figures give equal text."""
    buffer = StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, dpi=170, metadata={"Date": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], count=1, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r'(<svg\b[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg\b[^>]*?) height="[^"]*"', r"\1", text))
    return text.replace(INK, "currentColor").strip()


@plain_style()
def picture(figure: Figure, kind: Literal["png", "pdf", "svg"]) -> bytes:
    """The figure as a file, on white and with its fonts embedded in a PDF; equal figures give equal bytes."""
    facts: dict[str, dict[str, Any]] = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
    buffer = BytesIO()
    # Editors and journals accept fonts of type 42, TrueType.
    with matplotlib.rc_context({"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "ldreg"}):
        figure.savefig(buffer, format=kind, dpi=150, facecolor="white", metadata=facts[kind])
    return buffer.getvalue()


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.pdf and return their paths. Missing folders are made. Raises OSError."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for kind in ("png", "pdf"):
        written.append(stem.with_name(f"{stem.name}.{kind}"))
        write_atomically(written[-1], picture(figure, kind))
    return written


def canvas(height: float = 3.1, *, width: float = WIDTH) -> tuple[Figure, Axes]:
    """A figure with one pair of axes in the common look."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    plain_axes(axes)
    return figure, axes


def plain_axes(axes: Axes) -> None:
    """Give axes the common look."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color=INK, alpha=0.4)
    axes.tick_params(which="both", colors=INK, labelsize=10, length=3, width=0.6)
    axes.xaxis.label.set(color=INK, fontsize=10)
    axes.yaxis.label.set(color=INK, fontsize=10)
    axes.grid(visible=True, color=INK, alpha=0.1, linewidth=0.6)
    axes.set_axisbelow(True)


def log_axis(axes: Axes, which: str) -> None:
    """Make the axis "x" or "y" logarithmic, with plain numbers as labels over any range."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axes.set_xscale("log") if which == "x" else axes.set_yscale("log")
    low, high = axis.get_data_interval()
    narrow, wide = high < 4 * low, high > _MANY_DECADES * low
    locator = LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=6 if wide else 8)
    axis.set_major_locator(MaxNLocator(6) if narrow else locator)
    axis.set_minor_locator(NullLocator() if narrow or wide else LogLocator(subs="auto"))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def percent_axis(axes: Axes) -> None:
    """Show shares on the vertical axis in percent."""
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))


def label_axes(axes: Axes, xlabel: str, ylabel: str) -> None:
    """Name the axes, literally and not as formulas."""
    for label, text in ((axes.xaxis.label, xlabel), (axes.yaxis.label, ylabel)):
        label.set_text(printable(text))
        label.set_parse_math(False)


def line_style(place: int) -> dict[str, Any]:
    """Color and dashes of the set or run at this place; neighbors differ in both."""
    dashes = _DASHES[place % len(_DASHES)]
    return {"color": COLORS[place % len(COLORS)], "linestyle": (0, dashes) if dashes else "solid", "linewidth": 2.0}


def short(label: str, most: int = 22) -> str:
    """User text of at most this many characters."""
    label = printable(label)
    return label if len(label) <= most else label[: most - 1] + "…"


def wrapped(name: str, width: int = 12) -> str:
    """A name on at most three lines.

    >>> print(wrapped("SimCLR (Tuned) with a long name"))
    SimCLR
    (Tuned) with
    a long name
    """
    rows = wrap(printable(name), width) or [""]
    return "\n".join(rows if len(rows) <= 3 else [*rows[:2], short(rows[2], width - 1) + "…"])


def add_legend(owner: Axes | Figure, handles: Sequence[Any], **options: Any) -> None:
    """Add a legend whose names are shown literally, not as formulas."""
    legend = owner.legend(handles=handles, frameon=False, **{"fontsize": 10, "handletextpad": 0.2, **options})
    for text in legend.get_texts():
        text.set(color=INK, parse_math=False)


def legend_below(figure: Figure, handles: Sequence[Any], names: Sequence[str]) -> None:
    """Add a legend below the axes, in as many columns as the names have room for."""
    columns = max(1, round(figure.get_figwidth() / WIDTH * legend_columns(names)))
    look = {"fontsize": 9.5, "handlelength": 2.6, "columnspacing": 1.4, "handletextpad": 0.8}
    add_legend(figure, handles, loc="outside lower center", ncols=min(columns, len(handles)), **look)


def legend_columns(names: Sequence[str]) -> int:
    """Columns of a legend below a figure of the usual width."""
    longest = max(min(40, len(printable(name))) for name in names)
    return 1 if longest > 22 else 2 if longest > 12 else 3
