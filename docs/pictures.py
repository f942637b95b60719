"""Draw the pictures of docs/concepts.md: `python docs/pictures.py` writes them into docs/images."""

from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import ldreg
from ldreg.dimension.synthetic import gaussian
from ldreg.report.style import plain_style

IMAGES = Path(__file__).parent / "images"
COLORS = ("#3949ab", "#d81b60", "#00897b", "#f57c00")


def shapes(count: int = 1500, seed: int = 0) -> dict[str, Tensor]:
    """Points of the plane around the origin, which is the first: along a line, in a disc, along a bent ribbon."""
    generator = torch.Generator().manual_seed(seed)
    u = 2 * torch.rand(count, 2, generator=generator) - 1
    disc = u[u.norm(dim=1) <= 1]
    line = torch.stack([u[:, 0], torch.zeros(count)], dim=1)
    ribbon = torch.stack([u[:, 0], 0.5 * u[:, 0].square() + 0.12 * u[:, 1]], dim=1)
    return {name: torch.cat([torch.zeros(1, 2), x]) for name, x in (("line", line), ("ribbon", ribbon), ("disc", disc))}


def growth() -> Figure:
    """How many points lie within r of one point, for three clouds: the slope is LID."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes = figure.subplots(1, 4, gridspec_kw={"width_ratios": [1, 1, 1, 1.5]})
    last = axes[3]
    for place, (name, points) in enumerate(shapes().items()):
        own, color = axes[place], COLORS[place]
        distances = points[1:].norm(dim=1).sort().values
        lid = ldreg.lid(points[:1], k=200, reference=points[1:]).item()
        _cloud(own, points, distances[199].item(), color)
        own.set_title(f"{name}: LID {lid:.1f}", fontsize=11)
        last.loglog(distances, torch.arange(1, len(distances) + 1), color=color, label=name, linewidth=2)
    last.set(xlabel="distance r from the star", ylabel="points within r", xlim=(0.01, 1), ylim=(1, 2000))
    last.set_title("the slope is LID", fontsize=11)
    last.legend(frameon=False)
    last.spines[["top", "right"]].set_visible(False)
    return figure


def _cloud(axes: Axes, points: Tensor, radius: float, color: str) -> None:
    axes.scatter(points[:, 0], points[:, 1], s=2, color=color, alpha=0.5, linewidths=0)
    axes.plot(0, 0, "*", color="black", markersize=9)
    angles = torch.linspace(0, 6.2832, 100)
    axes.plot(radius * angles.cos(), radius * angles.sin(), color="black", linewidth=0.8)
    axes.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), aspect="equal", xticks=[], yticks=[])


def bias(seed: int = 0) -> Figure:
    """What LID reads of Gaussians of known dimension, by number of points and by k."""
    dimensions = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for color, count in zip(COLORS, (500, 2000, 10000), strict=False):
        read = [_mean(count, d, 64, seed) for d in dimensions]
        left.plot(dimensions, read, "o-", color=color, label=f"N = {count:,}", markersize=4)
    for color, k in zip(COLORS, (16, 64, 256), strict=False):
        read = [_mean(2000, d, k, seed) for d in dimensions]
        right.plot(dimensions, read, "o-", color=color, label=f"k = {k}", markersize=4)
    for axes, title in ((left, "k = 64, more points"), (right, "N = 2,000, more neighbors")):
        axes.plot([0, 64], [0, 64], color="gray", linewidth=1, linestyle="--")
        axes.set(xlabel="true dimension", xlim=(0, 64), ylim=(0, 64))
        axes.set_title(title, fontsize=11)
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    left.set_ylabel("LID, geometric mean")
    return figure


def _mean(count: int, dimension: int, k: int, seed: int) -> float:
    points = gaussian(count, dimension, seed=seed)
    return ldreg.geometric_mean(ldreg.lid(points, k=k)).item()


if __name__ == "__main__":
    with plain_style():
        growth().savefig(IMAGES / "lid_growth.png", dpi=130)
        bias().savefig(IMAGES / "lid_bias.png", dpi=130)
