"""Checks and preparation that the regularizers share."""

import math

import torch
from torch import Tensor

from ldreg.distributed import gather


def batch(representations: Tensor, *, gathered: bool) -> Tensor:
    """Checked representations (N, D) in float32 or wider; (N', D) of all ranks where `gathered`.

    Raises:
        ValueError: not floating-point (N, D) with D >= 1, or fewer than two rows in the whole batch.

    >>> batch(torch.zeros(4, 2, dtype=torch.bfloat16), gathered=False).dtype
    torch.float32
    """
    if representations.ndim != 2 or representations.shape[1] < 1:
        raise ValueError(
            f"representations must have shape (N, D) with D >= 1, but have shape {tuple(representations.shape)}"
        )
    if not representations.is_floating_point():
        raise ValueError(f"representations must be floating-point, but have dtype {representations.dtype}")
    # Half precision is widened before gathering, so that gradients from all ranks are summed in float32 too.
    representations = representations.to(torch.promote_types(representations.dtype, torch.float32))
    if gathered:
        representations = gather(representations)
    if len(representations) < 2:
        raise ValueError(f"representations must have at least 2 rows, but have shape {tuple(representations.shape)}")
    return representations


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


def weight(name: str, value: float) -> float:
    """The value as a float.

    Raises:
        ValueError: it is negative or not finite.

    >>> weight("beta", 0.01)
    0.01
    """
    try:
        valid = math.isfinite(value) and value >= 0
    except OverflowError:  # an int too large for a float
        valid = False
    if not valid:
        raise ValueError(f"{name} must be finite and not negative, but is {value}")
    return float(value)


def full_precision(x: Tensor) -> torch.autocast:
    """A context without autocast on the device of x.

    >>> with full_precision(torch.zeros(1)): torch.is_autocast_enabled("cpu")
    False
    """
    return torch.autocast(x.device.type, enabled=False)
