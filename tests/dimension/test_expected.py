import math

import pytest
import torch
from torch import Tensor

from ldreg.dimension.calibration import Calibrated, gaussian_lid
from ldreg.dimension.estimators import Convention, estimate_lid
from ldreg.dimension.expected import _grouped, expected_lid, mean_reading
from ldreg.dimension.spectrum import covariance_eigenvalues

AXES = torch.arange(1.0, 601)
SPECTRA = {
    "flat": torch.ones(600),
    "gentle": AXES**-0.5,
    "hyperbolic": AXES**-1.0,
    "steep": AXES**-2.0,
    "exponential": torch.exp(-AXES / 10),
    "two scales": torch.where(AXES <= 4, 1.0, 1e-4),
}


def points(name: str, n: int, dimensions: int) -> Tensor:
    """Gaussian points whose covariance has this spectrum."""
    spectrum = SPECTRA[name][:dimensions]
    return torch.randn(n, dimensions, generator=torch.Generator().manual_seed(0)) * spectrum.sqrt()


def reading(x: Tensor, k: int, *, estimator: Calibrated = "mom", convention: Convention = "paper") -> float:
    rows = torch.arange(min(len(x), 1000))
    found = estimate_lid(x[rows], k, x, estimator=estimator, convention=convention, self_index=rows).lid
    return found.double().log().mean().exp().item()


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize(("n", "k"), [(1000, 20), (1000, 64), (5000, 64)])
def test_gaussians_of_any_spectrum_read_what_is_expected(name: str, n: int, k: int) -> None:
    x = points(name, n, 100)
    assert expected_lid(covariance_eigenvalues(x), k, n, 100) == pytest.approx(reading(x, k), rel=0.05)


@pytest.mark.parametrize(("n", "dimensions"), [(256, 1000), (300, 200), (2000, 30)])
@pytest.mark.parametrize(("spikes", "variance"), [(1, 116.0), (1, 4.0), (5, 50.0)])
def test_a_few_wide_directions_do_not_hide_the_rest(n: int, dimensions: int, spikes: int, variance: float) -> None:
    x = torch.randn(n, dimensions, generator=torch.Generator().manual_seed(1))
    x[:, :spikes] *= math.sqrt(variance)
    assert expected_lid(covariance_eigenvalues(x), 64, n, dimensions) == pytest.approx(reading(x, 64), rel=0.12)


@pytest.mark.parametrize("name", ["gentle", "steep"])
def test_maximum_likelihood_reads_what_is_expected(name: str) -> None:
    x = points(name, 2000, 64)
    expected = expected_lid(covariance_eigenvalues(x), 32, 2000, 64, estimator="mle", convention="pseudocode")
    assert expected == pytest.approx(reading(x, 32, estimator="mle", convention="pseudocode"), rel=0.04)


@pytest.mark.parametrize(("name", "n", "dimensions"), [("flat", 300, 600), ("gentle", 500, 512), ("steep", 300, 600)])
def test_more_dimensions_than_points_are_not_taken_for_fewer(name: str, n: int, dimensions: int) -> None:
    x = points(name, n, dimensions)
    assert expected_lid(covariance_eigenvalues(x), 32, n, dimensions) == pytest.approx(reading(x, 32), rel=0.12)


def test_a_thin_line_stays_a_line() -> None:
    generator = torch.Generator().manual_seed(3)
    line = torch.randn(2000, 1, generator=generator) @ torch.randn(1, 128, generator=generator)
    noise = 0.001 * torch.randn(2000, 128, generator=generator)
    assert expected_lid(covariance_eigenvalues(line), 64, 2000, 128) == pytest.approx(reading(line, 64), rel=0.04)
    thick = line + noise
    assert expected_lid(covariance_eigenvalues(thick), 64, 2000, 128) == pytest.approx(reading(thick, 64), rel=0.04)


@pytest.mark.parametrize("estimator", ["mom", "mle"])
@pytest.mark.parametrize("d", [2, 5, 16, 64, 256, 1024])
@pytest.mark.parametrize(("k", "n"), [(16, 256), (16, 2_000_000), (64, 10_000), (256, 1024)])
def test_theory_and_table_agree(d: int, k: int, n: int, estimator: Calibrated) -> None:
    found = mean_reading(torch.full((d,), 1 / d, dtype=torch.float64), k, n, estimator)
    assert found == pytest.approx(gaussian_lid(d, k, n, estimator=estimator), rel=0.03)


def test_scale_does_not_matter() -> None:
    eigenvalues = torch.arange(1.0, 50, dtype=torch.float64) ** -1
    values = [expected_lid(scale * eigenvalues, 64, 1000, 49) for scale in (1.0, 1e-200, 1e200)]
    assert values[1] == pytest.approx(values[0], rel=1e-9)
    assert values[2] == pytest.approx(values[0], rel=1e-9)


def test_many_axes_are_grouped_without_loss() -> None:
    spectrum = torch.arange(1.0, 2049, dtype=torch.float64) ** -1
    squares = torch.ones(2048, 3, dtype=torch.float64)
    axes = _grouped(spectrum, squares)
    assert len(axes.spectrum) == len(axes.squares) <= 384
    assert axes.counts.sum() == 2048
    assert torch.allclose(axes.spectrum @ axes.counts, spectrum.sum())
    assert torch.allclose(axes.squares.sum(0), squares.sum(0))
    assert torch.equal(axes.spectrum[:256], spectrum[:256])


@pytest.mark.parametrize("eigenvalues", [torch.zeros(4), torch.tensor([math.inf, 1.0]), torch.tensor([math.nan, 1.0])])
def test_no_covariance_no_expectation(eigenvalues: Tensor) -> None:
    assert expected_lid(eigenvalues, 64, 1000, 4) is None


def test_nothing_is_expected_beyond_the_table() -> None:
    assert expected_lid(torch.ones(4), 64, 200, 4) is None
    assert expected_lid(torch.ones(4), 64, 10_000_000, 4) is None
    assert expected_lid(torch.ones(300), 64, 300, 8193) is None
