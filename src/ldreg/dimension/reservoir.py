"""What a search keeps of the blocks of scores that pass by: the smallest of each row, and where they stood.

`Reservoir` serves any device and never waits for it. `SiftingReservoir` is for the CPU, where picking a few numbers out
of many is dearer than the products that make them: it guesses from a sample of its columns under which score those of a
row will end up, and looks at nothing above. The guess decides what is done twice, never what is found.
"""

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

# A SiftingReservoir has room for this many times what it keeps.
_ROOM = 4
# By how many standard deviations a guess is on the safe side: one row in some thousands is searched again.
_SAFETY = 4.0


class Kept(NamedTuple):
    """Columns (n, count) of the smallest scores, what all others reach (n,), and the rows that need another search."""

    columns: Tensor
    bound: Tensor
    short: Tensor


class _Hits(NamedTuple):
    """Scores under their row's threshold, ordered by row; rows and columns count from the start of a block."""

    row: Tensor
    column: Tensor
    score: Tensor


class Reservoir:
    """The `count` smallest scores offered to each row; every offer is cut back at once."""

    def __init__(self, rows: int, count: int, *, room: int = 1, dtype: torch.dtype, device: torch.device) -> None:
        self._count = count
        self._scores = torch.full((rows, room * count), torch.inf, dtype=dtype, device=device)
        self._columns = torch.zeros((rows, room * count), dtype=torch.int32, device=device)

    def offer(self, rows: slice, scores: Tensor, first_column: int) -> None:
        """Offer `scores` (n, m) of the given rows in the columns from `first_column` on."""
        self._merge(rows, scores, first_column, self._count)

    def result(self) -> Kept:
        """What is kept, once all has been offered; no row of this class is ever short."""
        return Kept(self._columns.long(), self._scores.amax(1), torch.empty(0, dtype=torch.int64, device="cpu"))

    def _merge(self, rows: slice | Tensor, scores: Tensor, first_column: int, held: int) -> Tensor:
        """Keep the smallest of the first places, `held` of them, and what is offered; returns the largest kept (n,)."""
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
    """The same on the CPU: an offer appends the scores under a row's threshold, and the result is cut back once.

    Args:
        total: Of how many columns each block offered is a fair sample; None where blocks are no sample at all. Then
            thresholds start at infinity, and no row is ever short.
    """

    def __init__(self, rows: int, count: int, *, total: int | None, dtype: torch.dtype) -> None:
        super().__init__(rows, count, room=_ROOM, dtype=dtype, device=torch.device("cpu"))
        self._total = total
        self._fill = torch.zeros(rows, dtype=torch.int64, device="cpu")
        self._threshold = torch.full((rows,), torch.inf, dtype=dtype, device="cpu")
        self._seen: dict[int, tuple[int, int]] = {}

    def offer(self, rows: slice, scores: Tensor, first_column: int) -> None:
        """Offer `scores` (n, m) of the given rows, always the same slices, in the columns from `first_column` on."""
        if self._total is not None:
            self._guess(rows, scores, self._total)
        threshold, fill = self._threshold[rows], self._fill[rows]
        if math.isinf(threshold.max()):
            self._merge(rows, scores, first_column, self._held(rows))
            return
        hits = _under(scores, threshold)
        counts = torch.bincount(hits.row, minlength=len(fill))
        full = (fill + counts > self._scores.shape[1]).nonzero().squeeze(1)
        if len(full):
            self._merge(full + rows.start, scores[full], first_column, self._scores.shape[1])
            others = (~torch.isin(hits.row, full)).nonzero().squeeze(1)
            hits = _Hits(*(each.index_select(0, others) for each in hits))
            counts[full] = 0
        first = counts.cumsum(0).sub_(counts).sub_(fill)
        position = torch.arange(len(hits.row), device="cpu").sub_(first.index_select(0, hits.row))
        place = hits.row.add_(rows.start).mul_(self._scores.shape[1]).add_(position)
        self._scores.view(-1).scatter_(0, place, hits.score)
        self._columns.view(-1).scatter_(0, place, hits.column.add_(first_column).to(torch.int32))
        fill += counts

    def result(self) -> Kept:
        """What is kept, once all has been offered."""
        # Rows that hold about as much are cut together, so that few empty places are looked at.
        for rows in self._fill.argsort().split(1024):
            held = self._held(rows)
            if held > self._count:
                self._keep(rows, self._scores[rows, :held], self._columns[rows, :held])
        bound = self._scores[:, : self._count].amax(1)
        # Where fewer than `count` lie under the threshold, what was dropped may belong to the smallest.
        short = (bound > self._threshold).nonzero().squeeze(1)
        return Kept(self._columns[:, : self._count].long(), bound, short)

    def _guess(self, rows: slice, scores: Tensor, total: int) -> None:
        """Lower the thresholds to what the columns seen let expect: at first, and whenever they are four times as many.

        Of the `count` smallest in all, a sample of the columns has a hypergeometric number. With `rank` well above
        what that number may be, the rank-th smallest of the sample is above the count-th smallest in all.
        """
        seen, due = self._seen.get(rows.start, (0, 0))
        size = seen or scores.shape[1]
        if seen >= due and 4 * size <= 3 * total:
            share = self._count * size / total
            rank = 1 + math.floor(share + _SAFETY * math.sqrt(share * (1 - size / total)))
            sample = self._scores[rows, : self._held(rows)] if seen else _minima(scores, 4 * rank)
            if rank <= sample.shape[1]:
                # One step up, since what equals the guess may be among the smallest.
                guess = sample.topk(rank, dim=1, largest=False, sorted=False).values.amax(1)
                guess = guess.nextafter(guess.new_tensor(torch.inf))
                self._threshold[rows] = torch.minimum(self._threshold[rows], guess)
            due = 4 * size
        self._seen[rows.start] = (seen + scores.shape[1], due)

    def _held(self, rows: slice | Tensor) -> int:
        """How many places are taken at most, and at least as many as are kept."""
        return max(self._count, int(self._fill[rows].max()))

    def _merge(self, rows: slice | Tensor, scores: Tensor, first_column: int, held: int) -> Tensor:
        largest = super()._merge(rows, scores, first_column, held)
        self._scores[rows, self._count :] = torch.inf
        self._fill[rows] = self._count
        self._threshold[rows] = torch.minimum(self._threshold[rows], largest)
        return largest


def _minima(scores: Tensor, groups: int) -> Tensor:
    """Minima (n, at least `groups`) of groups of columns; all of the scores where there are no more."""
    width = max(1, scores.shape[1] // groups)
    groups = scores.shape[1] // width
    minima: Tensor = functools.reduce(torch.minimum, scores[:, : width * groups].split(groups, dim=1))
    return minima.contiguous()


def _under(scores: Tensor, threshold: Tensor) -> _Hits:
    """Scores (n, m), or the transpose of a contiguous block, under the threshold (n,) of their row."""
    n, m = scores.shape
    # Compared into numbers and then cast: both are vectorized, a comparison into truth values is not.
    below = torch.lt(scores, threshold.unsqueeze(1), out=torch.empty_like(scores)).to(torch.bool)
    mask = below.contiguous().view(-1)
    if len(mask) % 8:
        mask = torch.cat((mask, mask.new_zeros(-len(mask) % 8)))
    # Eight truth values make a word, and most words are zero.
    words = mask.view(torch.int64)
    word = words.nonzero().squeeze(1)
    byte = words.index_select(0, word).view(torch.bool).nonzero().squeeze(1)
    flat = word.index_select(0, byte >> 3).mul_(8).add_(byte & 7)
    row = flat // m
    column = flat - row * m
    place = flat if scores.is_contiguous() else column * n + row
    block = scores if scores.is_contiguous() else scores.T
    return _Hits(row, column, block.reshape(-1).index_select(0, place))
