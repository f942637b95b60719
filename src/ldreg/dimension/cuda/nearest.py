"""Candidates on the tensor cores of a CUDA device, with the same kind of proof as in `candidates`.

Rows are moved to the reference's center, scaled by a power of two and rounded to float16. This moves a row x by ρ(x),
about 3·10⁻⁴|x|, and so changes a distance by at most ρ(x) + ρ(y). Products of rounded rows are exact in float32, where
they are summed with an error of at most γ|x||y|. Rows left out have a computed score above a threshold. A row nearer
than that has a norm of at most |x| plus its distance, which bounds the errors. So every query has a distance that all
rows left out provably reach.

The reference is scanned in a random order. The list of a query starts with the smallest scores of the first few
thousand rows. From each further stretch, only scores below the largest one kept are appended, about as many again for
each doubling. The matrix of all scores is never stored.
"""

import functools
import importlib.util
import itertools
import math
import warnings
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ldreg.dimension.candidates import Candidates, Progress, Query, even_slices

# "auto" chooses by device and size; tests and benchmarks set "screen" or "plain" to force one of the two paths.
PATH: Literal["auto", "screen", "plain"] = "auto"

CAPABILITY = (8, 0)  # of devices whose sums are known well enough for the proof
_TOP = 14  # moved values stay below 2 to this power, so that float16 holds them and values 2^28 below them
_FEWEST_ROWS = 2048  # of the reference, below which screening does not pay
_MOST_KEPT = 1024
_FEW_DIMENSIONS = 3072  # up to here few candidates more than k are enough, by trial
ROOM = 8  # capacity of a list before it is cut, as a multiple of the candidates kept
_MARGIN = 1.001  # for rounding in the measured rounding of rows
_SAFE = 1e-15  # squares of smaller differences lose digits to underflow


class Halves(NamedTuple):
    """Rows moved, scaled and rounded to float16, (N, depth) with zeros past D.

    `norms` (N,) are half their squared norms, `rounding` (N,) how far rounding moved each row, `largest` (2,) the
    maximum of each.
    """

    rows: Tensor
    norms: Tensor
    rounding: Tensor
    largest: Tensor


class Walk(NamedTuple):
    """Stretches in which a reference is scanned: rows of the first, growth factor, and the step that ends align to."""

    first: int = 8192
    growth: float = 6.0
    step: int = 256

    def edges(self, rows: int) -> list[int]:
        """The ends of the stretches.

        >>> Walk().edges(50_000)
        [8192, 20480, 50000]
        """
        if rows <= self.first:
            return [rows]
        stretches = math.ceil(math.log(rows / self.first) / math.log(self.growth))
        ratio = (rows / self.first) ** (1 / stretches)
        ends = [self.step * math.ceil(self.first * ratio**stretch / self.step) for stretch in range(1, stretches)]
        return [self.first, *(end for end in ends if end < rows), rows]


WALK = Walk()


def kept(k: int, candidates: int, dim: int) -> int:
    """Number of candidates to keep, so that rounding rarely leaves the proof open for the k nearest.

    In more dimensions distances are closer to each other and sums are less precise.

    >>> kept(64, 10_000, 512), kept(64, 70, 512), kept(64, 10_000, 8192)
    (88, 70, 128)
    """
    few = max(16, 3 * k // 8)
    more = few * min(max(dim, _FEW_DIMENSIONS), 4 * _FEW_DIMENSIONS) // _FEW_DIMENSIONS
    return min(k + more, max(k + few, _MOST_KEPT), candidates)


def fewest_kept(count: int) -> int:
    """Fewest candidates to keep where `count` are allowed: an exact number would take longer to find."""
    return count - count // 16


def supports(query: Query) -> bool:
    """Whether `nearest` can answer the query and is the best choice for it."""
    x = query.x
    if PATH == "plain" or (PATH == "auto" and not x.is_cuda):
        return False
    rows = query.rows
    if _count(query) > _MOST_KEPT or torch.float64 in (x.dtype, rows.dtype):
        return False
    return PATH == "screen" or (len(rows) >= _FEWEST_ROWS and can_launch(x.device, CAPABILITY))


@functools.cache
def can_launch(device: torch.device, capability: tuple[int, int]) -> bool:
    """Whether Triton is installed and the device has the compute capability; warns once where not."""
    if torch.version.hip is not None:
        missing = "an NVIDIA device"
    elif importlib.util.find_spec("triton") is None:
        missing = "the package triton"
    elif torch.cuda.get_device_capability(device) < capability:
        missing = "compute capability {}.{}".format(*capability)
    else:
        return True
    warnings.warn(f"the fast kernels of ldreg need {missing}; the slower path gives the same numbers", stacklevel=2)
    return False


def _count(query: Query) -> int:
    return kept(query.k, query.available, query.x.shape[1])


def nearest(query: Query, progress: Progress | None = None) -> Candidates:
    """Candidates of every query, with -1 where there are fewer; all values must be finite."""
    from ldreg.dimension.cuda.nearest_kernels import halves

    x, reference, rows, frame, count = query.x, query.reference, query.rows, query.frame, _count(query)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0), device="cpu").to(x.device)
    # Rows are multiplied by a power of two before they are rounded to float16.
    exponent = min(math.frexp(frame.scale)[1] - 1 + _TOP, 126)
    center, scale = frame.center.float(), torch.full((1,), 2.0**exponent, dtype=torch.float32, device=x.device)
    halved = halves(rows, center, scale, order)
    room = 1 << (ROOM * count - 1).bit_length()
    first = max(count, min(WALK.first, len(rows)))
    chunks = even_slices(len(x), max(64, query.memory // 2 // (8 * room + 2 * x.shape[1])))
    indices = torch.empty(len(x), count, dtype=torch.int64, device=x.device)
    bound = torch.empty(len(x), dtype=torch.float64, device=x.device)
    own = None
    if reference is not None and query.self_index is not None:
        # The place of each query itself in the order; -1 where it is not in the reference.
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=order.device)
        own = torch.where(query.self_index >= 0, place[query.self_index.clamp_min(0)], -1).int()
    for chunk, part in enumerate(chunks):
        if reference is None:
            queries = Halves(halved.rows[part], halved.norms[part], halved.rounding[part], halved.largest)
        else:
            queries = halves(x[part], center, scale)
        itself = part.start if reference is None else None if own is None else own[part]
        stage = functools.partial(_report, progress, chunk, len(chunks))
        found = _walk(queries, halved, itself, count, first, room, query.memory, stage)
        target = order[part] if reference is None else torch.arange(part.start, part.stop, device=x.device)
        indices[target] = torch.where(found.indices >= 0, order[found.indices], -1)
        bound[target] = found.bound * (frame.scale / scale.double().square() * frame.scale)
    return Candidates(indices, bound)


def _report(progress: Progress | None, chunk: int, chunks: int, fraction: float) -> None:
    if progress is not None:
        progress((chunk + fraction) / chunks)


def _walk(
    queries: Halves,
    reference: Halves,
    own: Tensor | int | None,
    count: int,
    first: int,
    room: int,
    memory: int,
    progress: Progress,
) -> Candidates:
    """Places (n, count) of candidates in the order, -1 where there are fewer, and the bound (n,) in units of halves."""
    from ldreg.dimension.cuda.nearest_kernels import Lists

    lists = Lists(queries, reference, own=own, room=room)
    n, rows, fewest = len(queries.rows), len(reference.rows), fewest_kept(count)
    step = min(n, max(1, memory // 2 // (4 * first)))
    scores = torch.empty(step, first, dtype=torch.float32, device=queries.rows.device)
    lists.start(first, fewest=fewest, most=count, scores=scores)
    del scores
    edges = WALK._replace(first=first).edges(rows)
    progress(edges[0] / rows)
    for begin, end in itertools.pairwise(edges):
        lists.sweep(begin, end)
        lists.cut(fewest=fewest, most=count)
        progress(end / rows)
    return Candidates(lists.places(count), half_bound(queries, reference, lists.thresholds))


def rounding_shares(depth: int) -> tuple[float, float]:
    """Bounds of the rounding of a score: the first times |x||y|, the second times |x|² + |y|².

    The first is for a product of `depth` terms, summed in float32 by tensor cores, which truncate. They are assumed to
    keep at least one bit more than float32 within a block of terms, as devices of compute capability 8.0 and later
    were found to do. The second is for the norms and for moving the rows.
    """
    return (depth + 32) * 2.0**-23, (depth / 512 + 32) * 2.0**-24


def half_bound(queries: Halves, reference: Halves, thresholds: Tensor) -> Tensor:
    """Half the squared distance (n,), in float64, that all rows with a score at or above the threshold reach."""
    sums, norms = rounding_shares(queries.rows.shape[1])
    half, limit = queries.norms.double(), thresholds.double()
    own, moved = (2 * half).sqrt(), queries.rounding.double() * _MARGIN
    largest_norm, largest_moved = (2 * reference.largest[0].double()).sqrt(), reference.largest[1].double() * _MARGIN
    # No row nearer than `reach` has a larger norm than the query and `reach` together; rounding moves it accordingly.
    reach = (2 * (half + limit)).clamp_min(0).sqrt()
    norm = own + moved + reach
    their_moved = torch.minimum(largest_moved, norm * (_MARGIN * 2.0**-11) + queries.rows.shape[1] ** 0.5 * 2.0**-25)
    norm = torch.minimum(norm + their_moved, largest_norm * _MARGIN)
    error = sums * own * norm + norms * (own.square() + norm.square())
    distance = (2 * (half + limit - error)).clamp_min(0).sqrt() - moved - their_moved
    bound = distance.clamp_min(0).square() / 2
    return torch.where(torch.isposinf(limit), torch.inf, torch.where(torch.isneginf(limit), 0.0, bound))


def distances(x: Tensor, reference: Tensor, indices: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Distances (N, count) to these rows, inf for -1, and the queries for which one may have underflowed.

    `scale` brings the largest difference near 1, so that squares do not overflow; near zero they lose digits.
    """
    from ldreg.dimension.cuda.nearest_kernels import pair_distances

    factor = torch.full((1,), scale, dtype=torch.float32, device=x.device)
    scaled = pair_distances(x, reference, indices, factor)
    return scaled / scale, (scaled < _SAFE).any(1).nonzero().squeeze(1)
