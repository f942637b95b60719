"""Global intrinsic dimension: one number for a whole set of points (TwoNN, DANCo)."""

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from importlib.resources import files
from itertools import count
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ldreg.dimension.neighbors import as_real_matrix, neighbors
from ldreg.dimension.synthetic import SAMPLES

GlobalEstimator = Literal["danco", "twonn"]
Reference = Literal["ball", "cube", "sphere", "gaussian"]

REFERENCES: tuple[Reference, ...] = ("ball", "cube", "sphere", "gaussian")

# Calibrated dimensions grow by this factor; between them the statistics are linear in log d to within 0.1 %.
_NODE_RATIO = 1.2
# Small samples are calibrated several times, so that calibration is no noisier than the estimate itself.
_CALIBRATION_POINTS = 4000
_MAX_REPLICATES = 8

_SEGMENT_STEPS = 256
_QUADRATURE_STEPS = 256
_ANGLE_BYTES = 16 << 20


def twonn(x: Any, *, discard: float = 0.1) -> float:
    """Global dimension from the ratio of the second to the first neighbor distance (TwoNN, Facco et al. 2017).

    Repeated rows count once; points whose first neighbor is still at distance 0 are left out. A line through the origin
    is fitted to all ratios but the share `discard` of the largest.

    Args:
        x: points (N, D), anything that torch.as_tensor takes.
        discard: share of the largest ratios to leave out of the fit, from 0 to below 1.

    Raises:
        ValueError: x is not a finite real matrix, fewer than 3 points are usable, or all neighbors are equally far.

    >>> from ldreg.dimension.synthetic import cube
    >>> round(twonn(cube(2000, 3)))
    3
    """
    if not 0 <= discard < 1:
        raise ValueError(f"discard: expected a share from 0 to below 1, got {discard}")
    points = as_points(x)
    first, second = distinct_neighbors(points, 2)[1].double().unbind(dim=1)
    ratios = (second / first)[first > 0].sort().values
    usable = len(ratios)
    # Never the largest, where the empirical distribution function is 1 and the logarithm of the rest infinite.
    kept = min(int(usable * (1 - discard)), usable - 1)
    if usable < 3 or kept < 2:
        raise ValueError(f"x: expected at least 3 usable points, 2 of them kept, got {usable}, {max(kept, 0)} kept")
    log_ratio = ratios[:kept].log()
    rank = torch.arange(1, kept + 1, dtype=torch.float64, device=ratios.device)
    spread = log_ratio.square().sum().item()
    if spread == 0:
        raise ValueError("x: expected neighbors at different distances, got both neighbors equally far throughout")
    return -(log_ratio * torch.log1p(-rank / usable)).sum().item() / spread


def danco(
    x: Any, *, k: int = 10, references: Sequence[Reference] = REFERENCES, max_points: int = 5000, seed: int = 0
) -> float:
    """Global dimension from the concentration of neighbor distances and angles (DANCo, Ceruti et al. 2014).

    Three statistics of the points (a maximum-likelihood dimension from the ratio of the nearest to the (k+1)-th
    neighbor distance, mean and concentration of the angles between the k neighbors) are compared, by Kullback-Leibler
    divergence, with those of samples of the same size and known dimension. The result is the dimension of the nearest
    sample, interpolated between integers; it is at least 1 and at most D.

    Ceruti et al. calibrate with one uniform sample per dimension, which misses the dimension of others by up to 10 %
    (5 Gaussian dimensions read as 5.4 or more). Here each dimension has several references, and the best fit is taken;
    `references=("ball",)` is the original. Distributions unlike every reference (skewed, heavy-tailed, far from
    isotropic) can still be off by 10 to 30 % at N = 2000 and d of 20 or more.

    For k = 10, 32 to 5000 points and dimensions up to 198 the references are read from a table; beyond, they are drawn
    on the first call and cached. The result depends on the arguments alone. Repeated rows count once.

    Args:
        x: points (N, D), anything that torch.as_tensor takes.
        k: neighbors per point, at least 3; at least k + 2 distinct points are needed.
        references: distributions that the points are compared with.
        max_points: a random sample of this size is used where there are more points.
        seed: of that sample, and of references that are drawn.

    Raises:
        ValueError: x is not a finite real matrix, has too few distinct points, or all its neighbors are equally far; k,
            references or max_points out of range.

    >>> from ldreg.dimension.synthetic import cube
    >>> round(danco(cube(1000, 3, ambient=8)))
    3
    """
    if k < 3:
        raise ValueError(f"k: expected at least 3 neighbors (angles between 2 have no concentration), got {k}")
    if max_points < k + 2:
        raise ValueError(f"max_points: expected at least k + 2 = {k + 2}, got {max_points}")
    if not references or not set(references) <= set(REFERENCES):
        raise ValueError(f"references: expected one or more of {list(REFERENCES)}, got {references!r}")
    points = as_points(x)
    if len(points) > max_points:
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(len(points), generator=generator, device="cpu")[:max_points]
        points = points[chosen.to(points.device)]
    points, measured = statistics_of(standardized(points), k)

    def calibrated(reference: Reference, d: int) -> Statistics:
        return calibrated_statistics(reference, d, len(points), k, seed, points.device)

    known = calibration_dimensions(points.shape[1])
    # Start at a calibrated dimension whose ratio statistic is near the measured one.
    start, guess = 0, measured.ratio
    for _ in range(3):
        start = min(bisect_left(known, guess), len(known) - 1)
        guess = known[start] * measured.ratio / calibrated(references[0], known[start]).ratio
    fits = (_best_fit(measured, known, start, points.shape[1], k, partial(calibrated, name)) for name in references)
    return min(fits)[1]


ESTIMATORS: dict[GlobalEstimator, Callable[[Any], float]] = {"danco": danco, "twonn": twonn}


def global_dimension(x: Any, *, estimator: GlobalEstimator = "danco") -> float:
    """Global intrinsic dimension of points (N, D) by the named estimator with its defaults (see `danco`, `twonn`).

    Raises:
        ValueError: an unknown estimator, and what the estimator raises.

    >>> from ldreg.dimension.synthetic import sphere
    >>> round(global_dimension(sphere(1000, 2), estimator="twonn"))
    2
    """
    if estimator not in ESTIMATORS:
        raise ValueError(f"estimator: expected one of {list(ESTIMATORS)}, got {estimator!r}")
    return ESTIMATORS[estimator](x)


class Statistics(NamedTuple):
    """What DANCo measures of a set of points."""

    ratio: float  # dimension by the ratios of nearest to farthest distance
    angle: float  # nu, mean angle between neighbors
    concentration: float  # tau, of the angles around it


def as_points(x: Any) -> Tensor:
    """Real points (N, D) in float32 at least, from anything that torch.as_tensor takes; ValueError otherwise."""
    points = as_real_matrix(x, "x").detach()
    if points.dtype == torch.bool:
        raise ValueError(f"x: expected real numbers, got {points.dtype}")
    if not bool(points.isfinite().all()):
        raise ValueError(f"x: expected finite numbers, got NaN or inf in shape {tuple(points.shape)}")
    dtype = torch.promote_types(points.dtype, torch.float32) if points.is_floating_point() else torch.float64
    return points.to(dtype)


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
        # Sorting rows is expensive, so only sets with repeated rows are sorted.
        if not again or not bool((distances[:, 0] == 0).any()):
            break
        points = torch.unique(points, dim=0)
    return points, distances, indices


def statistics_of(points: Tensor, k: int) -> tuple[Tensor, Statistics]:
    """Distinct points and their statistics."""
    points, distances, indices = distinct_neighbors(points, k + 1)
    nearest, farthest = distances[:, 0].double(), distances[:, -1].double()
    # Where all neighbors are equally far, the density of the ratio is zero at any d: such points say nothing about d.
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
        return resultant - float(_mean_resultant(torch.tensor(tau, dtype=torch.float64, device="cpu")))

    return _decreasing_root(excess, 1e-9, 1e12)


def _mean_resultant(concentration: Tensor) -> Tensor:
    """Mean resultant length I1 / I0 of a von Mises distribution; the scaled functions do not overflow."""
    return torch.div(torch.special.i1e(concentration), torch.special.i0e(concentration))


def _decreasing_root(function: Callable[[float], float], low: float, high: float) -> float:
    """The zero of a decreasing function between two positive numbers, by bisection of the logarithm."""
    for _ in range(44):
        middle = math.sqrt(low * high)
        if function(middle) > 0:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def _angles(points: Tensor, indices: Tensor) -> tuple[float, float]:
    """Mean direction and mean resultant length, averaged over points, of the angles between neighbors.

    The concentration is computed from the averaged length: at the end of a line, where all neighbors lie in one
    direction, it would be infinite.
    """
    n, k = indices.shape
    first, second = torch.triu_indices(k, k, offset=1, device=points.device)
    step = max(1, _ANGLE_BYTES // (8 * k * points.shape[1]))
    angle = resultant = 0.0
    for start in range(0, n, step):
        rows = slice(start, start + step)
        # Differences are accurate to rounding in any precision, sums of their products are not.
        away = points[indices[rows]].sub_(points[rows, None]).double()
        products = away @ away.mT
        lengths = products.diagonal(dim1=1, dim2=2).sqrt()
        # Rounding may push the cosine of a flat angle above 1, where it has no sine.
        cosine = (products[:, first, second] / (lengths[:, first] * lengths[:, second])).clamp(-1, 1)
        mean_cosine, mean_sine = cosine.mean(dim=1), (1 - cosine.square()).sqrt().mean(dim=1)
        angle += torch.atan2(mean_sine, mean_cosine).sum().item()
        resultant += torch.hypot(mean_cosine, mean_sine).sum().item()
    return angle / n, resultant / n


def calibrated_statistics(reference: Reference, d: int, n: int, k: int, seed: int, device: torch.device) -> Statistics:
    """Statistics of n reference points of dimension d: from the table within its range, drawn otherwise."""
    table = _table()
    if k == table["k"] and d in table["dimensions"] and table["points"][0] <= n <= table["points"][-1]:
        # Interpolated in log n.
        upper = max(1, bisect_left(table["points"], n))
        low, high = table["points"][upper - 1], table["points"][upper]
        share, column = math.log(n / low) / math.log(high / low), table["dimensions"].index(d)
        below, above = (table["statistics"][reference][row][column] for row in (upper - 1, upper))
        return Statistics(*(a + share * (b - a) for a, b in zip(below, above, strict=True)))
    replicates = min(_MAX_REPLICATES, -(-_CALIBRATION_POINTS // n))
    return drawn_statistics(reference, d, n, k, replicates=replicates, seed=seed, device=device)


@lru_cache(maxsize=1 << 14)
def drawn_statistics(
    reference: Reference, d: int, n: int, k: int, *, replicates: int, seed: int, device: torch.device
) -> Statistics:
    """DANCo's statistics of n reference points of dimension d, averaged over replicates, drawn on the CPU.

    >>> drawn_statistics("ball", 3, 500, 10, replicates=2, seed=0, device=torch.device("cpu")).ratio > 2
    True
    """
    generator = torch.Generator().manual_seed(((seed << 32) + (d << 8) + REFERENCES.index(reference)) % (1 << 63))
    drawn = [statistics_of(SAMPLES[reference](n, d, seed=generator).to(device), k)[1] for _ in range(replicates)]
    return Statistics(*(sum(column) / replicates for column in zip(*drawn, strict=True)))


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    """Statistics by reference, number of points and dimension, as `benchmarks/calibrate_danco.py` writes them."""
    text = files("ldreg.dimension").joinpath("danco_calibration.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def calibration_dimensions(largest: int) -> list[int]:
    """The calibrated dimensions: integers with growing gaps, from 1 to the first that reaches `largest`.

    >>> calibration_dimensions(10)
    [1, 2, 3, 4, 5, 6, 7, 9, 11]
    """
    found = [1]
    for step in count(1):
        if found[-1] >= largest:
            break
        found += [d for d in (round(_NODE_RATIO**step),) if d > found[-1]]
    return found


def _best_fit(
    measured: Statistics, known: list[int], start: int, largest: int, k: int, calibrated: Callable[[int], Statistics]
) -> tuple[float, float]:
    """The smallest divergence from a reference and its dimension, walking downhill from a calibrated dimension."""

    def divergence(index: int) -> float:
        statistics = torch.tensor([calibrated(known[index])], dtype=torch.float64, device="cpu")
        return _divergence(measured, statistics, k).item()

    while start + 1 < len(known) and divergence(start + 1) < divergence(start):
        start += 1
    while start > 0 and divergence(start - 1) < divergence(start):
        start -= 1
    around = known[max(0, start - 1) : start + 2]
    candidates, statistics = _interpolated(around, [calibrated(d) for d in around])
    divergences = _divergence(measured, statistics, k)
    # The last calibrated dimension may exceed the largest; logarithms cost a last digit.
    divergences[candidates > largest * (1 + 1e-9)] = math.inf
    least, at = divergences.min(dim=0)
    return least.item(), min(candidates[at].item(), float(largest))


def _interpolated(dimensions: list[int], statistics: list[Statistics]) -> tuple[Tensor, Tensor]:
    """Dimensions (M,) between the given ones and their statistics (M, 3), linear in log d."""
    rows = [(d, *row) for d, row in zip(dimensions, statistics, strict=True)]
    known = torch.tensor(rows, dtype=torch.float64, device="cpu")
    logarithmic = torch.tensor([True, True, False, True], device="cpu")
    known = torch.where(logarithmic, known.log(), known)
    share = torch.linspace(0, 1, _SEGMENT_STEPS + 1, dtype=torch.float64, device="cpu")[:, None, None]
    between = torch.lerp(known[:-1], known[1:], share).flatten(0, 1) if len(known) > 1 else known
    between = torch.where(logarithmic, between.exp(), between)
    return between[:, 0], between[:, 1:]


def _divergence(measured: Statistics, statistics: Tensor, k: int) -> Tensor:
    """Kullback-Leibler divergence (M,) of the measured distributions from those with the statistics (M, 3)."""
    ratio, angle, concentration = statistics.unbind(dim=1)
    return _ratio_divergence(ratio / measured.ratio, k) + _von_mises_divergence(measured, angle, concentration)


def _ratio_divergence(quotient: Tensor, k: int) -> Tensor:
    """Divergence (M,) of the ratio density of dimension d from that of dimension d * quotient.

    With u = r^d, which is Beta(1, k) distributed, it is the mean of (k-1) ln((1-u) / (1-u^q)) - (q-1) ln u - ln q. The
    first term is bounded, so a midpoint rule is enough; the closed form is an alternating sum that loses digits.
    """
    share = (torch.arange(_QUADRATURE_STEPS, dtype=torch.float64, device="cpu") + 0.5) / _QUADRATURE_STEPS
    log_rest = torch.log1p(-share) / k
    log_u = torch.log(-torch.expm1(log_rest))
    bounded = (log_rest - torch.log(-torch.expm1(quotient[:, None] * log_u))).mean(dim=1)
    harmonic = sum(1 / i for i in range(1, k + 1))
    return (k - 1) * bounded + (quotient - 1) * harmonic - quotient.log()


def _von_mises_divergence(measured: Statistics, angle: Tensor, concentration: Tensor) -> Tensor:
    """Divergence (M,) of the measured von Mises distribution from those given."""
    tau = torch.tensor(measured.concentration, dtype=torch.float64, device="cpu")
    normalizer = _log_bessel(concentration) - _log_bessel(tau)
    return normalizer + _mean_resultant(tau) * (tau - concentration * torch.cos(measured.angle - angle))


def _log_bessel(concentration: Tensor) -> Tensor:
    """The logarithm of the Bessel function I0, which itself overflows near 700."""
    scaled: Tensor = torch.special.i0e(concentration)
    return scaled.log() + concentration
