"""Exact Euclidean nearest neighbors of queries in a reference set.

The only home of self-exclusion, checks of k, centering, chunking and precision. Candidates are chosen by matrix
products (`candidates`), their distances are taken from differences (`pairs`), and each query then proves that it lost
no neighbor to rounding; the few that cannot are searched again in float64, and if need be from differences alone.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ldreg.lid.candidates import (
    Candidates,
    Frame,
    Progress,
    select,
    select_against_itself,
    select_by_differences,
)
from ldreg.lid.chunks import slices
from ldreg.lid.pairs import pair_distances, pair_gradients

# Working memory of a search and of its backward pass, beyond input and output.
_SEARCH_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
_PAIR_BYTES = {"cpu": 8 << 20, "cuda": 256 << 20}


class Neighbors(NamedTuple):
    """Distances (N, k), ascending, and the reference rows (N, k) they lead to."""

    distances: Tensor
    indices: Tensor


def neighbors(
    x: Tensor,
    k: int,
    reference: Tensor | None = None,
    *,
    self_index: Tensor | None = None,
    reference_grad: bool = False,
    progress: Progress | None = None,
) -> Neighbors:
    """The k nearest rows of the reference for every row of x, exact to rounding at any offset and scale.

    Float16 and bfloat16 input is measured in float32. Distances are differentiable with respect to x, and to the
    reference where `reference_grad` is set (with no reference, where both are x, the gradient is then that of both).

    Args:
        x: queries (N, D).
        k: number of neighbors, at least 1 and at most the number of candidates.
        reference: where neighbors are sought, (M, D); None: in x itself, each row's own index excluded.
        self_index: (N,) the row of the reference that is query i itself and so not its neighbor; -1: none is.
        reference_grad: whether gradients flow into the reference too.
        progress: called with the fraction done; takes the search out of autograd.

    Raises:
        ValueError: for wrong ranks, dtypes or sizes, NaN or inf, or k out of range.

    >>> x = torch.tensor([[0.0], [1.0], [3.0]])
    >>> found = neighbors(x, 2)
    >>> found.distances
    tensor([[1., 3.],
            [1., 2.],
            [2., 3.]])
    >>> found.indices
    tensor([[1, 2],
            [0, 2],
            [1, 0]])
    """
    x = as_matrix(x, "x")
    if reference is not None:
        reference = as_matrix(reference, "reference")
        _check_pair(x, reference)
        self_index = None if self_index is None else _as_self_index(self_index, x, reference)
    elif self_index is not None:
        raise ValueError("self_index: expected None without a reference (each row is then its own), got a tensor")
    _check_k(k, x, reference, self_index)
    if progress is not None:
        with torch.no_grad():
            return _search(x, reference, self_index, k, progress)
    return Neighbors(*_neighbors_op(x, reference, self_index, k, reference_grad))


def neighbor_distances(x: Tensor, k: int, reference: Tensor | None = None) -> Tensor:
    """Distances (N, k), ascending, of every row of x to its k nearest rows of the reference.

    With no reference, neighbors are sought in x itself and each row's own index is excluded; a duplicate elsewhere
    counts as a neighbor at distance 0. See `neighbors` for what is accepted and raised.

    >>> neighbor_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), k=1)
    tensor([[5.],
            [5.]])
    >>> neighbor_distances(torch.tensor([[0.0]]), k=2, reference=torch.tensor([[0.0], [2.0], [9.0]]))
    tensor([[0., 2.]])
    """
    return neighbors(x, k, reference).distances


def as_matrix(value: Any, name: str) -> Tensor:
    """A floating tensor (N, D) from anything that torch.as_tensor takes; ValueError otherwise."""
    tensor = torch.as_tensor(value)
    if tensor.ndim != 2 or 0 in tensor.shape:
        raise ValueError(f"{name}: expected a non-empty matrix (N, D), got shape {tuple(tensor.shape)}")
    if tensor.is_complex():
        raise ValueError(f"{name}: expected real numbers, got {tensor.dtype}")
    return tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())


@torch.library.custom_op("ldreg::neighbors", mutates_args=())
def _neighbors_op(
    x: Tensor, reference: Tensor | None, self_index: Tensor | None, k: int, reference_grad: bool
) -> tuple[Tensor, Tensor]:
    return _search(x, reference, self_index, k, None)


@_neighbors_op.register_fake
def _(
    x: Tensor, reference: Tensor | None, self_index: Tensor | None, k: int, reference_grad: bool
) -> tuple[Tensor, Tensor]:
    shape = (x.shape[0], k)
    return x.new_empty(shape, dtype=_working_dtype(x, reference)), x.new_empty(shape, dtype=torch.int64)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, reference, _, _, reference_grad = inputs
    distances, indices = output
    ctx.mark_non_differentiable(indices)
    ctx.save_for_backward(x, reference, distances, indices)
    ctx.reference_grad = reference_grad


def _backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, Tensor | None, None, None, None]:
    x, reference, distances, indices = ctx.saved_tensors
    grad_x, grad_reference = _gradients_op(grad, x, reference, distances, indices, ctx.reference_grad)
    return grad_x, grad_reference if ctx.reference_grad and reference is not None else None, None, None, None


@torch.library.custom_op("ldreg::neighbors_backward", mutates_args=())
def _gradients_op(
    grad: Tensor, x: Tensor, reference: Tensor | None, distances: Tensor, indices: Tensor, reference_grad: bool
) -> tuple[Tensor, Tensor]:
    rows = x if reference is None else reference
    with torch.autocast(x.device.type, enabled=False):
        grad_x, grad_rows = pair_gradients(
            grad,
            x,
            rows,
            distances,
            indices,
            reference_grad=reference_grad,
            chunk_bytes=_PAIR_BYTES.get(x.device.type, 8 << 20),
        )
    if grad_rows is None:
        return grad_x, x.new_empty(0)
    return (grad_x.add_(grad_rows), x.new_empty(0)) if reference is None else (grad_x, grad_rows)


@_gradients_op.register_fake
def _(
    grad: Tensor, x: Tensor, reference: Tensor | None, distances: Tensor, indices: Tensor, reference_grad: bool
) -> tuple[Tensor, Tensor]:
    separate = reference_grad and reference is not None
    return torch.empty_like(x), torch.empty_like(reference) if separate else x.new_empty(0)


_neighbors_op.register_autograd(_backward, setup_context=_setup_context)


@dataclass(frozen=True)
class _Query:
    """One search: rows x, where to look (None: in x itself), and the frame that products are taken in."""

    x: Tensor
    reference: Tensor | None
    self_index: Tensor | None
    k: int
    frame: Frame
    dtype: torch.dtype

    @property
    def rows(self) -> Tensor:
        return self.x if self.reference is None else self.reference

    @property
    def count(self) -> int:
        """How many candidates to keep: some more than k, so that rounding rarely leaves a proof open."""
        return min(self.k + max(8, self.k // 4), _candidate_count(self.x, self.reference, self.self_index))

    def only(self, rows: Tensor) -> "_Query":
        """The same search for some of the queries."""
        own = rows if self.reference is None else None if self.self_index is None else self.self_index[rows]
        return replace(self, x=self.x[rows], reference=self.rows, self_index=own)


def _search(
    x: Tensor, reference: Tensor | None, self_index: Tensor | None, k: int, progress: Progress | None
) -> Neighbors:
    with torch.autocast(x.device.type, enabled=False), _full_precision_products(x.device):
        query = _Query(x, reference, self_index, k, _frame(x, reference), _working_dtype(x, reference))
        found, proven = _measure(query, _by_products(query, query.dtype, progress))
        for by_precision in (partial(_by_products, dtype=torch.float64), _by_differences):
            doubtful = (~proven).nonzero().squeeze(1)
            if len(doubtful) == 0:
                break
            again, proven[doubtful] = _measure(query.only(doubtful), by_precision(query.only(doubtful)))
            found.distances[doubtful], found.indices[doubtful] = again
    return found


def _by_products(query: _Query, dtype: torch.dtype, progress: Progress | None = None) -> Candidates:
    memory = _SEARCH_BYTES.get(query.x.device.type, _SEARCH_BYTES["cpu"])
    if query.reference is None:
        return select_against_itself(
            query.x, query.count, query.frame, dtype=dtype, chunk_bytes=memory, progress=progress
        )
    return select(
        query.x,
        query.reference,
        query.count,
        query.frame,
        self_index=query.self_index,
        dtype=dtype,
        chunk_bytes=memory,
        progress=progress,
    )


def _by_differences(query: _Query) -> Candidates:
    memory = _SEARCH_BYTES.get(query.x.device.type, _SEARCH_BYTES["cpu"])
    return select_by_differences(
        query.x, query.rows, query.count, query.frame.scale, self_index=query.self_index, chunk_bytes=memory
    )


def _measure(query: _Query, candidates: Candidates) -> tuple[Neighbors, Tensor]:
    """The k nearest candidates by exact distance, and for which queries (N,) no other row can be nearer.

    A row left out may still tie with the k-th to rounding: it would change no distance.
    """
    memory = _PAIR_BYTES.get(query.x.device.type, _PAIR_BYTES["cpu"])
    distances = pair_distances(query.x, query.rows, candidates.indices, dtype=query.dtype, chunk_bytes=memory)
    distances, order = distances.topk(query.k, dim=1, largest=False, sorted=True)
    half_square = (distances[:, -1].double() * query.frame.scale).square() / 2
    proven = half_square * (1 - 4 * torch.finfo(query.dtype).eps) <= candidates.bound
    if query.count == _candidate_count(query.x, query.reference, query.self_index):
        # Nothing was left out, but for queries that are not in the reference and so have one candidate more.
        proven |= True if query.self_index is None else query.self_index >= 0
    return Neighbors(distances, candidates.indices.gather(1, order)), proven


def _frame(x: Tensor, reference: Tensor | None) -> Frame:
    """Center on the reference's mean, in units of the largest deviation; ValueError where a value is not finite."""
    mean, low, high = _column_statistics(
        x if reference is None else reference, "x" if reference is None else "reference"
    )
    # A mean of equal numbers may miss them by rounding, and a constant column must vanish.
    center = torch.minimum(torch.maximum(mean, low), high)
    if reference is not None:
        _, x_low, x_high = _column_statistics(x, "x")
        low, high = torch.minimum(low, x_low), torch.maximum(high, x_high)
    spread = float(torch.maximum(high - center, center - low).max())
    # A power of two scales without rounding.
    return Frame(center, 2.0 ** -math.frexp(spread)[1] if spread > 0 else 1.0)


def _column_statistics(x: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, minimum and maximum (D,) of each column in float64, block by block."""
    total = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
    low = torch.full_like(total, torch.inf)
    high = torch.full_like(total, -torch.inf)
    for rows in slices(len(x), max(1, (16 << 20) // (x.shape[1] * x.element_size()))):
        block = x[rows]
        low = torch.minimum(low, block.amin(0))
        high = torch.maximum(high, block.amax(0))
        total += block.mean(0, dtype=_working_dtype(x, None)).double() * (len(block) / len(x))
    if not bool((torch.isfinite(low) & torch.isfinite(high)).all()):
        wrong = sum(int((~torch.isfinite(x[rows])).any(1).sum()) for rows in slices(len(x), 4096))
        raise ValueError(f"{name}: expected finite numbers, got NaN or inf in {wrong} of {len(x)} rows")
    return total, low, high


@contextmanager
def _full_precision_products(device: torch.device) -> Iterator[None]:
    """Keep TF32 out of matrix products, and leave the caller's setting as it was."""
    if device.type != "cuda":
        yield
        return
    setting = torch.backends.cuda.matmul
    before = setting.fp32_precision
    setting.fp32_precision = "ieee"
    try:
        yield
    finally:
        setting.fp32_precision = before


def _working_dtype(x: Tensor, reference: Tensor | None) -> torch.dtype:
    double = x.dtype == torch.float64 or (reference is not None and reference.dtype == torch.float64)
    return torch.float64 if double else torch.float32


def _check_pair(x: Tensor, reference: Tensor) -> None:
    if reference.shape[1] != x.shape[1]:
        raise ValueError(
            f"reference: expected {x.shape[1]} columns as x has, got shape {tuple(reference.shape)} "
            f"for x of shape {tuple(x.shape)}"
        )
    if reference.device != x.device:
        raise ValueError(f"reference: expected it on {x.device} as x is, got {reference.device}")


def _as_self_index(self_index: Tensor, x: Tensor, reference: Tensor) -> Tensor:
    index = torch.as_tensor(self_index, device=x.device)
    if index.shape != (len(x),) or index.is_floating_point() or index.dtype == torch.bool:
        raise ValueError(
            f"self_index: expected {len(x)} integers, one for each row of x, "
            f"got shape {tuple(index.shape)} of {index.dtype}"
        )
    return index.long()


def _candidate_count(x: Tensor, reference: Tensor | None, self_index: Tensor | None) -> int:
    rows = x if reference is None else reference
    return len(rows) - (1 if reference is None or self_index is not None else 0)


def _check_k(k: int, x: Tensor, reference: Tensor | None, self_index: Tensor | None) -> None:
    count = _candidate_count(x, reference, self_index)
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= count:
        where = "x" if reference is None else "the reference"
        raise ValueError(
            f"k: expected an integer from 1 to {count}, the number of candidate neighbors in {where}, got {k!r}"
        )
