"""What is known from the LID of the measured points."""

import math
from typing import TypedDict

import numpy
import torch
from torch import Tensor

from ldreg.dimension.estimators import LIDEstimate
from ldreg.dimension.geometry import arithmetic_mean, frechet_variance, harmonic_mean, regular
from ldreg.inspection.findings import lid_quantiles
from ldreg.inspection.interval import mean_lid
from ldreg.inspection.report import ClassLID, CollapsedPoint, MeanLID

_MOST_COLLAPSED = 10


class Local(TypedDict):
    """The fields of a report that they fill."""

    mean: MeanLID
    quartiles: tuple[float, float, float]
    frechet_variance: float
    arithmetic_mean: float
    harmonic_mean: float
    lid_low: float
    zero: int
    infinite: int
    duplicated: int
    most_collapsed: tuple[CollapsedPoint, ...]
    classes: tuple[ClassLID, ...]
    index: Tensor
    lid: Tensor
    standard_error: Tensor
    kth_distance: Tensor
    labels: tuple[str, ...] | None


def local(found: LIDEstimate, rows: Tensor, points: int, labels: list[str] | None, beyond: Tensor | None) -> Local:
    """Statistics of the LID of the measured `rows` of so many points, with their labels if there are any.

    `beyond` are distances after the k-th, as `mean_lid` takes them.
    """
    lid, distances = found.lid.double(), found.neighbors.distances
    ordinary = lid[regular(lid)]
    low, median, high = numpy.quantile(ordinary.cpu(), (0.25, 0.5, 0.75)).tolist() if len(ordinary) else [math.nan] * 3
    return Local(
        mean=mean_lid(found, rows, points, beyond=beyond),
        quartiles=(low, median, high),
        frechet_variance=frechet_variance(lid).item() if len(ordinary) else math.nan,
        arithmetic_mean=arithmetic_mean(lid).item(),
        harmonic_mean=harmonic_mean(lid).item(),
        lid_low=lid_quantiles(lid, (0.05,))[0],
        zero=int((lid == 0).sum()),
        infinite=int(torch.isinf(lid).sum()),
        duplicated=int((distances[:, 0] == 0).sum()),
        most_collapsed=_most_collapsed(found, rows, labels),
        classes=() if labels is None else _classes(found, rows, points, labels, beyond),
        index=rows.cpu(),
        lid=found.lid.cpu(),
        standard_error=found.standard_error.cpu(),
        kth_distance=distances[:, -1].cpu(),
        labels=None if labels is None else tuple(labels),
    )


def _most_collapsed(found: LIDEstimate, rows: Tensor, labels: list[str] | None) -> tuple[CollapsedPoint, ...]:
    """The measured points of lowest LID, 0 included and inf left out, ties in order of row."""
    order = torch.sort(found.lid, stable=True).indices[:_MOST_COLLAPSED].tolist()
    return tuple(
        CollapsedPoint(
            index=int(rows[i]),
            lid=found.lid[i].item(),
            standard_error=found.standard_error[i].item(),
            label=None if labels is None else labels[i],
        )
        for i in order
        if not torch.isinf(found.lid[i])
    )


def _classes(
    found: LIDEstimate, rows: Tensor, points: int, labels: list[str], beyond: Tensor | None
) -> tuple[ClassLID, ...]:
    members: dict[str, list[int]] = {}
    for position, label in enumerate(labels):
        members.setdefault(label, []).append(position)
    return tuple(
        _class(label, found, rows, points, torch.tensor(members[label], device=rows.device), beyond)
        for label in sorted(members, key=_label_order)
    )


def _label_order(label: str) -> tuple[bool, int, str]:
    """Whole numbers by value, then words by alphabet."""
    whole = label.removeprefix("-").isdecimal()
    return not whole, int(label) if whole else 0, label


def _class(
    label: str, found: LIDEstimate, rows: Tensor, points: int, members: Tensor, beyond: Tensor | None
) -> ClassLID:
    mean = mean_lid(found, rows, points, members, beyond)
    coinciding = found.neighbors.distances[members, -1] == 0
    return ClassLID(label, len(members), int(regular(found.lid[members]).sum()), mean, int(coinciding.sum()))
