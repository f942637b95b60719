"""Distances between named pairs of rows, from their differences, and the gradient of those distances.

A distance taken from the difference of two rows is right to rounding wherever the rows lie, unlike one taken from
norms and a product. Both passes gather a few rows at a time, so memory is (chunk, k, D) with the chunk set by a budget.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from ldreg.dimension.chunks import slices

# Squares of differences outside of this range lose digits to underflow or overflow in float32.
_SAFE = {torch.float32: (1e-15, 1e15), torch.float64: (1e-140, 1e140)}

# How much of a reference may stay in a CPU's shared cache, and of what its pieces of rows are multiples.
_CACHE_BYTES = 6 << 20
_PIECE_BYTES = 256


def pair_distances(x: Tensor, reference: Tensor, indices: Tensor, *, dtype: torch.dtype, chunk_bytes: int) -> Tensor:
    """Distances (N, k) of x (N, D) to reference[indices] (N, k, D), right to rounding in `dtype` at any scale."""
    width = _piece_width(reference, indices, dtype)
    if width < x.shape[1]:
        squares = torch.zeros(indices.shape, dtype=torch.float64, device=x.device)
        for columns in slices(x.shape[1], width):
            piece = reference[:, columns].to(dtype).contiguous()
            squares += _norms(x[:, columns], piece, indices, dtype=dtype, chunk_bytes=chunk_bytes).double().square_()
        distances = squares.sqrt_().to(dtype)
    else:
        distances = _norms(x, reference, indices, dtype=dtype, chunk_bytes=chunk_bytes)
    low, high = _SAFE[dtype]
    unsafe = ((distances < low) | ~(distances < high)).any(1).nonzero().squeeze(1)
    if len(unsafe):
        distances[unsafe] = _scaled_distances(x[unsafe], reference, indices[unsafe], chunk_bytes=chunk_bytes).to(dtype)
    return distances


def _piece_width(reference: Tensor, indices: Tensor, dtype: torch.dtype) -> int:
    """How many columns to take at a time: all, or on the CPU as many as let that piece of every row stay in the cache.

    That pays where each row is gathered again and again, as a neighbor of many others.
    """
    n, dim = reference.shape
    width = _CACHE_BYTES // (n * _PIECE_BYTES) * _PIECE_BYTES // dtype.itemsize
    pays = reference.device.type == "cpu" and indices.numel() >= 8 * n and 0 < width < dim
    return width if pays else dim


def _norms(x: Tensor, reference: Tensor, indices: Tensor, *, dtype: torch.dtype, chunk_bytes: int) -> Tensor:
    distances = torch.empty(indices.shape, dtype=dtype, device=x.device)
    for rows, difference in _differences(x, reference, indices, dtype=dtype, chunk_bytes=chunk_bytes):
        torch.linalg.vector_norm(difference, dim=2, out=distances[rows])
    return distances


def pair_gradients(
    grad: Tensor,
    x: Tensor,
    reference: Tensor,
    distances: Tensor,
    indices: Tensor,
    *,
    reference_grad: bool,
    chunk_bytes: int,
) -> tuple[Tensor, Tensor | None]:
    """Gradients (N, D) and, on request, (M, D) of a loss whose gradient for `distances` (N, k) is `grad`.

    A distance of zero has no direction; its subgradient is taken as zero, as torch.linalg.vector_norm does.
    """
    dtype = distances.dtype
    terms = distances.shape[1] + (len(x) if reference_grad else 0)  # that are summed for one row at most
    limit = torch.finfo(dtype).max / (2 * terms)
    grad_x = torch.empty(x.shape, dtype=dtype, device=x.device)
    grad_reference = torch.zeros(reference.shape, dtype=dtype, device=x.device) if reference_grad else None
    for rows, difference in _differences(x, reference, indices, dtype=dtype, chunk_bytes=chunk_bytes):
        norm = distances[rows]
        # Unit vectors first: the quotient grad / distance overflows where distances are tiny.
        difference.div_(torch.where(norm > 0, norm, torch.inf).unsqueeze(2))
        # A slope too steep for the dtype is cut to its range, so that sums of them stay finite.
        weight = grad[rows].to(dtype).clamp(-limit, limit)
        grad_x[rows] = torch.bmm(weight.unsqueeze(1), difference).squeeze(1).neg_()
        if grad_reference is not None:
            difference.mul_(weight.unsqueeze(2))
            grad_reference.index_add_(0, indices[rows].reshape(-1), difference.flatten(0, 1))
    return grad_x.to(x.dtype), None if grad_reference is None else grad_reference.to(reference.dtype)


def _differences(
    x: Tensor, reference: Tensor, indices: Tensor, *, dtype: torch.dtype, chunk_bytes: int
) -> Iterator[tuple[slice, Tensor]]:
    """Rows of x, and reference[indices] - x for them, (n, k, D), in one buffer that serves all chunks in turn."""
    (n, k), dim = indices.shape, x.shape[1]
    step = min(n, max(1, chunk_bytes // (k * dim * dtype.itemsize)))
    buffer = torch.empty(step * k, dim, dtype=dtype, device=x.device)
    for rows in slices(n, step):
        chosen = indices[rows].reshape(-1)
        gathered = buffer[: len(chosen)]
        if reference.dtype == dtype:
            torch.index_select(reference, 0, chosen, out=gathered)
        else:
            gathered.copy_(reference.index_select(0, chosen))
        difference = gathered.view(-1, k, dim)
        yield rows, difference.sub_(x[rows].to(dtype).unsqueeze(1))


def _scaled_distances(x: Tensor, reference: Tensor, indices: Tensor, *, chunk_bytes: int) -> Tensor:
    """The same in float64, with the largest component of each difference scaled to 1 before it is squared."""
    parts = []
    for _, difference in _differences(x, reference, indices, dtype=torch.float64, chunk_bytes=chunk_bytes):
        largest = torch.linalg.vector_norm(difference, ord=torch.inf, dim=2, keepdim=True)
        difference.div_(torch.where(largest > 0, largest, 1))
        parts.append(torch.linalg.vector_norm(difference, dim=2) * largest.squeeze(2))
    return torch.cat(parts)
