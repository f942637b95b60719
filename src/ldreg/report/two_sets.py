"""Figures of a report that compares two sets: both in the same axes, or side by side on one scale."""

from typing import Any, NamedTuple

import numpy
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ldreg.dimension.geometry import regular
from ldreg.inspection.report import DimensionReport
from ldreg.report.curves import histograms, regular_values, spectra, style
from ldreg.report.figures import DRAWN_POINTS, canvas, density_axes, dot, lid_map, lid_scale, thinned
from ldreg.text import count, number

Array = NDArray[Any]


class Drawn(NamedTuple):
    """A figure of two sets: its name, its title and caption as plain text, and what the legend says of each set."""

    name: str
    title: str
    caption: str
    legend: tuple[str, ...]
    figure: Figure


def figures_of_both(report: DimensionReport, other: DimensionReport) -> list[Drawn]:
    """Every figure that there is data for."""
    both = (report, other)
    return [*_histogram(both), *_spectrum(both), *_maps(both), *_density(both)]


Both = tuple[DimensionReport, DimensionReport]


def _histogram(both: Both) -> list[Drawn]:
    lids = [one.lid.double().numpy() for one in both]
    if not any(len(regular_values(lid)) for lid in lids):
        return []
    means = [one.mean.value for one in both]
    caption = "In percent of the points of each set. Thin lines: the geometric means."
    if any(one.degenerate for one in both):
        caption += " Points without a defined LID are left out."
    legend = tuple(f"{one.title}: {_undefined(one) or f'geometric mean {number(one.mean.value)}'}" for one in both)
    return [Drawn("histogram", "How LID is spread", caption, legend, histograms(lids, means))]


def _spectrum(both: Both) -> list[Drawn]:
    spectra_of_both = [one.eigenvalues.double().numpy() for one in both]
    if not any(len(regular_values(values)) for values in spectra_of_both):
        return []
    caption = "Eigenvalues of the covariance; thin lines: effective rank. A cliff means that directions are unused."
    legend = tuple(
        f"{one.title}: {f'effective rank {number(one.effective_rank)}' if len(known) else 'no eigenvalue above 0'}"
        for one, known in zip(both, map(regular_values, spectra_of_both), strict=True)
    )
    drawn = spectra(spectra_of_both, [one.effective_rank for one in both])
    return [Drawn("spectrum", "Global spectrum", caption, legend, drawn)]


def _maps(both: Both) -> list[Drawn]:
    """The map of each set; the sets have axes of their own, but the colors are the same."""
    known = [one for one in both if not _undefined(one)]
    if not known:
        return []
    scale = lid_scale(numpy.concatenate([regular_values(one.lid.double().numpy()) for one in known]))
    caption = "First two principal axes of this set; red points are the most collapsed."
    if len(known) > 1:
        caption += " The colors are the same on both maps."
    else:
        caption += "".join(f" {one.title} has no map: {_undefined(one)}." for one in both if _undefined(one))
    drawn = []
    for place, one in enumerate(known):
        keep = regular(one.lid).numpy()
        figure = lid_map(one.coordinates.numpy()[keep], one.lid.double().numpy()[keep], scale=scale)
        left_out = f" {count(DRAWN_POINTS)} of {count(int(keep.sum()))} points are drawn." if _many(one) else ""
        drawn.append(Drawn(f"map-{place}", f"Where LID is low in {one.title}", caption + left_out, (), figure))
    return drawn


def _density(both: Both) -> list[Drawn]:
    points = [_distances_and_lid(one) for one in both]
    if not any(len(some) for some in points):
        return []
    caption = "Each dot is a point. Lines: the geometric means. Collapse in dense spots pulls the left side down."
    if any(map(_many, both)):
        caption += f" At most {count(DRAWN_POINTS)} points of each set are drawn."
    legend = tuple(f"{one.title}: {told}" if (told := _undefined(one)) else one.title for one in both)
    return [Drawn("density", "LID against density", caption, legend, _densities(both, points))]


def _densities(both: Both, points: list[Array]) -> Figure:
    """LID of each point against the distance of its k-th neighbor."""
    pooled = numpy.concatenate(points)
    colors = numpy.repeat([style(place).color for place in range(len(points))], list(map(len, points)))
    # In random order, or the second set would cover the first where they overlap.
    order = numpy.random.default_rng(0).permutation(len(pooled))
    figure, axes = canvas()
    distance, lid = pooled[order].T
    axes.scatter(distance, lid, s=dot(len(lid)), c=colors[order], alpha=0.5, linewidths=0, rasterized=True)
    for place, one in enumerate(both):
        color, dashes = style(place)
        if len(points[place]):
            axes.axhline(one.mean.value, color=color, linestyle=(0, dashes) if dashes else "solid", linewidth=1.5)
    density_axes(axes, lid, both[0].k)
    return figure


def _distances_and_lid(one: DimensionReport) -> Array:
    """Distance of the k-th neighbor and LID (n, 2) of the regular points, or of an even choice of them."""
    keep = regular(one.lid) & (one.kth_distance > 0)
    columns = thinned(one.kth_distance[keep].double().numpy(), one.lid[keep].double().numpy())
    return numpy.stack(columns, axis=1)


def _undefined(one: DimensionReport) -> str:
    """Why a set is not drawn; empty where it is."""
    return "" if regular(one.lid).any() else "no point has a defined LID"


def _many(one: DimensionReport) -> bool:
    """Whether there are more points with a LID, which are those drawn, than a picture shows."""
    return int(regular(one.lid).sum()) > DRAWN_POINTS
