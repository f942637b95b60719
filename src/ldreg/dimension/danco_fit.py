"""The dimension at which calibrated statistics come closest to measured ones, by Kullback-Leibler divergence."""

import math
from bisect import bisect_left
from collections.abc import Callable

import torch
from torch import Tensor

from ldreg.dimension.danco_calibration import calibration_dimensions
from ldreg.dimension.danco_statistics import Statistics, mean_resultant

_SEGMENT_STEPS = 256
_QUADRATURE_STEPS = 256


def first_node(ratio: float, largest: int, calibrated: Callable[[int], Statistics]) -> int:
    """Index of a node whose calibrated ratio dimension is near the measured one."""
    known = calibration_dimensions(largest)
    index, guess = 0, ratio
    for _ in range(3):
        index = min(bisect_left(known, guess), len(known) - 1)
        guess = known[index] * ratio / calibrated(known[index]).ratio
    return index


def best_fit(
    measured: Statistics, start: int, largest: int, k: int, calibrated: Callable[[int], Statistics]
) -> tuple[float, float]:
    """The least divergence from a reference, and the dimension where it is reached, walking downhill from a node."""
    known = calibration_dimensions(largest)

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
    # The last node may lie beyond the largest dimension; going through logarithms costs a last digit.
    divergences[candidates > largest * (1 + 1e-9)] = math.inf
    least, at = divergences.min(dim=0)
    return least.item(), min(candidates[at].item(), float(largest))


def _interpolated(dimensions: list[int], statistics: list[Statistics]) -> tuple[Tensor, Tensor]:
    """Dimensions (M,) between the given ones and their statistics (M, 3), straight in log d."""
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

    With u = r^d, Beta(1, k) distributed, it is the mean of (k-1) ln((1-u) / (1-u^q)) - (q-1) ln u - ln q. The first
    term is bounded, so a midpoint rule does; the closed form is an alternating sum that loses its digits as k grows.
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
    return normalizer + mean_resultant(tau) * (tau - concentration * torch.cos(measured.angle - angle))


def _log_bessel(concentration: Tensor) -> Tensor:
    """The logarithm of I0, which itself overflows near 700."""
    scaled: Tensor = torch.special.i0e(concentration)
    return scaled.log() + concentration
