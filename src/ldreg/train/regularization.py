"""Regularizers by name, as recipes choose them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from ldreg.methods import Outcome
from ldreg.regularizers import Covariance, KoLeo, LDReg, SIGReg, VarianceCovariance


@dataclass(frozen=True)
class Entry:
    """A regularizer, and those of its arguments that its name settles."""

    type: type[nn.Module]
    fixed: Mapping[str, Any]


_GATHERED = {"gather": True}  # the batch of all processes, whose gradient is that of one

REGULARIZERS = {
    "ldreg": Entry(LDReg, {**_GATHERED, "direction": "maximize"}),
    "minlid": Entry(LDReg, {**_GATHERED, "direction": "minimize", "target": None, "norm": "l1"}),
    "covariance": Entry(Covariance, _GATHERED),
    "variance_covariance": Entry(VarianceCovariance, _GATHERED),
    "koleo": Entry(KoLeo, _GATHERED),
    "sigreg": Entry(SIGReg, _GATHERED),
}


def build_regularizer(name: str, options: Mapping[str, Any]) -> nn.Module | None:
    """The regularizer of this name with these options; None for "none".

    Raises:
        ValueError: an option is out of range.

    >>> build_regularizer("minlid", {"k": 16, "beta": 0.1}).direction
    'minimize'
    """
    if name == "none":
        return None
    entry = REGULARIZERS[name]
    try:
        return entry.type(**options, **entry.fixed)
    except ValueError as error:
        raise ValueError(f"{name}.{error}") from error


def can_be_captured(regularizer: nn.Module | None) -> TypeGuard[LDReg]:
    """Whether a step of the regularizer is the same kernels every time, as a CUDA graph wants it.

    The other regularizers and estimators wait for the device, and a queue grows.

    >>> can_be_captured(LDReg()), can_be_captured(LDReg(queue_size=100)), can_be_captured(None)
    (True, False, False)
    """
    return isinstance(regularizer, LDReg) and regularizer.estimator == "mom" and regularizer.queue_size == 0


def penalty(regularizer: nn.Module, outcome: Outcome) -> Tensor:
    """What the regularizer adds to the loss of this batch, from the method's own reference where it takes one."""
    value: Tensor
    if isinstance(regularizer, LDReg) and outcome.reference is not None:
        value = regularizer(outcome.representations, outcome.reference, self_index=outcome.self_index)
    else:
        value = regularizer(outcome.representations)
    return value


def pull(loss: Tensor, added: Tensor, representations: Tensor) -> Tensor | None:
    """Norm of the regularizer's gradient at the representations over that of the method's loss, as a scalar.

    None where a loss does not depend on the representations, as MAE's, which passes the class token by. No gradient
    of a weight is touched, and the graph is kept for the step's own backward pass.

    >>> x = torch.ones(4, 2, requires_grad=True)
    >>> pull(x.sum(), 0.1 * x.sum(), x)
    tensor(0.1000, dtype=torch.float64)
    """
    norms: list[Tensor] = []
    for each in (added, loss):
        if not each.requires_grad:
            return None
        found: Any = torch.autograd.grad(each, representations, retain_graph=True, allow_unused=True)[0]
        if found is None:
            return None
        norms.append(found.double().norm())
    return norms[0] / norms[1]
