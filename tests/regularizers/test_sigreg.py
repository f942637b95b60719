import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch import Tensor

from ldreg.regularizers.sigreg import SIGReg, epps_pulley

NORMAL_MEAN = math.sqrt(2 * math.pi) * (1 - 1 / math.sqrt(3))


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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
    "normal": normal(200),
    "wide": 2 * normal(200),
    "narrow": 0.2 * normal(200),
    "shifted": normal(200) + 1.5,
    "constant": torch.full((200,), 0.7, dtype=torch.float64),
    "two lumps": normal(200) * 0.3 + torch.tensor([-1.0, 1.0], dtype=torch.float64).repeat(100),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_statistic_is_the_integral(name: str) -> None:
    x = SAMPLES[name]
    found = epps_pulley(x[:, None])
    assert found.shape == (1,)
    assert found.item() == pytest.approx(closed_form(x).item(), rel=1e-4)
    assert epps_pulley(x[:, None], num_points=65, bound=9.0).item() == pytest.approx(closed_form(x).item(), rel=1e-10)
    # Cut off at a bound that matters, with many points: the integral up to that bound.
    cut = epps_pulley(x[:, None], num_points=2001, bound=1.0).item()
    assert cut == pytest.approx(by_quadrature(x.numpy(), 1.0), rel=1e-5)
    assert cut < 0.99 * found.item()


def test_mean_under_the_normal_distribution() -> None:
    statistics = epps_pulley(normal(50, 4000))
    standard_error = statistics.std() / math.sqrt(4000)
    assert abs(statistics.mean() - NORMAL_MEAN) < 4 * standard_error
    assert standard_error < 0.03


def slow_reference(x: Tensor, directions: Tensor, num_points: int, bound: float) -> float:
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
def test_against_slow_reference(num_points: int, bound: float) -> None:
    x, module = normal(30, 6) * 1.3 + 0.2, SIGReg(0.4, num_slices=20, num_points=num_points, bound=bound)
    directions = module._directions(x)
    torch.testing.assert_close(directions.norm(dim=0), torch.ones(20, dtype=torch.float64))
    expected = 0.4 * slow_reference(x, module.eval()._directions(x), num_points, bound)
    assert module(x).item() == pytest.approx(expected, rel=1e-10)
    assert module(x.float()).item() == pytest.approx(expected, rel=1e-5)


def test_gradcheck() -> None:
    assert torch.autograd.gradcheck(SIGReg(num_slices=7).eval(), (normal(6, 4) + 0.5).requires_grad_())


def test_small_on_gaussians_and_large_elsewhere() -> None:
    x, module = normal(500, 16), SIGReg(1.0).eval()
    gaussian = module(x).item()
    assert 0.5 < gaussian < 2
    stretched = x * torch.linspace(0.1, 1.9, 16, dtype=torch.float64)
    for other in (0.5 * x, x + 0.5, torch.zeros_like(x), stretched, x.sign().mean(1, keepdim=True).expand(500, 16)):
        assert module(other).item() > 3 * gaussian


def test_centered_it_does_not_see_the_mean() -> None:
    x, plain, centered = normal(500, 16), SIGReg(1.0).eval(), SIGReg(1.0, center=True).eval()
    assert centered(x + 1e3 * normal(16, seed=1)).item() == pytest.approx(plain(x - x.mean(0)).item(), rel=1e-6)
    assert plain(x + 1.0).item() > 100 * centered(x + 1.0).item()


def test_directions_are_new_in_training_and_stand_still_in_evaluation() -> None:
    x, module = normal(20, 5), SIGReg(num_slices=8)
    first, second = module(x), module(x)
    assert first != second
    module.eval()
    third = module(x)
    assert module(x) == third
    assert module.train()(x) == third
    again = SIGReg(num_slices=8)
    assert [again(x), again(x), again(x)] == [first, second, third]
    assert SIGReg(num_slices=8, seed=1)(x) not in (first, second, third)


def test_the_global_generator_is_left_alone() -> None:
    state = torch.get_rng_state()
    SIGReg(num_slices=8)(normal(20, 5))
    assert torch.equal(torch.get_rng_state(), state)


def test_resuming_goes_on_where_it_stopped(tmp_path: Path) -> None:
    x, module = normal(20, 5), SIGReg(num_slices=8)
    for _ in range(3):
        module(x)
    torch.save(module.state_dict(), tmp_path / "state.pt")
    fourth = module(x)
    resumed = SIGReg(num_slices=8)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert resumed(x) == fourth


def test_memory_does_not_grow_with_the_points() -> None:
    kept: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        epps_pulley(normal(1000, 10).requires_grad_(), num_points=100)
    assert sum(kept) < 2 * 1000 * 10


def test_numbers_may_be_those_of_numpy() -> None:
    given = SIGReg(num_slices=np.int64(8), num_points=np.int64(9), bound=np.float32(4), seed=np.int64(3))  # type: ignore[arg-type]
    assert torch.equal(given(normal(20, 4)), SIGReg(num_slices=8, num_points=9, bound=4.0, seed=3)(normal(20, 4)))


@pytest.mark.parametrize(
    ("option", "value"),
    [("num_slices", 3.5), ("num_slices", 0), ("num_points", 1), ("seed", -1)]
    + [("bound", bound) for bound in (0.0, -1.0, math.inf, math.nan)],
)
def test_bad_options(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{option}: expected"):
        SIGReg(**{option: value})  # type: ignore[arg-type]


@pytest.mark.gpu
def test_on_the_gpu() -> None:
    x, module = normal(64, 16).cuda(), SIGReg(1.0, num_slices=50).cuda()
    directions = module.eval()._directions(x)
    expected = slow_reference(x.cpu(), directions.cpu(), 17, 5.0)
    assert module(x).item() == pytest.approx(expected, rel=1e-10)
    half = x.half().requires_grad_()
    with torch.autocast("cuda"):
        value = module(half)
    value.backward()
    assert value.item() == pytest.approx(expected, rel=1e-2)
    first = module.train()(x)
    assert SIGReg(1.0, num_slices=50).cuda()(x) == first
    assert module(x) != first
