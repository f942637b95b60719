"""Colors and axes that all plots of benchmarks share."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ldreg.bench.contest import OWN
from ldreg.bench.record import Run
from ldreg.bench.suite import BENCHMARKS

_COLORS = ("#d6455d", "#3b86c6", "#58b4d6", "#2a9d7c", "#e0762f", "#8a929c", "#6a5acd", "#b8a013")
_MARKERS = "os^Dv*PX"
GRAY = "#8a929c"
_FEW_DECADES = 300  # up to this ratio an axis has room for 2 and 5 between the powers of ten


def look(run: Run, key: str) -> dict[str, Any]:
    """Color, marker and line width of a contender, the same in every panel."""
    place = list(BENCHMARKS[run.benchmark].contenders).index(key)
    color, marker = _COLORS[place % len(_COLORS)], _MARKERS[place % len(_MARKERS)]
    return {"color": color, "marker": marker, "linewidth": 2.5 if key == OWN else 1.2}


def logarithmic(axes: Axes, *, x: bool = True, y: bool = True) -> None:
    """Logarithmic axes with plain numbers, a faint grid and no box; call it when all is drawn."""
    for wanted, scale, axis in ((x, axes.set_xscale, axes.xaxis), (y, axes.set_yscale, axes.yaxis)):
        if not wanted:
            continue
        scale("log")
        low, high = axis.get_view_interval()
        if high < _FEW_DECADES * low:
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set_axisbelow(True)
    axes.grid(visible=True, alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
