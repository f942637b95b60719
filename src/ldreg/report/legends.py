"""What the figures of studies share: legends, labels, long names, and the word for a value that is not defined."""

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.ticker import FuncFormatter

from ldreg.report.figures import INK, short
from ldreg.text import printable

COLLAPSED = "collapsed"  # said where a value is not defined
_USUAL = 4.6  # inches that a figure is wide


def legend_below(figure: Figure, handles: Sequence[Any], *, names: Sequence[str]) -> None:
    """A legend below the axes, in as many columns as the names leave room for."""
    columns = max(1, round(figure.get_figwidth() / _USUAL * _columns(names)))
    as_text(
        figure.legend(
            handles=handles,
            loc="outside lower center",
            ncols=min(columns, len(handles)),
            frameon=False,
            fontsize=9.5,
            handlelength=2.6,
            columnspacing=1.4,
        )
    )


def legend_rows(names: Sequence[str]) -> int:
    """How many rows a legend of these names has in a figure of the usual width."""
    return -(-len(names) // _columns(names))


def as_text(legend: Legend) -> None:
    """Names as they are, without formulas, in the color of text."""
    for text in legend.get_texts():
        text.set(color=INK, parse_math=False)


def label_axes(axes: Axes, xlabel: str, ylabel: str) -> None:
    """Names of the axes, as they are."""
    for label, text in ((axes.xaxis.label, xlabel), (axes.yaxis.label, ylabel)):
        label.set_text(printable(text))
        label.set_parse_math(False)


def percent_axis(axes: Axes) -> None:
    """Shares on the vertical axis in percent."""
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))


def _columns(names: Sequence[str]) -> int:
    longest = max(min(40, len(printable(name))) for name in names)
    return 1 if longest > 22 else 2 if longest > 12 else 3


def wrapped(name: str, width: int = 12) -> str:
    """A name on at most three lines.

    >>> print(wrapped("SimCLR (Tuned) with a long name"))
    SimCLR
    (Tuned) with
    a long name
    """
    rows = wrap(printable(name), width) or [""]
    return "\n".join(rows if len(rows) <= 3 else [*rows[:2], short(rows[2], width - 1) + "…"])
