"""The paper's theorems by numeric integration and minimization; the formulas under test appear on one side only."""

import math
from collections.abc import Callable

import pytest
import torch
from scipy import integrate, optimize

from ldreg.dimension import geometry

LIDS = torch.tensor([0.7, 1.5, 3.0, 12.0, 40.0], dtype=torch.float64)


def density(r: float, theta: float, w: float) -> float:
    """H'(r) of the tail distribution H(r) = (r/w)^θ on [0, w]."""
    return theta / w * math.pow(r / w, theta - 1)


def fisher_information(theta: float, w: float) -> float:
    """E[(∂/∂θ ln H')²] with the score by a central difference."""

    def integrand(r: float) -> float:
        step = 1e-5 * theta
        score = (math.log(density(r, theta + step, w)) - math.log(density(r, theta - step, w))) / (2 * step)
        return score**2 * density(r, theta, w)

    return float(integrate.quad(integrand, 0, w, limit=200)[0])


def kl_divergence(a: float, b: float, w: float) -> float:
    def integrand(r: float) -> float:
        return density(r, a, w) * math.log(density(r, a, w) / density(r, b, w))

    return float(integrate.quad(integrand, 0, w, limit=200)[0])


@pytest.mark.parametrize(("a", "b", "w"), [(1.2, 3.0, 1.0), (5.0, 2.0, 0.1), (4.0, 4.0, 2.0)])
def test_lemma_1_fisher_rao_distance_is_the_arc_length(a: float, b: float, w: float) -> None:
    length = abs(integrate.quad(lambda theta: math.sqrt(fisher_information(theta, w)), a, b)[0])
    assert geometry.fisher_rao(a, b).item() == pytest.approx(length, rel=1e-5, abs=1e-12)


@pytest.mark.parametrize(("a", "b"), [(1.5, 4.0), (4.0, 1.5), (10.0, 11.0)])
def test_lemma_2_kl_distance_is_the_root_of_the_divergence(a: float, b: float) -> None:
    assert geometry.kl_distance(a, b).item() == pytest.approx(math.sqrt(kl_divergence(a, b, 0.5)), rel=1e-5)


def frechet_mean_by_minimization(distance: Callable[[float], torch.Tensor]) -> float:
    found = optimize.minimize_scalar(
        lambda t: distance(math.exp(t)).square().mean().item(),
        bounds=(-3, 6),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return math.exp(found.x)


def test_theorem_2_frechet_mean_is_the_geometric_mean_and_its_value_the_variance() -> None:
    mean = frechet_mean_by_minimization(lambda t: geometry.fisher_rao(t, LIDS))
    assert geometry.frechet_mean(LIDS).item() == pytest.approx(mean, rel=1e-6)
    assert geometry.geometric_mean(LIDS).item() == pytest.approx(mean, rel=1e-6)
    spread = geometry.fisher_rao(mean, LIDS).square().mean().item()
    assert geometry.frechet_variance(LIDS).item() == pytest.approx(spread, rel=1e-6)


def test_theorem_3_kl_gives_the_arithmetic_and_reverse_kl_the_harmonic_mean() -> None:
    forward = frechet_mean_by_minimization(lambda t: geometry.kl_distance(t, LIDS))
    reverse = frechet_mean_by_minimization(lambda t: geometry.kl_distance(LIDS, t))
    assert geometry.arithmetic_mean(LIDS).item() == pytest.approx(forward, rel=1e-6)
    assert geometry.harmonic_mean(LIDS).item() == pytest.approx(reverse, rel=1e-6)


def test_kl_distance_near_equality_keeps_its_digits() -> None:
    a, b = torch.tensor(7.0), torch.tensor(7.0 * (1 + 1e-5))
    excess = b.item() / a.item() - 1  # of the numbers as float32 has them
    exact = math.sqrt(excess**2 / 2 - excess**3 / 3)
    assert geometry.kl_distance(a, b).item() == pytest.approx(exact, rel=1e-6)
    assert geometry.kl_distance(a, a) == 0


def test_degenerate_values() -> None:
    assert geometry.fisher_rao(0.0, 0.0) == geometry.fisher_rao(math.inf, math.inf) == 0
    assert geometry.fisher_rao(0.0, 1.0) == geometry.fisher_rao(1.0, math.inf) == math.inf
    values = torch.cat((LIDS, torch.tensor([0.0, math.inf, math.nan], dtype=torch.float64)))
    for statistic in (
        geometry.geometric_mean,
        geometry.arithmetic_mean,
        geometry.harmonic_mean,
        geometry.frechet_variance,
    ):
        assert statistic(values) == statistic(LIDS)
        assert statistic(torch.tensor([0.0, math.inf])).isnan()
