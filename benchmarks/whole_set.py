"""Neighbors of a whole set on a CUDA device: where the time goes, for several cuts of the products.

python benchmarks/whole_set.py                    50,000 x 2048, all cuts
python benchmarks/whole_set.py --points 1281167   the size of ImageNet's training set, the present cut alone

One line for each cut: milliseconds of every stage (median of the repeats), the rate of the products, the share of
queries whose proof stayed open, and the largest relative error of LID against float64 among 256 points.
"""

import argparse
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from ldreg.dimension import search as details
from ldreg.dimension.candidates import Progress, Query
from ldreg.dimension.cuda import nearest, nearest_kernels
from ldreg.dimension.cuda.nearest_kernels import Lists, Tiles
from ldreg.dimension.estimators import lid, mom

CUTS = (
    Tiles(),
    Tiles(stages=4),
    Tiles(128, 128, 64, 4, 4),
    Tiles(128, 128, 64, 8, 4),
    Tiles(128, 256, 32, 8, 4),
    Tiles(256, 128, 64, 8, 3),
    Tiles(128, 256, 64, 8, 3, 8),
    Tiles(128, 256, 64, 8, 3, 32),
)
K = 64

P = ParamSpec("P")
R = TypeVar("R")


class Stopwatch:
    """Times of the stages of a search, by CUDA events around the functions that do them."""

    def __init__(self) -> None:
        self.events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = defaultdict(list)

    def timed(self, name: str, work: Callable[P, R]) -> Callable[P, R]:
        """The same function, timed."""

        def run(*arguments: P.args, **options: P.kwargs) -> R:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            result = work(*arguments, **options)
            end.record()
            self.events[name].append((start, end))
            return result

        return run

    def milliseconds(self) -> dict[str, float]:
        """The sum of each stage; waits for the device."""
        torch.cuda.synchronize()
        return {name: sum(start.elapsed_time(end) for start, end in pairs) for name, pairs in self.events.items()}


@contextmanager
def watched(cut: Tiles) -> Iterator[Stopwatch]:
    """The stages under a stopwatch, with products cut so."""
    watch = Stopwatch()
    places = [
        (Lists, "start", "first stretch"), (Lists, "sweep", "products"), (Lists, "cut", "cuts"),
        (nearest_kernels, "halves", "rounding"), (nearest, "distances", "distances"),
        (details, "_frame", "frame"),
    ]  # fmt: skip
    before = [getattr(owner, name) for owner, name, _ in places]
    tiles, nearest_kernels.TILES = nearest_kernels.TILES, cut
    for (owner, name, stage), work in zip(places, before, strict=True):
        setattr(owner, name, watch.timed(stage, work))
    try:
        yield watch
    finally:
        nearest_kernels.TILES = tiles
        for (owner, name, _), work in zip(places, before, strict=True):
            setattr(owner, name, work)


def error(x: Tensor, distances: Tensor) -> float:
    """The largest relative error of LID among 256 points, against float64."""
    some = torch.arange(0, len(x), max(1, len(x) // 256), device=x.device)[:256]
    exact = torch.cat([_exact(x, row) for row in some.split(8)])
    return float((mom(distances[some])[0].double() / mom(exact)[0] - 1).abs().max())


def _exact(x: Tensor, rows: Tensor) -> Tensor:
    queries, exactly = x[rows].double(), "donot_use_mm_for_euclid_dist"
    parts = [torch.cdist(queries, block.double(), compute_mode=exactly) for block in x.split(65536)]
    distances = torch.cat(parts, 1)
    distances[torch.arange(len(rows)), rows] = torch.inf
    return distances.topk(K, largest=False).values


def search(x: Tensor) -> tuple[details.Neighbors, float]:
    """The neighbors of all rows, and the share of queries whose first proof stayed open."""
    first_pass, proofs = details.first_pass, []

    def kept(query: Query, progress: Progress | None = None) -> tuple[details.Neighbors, Tensor]:
        found, proven = first_pass(query, progress)
        proofs.append(1 - float(proven.float().mean()))
        return found, proven

    details.first_pass = kept
    try:
        return details.search(x, None, None, K), proofs[0]
    finally:
        details.first_pass = first_pass


def measure(x: Tensor, cut: Tiles, repeats: int) -> None:
    """Print the line of one cut."""
    stages: dict[str, list[float]] = defaultdict(list)
    for repeat in range(repeats + 1):
        with watched(cut) as watch:
            found, doubt = watch.timed("all", search)(x)
            if repeat:  # the first compiles
                for name, time in watch.milliseconds().items():
                    stages[name].append(time)
    times = {name: statistics.median(values) for name, values in stages.items()}
    first = min(nearest.WALK.first, len(x))
    rate = 2 * len(x) * (len(x) - first) * x.shape[1] / max(times.get("products", 0), 1e-9) / 1e9
    told = "  ".join(f"{name} {time:.1f}" for name, time in sorted(times.items(), key=lambda item: -item[1]))
    print(
        f"{tuple(cut)}: {told}  | {rate:.0f} TFLOP/s  open {doubt:.2%}  error {error(x, found.distances):.1e}",
        flush=True,
    )


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=50_000)
    parser.add_argument("--dimensions", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    torch.manual_seed(0)
    x = torch.randn(asked.points, asked.dimensions, device="cuda")
    cuts = CUTS if asked.points <= 100_000 else CUTS[:1]
    print(f"{torch.cuda.get_device_name()}, {asked.points} x {asked.dimensions}, k = {K}, milliseconds")
    for cut in cuts:
        measure(x, cut, asked.repeats if asked.points <= 100_000 else 1)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    lid(x, K)
    print(f"extra memory {(torch.cuda.max_memory_allocated() - before) / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
