"""What LID reads of Gaussians of known dimension: a table, and the dimension that a reading stands for.

Any estimate from a finite set reads high dimensions low. The table holds geometric-mean LID of standard Gaussians of
d dimensions from k neighbors among N points, drawn by `benchmarks/calibrate_lid.py`; between its nodes ln LID is
interpolated along ln d, ln k and ln N. Nothing is said beyond them.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Literal, NamedTuple, get_args

from ldreg.dimension.estimators import Convention

Calibrated = Literal["mom", "mle"]

DIMENSIONS = [
    *(1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256),
    *(384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192),
]
NEIGHBORS = [8, 16, 32, 64, 128, 256]
POINTS = [2**power for power in range(7, 22)]
MOST_NEIGHBORS = 0.25  # of the points: beyond that a neighborhood is no longer local
_CHANCE = 0.05  # of ln LID


def beyond(estimator: str, k: int, n: int, dimensions: int = 1) -> str:
    """Why the table has no readings by this estimator from k neighbors among n points (n, D); empty where it has.

    >>> beyond("mom", 64, 10_000), beyond("mom", 64, 200)
    ('', 'k = 64 is more than a quarter of the 200 points')
    """
    if estimator not in get_args(Calibrated):
        return f"there are readings by {' and '.join(get_args(Calibrated))}, not by {estimator}"
    if not NEIGHBORS[0] <= k <= NEIGHBORS[-1]:
        return f"there are readings for k from {NEIGHBORS[0]} to {NEIGHBORS[-1]}, not for {k}"
    if not POINTS[0] <= n <= POINTS[-1]:
        return f"there are readings for {POINTS[0]:,} to {POINTS[-1]:,} points, not for {n:,}"
    if dimensions > DIMENSIONS[-1]:
        return f"there are readings for at most {DIMENSIONS[-1]:,} dimensions, not for {dimensions:,}"
    return f"k = {k} is more than a quarter of the {n:,} points" if k > n * MOST_NEIGHBORS else ""


def gaussian_lid(
    d: float, k: int, n: int, *, estimator: Calibrated = "mom", convention: Convention = "paper"
) -> float | None:
    """Geometric-mean LID that n points of a standard Gaussian of d dimensions read with k neighbors.

    None outside of the table: d from 1 to 8192, k from 8 to 256 and at most n / 4, n from 128 to 2,097,152.

    >>> round(gaussian_lid(20, 64, 10_000), 1), gaussian_lid(20, 64, 200)
    (16.0, None)
    """
    if beyond(estimator, k, n) or not DIMENSIONS[0] <= d <= DIMENSIONS[-1]:
        return None
    curve = _curve(estimator, k, n)
    place, share = _between(DIMENSIONS, d)
    return from_paper(math.exp(curve[place] + share * (curve[place + 1] - curve[place])), k, estimator, convention)


def gaussian_dimension(
    lid: float, k: int, n: int, *, estimator: Calibrated = "mom", convention: Convention = "paper"
) -> float | None:
    """Dimension of the standard Gaussian of which n points read this geometric-mean LID with k neighbors.

    1 where it reads less than a line by no more than chance may; None outside of the table, as of `gaussian_lid`.

    >>> round(gaussian_dimension(16.0, 64, 10_000), 1)
    20.0
    """
    if beyond(estimator, k, n) or not lid > 0:
        return None
    curve = _curve(estimator, k, n)
    height = math.log(_to_paper(lid, k, estimator, convention))
    if not curve[0] - _CHANCE <= height <= curve[-1]:
        return None
    height = max(height, curve[0])
    place = min(bisect_right(curve, height), len(curve) - 1) - 1
    share = (height - curve[place]) / (curve[place + 1] - curve[place])
    low, high = DIMENSIONS[place : place + 2]
    return low * math.exp(share * math.log(high / low))


def from_paper(lid: float, k: int, estimator: Calibrated, convention: Convention) -> float:
    """LID by another convention than the paper's, of the same distances."""
    return lid if convention == "paper" else ((k - 1) * lid - (estimator == "mom")) / k


def _to_paper(lid: float, k: int, estimator: Calibrated, convention: Convention) -> float:
    return lid if convention == "paper" else (k * lid + (estimator == "mom")) / (k - 1)


class _Table(NamedTuple):
    """Readings by estimator, dimension, neighbors and points; None where k is more than half of n."""

    dimensions: list[int]
    neighbors: list[int]
    points: list[int]
    lid: dict[str, list[list[list[float | None]]]]


@lru_cache(maxsize=1)
def _table() -> _Table:
    return _Table(**json.loads(files("ldreg.dimension").joinpath("calibration.json").read_text(encoding="utf-8")))


def _curve(estimator: Calibrated, k: int, n: int) -> list[float]:
    """The logarithm of LID at every dimension of the table."""
    row, column = _between(NEIGHBORS, k), _between(POINTS, n)
    return [_blended(readings, row, column) for readings in _table().lid[estimator]]


def _blended(readings: list[list[float | None]], row: tuple[int, float], column: tuple[int, float]) -> float:
    """The logarithm of LID between four nodes, all of which are there where k is at most n / 4."""
    (i, down), (j, across) = row, column
    corners = [(i, j, (1 - down) * (1 - across)), (i, j + 1, (1 - down) * across)]
    corners += [(i + 1, j, down * (1 - across)), (i + 1, j + 1, down * across)]
    return sum(weight * math.log(readings[i][j] or math.nan) for i, j, weight in corners if weight)


def _between(nodes: Sequence[int], value: float) -> tuple[int, float]:
    """The node under a value, and how far on to the next the value is, by logarithms."""
    place = min(bisect_right(nodes, value), len(nodes) - 1) - 1
    return place, math.log(value / nodes[place]) / math.log(nodes[place + 1] / nodes[place])
