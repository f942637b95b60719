"""Layer-wise adaptive rate scaling."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT


class LARS(Optimizer):
    """SGD with momentum whose steps are scaled, for each weight, by how its norm compares with its gradient's.

    Per weight w with gradient g: v <- momentum * v + r * (g + weight_decay * w), then w <- w - lr * v, where
    r = trust_coefficient * |w| / (|g| + weight_decay * |w|), or 1 where |w| or |g| is 0 (You, Gitman & Ginsburg,
    "Large Batch Training of Convolutional Networks", 2017). As everywhere in PyTorch, the learning rate multiplies the
    momentum rather than entering it; with a constant one that is the same. In a parameter group with `adapt=False`,
    as biases and norms have it, r is 1.

    `timm.optim.Lars` computes the same with some ten kernel launches per weight, and scales the gradients in place;
    here all weights of a group go through each operation together, nothing waits for the device, and gradients are
    left as they are.

    Args:
        params: Parameters or parameter groups; a group may set every option below, and `adapt`.
        lr: Learning rate.
        momentum: Share of the last step's direction that is kept.
        weight_decay: Weight of the L2 penalty.
        trust_coefficient: Size of a step relative to the weight's norm, at learning rate 1.
        adapt: Whether steps are scaled by the ratio of norms.

    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> weight.grad = torch.tensor([0.0, 10.0])
    >>> LARS([weight], lr=1.0, trust_coefficient=0.1).step()
    >>> weight.data
    tensor([3.0000, 3.5000])
    """

    def __init__(
        self,
        params: ParamsT,
        *,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        adapt: bool = True,
    ) -> None:
        options = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
        }
        for name, value in options.items():
            if not value >= 0:
                raise ValueError(f"{name}: expected at least 0, got {value}")
        super().__init__(params, {**options, "adapt": adapt})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have a gradient; returns the closure's loss, where there is a closure."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._update(group)
        return loss

    def _update(self, group: dict[str, Any]) -> None:
        weights = [weight for weight in group["params"] if weight.grad is not None]
        if not weights:
            return
        gradients = [weight.grad for weight in weights]
        velocities = [self._velocity(weight) for weight in weights]
        decay = group["weight_decay"]
        directions = torch._foreach_add(gradients, weights, alpha=decay) if decay else gradients
        torch._foreach_mul_(velocities, group["momentum"])
        if group["adapt"]:
            ratios = trust_ratios(weights, gradients, coefficient=group["trust_coefficient"], weight_decay=decay)
            torch._foreach_addcmul_(velocities, directions, ratios.unbind())
        else:
            torch._foreach_add_(velocities, directions)
        torch._foreach_add_(weights, velocities, alpha=-group["lr"])

    def _velocity(self, weight: Tensor) -> Tensor:
        state = self.state[weight]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        velocity: Tensor = state["momentum_buffer"]
        return velocity


def trust_ratios(weights: list[Tensor], gradients: list[Tensor], *, coefficient: float, weight_decay: float) -> Tensor:
    """What multiplies each of n weights' steps, (n,): coefficient * |w| / (|g| + weight_decay * |w|).

    It is 1 where |w| is 0, since such a weight could never leave 0, and where |g| is 0, which has no direction.

    >>> gradient = torch.full((4,), 0.5)
    >>> trust_ratios([torch.ones(4), torch.zeros(4)], [gradient, gradient], coefficient=0.1, weight_decay=0.5)
    tensor([0.1000, 1.0000])
    """
    weight_norms = torch.stack(torch._foreach_norm(weights))
    gradient_norms = torch.stack(torch._foreach_norm(gradients))
    ratios = coefficient * weight_norms / (gradient_norms + weight_decay * weight_norms)
    return ratios.where((weight_norms > 0) & (gradient_norms > 0), 1.0)
