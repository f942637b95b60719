"""A benchmark's run as a figure, and the figure as a file."""

from collections.abc import Callable
from io import BytesIO, StringIO

import matplotlib
from matplotlib.figure import Figure

from ldreg.bench.plot_bars import draw_parts, draw_rates
from ldreg.bench.plot_scaling import draw_scaling
from ldreg.bench.record import Run
from ldreg.bench.suite import BENCHMARKS
from ldreg.report.style import plain_style

_PICTURES: dict[str, Callable[[Run], Figure]] = {"scaling": draw_scaling, "rates": draw_rates, "parts": draw_parts}


@plain_style()
def draw(run: Run) -> Figure:
    """The figure that suits the benchmark."""
    figure = _PICTURES[BENCHMARKS[run.benchmark].picture](run)
    if not run.complete:
        figure.suptitle("interrupted: not all was measured", fontsize=10)
    return figure


@plain_style()
def svg(figure: Figure) -> str:
    """The figure as SVG text that is the same for the same numbers."""
    text = StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "ldreg", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


@plain_style()
def png(figure: Figure) -> bytes:
    """The figure as a PNG of twice the usual density."""
    content = BytesIO()
    figure.savefig(content, format="png", dpi=144, metadata={"Software": None})
    return content.getvalue()
