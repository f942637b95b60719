"""The LID that Gaussian points are expected to read: from a table for standard Gaussians, computed for any covariance.

Any estimate from a finite set reads high dimensions low. The table (`calibration.json`, drawn by
`benchmarks/calibrate_lid.py`) holds the geometric-mean LID of standard Gaussians of d dimensions from k neighbors among
N points; between its nodes ln LID is interpolated along ln d, ln k and ln N. There are no values beyond the nodes.

For another covariance: from a point x of a Gaussian with eigenvalues λ, the squared distance to another point is a sum
of λ(z - x)² over the axes, z standard normal. A saddlepoint approximation of its cumulant generating function gives the
distribution near 0 (Lugannani & Rice, "Saddle point approximation for the distribution of the sum of independent random
variables", 1980). The result is a mean over a fixed set of points x.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ldreg.dimension.estimators import Convention

Calibrated = Literal["mom", "mle"]

DIMENSIONS = [
    *(1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256),
    *(384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192),
]
NEIGHBORS = [8, 16, 32, 64, 128, 256]
POINTS = [2**power for power in range(7, 22)]
MOST_NEIGHBORS = 0.25  # share of the points: beyond that a neighborhood is no longer local
_CHANCE = 0.05  # by which ln LID of a line may fall short of the table

_QUERIES = 64  # points x that the mean is over
# Exponents of ten of the tilts that matter to any spectrum of unit mean, the number of tilts taken over all of them,
# and over those that matter to one spectrum: from its median to a thousandth of the chance of the neighbors.
_LOWEST, _HIGHEST, _TILTS = -2.0, 16.0, 96
_NARROWED = 48
_SINGLE, _GROUPS = 256, 128  # axes taken one by one, and groups of the others
# An eigenvalue this many times the next one does not belong to its group by chance, unless among this share of least.
_APART, _LEAST = 1.5, 0.1


def beyond(estimator: str, k: int, n: int, dimensions: int = 1) -> str:
    """Why the table has no value for this estimator and k neighbors among n points (n, D); empty where it has one.

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

    None outside the table: d from 1 to 8192, k from 8 to 256 and at most n / 4, n from 128 to 2,097,152.

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
    """Dimension of the standard Gaussian whose n points read this geometric-mean LID with k neighbors.

    1 where LID is lower than that of a line by no more than chance; None outside the table, as in `gaussian_lid`.

    >>> round(gaussian_dimension(16.0, 64, 10_000), 1)
    20.0
    """
    if beyond(estimator, k, n) or not lid > 0:
        return None
    curve = _curve(estimator, k, n)
    if convention != "paper":
        lid = (k * lid + (estimator == "mom")) / (k - 1)
    height = math.log(lid)
    if not curve[0] - _CHANCE <= height <= curve[-1]:
        return None
    height = max(height, curve[0])
    place = min(bisect_right(curve, height), len(curve) - 1) - 1
    share = (height - curve[place]) / (curve[place + 1] - curve[place])
    low, high = DIMENSIONS[place : place + 2]
    return low * math.exp(share * math.log(high / low))


def from_paper(lid: float, k: int, estimator: Calibrated, convention: Convention) -> float:
    """LID in the given convention, from LID in the paper's, for the same distances."""
    return lid if convention == "paper" else ((k - 1) * lid - (estimator == "mom")) / k


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    """`lid` by estimator, dimension, neighbors and points, with None where k is more than half of n; and the nodes."""
    table: dict[str, Any] = json.loads(
        files("ldreg.dimension").joinpath("calibration.json").read_text(encoding="utf-8")
    )
    return table


def _curve(estimator: Calibrated, k: int, n: int) -> list[float]:
    """The logarithm of LID at every dimension of the table, between four nodes, none of which is None here."""
    (i, down), (j, across) = _between(NEIGHBORS, k), _between(POINTS, n)
    corners = [(i, j, (1 - down) * (1 - across)), (i, j + 1, (1 - down) * across)]
    corners += [(i + 1, j, down * (1 - across)), (i + 1, j + 1, down * across)]
    corners = [corner for corner in corners if corner[2]]
    return [sum(weight * math.log(lid[i][j]) for i, j, weight in corners) for lid in _table()["lid"][estimator]]


def _between(nodes: Sequence[int], value: float) -> tuple[int, float]:
    """The node below a value, and the share of the way to the next node, in logarithms."""
    place = min(bisect_right(nodes, value), len(nodes) - 1) - 1
    return place, math.log(value / nodes[place]) / math.log(nodes[place + 1] / nodes[place])


@torch.no_grad()
def expected_lid(
    eigenvalues: Tensor,
    k: int,
    n: int,
    dimensions: int,
    *,
    estimator: Calibrated = "mom",
    convention: Convention = "paper",
) -> float | None:
    """Geometric-mean LID that n Gaussian points with the covariance of the data read with k neighbors.

    None where k, n or D lie outside the table (see `beyond`), or the eigenvalues are all 0 or not all finite.

    Args:
        eigenvalues: (min(n, D),) of the sample covariance of the n points, descending, as `spectrum` has them.
        k: number of neighbors.
        n: number of points.
        dimensions: D.
        estimator: "mom" or "mle".
        convention: as in `lid`.

    >>> flat, steep = torch.ones(32), torch.arange(1, 129) ** -2.0
    >>> round(expected_lid(flat, 64, 10_000, 32)), round(gaussian_lid(32, 64, 10_000))
    (22, 22)
    >>> round(expected_lid(steep, 64, 10_000, 128))
    13
    """
    if beyond(estimator, k, n, dimensions) or not eigenvalues.isfinite().all() or not (eigenvalues > 0).any():
        return None
    values = eigenvalues[eigenvalues > 0].double().cpu()
    values = values / values.sum()
    return from_paper(mean_reading(_true_spectrum(values, n, dimensions), k, n, estimator), k, estimator, convention)


def _true_spectrum(values: Tensor, n: int, dimensions: int) -> Tensor:
    """Eigenvalues, descending, of sum 1, of the true covariance, from those of n Gaussian points.

    A sample spreads a spectrum. Eigenvalues are corrected in groups that lie apart, so that a large one does not
    decide how much of the spread of the others is due to chance. In each group a power of the eigenvalues removes
    that part of the spread.
    """
    m, above, parts = n - 1, 0, []
    fewer = len(values) >= m  # fewer points than dimensions, or almost: the last group stands for more axes than it has
    groups = _groups(values)
    for place, group in enumerate(groups):
        last = place == len(groups) - 1
        below = values[above + len(group) :]
        # Lower eigenvalues raise those of this group, and higher ones take degrees of freedom from it.
        lifted = 1 + (below / (group.mean() - below)).sum() / m
        total = group.sum() if fewer and last else group.sum() / lifted * m / (m - above)
        most = dimensions - above if fewer and last else len(group)
        parts.append(total * _flattened(group, _participation(group / group.sum(), max(m - above, 2)), most))
        above += len(group)
    spectrum = torch.cat(parts)
    return spectrum / spectrum.sum()


def _groups(values: Tensor) -> list[Tensor]:
    """Descending values, cut where one is far above the next, except among the smallest, where chance does that."""
    least = max(1, math.ceil(len(values) * _LEAST))
    cuts = (values[:-1] > _APART * values[1:]).nonzero().flatten() + 1
    return list(torch.tensor_split(values, cuts[cuts <= len(values) - least]))


def _participation(values: Tensor, m: int) -> float:
    """(Σλ)² / Σλ² of the true covariance, from the eigenvalues, of sum 1, of that of m + 1 Gaussian points.

    A sample spreads the spectrum. The expectations of Σλ² and (Σλ)² of a sample are (1 + 1/m) a + b/m and b + 2a/m,
    where a and b are the true ones; solved for a and b.
    """
    squares = (values.square().sum().item() - 1 / m) / (1 + 1 / m - 2 / m**2)
    return (1 - 2 * squares / m) / squares if squares > 0 else math.inf


def _flattened(values: Tensor, rank: float, most: int) -> Tensor:
    """The power of a spectrum, at most 1, that has this participation ratio; scaled to sum 1.

    Where even equal values have a smaller ratio, as many equal values as the ratio says, at most `most`.
    """
    if rank >= len(values):
        number = max(len(values), round(min(rank, most)))
        return torch.full((number,), 1 / number, dtype=torch.float64, device="cpu")
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        powers = values**middle
        low, high = (middle, high) if powers.sum() ** 2 / powers.square().sum() > rank else (low, middle)
    powers = values**high
    return powers / powers.sum()


def mean_reading(spectrum: Tensor, k: int, n: int, estimator: Calibrated) -> float:
    """Geometric-mean LID, in the paper's convention, of Gaussian points whose covariance has this spectrum of sum 1."""
    logs, outward = _readings(spectrum, k, n, estimator)
    # Most of the noise of so few points is in how far out they lie. Its mean is known, so it is regressed away.
    slope = (outward * (logs - logs.mean())).mean() / outward.square().mean()
    return (logs - slope * outward).mean().exp().item()


def _readings(spectrum: Tensor, k: int, n: int, estimator: Calibrated) -> tuple[Tensor, Tensor]:
    """The logarithm of LID (Q,) of some points, and how much further out than the mean they lie."""
    generator = torch.Generator().manual_seed(0)
    squares = torch.randn(len(spectrum), _QUERIES, generator=generator, dtype=torch.float64, device="cpu").square()
    outward = spectrum @ squares - 1
    axes = _grouped(spectrum, squares)
    ends = axes._replace(squares=axes.squares[:, [int(outward.argmin()), int(outward.argmax())]])
    _, chances = _near(ends, _tilts(_LOWEST, _HIGHEST, _TILTS))
    first, last = int((chances > 0.4).all(1).sum()) - 1, int((chances > k / n / 1000).any(1).sum())
    step = (_HIGHEST - _LOWEST) / (_TILTS - 1)
    tilts = _tilts(_LOWEST + step * first, min(_LOWEST + step * last, _HIGHEST), _NARROWED)
    ratio, square, log = _moments(*_near(axes, tilts), k / n)
    if estimator == "mom":
        mean = (1 + (k - 1) * ratio) / k
        curvature = 1 / (1 - mean) ** 2 - 1 / mean**2
        logs = (mean / (1 - mean)).log() + curvature * (square - ratio**2) / (2 * (k - 1))
    else:  # k - 1 logarithms, whose spread is as large as their mean
        logs = (k / (k - 1) / log).log() + 1 / (2 * (k - 1))
    return logs, outward


def _tilts(lowest: float, highest: float, number: int) -> Tensor:
    return torch.logspace(lowest, highest, number, dtype=torch.float64, device="cpu")


class _Axes(NamedTuple):
    """Eigenvalues (G,), the number of axes of each (G,), and squared coordinates of points on those axes (G, Q)."""

    spectrum: Tensor
    counts: Tensor
    squares: Tensor


def _grouped(spectrum: Tensor, squares: Tensor) -> _Axes:
    """The largest axes one by one, the others in groups of similar eigenvalues, which saves time."""
    if len(spectrum) <= _SINGLE + _GROUPS:
        return _Axes(spectrum, torch.ones_like(spectrum), squares)
    size = -(-(len(spectrum) - _SINGLE) // _GROUPS)
    group = torch.arange(len(spectrum), device="cpu")
    group = torch.where(group < _SINGLE, group, _SINGLE + (group - _SINGLE) // size)
    counts = torch.bincount(group).double()
    sums = torch.zeros_like(counts).index_add_(0, group, spectrum)
    return _Axes(sums / counts, counts, squares.new_zeros(len(counts), squares.shape[1]).index_add_(0, group, squares))


def _near(axes: _Axes, tilts: Tensor) -> tuple[Tensor, Tensor]:
    """Distances (T, Q) from the points, falling with the tilts (T,), and the probability of a nearer point."""
    spectrum, counts, squares = axes
    tilt = tilts.unsqueeze(1)
    slack = 1 + 2 * tilt * spectrum
    shrunk = spectrum / slack
    freed = shrunk / slack
    generating = -(slack.log() @ counts).unsqueeze(1) / 2 - tilt * (shrunk @ squares)
    mean = (shrunk @ counts).unsqueeze(1) + freed @ squares
    variance = 2 * (shrunk.square() @ counts).unsqueeze(1) + 4 * (shrunk * freed) @ squares
    w = -(-2 * (tilt * mean + generating)).sqrt()
    density = torch.exp(-w.square() / 2) / math.sqrt(2 * math.pi)
    return mean.sqrt(), torch.special.ndtr(w) + density * (1 / w + 1 / (tilt * variance.sqrt()))


def _moments(distances: Tensor, chances: Tensor, share: float) -> tuple[Tensor, Tensor, Tensor]:
    """Means (Q,) of r / w, its square, and -ln(r / w), over the distances r below the quantile w of this share.

    Each is an integral of the distribution function, taken as a power law between the tilts and below them.
    """
    logs, heights = distances.log(), chances.clamp_min(1e-300).log() - math.log(share)
    # Probabilities too small for float64 have no weight; their power must not divide 0 by 0.
    powers = ((heights[:-1] - heights[1:]) / (logs[:-1] - logs[1:])).clamp_min(0.1)
    above = (heights > 0).sum(0, keepdim=True) - 1
    logs = logs - (logs.gather(0, above) - heights.gather(0, above) / powers.gather(0, above))
    under = heights <= 0
    logs, heights = torch.where(under, logs, 0), torch.where(under, heights, 0)
    powers = torch.cat([powers, powers[-1:]])

    def integral(moment: int) -> Tensor:
        upper = torch.exp(moment * logs + heights)
        lower = torch.cat([upper[1:], torch.zeros_like(upper[:1])])
        return ((upper - lower) / (powers + moment)).sum(0)

    return 1 - integral(1), 1 - 2 * integral(2), integral(0)
