"""Local intrinsic dimensionality from nearest-neighbor distances, with standard errors.

A point whose k neighbors all lie at distance 0 has LID 0; one whose k neighbors are all equally far, but not at 0, has
LID inf. The maximum-likelihood estimate tends to 0 as any distance does, so a point with an exact duplicate has 0.
"""

import math
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ldreg.dimension.candidates import Progress, slices
from ldreg.dimension.neighbors import as_matrix, as_whole, neighbors
from ldreg.dimension.search import Neighbors

Estimator = Literal["mom", "mle", "tle"]
Convention = Literal["paper", "pseudocode"]

_TLE_BYTES = 64 << 20


class LIDEstimate(NamedTuple):
    """LID (N,), its standard error (N,), NaN where LID is degenerate, and the neighbors behind it."""

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

    It is differentiable with respect to x as the points measured. Their neighbors count as fixed, even where they are
    rows of x, as in the paper's Algorithm 1. Where LID is 0 or inf, the gradient is 0.

    Args:
        x: representations (N, D).
        k: number of neighbors, at least 2.
        reference: where neighbors are sought, (M, D); None: in x itself, self excluded.
        estimator: "mom", the method of moments (paper, Section 5); "mle", maximum likelihood (Levina & Bickel 2004);
            "tle", the tight estimator, which also uses distances between the neighbors (Amsaleg et al. 2019).
        convention: "paper" averages over all k neighbors, "pseudocode" over the first k - 1, as the paper's
            Algorithm 1 does, and is lower by about 1/k. "tle" has one form and accepts only "paper".
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
    """Raise ValueError for an unknown option or a k too small for any estimate."""
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
    # The last ratio is 1 and the last gap 0: the other convention leaves them out of the sums.
    total = ratio.sum(1) if convention == "paper" else ratio[:, :-1].sum(1)
    width = gap.sum(1)
    value = _where_regular(distances, total / torch.where(width == 0, 1, width))
    with torch.no_grad():
        # Both conventions rest on the same k - 1 free distances; `base` is the pseudocode's value.
        # Where all but the k-th are at 0 it is 0, and rounding must not make it negative.
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
        # Powers of two do not round. Slopes can then overflow in one place only: on their way to tiny distances.
        _, exponent = torch.frexp(distances[:, -1:])
        highest = -math.frexp(torch.finfo(distances.dtype).tiny)[1]
        scale = torch.ldexp(torch.ones_like(distances[:, -1:]), (-exponent).clamp(0, highest))
    distances = distances * scale
    last = distances[:, -1:]
    unit = torch.where(last > 0, last, torch.ones_like(last))
    return distances / unit, (last - distances) / unit


def _where_regular(distances: Tensor, value: Tensor) -> Tensor:
    """0 where all distances are 0, inf where all are equal, `value` elsewhere.

    `value` needs a finite slope everywhere: a NaN would spread even from where it is not taken.
    """
    first, last = distances[:, 0], distances[:, -1]
    value = torch.where(first == last, torch.full_like(value, torch.inf), value)
    return torch.where(last == 0, torch.zeros_like(value), value)


def _finite_or_nan(error: Tensor, value: Tensor) -> Tensor:
    return torch.where(torch.isfinite(value) & (value > 0), error, torch.full_like(error, torch.nan))


def tle(distances: Tensor, x: Tensor, reference: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Tight LID estimate (N,) and its standard error (N,) from neighbors of x at `distances` and `indices` (N, k).

    Distances between the neighbors, and those between them and their mirror images in the center, join the k
    distances from the center as measurements, so that small neighborhoods give steadier values (Amsaleg, Chelly,
    Furon, Girard, Houle, Kawarabayashi, Nett: Intrinsic Dimensionality Estimation within Tight Localities, SDM 2019).
    Measurements of zero, which duplicates cause, are dropped. The standard error is the infinitesimal jackknife over
    the neighbors.
    """
    n, k = distances.shape
    step = max(1, _TLE_BYTES // (8 * k * max(reference.shape[1], 16 * k)))
    tracked = torch.is_grad_enabled() and (distances.requires_grad or reference.requires_grad)
    parts = []
    for rows in slices(n, step):
        arguments = (distances[rows], x[rows], reference, indices[rows], n * k)
        # Checkpointed: the k × k measurements of a chunk are recomputed in the backward pass instead of stored.
        parts.append(checkpoint(_tle, *arguments, use_reentrant=False) if tracked else _tle(*arguments))
    values, errors = zip(*parts, strict=True)
    return torch.cat(values), torch.cat(errors)


def _tle(distances: Tensor, x: Tensor, reference: Tensor, indices: Tensor, terms: int) -> tuple[Tensor, Tensor]:
    k = distances.shape[1]
    chosen = reference.index_select(0, indices.reshape(-1)).reshape(*indices.shape, -1)
    rows: Tensor = _Widened.apply(chosen, terms)
    offsets = rows - x.double().unsqueeze(1)
    from_center, unit = _sharpened(distances.double(), offsets.detach())
    own, other = from_center.square().unsqueeze(2), from_center.square().unsqueeze(1)
    between, across, ahead = _squared(rows, offsets, unit, own, other)
    # How much nearer than the farthest each one is: 1 - own, to all its digits.
    farthest = ahead.detach().amin(2).argmax(1)
    short = ahead[torch.arange(len(farthest), device=farthest.device), farthest].unsqueeze(2)
    seen = _measurement(short, ahead, between)
    mirrored = _measurement(short, ahead, across)
    kept = (seen > 0) & (mirrored > 0) & ~_diagonal(k, distances.device)
    pairs = torch.where(kept, seen, 1).log() + torch.where(kept, mirrored, 1).log()
    center = 2 * torch.where(from_center > 0, from_center, 1).log()
    count = kept.sum((1, 2)) + (from_center > 0).sum(1)
    total = pairs.sum((1, 2)) + center.sum(1)
    value = torch.where(total < 0, -2 * count / torch.where(total < 0, total, -1), torch.inf)
    value = _where_regular(distances, value)
    with torch.no_grad():
        # Each neighbor's share of the total, as a row and as a column of the pairs.
        share = (pairs.sum(2) + pairs.sum(1) + center + center.mean(1, keepdim=True)) / total.unsqueeze(1)
        error = value * (share - 2 / k).square().sum(1).sqrt()
    return value.to(distances.dtype), _finite_or_nan(error, value).to(distances.dtype)


class _Widened(torch.autograd.Function):
    """Rows in float64. A slope too steep for float32 is cut to its range, so that sums of many terms stay finite."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, terms: int) -> Tensor:
        ctx.dtype, ctx.terms = rows.dtype, terms
        return rows.double()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        limit = torch.finfo(torch.promote_types(ctx.dtype, torch.float32)).max / (2 * ctx.terms)
        return grad.clamp(-limit, limit).to(ctx.dtype), None


def _sharpened(distances: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Distances (n, k) in units of the largest (n,), both with the digits that float32 rounded away.

    They are subtracted from distances between the neighbors, which are exact in float64, so rounding would show. The
    gradient is that of the distances given.
    """
    radius = distances[:, -1]
    unit = torch.where(radius > 0, radius, 1)
    relative = distances / unit.unsqueeze(1)
    exact = torch.linalg.vector_norm(offsets / unit.detach()[:, None, None], dim=2)
    largest = torch.where(exact.amax(1) > 0, exact.amax(1), 1)
    wide = exact / largest.unsqueeze(1)
    correction = torch.where(relative > 0, wide / torch.where(relative > 0, relative, 1), 1).detach()
    # Where the caller passed other distances, there is nothing to correct.
    return relative * torch.where((correction - 1).abs() < 0.3, correction, 1), unit * largest


def _squared(rows: Tensor, offsets: Tensor, unit: Tensor, own: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Squared distances of all pairs of neighbors (n, k, k), in units of the radius.

    Between two neighbors; across, from one to the mirror image of the other; ahead, by how much the squared distance of
    one from the center exceeds that of the other.
    """
    scaled = offsets / unit[:, None, None]
    product = scaled @ scaled.mT
    norm = product.diagonal(dim1=1, dim2=2)
    between = norm.unsqueeze(2) + norm.unsqueeze(1) - 2 * product
    squared = torch.stack((between, 2 * own + 2 * other - between, own - other))
    with torch.no_grad():
        # Pairs near each other, or near each other's mirror image, lose digits here and are taken from differences.
        lost = (squared[:2].amin(0) < 1e-4 * (own + other)) & ~_diagonal(own.shape[1], own.device)
        place = lost.nonzero(as_tuple=True)
        correction = torch.zeros_like(squared)
        for some in slices(len(place[0]), max(1, _TLE_BYTES // (32 * rows.shape[2]))):
            n, i, j = (each[some] for each in place)
            difference = (rows[n, i] - rows[n, j]) / unit[n, None]
            total = (offsets[n, i] + offsets[n, j]) / unit[n, None]
            exact = torch.stack((difference.square().sum(1), total.square().sum(1), (difference * total).sum(1)))
            correction[:, n, i, j] = exact - squared[:, n, i, j]
    between, across, ahead = squared + correction
    return between, across, ahead


def _measurement(short: Tensor, ahead: Tensor, between: Tensor) -> Tensor:
    """Radius of a neighbor as seen from another one, in the largest ball around that one inside radius 1.

    It is the positive root s of short·s² + a·s - between = 0 with a = ahead + between, in the form that does not
    cancel.

    Args:
        short: (n, k, 1) 1 minus the squared distance of the ball's center from the middle.
        ahead: (n, k, k) that squared distance minus the neighbor's own.
        between: (n, k, k) the squared distance of the neighbor from the ball's center.
    """
    a = ahead + between
    square = a.square() + 4 * between * short
    # The root of 0 is 0; its infinite slope must not reach the gradient.
    root = torch.where(square > 0, torch.where(square > 0, square, 1).sqrt(), 0)
    divisor = torch.where(a >= 0, a + root, 1)
    room = torch.where(a >= 0, 1, 2 * short)
    return torch.where(
        a >= 0, 2 * between / torch.where(divisor > 0, divisor, 1), (root - a) / torch.where(room > 0, room, 1)
    )


def _diagonal(k: int, device: torch.device) -> Tensor:
    return torch.eye(k, dtype=torch.bool, device=device)
