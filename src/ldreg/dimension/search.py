"""The exact search behind `neighbors`: candidates by products, distances by differences, and a proof per query."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ldreg.dimension import screening
from ldreg.dimension.candidates import (
    Candidates,
    Frame,
    Progress,
    select,
    select_against_itself,
    select_by_differences,
)
from ldreg.dimension.chunks import slices
from ldreg.dimension.memory import within_memory
from ldreg.dimension.pairs import pair_distances, pair_gradients

# Working memory of a search and of its backward pass, beyond input and output.
_SEARCH_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
_PAIR_BYTES = {"cpu": 8 << 20, "cuda": 256 << 20}

_FEW_DIMENSIONS = 2048  # up to which a few candidates more than k are enough


def _bytes(budget: dict[str, int], x: Tensor) -> int:
    return budget.get(x.device.type, budget["cpu"])


class Neighbors(NamedTuple):
    """Distances (N, k), ascending, and the reference rows (N, k) they lead to."""

    distances: Tensor
    indices: Tensor


@dataclass(frozen=True)
class Query:
    """One search: rows x, where to look (None: in x itself), the frame that products are taken in, bytes to work in."""

    x: Tensor
    reference: Tensor | None
    self_index: Tensor | None
    k: int
    frame: Frame
    dtype: torch.dtype
    memory: int

    @property
    def rows(self) -> Tensor:
        """Where neighbors are sought."""
        return self.x if self.reference is None else self.reference

    @property
    def count(self) -> int:
        """How many candidates to keep: some more than k, so that rounding rarely leaves a proof open.

        Distances of more dimensions are nearer to each other, and their sums are known less well.
        """
        dim = min(max(self.x.shape[1], _FEW_DIMENSIONS), 8 * _FEW_DIMENSIONS)
        return min(self.k + max(8, self.k // 8) * dim // _FEW_DIMENSIONS, self.candidates)

    @property
    def candidates(self) -> int:
        """How many there are to choose from."""
        return candidate_count(self.x, self.reference, self.self_index)

    @property
    def screened_count(self) -> int:
        """How many candidates to keep on the tensor cores, which round more."""
        return screening.kept(self.k, self.candidates, self.x.shape[1])

    @property
    def screened(self) -> bool:
        """Whether candidates are chosen on the tensor cores."""
        return screening.supports(self.x, self.reference, self.screened_count)

    def only(self, rows: Tensor) -> "Query":
        """The same search for some of the queries."""
        own = rows if self.reference is None else None if self.self_index is None else self.self_index[rows]
        return replace(self, x=self.x[rows], reference=self.rows, self_index=own)


# From a query and the bytes to stay within to candidates.
_Way = Callable[[Query, int], Candidates]


def search(
    x: Tensor,
    reference: Tensor | None,
    self_index: Tensor | None,
    k: int,
    progress: Progress | None = None,
    *,
    memory: int | None = None,
) -> Neighbors:
    """The k nearest rows of the reference (None: of x itself without the row's own index) for every row of x.

    It works in `memory` bytes, at most the usual ones, where the caller knows that there are fewer: to find that out
    by running out of memory takes long.
    """
    usual = _bytes(_SEARCH_BYTES, x)
    with torch.autocast(x.device.type, enabled=False), _full_precision_products(x.device):
        frame, dtype = _frame(x, reference), working_dtype(x, reference)
        query = Query(x, reference, self_index, k, frame, dtype, usual if memory is None else min(memory, usual))
        found, proven = first_pass(query, progress)
        ways: list[_Way] = [partial(_by_products, dtype=torch.float64), _by_differences]
        if query.screened:
            ways.insert(0, partial(_by_products, dtype=query.dtype))
        for way in ways:
            doubtful = (~proven).nonzero().squeeze(1)
            if len(doubtful) == 0:
                break
            again, proven[doubtful] = _found(_recentered(query.only(doubtful)), way)
            found.distances[doubtful], found.indices[doubtful] = again
    return found


def first_pass(query: Query, progress: Progress | None = None) -> tuple[Neighbors, Tensor]:
    """Neighbors by the fastest way, and for which queries (N,) they are proven to be the nearest."""
    if query.screened:
        try:
            return _found(query, partial(_by_screening, progress=progress))
        except torch.OutOfMemoryError:
            pass  # its copy of the rows may be too much where the products of a few at a time are not
    return _found(query, partial(_by_products, dtype=query.dtype, progress=progress))


def _found(query: Query, way: _Way) -> tuple[Neighbors, Tensor]:
    """The nearest candidates that a way selects, with less memory where there is too little."""
    return within_memory(lambda allowed: _measure(query, way(query, allowed), allowed), query.memory)


def gradients(
    grad: Tensor, x: Tensor, reference: Tensor | None, found: Neighbors, *, reference_grad: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients for x and, on request, for a reference, of a loss whose gradient for the distances is `grad`."""
    with torch.autocast(x.device.type, enabled=False), _full_precision_products(x.device):
        grad_x, grad_rows = pair_gradients(
            grad,
            x,
            x if reference is None else reference,
            found.distances,
            found.indices,
            reference_grad=reference_grad,
            chunk_bytes=_bytes(_PAIR_BYTES, x),
        )
    if reference is None and grad_rows is not None:
        return grad_x.add_(grad_rows), None
    return grad_x, grad_rows


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A backward pass that has no derivative itself, and says so where one is asked for.

    torch's own `once_differentiable` says so only where the gradient that comes in has one too.
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


def _by_screening(query: Query, memory: int, *, progress: Progress | None) -> Candidates:
    return screening.screen(
        query.x,
        query.reference,
        query.screened_count,
        query.frame,
        self_index=query.self_index,
        chunk_bytes=memory,
        progress=progress,
    )


def _by_products(query: Query, memory: int, *, dtype: torch.dtype, progress: Progress | None = None) -> Candidates:
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


def _by_differences(query: Query, memory: int) -> Candidates:
    return select_by_differences(
        query.x, query.rows, query.count, query.frame.scale, self_index=query.self_index, chunk_bytes=memory
    )


def _measure(query: Query, candidates: Candidates, memory: int) -> tuple[Neighbors, Tensor]:
    """The k nearest candidates by exact distance, and for which queries (N,) no other row can be nearer.

    A row left out may still tie with the k-th to rounding: it would change no distance.
    """
    distances = _distances(query, candidates.indices, memory)
    distances, order = distances.topk(query.k, dim=1, largest=False, sorted=True)
    half_square = (distances[:, -1].double() * query.frame.scale).square() / 2
    proven = half_square * (1 - 4 * torch.finfo(query.dtype).eps) <= candidates.bound
    proven |= half_square == 0  # nothing is nearer than a duplicate
    if candidates.indices.shape[1] == query.candidates:
        # Nothing was left out, but for queries that are not in the reference and so have one candidate more.
        proven |= True if query.self_index is None else query.self_index >= 0
    return Neighbors(distances, candidates.indices.gather(1, order)), proven


def _distances(query: Query, indices: Tensor, memory: int) -> Tensor:
    """Distances (N, count) to the rows of these indices, right to rounding; inf where an index is -1."""
    memory = min(memory, _bytes(_PAIR_BYTES, query.x))
    if not query.screened:
        return pair_distances(query.x, query.rows, indices, dtype=query.dtype, chunk_bytes=memory)
    distances, unsafe = screening.distances(query.x, query.rows, indices, query.frame.scale)
    if len(unsafe):
        some = pair_distances(
            query.x[unsafe], query.rows, indices[unsafe].clamp_min(0), dtype=query.dtype, chunk_bytes=memory
        )
        distances[unsafe] = torch.where(indices[unsafe] >= 0, some, torch.inf)
    return distances


def _recentered(query: Query) -> Query:
    """The same search around the median of its queries, which far outliers do not move."""
    some = query.x[:: max(1, len(query.x) // 1024)].double()
    return replace(query, frame=query.frame._replace(center=some.median(0).values))


def _frame(x: Tensor, reference: Tensor | None) -> Frame:
    """Center on the reference's mean, in units of the largest deviation; ValueError where a value is not finite."""
    sets = {"x": x} if reference is None else {"x": x, "reference": reference}
    statistics = {name: _column_statistics(rows) for name, rows in sets.items()}
    mean, low, high = statistics["x" if reference is None else "reference"]
    # A mean of equal numbers may miss them by rounding, and a constant column must vanish.
    center = torch.minimum(torch.maximum(mean, low), high)
    low = torch.stack([each[1] for each in statistics.values()]).amin(0)
    high = torch.stack([each[2] for each in statistics.values()]).amax(0)
    extremes = torch.stack((torch.maximum(high - center, center - low).max(), torch.maximum(high, -low).max()))
    spread, largest = extremes.tolist()  # the one wait for the device
    if not math.isfinite(largest):
        for name, rows in sets.items():
            refuse_nonfinite(rows, name)
    limits = torch.finfo(working_dtype(x, reference))
    if 2 * spread > limits.max / x.shape[1] ** 0.5:
        peaks = {name: torch.maximum(high, -low).max().item() for name, (_, low, high) in statistics.items()}
        name = max(peaks, key=lambda each: peaks[each])
        raise ValueError(
            f"{name}: expected values whose distances {limits.dtype} can hold, got values up to {peaks[name]:.3g}"
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
        # As a product with equal weights, since a sum may overflow where a mean does not.
        weights = torch.full((len(block),), 1 / len(x), dtype=dtype, device=x.device)
        total += (weights @ block.to(dtype)).double()
    return total, low, high


def refuse_nonfinite(x: Tensor, name: str) -> None:
    """ValueError with the number of rows of x (N, D) that hold NaN or inf, if any."""
    wrong = sum(int((~torch.isfinite(x[rows])).any(1).sum()) for rows in slices(len(x), 4096))
    if wrong:
        raise ValueError(f"{name}: expected finite numbers, got NaN or inf in {wrong} of {len(x)} rows")


@contextmanager
def _full_precision_products(device: torch.device) -> Iterator[None]:
    """Keep TF32 and bfloat16 out of float32 matrix products, and leave the caller's setting as it was."""
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
        # It may have come from what is set for the whole backend or for all, and is then to follow that as before.
        setting.fp32_precision = "none"
        if setting.fp32_precision != before:
            setting.fp32_precision = before


def working_dtype(x: Tensor, reference: Tensor | None) -> torch.dtype:
    """Float64 where any input is, float32 otherwise."""
    double = x.dtype == torch.float64 or (reference is not None and reference.dtype == torch.float64)
    return torch.float64 if double else torch.float32


def candidate_count(x: Tensor, reference: Tensor | None, self_index: Tensor | None) -> int:
    """How many rows each query may have as neighbors; one less where queries are themselves among them."""
    rows = x if reference is None else reference
    return len(rows) - (1 if reference is None or self_index is not None else 0)
