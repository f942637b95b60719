"""The pull of an LDReg with a fixed beta: measured in the backward pass, and warned of once."""

import math
import warnings

import pytest
import torch
from torch import Tensor, nn

from ldreg import LDReg

CALLS = 50  # between two measurements


def step(reg: LDReg, encoder: nn.Module, x: Tensor, *, scale: float = 1.0, same_tensor: bool = True) -> Tensor:
    """The gradient of a loss of this size with LDReg."""
    encoder.zero_grad()
    z = encoder(x)
    loss = scale * (z if same_tensor else encoder(x)).sigmoid().square().mean()
    (loss + reg(z)).backward()
    (weight, *_) = encoder.parameters()
    assert weight.grad is not None
    return weight.grad.clone()


def setting() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Linear(5, 6), torch.randn(40, 5)


def by_hand(beta: float, encoder: nn.Module, x: Tensor, scale: float = 1.0) -> float:
    z = encoder(x).detach().requires_grad_()
    (of_loss,) = torch.autograd.grad(scale * z.sigmoid().square().mean(), z)
    (of_term,) = torch.autograd.grad(LDReg(k=8, beta=beta)(z), z)
    return float(of_term.norm() / of_loss.norm())


def test_the_pull_is_the_ratio_of_the_gradients_and_changes_none() -> None:
    (encoder, x), reg = setting(), LDReg(k=8, beta=0.02)
    gradients = [step(reg, encoder, x) for _ in range(CALLS)]
    assert math.isnan(LDReg(k=8, beta=0.02).pull)
    assert reg.pull.item() == pytest.approx(by_hand(0.02, encoder, x), rel=1e-4)
    assert torch.equal(gradients[-1], gradients[0])  # the last was measured, the first was not
    assert not reg.state_dict()


@pytest.mark.parametrize(("scale", "found"), [(1e6, "negligible"), (1e-6, "dominant"), (1.0, None)])
def test_a_pull_far_off_is_warned_of_once_with_a_beta_that_gives_ten_percent(scale: float, found: str | None) -> None:
    (encoder, x), reg = setting(), LDReg(k=8, beta=0.01)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(6 * CALLS):
            step(reg, encoder, x, scale=scale)
    assert len(warned) == (found is not None)
    if found is not None:
        message = str(warned[0].message)
        assert found in message
        beta = float(message.partition("beta ")[2].split()[0])
        assert by_hand(beta, encoder, x, scale) == pytest.approx(0.1, rel=0.06)  # two digits of beta


def test_nothing_is_measured_where_the_loss_uses_another_tensor() -> None:
    (encoder, x), reg = setting(), LDReg(k=8, beta=0.01)
    for _ in range(6 * CALLS):
        step(reg, encoder, x, same_tensor=False)
    assert math.isnan(reg.pull)
