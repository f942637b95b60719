"""The regularizers other than LDReg: values against plain references, and what they make of unusual input."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from tests.points import normal
from torch import Tensor, nn

from ldreg.regularizers import Covariance, KoLeo, LDReg, SIGReg, VarianceCovariance
from ldreg.regularizers.baselines import epps_pulley

BASELINES = [Covariance, VarianceCovariance, KoLeo, SIGReg]


def wide(*shape: int, seed: int = 0) -> Tensor:
    return normal(*shape, seed=seed, dtype=torch.float64)


def build(kind: type[nn.Module], **options: float) -> nn.Module:
    """In evaluation mode, in which SIGReg keeps its directions."""
    return kind(**options).eval()


def value_and_gradient(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    value = module(x)
    (gradient,) = torch.autograd.grad(value, x)
    return value.detach(), gradient


def covariance_reference(x: Tensor) -> float:
    matrix = np.cov(x.numpy(), rowvar=False)
    return float((np.square(matrix).sum() - np.square(np.diag(matrix)).sum()) / len(matrix))


def variance_reference(x: Tensor, gamma: float, epsilon: float) -> float:
    deviations = np.sqrt(np.var(x.numpy(), axis=0, ddof=1) + epsilon)
    return float(np.maximum(0.0, gamma - deviations).mean())


@pytest.mark.parametrize("shape", [(40, 6), (5, 12), (2, 3)])
@pytest.mark.parametrize(("gamma", "epsilon"), [(1.0, 1e-4), (2.0, 1e-4), (1.0, 0.3)])
def test_covariance_and_variance_against_numpy(shape: tuple[int, int], gamma: float, epsilon: float) -> None:
    """Of columns whose standard deviations lie on both sides of 1, correlated and off center."""
    x = wide(*shape) @ wide(shape[1], shape[1], seed=1) * 0.5 + 3
    covariance = covariance_reference(x)
    assert Covariance()(x).item() == pytest.approx(0.01 * covariance, rel=1e-12)  # the paper's beta
    assert Covariance(0.7)(x.float()).item() == pytest.approx(0.7 * covariance, rel=1e-4)
    both = VarianceCovariance(0.7, gamma=gamma, epsilon=epsilon)(x)
    assert both.item() == pytest.approx(0.7 * (covariance + variance_reference(x, gamma, epsilon)), rel=1e-12)


def test_uncorrelated_dimensions_cost_nothing() -> None:
    # A large variance times small covariances: the diagonal must not leave rounding behind. Powers of two: all products
    # are exact, whether the processor fuses multiplication and addition or not.
    big, small = 2.0**10, 2.0**-10
    x = torch.tensor([[big, small], [big, -small], [-big, small], [-big, -small]])
    assert Covariance(1.0)(x).item() == 0


def koleo_reference(x: Tensor, *, normalize: bool) -> Tensor:
    """-mean ln(nearest distance), pair by pair; differentiable by plain autograd."""
    if normalize:
        x = x / x.square().sum(1, keepdim=True).sqrt()
    logs = []
    for i in range(len(x)):
        distances = [(x[i] - x[j]).square().sum().sqrt() for j in range(len(x)) if j != i]
        logs.append(torch.stack(distances).min().log())
    return -torch.stack(logs).mean()


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("shape", [(20, 5), (6, 30), (2, 3)])
def test_koleo_pair_by_pair(normalize: bool, shape: tuple[int, int]) -> None:
    x = (wide(*shape) + 1).requires_grad_()
    value = KoLeo(0.3, normalize=normalize)(x)
    expected = 0.3 * koleo_reference(x, normalize=normalize)
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-12)
    (found,), (wanted,) = torch.autograd.grad(value, x), torch.autograd.grad(expected, x)
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10)


def test_koleo_leaves_duplicates_out() -> None:
    x = wide(10, 4)
    value, gradient = value_and_gradient(KoLeo(1.0), torch.cat([x, x[:1], x[:1]]))
    unit = x / x.norm(dim=1, keepdim=True)
    distances = torch.cdist(unit, unit).fill_diagonal_(math.inf).min(1).values
    assert value.item() == pytest.approx(-distances[1:].log().mean().item(), rel=1e-10)
    assert gradient.isfinite().all()
    # Every row that is no duplicate still moves.
    assert (gradient[1:10].abs().sum(1) > 0).all()
    value, gradient = value_and_gradient(KoLeo(1.0), wide(3, 4).repeat(2, 1))
    assert value.item() == 0
    assert not gradient.any()


def test_koleo_in_float32() -> None:
    x, lengths = normal(10, 4), torch.logspace(-30, 30, 10)[:, None]
    assert KoLeo()(x * lengths).item() == pytest.approx(KoLeo()(x).item(), rel=1e-5)
    # Pairs 1e-4 apart on the sphere: by inner products in float32, 1 - cos = 5e-9 would round to 0.
    x = nn.functional.normalize(wide(30, 64))
    pairs = torch.cat([x, x + 1e-4 * nn.functional.normalize(wide(30, 64, seed=1))]).float()
    assert KoLeo(1.0)(pairs).item() == pytest.approx(koleo_reference(pairs.double(), normalize=True).item(), rel=1e-4)


def closed_form(x: Tensor) -> Tensor:
    """The integral over all t, of one sample (N,): every term of the squared modulus is a Gaussian integral."""
    pairs = torch.exp(-(x[:, None] - x).square() / 2).mean()
    cross = torch.exp(-x.square() / 4).mean() / math.sqrt(2)
    return len(x) * math.sqrt(2 * math.pi) * (pairs - 2 * cross + 1 / math.sqrt(3))


def by_quadrature(x: np.ndarray, bound: float) -> float:
    def integrand(t: float) -> float:
        difference = np.exp(1j * t * x).mean() - math.exp(-t * t / 2)
        return float(abs(difference) ** 2 * math.exp(-t * t / 2))

    integral: float = quad(integrand, -bound, bound, epsabs=1e-12, limit=200)[0]
    return len(x) * integral


SAMPLES = {
    "normal": wide(200),
    "wide": 2 * wide(200),
    "narrow": 0.2 * wide(200),
    "shifted": wide(200) + 1.5,
    "constant": torch.full((200,), 0.7, dtype=torch.float64),
    "two lumps": wide(200) * 0.3 + torch.tensor([-1.0, 1.0], dtype=torch.float64).repeat(100),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_statistic_of_sigreg_is_the_integral(name: str) -> None:
    x = SAMPLES[name]
    found = epps_pulley(x[:, None])
    assert found.shape == (1,)
    assert found.item() == pytest.approx(closed_form(x).item(), rel=1e-4)
    assert epps_pulley(x[:, None], num_points=65, bound=9.0).item() == pytest.approx(closed_form(x).item(), rel=1e-10)
    # Cut off at a bound that matters, with many points: the integral up to that bound.
    cut = epps_pulley(x[:, None], num_points=2001, bound=1.0).item()
    assert cut == pytest.approx(by_quadrature(x.numpy(), 1.0), rel=1e-5)
    assert cut < 0.99 * found.item()


def test_the_mean_of_the_statistic_under_the_normal_distribution() -> None:
    statistics = epps_pulley(wide(50, 4000))
    standard_error = statistics.std() / math.sqrt(4000)
    assert abs(statistics.mean() - math.sqrt(2 * math.pi) * (1 - 1 / math.sqrt(3))) < 4 * standard_error
    assert standard_error < 0.03


def sigreg_reference(x: Tensor, directions: Tensor, num_points: int, bound: float) -> float:
    """Point by point over the unfolded [-bound, bound]."""
    nodes = np.linspace(-bound, bound, 2 * num_points - 1)
    total = 0.0
    for direction in directions.T.numpy():
        along = x.numpy() @ direction
        errors = [abs(np.exp(1j * t * along).mean() - math.exp(-t * t / 2)) ** 2 * math.exp(-t * t / 2) for t in nodes]
        ends, width = errors[0] + errors[-1], nodes[1] - nodes[0]
        total += len(x) * width * (sum(errors) - ends / 2)
    return total / directions.shape[1]


@pytest.mark.parametrize(("num_points", "bound"), [(17, 5.0), (9, 3.0)])
def test_sigreg_against_a_slow_reference(num_points: int, bound: float) -> None:
    x, module = wide(30, 6) * 1.3 + 0.2, SIGReg(0.4, num_slices=20, num_points=num_points, bound=bound).eval()
    directions = module._directions(x)
    torch.testing.assert_close(directions.norm(dim=0), torch.ones(20, dtype=torch.float64))
    expected = 0.4 * sigreg_reference(x, directions, num_points, bound)
    assert module(x).item() == pytest.approx(expected, rel=1e-10)
    assert module(x.float()).item() == pytest.approx(expected, rel=1e-5)
    numbers = {"num_slices": np.int64(20), "num_points": np.int64(num_points), "bound": np.float32(bound)}
    assert torch.equal(SIGReg(0.4, **numbers).eval()(x), module(x))  # type: ignore[arg-type]


def test_sigreg_is_small_on_gaussians_and_large_elsewhere() -> None:
    x, module, centered = wide(500, 16), SIGReg(1.0).eval(), SIGReg(1.0, center=True).eval()
    gaussian = module(x).item()
    assert 0.5 < gaussian < 2
    stretched = x * torch.linspace(0.1, 1.9, 16, dtype=torch.float64)
    for other in (0.5 * x, x + 0.5, torch.zeros_like(x), stretched, x.sign().mean(1, keepdim=True).expand(500, 16)):
        assert module(other).item() > 3 * gaussian
    assert centered(x + 1e3 * wide(16, seed=1)).item() == pytest.approx(module(x - x.mean(0)).item(), rel=1e-6)


def test_directions_of_sigreg_are_new_in_training_stand_still_in_evaluation_and_resume() -> None:
    x, module, state = wide(20, 5), SIGReg(num_slices=8), torch.get_rng_state()
    first, second = module(x), module(x)
    assert first != second
    third = module.eval()(x)
    assert module(x) == third
    resumed = SIGReg(num_slices=8)
    resumed.load_state_dict(module.state_dict())
    assert resumed(x) == module.train()(x) == third
    assert SIGReg(num_slices=8, seed=1)(x) not in (first, second, third)
    assert torch.equal(torch.get_rng_state(), state)


def test_memory_of_sigreg_does_not_grow_with_the_points() -> None:
    kept: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        epps_pulley(wide(1000, 10).requires_grad_(), num_points=100)
    assert sum(kept) < 2 * 1000 * 10


@pytest.mark.parametrize(
    "module", [Covariance(), VarianceCovariance(), KoLeo(), KoLeo(normalize=False), SIGReg(num_slices=7).eval()]
)
def test_gradcheck(module: nn.Module) -> None:
    assert torch.autograd.gradcheck(module, (wide(7, 4) + 1).requires_grad_())


@pytest.mark.parametrize("kind", BASELINES)
def test_a_scalar_proportional_to_beta_whatever_the_order_of_rows(kind: type[nn.Module]) -> None:
    x = wide(12, 5)
    one, three, none = (value_and_gradient(build(kind, beta=beta), x) for beta in (1.0, 3.0, 0.0))
    assert one[0].shape == ()
    assert one[0] != 0
    torch.testing.assert_close(three, (3 * one[0], 3 * one[1]))
    assert none[0] == 0
    assert not none[1].any()
    value, gradient = value_and_gradient(build(kind, beta=1.0), x.flip(0))
    torch.testing.assert_close((value, gradient.flip(0)), one)


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


@pytest.mark.parametrize(
    "module", [Covariance(1.0), VarianceCovariance(1.0), SIGReg(1.0, num_slices=16, center=True).eval()]
)
def test_centered_an_offset_costs_no_digits_and_constants_leave_nothing(module: nn.Module) -> None:
    x = normal(500, 6) + 1e6
    value, gradient = value_and_gradient(module, x)
    expected, expected_gradient = value_and_gradient(module, x.double())
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=1e-3, atol=1e-7)
    for rows, constant in ((7, 0.1), (100, 0.1), (7, 1e18), (100, 1e37)):
        value, gradient = value_and_gradient(module, torch.full((rows, 4), constant))
        assert value == module(torch.zeros(rows, 4))
        assert not gradient.any()


@pytest.mark.parametrize("kind", BASELINES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_and_autocast_are_computed_in_float32(kind: type[nn.Module], dtype: torch.dtype) -> None:
    module, x = build(kind), normal(64, 16).to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.float32):
        value = module(x)
    (gradient,) = torch.autograd.grad(value, x)
    expected, expected_gradient = value_and_gradient(module, x.detach().float())
    assert value.dtype == torch.float32
    assert gradient.dtype == dtype
    assert value == expected
    assert torch.equal(gradient, expected_gradient.to(dtype))


@pytest.mark.parametrize("kind", BASELINES)
def test_bad_input(kind: type[nn.Module]) -> None:
    module, spoiled = build(kind), normal(8, 4)
    empty = [torch.zeros(shape) for shape in ((5,), (2, 3, 4), (5, 0), (0, 3), (1, 3))]
    for wrong in (*empty, *(torch.zeros(4, 3, dtype=dtype) for dtype in (torch.int64, torch.bool, torch.complex64))):
        with pytest.raises(ValueError, match=r"^representations: expected"):
            module(wrong)
    with pytest.raises(TypeError, match="reference"):
        module(normal(4, 3), reference=normal(4, 3))
    spoiled[3, 2] = math.nan
    if kind is KoLeo:
        with pytest.raises(ValueError, match="NaN or inf"):
            module(spoiled)
    else:
        assert module(spoiled).isnan()


OPTIONS: list[tuple[type[nn.Module], str, object]] = [
    *((kind, "beta", value) for kind in (*BASELINES, LDReg) for value in (-0.1, math.nan, math.inf, 10**400, "0.1")),
    (VarianceCovariance, "gamma", -1),
    *((VarianceCovariance, "epsilon", value) for value in (0.0, -1e-4, math.nan)),
    *((SIGReg, "num_slices", value) for value in (3.5, 0)),
    *((SIGReg, "bound", value) for value in (0.0, -1.0, math.inf, math.nan)),
    *((SIGReg, "num_points", 1), (SIGReg, "seed", -1)),
]


@pytest.mark.parametrize(("kind", "option", "value"), OPTIONS)
def test_bad_options(kind: Callable[..., nn.Module], option: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{option}: expected"):
        kind(**{option: value})


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [Covariance, VarianceCovariance, KoLeo])
def test_on_the_gpu(kind: type[nn.Module]) -> None:
    module, x = build(kind), normal(128, 32)
    value, gradient = value_and_gradient(module, x)
    on_gpu = x.cuda().requires_grad_()
    with torch.autocast("cuda", dtype=torch.float16):
        found = module(on_gpu)
    torch.testing.assert_close(found.detach().cpu(), value, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(torch.autograd.grad(found, on_gpu)[0].cpu(), gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.gpu
def test_sigreg_on_the_gpu() -> None:
    x, module = wide(64, 16).cuda(), SIGReg(1.0, num_slices=50).cuda().eval()
    expected = sigreg_reference(x.cpu(), module._directions(x).cpu(), 17, 5.0)
    assert module(x).item() == pytest.approx(expected, rel=1e-10)
    with torch.autocast("cuda"):
        value = module(x.half())
    assert value.item() == pytest.approx(expected, rel=1e-2)
    first = module.train()(x)
    assert SIGReg(1.0, num_slices=50).cuda()(x) == first
    assert module(x) != first
