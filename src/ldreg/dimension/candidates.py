"""Candidate neighbors from matrix products, with a bound that all other rows provably reach.

Rows are lifted by two columns that hold their norms, so that one product gives |x|²/2 + |y|²/2 - x·y, half the squared
distance. Rounding moves this by at most γ(|x|² + |y|²) with γ about (D + 16)·u. The norms are shrunk by 2γ, so every
product is a lower bound of the true value. The rows with the smallest bounds are kept: a query whose exact k-th
distance lies below the largest bound kept has lost no neighbor.
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

Progress = Callable[[float], None]

_FEW_DIMENSIONS = 2048  # up to here a few candidates more than k are enough


def slices(n: int, step: int) -> list[slice]:
    """Consecutive slices of length `step` that cover range(n); the last may be shorter.

    >>> slices(5, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def even_slices(n: int, limit: int) -> list[slice]:
    """The fewest slices of nearly equal length, at most `limit`, that cover range(n).

    >>> even_slices(5, 4)
    [slice(0, 2, None), slice(2, 5, None)]
    """
    parts = -(-n // limit)
    return [slice(n * part // parts, n * (part + 1) // parts) for part in range(parts)]


class Frame(NamedTuple):
    """The map x -> scale·x - scale·center that is applied before products, so that an offset costs no digits."""

    center: Tensor
    scale: float


class Candidates(NamedTuple):
    """Reference rows (N, count) in no order, and a lower bound (N,) of half the squared distance of all others."""

    indices: Tensor
    bound: Tensor


@dataclass(frozen=True)
class Query:
    """One search: rows x, the reference (None: x itself), the frame of products and a memory budget in bytes."""

    x: Tensor
    reference: Tensor | None
    self_index: Tensor | None
    k: int
    frame: Frame
    dtype: torch.dtype
    memory: int

    @property
    def rows(self) -> Tensor:
        """The rows among which neighbors are sought."""
        return self.x if self.reference is None else self.reference

    @property
    def available(self) -> int:
        """Number of rows that each query may have as neighbors."""
        return candidate_count(self.x, self.reference, self.self_index)

    @property
    def count(self) -> int:
        """Number of candidates to keep: a few more than k, so that rounding rarely leaves a proof open.

        In more dimensions distances are closer to each other and sums are less precise.
        """
        dim = min(max(self.x.shape[1], _FEW_DIMENSIONS), 8 * _FEW_DIMENSIONS)
        return min(self.k + max(8, self.k // 8) * dim // _FEW_DIMENSIONS, self.available)

    def only(self, rows: Tensor) -> "Query":
        """The same search for some of the queries."""
        own = rows if self.reference is None else None if self.self_index is None else self.self_index[rows]
        return replace(self, x=self.x[rows], reference=self.rows, self_index=own)


def candidate_count(x: Tensor, reference: Tensor | None, self_index: Tensor | None) -> int:
    """Number of rows each query may have as neighbors; one less where queries are among them."""
    rows = x if reference is None else reference
    return len(rows) - (1 if reference is None or self_index is not None else 0)


def by_products(query: Query, dtype: torch.dtype, progress: Progress | None = None) -> Candidates:
    """Candidates from matrix products in float32 or float64."""
    search = _within_x if query.reference is None else _in_reference
    return search(query, dtype, progress or (lambda fraction: None))


def by_differences(query: Query) -> Candidates:
    """Candidates from differences in float64: slow, but right where even float64 products cannot separate rows."""
    step = max(1, min(1024, query.memory // (32 * query.x.shape[1])))
    scale, parts = query.frame.scale, []
    for mine in slices(len(query.x), step):
        queries = query.x[mine].double() * scale
        reservoir = _reservoir(len(queries), query.count, total=None, dtype=torch.float64, device=query.x.device)
        for theirs in slices(len(query.rows), step):
            rows = query.rows[theirs].double() * scale
            scores = torch.cdist(queries, rows, compute_mode="donot_use_mm_for_euclid_dist")
            if query.self_index is not None:
                _leave_out(scores, query.self_index[mine] - theirs.start)
            reservoir.offer(slice(0, len(queries)), scores, theirs.start)
        parts.append(reservoir.result())
    indices, bounds, _ = (torch.cat(each) for each in zip(*parts, strict=True))
    return Candidates(indices, bounds.square() / 2)


def _within_x(query: Query, dtype: torch.dtype, progress: Progress) -> Candidates:
    """Candidates of every row of x among the others; each product of two blocks serves the rows of both."""
    x, count, memory = query.x, query.count, query.memory
    blocks = _blocks(x, dtype, memory)
    order = _order(blocks, x.device)
    rows = LiftedRows(x, query.frame, order=order, dtype=dtype, cache_bytes=memory)
    reservoir = _reservoir(len(x), count, total=len(x), dtype=dtype, device=x.device)
    done, total = 0, len(blocks) * (len(blocks) + 1) // 2
    for some in slices(len(blocks), _group(blocks, x, dtype, memory)):
        lefts = [(mine, rows.left(mine)) for mine in blocks[some]]
        for mine, theirs, scores in _products(lefts, rows, blocks[some.start :], half=True):
            if theirs is mine:
                scores.fill_diagonal_(torch.inf)
            else:
                reservoir.offer(theirs, scores.T, mine.start)
            reservoir.offer(mine, scores, theirs.start)
            done += 1
            progress(done / total)
    found = _completed(reservoir.result(), rows, rows, blocks, count, own=torch.arange(len(x), device=x.device))
    if order is None:
        return found
    places = _places(order)[:-1]
    return Candidates(order.take(found.indices.index_select(0, places)), found.bound[places])


def _in_reference(query: Query, dtype: torch.dtype, progress: Progress) -> Candidates:
    """Candidates of every row of x in the reference; query i is not offered row self_index[i]."""
    x, reference, count, memory = query.x, query.rows, query.count, query.memory
    query_blocks, blocks = _blocks(x, dtype, memory), _blocks(reference, dtype, memory)
    order = _order(blocks, x.device)
    queries = LiftedRows(x, query.frame, order=None, dtype=dtype, cache_bytes=0)
    rows = LiftedRows(reference, query.frame, order=order, dtype=dtype, cache_bytes=memory)
    own = query.self_index if order is None or query.self_index is None else _places(order)[query.self_index]
    parts, done, total = [], 0, len(query_blocks) * len(blocks)
    for some in slices(len(query_blocks), _group(query_blocks, x, dtype, memory)):
        lefts = [(mine, queries.left(mine)) for mine in query_blocks[some]]
        first, last = lefts[0][0].start, lefts[-1][0].stop
        reservoir = _reservoir(last - first, count, total=len(reference), dtype=dtype, device=x.device)
        for mine, theirs, scores in _products(lefts, rows, blocks, own=own):
            reservoir.offer(slice(mine.start - first, mine.stop - first), scores, theirs.start)
            done += 1
            progress(done / total)
        kept = reservoir.result()
        parts.append(kept._replace(short=kept.short + first))
    columns, bounds, shorts = (torch.cat(each) for each in zip(*parts, strict=True))
    found = _completed(Kept(columns, bounds, shorts), queries, rows, blocks, count, own=own)
    return found if order is None else found._replace(indices=order.take(found.indices))


def _completed(
    kept: "Kept", queries: "LiftedRows", rows: "LiftedRows", blocks: list[slice], count: int, *, own: Tensor | None
) -> Candidates:
    """Search queries again, without a guess, where the guessed threshold was too low."""
    for some in slices(len(kept.short), 1024):
        short = kept.short[some]
        left = queries.left(short)
        reservoir = _reservoir(len(left), count, total=None, dtype=left.dtype, device=left.device)
        left_out = None if own is None else own[short]
        for mine, theirs, scores in _products([(slice(0, len(left)), left)], rows, blocks, own=left_out):
            reservoir.offer(mine, scores, theirs.start)
        kept.columns[short], kept.bound[short], _ = reservoir.result()
    return Candidates(kept.columns, kept.bound)


def _products(
    lefts: list[tuple[slice, Tensor]],
    rows: "LiftedRows",
    blocks: list[slice],
    *,
    own: Tensor | None = None,
    half: bool = False,
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Scores of the left blocks in every block (half: only in blocks that come no earlier); inf for a row's own."""
    for theirs in blocks:
        right = rows.right(theirs)
        for mine, left in lefts:
            if not half or mine.start <= theirs.start:
                scores = left @ right.T
                if own is not None:
                    _leave_out(scores, own[mine] - theirs.start)
                yield mine, theirs, scores


def _leave_out(scores: Tensor, column: Tensor) -> None:
    """Set scores[i, column[i]] to inf where that column exists; does not wait for the device."""
    inside = (column >= 0) & (column < scores.shape[1])
    place = torch.where(inside, column, 0).unsqueeze(1)
    value = torch.where(inside.unsqueeze(1), torch.inf, scores.gather(1, place))
    scores.scatter_(1, place, value)


def _order(blocks: list[slice], device: torch.device) -> Tensor | None:
    """A fixed random order that makes blocks fair samples of all rows; None where none is needed."""
    if device.type != "cpu" or len(blocks) == 1:
        return None
    return torch.randperm(blocks[-1].stop, generator=torch.Generator().manual_seed(0), device="cpu")


def _places(order: Tensor) -> Tensor:
    """The place of each row in the order, and -1 at the end, so that index -1 stays -1.

    >>> _places(torch.tensor([2, 0, 1]))
    tensor([ 1,  2,  0, -1])
    """
    return torch.cat((order.argsort(), order.new_tensor([-1])))


def _blocks(rows: Tensor, dtype: torch.dtype, memory: int) -> list[slice]:
    """Blocks of rows such that two lifted blocks, their product and its mask stay within the budget.

    All but the last are multiples of 16 rows; other sizes make products on the CPU half as slow again.
    """
    n, dim = rows.shape
    size = 8192 if rows.is_cuda else 1024
    while size > 16 and (2 * size * (dim + 2) + 2 * size * size) * dtype.itemsize > memory:
        size //= 2
    parts = -(-n // size)
    return slices(n, -(-n // (16 * parts)) * 16)


def _group(blocks: list[slice], x: Tensor, dtype: torch.dtype, memory: int) -> int:
    """Number of left blocks to hold at a time: half the budget on the CPU, where lifting takes time."""
    return max(1, memory // (2 * blocks[0].stop * (x.shape[1] + 2) * dtype.itemsize)) if x.device.type == "cpu" else 1


class LiftedRows:
    """Rows of a set in some order (None: as they come), moved into a frame and lifted to D + 2 columns, in blocks."""

    def __init__(self, x: Tensor, frame: Frame, *, order: Tensor | None, dtype: torch.dtype, cache_bytes: int) -> None:
        self._x, self._order, self._scale, self._dtype = x, order, frame.scale, dtype
        self._shift = -frame.scale * frame.center.to(dtype)
        # Few enough rows at a time for the cache of a core.
        self._step = max(1, (1 << 17) // x.shape[1]) if x.device.type == "cpu" else 8192
        self._half_squares = torch.cat([self._half_squares_of(rows) for rows in slices(len(x), self._step)])
        self._small = len(x) * (x.shape[1] + 2) * dtype.itemsize <= cache_bytes
        self._lifted: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self._x)

    def largest_square(self) -> float:
        """The largest |x|²."""
        shrunk = 0.5 - rounding(self._x.shape[1], self._dtype)
        return float(self._half_squares.max()) / shrunk

    def left(self, rows: slice | Tensor) -> Tensor:
        """(-x, |x|²/2, 1)."""
        return self._lift(rows, sign=-1)

    def right(self, rows: slice) -> Tensor:
        """(x, 1, |x|²/2); all blocks are cached where they are small."""
        if rows.start in self._lifted:
            return self._lifted[rows.start]
        lifted = self._lift(rows, sign=1)
        if self._small:
            self._lifted[rows.start] = lifted
        return lifted

    def _lift(self, rows: slice | Tensor, *, sign: int) -> Tensor:
        where = rows if self._order is None else self._order[rows]
        half_squares, dim = self._half_squares[where], self._x.shape[1]
        lifted = torch.empty(len(half_squares), dim + 2, dtype=self._dtype, device=self._x.device)
        if isinstance(where, slice):
            self._move(self._x[where], lifted[:, :dim], sign=sign)
        else:
            for part in slices(len(where), self._step):
                self._move(self._x[where[part]], lifted[part, :dim], sign=sign)
        norm, one = (dim, dim + 1) if sign < 0 else (dim + 1, dim)
        lifted[:, norm] = half_squares
        lifted[:, one] = 1
        return lifted

    def _move(self, block: Tensor, out: Tensor, *, sign: int) -> Tensor:
        return torch.add(sign * self._shift, block.to(self._dtype), alpha=sign * self._scale, out=out)

    def _half_squares_of(self, rows: slice) -> Tensor:
        """|x|²/2, shrunk by the rounding of products."""
        block = self._x[rows]
        moved = self._move(block, torch.empty(block.shape, dtype=self._dtype, device=block.device), sign=1)
        norms: Tensor = torch.linalg.vector_norm(moved, dim=1, dtype=torch.float64)
        return (norms.square() * (0.5 - rounding(block.shape[1], self._dtype))).to(self._dtype)


def rounding(dim: int, dtype: torch.dtype) -> float:
    """The share of (|x|² + |y|²) by which rounding can move half a squared distance.

    It covers a product of `dim` + 2 terms, moving the rows into the frame, and rounding their norms. Norms are summed
    in float64, so that they add the rounding of a sum only where products are in float64 too.
    """
    terms = dim + 16 if dtype == torch.float32 else 2 * dim + 16
    share = terms * torch.finfo(dtype).eps / 2
    return share / (1 - share)


_ROOM = 4  # a SiftingReservoir holds up to this many times what it keeps
_SAFETY = 4.0  # standard deviations between guess and expectation: one row in some thousands is searched again


class Kept(NamedTuple):
    """Columns (n, count) of the smallest scores, the bound (n,) of all others, and the rows to search again."""

    columns: Tensor
    bound: Tensor
    short: Tensor


def _reservoir(rows: int, count: int, *, total: int | None, dtype: torch.dtype, device: torch.device) -> "Reservoir":
    """A reservoir for blocks of columns that are fair samples of `total` columns (None: they are not)."""
    if device.type == "cpu":
        return SiftingReservoir(rows, count, total=total, dtype=dtype)
    return Reservoir(rows, count, dtype=dtype, device=device)


class Reservoir:
    """The `count` smallest scores offered to each row, on any device and without waiting for it."""

    def __init__(self, rows: int, count: int, *, room: int = 1, dtype: torch.dtype, device: torch.device) -> None:
        self._count = count
        self._scores = torch.full((rows, room * count), torch.inf, dtype=dtype, device=device)
        self._columns = torch.zeros((rows, room * count), dtype=torch.int32, device=device)

    def offer(self, rows: slice, scores: Tensor, first_column: int) -> None:
        """Offer scores (n, m) of the given rows, for the columns from `first_column` on."""
        self._merge(rows, scores, first_column, self._count)

    def result(self) -> Kept:
        """The smallest scores, once all have been offered; no row is short."""
        return Kept(self._columns.long(), self._scores.amax(1), torch.empty(0, dtype=torch.int64, device="cpu"))

    def _merge(self, rows: slice | Tensor, scores: Tensor, first_column: int, held: int) -> Tensor:
        """Keep the smallest of the first `held` places and of the scores offered; returns the largest kept (n,)."""
        best, column = scores.topk(min(self._count, scores.shape[1]), dim=1, largest=False, sorted=False)
        offered = (column + first_column).to(torch.int32)
        all_scores = torch.cat((self._scores[rows, :held], best), 1)
        return self._keep(rows, all_scores, torch.cat((self._columns[rows, :held], offered), 1))

    def _keep(self, rows: slice | Tensor, scores: Tensor, columns: Tensor) -> Tensor:
        best, position = scores.topk(self._count, dim=1, largest=False, sorted=False)
        self._columns[rows, : self._count] = columns.gather(1, position)
        self._scores[rows, : self._count] = best
        return best.amax(1)


class SiftingReservoir(Reservoir):
    """A faster reservoir for the CPU, where selecting a few of many scores costs more than the products themselves.

    It guesses a threshold for each row from a sample of columns, appends only the scores below it, and cuts back once
    at the end. A wrong guess costs a second search of that row, never a neighbor.

    Args:
        total: number of columns of which each block offered is a fair sample; None where blocks are no fair sample.
            Thresholds then start at infinity, and no row is short.
    """

    def __init__(self, rows: int, count: int, *, total: int | None, dtype: torch.dtype) -> None:
        super().__init__(rows, count, room=_ROOM, dtype=dtype, device=torch.device("cpu"))
        self._total = total
        self._fill = torch.zeros(rows, dtype=torch.int64, device="cpu")
        self._threshold = torch.full((rows,), torch.inf, dtype=dtype, device="cpu")
        self._seen: dict[int, tuple[int, int]] = {}

    def offer(self, rows: slice, scores: Tensor, first_column: int) -> None:
        """Offer scores as in `Reservoir`; the row slices must be the same in each round."""
        if self._total is not None:
            self._guess(rows, scores, self._total)
        threshold, fill = self._threshold[rows], self._fill[rows]
        if math.isinf(threshold.max()):
            self._merge(rows, scores, first_column, self._held(rows))
            return
        row, column, score = _under(scores, threshold)
        counts = torch.bincount(row, minlength=len(fill))
        full = (fill + counts > self._scores.shape[1]).nonzero().squeeze(1)
        if len(full):
            self._merge(full + rows.start, scores[full], first_column, self._scores.shape[1])
            others = (~torch.isin(row, full)).nonzero().squeeze(1)
            row, column, score = (each.index_select(0, others) for each in (row, column, score))
            counts[full] = 0
        first = counts.cumsum(0).sub_(counts).sub_(fill)
        position = torch.arange(len(row), device="cpu").sub_(first.index_select(0, row))
        place = row.add_(rows.start).mul_(self._scores.shape[1]).add_(position)
        self._scores.view(-1).scatter_(0, place, score)
        self._columns.view(-1).scatter_(0, place, column.add_(first_column).to(torch.int32))
        fill += counts

    def result(self) -> Kept:
        """The smallest scores, once all have been offered."""
        # Rows that hold about as many are cut together, so that few empty places are sorted.
        for rows in self._fill.argsort().split(1024):
            held = self._held(rows)
            if held > self._count:
                self._keep(rows, self._scores[rows, :held], self._columns[rows, :held])
        bound = self._scores[:, : self._count].amax(1)
        # With fewer than `count` scores below the threshold, dropped ones may be among the smallest.
        short = (bound > self._threshold).nonzero().squeeze(1)
        return Kept(self._columns[:, : self._count].long(), bound, short)

    def _guess(self, rows: slice, scores: Tensor, total: int) -> None:
        """Lower the thresholds by what the columns seen so far suggest: at first, and whenever they have quadrupled.

        The number of the `count` smallest that fall into a sample of the columns is hypergeometric. With `rank` well
        above that number, the rank-th smallest of the sample is above the count-th smallest of all.
        """
        seen, due = self._seen.get(rows.start, (0, 0))
        size = seen or scores.shape[1]
        if seen >= due and 4 * size <= 3 * total:
            share = self._count * size / total
            rank = 1 + math.floor(share + _SAFETY * math.sqrt(share * (1 - size / total)))
            sample = self._scores[rows, : self._held(rows)] if seen else _minima(scores, 4 * rank)
            if rank <= sample.shape[1]:
                # One step up, since a score equal to the guess may be among the smallest.
                guess = sample.topk(rank, dim=1, largest=False, sorted=False).values.amax(1)
                guess = guess.nextafter(guess.new_tensor(torch.inf))
                self._threshold[rows] = torch.minimum(self._threshold[rows], guess)
            due = 4 * size
        self._seen[rows.start] = (seen + scores.shape[1], due)

    def _held(self, rows: slice | Tensor) -> int:
        """Number of places taken by the fullest row, at least `count`."""
        return max(self._count, int(self._fill[rows].max()))

    def _merge(self, rows: slice | Tensor, scores: Tensor, first_column: int, held: int) -> Tensor:
        largest = super()._merge(rows, scores, first_column, held)
        self._scores[rows, self._count :] = torch.inf
        self._fill[rows] = self._count
        self._threshold[rows] = torch.minimum(self._threshold[rows], largest)
        return largest


def _minima(scores: Tensor, groups: int) -> Tensor:
    """Minima (n, at least `groups`) of groups of columns, or all scores where there are fewer columns."""
    width = max(1, scores.shape[1] // groups)
    groups = scores.shape[1] // width
    minima: Tensor = functools.reduce(torch.minimum, scores[:, : width * groups].split(groups, dim=1))
    return minima.contiguous()


def _under(scores: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, columns and values of the scores (n, m) below the threshold (n,) of their row, ordered by row.

    Scores are contiguous or a transpose.
    """
    n, m = scores.shape
    # Compare into numbers, then cast: torch vectorizes both, but not a comparison into booleans.
    below = torch.lt(scores, threshold.unsqueeze(1), out=torch.empty_like(scores)).to(torch.bool)
    mask = below.contiguous().view(-1)
    if len(mask) % 8:
        mask = torch.cat((mask, mask.new_zeros(-len(mask) % 8)))
    # Eight booleans make a word, and most words are zero.
    words = mask.view(torch.int64)
    word = words.nonzero().squeeze(1)
    byte = words.index_select(0, word).view(torch.bool).nonzero().squeeze(1)
    flat = word.index_select(0, byte >> 3).mul_(8).add_(byte & 7)
    row = flat // m
    column = flat - row * m
    place = flat if scores.is_contiguous() else column * n + row
    block = scores if scores.is_contiguous() else scores.T
    return row, column, block.reshape(-1).index_select(0, place)
