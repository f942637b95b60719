"""Which reference rows may be among the nearest: selection by matrix products, with a proof of completeness.

Products of lifted rows are lower bounds of half the squared distances. The rows kept are those of the smallest bounds;
a query whose exact k-th distance lies under the largest bound kept has provably lost no neighbor.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ldreg.dimension.chunks import slices
from ldreg.dimension.lifting import Frame as Frame
from ldreg.dimension.lifting import LiftedRows
from ldreg.dimension.reservoir import Kept, Reservoir, SiftingReservoir

Progress = Callable[[float], None]


class Candidates(NamedTuple):
    """Reference rows (N, count) in no order, and a bound (N,) that half the squared distance of all others reaches."""

    indices: Tensor
    bound: Tensor


def select_against_itself(
    x: Tensor, count: int, frame: Frame, *, dtype: torch.dtype, chunk_bytes: int, progress: Progress | None
) -> Candidates:
    """Candidates of every row of x among the others; each product of two blocks serves the rows of both."""
    blocks = _blocks(len(x), x.shape[1], dtype=dtype, device=x.device, chunk_bytes=chunk_bytes)
    order = _order(blocks, x.device)
    rows = LiftedRows(x, frame, order=order, dtype=dtype, cache_bytes=chunk_bytes)
    reservoir = _reservoir(len(x), count, total=len(x), dtype=dtype, device=x.device)
    group = _group(blocks, x.shape[1], dtype=dtype, device=x.device, chunk_bytes=chunk_bytes)
    done, total = 0, len(blocks) * (len(blocks) + 1) // 2
    for some in slices(len(blocks), group):
        lefts = [(mine, rows.left(mine)) for mine in blocks[some]]
        for mine, theirs, scores in _products(lefts, rows, blocks[some.start :], half=True):
            if theirs is mine:
                scores.fill_diagonal_(torch.inf)
            else:
                reservoir.offer(theirs, scores.T, mine.start)
            reservoir.offer(mine, scores, theirs.start)
            done += 1
            if progress is not None:
                progress(done / total)
    found = _completed(reservoir.result(), rows, rows, blocks, count, own=torch.arange(len(x), device=x.device))
    if order is None:
        return found
    places = _places(order)[:-1]
    return Candidates(_rows_at(found.indices.index_select(0, places), order), found.bound[places])


def select(
    x: Tensor,
    reference: Tensor,
    count: int,
    frame: Frame,
    *,
    self_index: Tensor | None,
    dtype: torch.dtype,
    chunk_bytes: int,
    progress: Progress | None = None,
) -> Candidates:
    """Candidates of every row of x in the reference, where row i of x is not offered row self_index[i]."""
    query_blocks = _blocks(len(x), x.shape[1], dtype=dtype, device=x.device, chunk_bytes=chunk_bytes)
    blocks = _blocks(len(reference), x.shape[1], dtype=dtype, device=x.device, chunk_bytes=chunk_bytes)
    order = _order(blocks, x.device)
    queries = LiftedRows(x, frame, order=None, dtype=dtype, cache_bytes=0)
    rows = LiftedRows(reference, frame, order=order, dtype=dtype, cache_bytes=chunk_bytes)
    own = self_index if order is None or self_index is None else _places(order)[self_index]
    group = _group(query_blocks, x.shape[1], dtype=dtype, device=x.device, chunk_bytes=chunk_bytes)
    parts, done, total = [], 0, len(query_blocks) * len(blocks)
    for some in slices(len(query_blocks), group):
        lefts = [(mine, queries.left(mine)) for mine in query_blocks[some]]
        first, last = lefts[0][0].start, lefts[-1][0].stop
        reservoir = _reservoir(last - first, count, total=len(reference), dtype=dtype, device=x.device)
        for mine, theirs, scores in _products(lefts, rows, blocks):
            if own is not None:
                _leave_out(scores, own[mine] - theirs.start)
            reservoir.offer(slice(mine.start - first, mine.stop - first), scores, theirs.start)
            done += 1
            if progress is not None:
                progress(done / total)
        kept = reservoir.result()
        parts.append(kept._replace(short=kept.short + first))
    columns, bounds, shorts = (torch.cat(each) for each in zip(*parts, strict=True))
    found = _completed(Kept(columns, bounds, shorts), queries, rows, blocks, count, own=own)
    return found if order is None else found._replace(indices=_rows_at(found.indices, order))


def _completed(
    kept: Kept, queries: LiftedRows, rows: LiftedRows, blocks: list[slice], count: int, *, own: Tensor | None
) -> Candidates:
    """What was kept, with the queries whose thresholds were guessed too low searched again without a guess."""
    for some in slices(len(kept.short), 1024):
        short = kept.short[some]
        left = queries.left(short)
        reservoir = _reservoir(len(left), count, total=None, dtype=left.dtype, device=left.device)
        for mine, theirs, scores in _products([(slice(0, len(left)), left)], rows, blocks):
            if own is not None:
                _leave_out(scores, own[short] - theirs.start)
            reservoir.offer(mine, scores, theirs.start)
        kept.columns[short], kept.bound[short], _ = reservoir.result()
    return Candidates(kept.columns, kept.bound)


def _products(
    lefts: list[tuple[slice, Tensor]], rows: LiftedRows, blocks: list[slice], *, half: bool = False
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Scores of left blocks in block after block (half: those that come no earlier); each is lifted for all of them."""
    for theirs in blocks:
        right = rows.right(theirs)
        for mine, left in lefts:
            if not half or mine.start <= theirs.start:
                yield mine, theirs, left @ right.T


def select_by_differences(
    x: Tensor, reference: Tensor, count: int, scale: float, *, self_index: Tensor | None, chunk_bytes: int
) -> Candidates:
    """Candidates from differences in float64: slow, and right where even float64 products cannot tell rows apart."""
    step = max(1, min(1024, chunk_bytes // (32 * x.shape[1])))
    parts = []
    for mine in slices(len(x), step):
        queries = x[mine].double() * scale
        reservoir = _reservoir(len(queries), count, total=None, dtype=torch.float64, device=x.device)
        for theirs in slices(len(reference), step):
            rows = reference[theirs].double() * scale
            scores = torch.cdist(queries, rows, compute_mode="donot_use_mm_for_euclid_dist")
            if self_index is not None:
                _leave_out(scores, self_index[mine] - theirs.start)
            reservoir.offer(slice(0, len(queries)), scores, theirs.start)
        parts.append(reservoir.result())
    indices, bounds, _ = (torch.cat(each) for each in zip(*parts, strict=True))
    return Candidates(indices, bounds)


def _reservoir(rows: int, count: int, *, total: int | None, dtype: torch.dtype, device: torch.device) -> Reservoir:
    """A reservoir for blocks of columns that are fair samples of `total` (None: that are not)."""
    if device.type == "cpu":
        return SiftingReservoir(rows, count, total=total, dtype=dtype)
    return Reservoir(rows, count, dtype=dtype, device=device)


def _leave_out(scores: Tensor, column: Tensor) -> None:
    """Set scores[i, column[i]] to inf where that column exists; without a wait for the device."""
    inside = (column >= 0) & (column < scores.shape[1])
    place = torch.where(inside, column, 0).unsqueeze(1)
    value = torch.where(inside.unsqueeze(1), torch.inf, scores.gather(1, place))
    scores.scatter_(1, place, value)


def _order(blocks: list[slice], device: torch.device) -> Tensor | None:
    """A random order, the same each time, that makes blocks fair samples of all rows; None where none is needed."""
    if device.type != "cpu" or len(blocks) == 1:
        return None
    return torch.randperm(blocks[-1].stop, generator=torch.Generator().manual_seed(0), device="cpu")


def _places(order: Tensor) -> Tensor:
    """Where in the order a row comes; one place more, for -1, stays -1.

    >>> _places(torch.tensor([2, 0, 1]))
    tensor([ 1,  2,  0, -1])
    """
    return torch.cat((order.argsort(), order.new_tensor([-1])))


def _rows_at(places: Tensor, order: Tensor) -> Tensor:
    """Which rows stand in those places (n, m) of the order."""
    return order.index_select(0, places.view(-1)).view(places.shape)


def _blocks(n: int, dim: int, *, dtype: torch.dtype, device: torch.device, chunk_bytes: int) -> list[slice]:
    """Blocks of rows such that two lifted blocks, their product and its mask stay within the budget.

    All but the last are multiples of 16 rows, without which products on the CPU take half as long again.
    """
    size = 8192 if device.type == "cuda" else 1024
    while size > 16 and (2 * size * (dim + 2) + 2 * size * size) * dtype.itemsize > chunk_bytes:
        size //= 2
    parts = -(-n // size)
    return list(slices(n, -(-n // (16 * parts)) * 16))


def _group(blocks: list[slice], dim: int, *, dtype: torch.dtype, device: torch.device, chunk_bytes: int) -> int:
    """How many left blocks to hold at a time: on the CPU, where lifting shows beside products, half the budget."""
    return max(1, chunk_bytes // (2 * blocks[0].stop * (dim + 2) * dtype.itemsize)) if device.type == "cpu" else 1
