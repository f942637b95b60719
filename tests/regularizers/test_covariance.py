import numpy as np
import pytest
import torch
from torch import Tensor

from ldreg.regularizers.covariance import Covariance, VarianceCovariance


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def correlated(rows: int = 40, columns: int = 6) -> Tensor:
    """Standard deviations on both sides of 1, correlated, off center."""
    return normal(rows, columns) @ normal(columns, columns, seed=1) * 0.5 + 3


def covariance_reference(x: Tensor) -> float:
    matrix = np.cov(x.numpy(), rowvar=False)
    size = len(matrix)
    return float(sum(matrix[i, j] ** 2 for i in range(size) for j in range(size) if i != j) / size)


def variance_reference(x: Tensor, gamma: float, epsilon: float) -> float:
    deviations = [float(np.sqrt(np.var(column, ddof=1) + epsilon)) for column in x.numpy().T]
    return sum(max(0.0, gamma - deviation) for deviation in deviations) / len(deviations)


@pytest.mark.parametrize("shape", [(40, 6), (5, 12), (2, 3)])
def test_covariance_against_numpy(shape: tuple[int, int]) -> None:
    x = correlated(*shape)
    assert Covariance()(x).item() == pytest.approx(0.01 * covariance_reference(x), rel=1e-12)  # the paper's beta
    assert Covariance(0.7)(x).item() == pytest.approx(0.7 * covariance_reference(x), rel=1e-12)
    assert Covariance(0.7)(x.float()).item() == pytest.approx(0.7 * covariance_reference(x), rel=1e-4)


@pytest.mark.parametrize(("gamma", "epsilon"), [(1.0, 1e-4), (2.0, 1e-4), (1.0, 0.3)])
def test_variance_and_covariance_against_numpy(gamma: float, epsilon: float) -> None:
    x = correlated()
    assert 0 < (x.std(0) < 1).sum() < 6
    expected = 0.7 * (covariance_reference(x) + variance_reference(x, gamma, epsilon))
    assert VarianceCovariance(0.7, gamma=gamma, epsilon=epsilon)(x).item() == pytest.approx(expected, rel=1e-12)


def test_hand_computed() -> None:
    # Both variances are 2, the covariance is 2: (2^2 + 2^2) / 2. Standard deviations fall short of 3 by 3 - sqrt(2).
    x = torch.tensor([[-1.0, -1.0], [1.0, 1.0]])
    assert Covariance(1.0)(x).item() == pytest.approx(4)
    assert VarianceCovariance(1.0, gamma=3.0, epsilon=1e-12)(x).item() == pytest.approx(4 + 3 - 2**0.5, rel=1e-6)


def test_uncorrelated_dimensions_cost_nothing() -> None:
    # A large variance times small covariances: the diagonal must not leave rounding behind. Powers of two: all products
    # are exact, whether the processor fuses multiplication and addition or not.
    big, small = 2.0**10, 2.0**-10
    x = torch.tensor([[big, small], [big, -small], [-big, small], [-big, -small]])
    assert Covariance(1.0)(x).item() == 0


@pytest.mark.parametrize("module", [Covariance(), VarianceCovariance()])
def test_an_offset_does_not_matter(module: torch.nn.Module) -> None:
    x = correlated()
    torch.testing.assert_close(module(x + 1e3), module(x), rtol=1e-8, atol=0)


@pytest.mark.parametrize("module", [Covariance(), VarianceCovariance()])
def test_gradcheck(module: torch.nn.Module) -> None:
    assert torch.autograd.gradcheck(module, correlated(7, 4).requires_grad_())


def test_bad_options() -> None:
    with pytest.raises(ValueError, match=r"^gamma: expected"):
        VarianceCovariance(gamma=-1)
    for epsilon in (0.0, -1e-4, float("nan")):
        with pytest.raises(ValueError, match=r"^epsilon: expected"):
            VarianceCovariance(epsilon=epsilon)
