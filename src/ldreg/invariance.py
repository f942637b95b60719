"""How much of representations tells the view of an image, and not the image."""

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ldreg.lid.neighbors import as_numbers


@torch.no_grad()
def view_share(views: Iterable[Any]) -> Tensor:
    """The share of representations' variance that comes from the view: a float64 scalar from 0 to 1.

    0 where all views of an image agree, 1 where they differ as much as views of different images do. Whatever raises
    LID can do so by telling images apart or by telling views apart; where this share grows beside LID, it is the
    latter, and accuracy is likely to fall (`docs/too-strong.md` shows it). The variance of the mean of an image's views
    has a part of the views' own, which is taken off, so the share does not depend on how many views there are (the
    one-way analysis of variance with random effects: Searle, Casella & McCulloch, "Variance Components", 1992). NaN
    where no representation differs from another, and where one is NaN or inf.

    Args:
        views: two or more (N, D), row i of each of the same image; a tensor (V, N, D) is taken as well.

    Raises:
        ValueError: there are fewer than two, they are not real (N, D) of one shape with N >= 2, or D is 0.

    >>> image = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 4.0]])
    >>> view_share([image, image]).item(), round(view_share([image, image.flip(1)]).item(), 3)
    (0.0, 0.5)
    """
    x = torch.stack(_checked(views)).double()
    if not torch.isfinite(x).all():
        return torch.full((), torch.nan, dtype=torch.float64, device=x.device)
    x = x - x[0, 0]  # equal rows become exactly 0
    x = x / x.abs().max().clamp_min(torch.finfo(x.dtype).tiny)  # squares neither overflow nor vanish
    count, images = x.shape[:2]
    means = x.mean(0)
    within = (x - means).square().sum() / (images * (count - 1))
    between = (means - means.mean(0)).square().sum() / (images - 1) - within / count
    return within / (within + between.clamp_min(0))


def _checked(views: Iterable[Any]) -> list[Tensor]:
    with warnings.catch_warnings():
        # A memory-mapped array makes torch warn that writing to the tensor would be undefined; nothing here writes.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        found = [as_numbers(view, "views") for view in views]
    shapes = [tuple(view.shape) for view in found]
    valid = len(found) > 1 and len(set(shapes)) == 1 and len(shapes[0]) == 2 and shapes[0][0] > 1 and shapes[0][1] > 0
    if not valid or any(view.is_complex() for view in found):
        got = ", ".join(f"{view.dtype} {tuple(view.shape)}".removeprefix("torch.") for view in found[:4])
        raise ValueError(f"views: expected two or more real (N, D) of one shape with N >= 2, got {got or 'none'}")
    return found
