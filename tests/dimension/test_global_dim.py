"""TwoNN and DANCo against closed forms, numeric integrals, scikit-dimension and samples of known dimension."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, special, stats

from ldreg.dimension.global_dim import (
    ESTIMATORS,
    REFERENCES,
    GlobalEstimator,
    Reference,
    Statistics,
    _concentration,
    _ratio_dimension,
    _ratio_divergence,
    _von_mises_divergence,
    calibrated_statistics,
    calibration_dimensions,
    danco,
    drawn_statistics,
    global_dimension,
    twonn,
)
from ldreg.dimension.synthetic import SAMPLES, ball, cube, gaussian, local_collapse, sphere

CPU = torch.device("cpu")


def test_twonn_by_hand() -> None:
    # On the line, 0, 1, 3, 7 have ratios 3/1, 2/1, 3/2, 6/4; the largest is discarded.
    logs = [math.log(1.5), math.log(1.5), math.log(2)]
    heights = [-math.log(1 - share) for share in (0.25, 0.5, 0.75)]
    slope = sum(a * b for a, b in zip(logs, heights, strict=True)) / sum(a * a for a in logs)
    assert twonn([[0.0], [1.0], [3.0], [7.0]]) == pytest.approx(slope, rel=1e-6)
    x = cube(300, 2, seed=42)  # the largest ratio has no height
    assert twonn(x, discard=0.0) == pytest.approx(twonn(x, discard=1 / 300), rel=1e-12)


@pytest.mark.parametrize(("d", "tolerance"), [(1, 0.05), (2, 0.05), (5, 0.08)])
def test_twonn_on_known_dimensions(d: int, tolerance: float) -> None:
    assert twonn(sphere(4000, d, ambient=10, seed=43)) == pytest.approx(d, rel=tolerance)


@pytest.mark.parametrize(("k", "d"), [(3, 1.3), (10, 7.0), (30, 60.0)])
def test_ratio_dimension_maximizes_the_likelihood(k: int, d: float) -> None:
    log_ratio = np.log(stats.beta(1, k).rvs(500, random_state=0)) / d

    def negative_log_likelihood(candidate: float) -> float:
        densities = np.log(candidate) + (candidate - 1) * log_ratio + (k - 1) * np.log(-np.expm1(candidate * log_ratio))
        return -float(densities.sum())

    best = optimize.minimize_scalar(negative_log_likelihood, bounds=(d / 2, d * 2), options={"xatol": 1e-9}).x
    assert _ratio_dimension(torch.from_numpy(log_ratio), k) == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("tau", [1e-3, 0.3, 1.0, 20.0, 900.0, 1e6])
def test_concentration_inverts_the_ratio_of_bessel_functions(tau: float) -> None:
    assert _concentration(special.ive(1, tau) / special.ive(0, tau)) == pytest.approx(tau, rel=1e-6)


@pytest.mark.parametrize(("k", "d", "other"), [(3, 2.0, 2.5), (10, 8.0, 10.0), (10, 20.0, 12.0), (40, 5.0, 6.0)])
def test_ratio_divergence_is_the_integral(k: int, d: float, other: float) -> None:
    def log_density(r: float, dimension: float) -> float:
        rest = (k - 1) * math.log(-math.expm1(dimension * math.log(r)))
        return math.log(k * dimension) + (dimension - 1) * math.log(r) + rest

    def integrand(r: float) -> float:
        return math.exp(log_density(r, d)) * (log_density(r, d) - log_density(r, other))

    expected = integrate.quad(integrand, 0, 1, epsabs=1e-10)[0]
    found = _ratio_divergence(torch.tensor([other / d], dtype=torch.float64), k).item()
    assert found == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(
    ("nu", "tau", "other_nu", "other_tau"), [(1.5, 2.0, 1.4, 5.0), (1.2, 90.0, 1.25, 60.0), (1.0, 5000.0, 1.0, 4000.0)]
)
def test_von_mises_divergence_is_the_integral(nu: float, tau: float, other_nu: float, other_tau: float) -> None:
    p, q = stats.vonmises(tau, loc=nu), stats.vonmises(other_tau, loc=other_nu)
    expected = integrate.quad(lambda t: p.pdf(t) * (p.logpdf(t) - q.logpdf(t)), nu - math.pi, nu + math.pi)[0]
    arguments = (torch.tensor([value], dtype=torch.float64) for value in (other_nu, other_tau))
    assert _von_mises_divergence(Statistics(1.0, nu, tau), *arguments).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize(("n", "d", "replicates"), [(100, 3, 40), (1000, 22, 5)])
def test_the_table_holds_what_a_fresh_draw_gives(reference: Reference, n: int, d: int, replicates: int) -> None:
    # Neither number of points is in the table, so this is its interpolation too.
    table = calibrated_statistics(reference, d, n, 10, 0, CPU)
    drawn = drawn_statistics(reference, d, n, 10, replicates=replicates, seed=77, device=CPU)
    assert table != drawn
    assert table == pytest.approx(drawn, rel=0.025)


def test_the_table_covers_the_dimensions_that_are_walked() -> None:
    known = calibration_dimensions(150)
    assert known[:6] == [1, 2, 3, 4, 5, 6]
    assert all(low < high <= math.ceil(1.5 * low) for low, high in pairwise(known[2:]))
    drawn_statistics.cache_clear()
    danco(gaussian(600, 40, seed=44))
    assert drawn_statistics.cache_info().misses == 0


@pytest.mark.parametrize(
    ("name", "n", "d", "ambient", "tolerance"),
    [
        *(
            (name, 2000, d, some, 0.06)
            for name in SAMPLES
            for d in (2, 5, 10, 20, 50)
            for some in (None, 2 * d + 1, 100)
        ),
        *((name, n, d, 120, room) for name in SAMPLES for d in (3, 15, 80) for n, room in ((500, 0.12), (1000, 0.08))),
        pytest.param("sphere", 1000, 250, 400, 0.08, marks=pytest.mark.slow),  # a dimension beyond the table
    ],
)
def test_danco_on_known_dimensions(name: str, n: int, d: int, ambient: int | None, tolerance: float) -> None:
    assert danco(SAMPLES[name](n, d, ambient=ambient, seed=51)) == pytest.approx(d, rel=tolerance)


def test_a_fixed_sample_of_many_points_is_taken() -> None:
    x = cube(3000, 4, ambient=6, seed=63)
    sampled = danco(x, max_points=1000)
    assert sampled == danco(x, max_points=1000)
    assert len({sampled, danco(x, max_points=1000, seed=1), danco(x)}) == 3


def test_scikit_dimension_agrees() -> None:
    """On TwoNN, and on DANCo with one reference, as it has, where that is right."""
    skdim = pytest.importorskip("skdim")
    x = gaussian(700, 6, ambient=12, seed=41, dtype=torch.float64)
    for discard in (0.1, 0.3):
        expected = skdim.id.TwoNN(discard_fraction=discard).fit(x.numpy()).dimension_
        assert twonn(x, discard=discard) == pytest.approx(expected, rel=1e-9)
    x = ball(1000, 4, ambient=10, seed=62, dtype=torch.float64)
    expected = skdim.id.DANCo(k=10, ver="DANCoFit").fit(x.numpy()).dimension_
    assert danco(x, references=("ball",)) == pytest.approx(float(expected), rel=0.05)


def test_danco_at_a_number_of_neighbors_or_points_beyond_the_table() -> None:
    drawn_statistics.cache_clear()
    assert danco(cube(400, 4, ambient=6, seed=55), k=15) == pytest.approx(4, rel=0.1)
    assert danco(gaussian(28, 2, seed=55)) == pytest.approx(2, abs=0.6)
    assert drawn_statistics.cache_info().misses > 0


def test_danco_in_the_plane_runs_from_one_to_two() -> None:
    angle = 0.7
    line = cube(1500, 1, seed=56) * torch.tensor([[math.cos(angle), math.sin(angle)]])
    assert danco(line) == pytest.approx(1, abs=0.04)
    assert danco(cube(1500, 2, seed=57)) == pytest.approx(2, abs=0.06)
    widths = [0.02, 0.002, 0.0003]
    strips = [danco(cube(1500, 2, seed=58) * torch.tensor([1.0, width])) for width in widths]
    assert strips == sorted(strips, reverse=True)
    assert strips[0] > 1.9
    assert 1.4 < strips[1] < 1.7
    assert strips[2] < 1.2
    assert danco(gaussian(300, 1, seed=59)) == 1.0
    assert 1.65 < danco(local_collapse(2000, 1.0, seed=60)) < 2
    assert twonn(local_collapse(2000, 1.0, seed=60)) > 1.75
    assert 1 <= danco(cube(12, 2)) <= 2  # the fewest points


def test_one_reference_is_the_original_and_misses_the_gaussian() -> None:
    x = gaussian(2000, 5, seed=61)
    y = gaussian(2000, 5, ambient=20, seed=61)
    assert danco(x, references=("ball",)) == pytest.approx(5, rel=1e-9)  # at most D
    assert danco(y, references=("ball",)) > 5.25
    assert danco(y) == pytest.approx(5, rel=0.04)


FEW = [[0.0], [1.0], [3.0], [7.0]]


BAD_POINTS: list[tuple[torch.Tensor, str]] = [
    *((torch.zeros(shape), "non-empty matrix") for shape in ((20,), (20, 3, 2), (0, 3), (20, 0))),
    *((torch.zeros(20, 3, dtype=dtype), "real numbers") for dtype in (torch.complex64, torch.bool)),
    *((torch.full((20, 3), value), "finite numbers") for value in (math.nan, -math.inf)),
    (torch.full((200, 3), 4.0), "distinct points, got 1"),
    (torch.eye(40), "neighbors at different distances"),
]


@pytest.mark.parametrize(
    ("function", "x", "options", "message"),
    [
        *((function, x, {}, f"^x: expected .*{problem}") for function in (twonn, danco) for x, problem in BAD_POINTS),
        (twonn, FEW[:2], {}, "^x: expected at least 3"),
        (twonn, FEW[:2] * 2, {}, "^x: expected at least 3 distinct points, got 2"),
        (twonn, FEW, {"discard": 0.7}, "^x: expected at least 3 usable points, 2 of them kept, got 4, 1 kept"),
        *((twonn, FEW, {"discard": share}, "^discard: expected") for share in (-0.1, 1.0, math.nan)),
        (danco, cube(11, 2), {}, "^x: expected at least 12 distinct points, got 11"),
        (danco, cube(50, 2), {"k": 2}, "^k: expected at least 3"),
        (danco, cube(50, 2), {"max_points": 11}, r"^max_points: expected at least k \+ 2 = 12, got 11"),
        *((danco, cube(50, 2), {"references": names}, "^references: expected") for names in ((), ("torus",))),
        (global_dimension, cube(50, 2), {"estimator": "pca"}, "^estimator: expected one of"),
    ],
)
def test_wrong_arguments_are_named(function: Any, x: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        function(x, **options)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_invariance_to_shift_scale_rotation_and_order(estimator: GlobalEstimator) -> None:
    x = gaussian(500, 4, ambient=7, seed=66, dtype=torch.float64)
    expected = global_dimension(x, estimator=estimator)
    rotation = torch.linalg.qr(gaussian(7, 7, seed=67, dtype=torch.float64)).Q
    order = torch.randperm(500, generator=torch.Generator().manual_seed(0))
    moved = [x + 1000, x * 1e-12, x * 1e12, x @ rotation, x[order]]
    for changed in (*moved, *((x * scale).float() for scale in (1e-12, 1e12)), (x + 100).float()):
        assert global_dimension(changed, estimator=estimator) == pytest.approx(expected, rel=3e-3)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_what_it_takes(estimator: GlobalEstimator) -> None:
    whole, state = (1000 * gaussian(300, 5, seed=70)).round(), torch.get_rng_state()
    before = whole.clone()
    expected = global_dimension(whole, estimator=estimator)
    assert isinstance(expected, float)
    assert expected == ESTIMATORS[estimator](whole)
    drawn_statistics.cache_clear()
    assert global_dimension(whole, estimator=estimator) == expected
    assert torch.equal(whole, before)
    assert torch.equal(torch.get_rng_state(), state)
    repeated = torch.cat([whole, whole, whole[:20].repeat(30, 1)])
    taken: list[Any] = [whole.numpy(), whole.tolist(), whole.int(), whole.clone().requires_grad_(), repeated]
    for x in taken:
        assert global_dimension(x, estimator=estimator) == pytest.approx(expected, rel=3e-3)
    for dtype in (torch.float16, torch.bfloat16):
        narrow = gaussian(400, 5, seed=69, dtype=dtype)
        assert global_dimension(narrow, estimator=estimator) == global_dimension(narrow.float(), estimator=estimator)


@pytest.mark.gpu
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_gpu_gives_the_same(estimator: GlobalEstimator) -> None:
    x = gaussian(1000, 6, ambient=20, seed=72)
    expected = global_dimension(x, estimator=estimator)
    assert global_dimension(x.cuda(), estimator=estimator) == pytest.approx(expected, rel=3e-3)
