import math
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import gmean

from ldreg.dimension.calibration import (
    DIMENSIONS,
    NEIGHBORS,
    POINTS,
    Calibrated,
    _table,
    beyond,
    gaussian_dimension,
    gaussian_lid,
)
from ldreg.dimension.estimators import Convention, estimate_lid


def measured(
    d: int, k: int, n: int, *, estimator: Calibrated = "mom", convention: Convention = "paper", sets: int = 4
) -> float:
    """Geometric-mean LID of Gaussian points themselves, from up to 1000 points of each of some sets."""
    values = []
    for seed in range(sets):
        x = torch.randn(n, d, generator=torch.Generator().manual_seed(1000 + seed), dtype=torch.float64)
        rows = torch.arange(min(n, 1000))
        values.append(estimate_lid(x[rows], k, x, estimator=estimator, convention=convention, self_index=rows).lid)
    return float(gmean(torch.cat(values).numpy()))


@pytest.mark.parametrize(
    ("d", "k", "n"),
    [(1, 20, 1500), (2, 100, 3000), (7, 20, 1500), (7, 50, 6000), (18, 64, 700), (30, 100, 3000), (110, 20, 6000)],
)
@pytest.mark.parametrize("estimator", ["mom", "mle"])
def test_fresh_gaussians_between_the_nodes_read_what_the_table_says(
    d: int, k: int, n: int, estimator: Calibrated
) -> None:
    assert gaussian_lid(d, k, n, estimator=estimator) == pytest.approx(
        measured(d, k, n, estimator=estimator), rel=0.025
    )


def test_fresh_gaussians_of_few_points_read_what_the_table_says() -> None:
    assert gaussian_lid(9, 12, 150) == pytest.approx(measured(9, 12, 150, sets=20), rel=0.03)
    assert gaussian_lid(9, 45, 200) == pytest.approx(measured(9, 45, 200, sets=20), rel=0.04)


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
    assert (table.dimensions, table.neighbors, table.points) == (DIMENSIONS, NEIGHBORS, POINTS)
    for estimator in ("mom", "mle"):
        readings = np.array(table.lid[estimator], dtype=float)
        assert readings.shape == (len(DIMENSIONS), len(NEIGHBORS), len(POINTS))
        assert np.array_equal(np.isnan(readings[0]), np.array(NEIGHBORS)[:, None] * 2 > np.array(POINTS))
        assert (np.diff(readings, axis=0)[~np.isnan(readings[1:])] > 0).all()
    assert gaussian_lid(24, 32, 4096) == pytest.approx(table.lid["mom"][DIMENSIONS.index(24)][2][POINTS.index(4096)])


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


def test_nothing_is_said_of_dimensions_beyond_the_table() -> None:
    assert gaussian_lid(0.9, 64, 1000) is None
    assert gaussian_lid(8193, 64, 1000) is None
    assert gaussian_dimension(5000.0, 64, 1000) is None
    assert gaussian_dimension(0.5, 64, 1000) is None
    assert gaussian_dimension(0.0, 64, 1000) is None
    assert gaussian_dimension(math.nan, 64, 1000) is None


def test_chance_below_a_line_is_a_line() -> None:
    line = gaussian_lid(1, 64, 1000) or math.nan
    assert gaussian_dimension(0.97 * line, 64, 1000) == 1
    assert gaussian_dimension(0.9 * line, 64, 1000) is None


def test_importing_does_not_read_the_table() -> None:
    script = (
        "import ldreg; from ldreg.dimension.calibration import _table, gaussian_lid; "
        "assert not _table.cache_info().currsize; gaussian_lid(5, 64, 1000); assert _table.cache_info().currsize"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_table_is_what_its_script_writes() -> None:
    script = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "calibrate_lid.py"))
    place = DIMENSIONS.index(10)
    generator, known = np.random.default_rng((script["SEED"], place)), script["quantiles"](10)
    for column, n in enumerate(POINTS[:4]):
        for estimator, readings in script["readings"](10, n, generator, known).items():
            kept = np.array([row[column] for row in _table().lid[estimator][place]], dtype=float)
            np.testing.assert_allclose(readings, kept, rtol=1e-3)
