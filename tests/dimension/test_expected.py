"""Expected LID: the table against fresh Gaussians, and the theory for any covariance against both."""

import math
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import gmean
from tests.points import normal
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
        *((110, 20, 6000), (9, 12, 150), (9, 45, 200), (12, 10, 1000)),
    ],
)
@pytest.mark.parametrize("estimator", ["mom", "mle"])
def test_fresh_gaussians_between_the_nodes_read_what_the_table_says(
    d: int, k: int, n: int, estimator: Calibrated
) -> None:
    """In the pseudocode's convention where its difference of about 1/k shows."""
    convention: Convention = "pseudocode" if k == 10 else "paper"
    found = gaussian_lid(d, k, n, estimator=estimator, convention=convention)
    few = n < 500
    expected = measured(d, k, n, estimator=estimator, convention=convention, sets=20 if few else 4)
    assert found == pytest.approx(expected, rel=0.04 if few else 0.025)
    assert gaussian_dimension(found or 0, k, n, estimator=estimator, convention=convention) == pytest.approx(d)


def test_a_line_and_a_plane_are_read_almost_rightly() -> None:
    # With k free distances, the method of moments reads (k d + 1) / (k - 1) of a uniform ball of d dimensions.
    for d in (1, 2):
        assert gaussian_lid(d, 256, POINTS[-1]) == pytest.approx((256 * d + 1) / 255, rel=0.02)


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


@pytest.mark.parametrize(
    ("name", "n", "dimensions", "k", "options", "room"),
    [
        *((name, n, 100, k, {}, 0.05) for name in SPECTRA for n, k in ((1000, 20), (1000, 64), (5000, 64))),
        *((name, 2000, 64, 32, {"estimator": "mle", "convention": "pseudocode"}, 0.04) for name in ("gentle", "steep")),
        # More dimensions than points.
        *(("flat", 300, 600, 32, {}, 0.12), ("gentle", 500, 512, 32, {}, 0.12), ("steep", 300, 600, 32, {}, 0.12)),
    ],
)
def test_gaussians_of_any_spectrum_read_what_is_expected(
    name: str, n: int, dimensions: int, k: int, options: dict[str, Any], room: float
) -> None:
    x = normal(n, dimensions) * SPECTRA[name][:dimensions].sqrt()
    expected = expected_lid(covariance_eigenvalues(x), k, n, dimensions, **options)
    assert expected == pytest.approx(reading(x, k, **options), rel=room)


@pytest.mark.parametrize(("n", "dimensions"), [(256, 1000), (300, 200), (2000, 30)])
@pytest.mark.parametrize(("spikes", "variance"), [(1, 116.0), (1, 4.0), (5, 50.0)])
def test_a_few_wide_directions_do_not_hide_the_rest(n: int, dimensions: int, spikes: int, variance: float) -> None:
    x = normal(n, dimensions, seed=1)
    x[:, :spikes] *= math.sqrt(variance)
    assert expected_lid(covariance_eigenvalues(x), 64, n, dimensions) == pytest.approx(reading(x, 64), rel=0.12)


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
