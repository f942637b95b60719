"""Triton kernels behind `nearest`: scores of rounded rows on the tensor cores, selection of the smallest, distances.

| kernel | does |
|---|---|
| `_halve` | rows moved to a center, scaled, rounded to float16, with half their squared norms |
| `_scores` | half squared distances of rounded rows, less the query's own norm, written out |
| `_sweep` | the same; only scores below the query's threshold are appended to its list |
| `_pick` | the smallest of a row of scores or of a list, packed, and the new threshold |
| `_distances` | distances of given pairs from differences in float32 |
"""

# Triton types kernels when it compiles them, and has no types itself.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-untyped"
# ruff: noqa: N803 - compile-time constants of kernels are in capitals

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ldreg.dimension.cuda import blocks, launch, power_of_2
from ldreg.dimension.cuda.nearest import Halves

_INFINITY = tl.constexpr(0x7F800000)
_NOTHING = tl.constexpr(0x7F800000 << 32)


class Tiles(NamedTuple):
    """Tiling of products: `rows` × `columns` per program, `depth` terms at a time, on `warps`, `stages` deep.

    Columns are a multiple of 128. `group` blocks of rows are processed together and share their columns in the cache.
    """

    rows: int = 128
    columns: int = 256
    depth: int = 64
    warps: int = 8
    stages: int = 3
    group: int = 16


TILES = Tiles()


@triton.jit
def peak_scale(peaks, top, PARTS: tl.constexpr):
    """The power of two that moves the largest value to 2^top, or as near as float32 allows.

    `peaks` (PARTS,) are the bits of the largest absolute value of each part.
    """
    peak = tl.max(tl.load(peaks + tl.arange(0, PARTS)), axis=0)
    exponent = tl.minimum(top - ((peak >> 23) - 127), 126)
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _halve(
    x,
    center,
    scale,
    order,
    halves,
    norms,
    rounding,
    largest,
    n,
    dim,
    depth,
    top,
    PARTS: tl.constexpr,
    ORDERED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    source = rows.to(tl.int64)
    if ORDERED:
        source = tl.load(order + rows, mask=rows < n, other=0)
    factor = tl.load(scale) if PARTS == 0 else peak_scale(scale, top, PARTS)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    lost = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, depth, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = (rows < n)[:, None] & (columns < dim)[None, :]
        value = tl.load(x + source[:, None] * dim + columns[None, :], mask=inside, other=0.0).to(tl.float32)
        middle = tl.load(center + columns, mask=columns < dim, other=0.0)
        moved = tl.where(inside, value * factor - (middle * factor)[None, :], 0.0)
        half = moved.to(tl.float16)
        places = rows.to(tl.int64)[:, None] * depth + columns[None, :]
        tl.store(halves + places, half, mask=(rows < n)[:, None] & (columns < depth)[None, :])
        wide = half.to(tl.float32)
        total += wide * wide
        lost += (moved - wide) * (moved - wide)
    norm = 0.5 * tl.sum(total, axis=1)
    moved_by = tl.sqrt_rn(tl.sum(lost, axis=1))
    tl.store(norms + rows, norm, mask=rows < n)
    tl.store(rounding + rows, moved_by, mask=rows < n)
    # The bits of non-negative floats are ordered as the floats are.
    tl.atomic_max(largest, tl.max(tl.where(rows < n, norm, 0.0), axis=0).to(tl.int32, bitcast=True))
    tl.atomic_max(largest + 1, tl.max(tl.where(rows < n, moved_by, 0.0), axis=0).to(tl.int32, bitcast=True))


@triton.jit
def _tile(n, m, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr):
    """The blocks of rows and of columns of this program: column by column through a group of row blocks."""
    down = tl.cdiv(n, ROWS)
    across = tl.cdiv(m, COLUMNS)
    program = tl.program_id(0)
    group = program // (GROUP * across)
    height = tl.minimum(down - group * GROUP, GROUP)
    inner = program % (GROUP * across)
    return group * GROUP + inner % height, inner // height


@triton.jit
def _products(x, y, rows, columns, depth, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    """Products of rows of x with rows of y, both (., depth), in float32."""
    terms = tl.arange(0, DEPTH)
    left = x + rows.to(tl.int64)[:, None] * depth + terms[None, :]
    right = y + columns.to(tl.int64)[None, :] * depth + terms[:, None]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for _ in range(0, depth, DEPTH):
        total = tl.dot(tl.load(left), tl.load(right), total)
        left += DEPTH
        right += DEPTH
    return total


@triton.jit
def _own(own, rows, n, first, EXCLUDE: tl.constexpr):
    """The column that is the row itself, or -1."""
    if EXCLUDE == "diagonal":
        return rows + first
    elif EXCLUDE == "index":  # noqa: RET505 - compiled only where it is chosen; elsewhere `own` is None
        return tl.load(own + rows, mask=rows < n, other=-1).to(tl.int32)
    else:
        return tl.full(rows.shape, -1, tl.int32)


@triton.jit(do_not_specialize=["n", "first"])
def _scores(
    x,
    y,
    y_norms,
    own,
    scores,
    n,
    m,
    first,
    depth,
    EXCLUDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
):
    i, j = _tile(n, m, ROWS, COLUMNS, GROUP)
    rows = i * ROWS + tl.arange(0, ROWS)
    columns = j * COLUMNS + tl.arange(0, COLUMNS)
    # Rows past the end are read from the start, as masks would slow the loads.
    total = _products(x, y, tl.where(rows < n, rows, 0), tl.where(columns < m, columns, 0), depth, ROWS, COLUMNS, DEPTH)
    score = tl.load(y_norms + columns, mask=columns < m, other=0.0)[None, :] - total
    itself = _own(own, rows, n, first, EXCLUDE)[:, None] == columns[None, :]
    score = tl.where(itself, float("inf"), score)
    inside = (rows < n)[:, None] & (columns < m)[None, :]
    tl.store(scores + rows.to(tl.int64)[:, None] * m + columns[None, :], score, mask=inside)


@triton.jit
def _entry(score, place):
    """A score and its place, packed into one integer."""
    return (score.to(tl.int32, bitcast=True).to(tl.int64) << 32) | place.to(tl.int64)


@triton.jit
def _ones(word):
    """Number of bits set."""
    word = word.to(tl.uint32, bitcast=True)
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return ((word * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def _append(
    total,
    y_norms,
    threshold,
    itself,
    entries,
    fill,
    rows,
    columns,
    end,
    room,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Append the scores of a part of a tile that are below the thresholds of its rows.

    They are marked as bits of one word per 32 columns, so that each word needs one atomic; one atomic per score would
    wait for the previous one.
    """
    score = tl.load(y_norms + columns, mask=columns < end, other=float("inf"))[None, :] - total
    keep = (score < threshold[:, None]) & (itself[:, None] != columns[None, :])
    bit = 1 << tl.arange(0, 32)
    words = tl.sum(tl.where(tl.reshape(keep, (ROWS, COLUMNS // 32, 32)), bit[None, None, :], 0), axis=2)
    ones = _ones(words)
    count = tl.sum(ones, axis=1)
    base = tl.atomic_add(fill + rows, count, mask=count > 0, sem="relaxed")
    before = base[:, None] + tl.cumsum(ones, 1) - ones
    taken = tl.reshape(before[:, :, None] + _ones(words[:, :, None] & (bit - 1)[None, None, :]), (ROWS, COLUMNS))
    entry = _entry(score, tl.broadcast_to(columns[None, :], (ROWS, COLUMNS)))
    tl.store(entries + tl.arange(0, ROWS)[:, None] * room + taken, entry, mask=keep & (taken < room))


@triton.jit
def _halved(tile, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The left and the right half of the columns."""
    return tl.split(tl.permute(tl.reshape(tile, (ROWS, 2, COLUMNS // 2)), (0, 2, 1)))


@triton.jit(do_not_specialize=["n", "begin", "end", "first"])
def _sweep(
    x,
    y,
    y_norms,
    own,
    thresholds,
    entries,
    fill,
    n,
    begin,
    end,
    first,
    depth,
    room,
    EXCLUDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
):
    i, j = _tile(n, end - begin, ROWS, COLUMNS, GROUP)
    rows = i * ROWS + tl.arange(0, ROWS)
    columns = begin + j * COLUMNS + tl.arange(0, COLUMNS)
    total = _products(
        x, y, tl.where(rows < n, rows, 0), tl.where(columns < end, columns, begin), depth, ROWS, COLUMNS, DEPTH
    )
    # Rows past the end have no score below their threshold.
    threshold = tl.load(thresholds + rows, mask=rows < n, other=float("-inf"))
    itself = _own(own, rows, n, first, EXCLUDE)
    mine = entries + i.to(tl.int64) * ROWS * room
    # Four parts, one after the other, as registers hold no more.
    left, right = _halved(total, ROWS, COLUMNS)
    a, b = _halved(left, ROWS, COLUMNS // 2)
    c, d = _halved(right, ROWS, COLUMNS // 2)
    PART: tl.constexpr = COLUMNS // 4  # noqa: N806 - a compile-time constant
    at = begin + j * COLUMNS + tl.arange(0, PART)
    _append(a, y_norms, threshold, itself, mine, fill, rows, at, end, room, ROWS, PART)
    _append(b, y_norms, threshold, itself, mine, fill, rows, at + PART, end, room, ROWS, PART)
    _append(c, y_norms, threshold, itself, mine, fill, rows, at + 2 * PART, end, room, ROWS, PART)
    _append(d, y_norms, threshold, itself, mine, fill, rows, at + 3 * PART, end, room, ROWS, PART)


@triton.jit
def _ordered(values):
    """Integers ordered as the floats are, negative ones included."""
    bits = values.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _pick(scores, entries, fill, thresholds, width, room, fewest, most, LISTED: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    if LISTED:
        held = tl.load(fill + row)
        # A list that overflowed has lost unknown entries: it keeps nothing.
        inside = column < tl.where(held <= width, held, 0)
        entry = tl.load(entries + row * room + column, mask=inside, other=_NOTHING)
        value = (entry >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    else:
        held = tl.full((), 0, tl.int32) + width
        value = tl.load(scores + row * width + column, mask=column < width, other=float("inf"))
        entry = _entry(value, column)
    key = tl.where(value < float("inf"), _ordered(value), _INFINITY)
    # Fewer than `fewest` lie at or below `low`, at least as many at or below `high`: bisect until not too many do.
    low = tl.min(key, axis=0) - 1
    high = tl.max(tl.where(key < _INFINITY, key, low), axis=0)
    count = tl.sum((key <= high).to(tl.int32), axis=0)
    while (count > most) & (high.to(tl.int64) - low > 1):
        middle = ((low.to(tl.int64) + high) >> 1).to(tl.int32)
        under = tl.sum((key <= middle).to(tl.int32), axis=0)
        low = tl.where(under >= fewest, low, middle)
        high = tl.where(under >= fewest, middle, high)
        count = tl.where(under >= fewest, under, count)
    # Of too many equal scores, take the first. One sum counts both; its lower half counts those below the limit.
    counted = tl.cumsum((key < high).to(tl.int32) + ((key == high).to(tl.int32) << 16), 0)
    below = tl.sum((key < high).to(tl.int32), axis=0)
    target = tl.where(key < high, counted & 0xFFFF, below + (counted >> 16)) - 1
    chosen = (key <= high) & (target < most)
    least_left = tl.min(tl.where(chosen, _INFINITY, key), axis=0)
    threshold = tl.where(least_left < 0, least_left ^ 0x7FFFFFFF, least_left).to(tl.float32, bitcast=True)
    if LISTED:  # what was left out before stays left out
        threshold = tl.minimum(threshold, tl.load(thresholds + row))
    tl.debug_barrier()  # the list is overwritten in place
    tl.store(entries + row * room + target, entry, mask=chosen)
    tl.store(thresholds + row, tl.where(held <= width, threshold, float("-inf")))
    tl.store(fill + row, tl.where(held <= width, tl.minimum(count, most), held))


@triton.jit
def _distances(x, y, places, scale, distances, dim, width, PLACES: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    position = tl.program_id(1) * PLACES + tl.arange(0, PLACES)
    place = tl.load(places + row * width + position, mask=position < width, other=-1).to(tl.int64)
    factor = tl.load(scale)
    total = tl.zeros((PLACES, BLOCK), tl.float32)
    for start in range(0, dim, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        mine = tl.load(x + row * dim + columns, mask=columns < dim, other=0.0).to(tl.float32) * factor
        inside = (place >= 0)[:, None] & (columns < dim)[None, :]
        theirs = tl.load(y + place[:, None] * dim + columns[None, :], mask=inside, other=0.0).to(tl.float32) * factor
        difference = mine[None, :] - theirs
        total += difference * difference
    distance = tl.where(place >= 0, tl.sqrt_rn(tl.sum(total, axis=1)), float("inf"))
    tl.store(distances + row * width + position, distance, mask=position < width)


def halves(x: Tensor, center: Tensor, scale: Tensor, order: Tensor | None = None, *, top: int | None = None) -> Halves:
    """Rows of x (N, D), in the order (n,) if given, as float16 of (x - center)·scale.

    `center` (D,) is in float32. `scale` (1,) is a power of two that keeps all moved values in the range of float16.
    With `top` it holds the peaks (parts,) of the data instead, the largest of which moves to 2^top.
    """
    n, dim = len(x) if order is None else len(order), x.shape[1]
    depth = blocks(dim, TILES.depth) * TILES.depth
    rows = torch.empty(n, depth, dtype=torch.float16, device=x.device)
    norms, rounding = torch.empty(2, n, dtype=torch.float32, device=x.device)
    largest = torch.zeros(2, dtype=torch.int32, device=x.device)
    tensors = x.contiguous(), center, scale, order, rows, norms, rounding, largest
    constants = {"PARTS": 0 if top is None else len(scale), "ORDERED": order is not None, "ROWS": 8}
    constants["BLOCK"] = min(512, power_of_2(depth))
    with torch.cuda.device_of(x):
        launch(_halve, (blocks(n, 8),), *tensors, n, dim, depth, top or 0, **constants, num_warps=8)
    return Halves(rows, norms, rounding, largest.view(torch.float32))


class Lists:
    """For each of n queries, a list of reference rows with scores, and the threshold that all other rows reach.

    A score is half the squared distance of rounded rows, less half the query's squared norm.
    """

    def __init__(self, queries: Halves, reference: Halves, *, own: Tensor | int | None, room: int) -> None:
        """`own`: (n,) the reference row that is the query itself, or -1; an int: query i is row i + own; None: none."""
        n, device = len(queries.rows), queries.rows.device
        self.queries, self.reference, self.room = queries, reference, room
        self.entries = torch.empty(n, room, dtype=torch.int64, device=device)
        self.fill = torch.empty(n, dtype=torch.int32, device=device)
        self.thresholds = torch.empty(n, dtype=torch.float32, device=device)
        self._own = own if isinstance(own, Tensor) else None
        self._first = own if isinstance(own, int) else 0
        rows, columns, depth, warps, stages, group = TILES
        self._tiling: dict[str, Any] = {"ROWS": rows, "COLUMNS": columns, "DEPTH": depth, "GROUP": group}
        self._tiling |= {"num_warps": warps, "num_stages": stages}
        self._tiling["EXCLUDE"] = "index" if isinstance(own, Tensor) else "none" if own is None else "diagonal"

    def start(self, columns: int, *, fewest: int, most: int, scores: Tensor) -> None:
        """Start with the smallest scores of the first columns; `scores` (rows, columns) is working memory."""
        depth = self.queries.rows.shape[1]
        for begin in range(0, len(self.fill), len(scores)):
            rows = slice(begin, min(begin + len(scores), len(self.fill)))
            n, own = rows.stop - begin, None if self._own is None else self._own[begin:]
            tiles = blocks(n, TILES.rows) * blocks(columns, TILES.columns)
            tensors = self.queries.rows[begin:], self.reference.rows, self.reference.norms, own, scores
            with torch.cuda.device_of(scores):
                launch(_scores, (tiles,), *tensors, n, columns, self._first + begin, depth, **self._tiling)
            self._pick(scores, rows, columns, fewest=fewest, most=most)

    def sweep(self, begin: int, end: int) -> None:
        """Append all scores of columns from `begin` to `end` that are below the threshold."""
        n, depth = self.queries.rows.shape
        tiles = blocks(n, TILES.rows) * blocks(end - begin, TILES.columns)
        tensors = self.queries.rows, self.reference.rows, self.reference.norms, self._own
        lists, sizes = (self.thresholds, self.entries, self.fill), (n, begin, end, self._first, depth, self.room)
        with torch.cuda.device_of(self.fill):
            launch(_sweep, (tiles,), *tensors, *lists, *sizes, **self._tiling)

    def cut(self, *, fewest: int, most: int) -> None:
        """Keep the smallest scores of each list, at least `fewest` and at most `most`."""
        self._pick(None, slice(0, len(self.fill)), self.room, fewest=fewest, most=most)

    def places(self, most: int) -> Tensor:
        """The listed reference rows (n, most), in no order; -1 where there are fewer or a list overflowed."""
        filled = torch.where(self.fill > self.room, 0, self.fill).unsqueeze(1)
        listed = torch.arange(most, device=filled.device) < filled
        return torch.where(listed, self.entries[:, :most] & 0xFFFFFFFF, -1)

    def _pick(self, scores: Tensor | None, rows: slice, width: int, *, fewest: int, most: int) -> None:
        block, count = power_of_2(width), rows.stop - rows.start
        tensors = scores, self.entries[rows], self.fill[rows], self.thresholds[rows]
        constants = {"LISTED": scores is None, "BLOCK": block, "num_warps": min(32, max(1, block // 256))}
        with torch.cuda.device_of(self.fill):
            launch(_pick, (count,), *tensors, width, self.room, fewest, most, **constants)


def pair_distances(x: Tensor, y: Tensor, places: Tensor, scale: Tensor) -> Tensor:
    """Distances (N, width) of rows of x to rows `places` (N, width) of y, times `scale` (1,); inf for a place of -1."""
    (n, width), dim = places.shape, x.shape[1]
    distances = torch.empty(n, width, dtype=torch.float32, device=x.device)
    together = min(32, power_of_2(width))
    tensors = x.contiguous(), y.contiguous(), places, scale, distances
    constants = {"PLACES": together, "BLOCK": min(128, power_of_2(dim)), "num_warps": 4}
    with torch.cuda.device_of(x):
        launch(_distances, (n, blocks(width, together)), *tensors, dim, width, **constants)
    return distances
