"""What the baselines have in common: their interface, and what they make of unusual input."""

import math

import pytest
import torch
from torch import Tensor, nn

from ldreg.regularizers.covariance import Covariance, VarianceCovariance
from ldreg.regularizers.koleo import KoLeo
from ldreg.regularizers.ldreg import LDReg
from ldreg.regularizers.sigreg import SIGReg

BASELINES = [Covariance, VarianceCovariance, KoLeo, SIGReg]


def build(kind: type[nn.Module], **options: float) -> nn.Module:
    """In evaluation mode, in which SIGReg keeps its directions."""
    return kind(**options).eval()


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def value_and_gradient(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    value = module(x)
    (gradient,) = torch.autograd.grad(value, x)
    return value.detach(), gradient


@pytest.mark.parametrize("kind", BASELINES)
def test_a_scalar_proportional_to_beta(kind: type[nn.Module]) -> None:
    x = normal(12, 5)
    one, three, none = (value_and_gradient(build(kind, beta=beta), x) for beta in (1.0, 3.0, 0.0))
    assert one[0].shape == ()
    assert one[0] != 0
    torch.testing.assert_close(three, (3 * one[0], 3 * one[1]))
    assert none[0] == 0
    assert not none[1].any()


@pytest.mark.parametrize("kind", BASELINES)
def test_the_order_of_rows_does_not_matter(kind: type[nn.Module]) -> None:
    x, module = normal(12, 5, dtype=torch.float64), build(kind)
    value, gradient = value_and_gradient(module, x)
    flipped_value, flipped_gradient = value_and_gradient(module, x.flip(0))
    torch.testing.assert_close(flipped_value, value)
    torch.testing.assert_close(flipped_gradient, gradient.flip(0))


@pytest.mark.parametrize("kind", BASELINES)
@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(8, 4),
        torch.full((8, 4), 0.1),
        torch.eye(8),
        torch.eye(4).repeat(2, 1),
        torch.eye(4)[[0, 0, 0, 1]],
        torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 3.0]]),
        normal(2, 1),
    ],
    ids=["zeros", "constant", "one-hot", "one-hot twice", "some duplicates", "a zero row", "2x1"],
)
def test_finite_on_degenerate_input(kind: type[nn.Module], x: Tensor) -> None:
    value, gradient = value_and_gradient(build(kind), x)
    assert value.isfinite()
    assert gradient.isfinite().all()


CENTERED = [Covariance(1.0), VarianceCovariance(1.0), SIGReg(1.0, num_slices=16, center=True).eval()]


@pytest.mark.parametrize("module", CENTERED)
@pytest.mark.parametrize("constant", [0.1, 1e18, 1e37])
def test_constants_leave_nothing_once_centered(module: nn.Module, constant: float) -> None:
    for rows in (7, 100):
        value, gradient = value_and_gradient(module, torch.full((rows, 4), constant))
        assert value == module(torch.zeros(rows, 4))
        assert not gradient.any()


@pytest.mark.parametrize("module", CENTERED)
def test_an_offset_costs_no_digits(module: nn.Module) -> None:
    x = normal(500, 6) + 1e6
    value, gradient = value_and_gradient(module, x)
    expected, expected_gradient = value_and_gradient(module, x.double())
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=1e-3, atol=1e-7)


def test_nan_is_not_hidden() -> None:
    x = normal(8, 4)
    x[3, 2] = float("nan")
    for kind in (Covariance, VarianceCovariance, SIGReg):
        assert build(kind)(x).isnan()
    with pytest.raises(ValueError, match="NaN or inf"):
        KoLeo()(x)


@pytest.mark.parametrize("kind", BASELINES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(kind: type[nn.Module], dtype: torch.dtype) -> None:
    module, x = build(kind), normal(64, 16).to(dtype)
    value, gradient = value_and_gradient(module, x)
    expected, expected_gradient = value_and_gradient(module, x.float())
    assert value.dtype == torch.float32
    assert gradient.dtype == dtype
    assert value == expected
    assert torch.equal(gradient, expected_gradient.to(dtype))


@pytest.mark.parametrize("kind", BASELINES)
def test_autocast_changes_nothing(kind: type[nn.Module]) -> None:
    module, x = build(kind), normal(64, 16)
    expected = value_and_gradient(module, x)
    x.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x.T).dtype == torch.bfloat16
        value = module(x)
    (gradient,) = torch.autograd.grad(value, x)
    assert value == expected[0]
    assert torch.equal(gradient, expected[1])


@pytest.mark.parametrize("kind", BASELINES)
def test_bad_input(kind: type[nn.Module]) -> None:
    module = build(kind)
    empty = [torch.zeros(shape) for shape in ((5,), (2, 3, 4), (5, 0), (0, 3), (1, 3))]
    for wrong in (*empty, *(torch.zeros(4, 3, dtype=dtype) for dtype in (torch.int64, torch.bool, torch.complex64))):
        with pytest.raises(ValueError, match=r"^representations: expected"):
            module(wrong)
    with pytest.raises(TypeError, match="reference"):
        module(normal(4, 3), reference=normal(4, 3))


@pytest.mark.parametrize("kind", [*BASELINES, LDReg])
@pytest.mark.parametrize("beta", [-0.1, math.nan, math.inf, 10**400, "0.1"], ids=str)
def test_bad_beta(kind: type[nn.Module], beta: float) -> None:
    with pytest.raises(ValueError, match=r"^beta: expected a finite number from 0 on"):
        kind(beta=beta)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [Covariance, VarianceCovariance, KoLeo])
def test_on_the_gpu(kind: type[nn.Module]) -> None:
    module, x = build(kind), normal(128, 32)
    value, gradient = value_and_gradient(module, x)
    on_gpu = x.cuda().requires_grad_()
    with torch.autocast("cuda", dtype=torch.float16):
        found = module(on_gpu)
    found.backward()
    assert on_gpu.grad is not None
    torch.testing.assert_close(found.detach().cpu(), value, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(on_gpu.grad.cpu(), gradient, rtol=1e-3, atol=1e-6)
