"""LID beside what Gaussian points read, and beside other classes or embeddings: what is usual, what a collapse."""

import math
from collections.abc import Mapping, Sequence
from typing import cast

import numpy
from torch import Tensor

from ldreg.inspection.gaps import Gaps
from ldreg.lid.calibration import DIMENSIONS, Calibrated, beyond, gaussian_dimension, gaussian_lid
from ldreg.lid.estimators import Convention, Estimator, LIDEstimate
from ldreg.lid.expected import expected_lid
from ldreg.lid.geometry import regular
from ldreg.reporting.record import (
    Beside,
    ClassLID,
    CollapsedClass,
    DimensionReport,
    Doubt,
    Guidance,
    MeanLID,
    SmallClass,
    Verdict,
)

# Rules of thumb, chosen by looking at samples of known shape, not at labels. The Gaussian samples that were tried,
# cubes, balls and spheres read 0.9 to 1.15 times the usual LID, a swiss roll 0.64. However low, LID beside the usual
# does not tell collapse: encoders that were made to collapse read 0.4 to 1.1 times as much, sound ones 0.3 to 0.7
# of digits. Beside other classes or embeddings it does.
_COLLAPSED, _LOWER, _HIGHER = 0.6, 0.8, 1.25
_MOST = 0.5  # of the points: where more have no LID, or an exact duplicate, there is nothing to judge
_JUMPING = 0.3  # of the points: of the collapsed shapes that were tried at most 0.12, of small clusters and copies all
_EVEN = Gaps()


def guidance(
    mean: MeanLID,
    classes: Sequence[ClassLID],
    eigenvalues: Tensor,
    *,
    sizes: Mapping[str, int],
    degenerate: float,
    duplicated: float = 0.0,
    gaps: Gaps = _EVEN,
    distinct: int | None = None,
    k: int,
    shape: tuple[int, int],
    estimator: Estimator,
    convention: Convention,
) -> Guidance:
    """What mean LID of points (N, D) = `shape` tells, with the eigenvalues of their covariance, at any scale.

    `sizes` are the points of each class, of which `classes` may tell a part: neighbors come from all.
    `degenerate` is the share of points that have no LID; where it is most of them, nothing is said of the rest.
    `duplicated` is the share that have an exact duplicate, `gaps` what their neighbor distances show, and `distinct`
    the number of distinct rows where it was counted.
    """
    n, dimensions = shape
    small = tuple(SmallClass(row.label, sizes[row.label]) for row in classes if sizes[row.label] <= k)
    # Neighbors of a point in a class of at most k reach into others: LID reads low there, or high, by that alone.
    collapsed = collapsed_classes([row for row in classes if sizes[row.label] > k])
    note = beyond(estimator, k, n, dimensions) or ("most points have no defined LID" if degenerate > _MOST else "")
    doubt: Doubt = "duplicates" if duplicated > _MOST else ""
    if note:
        return Guidance(
            collapsed_classes=collapsed,
            small_classes=small,
            note=note,
            doubt=doubt,
            tied=gaps.tied,
            distinct=distinct,
        )
    known = cast(Calibrated, estimator)
    usual = expected_lid(eigenvalues, k, n, dimensions, estimator=known, convention=convention)
    dimension = gaussian_dimension(mean.value, k, n, estimator=known, convention=convention)
    found = None if usual is None else verdict(mean, usual)
    if not doubt and found == "lower" and gaps.jumping > _JUMPING:
        doubt = "jump"
    return Guidance(
        verdict=None if doubt else found,
        usual=usual,
        fisher_rao=None if usual is None else abs(math.log(mean.value / usual)),
        gaussian_dimension=dimension,
        filled=gaussian_lid(dimensions, k, n, estimator=known, convention=convention),
        collapsed_classes=() if doubt == "jump" else collapsed,
        small_classes=small,
        note=_note(mean, usual, dimension),
        doubt=doubt,
        jump=round(gaps.before) if doubt == "jump" else None,
        tied=gaps.tied,
    )


def _note(mean: MeanLID, usual: float | None, dimension: float | None) -> str:
    if usual is None:
        return "the covariance is zero, or too large for a number"
    if dimension is not None:
        return ""
    if mean.value < 2:
        return "LID is lower than a Gaussian of one dimension reads"
    return f"LID is higher than a Gaussian of {DIMENSIONS[-1]:,} dimensions reads"


def verdict(mean: MeanLID, usual: float) -> Verdict | None:
    """What the whole confidence interval says, or the milder of what its ends say; None without an interval.

    >>> [verdict(MeanLID(value, low, high), 16.0) for value, low, high in ((9.5, 9, 10), (9.5, 6, 14), (25, 22, 28))]
    ['lower', 'usual', 'higher']
    """
    if math.isnan(mean.low) or math.isnan(mean.high):
        return None
    if mean.high < _LOWER * usual:
        return "lower"
    return "higher" if mean.low > _HIGHER * usual else "usual"


def beside(mean: MeanLID, other: MeanLID) -> Beside | None:
    """What the ratio to the mean LID of other embeddings, of as many points, says at the end of its interval next to 1.

    >>> other = MeanLID(10.0, 9.9, 10.1)
    >>> [beside(MeanLID(lid, lid - 0.1, lid + 0.1), other) for lid in (5.0, 7.0, 9.0, 15.0)]
    ['collapse', 'lower', 'similar', 'higher']
    """
    if any(math.isnan(end) for end in (mean.low, mean.high, other.low, other.high)):
        return None
    if mean.high < _LOWER * other.low:
        return "collapse" if mean.high < _COLLAPSED * other.low else "lower"
    return "higher" if mean.low > _HIGHER * other.high else "similar"


def classes_beside(own: DimensionReport, other: DimensionReport) -> tuple[CollapsedClass, ...]:
    """The classes that are collapsed beside themselves in another set of as many points, lowest first.

    Classes of at most k points in either set are not judged.
    """
    small = {row.label for one in (own, other) for row in one.guidance.small_classes}
    means = {row.label: row.mean for row in other.classes if row.label not in small}
    found = [
        CollapsedClass(row.label, row.mean, mean.value, math.log(mean.value / row.mean.value))
        for row in own.classes
        if (mean := means.get(row.label)) is not None and beside(row.mean, mean) == "collapse"
    ]
    return tuple(sorted(found, key=lambda row: row.mean.value))


def unfit(found: LIDEstimate, seen: Gaps, whose: str) -> str:
    """Why mean LID of a set, measured so, compares with none, in words of a sentence; empty where it does.

    `seen` are the gaps of its distances, `whose` is what its points are called.
    """
    if (~regular(found.lid)).double().mean() > _MOST:
        return f"most of {whose} points have no defined LID"
    if (found.neighbors.distances[:, 0] == 0).double().mean() > _MOST:
        return f"most of {whose} points have an exact duplicate"
    if seen.jumping > _JUMPING:
        return f"around many of {whose} points the distances to neighbors jump, as where k is larger than clusters"
    return ""


def collapsed_classes(classes: Sequence[ClassLID]) -> tuple[CollapsedClass, ...]:
    """The classes whose whole confidence interval is under 0.6 times the median of the other classes, lowest first."""
    means = sorted((row for row in classes if row.mean.value > 0), key=lambda row: row.mean.value)
    if len(means) < 2:
        return ()
    found = []
    for place, row in enumerate(means):
        others = float(numpy.median([other.mean.value for other in (*means[:place], *means[place + 1 :])]))
        if row.mean.high < _COLLAPSED * others:  # never where it is NaN, of a single point
            found.append(CollapsedClass(row.label, row.mean, others, math.log(others / row.mean.value)))
    return tuple(found)
