"""Exact nearest neighbors: candidates by products, distances from differences, and a proof for every query.

A query whose proof stays open is searched again: in float32 where the tensor cores chose its candidates, then in
float64, and finally by differences alone.
"""

import gc
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial, wraps
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ldreg.dimension.candidates import (
    Candidates,
    Frame,
    LiftedRows,
    Progress,
    Query,
    by_differences,
    by_products,
    rounding,
    slices,
)
from ldreg.dimension.cuda import nearest

T = TypeVar("T")

# Working memory of a search and of its backward pass, beyond input and output.
_SEARCH_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
_PAIR_BYTES = {"cpu": 8 << 20, "cuda": 256 << 20}

# Outside this range, squares of differences lose digits to underflow or overflow.
_SAFE = {torch.float32: (1e-15, 1e15), torch.float64: (1e-140, 1e140)}

# Groups of open queries. Distances are in units of the distance to the k-th row.
_PIVOTS = 256  # at a time
_FEWEST_QUERIES = 16  # of a group; fewer are not worth a search of their own
_APART = 1.5  # least distance between pivots, so that a cluster has one
_AROUND = 2.0  # largest distance of a query from its pivot, so that few rows are near the group
_FEW_ROWS = 0.25  # largest share of the rows near a group; with more, a search among all is as fast
_WORTH_A_ROUND = 0.9  # another round of pivots follows unless this share of the queries is still open

# Share of a CPU's cache that part of a reference may take, and the multiple of bytes that its columns are cut to.
_CACHE_BYTES = 6 << 20
_PIECE_BYTES = 256


class Neighbors(NamedTuple):
    """Distances (N, k), ascending, and the reference rows (N, k) they belong to."""

    distances: Tensor
    indices: Tensor


# One way to select candidates for a query.
_Way = Callable[[Query], Candidates]


def search(
    x: Tensor,
    reference: Tensor | None,
    self_index: Tensor | None,
    k: int,
    progress: Progress | None = None,
    *,
    memory: int | None = None,
) -> Neighbors:
    """The k nearest rows of the reference (None: of x, each row's own index excluded) for every row of x.

    `memory` lowers the usual budget in bytes, for callers that know how little is left.
    """
    usual = _bytes(_SEARCH_BYTES, x)
    with torch.autocast(x.device.type, enabled=False), _full_precision_products(x.device):
        frame, dtype = _frame(x, reference), working_dtype(x, reference)
        query = Query(x, reference, self_index, k, frame, dtype, usual if memory is None else min(memory, usual))
        found, proven = first_pass(query, progress)
        if x.device.type == "cpu" and not proven.all():
            _search_groups(query, found, proven)
        ways: list[_Way] = [partial(by_products, dtype=torch.float64), by_differences]
        if nearest.supports(query):
            ways.insert(0, partial(by_products, dtype=dtype))
        for way in ways:
            open_rows = (~proven).nonzero().squeeze(1)
            if len(open_rows) == 0:
                break
            again = query.only(open_rows)
            # Around the median of these queries, which far outliers do not move.
            center = again.x[:: max(1, len(again.x) // 1024)].double().median(0).values
            again = replace(again, frame=query.frame._replace(center=center))
            (found.distances[open_rows], found.indices[open_rows]), proven[open_rows] = _search_by(again, way)
    return found


def _search_groups(query: Query, found: Neighbors, proven: Tensor) -> None:
    """Search tight groups of open queries again, each among the rows near it; `found` and `proven` are updated.

    Rounding is relative to the distance from the center of the frame. Products far from it cannot tell the neighbors
    in a tight cluster apart. A search among the rows near a group has its center there.
    """
    open_rows = (~proven).nonzero().squeeze(1)
    while len(open_rows) >= _FEWEST_QUERIES:
        open_before, again = len(open_rows), query.only(open_rows)
        for members, near_rows in _groups(again, found.distances[open_rows, -1]):
            own = again.self_index
            places = None if own is None else torch.searchsorted(near_rows, own[members]).where(own[members] >= 0, -1)
            part = search(again.x[members], query.rows[near_rows], places, query.k, memory=query.memory)
            rows = open_rows[members]
            found.distances[rows], found.indices[rows], proven[rows] = part.distances, near_rows[part.indices], True
        open_rows = (~proven).nonzero().squeeze(1)
        if len(open_rows) > _WORTH_A_ROUND * open_before:
            break


def _groups(query: Query, reach: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Groups of queries, and the rows among which their neighbors lie, where these are few.

    A group lies around a pivot p, one of its queries. `reach` r is the distance of a query x to the k-th row found so
    far. Row y is no neighbor of x if |y - p| > |x - p| + r.
    """
    most = max(1, query.memory // (16 * len(query.rows)))
    order = torch.randperm(len(query.x), generator=torch.Generator().manual_seed(0), device="cpu")
    tried = order[: min(most, _PIVOTS)]
    queries = LiftedRows(query.x, query.frame, order=None, dtype=query.dtype, cache_bytes=0)
    lifted_pivots = queries.left(tried)
    distances = _least_distances(lifted_pivots, queries)
    # What rounding may take from a distance: products are shrunk by at most 4γ|x|² (see `candidates`).
    error = (2 * queries.largest_square() * 4 * rounding(query.x.shape[1], query.dtype)) ** 0.5
    scaled_reach = reach * (query.frame.scale * (1 + 1e-6))
    pivots = list[int]()  # their places in `tried`
    for place, row in enumerate(tried.tolist()):
        if not pivots or distances[pivots, row].min() > _APART * scaled_reach[row]:
            pivots.append(place)
    distance, pivot_of = distances[pivots].min(0)
    pivot_of[distance > _AROUND * scaled_reach] = -1
    rows = LiftedRows(query.rows, query.frame, order=None, dtype=query.dtype, cache_bytes=0)
    to_rows = _least_distances(lifted_pivots[pivots], rows)
    for place in range(len(pivots)):
        members = (pivot_of == place).nonzero().squeeze(1)
        if len(members) >= _FEWEST_QUERIES:
            limit = (distance[members] + scaled_reach[members]).max() + error
            near_rows = (to_rows[place] <= limit).nonzero().squeeze(1)
            if len(near_rows) <= _FEW_ROWS * len(query.rows):
                yield members, near_rows


def _least_distances(left: Tensor, rows: LiftedRows) -> Tensor:
    """Lower bounds (m, n) of distances in the frame."""
    scores = torch.cat([left @ rows.right(some).T for some in slices(len(rows), 1024)], 1)
    return scores.clamp_min_(0).mul_(2).sqrt_()


def first_pass(query: Query, progress: Progress | None = None) -> tuple[Neighbors, Tensor]:
    """Neighbors by the fastest way, and the queries (N,) for which they are proven to be the nearest."""
    if nearest.supports(query):
        try:
            return _search_by(query, partial(nearest.nearest, progress=progress))
        except torch.OutOfMemoryError:
            pass  # its copy of the rows may be too large where products of a few rows at a time are not
    return _search_by(query, partial(by_products, dtype=query.dtype, progress=progress))


def _search_by(query: Query, way: _Way) -> tuple[Neighbors, Tensor]:
    def run(memory: int) -> tuple[Neighbors, Tensor]:
        smaller = replace(query, memory=memory)
        return _prove(smaller, way(smaller))

    return within_memory(run, query.memory)


def _prove(query: Query, candidates: Candidates) -> tuple[Neighbors, Tensor]:
    """The k nearest candidates by exact distance, and the queries (N,) for which no other row can be nearer.

    A row left out may still tie with the k-th up to rounding, which changes no distance.
    """
    distances, order = _distances(query, candidates.indices).topk(query.k, dim=1, largest=False, sorted=True)
    half_square = (distances[:, -1].double() * query.frame.scale).square() / 2
    proven = half_square * (1 - 4 * torch.finfo(query.dtype).eps) <= candidates.bound
    proven |= half_square == 0  # nothing is nearer than a duplicate
    if candidates.indices.shape[1] == query.available:
        # Nothing was left out, except for queries outside the reference, which have one candidate more.
        proven |= True if query.self_index is None else query.self_index >= 0
    return Neighbors(distances, candidates.indices.gather(1, order)), proven


def _distances(query: Query, indices: Tensor) -> Tensor:
    """Distances (N, count) to these rows, accurate to rounding; inf where an index is -1."""
    memory = min(query.memory, _bytes(_PAIR_BYTES, query.x))
    if not nearest.supports(query):
        return pair_distances(query.x, query.rows, indices, dtype=query.dtype, chunk_bytes=memory)
    distances, unsafe = nearest.distances(query.x, query.rows, indices, query.frame.scale)
    if len(unsafe):
        some = pair_distances(
            query.x[unsafe], query.rows, indices[unsafe].clamp_min(0), dtype=query.dtype, chunk_bytes=memory
        )
        distances[unsafe] = torch.where(indices[unsafe] >= 0, some, torch.inf)
    return distances


def _frame(x: Tensor, reference: Tensor | None) -> Frame:
    """Center on the reference's mean, in units of the largest deviation; ValueError where a value is not finite."""
    sets = {"x": x} if reference is None else {"x": x, "reference": reference}
    statistics = {name: _column_statistics(rows) for name, rows in sets.items()}
    mean, low, high = statistics["x" if reference is None else "reference"]
    # Rounding may move a mean of equal numbers away from them, but a constant column must vanish.
    center = torch.minimum(torch.maximum(mean, low), high)
    low = torch.stack([each[1] for each in statistics.values()]).amin(0)
    high = torch.stack([each[2] for each in statistics.values()]).amax(0)
    extremes = torch.stack((torch.maximum(high - center, center - low).max(), torch.maximum(high, -low).max()))
    spread, largest = extremes.tolist()  # the only wait for the device
    if not math.isfinite(largest):
        for name, rows in sets.items():
            refuse_nonfinite(rows, name)
    limits = torch.finfo(working_dtype(x, reference))
    if 2 * spread > limits.max / x.shape[1] ** 0.5:
        peaks = {name: torch.maximum(high, -low).max().item() for name, (_, low, high) in statistics.items()}
        name = max(peaks, key=lambda each: peaks[each])
        raise ValueError(
            f"{name}: expected values whose distances fit {limits.dtype}, got values up to {peaks[name]:.3g}"
        )
    # A power of two scales without rounding; neither it nor the offset may leave the range of the dtype.
    room = 120 if limits.dtype == "float32" else 1000
    exponent = min(-math.frexp(spread)[1], room // 2 - math.frexp(largest)[1], room) if spread > 0 else 0
    return Frame(center, 2.0**exponent)


def _column_statistics(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, minimum and maximum (D,) of each column in float64, block by block; NaN where a value is."""
    dtype = working_dtype(x, None)
    total = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
    low = torch.full_like(total, torch.inf)
    high = torch.full_like(total, -torch.inf)
    for rows in slices(len(x), max(1, _bytes(_PAIR_BYTES, x) * 2 // (x.shape[1] * x.element_size()))):
        block = x[rows]
        low = torch.minimum(low, block.amin(0))
        high = torch.maximum(high, block.amax(0))
        # A product with equal weights, since a sum may overflow where a mean does not.
        weights = torch.full((len(block),), 1 / len(x), dtype=dtype, device=x.device)
        total += (weights @ block.to(dtype)).double()
    return total, low, high


def refuse_nonfinite(x: Tensor, name: str) -> None:
    """Raise ValueError with the number of rows of x (N, D) that hold NaN or inf, if any, and the first five."""
    wrong, first = 0, list[int]()
    for rows in slices(len(x), 4096):
        bad = (~torch.isfinite(x[rows])).any(1).nonzero().flatten()
        first += (bad[: 5 - len(first)] + rows.start).tolist()
        wrong += len(bad)
    if wrong:
        named = ", ".join(map(str, first)) + (", ..." if wrong > len(first) else "")
        raise ValueError(
            f"{name}: expected finite numbers, got NaN or inf in {wrong} of {len(x)} rows (from 0: {named})"
        )


def pair_distances(x: Tensor, reference: Tensor, indices: Tensor, *, dtype: torch.dtype, chunk_bytes: int) -> Tensor:
    """Distances (N, k) of x (N, D) to reference[indices] (N, k, D), accurate to rounding at any offset and scale."""
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
    """Columns to take at a time: on the CPU few enough to keep that piece of every row in the cache, otherwise all.

    Pieces pay where each row is gathered many times, as a neighbor of many others.
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


def _scaled_distances(x: Tensor, reference: Tensor, indices: Tensor, *, chunk_bytes: int) -> Tensor:
    """The same in float64, with the largest component of each difference scaled to 1 before squaring."""
    parts = []
    for _, difference in _differences(x, reference, indices, dtype=torch.float64, chunk_bytes=chunk_bytes):
        largest = torch.linalg.vector_norm(difference, ord=torch.inf, dim=2, keepdim=True)
        difference.div_(torch.where(largest > 0, largest, 1))
        parts.append(torch.linalg.vector_norm(difference, dim=2) * largest.squeeze(2))
    return torch.cat(parts)


def _differences(
    x: Tensor, reference: Tensor, indices: Tensor, *, dtype: torch.dtype, chunk_bytes: int
) -> Iterator[tuple[slice, Tensor]]:
    """Slices of x with reference[indices] - x for them, (n, k, D), in one buffer that is reused."""
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


def gradients(
    grad: Tensor, x: Tensor, reference: Tensor | None, found: Neighbors, *, reference_grad: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients for x and, on request, for a reference, of a loss whose gradient for the distances is `grad`.

    With no reference, the gradient for x includes that of its rows as neighbors. A distance of zero has no direction;
    its subgradient is zero, as in torch.linalg.vector_norm.
    """
    distances, indices = found
    rows = x if reference is None else reference
    dtype, memory = distances.dtype, _bytes(_PAIR_BYTES, x)
    terms = distances.shape[1] + (len(x) if reference_grad else 0)  # summed for one row at most
    limit = torch.finfo(dtype).max / (2 * terms)
    grad_x = torch.empty(x.shape, dtype=dtype, device=x.device)
    grad_rows = torch.zeros(rows.shape, dtype=dtype, device=x.device) if reference_grad else None
    with torch.autocast(x.device.type, enabled=False), _full_precision_products(x.device):
        for part, difference in _differences(x, rows, indices, dtype=dtype, chunk_bytes=memory):
            norm = distances[part]
            # Unit vectors first: the quotient grad / distance overflows where distances are tiny.
            difference.div_(torch.where(norm > 0, norm, torch.inf).unsqueeze(2))
            # A slope too steep for the dtype is cut to its range, so that sums of slopes stay finite.
            weight = grad[part].to(dtype).clamp(-limit, limit)
            grad_x[part] = torch.bmm(weight.unsqueeze(1), difference).squeeze(1).neg_()
            if grad_rows is not None:
                difference.mul_(weight.unsqueeze(2))
                grad_rows.index_add_(0, indices[part].reshape(-1), difference.flatten(0, 1))
    grad_x = grad_x.to(x.dtype)
    if grad_rows is None:
        return grad_x, None
    grad_rows = grad_rows.to(rows.dtype)
    return (grad_x.add_(grad_rows), None) if reference is None else (grad_x, grad_rows)


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Make a backward pass raise RuntimeError where its own derivative is asked for.

    torch's `once_differentiable` raises only where the incoming gradient has a derivative too.
    """

    @wraps(backward)
    def checked(*arguments: Any) -> Any:
        if not torch.is_grad_enabled():
            return backward(*arguments)
        # The transforms of torch.func always ask, whether or not they take a second derivative.
        if not torch._C._are_functorch_transforms_active():
            raise RuntimeError("distances of neighbors: expected create_graph=False, as they have no second derivative")
        with torch.no_grad():
            return backward(*arguments)

    return checked


@contextmanager
def _full_precision_products(device: torch.device) -> Iterator[None]:
    """Keep TF32 and bfloat16 out of float32 matrix products; the caller's setting is restored."""
    backend: Any = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    setting = backend.matmul
    before = setting.fp32_precision
    if before in ("ieee", "none"):
        yield
        return
    setting.fp32_precision = "ieee"
    try:
        yield
    finally:
        # The setting may have been inherited from the backend or from all backends, and then follows them again.
        setting.fp32_precision = "none"
        if setting.fp32_precision != before:
            setting.fp32_precision = before


def working_dtype(x: Tensor, reference: Tensor | None) -> torch.dtype:
    """Float64 where any input is, float32 otherwise."""
    double = x.dtype == torch.float64 or (reference is not None and reference.dtype == torch.float64)
    return torch.float64 if double else torch.float32


def _bytes(budget: dict[str, int], x: Tensor) -> int:
    return budget.get(x.device.type, budget["cpu"])


def within_memory(run: Callable[[int], T], budget: int, *, floor: int = 16 << 20) -> T:
    """Return `run(budget)`; halve the budget and retry each time it runs out of memory, and warn once per process.

    Raises:
        torch.OutOfMemoryError: `run` ran out of memory and half the budget is below the floor.

    >>> within_memory(lambda budget: f"{budget >> 20} MiB", 64 << 20)
    '64 MiB'
    """
    while True:
        try:
            return run(budget)
        except torch.OutOfMemoryError:
            if budget // 2 < floor:
                raise
        # The error, its traceback and the tensors of the attempt are only freed after the handler.
        budget //= 2
        gc.collect()  # frames of the traceback may be part of cycles
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        _warn_once()


@cache
def _warn_once() -> None:
    warnings.warn("out of memory: continuing with half as much at a time; the numbers are the same", stacklevel=3)
