"""Point clouds of the plane, colored by LID, as the paper's Figure 1(c) and Appendix A draw them."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from ldreg.record import PointCloud
from ldreg.report.figures import COLORMAP, INK
from ldreg.text import number

# One scale for all panels, from a line to somewhat over the plane's 2, where estimates scatter.
_SCALE = LogNorm(0.8, 2.6)


def panel(cloud: PointCloud, *, close: bool = False) -> Figure:
    """One cloud, for a page that writes its numbers beside it."""
    figure = Figure(figsize=(2.9, 2.9), layout="constrained")
    _draw(figure.add_subplot(), cloud, close=close)
    return figure


def panels(clouds: Sequence[PointCloud], *, columns: int, close: bool = False) -> Figure:
    """All clouds in one picture, with their numbers as titles and a common color scale of LID."""
    rows = -(-len(clouds) // columns)
    figure = Figure(figsize=(2.7 * columns + 0.5, 3.2 * rows), layout="constrained")
    grid = [figure.add_subplot(rows, columns, place + 1) for place in range(len(clouds))]
    for axes, cloud in zip(grid, clouds, strict=True):
        marks = _draw(axes, cloud, close=close)
        axes.set_title(f"{cloud.caption}\n{cloud_numbers(cloud)}", fontsize=9, color=INK)
    bar = figure.colorbar(marks, ax=grid, fraction=0.03, aspect=30, ticks=[1, 1.5, 2])
    bar.ax.set_yticklabels(["1", "1.5", "2"])
    bar.ax.minorticks_off()
    bar.ax.set_title("LID", fontsize=9)
    return figure


def cloud_numbers(cloud: PointCloud) -> str:
    """Mean LID, its Fisher-Rao distance to the plane's 2, and the global dimension, on one line."""
    return f"mLID {number(cloud.mean_lid)} · FR {cloud.fisher_rao:.2f} · GID {number(cloud.global_dimension)}"


def _draw(axes: Axes, cloud: PointCloud, *, close: bool) -> PathCollection:
    """The whole cloud or, `close`, the surroundings of its anchor, five times as wide as its neighborhood."""
    marks = _scatter(axes, cloud, size=9 if close else 4)
    axes.set_aspect("equal", adjustable="box" if close else "datalim")
    if close:
        x, y = cloud.points[cloud.anchor].tolist()
        reach = 5 * cloud.radius
        axes.set(xlim=(x - reach, x + reach), ylim=(y - reach, y + reach))
        axes.add_patch(Circle((x, y), cloud.radius, fill=False, color=INK, linewidth=1, linestyle=(0, (4, 3))))
        axes.plot([x], [y], marker="*", markersize=13, color="#d9482b", markeredgecolor=INK, markeredgewidth=0.6)
    return marks


def _scatter(axes: Axes, cloud: PointCloud, *, size: float) -> PathCollection:
    x, y = cloud.points.T.numpy()
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(color=INK, alpha=0.3)
    return axes.scatter(x, y, c=cloud.lid.numpy(), cmap=COLORMAP, norm=_SCALE, s=size, linewidths=0, rasterized=True)
