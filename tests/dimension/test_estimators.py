"""Estimators against scikit-dimension, float64 and known dimensions; their formulas are in tests/properties."""

import math
from typing import get_args

import numpy as np
import pytest
import torch
from tests.points import normal

from ldreg.dimension import estimators
from ldreg.dimension.estimators import Convention, Estimator, estimate_from, estimate_lid, lid, mom
from ldreg.dimension.geometry import geometric_mean
from ldreg.dimension.search import Neighbors
from ldreg.dimension.synthetic import SAMPLES

ESTIMATORS: tuple[Estimator, ...] = ("mom", "mle", "tle")


@pytest.mark.parametrize("k", [5, 30])
def test_scikit_dimension_agrees(k: int) -> None:
    skdim = pytest.importorskip("skdim")
    x = normal(300, 8, dtype=torch.float64)
    references = {
        ("mom", "paper"): skdim.id.MOM(),
        ("mle", "pseudocode"): skdim.id.MLE(),
        ("tle", "paper"): skdim.id.TLE(epsilon=0),
    }
    for (estimator, convention), theirs in references.items():
        with np.errstate(all="ignore"):
            expected = theirs.fit(x.numpy(), n_neighbors=k).dimension_pw_
        ours = lid(x, k, estimator=estimator, convention=convention)  # type: ignore[arg-type]
        np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-9, err_msg=estimator)


@pytest.mark.parametrize("convention", get_args(Convention))
def test_every_regular_point_has_a_standard_error(convention: Convention) -> None:
    """Also where all neighbors but the k-th are duplicates, and what the error is a root of rounds to about 0."""
    for k in range(2, 200):
        distances = torch.zeros(1, k)
        distances[0, -1] = 1.7
        value, error = mom(distances, convention=convention)
        assert value.item() == pytest.approx(1 / (k - 1) if convention == "paper" else 0)
        assert math.isnan(error.item()) == (convention == "pseudocode"), k


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_gradients(estimator: Estimator) -> None:
    x = normal(12, 3, dtype=torch.float64).requires_grad_()
    reference = normal(30, 3, seed=1, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda q: lid(q, 5, reference.detach(), estimator=estimator), (x,))
    assert torch.autograd.gradcheck(
        lambda q, r: estimate_lid(q, 5, r, estimator=estimator, reference_grad=True).lid, (x, reference)
    )


def test_points_without_a_likelihood_beside_duplicates_have_no_gradient() -> None:
    x = torch.cat((normal(40, 5, dtype=torch.float64), normal(40, 5, dtype=torch.float64)[:1])).requires_grad_()
    values = lid(x, 6, estimator="mle")
    (grad,) = torch.autograd.grad(geometric_mean(values), x)
    assert grad.isfinite().all()
    for zero in (values == 0, (grad == 0).all(1)):
        assert zero.nonzero().flatten().tolist() == [0, 40]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_degenerate_points_have_no_gradient_and_leave_the_others_theirs(estimator: Estimator) -> None:
    """As in a loss of one's own, the geometric mean, which leaves them out."""
    plain = normal(60, 12, dtype=torch.float64)
    copies, corners = plain[:1].expand(8, -1) - 40, 3 * torch.eye(12, dtype=torch.float64)[:8] + 40
    x = torch.cat((plain, copies, corners)).requires_grad_()
    values = lid(x, 6, estimator=estimator)
    assert values[60:68].tolist() == [0.0] * 8
    assert values[68:].tolist() == [math.inf] * 8
    (grad,) = torch.autograd.grad(geometric_mean(values).log(), x)
    alone = plain.clone().requires_grad_()
    (expected,) = torch.autograd.grad(geometric_mean(lid(alone, 6, estimator=estimator)).log(), alone)
    torch.testing.assert_close(grad, torch.cat((expected, torch.zeros(16, 12, dtype=torch.float64))))


def test_tight_estimate_in_chunks_equals_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(40, 6, dtype=torch.float64)
    whole = estimate_lid(x, 8, estimator="tle")
    monkeypatch.setattr(estimators, "_TLE_BYTES", 4096)
    chunked = estimate_lid(x, 8, estimator="tle")
    torch.testing.assert_close(chunked.lid, whole.lid)
    torch.testing.assert_close(chunked.standard_error, whole.standard_error)


@pytest.mark.parametrize(
    ("estimator", "convention"), [("mom", "paper"), ("mom", "pseudocode"), ("mle", "paper"), ("tle", "paper")]
)
@pytest.mark.parametrize("dim", [2, 8])
def test_standard_error_is_the_spread_over_samples(estimator: Estimator, convention: Convention, dim: int) -> None:
    """The centers of 500 uniform balls, each sampled on its own."""
    generator = torch.Generator().manual_seed(dim)
    y = torch.randn(500, 120, dim, generator=generator, dtype=torch.float64)
    y *= torch.rand(500, 120, 1, generator=generator, dtype=torch.float64) ** (1 / dim) / y.norm(dim=2, keepdim=True)
    distances, order = y.norm(dim=2).topk(25, largest=False)
    found = Neighbors(distances, order + 120 * torch.arange(500).unsqueeze(1))
    values, errors = estimate_from(found, torch.zeros(500, dim), y.flatten(0, 1), estimator, convention)
    assert errors.mean().item() == pytest.approx(values.std().item(), rel=0.2)


# Known bias of the k - 1 mean: geometric means over 10,000 points of a cube, a sphere and a Gaussian.
BANDS = {
    ("mom", 20): {1: (1.00, 1.00, 1.00), 5: (4.72, 5.01, 5.16), 20: (15.4, 16.8, 16.9)},
    ("mom", 64): {
        1: (1.00, 1.00, 1.00),
        2: (1.97, 2.01, 2.03),
        5: (4.54, 4.91, 5.06),
        10: (8.26, 9.08, 9.32),
        20: (14.6, 15.9, 15.8),
        50: (28.7, 30.4, 28.8),
    },
    ("mle", 64): {2: (1.98, 2.02, 2.04), 10: (8.29, 9.11, 9.35), 50: (28.7, 30.5, 28.9)},
}


@pytest.mark.parametrize(
    ("estimator", "k", "dim"),
    [
        pytest.param(*which, dim, marks=[] if (*which, dim) in (("mom", 20, 5), ("mom", 64, 50)) else pytest.mark.slow)
        for which, dims in BANDS.items()
        for dim in dims
    ],
)
def test_known_dimensions(estimator: Estimator, k: int, dim: int) -> None:
    for name, expected in zip(("cube", "sphere", "gaussian"), BANDS[estimator, k][dim], strict=True):
        x = SAMPLES[name](10_000, dim, seed=dim)
        got = geometric_mean(lid(x, k, estimator=estimator, convention="pseudocode")).item()
        assert got == pytest.approx(expected, rel=0.02), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"estimator": "pca"}, "estimator: expected one of mom, mle, tle, got 'pca'"),
        ({"convention": "mean"}, "convention: expected one of paper, pseudocode, got 'mean'"),
        ({"estimator": "tle", "convention": "pseudocode"}, "convention: expected 'paper' with estimator 'tle'"),
        ({"k": 1}, "k: expected at least 2 neighbors"),
        ({"k": 50}, "k: expected an integer from 1 to 49"),
    ],
)
def test_bad_options_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lid(torch.randn(50, 3), **({"k": 5} | options))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("shift", [1.0, 31.0])
def test_paper_scale(shift: float) -> None:
    """8192 points of N(1, 0.02²) in 2048-d, and the same + 30, k = 64: every point within 1e-3 of float64."""
    x = (normal(8192, 2048, dtype=torch.float64) * 0.02 + shift).float()
    exact = lid(x.double(), 64)
    brute = torch.cdist(x[:256].double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist")
    torch.testing.assert_close(exact[:256], mom(brute.sort(dim=1).values[:, 1:65])[0], rtol=1e-9, atol=0)
    torch.testing.assert_close(lid(x, 64).double(), exact, rtol=1e-3, atol=0)


def test_tight_estimate_beside_near_duplicates_is_that_of_float64() -> None:
    z = normal(200, 4)
    x = torch.cat((z, z + normal(200, 4, seed=1) * 1e-5))
    exact = lid(x.double(), 20, estimator="tle")
    torch.testing.assert_close(lid(x, 20, estimator="tle").double(), exact, rtol=1e-3, atol=0)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_scale_of_float64(estimator: Estimator) -> None:
    x = normal(40, 5, dtype=torch.float64)
    for scale in (2.0**-900, 2.0**900):
        torch.testing.assert_close(lid(x * scale, 5, estimator=estimator), lid(x, 5, estimator=estimator))
