"""Effective rank and RankMe against NumPy's decompositions, at every shape, scale and dtype."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.points import normal
from torch import Tensor

from ldreg.dimension import spectrum
from ldreg.dimension.spectrum import covariance_eigenvalues, effective_rank, entropy_rank, rankme

FUNCTIONS = (covariance_eigenvalues, effective_rank, rankme)


def orthonormal(rows: int, columns: int, *, centered: bool = False, seed: int = 0) -> Tensor:
    """Orthonormal columns in float64, each of mean 0 if centered."""
    x = normal(rows, columns, seed=seed, dtype=torch.float64)
    basis: Tensor = torch.linalg.qr(x - x.mean(0) if centered else x).Q
    return basis


def with_singular_values(values: Tensor, rows: int, columns: int, *, centered: bool = False) -> Tensor:
    """A float64 matrix of these singular values, its columns of mean 0 if centered."""
    left = orthonormal(rows, len(values), centered=centered)
    return left @ torch.diag(values) @ orthonormal(columns, len(values), seed=1).T


def reference_rank(values: np.ndarray) -> float:
    """Exp of the entropy of normalized values, term by term."""
    shares = values[values > 0] / values.sum()
    return float(np.prod(shares ** (-shares)))


@pytest.mark.parametrize("shape", [(60, 7), (7, 60), (20, 20), (2, 5), (5, 1), (2, 1)])
def test_eigenvalues_and_ranks_are_those_of_numpy(shape: tuple[int, int]) -> None:
    x = normal(*shape) + 0.3
    wide, found = x.double().numpy(), covariance_eigenvalues(x)
    variances = np.linalg.svd(wide - wide.mean(0), compute_uv=False) ** 2 / (len(wide) - 1)
    variances[variances < 1e-20] = 0
    assert found.shape == (min(shape),)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), variances, rtol=1e-10, atol=1e-13 * variances[0])
    assert bool((found >= 0).all())
    assert bool((found.diff() <= 0).all())
    assert rankme(x).item() == pytest.approx(reference_rank(np.linalg.svd(wide, compute_uv=False)), rel=1e-10)
    assert effective_rank(x).item() == pytest.approx(reference_rank(variances), rel=1e-10)
    assert effective_rank(x).item() == pytest.approx(entropy_rank(found).item(), rel=1e-12)
    whole = (10 * x).round()
    assert rankme(whole.int()).item() == pytest.approx(rankme(whole).item(), rel=1e-10)


@pytest.mark.parametrize(
    ("rows", "columns"), [(400, 2048), (2048, 400), pytest.param(2500, 2048, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_99_equal_directions_count_99(rows: int, columns: int, dtype: torch.dtype) -> None:
    x = with_singular_values(torch.ones(99, dtype=torch.float64), rows, columns, centered=True).to(dtype)
    assert rankme(x).item() == pytest.approx(99, abs=1e-3)
    # Storing in half precision moves variances by a relative 1e-6; the count follows.
    assert effective_rank(x).item() == pytest.approx(99, abs=1e-3 if dtype != torch.float16 else 1e-2)


@pytest.mark.parametrize(("rows", "columns", "rank"), [(500, 300, 40), (300, 500, 150), (1000, 64, 1), (64, 1000, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_low_rank_products_do_not_exceed_their_rank(rows: int, columns: int, rank: int, dtype: torch.dtype) -> None:
    # The product is formed in the dtype itself, which leaves rounding errors in every direction.
    left, right = normal(rows, rank, dtype=dtype), normal(rank, columns, seed=1, dtype=dtype)
    values = np.linalg.svd((left.double() @ right.double()).numpy(), compute_uv=False)[:rank]
    assert rankme(left @ right).item() <= rank + 1e-9
    assert effective_rank(left @ right).item() <= rank + 1e-9
    assert rankme(left @ right).item() == pytest.approx(reference_rank(values), rel=1e-6)


def test_small_but_real_singular_values_count() -> None:
    values = torch.tensor([1.0] + [1e-4] * 200, dtype=torch.float64)
    x = with_singular_values(values, 500, 300)
    for dtype in (torch.float64, torch.float32):
        assert rankme(x.to(dtype)).item() == pytest.approx(reference_rank(values.numpy()), rel=1e-5)


@pytest.mark.parametrize(("rows", "columns"), [(300, 40), (40, 300)])
def test_offset_far_above_the_spread(rows: int, columns: int) -> None:
    x = (1e3 + 1e-2 * normal(rows, columns, dtype=torch.float64)).float()
    exact = x.double().numpy() - 1000  # exact by Sterbenz
    variances = np.linalg.svd(exact - exact.mean(0), compute_uv=False) ** 2 / (rows - 1)
    np.testing.assert_allclose(covariance_eigenvalues(x)[:39].numpy(), variances[:39], rtol=1e-9)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e30])
def test_any_scale(scale: float) -> None:
    x = normal(50, 20) + 0.5
    for function in (effective_rank, rankme):
        assert function(scale * x).item() == pytest.approx(function(x).item(), rel=1e-6)
        for exponent in (-1000, -600, 600, 1000):
            assert function(torch.ldexp(x.double(), torch.tensor(exponent))) == function(x.double())
    torch.testing.assert_close(
        covariance_eigenvalues(scale * x), covariance_eigenvalues(x) * scale**2, rtol=1e-5, atol=0
    )


@pytest.mark.parametrize("shape", [(1000, 3), (3, 1000)])
def test_constant_data_fills_no_dimension(shape: tuple[int, int]) -> None:
    x = torch.full(shape, 0.1)
    assert covariance_eigenvalues(x).tolist() == [0, 0, 0]
    assert effective_rank(x) == effective_rank(torch.zeros(shape)) == rankme(torch.zeros(shape)) == 0
    assert rankme(x).item() == pytest.approx(1)


@pytest.mark.parametrize(("rows", "columns"), [(301, 12), (12, 301)])
def test_blocks_are_bounded_and_change_nothing(rows: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(rows, columns) + 3
    whole = [function(x) for function in FUNCTIONS]
    sizes = []
    widen = spectrum._float64

    def recorded(block: Tensor, scale: float) -> Tensor:
        sizes.append(block.numel())
        return widen(block, scale)

    monkeypatch.setattr(spectrum, "_BLOCK_ELEMENTS", 100)
    monkeypatch.setattr(spectrum, "_float64", recorded)
    torch.testing.assert_close([function(x) for function in FUNCTIONS], whole, rtol=1e-10, atol=1e-14)
    assert max(sizes) <= 100
    assert len(sizes) > 3 * rows * columns // 100


@pytest.mark.parametrize("function", FUNCTIONS)
def test_bad_input(function: Callable[[Tensor], Tensor]) -> None:
    for shape in ((5,), (2, 3, 4), (1, 3), (0, 3), (3, 0)):
        with pytest.raises(ValueError, match=r"^x: expected .*shape"):
            function(torch.zeros(shape))
    for bad in (float("nan"), float("inf"), -float("inf")):
        x = normal(5, 3)
        x[2, 1] = bad
        with pytest.raises(ValueError, match=r"^x: expected finite"):
            function(x)
    with pytest.raises(ValueError, match=r"^x: expected real"):
        function(torch.zeros(5, 3, dtype=torch.complex64))


@pytest.mark.gpu
def test_on_the_gpu() -> None:
    x = normal(500, 64) + 1
    for function in FUNCTIONS:
        found = function(x.cuda())
        assert found.is_cuda
        torch.testing.assert_close(found.cpu(), function(x), rtol=1e-9, atol=1e-12)
