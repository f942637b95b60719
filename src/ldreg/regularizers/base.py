"""What the regularizers share: the checks of their options and input, and the form of all but LDReg."""

import math
from inspect import signature
from numbers import Real

import torch
from torch import Tensor, nn

from ldreg.dimension.neighbors import as_whole
from ldreg.distributed import gather


class Regularizer(nn.Module):
    """Maps representations (N, D) to beta times a term, computed in float32 or wider, even under autocast.

    Args:
        beta: weight of the term.
        gather: whether to work on the batch of all ranks. Gradients averaged over ranks, as in DDP, then equal those
            of one process with the whole batch.

    Raises:
        ValueError: beta is negative or not finite; in the call, representations are not a floating-point (N, D) or
            have fewer than two rows.
    """

    def __init__(self, beta: float, *, gather: bool) -> None:
        super().__init__()
        self.beta = weight("beta", beta)
        self.gather = gather

    def forward(self, representations: Tensor) -> Tensor:
        """The scalar to add to the loss."""
        with torch.autocast(representations.device.type, enabled=False):
            return self.beta * self.term(batch(representations, gathered=self.gather))

    def term(self, x: Tensor) -> Tensor:
        """The term without its weight, for representations (N, D) in float32 or wider."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """The options, as `print` shows them."""
        return options(self)


def options(module: nn.Module) -> str:
    """The arguments of a module's constructor, as `print` shows them."""
    return ", ".join(f"{name}={getattr(module, name)!r}" for name in signature(type(module)).parameters)


def batch(representations: Tensor, *, gathered: bool) -> Tensor:
    """Checked representations (N, D) in float32 or wider; (N', D) of all ranks where `gathered`.

    >>> batch(torch.zeros(4, 2, dtype=torch.bfloat16), gathered=False).dtype
    torch.float32
    """
    shape, dtype = tuple(representations.shape), representations.dtype
    check(len(shape) == 2 and shape[1] > 0, "representations", "shape (N, D) with D >= 1", shape)
    check(representations.is_floating_point(), "representations", "floating-point numbers", dtype)
    # Half precision is widened before gathering, so that gradients from all ranks are summed in float32 too.
    x = representations.to(torch.promote_types(dtype, torch.float32))
    x = gather(x) if gathered else x
    check(len(x) > 1, "representations", "at least 2 rows", f"shape {tuple(x.shape)}")
    return x


def centered(x: Tensor) -> Tensor:
    """Rows x (N, D) minus their mean, exactly 0 where all rows are the same.

    >>> centered(torch.full((7, 1), 0.1)).any()
    tensor(False)
    """
    low, high = torch.aminmax(x.detach(), dim=0)
    # Rounding may move a mean of equal numbers, and its sum may overflow.
    middle = x.detach().mean(0).clamp(low, high)
    # Subtract twice, since the first mean is rounded to the digits of the offset; the gradient is the same.
    x = x - middle
    return x - x.mean(0)


def check(valid: bool, name: str, expected: str, got: object) -> None:
    """Raise ValueError unless an argument is valid."""
    if not valid:
        raise ValueError(f"{name}: expected {expected}, got {got!r}")


def finite(value: object) -> float:
    """The value as a float; NaN where it is not a finite number."""
    try:
        return float(value) if isinstance(value, Real) and math.isfinite(value) else math.nan
    except OverflowError:  # an int too large for a float
        return math.nan


def weight(name: str, value: float) -> float:
    """The value as a float; ValueError if it is negative or not finite.

    >>> weight("beta", 0.01)
    0.01
    """
    check(finite(value) >= 0, name, "a finite number from 0 on", value)
    return float(value)


def whole(name: str, value: int, *, least: int) -> int:
    """The value as a plain int, which compiles and does not overflow as NumPy's do; ValueError if it is none."""
    number = as_whole(value)
    if number is None or number < least:
        raise ValueError(f"{name}: expected an integer of at least {least}, got {value!r}")
    return number
