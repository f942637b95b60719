"""Local intrinsic dimensionality from nearest-neighbor distances, with standard errors.

A point whose k neighbors all lie at distance 0 has LID 0; one whose k neighbors are all equally far, but not at 0, has
LID inf. The maximum likelihood estimate tends to 0 as any distance does, and so is 0 beside an exact duplicate.
"""

import math
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ldreg.dimension.candidates import Progress
from ldreg.dimension.neighbors import as_matrix, as_whole, neighbors
from ldreg.dimension.search import Neighbors
from ldreg.dimension.tight import tle

Estimator = Literal["mom", "mle", "tle"]
Convention = Literal["paper", "pseudocode"]


class LIDEstimate(NamedTuple):
    """LID (N,), its standard error (N,), NaN where LID is degenerate, and the neighbors it was read from."""

    lid: Tensor
    standard_error: Tensor
    neighbors: Neighbors


def lid(
    x: Tensor,
    k: int = 64,
    reference: Tensor | None = None,
    *,
    estimator: Estimator = "mom",
    convention: Convention = "paper",
    self_index: Tensor | None = None,
) -> Tensor:
    """Local intrinsic dimensionality (N,) of every row of x among its k nearest rows of the reference.

    It is differentiable with respect to x as the points measured; their neighbors count as fixed, also where those are
    rows of x, as in the paper's Algorithm 1. Where it is 0 or inf, the gradient is 0.

    Args:
        x: representations (N, D).
        k: number of neighbors, at least 2.
        reference: where neighbors are sought, (M, D); None: in x itself, self excluded.
        estimator: "mom", the method of moments (paper, Section 5); "mle", maximum likelihood (Levina & Bickel 2004);
            "tle", the tight estimator, which also uses distances between the neighbors (Amsaleg et al. 2019).
        convention: "paper" averages over all k neighbors, "pseudocode" over the first k - 1, as the paper's
            Algorithm 1 does; it reads lower by about 1/k. "tle" has one form, and takes "paper" alone.
        self_index: as in `neighbors`, for a reference that contains x.

    Raises:
        ValueError: as `neighbors`, and for k under 2 or an unknown option.

    >>> plane = torch.rand(2000, 2, generator=torch.Generator().manual_seed(0))
    >>> values = lid(plane, k=64)
    >>> values.shape, round(values.log().mean().exp().item(), 1)
    (torch.Size([2000]), 2.0)
    """
    return estimate_lid(x, k, reference, estimator=estimator, convention=convention, self_index=self_index).lid


def estimate_lid(
    x: Tensor,
    k: int = 64,
    reference: Tensor | None = None,
    *,
    estimator: Estimator = "mom",
    convention: Convention = "paper",
    self_index: Tensor | None = None,
    reference_grad: bool = False,
    progress: Progress | None = None,
) -> LIDEstimate:
    """LID with per-point standard errors and the neighbors behind it; arguments as in `lid` and `neighbors`.

    >>> estimate = estimate_lid(torch.randn(500, 3, generator=torch.Generator().manual_seed(0)), k=50)
    >>> bool((estimate.standard_error > 0).all()), estimate.neighbors.indices.shape
    (True, torch.Size([500, 50]))
    """
    check_options(k, estimator, convention)
    x = as_matrix(x, "x")
    found = neighbors(x, k, reference, self_index=self_index, reference_grad=reference_grad, progress=progress)
    rows = x if reference is None else as_matrix(reference, "reference")
    values, errors = estimate_from(found, x, rows, estimator, convention, reference_grad=reference_grad)
    return LIDEstimate(values, errors, found)


def estimate_from(
    found: Neighbors,
    x: Tensor,
    rows: Tensor,
    estimator: Estimator,
    convention: Convention,
    *,
    reference_grad: bool = False,
) -> tuple[Tensor, Tensor]:
    """LID (N,) and standard errors (N,) from the neighbors of x found among `rows`."""
    if estimator == "tle":
        return tle(found.distances, x.detach(), rows if reference_grad else rows.detach(), found.indices)
    return {"mom": mom, "mle": mle}[estimator](found.distances, convention=convention)


def check_options(k: int, estimator: str, convention: str) -> None:
    """ValueError where an option is unknown or k too small for any estimate."""
    if estimator not in get_args(Estimator):
        raise ValueError(f"estimator: expected one of {', '.join(get_args(Estimator))}, got {estimator!r}")
    if convention not in get_args(Convention):
        raise ValueError(f"convention: expected one of {', '.join(get_args(Convention))}, got {convention!r}")
    if estimator == "tle" and convention != "paper":
        raise ValueError(f"convention: expected 'paper' with estimator 'tle', which has one form, got {convention!r}")
    whole = as_whole(k)
    if whole is not None and whole < 2:
        raise ValueError(f"k: expected at least 2 neighbors to estimate a dimension from, got {k}")


def mom(distances: Tensor, *, convention: Convention = "paper") -> tuple[Tensor, Tensor]:
    """Method of moments: μ/(w - μ) with μ the mean distance and w the k-th, from distances (N, k) ascending.

    Returns LID (N,) and its standard error (N,), by the delta method for distances of distribution (r/w)^LID.

    >>> mom(torch.tensor([[1.0, 2.0, 3.0]]))[0], mom(torch.tensor([[1.0, 2.0, 3.0]]), convention="pseudocode")[0]
    (tensor([2.]), tensor([1.]))
    """
    k = distances.shape[1]
    ratio, gap = _relative(distances)
    n = k if convention == "paper" else k - 1
    # The last ratio is 1 and the last gap 0: leaving both out of the sums is the other convention.
    total = ratio.sum(1) if convention == "paper" else ratio[:, :-1].sum(1)
    width = gap.sum(1)
    value = _where_regular(distances, total / torch.where(width == 0, 1, width))
    with torch.no_grad():
        # Both conventions rest on the same k - 1 free distances; `base` is what the pseudocode's would read.
        # Where all but the k-th are at 0 that is 0, which rounding must not take below.
        base = value if n == k - 1 else (((k - 1) * value - 1) / k).clamp_min(0)
        error = (1 + base) * (base / ((base + 2) * (k - 1))).sqrt() * (n / (k - 1))
    return value, _finite_or_nan(error, value)


def mle(distances: Tensor, *, convention: Convention = "paper") -> tuple[Tensor, Tensor]:
    """Maximum likelihood (Hill): -1 / mean ln(d/w), from distances (N, k) ascending with w the k-th.

    Returns LID (N,) and its standard error (N,), from the Fisher information 1/LID² of each of k - 1 distances.

    >>> mle(torch.tensor([[1.0, torch.e]]))[0]
    tensor([2.])
    """
    k = distances.shape[1]
    n = k if convention == "paper" else k - 1
    ratio, gap = (part[:, :-1] for part in _relative(distances))
    # ln(1 - gap) keeps its digits where d is near w, ln(d/w) where it is not, and where d/w underflows, ln d - ln w.
    near, tiny, zero = gap < 0.5, ratio < torch.finfo(ratio.dtype).tiny, distances[:, :-1] == 0
    far = tiny & ~zero
    logs = torch.where(near, torch.log1p(-torch.where(near, gap, 0)), torch.where(near | tiny, 1, ratio).log())
    apart = torch.where(far, distances[:, :-1], 1).log() - torch.where(far, distances[:, -1:], 1).log()
    total = (logs + apart).sum(1)
    value = torch.where(zero.any(1), 0, -n / torch.where(total == 0, -1, total))
    value = _where_regular(distances, value)
    return value, _finite_or_nan(value.detach() / (k - 1) ** 0.5, value)


def _relative(distances: Tensor) -> tuple[Tensor, Tensor]:
    """d/w and (w - d)/w, each (N, k), with w the last column (1 where that is 0)."""
    with torch.no_grad():
        # Powers of two round nothing. Slopes overflow then at one place if at all, where they leave for tiny distances.
        _, exponent = torch.frexp(distances[:, -1:])
        highest = -math.frexp(torch.finfo(distances.dtype).tiny)[1]
        scale = torch.ldexp(torch.ones_like(distances[:, -1:]), (-exponent).clamp(0, highest))
    distances = distances * scale
    last = distances[:, -1:]
    unit = torch.where(last > 0, last, torch.ones_like(last))
    return distances / unit, (last - distances) / unit


def _where_regular(distances: Tensor, value: Tensor) -> Tensor:
    """0 where all distances are 0, inf where all are equal, `value` elsewhere.

    A `value` that is not finite would have a slope of NaN even where it is not taken: it must be finite everywhere.
    """
    first, last = distances[:, 0], distances[:, -1]
    value = torch.where(first == last, torch.full_like(value, torch.inf), value)
    return torch.where(last == 0, torch.zeros_like(value), value)


def _finite_or_nan(error: Tensor, value: Tensor) -> Tensor:
    return torch.where(torch.isfinite(value) & (value > 0), error, torch.full_like(error, torch.nan))
