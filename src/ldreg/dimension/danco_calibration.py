"""What DANCo measures of samples of known dimension: from a table where it reaches, drawn beyond."""

import json
import math
from bisect import bisect_left
from functools import lru_cache
from importlib.resources import files
from itertools import count
from typing import Literal, NamedTuple

import torch

from ldreg.dimension.danco_statistics import Statistics, statistics_of
from ldreg.dimension.synthetic import SAMPLES

Reference = Literal["ball", "cube", "sphere", "gaussian"]

REFERENCES: tuple[Reference, ...] = ("ball", "cube", "sphere", "gaussian")

# Calibrated dimensions grow by this factor: between them the statistics are straight in log d to within 0.1 %.
_NODE_RATIO = 1.2
# Small samples are calibrated several times over, so that calibration is no noisier than the estimate itself.
_CALIBRATION_POINTS = 4000
_MAX_REPLICATES = 8


def calibrated_statistics(reference: Reference, d: int, n: int, k: int, seed: int, device: torch.device) -> Statistics:
    """Statistics of n reference points of dimension d: from the table where it reaches, drawn otherwise."""
    table = _table()
    if k == table.k and d in table.dimensions and table.points[0] <= n <= table.points[-1]:
        return _looked_up(table, reference, d, n)
    replicates = min(_MAX_REPLICATES, -(-_CALIBRATION_POINTS // n))
    return drawn_statistics(reference, d, n, k, replicates=replicates, seed=seed, device=device)


@lru_cache(maxsize=1 << 14)
def drawn_statistics(
    reference: Reference, d: int, n: int, k: int, *, replicates: int, seed: int, device: torch.device
) -> Statistics:
    """DANCo's statistics of n reference points of dimension d, averaged over replicates, drawn on the CPU.

    >>> drawn_statistics("ball", 3, 500, 10, replicates=2, seed=0, device=torch.device("cpu")).ratio > 2
    True
    """
    generator = torch.Generator().manual_seed(((seed << 32) + (d << 8) + REFERENCES.index(reference)) % (1 << 63))
    drawn = [statistics_of(SAMPLES[reference](n, d, seed=generator).to(device), k)[1] for _ in range(replicates)]
    return Statistics(*(sum(column) / replicates for column in zip(*drawn, strict=True)))


class _Table(NamedTuple):
    """Statistics by reference, number of points and dimension, as `benchmarks/calibrate_danco.py` writes them."""

    k: int
    points: list[int]
    dimensions: list[int]
    statistics: dict[str, list[list[list[float]]]]


@lru_cache(maxsize=1)
def _table() -> _Table:
    return _Table(**json.loads(files("ldreg.dimension").joinpath("danco_calibration.json").read_text(encoding="utf-8")))


def _looked_up(table: _Table, reference: Reference, d: int, n: int) -> Statistics:
    """Statistics interpolated in log n."""
    upper = max(1, bisect_left(table.points, n))
    low, high = table.points[upper - 1], table.points[upper]
    share = math.log(n / low) / math.log(high / low)
    column = table.dimensions.index(d)
    below, above = (table.statistics[reference][row][column] for row in (upper - 1, upper))
    return Statistics(*(a + share * (b - a) for a, b in zip(below, above, strict=True)))


def calibration_dimensions(largest: int) -> list[int]:
    """The integers that dimensions are calibrated at, from 1 until `largest` is reached, with growing gaps.

    >>> calibration_dimensions(10)
    [1, 2, 3, 4, 5, 6, 7, 9, 11]
    """
    found = [1]
    for step in count(1):
        if found[-1] >= largest:
            break
        found += [d for d in (round(_NODE_RATIO**step),) if d > found[-1]]
    return found
