import math

import pytest
import torch
from torch import Tensor

from ldreg.regularizers.koleo import KoLeo


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def reference(x: Tensor, *, normalize: bool) -> Tensor:
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
def test_against_pair_by_pair(normalize: bool, shape: tuple[int, int]) -> None:
    x = (normal(*shape) + 1).requires_grad_()
    value = KoLeo(0.3, normalize=normalize)(x)
    expected = 0.3 * reference(x, normalize=normalize)
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-12)
    (found,), (wanted,) = torch.autograd.grad(value, x), torch.autograd.grad(expected, x)
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("normalize", [True, False])
def test_gradcheck(normalize: bool) -> None:
    assert torch.autograd.gradcheck(KoLeo(normalize=normalize), (normal(8, 4) + 1).requires_grad_())


def test_hand_computed() -> None:
    # Nearest distances 1, 1 and 3.
    x = torch.tensor([[0.0], [1.0], [4.0]])
    assert KoLeo(1.0, normalize=False)(x).item() == pytest.approx(-math.log(3) / 3)
    # Four unit vectors at right angles, however long they come.
    assert KoLeo()(torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0]))).item() == pytest.approx(-0.1 * math.log(2) / 2)


def test_duplicates_are_left_out() -> None:
    x = normal(10, 4)
    doubled = torch.cat([x, x[:1], x[:1]]).requires_grad_()
    value = KoLeo(1.0)(doubled)
    (gradient,) = torch.autograd.grad(value, doubled)
    unit = x / x.norm(dim=1, keepdim=True)
    distances = torch.cdist(unit, unit).fill_diagonal_(math.inf).min(1).values
    assert value.item() == pytest.approx(-distances[1:].log().mean().item(), rel=1e-10)
    assert gradient.isfinite().all()
    # Every row that is no duplicate still moves.
    assert (gradient[1:10].abs().sum(1) > 0).all()


def test_only_duplicates_give_zero() -> None:
    x = normal(3, 4).repeat(2, 1).requires_grad_()
    value = KoLeo(1.0)(x)
    (gradient,) = torch.autograd.grad(value, x)
    assert value.item() == 0
    assert not gradient.any()


def test_length_does_not_matter_when_normalized() -> None:
    x, lengths = normal(10, 4).float(), torch.logspace(-30, 30, 10)[:, None]
    assert KoLeo()(x * lengths).item() == pytest.approx(KoLeo()(x).item(), rel=1e-5)
    assert KoLeo(normalize=False)(x * 2).item() == pytest.approx(
        KoLeo(normalize=False)(x).item() - 0.1 * math.log(2), rel=1e-5
    )


def test_close_neighbors_in_float32() -> None:
    # Pairs 1e-4 apart on the sphere: by inner products in float32, 1 - cos = 5e-9 would round to 0.
    x = torch.nn.functional.normalize(normal(30, 64))
    pairs = torch.cat([x, x + 1e-4 * torch.nn.functional.normalize(normal(30, 64, seed=1))]).float()
    assert KoLeo(1.0)(pairs).item() == pytest.approx(reference(pairs.double(), normalize=True).item(), rel=1e-4)
