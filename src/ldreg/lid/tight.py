"""The tight LID estimator, which measures each neighborhood from within as well as from its center."""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ldreg.lid.chunks import slices

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
        arguments = (distances[rows], x[rows], reference, indices[rows])
        # Checkpointed: a chunk's k × k measurements are made again in the backward pass rather than kept.
        parts.append(checkpoint(_tle, *arguments, use_reentrant=False) if tracked else _tle(*arguments))
    values, errors = zip(*parts, strict=True)
    return torch.cat(values), torch.cat(errors)


def _tle(distances: Tensor, x: Tensor, reference: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    k = distances.shape[1]
    radius = distances[:, -1].double()
    unit = torch.where(radius > 0, radius, torch.ones_like(radius))
    rows = reference.index_select(0, indices.reshape(-1)).reshape(*indices.shape, -1).double()
    from_center = _widened(distances.double() / unit.unsqueeze(1), rows.detach(), x, unit)
    between = _squared_between(rows, unit)
    own, other = from_center.square().unsqueeze(2), from_center.square().unsqueeze(1)
    seen = _measurement(own, other, between)
    mirrored = _measurement(own, other, 2 * own + 2 * other - between)
    diagonal = torch.eye(k, dtype=torch.bool, device=distances.device)
    kept = (seen > 0) & (mirrored > 0) & ~diagonal
    pairs = torch.where(kept, seen, 1).log() + torch.where(kept, mirrored, 1).log()
    center = 2 * torch.where(from_center > 0, from_center, 1).log()
    count = kept.sum((1, 2)) + (from_center > 0).sum(1)
    total = pairs.sum((1, 2)) + center.sum(1)
    value = torch.where(total < 0, -2 * count / torch.where(total < 0, total, -1), torch.inf)
    value = torch.where(from_center[:, 0] == from_center[:, -1], torch.inf, value)
    value = torch.where(radius == 0, 0.0, value)
    with torch.no_grad():
        # Each neighbor's share of the total, as a row and as a column of the pairs.
        share = (pairs.sum(2) + pairs.sum(1) + center + center.mean(1, keepdim=True)) / total.unsqueeze(1)
        error = value * (share - 2 / k).square().sum(1).sqrt()
        error = torch.where(torch.isfinite(value) & (value > 0), error, torch.nan)
    return value.to(distances.dtype), error.to(distances.dtype)


def _measurement(own: Tensor, other: Tensor, between: Tensor) -> Tensor:
    """Radius that a neighbor at squared distance `between` is given in the largest ball around `own` inside radius 1.

    The positive root s of (1 - own)·s² + a·s - between = 0 with a = own + between - other, in whichever of its two
    forms does not cancel.
    """
    a = own + between - other
    square = a.square() + 4 * between * (1 - own)
    # Of 0 the root is 0 and its slope, which is inf, must not reach the gradient.
    root = torch.where(square > 0, torch.where(square > 0, square, 1).sqrt(), 0)
    divisor = torch.where(a >= 0, a + root, 1)
    room = torch.where(a >= 0, 1, 2 * (1 - own))
    return torch.where(
        a >= 0, 2 * between / torch.where(divisor > 0, divisor, 1), (root - a) / torch.where(room > 0, room, 1)
    )


def _widened(relative: Tensor, rows: Tensor, x: Tensor, unit: Tensor) -> Tensor:
    """Relative distances (n, k) with the digits that float32 has rounded away; their gradient stays.

    They are subtracted from distances between the neighbors, which float64 has exactly, so rounding would tell.
    """
    exact = torch.linalg.vector_norm((rows - x.double().unsqueeze(1)) / unit[:, None, None], dim=2)
    correction = torch.where(relative > 0, exact / torch.where(relative > 0, relative, 1), 1).detach()
    # Where the caller has put other distances in, there is nothing to correct.
    return relative * torch.where((correction - 1).abs() < 1e-4, correction, 1)


def _squared_between(rows: Tensor, unit: Tensor) -> Tensor:
    """Squared distances (n, k, k) between neighbors (n, k, D), in units, around the first of them."""
    rows = (rows - rows[:, :1]) / unit[:, None, None]
    product = rows @ rows.mT
    norm = product.diagonal(dim1=1, dim2=2)
    return (norm.unsqueeze(2) + norm.unsqueeze(1) - 2 * product).clamp_min(0)
