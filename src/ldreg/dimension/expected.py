"""What LID reads of Gaussian points with a given covariance.

From a point x of a Gaussian with eigenvalues λ, the squared distance to another point is a sum of λ(z - x)² over the
axes, z standard normal, whose distribution near 0 is known from its cumulant generating function by a saddlepoint
(Lugannani & Rice, "Saddle point approximation for the distribution of the sum of independent random variables", 1980).
The mean over the points x is over a fixed few of them.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ldreg.dimension.calibration import Calibrated, beyond, from_paper
from ldreg.dimension.estimators import Convention

_QUERIES = 64
# Tilts of a distribution of unit mean: all that matter to any spectrum, and how many are taken of those that matter
# to one, from its median to a thousandth of the chance of the neighbors.
_LOWEST, _HIGHEST, _TILTS = -2.0, 16.0, 96  # exponents of ten
_NARROWED = 48
_SINGLE, _GROUPS = 256, 128
# An eigenvalue that is so many times the next does not belong to it by chance, unless it is among this share of least.
_APART, _LEAST = 1.5, 0.1


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
    """Geometric-mean LID that n Gaussian points read with k neighbors if their covariance is that of the data.

    None where the table of `calibration` has nothing about k, n and D, or the eigenvalues are all 0 or not all finite.

    Args:
        eigenvalues: (min(n, D),) of the sample covariance of the n points, descending, as `spectrum` has them.
        k: number of neighbors.
        n: number of points.
        dimensions: D.
        estimator: "mom" or "mle".
        convention: as in `lid`.

    >>> from ldreg.dimension.calibration import gaussian_lid
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
    """Eigenvalues, of sum 1, that the covariance of Gaussians has of which n points have these, descending.

    A sample spreads a spectrum. Eigenvalues that lie apart from the rest are taken for themselves, lest they rule how
    much of the spread of the others is by chance: within each group a power is found that leaves as much as is true.
    """
    m, above, parts = n - 1, 0, []
    fewer = len(values) >= m  # points than dimensions, or almost: the last group stands for more axes than it has
    groups = _groups(values)
    for place, group in enumerate(groups):
        last = place == len(groups) - 1
        below = values[above + len(group) :]
        # What lies below adds to those above, which in turn take as many degrees of freedom from those below.
        lifted = 1 + (below / (group.mean() - below)).sum() / m
        total = group.sum() if fewer and last else group.sum() / lifted * m / (m - above)
        most = dimensions - above if fewer and last else len(group)
        parts.append(total * _flattened(group, _participation(group / group.sum(), max(m - above, 2)), most))
        above += len(group)
    spectrum = torch.cat(parts)
    return spectrum / spectrum.sum()


def _groups(values: Tensor) -> list[Tensor]:
    """Descending values, cut where one is far above the next, but not among the least, which scatter so by chance."""
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
    """The power of a spectrum, at most the first, that has this participation ratio; of sum 1.

    Where even equal values have less, as many equal ones as the ratio says, but at most `most`.
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
    """Geometric-mean LID, by the paper's convention, of Gaussian points whose covariance has this spectrum of sum 1."""
    logs, outward = _readings(spectrum, k, n, estimator)
    # Most of the chance in so few points is in how far out they lie, whose mean is known: it is regressed away.
    slope = (outward * (logs - logs.mean())).mean() / outward.square().mean()
    return (logs - slope * outward).mean().exp().item()


def _readings(spectrum: Tensor, k: int, n: int, estimator: Calibrated) -> tuple[Tensor, Tensor]:
    """The logarithm of LID (Q,) that some points read, and by how much they lie further out than the mean."""
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
    else:  # of k - 1 logarithms, whose spread is as large as their mean
        logs = (k / (k - 1) / log).log() + 1 / (2 * (k - 1))
    return logs, outward


def _tilts(lowest: float, highest: float, number: int) -> Tensor:
    return torch.logspace(lowest, highest, number, dtype=torch.float64, device="cpu")


class _Axes(NamedTuple):
    """Eigenvalues (G,), how many axes have each (G,), and the squared coordinates of points on those axes (G, Q)."""

    spectrum: Tensor
    counts: Tensor
    squares: Tensor


def _grouped(spectrum: Tensor, squares: Tensor) -> _Axes:
    """Axes one by one while eigenvalues fall fast, then some at a time, which differ little: all costs go by them."""
    if len(spectrum) <= _SINGLE + _GROUPS:
        return _Axes(spectrum, torch.ones_like(spectrum), squares)
    size = -(-(len(spectrum) - _SINGLE) // _GROUPS)
    group = torch.arange(len(spectrum), device="cpu")
    group = torch.where(group < _SINGLE, group, _SINGLE + (group - _SINGLE) // size)
    counts = torch.bincount(group).double()
    sums = torch.zeros_like(counts).index_add_(0, group, spectrum)
    return _Axes(sums / counts, counts, squares.new_zeros(len(counts), squares.shape[1]).index_add_(0, group, squares))


def _near(axes: _Axes, tilts: Tensor) -> tuple[Tensor, Tensor]:
    """Distances (T, Q) from the points, falling with the tilts (T,), and the chances of another point to lie nearer."""
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
    """Means (Q,) of r / w, its square, and -ln(r / w), over the distances r under the quantile w of this share.

    Each is an integral of the distribution function, which is taken for a power law between the tilts and under them.
    """
    logs, heights = distances.log(), chances.clamp_min(1e-300).log() - math.log(share)
    # Where chances are too small for a float64 they have no weight, and no power either, which must not divide 0 by 0.
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
