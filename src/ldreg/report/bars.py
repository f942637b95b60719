"""Groups of bars, one for each method, with their values on them."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ldreg.report.figures import CLASS_COLORS, GRAY, INK, canvas, short
from ldreg.report.legends import COLLAPSED, label_axes, legend_below, percent_axis, wrapped
from ldreg.text import number

Values = Sequence[float | None]

_PALE = 0.4  # of bars that stand beside solid ones


def bars(
    groups: Sequence[str],
    series: Sequence[tuple[str, Values]],
    *,
    errors: Sequence[Values | None] | None = None,
    ylabel: str,
    share: bool = False,
) -> Figure:
    """A group of bars for each of `groups`, one bar from each series, paler the earlier, with its value on it.

    Args:
        groups: names below the axis, such as those of methods; each has a color.
        series: name and values, one for each group; NaN is marked "collapsed", None as not measured.
        errors: for each series half the lengths of error bars, or None.
        ylabel: what is shown.
        share: whether values are shares, shown in percent.

    Raises:
        ValueError: there is nothing to draw, or lists that belong together differ in length.
    """
    _check_bars(groups, series, errors)
    figure, axes = canvas(height=3.3, width=max(4.6, 1.0 + len(groups) * (0.42 * len(series) + 0.28)))
    axes.grid(visible=False, axis="x")
    thick = 0.8 / len(series)
    for place, (_, values) in enumerate(series):
        own = None if errors is None else errors[place]
        for group, value in enumerate(values):
            x = group + (place - (len(series) - 1) / 2) * thick
            error = None if own is None else own[group]
            look = {"color": CLASS_COLORS[group % len(CLASS_COLORS)], "alpha": _strength(place, len(series))}
            _bar(axes, x, value, error, width=0.92 * thick, look=look, share=share)
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
        patches = [
            Patch(facecolor=GRAY, alpha=_strength(place, len(series)), label=short(name, 40))
            for place, (name, _) in enumerate(series)
        ]
        legend_below(figure, patches, names=[name for name, _ in series])
    return figure


def _check_bars(
    groups: Sequence[str],
    series: Sequence[tuple[str, Values]],
    errors: Sequence[Values | None] | None,
) -> None:
    if not groups or not series:
        raise ValueError(f"groups, series: expected at least one of each, got {len(groups)} and {len(series)}")
    for name, values in series:
        if len(values) != len(groups):
            raise ValueError(
                f"series: expected {len(groups)} values, one for each group, in {name!r}, got {len(values)}"
            )
    if errors is not None and len(errors) != len(series):
        raise ValueError(f"errors: expected {len(series)} entries, one for each series, got {len(errors)}")
    for own in errors or ():
        if own is not None and len(own) != len(groups):
            raise ValueError(f"errors: expected {len(groups)} values, one for each group, got {len(own)}")


def _bar(
    axes: Axes, x: float, value: float | None, error: float | None, *, width: float, look: dict[str, Any], share: bool
) -> None:
    """A bar with its value above it, or a word where there is no value."""
    if value is None or not math.isfinite(value):
        word = "not measured" if value is None else COLLAPSED
        _beside(axes, word, x, 0.0, color=GRAY if value is None else INK, rotation=90)
        return
    axes.bar(x, value, width=width, **look, linewidth=0)
    reach = 0.0
    if error is not None and math.isfinite(error):
        axes.errorbar(x, value, yerr=error, fmt="none", ecolor=INK, elinewidth=1.1, capsize=2.5)
        reach = error
    text = f"{100 * value:.1f}" if share else number(value)
    _beside(axes, text, x, value + (reach if value >= 0 else -reach), color=INK, rotation=0)


def _beside(axes: Axes, text: str, x: float, y: float, *, color: str, rotation: int) -> None:
    """Text that stands on (or hangs from) the end of a bar."""
    axes.annotate(
        text, (x, y), (0, 2 if y >= 0 else -2), textcoords="offset points", ha="center",
        va="bottom" if y >= 0 else "top", fontsize=8, color=color, rotation=rotation,
    )  # fmt: skip


def _strength(place: int, count: int) -> float:
    """The last of the series is solid, the others are pale."""
    return 1.0 if count == 1 else _PALE + (1 - _PALE) * place / (count - 1)
