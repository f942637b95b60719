"""The tight LID estimator, which measures each neighborhood from within as well as from its center."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ldreg.dimension.chunks import slices

_CHUNK_BYTES = 64 << 20


def tle(distances: Tensor, x: Tensor, reference: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Tight LID estimate (N,) and its standard error (N,) from neighbors of x at `distances` and `indices` (N, k).

    Distances between the neighbors, and those between them and their mirror images in the center, join the k
    distances from the center as measurements, so that small neighborhoods give steadier values (Amsaleg, Chelly,
    Furon, Girard, Houle, Kawarabayashi, Nett: Intrinsic Dimensionality Estimation within Tight Localities, SDM 2019).
    Measurements of zero, which duplicates cause, are dropped. The standard error is the infinitesimal jackknife over
    the neighbors.
    """
    n, k = distances.shape
    step = max(1, _CHUNK_BYTES // (8 * k * max(reference.shape[1], 16 * k)))
    tracked = torch.is_grad_enabled() and (distances.requires_grad or reference.requires_grad)
    parts = []
    for rows in slices(n, step):
        arguments = (distances[rows], x[rows], reference, indices[rows], n * k)
        # Checkpointed: a chunk's k × k measurements are made again in the backward pass rather than kept.
        parts.append(checkpoint(_tle, *arguments, use_reentrant=False) if tracked else _tle(*arguments))
    values, errors = zip(*parts, strict=True)
    return torch.cat(values), torch.cat(errors)


def _tle(distances: Tensor, x: Tensor, reference: Tensor, indices: Tensor, terms: int) -> tuple[Tensor, Tensor]:
    k = distances.shape[1]
    chosen = reference.index_select(0, indices.reshape(-1)).reshape(*indices.shape, -1)
    rows: Tensor = _Widened.apply(chosen, terms)
    offsets = rows - x.double().unsqueeze(1)
    from_center, unit = _relative(distances.double(), offsets.detach())
    own, other = from_center.square().unsqueeze(2), from_center.square().unsqueeze(1)
    squared = _squared(rows, offsets, unit, own, other)
    # How much nearer than the farthest each one is, which is 1 - own to all its digits.
    farthest = squared.ahead.detach().amin(2).argmax(1)
    short = squared.ahead[torch.arange(len(farthest), device=farthest.device), farthest].unsqueeze(2)
    seen = _measurement(short, squared.ahead, squared.between)
    mirrored = _measurement(short, squared.ahead, squared.across)
    kept = (seen > 0) & (mirrored > 0) & ~_diagonal(k, distances.device)
    pairs = torch.where(kept, seen, 1).log() + torch.where(kept, mirrored, 1).log()
    center = 2 * torch.where(from_center > 0, from_center, 1).log()
    count = kept.sum((1, 2)) + (from_center > 0).sum(1)
    total = pairs.sum((1, 2)) + center.sum(1)
    value = torch.where(total < 0, -2 * count / torch.where(total < 0, total, -1), torch.inf)
    first, last = distances[:, 0], distances[:, -1]
    value = torch.where(last == 0, 0.0, torch.where(first == last, torch.inf, value))
    with torch.no_grad():
        # Each neighbor's share of the total, as a row and as a column of the pairs.
        share = (pairs.sum(2) + pairs.sum(1) + center + center.mean(1, keepdim=True)) / total.unsqueeze(1)
        error = value * (share - 2 / k).square().sum(1).sqrt()
        error = torch.where(torch.isfinite(value) & (value > 0), error, torch.nan)
    return value.to(distances.dtype), error.to(distances.dtype)


class _Widened(torch.autograd.Function):
    """Rows in float64. A slope too steep for float32 is cut to its range, so that sums of so many terms stay finite."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, terms: int) -> Tensor:
        ctx.dtype, ctx.terms = rows.dtype, terms
        return rows.double()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        limit = torch.finfo(torch.promote_types(ctx.dtype, torch.float32)).max / (2 * ctx.terms)
        return grad.clamp(-limit, limit).to(ctx.dtype), None


def _relative(distances: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Distances (n, k) in units of the largest (n,), both with the digits that float32 has rounded away.

    They are subtracted from distances between the neighbors, which float64 has exactly, so rounding would tell. The
    gradient is that of the distances given.
    """
    radius = distances[:, -1]
    unit = torch.where(radius > 0, radius, 1)
    relative = distances / unit.unsqueeze(1)
    exact = torch.linalg.vector_norm(offsets / unit.detach()[:, None, None], dim=2)
    largest = torch.where(exact.amax(1) > 0, exact.amax(1), 1)
    wide = exact / largest.unsqueeze(1)
    correction = torch.where(relative > 0, wide / torch.where(relative > 0, relative, 1), 1).detach()
    # Where the caller has put other distances in, there is nothing to correct.
    return relative * torch.where((correction - 1).abs() < 0.3, correction, 1), unit * largest


class _Squared(NamedTuple):
    """Of all pairs of neighbors (n, k, k), in squared units of the radius.

    How far apart they are, how far one is from the mirror image of the other, and how much farther than the other one
    is from the center.
    """

    between: Tensor
    across: Tensor
    ahead: Tensor


def _squared(rows: Tensor, offsets: Tensor, unit: Tensor, own: Tensor, other: Tensor) -> _Squared:
    scaled = offsets / unit[:, None, None]
    product = scaled @ scaled.mT
    norm = product.diagonal(dim1=1, dim2=2)
    between = norm.unsqueeze(2) + norm.unsqueeze(1) - 2 * product
    squared = torch.stack((between, 2 * own + 2 * other - between, own - other))
    with torch.no_grad():
        # Neighbors near each other, or near each other's mirror image, lose their digits in these differences.
        lost = (squared[:2].amin(0) < 1e-4 * (own + other)) & ~_diagonal(own.shape[1], own.device)
        n, i, j = lost.nonzero(as_tuple=True)
        correction = torch.zeros_like(squared)
        for some in slices(len(n), max(1, _CHUNK_BYTES // (32 * rows.shape[2]))):
            where = n[some], i[some], j[some]
            exact = torch.stack(_of_pairs(rows, offsets, unit, *where))
            correction[:, *where] = exact - squared[:, *where]
    return _Squared(*(squared + correction))


def _of_pairs(rows: Tensor, offsets: Tensor, unit: Tensor, n: Tensor, i: Tensor, j: Tensor) -> _Squared:
    """The same for some pairs (p,), from differences of the rows."""
    difference, total = rows[n, i] - rows[n, j], offsets[n, i] + offsets[n, j]
    difference, total = difference / unit[n, None], total / unit[n, None]
    return _Squared(difference.square().sum(1), total.square().sum(1), (difference * total).sum(1))


def _measurement(short: Tensor, ahead: Tensor, between: Tensor) -> Tensor:
    """Radius that a neighbor is given in the largest ball around another inside radius 1.

    The positive root s of short·s² + a·s - between = 0 with a = ahead + between, in whichever of its two forms does
    not cancel.

    Args:
        short: (n, k, 1) 1 less the squared distance of the ball's center from the middle.
        ahead: (n, k, k) that squared distance less the neighbor's own.
        between: (n, k, k) the squared distance of the neighbor from the ball's center.
    """
    a = ahead + between
    square = a.square() + 4 * between * short
    # Of 0 the root is 0 and its slope, which is inf, must not reach the gradient.
    root = torch.where(square > 0, torch.where(square > 0, square, 1).sqrt(), 0)
    divisor = torch.where(a >= 0, a + root, 1)
    room = torch.where(a >= 0, 1, 2 * short)
    return torch.where(
        a >= 0, 2 * between / torch.where(divisor > 0, divisor, 1), (root - a) / torch.where(room > 0, room, 1)
    )


def _diagonal(k: int, device: torch.device) -> Tensor:
    return torch.eye(k, dtype=torch.bool, device=device)
