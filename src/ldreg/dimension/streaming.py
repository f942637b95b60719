"""Neighbors and LID on a device whose memory cannot hold the points, which lie on the host or in a mapped file.

Queries go to the device a chunk at a time, and past each chunk the whole reference goes a block at a time, the next
block on its way while the present one is searched. Each block is searched exactly, in a frame of its own, and the k
nearest of all blocks are kept. Where the points fit on the device, they are searched there at once.

Distances come from differences of two rows. They are those of a search at once to rounding, and so is LID by "mom" and
"mle"; they are the same bit for bit unless squares are summed in another order (`pairs` takes wide rows of many points
in pieces on the CPU) or with more digits (beside exact duplicates). Rows at the same distance come in ascending order,
but which of several that tie for the k-th place is named is left to the search, and depends on the blocks. So do "tle",
which looks at the neighbors themselves, and confidence intervals of a mean, wherever there are such ties.
"""

import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ldreg.dimension.candidates import Progress
from ldreg.dimension.chunks import even_slices, slices
from ldreg.dimension.estimators import Convention, Estimator, LIDEstimate, check_options, estimate_from
from ldreg.dimension.memory import free_bytes, within_memory
from ldreg.dimension.neighbors import as_query, check_rows, neighbors
from ldreg.dimension.search import Neighbors, search, working_dtype
from ldreg.dimension.transfer import Mover

# Of the memory that is free, what points and results may take; the rest is for the search itself, at least so much.
_SHARE = 0.75
_LEAST_WORK = 16 << 20
_FIRST = 5  # bad rows that are named

# Makes columns (n, ...) of queries on the device, their neighbors there, and the bytes to stay within.
_Finish = Callable[[Tensor, Neighbors, int], tuple[Tensor, ...]]
_Search = Callable[[Tensor, Tensor | None, Tensor | None, int], Neighbors]


@torch.no_grad()
def stream_neighbors(
    x: Tensor,
    k: int,
    reference: Tensor | None = None,
    *,
    self_index: Tensor | None = None,
    device: torch.device | str,
    budget: int | None = None,
    progress: Progress | None = None,
) -> Neighbors:
    """What `neighbors` finds, searched on a device that need not hold all points; on the CPU, without gradients.

    Rows at the same distance are in ascending order; see the module for what else may differ from a search at once.

    Args:
        x: queries (N, D), on the CPU (of a mapped file, rows are read as they are needed) or on the device.
        k: number of neighbors, at least 1 and at most the number of candidates.
        reference: where neighbors are sought, (M, D), beside x; None: in x itself, each row's own index excluded.
        self_index: (N,) the row of the reference that is query i itself and so not its neighbor; -1: none is.
        device: where the search runs.
        budget: bytes that points and results may take there; None: three quarters of what is free. Halved where the
            device runs out of memory all the same.
        progress: called with the fraction done.

    Raises:
        ValueError: as `neighbors`.

    >>> stream_neighbors(torch.tensor([[0.0], [1.0], [3.0]]), 2, device="cpu", budget=64).distances
    tensor([[1., 3.],
            [1., 2.],
            [2., 3.]])
    """
    task = _task(x, k, reference, self_index, device)
    return Neighbors(*_carried_out(task, lambda queries, found, allowed: found, budget, progress))


@torch.no_grad()
def stream_lid(
    x: Tensor,
    k: int = 64,
    reference: Tensor | None = None,
    *,
    estimator: Estimator = "mom",
    convention: Convention = "paper",
    self_index: Tensor | None = None,
    device: torch.device | str,
    budget: int | None = None,
    progress: Progress | None = None,
    beyond: int = 0,
) -> LIDEstimate:
    """What `estimate_lid` finds, on a device that need not hold all points; arguments as in `stream_neighbors`.

    The neighbors go on `beyond` the k that LID is read from.

    >>> x = torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
    >>> whole, parts = (stream_lid(x, 50, device="cpu", budget=budget) for budget in (None, 20_000))
    >>> torch.equal(whole.lid, parts.lid)
    True
    """
    check_options(k, estimator, convention)
    task = _task(x, k + beyond, reference, self_index, device)

    def estimated(queries: Tensor, found: Neighbors, allowed: int) -> tuple[Tensor, ...]:
        near = Neighbors(found.distances[:, :k], found.indices[:, :k])
        if estimator == "tle" and task.rows.device != task.device:
            return *_tight(task, queries, near, allowed), *found
        return *estimate_from(near, queries, task.rows, estimator, convention), *found

    values, errors, *found = _carried_out(task, estimated, budget, progress)
    return LIDEstimate(values, errors, Neighbors(*found))


def resident(x: Tensor, k: int, device: torch.device) -> Tensor:
    """The rows x (N, D) on the device where they fit beside the search for their neighbors, or else as they are."""
    device = _indexed(device)
    if device.type != "cpu" and x.device != device and _task(x, k, None, None, device).need > _available(device):
        return x
    try:
        with Mover(device) as mover:
            return mover.moved(x)
    except torch.OutOfMemoryError:  # what is free may lie in pieces, or be taken meanwhile
        return x


def refuse_nonfinite(x: Tensor, name: str) -> None:
    """ValueError with the number of rows of x (N, D) that hold NaN or inf, if any, and the first of them."""
    wrong, first = 0, list[int]()
    for rows in slices(len(x), 4096):
        bad = (~torch.isfinite(x[rows])).any(1).nonzero().flatten()
        first += (bad[: _FIRST - len(first)] + rows.start).tolist()
        wrong += len(bad)
    if wrong:
        named = ", ".join(map(str, first)) + (", ..." if wrong > len(first) else "")
        raise ValueError(
            f"{name}: expected finite numbers, got NaN or inf in {wrong} of {len(x)} rows (from 0: {named})"
        )


@dataclass(frozen=True)
class _Task:
    """One search: rows x, where to look (None: in x itself), and the device to do it on."""

    x: Tensor
    reference: Tensor | None
    self_index: Tensor | None
    k: int
    device: torch.device

    @property
    def rows(self) -> Tensor:
        return self.x if self.reference is None else self.reference

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return max(self.x.element_size(), self.rows.element_size()) * self.x.shape[1]

    @property
    def working_width(self) -> int:
        """Bytes of a row as the search takes it, which has float16 as float32."""
        return max(self.width, 4 * self.x.shape[1])

    @property
    def result(self) -> int:
        """Bytes that the search of a query takes for its candidates and neighbors, with some room."""
        return 64 * (self.k + 8)

    @property
    def need(self) -> int:
        """Bytes of the search at once, with as much again for the points that have yet to come to the device."""
        count = len(self.x) + (0 if self.reference is None else len(self.reference))
        return len(self.x) * self.result + (0 if self.x.device == self.device else 2 * count * self.width)

    def chunk(self, start: int, allowed: int) -> slice:
        """The queries from `start` on that fit into half of what is allowed."""
        each = self.width + self.working_width + self.result
        part = even_slices(len(self.x) - start, max(1, allowed // 2 // each))[0]
        return slice(start, start + part.stop)

    def blocks(self, allowed: int) -> list[slice]:
        """Blocks of the reference of which two, and what the search makes of one, fit into the other half."""
        return even_slices(len(self.rows), max(1, allowed // 2 // (2 * self.width + self.working_width)))

    def own(self, queries: slice) -> Tensor | None:
        """The row of the reference that each query is; None where none is."""
        if self.reference is None:
            return torch.arange(queries.start, queries.stop, device="cpu")
        return None if self.self_index is None else self.self_index[queries].cpu()


def _task(x: Tensor, k: int, reference: Tensor | None, self_index: Tensor | None, device: torch.device | str) -> _Task:
    x, reference, self_index, k = as_query(x, k, reference, self_index)
    if self_index is not None and reference is not None:
        check_rows(self_index, len(reference))
    rows = None if reference is None else reference.detach()
    return _Task(x.detach(), rows, self_index, k, _indexed(torch.device(device)))


def _indexed(device: torch.device) -> torch.device:
    """The device as tensors on it call it."""
    return torch.device("cuda", torch.cuda.current_device()) if str(device) == "cuda" else device


def _available(device: torch.device) -> int:
    return sys.maxsize if device.type == "cpu" else int(_SHARE * free_bytes(device))


def _carried_out(task: _Task, finish: _Finish, budget: int | None, progress: Progress | None) -> tuple[Tensor, ...]:
    """What `finish` makes of all queries and their neighbors, on the CPU."""
    allowed = _available(task.device) if budget is None else budget
    whole: tuple[Tensor, ...] = ()
    start, count = 0, len(task.x)
    report = _Rising(progress)
    try:
        with Mover(task.device) as mover:
            while start < count:
                work = partial(_part, task, finish, mover, report, start)
                allowed, rows, columns = within_memory(work, allowed)
                if rows == slice(0, count):
                    return columns
                whole = whole or tuple(column.new_empty((count, *column.shape[1:])) for column in columns)
                for target, column in zip(whole, columns, strict=True):
                    target[rows] = column
                start = rows.stop
    except ValueError as error:
        # A block knows of its own rows alone; the message is to count all of them, and to call them what they are.
        refuse_nonfinite(task.x, "x")
        if task.reference is not None:
            refuse_nonfinite(task.reference, "reference")
            raise
        raise ValueError(str(error).replace("reference: ", "x: ", 1)) from error
    return whole


def _part(
    task: _Task, finish: _Finish, mover: Mover, report: "_Rising", start: int, allowed: int
) -> tuple[int, slice, tuple[Tensor, ...]]:
    """What was allowed, the queries from `start` on that it was enough for, and what came of them."""
    if start == 0 and task.need <= allowed:
        rows = slice(0, len(task.x))
        queries, found = _at_once(task, mover, report)
    else:
        rows = task.chunk(start, allowed)
        queries = mover.moved(task.x[rows])
        found = _past_all_blocks(task, queries, rows, mover, report, allowed)
    return allowed, rows, tuple(column.cpu() for column in finish(queries, found, allowed))


def _at_once(task: _Task, mover: Mover, report: "_Rising") -> tuple[Tensor, Neighbors]:
    queries = mover.moved(task.x)
    reference = None if task.reference is None else mover.moved(task.reference)
    found = neighbors(
        queries, task.k, reference, self_index=task.self_index, progress=None if report.progress is None else report
    )
    return queries, _in_order(found)


def _past_all_blocks(
    task: _Task, queries: Tensor, rows: slice, mover: Mover, report: "_Rising", allowed: int
) -> Neighbors:
    """The nearest of all blocks for the queries, which are these rows of x."""
    own, blocks = task.own(rows), task.blocks(allowed)
    within = partial(search, memory=max(_LEAST_WORK, int(allowed / _SHARE * (1 - _SHARE))))
    best: Neighbors | None = None
    with closing(mover.each(task.rows, blocks)) as moved:
        for i, (block, there) in enumerate(moved):
            found = _in_block(queries, there, None if own is None else own - block.start, task.k, within)
            best = _merged(best, Neighbors(found.distances, found.indices + block.start), task.k)
            report((rows.start + (i + 1) / len(blocks) * len(queries)) / len(task.x))
    assert best is not None  # there is a block, since the reference has rows
    return best


def _in_block(queries: Tensor, block: Tensor, own: Tensor | None, k: int, search: _Search) -> Neighbors:
    """Up to k nearest rows of the block, without the one that the query itself is; `own` may lie outside of it."""
    inside = None if own is None else (own >= 0) & (own < len(block))
    if own is None or inside is None or not bool(inside.any()):
        return search(queries, block, None, min(k, len(block)))
    if len(block) > k:
        return search(queries, block, torch.where(inside, own, -1).to(queries.device), k)
    # All of the block is wanted, and of queries in it themselves there is a row less.
    shape = len(queries), len(block)
    distances = queries.new_full(shape, torch.inf, dtype=working_dtype(queries, block))
    indices = torch.zeros(shape, dtype=torch.int64, device=queries.device)
    for part, count in ((inside, len(block) - 1), (~inside, len(block))):
        rows = part.nonzero().squeeze(1)
        if count and len(rows):
            there = rows.to(queries.device)
            itself = own[rows].to(queries.device) if part is inside else None
            distances[there, :count], indices[there, :count] = search(queries[there], block, itself, count)
    return Neighbors(distances, indices)


def _merged(best: Neighbors | None, found: Neighbors, k: int) -> Neighbors:
    """The k nearest of what earlier blocks have given and of what this one has, of equally far rows the first."""
    found = _in_order(found)
    if best is None:
        return found
    distances, indices = (torch.cat(pair, dim=1) for pair in zip(best, found, strict=True))
    distances, order = distances.sort(dim=1, stable=True)  # rows of earlier blocks come before those of later ones
    return Neighbors(distances[:, :k], indices.gather(1, order[:, :k]))


def _in_order(found: Neighbors) -> Neighbors:
    """The same neighbors, rows at the same distance in ascending order; few queries have any."""
    distances, indices = found
    tied = (distances[:, 1:] == distances[:, :-1]).any(1).nonzero().squeeze(1)
    if len(tied):
        some, order = indices[tied].sort(dim=1)
        order = distances[tied].gather(1, order).sort(dim=1, stable=True).indices
        indices = indices.index_copy(0, tied, some.gather(1, order))
    return Neighbors(distances, indices)


def _tight(task: _Task, queries: Tensor, found: Neighbors, allowed: int) -> tuple[Tensor, Tensor]:
    """The tight estimate, for which the neighbors themselves come to the device, those of a few queries at a time."""
    step = max(1, allowed // 2 // (task.k * task.width))
    parts = []
    for rows in slices(len(queries), step):
        chosen, places = found.indices[rows].to(task.rows.device).unique(return_inverse=True)
        near = Neighbors(found.distances[rows], places.to(task.device))
        parts.append(estimate_from(near, queries[rows], task.rows[chosen].to(task.device), "tle", "paper"))
    values, errors = zip(*parts, strict=True)
    return torch.cat(values), torch.cat(errors)


class _Rising:
    """Progress that does not fall where a part is begun again with less memory."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress, self._most = progress, 0.0

    def __call__(self, fraction: float) -> None:
        self._most = max(self._most, fraction)
        if self.progress is not None:
            self.progress(self._most)
