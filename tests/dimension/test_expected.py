"""Expected LID: the table against fresh Gaussians, and the theory for any covariance against both."""

import math
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import gmean
from torch import Tensor

from ldreg.dimension.estimators import Convention, estimate_lid
from ldreg.dimension.expected import (
    DIMENSIONS,
    NEIGHBORS,
    POINTS,
    Calibrated,
    _grouped,
    _table,
    beyond,
    expected_lid,
    gaussian_dimension,
    gaussian_lid,
    mean_reading,
)
from ldreg.dimension.spectrum import covariance_eigenvalues


def reading(x: Tensor, k: int, *, estimator: Calibrated = "mom", convention: Convention = "paper") -> float:
    """Geometric-mean LID of up to 1000 of the points."""
    rows = torch.arange(min(len(x), 1000))
    found = estimate_lid(x[rows], k, x, estimator=estimator, convention=convention, self_index=rows).lid
    return float(gmean(found.double().numpy()))


def measured(
    d: int, k: int, n: int, *, estimator: Calibrated = "mom", convention: Convention = "paper", sets: int = 4
) -> float:
    """Geometric-mean LID of Gaussian points themselves, from some sets."""
    generators = (torch.Generator().manual_seed(1000 + seed) for seed in range(sets))
    drawn = (torch.randn(n, d, generator=generator, dtype=torch.float64) for generator in generators)
    return float(gmean([reading(x, k, estimator=estimator, convention=convention) for x in drawn]))


@pytest.mark.parametrize(
    ("d", "k", "n"),
    [
        *((1, 20, 1500), (2, 100, 3000), (7, 20, 1500), (7, 50, 6000), (18, 64, 700), (30, 100, 3000)),
        *((110, 20, 6000), (9, 12, 150), (9, 45, 200)),
    ],
)
@pytest.mark.parametrize("estimator", ["mom", "mle"])
def test_fresh_gaussians_between_the_nodes_read_what_the_table_says(
    d: int, k: int, n: int, estimator: Calibrated
) -> None:
    assert gaussian_lid(d, k, n, estimator=estimator) == pytest.approx(
        measured(d, k, n, estimator=estimator, sets=20 if n < 500 else 4), rel=0.04 if n < 500 else 0.025
    )


@pytest.mark.parametrize("estimator", ["mom", "mle"])
def test_the_other_convention_is_read_too(estimator: Calibrated) -> None:
    expected = measured(12, 10, 1000, estimator=estimator, convention="pseudocode", sets=6)
    found = gaussian_lid(12, 10, 1000, estimator=estimator, convention="pseudocode")
    assert found == pytest.approx(expected, rel=0.02)
    assert gaussian_dimension(found or 0, 10, 1000, estimator=estimator, convention="pseudocode") == pytest.approx(12)


def test_a_line_and_a_plane_are_read_almost_rightly() -> None:
    # With k free distances, the method of moments reads (k d + 1) / (k - 1) of a uniform ball of d dimensions.
    for d in (1, 2):
        assert gaussian_lid(d, 256, POINTS[-1]) == pytest.approx((256 * d + 1) / 255, rel=0.02)


def test_high_dimensions_read_low_and_less_so_among_more_points() -> None:
    readings = [gaussian_lid(100, 64, n) or math.nan for n in (300, 1000, 10_000, 100_000, 1_000_000)]
    assert readings == sorted(readings)
    assert readings[0] < 30
    assert readings[-1] < 60


@pytest.mark.parametrize(("k", "n"), [(8, 128), (32, 128), (64, 10_000), (256, 1024), (20, 1797), (256, POINTS[-1])])
def test_the_dimension_is_the_inverse_of_the_reading(k: int, n: int) -> None:
    for d in (1, 1.5, 2, 3.7, 10, 77, 500, 8192):
        reading = gaussian_lid(d, k, n)
        assert reading is not None
        assert gaussian_dimension(reading, k, n) == pytest.approx(d, rel=1e-9)


def test_nodes_are_read_as_they_are() -> None:
    table = _table()
    assert (table["dimensions"], table["neighbors"], table["points"]) == (DIMENSIONS, NEIGHBORS, POINTS)
    for estimator in ("mom", "mle"):
        readings = np.array(table["lid"][estimator], dtype=float)
        assert readings.shape == (len(DIMENSIONS), len(NEIGHBORS), len(POINTS))
        assert np.array_equal(np.isnan(readings[0]), np.array(NEIGHBORS)[:, None] * 2 > np.array(POINTS))
        assert (np.diff(readings, axis=0)[~np.isnan(readings[1:])] > 0).all()
    assert gaussian_lid(24, 32, 4096) == pytest.approx(table["lid"]["mom"][DIMENSIONS.index(24)][2][POINTS.index(4096)])


@pytest.mark.parametrize(
    ("estimator", "k", "n", "reason"),
    [
        ("tle", 64, 1000, "by mom and mle, not by tle"),
        ("mom", 7, 1000, "k from 8 to 256, not for 7"),
        ("mom", 257, 10_000, "k from 8 to 256, not for 257"),
        ("mom", 20, 127, "128 to 2,097,152 points, not for 127"),
        ("mom", 20, 3_000_000, "128 to 2,097,152 points, not for 3,000,000"),
        ("mle", 64, 255, "k = 64 is more than a quarter of the 255 points"),
    ],
)
def test_nothing_is_said_beyond_the_table(estimator: Calibrated, k: int, n: int, reason: str) -> None:
    assert reason in beyond(estimator, k, n)
    assert gaussian_lid(5, k, n, estimator=estimator) is None
    assert gaussian_dimension(5, k, n, estimator=estimator) is None
    assert gaussian_lid(0.9, 64, 1000) is gaussian_lid(8193, 64, 1000) is None
    for lid in (5000.0, 0.5, 0.0, math.nan):
        assert gaussian_dimension(lid, 64, 1000) is None
    line = gaussian_lid(1, 64, 1000) or math.nan
    assert gaussian_dimension(0.97 * line, 64, 1000) == 1  # lower by no more than chance
    assert gaussian_dimension(0.9 * line, 64, 1000) is None


def test_importing_does_not_read_the_table() -> None:
    script = (
        "import ldreg; from ldreg.dimension.expected import _table, gaussian_lid; "
        "assert not _table.cache_info().currsize; gaussian_lid(5, 64, 1000); assert _table.cache_info().currsize"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_table_is_what_its_script_writes() -> None:
    script = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "calibrate_lid.py"))
    place = DIMENSIONS.index(10)
    generator, known = np.random.default_rng((script["SEED"], place)), script["quantiles"](10)
    for column, n in enumerate(POINTS[:4]):
        for estimator, readings in script["readings"](10, n, generator, known).items():
            kept = np.array([row[column] for row in _table()["lid"][estimator][place]], dtype=float)
            np.testing.assert_allclose(readings, kept, rtol=1e-3)


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


def test_expectations_of_any_scale_and_none_beyond_the_table() -> None:
    eigenvalues = torch.arange(1.0, 50, dtype=torch.float64) ** -1
    usual = expected_lid(eigenvalues, 64, 1000, 49)
    for scale in (1e-200, 1e200):
        assert expected_lid(scale * eigenvalues, 64, 1000, 49) == pytest.approx(usual, rel=1e-9)
    for none in (torch.zeros(4), torch.tensor([math.inf, 1.0]), torch.tensor([math.nan, 1.0])):
        assert expected_lid(none, 64, 1000, 4) is None
    for n, dimensions in ((200, 4), (10_000_000, 4), (300, 8193)):
        assert expected_lid(torch.ones(4), 64, n, dimensions) is None


def test_many_axes_are_grouped_without_loss() -> None:
    spectrum = torch.arange(1.0, 2049, dtype=torch.float64) ** -1
    squares = torch.ones(2048, 3, dtype=torch.float64)
    axes = _grouped(spectrum, squares)
    assert len(axes.spectrum) == len(axes.squares) <= 384
    assert axes.counts.sum() == 2048
    assert torch.allclose(axes.spectrum @ axes.counts, spectrum.sum())
    assert torch.allclose(axes.squares.sum(0), squares.sum(0))
    assert torch.equal(axes.spectrum[:256], spectrum[:256])
