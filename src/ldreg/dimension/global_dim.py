"""Global intrinsic dimension: one number for a whole set of points (TwoNN, DANCo)."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch

from ldreg.dimension.danco_calibration import REFERENCES, Reference, calibrated_statistics
from ldreg.dimension.danco_fit import best_fit, first_node
from ldreg.dimension.danco_statistics import Statistics, as_points, distinct_neighbors, standardized, statistics_of

GlobalEstimator = Literal["danco", "twonn"]


def twonn(x: Any, *, discard: float = 0.1) -> float:
    """Global dimension from the ratio of the second to the first neighbor distance (TwoNN, Facco et al. 2017).

    Repeated rows count once; points whose first neighbor is still at distance 0 are left out. The largest ratios, a
    share `discard` of all, are left out of the fit of a line through the origin.

    Args:
        x: points (N, D), anything that torch.as_tensor takes.
        discard: share of the largest ratios that the fit leaves out, from 0 to below 1.

    Raises:
        ValueError: x is no finite real matrix, fewer than 3 points are usable, or all neighbors are equally far.

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
    # Never the largest, at which the empirical distribution function is 1 and the logarithm of the rest infinite.
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
    x: Any,
    *,
    k: int = 10,
    references: Sequence[Reference] = REFERENCES,
    max_points: int = 5000,
    seed: int = 0,
) -> float:
    """Global dimension from the concentration of neighbor distances and angles (DANCo, Ceruti et al. 2014).

    Three statistics of the points (a maximum-likelihood dimension from the ratio of the nearest to the (k+1)-th
    neighbor distance, mean and concentration of the angles between the k neighbors) are compared, by Kullback-Leibler
    divergence, with those of samples of the same size and known dimension. The result is the dimension at which the
    nearest sample lies, interpolated between integers; it is at least 1 and at most D.

    Ceruti et al. calibrate with one uniform sample per dimension, which misses the dimension of others by up to 10 %
    (5 Gaussian dimensions read as 5.4 or more). Here each dimension has several references, and the one that fits best
    is taken; `references=("ball",)` is a single one. Distributions unlike every reference (skewed, heavy-tailed, far
    from isotropic) can still be off by 10 to 30 % at N = 2000 where d is 20 or more.

    For k = 10, 32 to 5000 points and dimensions up to 198 the references are read from a table; beyond, they are drawn
    on the first call and kept for later ones. The result depends on the arguments alone. Repeated rows count once.

    Args:
        x: points (N, D), anything that torch.as_tensor takes.
        k: neighbors per point, at least 3; at least k + 2 distinct points are needed.
        references: what the points are compared with.
        max_points: of more points than this, a random sample of that many is used.
        seed: of that sample, and of references that are drawn.

    Raises:
        ValueError: x is no finite real matrix, has too few distinct points, or all its neighbors are equally far; k,
            references or max_points out of range.

    >>> from ldreg.dimension.synthetic import cube
    >>> round(danco(cube(1000, 3, ambient=8)))
    3
    """
    _check_danco(k, references, max_points)
    points = as_points(x)
    if len(points) > max_points:
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(len(points), generator=generator, device="cpu")[:max_points]
        points = points[chosen.to(points.device)]
    points, measured = statistics_of(standardized(points), k)

    def calibrated(reference: Reference, d: int) -> Statistics:
        return calibrated_statistics(reference, d, len(points), k, seed, points.device)

    start = first_node(measured.ratio, points.shape[1], partial(calibrated, references[0]))
    fits = (best_fit(measured, start, points.shape[1], k, partial(calibrated, name)) for name in references)
    return min(fits)[1]


ESTIMATORS: dict[GlobalEstimator, Callable[[Any], float]] = {"danco": danco, "twonn": twonn}


def global_dimension(x: Any, *, estimator: GlobalEstimator = "danco") -> float:
    """Global intrinsic dimension of points (N, D) by the named estimator, with its defaults: see `danco`, `twonn`.

    Raises:
        ValueError: an unknown estimator, and what the estimator raises.

    >>> from ldreg.dimension.synthetic import sphere
    >>> round(global_dimension(sphere(1000, 2), estimator="twonn"))
    2
    """
    if estimator not in ESTIMATORS:
        raise ValueError(f"estimator: expected one of {list(ESTIMATORS)}, got {estimator!r}")
    return ESTIMATORS[estimator](x)


def _check_danco(k: int, references: Sequence[Reference], max_points: int) -> None:
    if k < 3:
        raise ValueError(f"k: expected at least 3 neighbors (angles between 2 have no concentration), got {k}")
    if max_points < k + 2:
        raise ValueError(f"max_points: expected at least k + 2 = {k + 2}, got {max_points}")
    if not references or not set(references) <= set(REFERENCES):
        raise ValueError(f"references: expected one or more of {list(REFERENCES)}, got {references!r}")
