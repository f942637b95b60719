"""What DANCo measures of a set of points: the concentration of neighbor distances and of the angles between them."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ldreg.dimension.neighbors import as_numbers, neighbors, no_matrix

_ANGLE_BYTES = 16 << 20


class Statistics(NamedTuple):
    """What DANCo knows of a set of points."""

    ratio: float  # d of the ratios of nearest to farthest distance
    angle: float  # nu, mean over points of the mean angle
    concentration: float  # tau, of the angles around it


def as_points(x: Any) -> Tensor:
    """Real points (N, D) in float32 at least, from anything that torch.as_tensor takes; ValueError otherwise."""
    points = as_numbers(x, "x").detach()
    if points.ndim != 2 or 0 in points.shape:
        raise no_matrix(points.shape, "x")
    if points.is_complex() or points.dtype == torch.bool:
        raise ValueError(f"x: expected real numbers, got {points.dtype}")
    if not points.is_floating_point():
        points = points.double()
    if not bool(points.isfinite().all()):
        raise ValueError(f"x: expected finite numbers, got NaN or inf in shape {tuple(points.shape)}")
    return points.to(torch.promote_types(points.dtype, torch.float32))


def standardized(points: Tensor) -> Tensor:
    """Centered and scaled to 1 in float64, then in the precision of the input again."""
    wide = points.double()
    # The median cannot overflow, and one far point does not move it away from all others.
    wide = wide - wide.median(dim=0).values
    largest = wide.abs().max()
    return (wide / largest).to(points.dtype) if largest > 0 else wide.to(points.dtype)


def distinct_neighbors(points: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Points without repeated rows, with distances and indices (N, k) of their neighbors."""
    for again in (True, False):
        if len(points) <= k:
            raise ValueError(f"x: expected at least {k + 1} distinct points, got {len(points)}")
        distances, indices = neighbors(points, k)
        # Sorting rows costs more than looking, so that only sets with repeated rows pay for it.
        if not again or not bool((distances[:, 0] == 0).any()):
            break
        points = torch.unique(points, dim=0)
    return points, distances, indices


def statistics_of(points: Tensor, k: int) -> tuple[Tensor, Statistics]:
    """Distinct points and their statistics."""
    points, distances, indices = distinct_neighbors(points, k + 1)
    nearest, farthest = distances[:, 0].double(), distances[:, -1].double()
    # Where all neighbors are equally far the density of the ratio is zero at any d: such points say nothing of d.
    usable = (nearest > 0) & (nearest < farthest)
    if not bool(usable.any()):
        raise ValueError(f"x: expected neighbors at different distances, got {k + 1} equally far ones at every point")
    angle, resultant = _angles(points, indices[:, :k])
    if not resultant < 1:
        raise ValueError("x: expected neighbors in different directions, got equal angles at every point")
    ratio = _ratio_dimension((nearest[usable] / farthest[usable]).log(), k)
    return points, Statistics(ratio, angle, _concentration(resultant))


def _ratio_dimension(log_ratio: Tensor, k: int) -> float:
    """The d that maximizes the likelihood of ratios r under the density k d r^(d-1) (1 - r^d)^(k-1)."""

    def score(d: float) -> float:
        power = d * log_ratio
        return (1 / d + (log_ratio * (1 + (k - 1) * power.exp() / power.expm1())).mean()).item()

    return _decreasing_root(score, 1e-6, 1e9)


def _concentration(resultant: float) -> float:
    """The tau of a von Mises distribution whose mean resultant length I1(tau) / I0(tau) is given."""

    def excess(tau: float) -> float:
        return resultant - float(mean_resultant(torch.tensor(tau, dtype=torch.float64, device="cpu")))

    return _decreasing_root(excess, 1e-9, 1e12)


def mean_resultant(concentration: Tensor) -> Tensor:
    """Mean resultant length I1 / I0 of a von Mises distribution; the scaled functions do not overflow."""
    first, zeroth = torch.special.i1e(concentration), torch.special.i0e(concentration)
    return torch.div(first, zeroth)


def _decreasing_root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a decreasing function crosses zero between two positive numbers, by bisection of the logarithm."""
    for _ in range(44):
        middle = math.sqrt(low * high)
        if function(middle) > 0:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def _angles(points: Tensor, indices: Tensor) -> tuple[float, float]:
    """Mean direction and mean resultant length, averaged over points, of the angles between neighbors.

    The concentration is taken of the averaged length and not averaged itself: a point at the end of a line, whose
    neighbors all lie in one direction, has an infinite one.
    """
    n, k = indices.shape
    first, second = torch.triu_indices(k, k, offset=1, device=points.device)
    step = max(1, _ANGLE_BYTES // (8 * k * points.shape[1]))
    angle = resultant = 0.0
    for start in range(0, n, step):
        rows = slice(start, start + step)
        # Differences are right to rounding in any precision, sums of their products are not.
        away = points[indices[rows]].sub_(points[rows, None]).double()
        products = away @ away.mT
        lengths = products.diagonal(dim1=1, dim2=2).sqrt()
        # Rounding may carry the cosine of a flat angle past 1, where it has no sine.
        cosine = (products[:, first, second] / (lengths[:, first] * lengths[:, second])).clamp(-1, 1)
        mean_cosine, mean_sine = cosine.mean(dim=1), (1 - cosine.square()).sqrt().mean(dim=1)
        angle += torch.atan2(mean_sine, mean_cosine).sum().item()
        resultant += torch.hypot(mean_cosine, mean_sine).sum().item()
    return angle / n, resultant / n
