"""Neighbors and LID of points on the host or in a mapped file, on a device whose memory cannot hold them.

Queries go to the device in chunks. For each chunk the whole reference passes in blocks; the next block is copied while
the current one is searched. Each block is searched exactly, in its own frame, and the k nearest of all blocks are kept.
Points that fit on the device are searched there at once.

Distances equal those of a single search to rounding, and so does LID by "mom" and "mle". They are equal bit for bit
unless squares are summed in another order (wide rows on the CPU) or with more digits (near exact duplicates). Rows at
the same distance come in ascending order, but which of several rows that tie for the k-th place is named depends on the
blocks. With such ties, "tle", which uses the neighbors themselves, and confidence intervals of a mean do so too.
"""

import sys
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from types import TracebackType

import torch
from torch import Tensor

from ldreg.dimension.candidates import Progress, even_slices, slices
from ldreg.dimension.estimators import Convention, Estimator, LIDEstimate, check_options, estimate_from
from ldreg.dimension.neighbors import as_query, check_rows, neighbors
from ldreg.dimension.search import Neighbors, refuse_nonfinite, search, within_memory, working_dtype

_SHARE = 0.75  # of free memory for points and results; the rest is for the search itself
_LEAST_WORK = 16 << 20  # bytes for the search in any case
_STAGE_BYTES = 32 << 20  # of each of two pinned buffers

# From queries and their neighbors on the device, and a memory budget, to result columns (n, ...).
_Finish = Callable[[Tensor, Neighbors, int], tuple[Tensor, ...]]


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
    """The result of `neighbors`, on the CPU and without gradients, searched on a device that need not hold all points.

    Rows at the same distance come in ascending order.

    Args:
        x: queries (N, D), on the CPU or on the device. Rows of a mapped file are read as they are needed.
        k: number of neighbors, at least 1 and at most the number of candidates.
        reference: where neighbors are sought, (M, D); None: in x itself, each row's own index excluded.
        self_index: (N,) the row of the reference that is query i itself and so not its neighbor; -1: none.
        device: where the search runs.
        budget: bytes that points and results may take there; None: three quarters of the free memory. It is halved
            where the device still runs out of memory.
        progress: called with the fraction done.

    Raises:
        ValueError: as `neighbors`.

    >>> stream_neighbors(torch.tensor([[0.0], [1.0], [3.0]]), 2, device="cpu", budget=64).distances
    tensor([[1., 3.],
            [1., 2.],
            [2., 3.]])
    """
    task = _task(x, k, reference, self_index, device)
    return Neighbors(*_run(task, lambda queries, found, allowed: found, budget, progress))


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
    """The result of `estimate_lid` on a device that need not hold all points; arguments as in `stream_neighbors`.

    `beyond` is the number of further neighbors to return in addition to the k behind LID.

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

    values, errors, *found = _run(task, estimated, budget, progress)
    return LIDEstimate(values, errors, Neighbors(*found))


class NearestRows:
    """The k nearest of rows that come block by block, for each query; blocks may come in any order.

    Args:
        queries: (N, D), on the device where the search runs.
        k: number of neighbors.
        own: (N,) the number of the row that is query i itself; None: none is.

    >>> nearest = NearestRows(torch.tensor([[0.0], [3.0]]), 2)
    >>> nearest.add(torch.tensor([[9.0], [4.0], [1.0]]), 0)
    >>> nearest.add(torch.tensor([[3.0]]), 3)
    >>> nearest.found.indices
    tensor([[2, 3],
            [3, 1]])
    """

    def __init__(self, queries: Tensor, k: int, own: Tensor | None = None) -> None:
        self.queries, self._k, self._own = queries, k, own
        # Short of rows, the last places have infinite distance.
        shape = len(queries), k
        none = queries.new_full(shape, torch.inf, dtype=working_dtype(queries, queries))
        self.found = Neighbors(none, torch.zeros(shape, dtype=torch.int64, device=queries.device))

    def add(self, rows: Tensor, start: int) -> None:
        """Look at rows (n, D), numbered from `start` on, on the device of the queries."""
        own = None if self._own is None else self._own - start
        found = _in_block(self.queries, rows, own, self._k, sys.maxsize)
        self.merge(Neighbors(found.distances, found.indices + start))

    def merge(self, found: Neighbors) -> None:
        """Take in what was found among other rows."""
        distances, indices = (torch.cat(pair, dim=1) for pair in zip(self.found, found, strict=True))
        distances, order = distances.sort(dim=1, stable=True)
        merged = _in_order(Neighbors(distances, indices.gather(1, order)))
        self.found = Neighbors(*(column[:, : self._k].contiguous() for column in merged))


def resident(x: Tensor, k: int, device: torch.device) -> Tensor:
    """The rows x (N, D) moved to the device if they and their search fit there; x otherwise."""
    device = _indexed(device)
    if device.type != "cpu" and x.device != device and _task(x, k, None, None, device).need > _available(device):
        return x
    try:
        with Mover(device) as mover:
            return mover.moved(x)
    except torch.OutOfMemoryError:  # free memory may be fragmented, or taken meanwhile
        return x


@dataclass(frozen=True)
class _Task:
    """One search: rows x, the reference (None: x itself), and the device to search on."""

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
    def result(self) -> int:
        """Bytes per query for candidates and neighbors, with some room."""
        return 64 * (self.k + 8)

    @property
    def need(self) -> int:
        """Bytes of a single search, with twice the points if they are not on the device yet."""
        count = len(self.x) + (0 if self.reference is None else len(self.reference))
        return len(self.x) * self.result + (0 if self.x.device == self.device else 2 * count * self.width)


def _task(x: Tensor, k: int, reference: Tensor | None, self_index: Tensor | None, device: torch.device | str) -> _Task:
    x, reference, self_index, k = as_query(x, k, reference, self_index)
    if self_index is not None and reference is not None:
        check_rows(self_index, len(reference))
    rows = None if reference is None else reference.detach()
    return _Task(x.detach(), rows, self_index, k, _indexed(torch.device(device)))


def _indexed(device: torch.device) -> torch.device:
    """The device with its index, as in the `device` of its tensors."""
    return torch.device("cuda", torch.cuda.current_device()) if str(device) == "cuda" else device


def _available(device: torch.device) -> int:
    """Bytes that points and results may take on a device.

    On CUDA a share of what the driver reports as free plus what torch holds unused, within the limit that
    `torch.cuda.set_per_process_memory_fraction` sets for this process.
    """
    if device.type == "cpu":
        return sys.maxsize
    free, total = torch.cuda.mem_get_info(device)
    held = torch.cuda.memory_reserved(device)
    limit = int(torch.cuda.get_per_process_memory_fraction(device) * total)
    return int(_SHARE * max(0, min(free, limit - held) + held - torch.cuda.memory_allocated(device)))


def _run(task: _Task, finish: _Finish, budget: int | None, progress: Progress | None) -> tuple[Tensor, ...]:
    """The columns of `finish` for all queries and their neighbors, on the CPU."""
    allowed = _available(task.device) if budget is None else budget
    whole: tuple[Tensor, ...] = ()
    start, count, report = 0, len(task.x), _rising(progress)
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
        # A block counts only its own rows; the message must count all rows and name the right argument.
        refuse_nonfinite(task.x, "x")
        if task.reference is not None:
            refuse_nonfinite(task.reference, "reference")
            raise
        raise ValueError(str(error).replace("reference: ", "x: ", 1)) from error
    return whole


def _part(
    task: _Task, finish: _Finish, mover: "Mover", report: Progress, start: int, allowed: int
) -> tuple[int, slice, tuple[Tensor, ...]]:
    """The bytes allowed, the queries from `start` on that fitted, and their columns."""
    if start == 0 and task.need <= allowed:
        rows, queries = slice(0, len(task.x)), mover.moved(task.x)
        reference = None if task.reference is None else mover.moved(task.reference)
        found = _in_order(neighbors(queries, task.k, reference, self_index=task.self_index, progress=report))
    else:
        # Queries with their results take half of the bytes; two blocks of the reference and a search take the rest.
        working = max(task.width, 4 * task.x.shape[1])  # bytes of a row in the dtype of the search, at least float32
        most = max(1, allowed // 2 // (task.width + working + task.result))
        rows = slice(start, start + even_slices(len(task.x) - start, most)[0].stop)
        blocks = even_slices(len(task.rows), max(1, allowed // 2 // (2 * task.width + working)))
        queries = mover.moved(task.x[rows])
        found = _past_all_blocks(task, queries, rows, blocks, mover, report, allowed)
    return allowed, rows, tuple(column.cpu() for column in finish(queries, found, allowed))


def _past_all_blocks(
    task: _Task, queries: Tensor, rows: slice, blocks: list[slice], mover: "Mover", report: Progress, allowed: int
) -> Neighbors:
    """The nearest of all blocks for these queries, `rows` of x."""
    own = None if task.self_index is None else task.self_index[rows].cpu()
    if task.reference is None:
        own = torch.arange(rows.start, rows.stop, device="cpu")
    memory = max(_LEAST_WORK, int(allowed / _SHARE * (1 - _SHARE)))
    best: Neighbors | None = None
    with closing(mover.each(task.rows, blocks)) as moved:
        for i, (block, there) in enumerate(moved):
            found = _in_block(queries, there, None if own is None else own - block.start, task.k, memory)
            best = _merged(best, Neighbors(found.distances, found.indices + block.start), task.k)
            report((rows.start + (i + 1) / len(blocks) * len(queries)) / len(task.x))
    assert best is not None  # there is a block, since the reference has rows
    return best


def _in_block(queries: Tensor, block: Tensor, own: Tensor | None, k: int, memory: int) -> Neighbors:
    """Up to k nearest rows of the block without the query itself; entries of `own` may lie outside the block."""
    inside = None if own is None else (own >= 0) & (own < len(block))
    if own is None or inside is None or not bool(inside.any()):
        return search(queries, block, None, min(k, len(block)), memory=memory)
    if len(block) > k:
        return search(queries, block, torch.where(inside, own, -1).to(queries.device), k, memory=memory)
    # All rows of the block are neighbors, except the query itself where it lies in the block.
    shape = len(queries), len(block)
    distances = queries.new_full(shape, torch.inf, dtype=working_dtype(queries, block))
    indices = torch.zeros(shape, dtype=torch.int64, device=queries.device)
    for part, count in ((inside, len(block) - 1), (~inside, len(block))):
        rows = part.nonzero().squeeze(1)
        if count and len(rows):
            there = rows.to(queries.device)
            itself = own[rows].to(queries.device) if part is inside else None
            near = search(queries[there], block, itself, count, memory=memory)
            distances[there, :count], indices[there, :count] = near
    return Neighbors(distances, indices)


def _merged(best: Neighbors | None, found: Neighbors, k: int) -> Neighbors:
    """The k nearest of the earlier blocks and of this one; of equally far rows the first."""
    found = _in_order(found)
    if best is None:
        return found
    distances, indices = (torch.cat(pair, dim=1) for pair in zip(best, found, strict=True))
    distances, order = distances.sort(dim=1, stable=True)  # rows of earlier blocks come before those of later ones
    return Neighbors(distances[:, :k], indices.gather(1, order[:, :k]))


def _in_order(found: Neighbors) -> Neighbors:
    """The same neighbors with rows at equal distances in ascending order."""
    distances, indices = found
    tied = (distances[:, 1:] == distances[:, :-1]).any(1).nonzero().squeeze(1)
    if len(tied):
        some, order = indices[tied].sort(dim=1)
        order = distances[tied].gather(1, order).sort(dim=1, stable=True).indices
        indices = indices.index_copy(0, tied, some.gather(1, order))
    return Neighbors(distances, indices)


def _tight(task: _Task, queries: Tensor, found: Neighbors, allowed: int) -> tuple[Tensor, Tensor]:
    """The tight estimate; neighbors themselves are moved to the device, for a few queries at a time."""
    step = max(1, allowed // 2 // (task.k * task.width))
    parts = []
    for rows in slices(len(queries), step):
        chosen, places = found.indices[rows].to(task.rows.device).unique(return_inverse=True)
        near = Neighbors(found.distances[rows], places.to(task.device))
        parts.append(estimate_from(near, queries[rows], task.rows[chosen].to(task.device), "tle", "paper"))
    values, errors = zip(*parts, strict=True)
    return torch.cat(values), torch.cat(errors)


def _rising(progress: Progress | None) -> Progress:
    """Progress that never falls, even where a part starts again with less memory."""
    most = 0.0

    def report(fraction: float) -> None:
        nonlocal most
        most = max(most, fraction)
        if progress is not None:
            progress(most)

    return report


class Mover:
    """Copies rows to a device in a thread, on CUDA through pinned memory and in a stream of its own.

    Rows of a mapped file are read from disk in that thread too. Rows already on the device are not copied.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = ThreadPoolExecutor(1)
        self._stage = _Stage(device) if device.type == "cuda" else None

    def __enter__(self) -> "Mover":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)

    def moved(self, rows: Tensor) -> Tensor:
        """The rows (n, D) on the device."""
        return next(there for _, there in self.each(rows, [slice(0, len(rows))]))

    def each(self, rows: Tensor, blocks: Sequence[slice]) -> Generator[tuple[slice, Tensor], None, None]:
        """Every block and its rows on the device, in one of two buffers that are reused.

        The rows are valid until the next block is asked for. Close the generator where it is not exhausted.
        """
        if rows.device == self._device:
            yield from ((block, rows[block]) for block in blocks)
            return
        shape = max(block.stop - block.start for block in blocks), rows.shape[1]
        places = [rows.new_empty(shape, device=self._device) for _ in blocks[:2]]
        targets = [places[i % 2][: block.stop - block.start] for i, block in enumerate(blocks)]
        coming = self._send(rows[blocks[0]], targets[0])
        try:
            for i, block in enumerate(blocks):
                self._arrived(coming)
                if i + 1 < len(blocks):
                    coming = self._send(rows[blocks[i + 1]], targets[i + 1])
                yield block, targets[i]
        finally:
            # The memory of `places` must not be reused while a copy to it is running.
            self._arrived(coming)

    def _send(self, source: Tensor, target: Tensor) -> "Future[torch.cuda.Event | None]":
        if self._stage is None:
            return self._pool.submit(_copy, source, target)
        # Work queued on the device may still read from the target.
        free = torch.cuda.current_stream(self._device).record_event()
        return self._pool.submit(self._stage.copy, source, target, free)

    def _arrived(self, coming: "Future[torch.cuda.Event | None]") -> None:
        event = coming.result()
        if event is not None:
            torch.cuda.current_stream(self._device).wait_event(event)


def _copy(source: Tensor, target: Tensor) -> None:
    target.copy_(source)


class _Stage:
    """Two pinned buffers: while one is copied to the device, the other is filled with the next rows."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._buffers: list[Tensor] = []
        self._copied = [torch.cuda.Event(), torch.cuda.Event()]

    def copy(self, source: Tensor, target: Tensor, free: torch.cuda.Event) -> torch.cuda.Event:
        """Copy rows after the event `free`; the returned event marks their arrival."""
        width = source.shape[1] * source.element_size()
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(free)
            for i, part in enumerate(slices(len(source), max(1, _STAGE_BYTES // width))):
                rows = source[part]
                if rows.is_cuda:
                    target[part].copy_(rows, non_blocking=True)
                    continue
                self._copied[i % 2].synchronize()  # an event that was never recorded counts as done
                staged = self._buffer(i % 2, width * len(rows)).view(source.dtype).view(rows.shape)
                target[part].copy_(staged.copy_(rows), non_blocking=True)
                self._copied[i % 2].record(self._stream)
            there = torch.cuda.Event()
            there.record(self._stream)
            return there

    def _buffer(self, which: int, size: int) -> Tensor:
        if not self._buffers or len(self._buffers[0]) < size:
            self._stream.synchronize()
            room = max(size, _STAGE_BYTES)
            self._buffers = [torch.empty(room, dtype=torch.uint8, device="cpu", pin_memory=True) for _ in "ab"]
        return self._buffers[which][:size]
