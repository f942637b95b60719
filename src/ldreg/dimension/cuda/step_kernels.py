"""Triton kernels behind `step`: from rows to a mean of ln LID and its gradient, in six launches without waiting.

Distances come from differences in float32, so that an offset costs no digits. Rows are first multiplied by a power of
two that brings the largest value near the top of the range, so that squares do not overflow, nor underflow down to
1e-32 of the largest value. All that follows is in those units, since LID has none.

| kernel | does |
|---|---|
| `_peaks` | the largest absolute value, in a few hundred parts |
| `_prepare` | both sets scaled, converted to float32 and transposed, so that a column of rows is one contiguous load |
| `_squares` | squared distances (N, M) |
| `_select` | the k nearest of each row, and its ln LID |
| `_finish` | the mean over the regular rows, and its slope |
| `_gather` | the gradient: a sum over the k neighbors of a row |
"""

# Triton types kernels when it compiles them, and has no types itself.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-untyped"
# ruff: noqa: N803 - compile-time constants of kernels are in capitals

from collections.abc import Hashable
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ldreg.dimension.cuda import blocks, launch, power_of_2
from ldreg.dimension.cuda.nearest_kernels import peak_scale
from ldreg.dimension.cuda.step import Pass, Reduction

_INFINITY = tl.constexpr(0x7F800000)
_LARGEST = tl.constexpr(3.4028234663852886e38)


class Tiles(NamedTuple):
    """Tiling of `_squares`: `side` rows and columns per program, `chunk` terms at a time, on `warps`.

    With `half`, distances of a set to itself are computed only on and above the diagonal.
    """

    side: int = 64
    chunk: int = 16
    warps: int = 4
    half: bool = True


TILES = Tiles()


@triton.jit
def _peak(source, size, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """The largest |value| of this program's share, as the bits of a float, which are ordered; NaN comes last."""
    peak = tl.zeros((BLOCK,), tl.int32)
    for start in range(tl.program_id(0) * BLOCK, size, PARTS * BLOCK):
        place = start + tl.arange(0, BLOCK)
        values = tl.load(source + place, mask=place < size, other=0.0).to(tl.float32)
        peak = tl.maximum(peak, values.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    return tl.max(peak, axis=0)


@triton.jit
def _peaks(x, y, peaks, x_size, y_size, SAME: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    peak = _peak(x, x_size, PARTS, BLOCK)
    if not SAME:
        peak = tl.maximum(peak, _peak(y, y_size, PARTS, BLOCK))
    tl.store(peaks + tl.program_id(0), peak)


@triton.jit
def _transpose(source, target, block, n, dim, depth, scale, SIDE: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.arange(0, SIDE)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    places = (block * SIDE + rows)[:, None] * dim + columns[None, :]
    inside = (block * SIDE + rows < n)[:, None] & (columns < dim)[None, :]
    tile = tl.load(source + places, mask=inside, other=0.0).to(tl.float32) * scale
    places = (block * depth + columns)[:, None] * SIDE + rows[None, :]
    tl.store(target + places, tl.trans(tile), mask=(columns < depth)[:, None])


@triton.jit
def _prepare(
    x,
    y,
    x_tiles,
    y_tiles,
    peaks,
    n,
    m,
    dim,
    depth,
    x_blocks,
    top,
    PARTS: tl.constexpr,
    SIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    scale = peak_scale(peaks, top, PARTS)
    block = tl.program_id(0)
    if block < x_blocks:
        _transpose(x, x_tiles, block, n, dim, depth, scale, SIDE, BLOCK)
    else:
        _transpose(y, y_tiles, block - x_blocks, m, dim, depth, scale, SIDE, BLOCK)


@triton.jit
def _squares(
    x_tiles,
    y_tiles,
    own,
    queue,
    waiting,
    squares,
    n,
    m,
    first,
    depth,
    EXCLUDE: tl.constexpr,
    HALF: tl.constexpr,
    QUEUED: tl.constexpr,
    SIDE: tl.constexpr,
    CHUNK: tl.constexpr,
    DOWN: tl.constexpr,
    ACROSS: tl.constexpr,
):
    i = tl.program_id(0)
    j = tl.program_id(1)
    if HALF:  # noqa: SIM102 - a constant: the inner branch is compiled only where it holds
        if i > j:
            return
    if QUEUED:  # noqa: SIM102 - as above
        if first + i * SIDE >= tl.load(waiting):
            return
    # The tile has shape (SIDE/DOWN, SIDE/ACROSS, DOWN, ACROSS). Triton distributes the last two axes, which have one
    # element per thread, so each thread holds a block of the first two, whose differences share operands. In a plain
    # matrix, a thread would hold a column and load an operand for every difference.
    down = tl.arange(0, SIDE // DOWN)[:, None] * DOWN + tl.arange(0, DOWN)[None, :]
    across = tl.arange(0, SIDE // ACROSS)[:, None] * ACROSS + tl.arange(0, ACROSS)[None, :]
    left = x_tiles + i * depth * SIDE + down
    right = y_tiles + j * depth * SIDE + across
    total = tl.zeros((SIDE // DOWN, SIDE // ACROSS, DOWN, ACROSS), tl.float32)
    for _ in range(0, depth, CHUNK):
        # Sums of sums: rounding then grows with CHUNK + D / CHUNK instead of D.
        part = tl.zeros((SIDE // DOWN, SIDE // ACROSS, DOWN, ACROSS), tl.float32)
        for step in tl.static_range(CHUNK):
            mine = tl.load(left + step * SIDE)
            theirs = tl.load(right + step * SIDE)
            difference = mine[:, None, :, None] - theirs[None, :, None, :]
            part = tl.fma(difference, difference, part)
        total += part
        left += CHUNK * SIDE
        right += CHUNK * SIDE
    rows = i * SIDE + down
    columns = j * SIDE + across
    query = rows
    if QUEUED:
        query = tl.load(queue + first + rows, mask=first + rows < tl.load(waiting), other=0)
    if EXCLUDE == "diagonal":
        total = tl.where(query[:, None, :, None] == columns[None, :, None, :], float("inf"), total)
    elif EXCLUDE == "index":
        self_index = tl.load(own + query, mask=rows < n, other=-1)
        total = tl.where(self_index[:, None, :, None] == columns[None, :, None, :], float("inf"), total)
    rows = rows[:, None, :, None]
    columns = columns[None, :, None, :]
    inside = (rows < n) & (columns < m)
    tl.store(squares + rows.to(tl.int64) * m + columns, total, mask=inside)
    if HALF:
        tl.store(squares + columns.to(tl.int64) * m + rows, total, mask=inside)


@triton.jit
def _select(
    squares,
    queue,
    waiting,
    indices,
    distances,
    stats,
    n,
    m,
    k,
    first,
    PAPER: tl.constexpr,
    QUEUED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place_in_line = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    row = place_in_line
    if QUEUED:
        if first + place_in_line >= tl.load(waiting):
            return
        row = tl.load(queue + first + place_in_line)
    square = tl.load(squares + place_in_line.to(tl.int64) * m + columns, mask=columns < m, other=float("inf"))
    bits = ordered_bits(square)
    # Fewer than k lie at or below `low`, k or more at or below `high`: bisect until they meet or exactly k remain.
    low = tl.min(bits, axis=0) - 1
    high = tl.full((), _INFINITY, tl.int32)
    while high - low > 1:
        middle = low + (high - low) // 2
        count = tl.sum((bits <= middle).to(tl.int32), axis=0)
        low = tl.where(count > k, low, tl.where(count == k, middle - 1, middle))
        high = tl.where(count >= k, middle, high)
    last = tl.max(tl.where(bits <= high, bits, -1), axis=0)
    below = bits < last
    # One sum counts those below, in its lower half, and those tied with the last, in its upper half.
    counted = tl.cumsum(below.to(tl.int32) + ((bits == last).to(tl.int32) << 16), 0)
    place = tl.where(below, counted & 0xFFFF, tl.sum(below.to(tl.int32), axis=0) + (counted >> 16)) - 1
    chosen = (bits <= last) & (place < k)
    distance = tl.sqrt_rn(bits.to(tl.float32, bitcast=True))
    tl.store(indices + row * k + place, columns, mask=chosen)
    tl.store(distances + row * k + place, distance, mask=chosen)
    store_moments(stats, row, distance, below, last, n, k, PAPER)


@triton.jit
def ordered_bits(square):
    """The bits of non-negative floats, which are ordered as the floats are; non-finite values come last."""
    return tl.minimum(square.to(tl.int32, bitcast=True) & 0x7FFFFFFF, _INFINITY)


@triton.jit
def store_moments(stats, row, distance, below, last, n, k, PAPER: tl.constexpr):
    """Ln LID of a row by the method of moments, as in `estimators.mom`, and the sums that its gradient needs.

    `below` marks the distances below the k-th, whose square has the bits `last`; those tied with it have ratio 1 and
    gap 0.
    """
    taken = tl.sum(below.to(tl.int32), axis=0)
    largest = tl.sqrt_rn(last.to(tl.float32, bitcast=True))
    unit = tl.where(largest > 0, largest, 1.0)
    ratio = tl.sum(tl.where(below, distance / unit, 0.0), axis=0) + (k - taken)
    if not PAPER:
        ratio -= 1
    gap = tl.sum(tl.where(below, (largest - distance) / unit, 0.0), axis=0)
    regular = (largest > 0) & (ratio > 0) & (gap > 0)
    tl.store(stats + row, tl.where(regular, tl.log(ratio / tl.where(regular, gap, 1.0)), 0.0))
    tl.store(stats + n + row, tl.where(regular, ratio, 0.0))
    tl.store(stats + 2 * n + row, tl.where(regular, gap, 0.0))
    tl.store(stats + 3 * n + row, largest)


@triton.jit
def _finish(
    stats,
    peaks,
    value,
    totals,
    n,
    top,
    offset,
    scale,
    TERMS: tl.constexpr,
    OUTER: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    total = tl.zeros((BLOCK,), tl.float32)
    count = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        row = start + tl.arange(0, BLOCK)
        regular = tl.load(stats + n + row, mask=row < n, other=0.0) > 0
        term = tl.where(regular, tl.load(stats + row, mask=row < n, other=0.0) - offset, 0.0)
        if TERMS == "square":
            term = term * term
        elif TERMS == "absolute":
            term = tl.abs(term)
        total += term
        count += regular.to(tl.float32)
    result = tl.sum(total, axis=0)
    regular_rows = tl.sum(count, axis=0)
    slope = scale
    if OUTER != "sum":
        share = 1 / tl.maximum(regular_rows, 1.0)
        result *= share
        slope *= share
        if OUTER == "root":
            # The root has no slope at 0, where every term and its gradient are 0.
            positive = result > 0
            root = tl.sqrt_rn(tl.where(positive, result, 1.0))
            slope *= tl.where(positive, 0.5 / root, 1.0)
            result = tl.where(positive, root, result)
        elif OUTER == "absolute":
            slope *= tl.where(result > 0, 1.0, tl.where(result < 0, -1.0, 0.0))
            result = tl.abs(result)
    # Non-finite numbers may have dropped out on the way; they still make the result NaN.
    finite = tl.max(tl.load(peaks + tl.arange(0, PARTS)), axis=0) < _INFINITY
    tl.store(value, tl.where(finite, scale * result, float("nan")))
    tl.store(totals, tl.where(finite, slope, float("nan")))
    tl.store(totals + 1, regular_rows)
    tl.store(totals + 2, peak_scale(peaks, top, PARTS))


@triton.jit
def _within(value, limit):
    """The value clamped to ±limit; NaN stays NaN."""
    return tl.where(value > limit, limit, tl.where(value < -limit, -limit, value))


@triton.jit
def _row_slopes(totals, stats, row, n, k, offset, PAPER: tl.constexpr, TERMS: tl.constexpr):
    """Slopes of the value in d/w for all distances of a row except the last, for the last, and w."""
    log_lid = tl.load(stats + row)
    ratio = tl.load(stats + n + row)
    gap = tl.load(stats + 2 * n + row)
    regular = ratio > 0
    slope = tl.load(totals)
    if TERMS == "square":
        slope *= 2 * (log_lid - offset)
    elif TERMS == "absolute":
        slope *= tl.where(log_lid > offset, 1.0, tl.where(log_lid < offset, -1.0, 0.0))
    slope *= regular.to(tl.float32)  # a product, so that NaN stays NaN
    of_ratio = slope / tl.where(regular, ratio, 1.0)
    of_gap = slope / tl.where(regular, gap, 1.0)
    limit = _LARGEST / (2.0 * k)
    last = -(k - 1) * of_gap
    if PAPER:
        last += of_ratio
    return _within(of_ratio + of_gap, limit), _within(last, limit), tl.load(stats + 3 * n + row)


@triton.jit
def _gather(
    totals,
    stats,
    x,
    y,
    indices,
    distances,
    out,
    n,
    dim,
    k,
    offset,
    PAPER: tl.constexpr,
    TERMS: tl.constexpr,
    NEIGHBORS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    scale = tl.load(totals + 2)
    others, last, largest = _row_slopes(totals, stats, row, n, k, offset, PAPER, TERMS)
    mine = tl.load(x + row * dim + columns, mask=columns < dim, other=0.0).to(tl.float32) * scale
    total = tl.zeros((NEIGHBORS, BLOCK), tl.float32)
    for start in range(0, k, NEIGHBORS):
        place = start + tl.arange(0, NEIGHBORS)
        index = tl.load(indices + row * k + place, mask=place < k, other=0)
        distance = tl.load(distances + row * k + place, mask=place < k, other=0.0)
        inside = (place < k)[:, None] & (columns < dim)[None, :]
        theirs = tl.load(y + index[:, None] * dim + columns[None, :], mask=inside, other=0.0).to(tl.float32) * scale
        # A distance of zero has no direction and adds nothing.
        inverse = tl.where(distance > 0, 1 / tl.where(distance > 0, distance, 1.0), 0.0)
        slope = tl.where(place == k - 1, last, others)
        total += (mine[None, :] - theirs) * inverse[:, None] * slope[:, None]
    # A slope too steep for float32 is clamped to its range.
    steep = tl.minimum(scale / tl.where(largest > 0, largest, 1.0), _LARGEST)
    result = _within(tl.sum(total, axis=0) * steep, _LARGEST)
    tl.store(out + row * dim + columns, result, mask=columns < dim)


@triton.jit
def _distance_slopes(
    totals,
    stats,
    distances,
    slopes,
    unscaled,
    n,
    k,
    offset,
    PAPER: tl.constexpr,
    TERMS: tl.constexpr,
    NEIGHBORS: tl.constexpr,
):
    row = tl.program_id(0)
    scale = tl.load(totals + 2)
    others, last, largest = _row_slopes(totals, stats, row, n, k, offset, PAPER, TERMS)
    steep = tl.minimum(scale / tl.where(largest > 0, largest, 1.0), _LARGEST)
    for start in range(0, k, NEIGHBORS):
        place = start + tl.arange(0, NEIGHBORS)
        slope = _within(tl.where(place == k - 1, last, others) * steep, _LARGEST)
        distance = tl.load(distances + row * k + place, mask=place < k, other=0.0)
        tl.store(slopes + row * k + place, slope, mask=place < k)
        tl.store(unscaled + row * k + place, distance / scale, mask=place < k)


def forward(x: Tensor, reference: Tensor | None, self_index: Tensor | None, k: int, reduction: Reduction) -> Pass:
    """The reduction over ln LID of the rows of x (N, D); arguments as in `step.ldreg_step`."""
    with torch.cuda.device_of(x):
        x = x.contiguous()
        y = x if reference is None else reference.contiguous()
        kind = _kind(x, y, self_index, reference is None, k, *reduction[:3])
        peaks = find_peaks(x, y, kind=kind)
        found = empty_rows(x, k)
        squares = torch.empty(x.shape[0], y.shape[0], dtype=torch.float32, device=x.device)
        # A reference passed explicitly excludes nothing, even if it is x itself.
        tiles = prepare(x, y, peaks, kind=kind)
        find_squares(tiles, squares, self_index, same=reference is None, kind=kind)
        select(squares, found, paper=reduction.paper, kind=kind)
        return finish(found, peaks, x.shape[1], reduction, kind=kind)


def _kind(x: Tensor, y: Tensor, self_index: Tensor | None, *options: Hashable) -> Hashable:
    """The key of all launches of a step, computed once: everything they depend on except the values of floats."""
    own = None if self_index is None else (self_index.dtype, self_index.data_ptr() % 16)
    addresses = x.data_ptr() % 16, y.data_ptr() % 16
    return x.get_device(), x.shape, y.shape, y is x, x.dtype, y.dtype, addresses, own, TILES, *options


class Rows(NamedTuple):
    """Results per row: statistics (4, N), distances (N, k) and indices (N, k), as in `step.Pass`."""

    stats: Tensor
    distances: Tensor
    indices: Tensor


def empty_rows(x: Tensor, k: int) -> Rows:
    """Uninitialized results for the rows of x (N, D)."""
    n, device = x.shape[0], x.device
    stats = torch.empty(4, n, dtype=torch.float32, device=device)
    distances = torch.empty(n, k, dtype=torch.float32, device=device)
    return Rows(stats, distances, torch.empty(n, k, dtype=torch.int32, device=device))


class Queue(NamedTuple):
    """Rows (N,) to search again, of which the first `waiting` (1,) are valid; the current turn starts at `first`."""

    rows: Tensor
    waiting: Tensor
    first: int = 0


_NO_QUEUE = None, None, 0


def select(squares: Tensor, found: Rows, *, paper: bool, queue: Queue | None = None, kind: Hashable = None) -> None:
    """Fill in all rows from squared distances (N, M), or with a queue the rows of a turn from (turn, M)."""
    (n, k), (turn, m) = found.indices.shape, squares.shape
    rows, waiting, first = queue or _NO_QUEUE
    tensors = squares, rows, waiting, found.indices, found.distances, found.stats
    block = power_of_2(m)
    constants = {
        "PAPER": paper,
        "QUEUED": queue is not None,
        "BLOCK": block,
        "num_warps": min(32, max(1, block // 512)),
    }
    launch(_select, (turn,), *tensors, n, m, k, first, kind=kind, **constants)


def finish(found: Rows, peaks: Tensor, dim: int, reduction: Reduction, *, kind: Hashable = None) -> Pass:
    """The reduction, once all rows are filled in."""
    value, totals = found.stats.new_empty(()), found.stats.new_empty(3)
    tensors, n = (found.stats, peaks, value, totals), found.indices.shape[0]
    constants = {"TERMS": reduction.terms, "OUTER": reduction.outer, "PARTS": peaks.shape[0], "BLOCK": 1024}
    floats = reduction.offset, reduction.scale
    launch(_finish, (1,), *tensors, n, top_exponent(dim), *floats, kind=kind, **constants, num_warps=8)
    return Pass(value, totals, *found)


def query_gradient(
    x: Tensor, reference: Tensor | None, saved: Pass, *, paper: bool, terms: str, offset: float
) -> Tensor:
    """The gradient (N, D) of the value for x as queries, always in float32, since a loss may scale it up."""
    with torch.cuda.device_of(x):
        x = x.contiguous()
        y = x if reference is None else reference.contiguous()
        (n, k), dim = saved.indices.shape, x.shape[1]
        kind = _kind(x, y, None, k, paper, terms)
        out = torch.empty_like(x, dtype=torch.float32)
        block = min(512, power_of_2(dim))
        tensors = saved.totals, saved.rows, x, y, saved.indices, saved.distances, out
        constants = {"PAPER": paper, "TERMS": terms, "NEIGHBORS": 16, "BLOCK": block, "num_warps": 4}
        launch(_gather, (n, blocks(dim, block)), *tensors, n, dim, k, offset, kind=kind, **constants)
    return out


def distance_slopes(saved: Pass, *, paper: bool, terms: str, offset: float) -> tuple[Tensor, Tensor]:
    """Slopes (N, k) of the value in the distances, and those distances (N, k) in units of the data."""
    slopes, unscaled = torch.empty_like(saved.distances), torch.empty_like(saved.distances)
    n, k = slopes.shape
    tensors = saved.totals, saved.rows, saved.distances, slopes, unscaled
    constants = {"PAPER": paper, "TERMS": terms, "NEIGHBORS": 64, "num_warps": 1}
    with torch.cuda.device_of(slopes):
        launch(_distance_slopes, (n,), *tensors, n, k, offset, **constants)
    return slopes, unscaled


def top_exponent(dim: int) -> int:
    """The power of two to move the largest value to, such that a sum of `dim` squared differences stays below 2^127.

    >>> [top_exponent(dim) for dim in (2, 512, 2048)]
    [61, 57, 56]
    """
    return (123 - (dim - 1).bit_length()) // 2


def find_peaks(x: Tensor, y: Tensor, *, kind: Hashable = None) -> Tensor:
    """The bits (parts,) of the largest absolute value in each part of x and y."""
    parts = min(256, power_of_2(blocks(max(x.numel(), y.numel()), 2048)))
    peaks = torch.empty(parts, dtype=torch.int32, device=x.device)
    constants = {"SAME": y is x, "PARTS": parts, "BLOCK": 2048, "num_warps": 4}
    launch(_peaks, (parts,), x, y, peaks, x.numel(), y.numel(), kind=kind, **constants)
    return peaks


def prepare(x: Tensor, y: Tensor, peaks: Tensor, *, kind: Hashable = None) -> tuple[Tensor, Tensor]:
    """Both sets scaled and transposed, (blocks, depth, side); the same tensor twice where y is x."""
    (n, dim), m, (side, chunk, _, _) = x.shape, y.shape[0], TILES
    depth = blocks(dim, chunk) * chunk
    x_blocks, y_blocks = blocks(n, side), blocks(m, side)
    x_tiles = torch.empty(x_blocks, depth, side, dtype=torch.float32, device=x.device)
    y_tiles = x_tiles if y is x else torch.empty(y_blocks, depth, side, dtype=torch.float32, device=x.device)
    grid = x_blocks if y is x else x_blocks + y_blocks, blocks(depth, 64)
    tensors, sizes = (x, y, x_tiles, y_tiles, peaks), (n, m, dim, depth, x_blocks, top_exponent(dim))
    constants = {"PARTS": peaks.shape[0], "SIDE": side, "BLOCK": 64, "num_warps": 4}
    launch(_prepare, grid, *tensors, *sizes, kind=kind, **constants)
    return x_tiles, y_tiles


def find_squares(
    tiles: tuple[Tensor, Tensor],
    squares: Tensor,
    self_index: Tensor | None,
    *,
    same: bool,
    queue: Queue | None = None,
    kind: Hashable = None,
) -> None:
    """Squared distances (N, M), or (turn, M) with a queue, in scaled units; inf for the query itself."""
    (n, m), (side, chunk, warps, half) = squares.shape, TILES
    rows, waiting, first = queue or _NO_QUEUE
    down = 1 << ((32 * warps).bit_length() - 1) // 2  # with `across` as many as there are threads
    exclude = "diagonal" if same else "none" if self_index is None else "index"
    constants = {"EXCLUDE": exclude, "HALF": same and half and queue is None, "QUEUED": queue is not None}
    tiling = {"SIDE": side, "CHUNK": chunk, "DOWN": down, "ACROSS": 32 * warps // down, "num_warps": warps}
    tensors, sizes = (*tiles, self_index, rows, waiting, squares), (n, m, first, tiles[0].shape[1])
    launch(_squares, (blocks(n, side), blocks(m, side)), *tensors, *sizes, kind=kind, **constants, **tiling)
