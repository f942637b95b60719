"""Measures of the quality of representations."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ldreg.dimension.neighbors import as_numbers


@torch.no_grad()
def view_share(views: Iterable[Any]) -> Tensor:
    """The share of the variance of representations that comes from the view: a float64 scalar from 0 to 1.

    It is 0 where all views of an image agree, and 1 where they differ as much as views of different images. A
    regularizer can raise LID by separating images or by separating views; a share far above that of a run without it
    shows that it did partly the latter (`docs/too-strong.md`). The share is that of the one-way analysis of variance
    with random effects (Searle, Casella & McCulloch, "Variance Components", 1992), so it does not depend on the number
    of views. It is NaN where all representations are equal or one is NaN or inf.

    Args:
        views: two or more (N, D), with row i of each from the same image; or a tensor (V, N, D).

    Raises:
        ValueError: fewer than two views, or not real (N, D) of one shape with N >= 2 and D >= 1.

    >>> image = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 4.0]])
    >>> view_share([image, image]).item(), round(view_share([image, image.flip(1)]).item(), 3)
    (0.0, 0.857)
    """
    x = torch.stack([view.double() for view in _checked(views)])
    if not torch.isfinite(x).all():
        return torch.full((), torch.nan, dtype=torch.float64, device=x.device)
    # Equal rows become exactly 0 and an offset costs no digits. Scaling before keeps differences from overflowing,
    # scaling after keeps squares from vanishing.
    x = _scaled(x)
    x = _scaled(x - x[0, 0])
    count, images = x.shape[:2]
    apart = x - x[0]  # exactly 0 where views are equal, whatever the rounding of their mean
    within = (apart - apart.mean(0)).square().sum() / (images * (count - 1))
    means = x[0] + apart.mean(0)
    between = (means - means.mean(0)).square().sum() / (images - 1) - within / count
    return within / (within + between.clamp_min(0))


def _scaled(x: Tensor) -> Tensor:
    """Divide x by its largest entry, unless that is 0."""
    largest = x.abs().max()
    return x / torch.where(largest > 0, largest, 1)


def _checked(views: Iterable[Any]) -> list[Tensor]:
    try:
        given = list(views)
    except TypeError as error:
        raise ValueError(f"views: expected two or more (N, D), got {type(views).__name__}") from error
    found = [as_numbers(view, "views") for view in given]
    shapes = [tuple(view.shape) for view in found]
    valid = len(found) > 1 and len(set(shapes)) == 1 and len(shapes[0]) == 2 and shapes[0][0] > 1 and shapes[0][1] > 0
    if not valid or any(view.is_complex() for view in found):
        got = ", ".join(f"{view.dtype} {tuple(view.shape)}".removeprefix("torch.") for view in found[:4])
        raise ValueError(f"views: expected two or more real (N, D) of one shape with N >= 2, got {got or 'none'}")
    return found
