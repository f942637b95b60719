"""LDReg's step for batches so large that products on the tensor cores pay, also without waiting for the device.

Candidates of every row come from products of rounded rows (`nearest_kernels`), their distances from differences in
float32. Rows whose proof stays open join a queue, and the kernels of `step_kernels` find their neighbors from all
differences. These kernels start for the largest possible number of rows and return at once where none is queued. Rows
take turns in one block of memory, so that the scores of all rows are never held at once.
"""

# Triton types kernels when it compiles them, and has no types itself.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-untyped"
# ruff: noqa: N803 - compile-time constants of kernels are in capitals

import torch
import triton
import triton.language as tl
from torch import Tensor

from ldreg.dimension.cuda import blocks, launch, nearest, power_of_2, step_kernels
from ldreg.dimension.cuda.nearest_kernels import Lists, halves, peak_scale
from ldreg.dimension.cuda.step import Pass, Reduction
from ldreg.dimension.cuda.step_kernels import Queue, Rows, ordered_bits, store_moments

_TOP = 13  # the largest value moves to this power of two, so that less the center it stays in the range of float16
SCORES = 1 << 24  # number held at a time
_SLACK = 1.01  # for the rounding of the bound itself


@triton.jit
def _nearest(
    x,
    y,
    entries,
    fill,
    thresholds,
    norms,
    rounding,
    largest,
    peaks,
    indices,
    distances,
    stats,
    queue,
    waiting,
    n,
    dim,
    k,
    room,
    half_top,
    top,
    sums,
    norm_share,
    absolute,
    margin,
    PAPER: tl.constexpr,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    position = tl.arange(0, WIDTH)
    held = tl.load(fill + row)
    entry = tl.load(entries + row.to(tl.int64) * room + position, mask=position < held, other=-1)
    listed = position < held
    place = tl.where(listed, entry & 0xFFFFFFFF, 0)
    scale = peak_scale(peaks, top, PARTS)
    total = tl.zeros((WIDTH, BLOCK), tl.float32)
    for start in range(0, dim, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        mine = tl.load(x + row.to(tl.int64) * dim + columns, mask=columns < dim, other=0.0).to(tl.float32) * scale
        inside = listed[:, None] & (columns < dim)[None, :]
        theirs = tl.load(y + place[:, None] * dim + columns[None, :], mask=inside, other=0.0).to(tl.float32) * scale
        difference = mine[None, :] - theirs
        total += difference * difference
    bits = ordered_bits(tl.where(listed, tl.sum(total, axis=1), float("inf")))
    # The rank of each among all, by place where they are equal.
    mine = bits[:, None]
    theirs = bits[None, :]
    before = (theirs < mine) | ((theirs == mine) & (position[None, :] < position[:, None]))
    rank = tl.sum(before.to(tl.int32), axis=1)
    last = tl.max(tl.where(rank < k, bits, -1), axis=0)
    distance = tl.sqrt_rn(bits.to(tl.float32, bitcast=True))
    tl.store(indices + row * k + rank, place.to(tl.int32), mask=rank < k)
    tl.store(distances + row * k + rank, distance, mask=rank < k)
    store_moments(stats, row, distance, bits < last, last, n, k, PAPER)
    kth = tl.sqrt_rn(last.to(tl.float32, bitcast=True)) * (peak_scale(peaks, half_top, PARTS) / scale)
    bound = _bound(row, thresholds, norms, rounding, largest, sums, norm_share, absolute)
    # Non-finite rows have no candidates and no proof.
    proven = (held >= k) & ((kth * (1 + margin) <= bound) | (kth == 0))
    if proven == 0:
        tl.store(queue + tl.atomic_add(waiting, 1, sem="relaxed"), row)


@triton.jit
def _bound(row, thresholds, norms, rounding, largest, sums, norm_share, absolute):
    """The distance, in units of the halves, that all rows left out reach: `nearest.half_bound` in float32."""
    half = tl.load(norms + row)
    limit = tl.load(thresholds + row)
    moved = tl.load(rounding + row) * 1.001
    own = tl.sqrt_rn(2 * half)
    reach = tl.sqrt_rn(tl.maximum(2 * (half + limit), 0.0))
    norm = own + moved + reach
    their_moved = tl.minimum(tl.load(largest + 1) * 1.001, norm * (1.001 / 2048) + absolute)
    norm = tl.minimum(norm + their_moved, tl.sqrt_rn(2 * tl.load(largest)) * 1.001)
    error = sums * own * norm + norm_share * (own * own + norm * norm)
    distance = tl.sqrt_rn(tl.maximum(2 * (half + limit - error), 0.0)) - moved - their_moved
    # Nothing was left out where there is no threshold.
    return tl.where(limit == float("inf"), float("inf"), distance)


@triton.jit
def _tile_rows(
    source,
    queue,
    waiting,
    peaks,
    tiles,
    n,
    dim,
    depth,
    first,
    top,
    QUEUED: tl.constexpr,
    PARTS: tl.constexpr,
    SIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Rows of the queue, or all rows, scaled and transposed for `step_kernels`; nothing where none is needed."""
    block = tl.program_id(0)
    line = first + block * SIDE + tl.arange(0, SIDE)
    count = tl.load(waiting)
    if count <= (first + block * SIDE if QUEUED else 0):
        return
    row = tl.load(queue + line, mask=line < count, other=0) if QUEUED else line
    inside = line < (count if QUEUED else n)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    places = row.to(tl.int64)[:, None] * dim + columns[None, :]
    tile = tl.load(source + places, mask=inside[:, None] & (columns < dim)[None, :], other=0.0).to(tl.float32)
    tile *= peak_scale(peaks, top, PARTS)
    places = (block * depth + columns)[:, None] * SIDE + tl.arange(0, SIDE)[None, :]
    tl.store(tiles + places, tl.trans(tile), mask=(columns < depth)[:, None])


def forward(x: Tensor, reference: Tensor | None, self_index: Tensor | None, k: int, reduction: Reduction) -> Pass:
    """The reduction over ln LID of the rows of x (N, D); arguments as in `step.ldreg_step`."""
    with torch.cuda.device_of(x):
        x = x.contiguous()
        y = x if reference is None else reference.contiguous()
        peaks = step_kernels.find_peaks(x, y)
        found = step_kernels.empty_rows(x, k)
        turn = max(step_kernels.TILES.side, SCORES // len(y) // step_kernels.TILES.side * step_kernels.TILES.side)
        block = torch.empty(min(turn, len(x)), len(y), dtype=torch.float32, device=x.device)
        lists, count = candidates(x, y, self_index, k, peaks, block, same=reference is None)
        queue = measure(x, y, lists, count, peaks, found, paper=reduction.paper)
        tiles = _tiled(y, peaks, queue, turn=None)
        for first in range(0, len(x), len(block)):
            now = queue._replace(first=first)
            squares = block[: len(x) - first]
            both = _tiled(x, peaks, now, turn=len(squares)), tiles
            step_kernels.find_squares(both, squares, self_index, same=reference is None, queue=now)
            step_kernels.select(squares, found, paper=reduction.paper, queue=now)
        return step_kernels.finish(found, peaks, x.shape[1], reduction)


def candidates(
    x: Tensor, y: Tensor, self_index: Tensor | None, k: int, peaks: Tensor, block: Tensor, *, same: bool
) -> tuple[Lists, int]:
    """Lists of candidates in y for every row of x, and their maximum length; `block` is working memory.

    `same`: rows of y are those of x, and no row is its own candidate.
    """
    center = y.mean(0, dtype=torch.float32)
    reference = halves(y, center, peaks, top=_TOP)
    queries = reference if y is x else halves(x, center, peaks, top=_TOP)
    others = len(y) - (1 if same or self_index is not None else 0)
    # One program sorts a power of two of them, which many dimensions must not double.
    count = min(nearest.kept(k, others, x.shape[1]), power_of_2(nearest.kept(k, others, 1)))
    lists = Lists(queries, reference, own=0 if same else self_index, room=count)
    lists.start(len(y), fewest=count, most=count, scores=block)
    return lists, count


def measure(x: Tensor, y: Tensor, lists: Lists, count: int, peaks: Tensor, found: Rows, *, paper: bool) -> Queue:
    """Fill in the k nearest candidates of every row; returns the queue of rows that may have lost a neighbor."""
    n, dim = x.shape
    indices = torch.empty(n, dtype=torch.int32, device=x.device)
    queue = Queue(indices, torch.zeros(1, dtype=torch.int32, device=x.device))
    halved, depth = lists.queries, lists.queries.rows.shape[1]
    tensors = x, y, lists.entries, lists.fill, lists.thresholds, halved.norms, halved.rounding, lists.reference.largest
    results = peaks, found.indices, found.distances, found.stats, queue.rows, queue.waiting
    sizes = n, dim, found.indices.shape[1], count, _TOP, step_kernels.top_exponent(dim)
    sums, norm_share = nearest.rounding_shares(depth)
    shares = sums * _SLACK, norm_share * _SLACK, depth**0.5 * 2.0**-25, max(1e-5, (dim / 32 + 8) * 2.0**-24)
    constants = {"PAPER": paper, "PARTS": len(peaks), "WIDTH": power_of_2(count), "BLOCK": min(32, power_of_2(dim))}
    launch(_nearest, (n,), *tensors, *results, *sizes, *shares, **constants, num_warps=8)
    return queue


def _tiled(source: Tensor, peaks: Tensor, queue: Queue, *, turn: int | None) -> Tensor:
    """All rows (N, D) as tiles, or the rows of the queue in the current turn."""
    (n, dim), (side, chunk, _, _) = source.shape, step_kernels.TILES
    depth = blocks(dim, chunk) * chunk
    count = blocks(n if turn is None else turn, side)
    tiles = torch.empty(count, depth, side, dtype=torch.float32, device=source.device)
    tensors = source, queue.rows, queue.waiting, peaks, tiles
    sizes = n, dim, depth, 0 if turn is None else queue.first, step_kernels.top_exponent(dim)
    constants = {"QUEUED": turn is not None, "PARTS": len(peaks), "SIDE": side, "BLOCK": 64}
    launch(_tile_rows, (count, blocks(depth, 64)), *tensors, *sizes, **constants, num_warps=4)
    return tiles
