"""Which reference rows may be among the nearest: selection by matrix products, with a proof of completeness.

Half the squared distance, |x|²/2 + |y|²/2 - x·y, comes from one matrix product of rows that carry their own norms as
two further columns. Rounding moves that by at most γ(|x|² + |y|²) with γ of about (D + 16)·u, so shrinking the norms
by 2γ turns every entry into a lower bound of the true value. The rows kept are those of the smallest bounds;
a query whose exact k-th distance lies under the largest bound kept has provably lost no neighbor.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ldreg.lid.chunks import even_slices, slices

Progress = Callable[[float], None]


class Frame(NamedTuple):
    """Where rows are moved to before products: x -> scale·x - scale·center, so that offset and unit cost no digits."""

    center: Tensor
    scale: float


class Candidates(NamedTuple):
    """Reference rows (N, count) in no order, and a bound (N,) that half the squared distance of all others reaches."""

    indices: Tensor
    bound: Tensor


class _Rows:
    """Rows of a set, moved into a frame and lifted to D + 2 columns, block by block."""

    def __init__(self, x: Tensor, frame: Frame, *, dtype: torch.dtype, cache_bytes: int) -> None:
        self._x, self._scale, self._dtype = x, frame.scale, dtype
        self._shift = -frame.scale * frame.center.to(dtype)
        self._shrink = 0.5 * (1 - 2 * _rounding(x.shape[1], dtype))
        self._norms: dict[tuple[int, int], Tensor] = {}
        small = len(x) * (x.shape[1] + 2) * dtype.itemsize <= cache_bytes
        self._cache = self._lift(slice(0, len(x)), sign=1) if small else None

    def left(self, rows: slice) -> Tensor:
        """(-x, |x|²/2, 1)."""
        return self._lift(rows, sign=-1)

    def right(self, rows: slice) -> Tensor:
        """(x, 1, |x|²/2)."""
        return self._lift(rows, sign=1) if self._cache is None else self._cache[rows]

    def _lift(self, rows: slice, *, sign: int) -> Tensor:
        block = self._x[rows].to(self._dtype)
        n, dim = block.shape
        lifted = torch.empty(n, dim + 2, dtype=self._dtype, device=block.device)
        moved = lifted[:, :dim]
        torch.add(sign * self._shift, block, alpha=sign * self._scale, out=moved)
        norm, one = (dim, dim + 1) if sign < 0 else (dim + 1, dim)
        key = (rows.start, rows.stop)
        if key not in self._norms:
            norms = torch.linalg.vector_norm(moved, dim=1, dtype=torch.float64)
            self._norms[key] = norms.square_().mul_(self._shrink).to(self._dtype)
        lifted[:, norm] = self._norms[key]
        lifted[:, one] = 1
        return lifted


def _rounding(dim: int, dtype: torch.dtype) -> float:
    """By how much of (|x|² + |y|²) rounding can move half a squared distance.

    A product of `dim` + 2 terms, plus what moving the rows into the frame and rounding their norms adds. Norms are
    summed in float64, so only there do they add a sum's rounding of their own.
    """
    terms = dim + 16 if dtype == torch.float32 else 2 * dim + 16
    share = terms * torch.finfo(dtype).eps / 2
    return share / (1 - share)


class _Reservoir:
    """The `count` smallest scores offered to each row and the columns they stand in.

    On the CPU an offer only appends the scores under a row's threshold, and rows are cut back to `count` when they
    run full, which tightens the threshold: most blocks cost one comparison. On other devices, where appending would
    wait for the device, every offer is cut back at once.
    """

    def __init__(self, rows: int, count: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self.count = count
        self._lazy = device.type == "cpu"
        self._capacity = 4 * count if self._lazy else count
        self._scores = torch.full((rows, self._capacity), torch.inf, dtype=dtype, device=device)
        self._columns = torch.zeros((rows, self._capacity), dtype=torch.int32, device=device)
        self._fill = torch.zeros(rows, dtype=torch.int64, device=device)
        self._threshold = torch.full((rows,), torch.inf, dtype=dtype, device=device)

    def offer(self, rows: slice, scores: Tensor, first_column: int) -> None:
        """Offer `scores` (n, m) of the given rows in the columns from `first_column` on."""
        if self._lazy and self._append(rows, scores, first_column):
            return
        self._cut(rows)
        if self._lazy and self._append(rows, scores, first_column):
            return
        self._merge(rows, scores, first_column)

    def result(self) -> Candidates:
        """What is kept, once all has been offered."""
        for rows in slices(len(self._fill), 4096):
            self._cut(rows)
        return Candidates(self._columns[:, : self.count].long(), self._threshold)

    def _append(self, rows: slice, scores: Tensor, first_column: int) -> bool:
        """Append what lies under the threshold; False, with nothing done, where a row has no room for it."""
        threshold, fill = self._threshold[rows], self._fill[rows]
        if scores.shape[1] > self._capacity and bool(torch.isinf(threshold).any()):
            return False
        row, column = (scores < threshold.unsqueeze(1)).contiguous().nonzero().unbind(1)
        counts = torch.bincount(row, minlength=len(fill))
        if int((fill + counts).max()) > self._capacity:
            return False
        position = torch.arange(len(row)) - (counts.cumsum(0) - counts - fill)[row]
        place = (row + rows.start) * self._capacity + position
        self._scores.view(-1).scatter_(0, place, scores[row, column])
        self._columns.view(-1).scatter_(0, place, (column + first_column).to(torch.int32))
        self._fill[rows] = fill + counts
        return True

    def _cut(self, rows: slice) -> None:
        """Keep the `count` smallest of each row."""
        if not self._lazy or int(self._fill[rows].max()) <= self.count:
            self._threshold[rows] = self._scores[rows, : self.count].amax(1)
            return
        self._keep(rows, self._scores[rows], self._columns[rows])

    def _merge(self, rows: slice, scores: Tensor, first_column: int) -> None:
        """Keep the `count` smallest of what is held and what is offered."""
        width = min(self.count, scores.shape[1])
        best, column = scores.topk(width, dim=1, largest=False, sorted=False)
        held_scores, held_columns = self._scores[rows, : self.count], self._columns[rows, : self.count]
        offered = (column + first_column).to(torch.int32)
        self._keep(rows, torch.cat((held_scores, best), 1), torch.cat((held_columns, offered), 1))

    def _keep(self, rows: slice, scores: Tensor, columns: Tensor) -> None:
        best, position = scores.topk(self.count, dim=1, largest=False, sorted=False)
        self._columns[rows, : self.count] = columns.gather(1, position)
        self._scores[rows, : self.count] = best
        self._scores[rows, self.count :] = torch.inf
        self._fill[rows] = self.count
        self._threshold[rows] = best.amax(1)


def select_against_itself(
    x: Tensor, count: int, frame: Frame, *, dtype: torch.dtype, chunk_bytes: int, progress: Progress | None
) -> Candidates:
    """Candidates of every row of x among the others; each product of two blocks serves the rows of both."""
    rows = _Rows(x, frame, dtype=dtype, cache_bytes=chunk_bytes)
    reservoir = _Reservoir(len(x), count, dtype=dtype, device=x.device)
    blocks = _blocks(len(x), x.shape[1], dtype=dtype, device=x.device, chunk_bytes=chunk_bytes)
    done, total = 0, len(blocks) * (len(blocks) + 1) // 2
    for i, mine in enumerate(blocks):
        left = rows.left(mine)
        for theirs in blocks[i:]:
            scores = left @ rows.right(theirs).T
            if theirs is mine:
                scores.fill_diagonal_(torch.inf)
            else:
                reservoir.offer(theirs, scores.T, mine.start)
            reservoir.offer(mine, scores, theirs.start)
            done += 1
            if progress is not None:
                progress(done / total)
    return reservoir.result()


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
    queries = _Rows(x, frame, dtype=dtype, cache_bytes=0)
    rows = _Rows(reference, frame, dtype=dtype, cache_bytes=chunk_bytes)
    query_blocks = _blocks(len(x), x.shape[1], dtype=dtype, device=x.device, chunk_bytes=chunk_bytes)
    blocks = _blocks(len(reference), x.shape[1], dtype=dtype, device=x.device, chunk_bytes=chunk_bytes)
    parts = []
    for i, mine in enumerate(query_blocks):
        left = queries.left(mine)
        reservoir = _Reservoir(len(left), count, dtype=dtype, device=x.device)
        for j, theirs in enumerate(blocks):
            scores = left @ rows.right(theirs).T
            if self_index is not None:
                _leave_out(scores, self_index[mine] - theirs.start)
            reservoir.offer(slice(0, len(left)), scores, theirs.start)
            if progress is not None:
                progress((i + (j + 1) / len(blocks)) / len(query_blocks))
        parts.append(reservoir.result())
    return _joined(parts)


def select_by_differences(
    x: Tensor, reference: Tensor, count: int, scale: float, *, self_index: Tensor | None, chunk_bytes: int
) -> Candidates:
    """Candidates from differences in float64: slow, and right where even float64 products cannot tell rows apart."""
    step = max(1, min(1024, chunk_bytes // (32 * x.shape[1])))
    parts = []
    for mine in slices(len(x), step):
        queries = x[mine].double() * scale
        reservoir = _Reservoir(len(queries), count, dtype=torch.float64, device=x.device)
        for theirs in slices(len(reference), step):
            rows = reference[theirs].double() * scale
            scores = torch.cdist(queries, rows, compute_mode="donot_use_mm_for_euclid_dist")
            if self_index is not None:
                _leave_out(scores, self_index[mine] - theirs.start)
            reservoir.offer(slice(0, len(queries)), scores, theirs.start)
        parts.append(reservoir.result())
    return _joined(parts)


def _joined(parts: list[Candidates]) -> Candidates:
    indices, bounds = zip(*parts, strict=True)
    return Candidates(torch.cat(indices), torch.cat(bounds))


def _leave_out(scores: Tensor, column: Tensor) -> None:
    """Set scores[i, column[i]] to inf where that column exists; without a wait for the device."""
    inside = (column >= 0) & (column < scores.shape[1])
    place = torch.where(inside, column, 0).unsqueeze(1)
    value = torch.where(inside.unsqueeze(1), torch.inf, scores.gather(1, place))
    scores.scatter_(1, place, value)


def _blocks(n: int, dim: int, *, dtype: torch.dtype, device: torch.device, chunk_bytes: int) -> list[slice]:
    """Even blocks of rows such that two lifted blocks, their product and its mask stay within the budget."""
    size = 8192 if device.type == "cuda" else 1024
    while size > 16 and (2 * size * (dim + 2) + 2 * size * size) * dtype.itemsize > chunk_bytes:
        size //= 2
    return even_slices(n, size)
