"""What every regularizer asks of its arguments."""

import math

import torch
from torch import Tensor

from ldreg.distributed import gather


def batch(representations: Tensor, *, gathered: bool) -> Tensor:
    """Representations (N, D) checked, in float32 at least, and joined over all ranks where `gathered`: (N', D).

    Raises:
        ValueError: not a floating-point (N, D) with D >= 1, or fewer than two rows in the whole batch.

    >>> batch(torch.zeros(4, 2, dtype=torch.bfloat16), gathered=False).dtype
    torch.float32
    """
    if representations.ndim != 2 or representations.shape[1] < 1:
        raise ValueError(
            f"representations must have shape (N, D) with D >= 1, but have shape {tuple(representations.shape)}"
        )
    if not representations.is_floating_point():
        raise ValueError(f"representations must be floating-point, but have dtype {representations.dtype}")
    # Half precision is widened before it is gathered, so that gradients from all ranks are summed in float32 too.
    representations = representations.to(torch.promote_types(representations.dtype, torch.float32))
    if gathered:
        representations = gather(representations)
    if len(representations) < 2:
        raise ValueError(f"representations must have at least 2 rows, but have shape {tuple(representations.shape)}")
    return representations


def centered(x: Tensor) -> Tensor:
    """Rows x (N, D) less their mean: (N, D), exactly 0 where all are the same.

    >>> centered(torch.full((7, 1), 0.1)).any()
    tensor(False)
    """
    low, high = torch.aminmax(x.detach(), dim=0)
    # A mean of equal numbers may miss them by rounding, and its sum may overflow.
    middle = x.detach().mean(0).clamp(low, high)
    # Twice, as a mean is rounded to the digits of the offset; the gradient is that of once.
    x = x - middle
    return x - x.mean(0)


def weight(name: str, value: float) -> float:
    """The value, checked to be finite and not negative.

    Raises:
        ValueError: it is not.

    >>> weight("beta", 0.01)
    0.01
    """
    try:
        valid = math.isfinite(value) and value >= 0
    except OverflowError:  # an int beyond all floats
        valid = False
    if not valid:
        raise ValueError(f"{name} must be finite and not negative, but is {value}")
    return float(value)


def full_precision(x: Tensor) -> torch.autocast:
    """A context in which autocast leaves the arithmetic of x's device in the dtype of x.

    >>> with full_precision(torch.zeros(1)): torch.is_autocast_enabled("cpu")
    False
    """
    return torch.autocast(x.device.type, enabled=False)
