"""Sets in shards that memory need not hold: one look at all rows, then one pass that searches and sums."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ldreg import __version__, distributed
from ldreg.dimension.search import Neighbors
from ldreg.dimension.spectrum import Moments
from ldreg.dimension.streaming import NearestRows
from ldreg.io.files import write_atomically
from ldreg.io.shards import Block, Shards

T = TypeVar("T")

_SAVED_EVERY = 10.0  # seconds
_NAMED = 5  # rows of an error
_BLOCK_ROWS = 1 << 16  # of a set in memory


class Ranks(NamedTuple):
    """This process among those that share the work."""

    rank: int = 0
    world: int = 1

    def part(self, rows: int) -> tuple[int, int]:
        """The first of the rows that this process works on, and the one after the last."""
        return rows * self.rank // self.world, rows * (self.rank + 1) // self.world

    def each(self, work: Callable[[], T]) -> list[T]:
        """What every process makes of its work."""
        return distributed.from_all(work) if self.world > 1 else [work()]


def nonfinite_rows(x: Tensor) -> Tensor:
    """The rows of x (N, D) that hold NaN or inf, ascending.

    >>> nonfinite_rows(torch.tensor([[1.0], [torch.inf], [torch.nan]]))
    tensor([1, 2])
    """
    bad = [(~torch.isfinite(part)).any(1).cpu() for part in x.split(_BLOCK_ROWS)]
    return torch.cat(bad).nonzero().flatten()


def look(
    x: Shards, name: str, draw: Callable[[int], Tensor], device: torch.device, ranks: Ranks, *, skip: bool
) -> Moments:
    """Read all rows once: check that they are finite, or leave out those that are not, and keep the drawn ones.

    Args:
        x: the shards; `draw(len(x))` are the rows to keep, ascending.
        name: of the set in errors.
        draw: from the number of rows to some of them.
        device: where sums are made.
        ranks: the processes that share the rows.
        skip: whether to leave out rows with NaN or inf.

    Returns:
        Moments: still empty, around the mean of the drawn rows.

    Raises:
        ValueError: a row holds NaN or inf.
    """
    x.left_out = torch.empty(0, dtype=torch.int64)
    part = ranks.part(x.rows)
    rows = None if skip else draw(len(x))
    found = ranks.each(partial(_looked, x, part, rows))
    bad = torch.cat([wrong for wrong, _, _ in found])
    if len(bad) and not skip:
        first = ", ".join(map(str, bad[:_NAMED].tolist())) + (", ..." if len(bad) > _NAMED else "")
        where = f"(from 0: {first}; the first is {x.place(int(bad[0]))})"
        got = f"{len(bad)} of {x.rows} rows {where}"
        raise ValueError(
            f"{name}: expected finite numbers, got NaN or inf in {got}; skip_nonfinite=True leaves them out"
        )
    if rows is None:  # only now it is known how many rows there are to draw from
        x.left_out = bad
        rows = draw(len(x))
        found = ranks.each(partial(_looked, x, part, rows))
    values = torch.cat([kept for _, _, kept in found])
    x.keep(rows, values)
    mean = values.double().mean(0) if len(values) else torch.zeros(x.width, dtype=torch.float64)
    # Of equal numbers exactly that number, so that a constant column vanishes.
    low, high = torch.aminmax(values, dim=0) if len(values) else (mean, mean)
    center = mean.clamp(low.double(), high.double())
    return Moments(center.to(device), max(largest for _, largest, _ in found))


def _looked(x: Shards, part: tuple[int, int], rows: Tensor | None) -> tuple[Tensor, float, Tensor]:
    """The rows of a part with NaN or inf, the largest finite entry, and the values of the wanted rows."""
    wrong, largest = [torch.empty(0, dtype=torch.int64)], 0.0
    kept = [torch.empty(0, x.width, dtype=x.dtype)]
    for start, block, _ in x.blocks(*part):
        low, high = torch.aminmax(block)
        if not (low.isfinite() and high.isfinite()):
            wrong.append(nonfinite_rows(block) + start)
            low, high = torch.aminmax(block.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))
        largest = max(largest, -low.item(), high.item())
        if rows is not None:
            first, last = torch.searchsorted(rows, torch.tensor([start, start + len(block)])).tolist()
            kept.append(block[rows[first:last] - start])
    return torch.cat(wrong), largest, torch.cat(kept)


def stream(
    x: Shards | Tensor,
    nearest: NearestRows | None,
    moments: Moments | None,
    device: torch.device,
    ranks: Ranks,
    *,
    state: Path | None = None,
    progress: Callable[[float], None] | None = None,
) -> None:
    """Pass all rows by a search and by the sums of a spectrum, whose processes share the rows and all get the whole.

    With `state`, a file, what is done is kept there, and a pass that was interrupted goes on.
    """
    first, last = ranks.part(x.rows if isinstance(x, Shards) else len(x))

    def passed() -> tuple[list[Tensor], int, list[Tensor]]:
        saved = None if state is None or not isinstance(x, Shards) else _State(state, x, nearest, moments, ranks)
        begin = first if saved is None else max(first, saved.load())
        for start, block, stop in _blocks(x, begin, last):
            there = block.to(device)
            if nearest is not None:
                nearest.add(there, start)
            if moments is not None:
                moments.add(there)
            if saved is not None:
                saved.save(stop)
            if progress is not None:
                progress((stop - first) / (last - first))
        found = [] if nearest is None else [column.cpu() for column in nearest.found]
        return (found, 0, []) if moments is None else (found, moments.count, [one.cpu() for one in moments.sums])

    for rank, (found, count, sums) in enumerate(ranks.each(passed)):
        if nearest is not None and rank != ranks.rank:
            nearest.merge(Neighbors(*(column.to(device) for column in found)))
        if moments is not None and rank != ranks.rank:
            moments.merge(count, sums)


def _blocks(x: Shards | Tensor, first: int, last: int) -> Iterator[Block]:
    if isinstance(x, Shards):
        yield from x.blocks(first, last)
        return
    for start in range(first, last, _BLOCK_ROWS):
        stop = min(start + _BLOCK_ROWS, last)
        yield Block(start, x[start:stop], stop)


class _State:
    """What a pass has found so far, in a file that only the same pass over the same shards goes on from."""

    def __init__(
        self, path: Path, x: Shards, nearest: NearestRows | None, moments: Moments | None, ranks: Ranks
    ) -> None:
        self._path, self._nearest, self._moments, self._last = path, nearest, moments, time.monotonic()
        mark = sha256(f"{__version__} {x.fingerprint} {ranks} {x.left_out.tolist()}".encode())
        for tensor in (*([] if nearest is None else [nearest.queries]), *([] if moments is None else [moments.center])):
            mark.update(f"{tensor.dtype} {tensor.shape}".encode() + tensor.cpu().numpy().tobytes())
        self._mark = f"{mark.hexdigest()} {nearest and nearest.found.distances.shape[1]}"

    def load(self) -> int:
        """Take up what is in the file; the row to go on from, 0 without such a file."""
        if not self._path.exists():
            return 0
        try:
            with safe_open(self._path, framework="pt") as file:
                known = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{self._path}: expected the state of an earlier measurement, or no file") from error
        if "ldreg" not in known:
            raise ValueError(f"{self._path}: expected the state of an earlier measurement, or no file")
        if known["ldreg"] != self._mark:
            return 0
        if self._nearest is not None:
            device = self._nearest.queries.device
            self._nearest.found = Neighbors(tensors["distances"].to(device), tensors["indices"].to(device))
        if self._moments is not None:
            for target, name in zip(self._moments.sums, ("total", "gram"), strict=True):
                target.copy_(tensors[name])
            self._moments.count = int(known["count"])
        return int(known["row"])

    def save(self, row: int) -> None:
        """Keep what was found in the rows before `row`, if some seconds have passed."""
        if time.monotonic() < self._last + _SAVED_EVERY:
            return
        tensors: dict[str, Any] = {} if self._nearest is None else self._nearest.found._asdict()
        if self._moments is not None:
            tensors |= dict(zip(("total", "gram"), self._moments.sums, strict=True))
        count = 0 if self._moments is None else self._moments.count
        known = {"ldreg": self._mark, "row": str(row), "count": str(count)}
        write_atomically(self._path, save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, known))
        self._last = time.monotonic()
