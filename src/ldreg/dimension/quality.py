"""Label-free measures of representations other than LID: from their spectrum, their neighbors and their views.

Those of a spectrum take the eigenvalues of `spectrum.covariance_eigenvalues`, and those of neighbors the result of
`neighbors.neighbors`, so that one covariance and one search serve all. Results are in float64. None of these numbers is
better just because it is higher.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ldreg.dimension.candidates import slices
from ldreg.dimension.neighbors import as_matrix, as_numbers
from ldreg.dimension.search import refuse_nonfinite
from ldreg.dimension.spectrum import entropy_rank

_BLOCK = 2**22  # numbers of a block of products in float64: 32 MiB
_FEWEST = 8  # eigenvalues: a slope through fewer says little
_MOST_STEPS, _SMALLEST_STEP = 60, 1e-14  # of Newton's method; relative


class PowerLaw(NamedTuple):
    """The decay of a spectrum: eigenvalue i is about c / i^alpha; `r2` says how well that fits (1: exactly)."""

    alpha: float
    r2: float


class ScaleDimension(NamedTuple):
    """The dimension of a set at one scale: that of neighbor number `neighbor`, at the mean distance `distance`."""

    neighbor: int
    distance: float
    dimension: float


@torch.no_grad()
def participation_ratio(eigenvalues: Tensor) -> Tensor:
    """(sum of the eigenvalues)^2 / sum of their squares: how many equal eigenvalues they amount to; 0 where all are 0.

    It follows the few largest eigenvalues, where the effective rank also counts the tail (Gao et al. 2017).

    >>> participation_ratio(torch.tensor([2.0, 2.0, 0.0])).item()
    2.0
    """
    shares = _relative(eigenvalues)
    return torch.where(shares.any(), shares.sum().square() / shares.square().sum(), 0)


@torch.no_grad()
def nesum(eigenvalues: Tensor) -> Tensor:
    """Sum of the eigenvalues over the largest, "normalized eigenvalue sum" (He & Ozay 2022); 0 where all are 0.

    >>> nesum(torch.tensor([2.0, 1.0, 1.0])).item()
    2.0
    """
    return _relative(eigenvalues).sum()


@torch.no_grad()
def alpha_req(eigenvalues: Tensor, *, first: int = 11, last: int = 100) -> PowerLaw:
    """The exponent of the decay of a spectrum, alpha-ReQ (Agrawal et al. 2022), and the R^2 of the fit.

    A line through ln(eigenvalue) over ln(i) for i from `first` to `last`, in which i has the weight 1 / i, as in the
    published code (Stringer et al. 2019). A spectrum with fewer eigenvalues above 0 is fitted from a tenth of them on.
    Both numbers are NaN if that leaves fewer than 8.

    Args:
        eigenvalues: of the covariance, descending.
        first: first rank of the fit, from 1 on.
        last: last rank of the fit.

    Raises:
        ValueError: first or last out of range.

    >>> found = alpha_req(1 / torch.arange(1, 200).double() ** 1.5)
    >>> round(found.alpha, 6), round(found.r2, 6)
    (1.5, 1.0)
    """
    if not 1 <= first < last:
        raise ValueError(f"first: expected 1 <= first < last, got {first} and {last}")
    values = _relative(eigenvalues)
    positive = int((values > 0).sum())
    if positive < last:
        first, last = max(1, positive // 10), positive
    ranks = torch.arange(first, last + 1, dtype=torch.float64, device=values.device)
    if len(ranks) < _FEWEST:
        return PowerLaw(math.nan, math.nan)
    x, y, weights = ranks.log(), values[first - 1 : last].log(), 1 / ranks
    x, y = (value - (weights * value).sum() / weights.sum() for value in (x, y))
    slope = (weights * x * y).sum() / (weights * x * x).sum()
    rest, whole = ((weights * value.square()).sum() for value in (y - slope * x, y))
    return PowerLaw(-slope.item(), (1 - rest / whole).item() if whole > 0 else 1.0)


@torch.no_grad()
def uniformity(x: Any) -> Tensor:
    """Logarithm of the mean of exp(-2 |a - b|^2) over all pairs of normalized rows of x (N, D) (Wang & Isola 2020).

    0 where all rows point in one direction, and about -4 where many dimensions are filled evenly. The mean is over
    pairs of different rows. Rows of zeros have no direction and are left out; NaN where fewer than two others remain.
    Needs N^2 D / 2 operations, and 32 MiB besides a normalized copy of x.

    Raises:
        ValueError: x is not a finite real (N, D).

    >>> round(uniformity([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]]).item(), 3)  # ln((1 + 2 exp(-4)) / 3)
    -1.063
    """
    x = as_matrix(x, "x").detach()
    refuse_nonfinite(x, "x")
    directions = _directions(x).to(torch.promote_types(x.dtype, torch.float32))
    count = len(directions)
    if count < 2:
        return directions.new_tensor(math.nan, dtype=torch.float64)
    total = directions.new_zeros((), dtype=torch.float64)
    for rows in slices(count, max(1, _BLOCK // count)):
        block = directions[rows]
        values = (4 * (block @ directions[rows.start :].T - 1)).exp()  # |a - b|^2 = 2 - 2 a b
        own = values[:, : len(block)].fill_diagonal_(0)  # pairs within the block, both ways; all others stand for two
        total += 2 * values.sum(dtype=torch.float64) - own.sum(dtype=torch.float64)
    return (total / (count * (count - 1))).log()


def hub_counts(indices: Tensor, points: int) -> Tensor:
    """How often each of the points (N,) is among the neighbors that `indices` (n, k) name; `points` is N.

    >>> hub_counts(torch.tensor([[1, 2], [0, 2], [1, 0]]), 4)
    tensor([2, 2, 2, 0])
    """
    return torch.bincount(indices.flatten(), minlength=points)


@torch.no_grad()
def hubness(counts: Tensor) -> Tensor:
    """Skewness of `hub_counts` (Radovanović et al. 2010): 0 for even counts, above 2 with strong hubs.

    >>> hubness(torch.tensor([2, 2, 2])).item(), round(hubness(torch.tensor([0, 0, 0, 8])).item(), 4)
    (0.0, 1.1547)
    """
    apart = counts.double() - counts.double().mean()
    deviation = apart.square().mean().sqrt()
    return torch.where(deviation > 0, apart.pow(3).mean() / deviation.pow(3), 0)


@torch.no_grad()
def antihubs(counts: Tensor) -> Tensor:
    """Share of the points that are nobody's neighbor, from `hub_counts`.

    >>> antihubs(torch.tensor([2, 2, 2, 0])).item()
    0.25
    """
    return (counts == 0).double().mean()


@torch.no_grad()
def gride(distances: Tensor) -> list[ScaleDimension]:
    """The dimension of a set at growing scales, from the ratio of neighbor distances 2^i and 2^(i+1) (GRIDE).

    The maximum-likelihood estimate of Denti et al., Scientific Reports 2022; the first entry, of neighbors 1 and 2, is
    that of TwoNN. A dimension that falls with the scale hints at noise, one that rises at curvature or clusters.
    Points whose nearer neighbor of a pair is at distance 0 are left out of that pair. A dimension is NaN where no point
    is left, and infinite where both distances are equal for all.

    Args:
        distances: (N, k) to the neighbors of each point, ascending, as `neighbor_distances` gives them.

    >>> from ldreg.dimension.neighbors import neighbor_distances
    >>> from ldreg.dimension.synthetic import cube
    >>> [round(scale.dimension, 1) for scale in gride(neighbor_distances(cube(2000, 3), k=8))]
    [3.0, 3.0, 2.9]
    """
    found, near = [], 1
    while 2 * near <= distances.shape[1]:
        inner, outer = distances[:, near - 1].double(), distances[:, 2 * near - 1].double()
        ratios = (outer.log() - inner.log())[inner > 0]
        found.append(ScaleDimension(2 * near, outer.mean().item(), _ratio_dimension(ratios, near)))
        near *= 2
    return found


def _ratio_dimension(ratios: Tensor, near: int) -> float:
    """The d with the largest likelihood of ln(r(2n) / r(n)) (N,), for n = `near`."""
    if not len(ratios):
        return math.nan
    mean = ratios.mean().item()
    if mean == 0:
        return math.inf

    # Of the log likelihood per point, the slope falls with d and is convex: Newton's steps from where it is above 0, as
    # at this d, grow towards its zero and never pass it.
    d = 2 * near / ((3 * near - 1) * mean)
    for _ in range(_MOST_STEPS):
        decay = (-d * ratios).exp()
        inner = torch.where(ratios > 0, ratios / -torch.expm1(-d * ratios), 1 / d)
        slope = 1 / d + (near - 1) * inner.mean().item() - (2 * near - 1) * mean
        bend = 1 / d**2 + (near - 1) * (inner.square() * decay).mean().item()
        d += slope / bend
        if slope <= _SMALLEST_STEP * d * bend:
            break
    return d


@torch.no_grad()
def alignment(views: Iterable[Any]) -> Tensor:
    """Mean squared distance between normalized views of the same image (Wang & Isola 2020): 0 to 4, a float64 scalar.

    Images with a view of zeros are left out; NaN where none is left.

    Args:
        views: as for `view_share`.

    Raises:
        ValueError: as `view_share`.

    >>> alignment([[[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.0], [3.0, 0.0]]]).item()
    1.0
    """
    x = torch.stack([view.double() for view in _checked_views(views)])
    x = x[:, (x != 0).any(-1).all(0)]
    x = _normalized(x)
    apart = [(x[i] - x[j]).square().sum(-1) for i in range(len(x)) for j in range(i)]
    return torch.stack(apart).mean()


@torch.no_grad()
def lidar(views: Iterable[Any], *, delta: float = 1e-4) -> Tensor:
    """LiDAR (Thilak et al. 2024): the rank of the differences between images, in units of those between views.

    The exp of the entropy of the normalized eigenvalues of W^(-1/2) B W^(-1/2), where B is the covariance of the means
    of the images and W that of their views around them, plus delta times the identity. It is at most N - 1, so compare
    sets of as many images and views. It is 0 where all means are equal, and NaN where a representation is NaN or inf.
    `delta` has the unit of squared representations: where views hardly differ, the result depends on their scale.

    Args:
        views: two or more (N, D), with row i of each from the same image; or a tensor (V, N, D).
        delta: added to the diagonal of W, above 0.

    Raises:
        ValueError: as `view_share`, or delta is not above 0, or too small for the size of the representations.

    >>> image = torch.eye(4).repeat(2, 1) * torch.tensor([[1.0]] * 4 + [[-1.0]] * 4)
    >>> round(lidar([image + 0.1, image - 0.1]).item(), 1)  # the views differ in one of four directions
    3.0
    """
    if not 0 < delta < math.inf:
        raise ValueError(f"delta: expected a finite number above 0, got {delta}")
    x = torch.stack([view.double() for view in _checked_views(views)])
    if not torch.isfinite(x).all():
        return torch.full((), torch.nan, dtype=torch.float64, device=x.device)
    x = x - x[0, 0]  # equal rows become exactly 0
    means = x.mean(0)
    within = (x - means).flatten(0, 1)
    covariance = within.T @ within / len(within)
    covariance.diagonal().add_(delta)
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if failed or not torch.isfinite(factor).all():
        raise ValueError(f"delta: expected more than the rounding of the variance between views, got {delta}")
    between = (means - means.mean(0)).T
    whitened = torch.linalg.solve_triangular(factor, between, upper=False)
    return entropy_rank(torch.linalg.svdvals(whitened).square())


def _relative(eigenvalues: Tensor) -> Tensor:
    """Eigenvalues in float64, divided by the largest unless that is 0."""
    return _scaled(eigenvalues.double())


def _directions(x: Tensor) -> Tensor:
    """The rows of x (N, D) that are not zero, divided by their norms, in float64."""
    return _normalized(x[(x != 0).any(1)].double())


def _normalized(x: Tensor) -> Tensor:
    """Rows (..., D), none of them zero, divided by their norms; by the largest entry first, as squares may vanish."""
    x = x / x.abs().amax(-1, keepdim=True)
    norms: Tensor = x.norm(dim=-1, keepdim=True)
    return x / norms


@torch.no_grad()
def view_share(views: Iterable[Any]) -> Tensor:
    """The share of the variance of representations that comes from the view: a float64 scalar from 0 to 1.

    It is 0 where all views of an image agree, and 1 where they differ as much as views of different images. A
    regularizer can raise LID by separating images or by separating views; a share far above that of a run without it
    shows that it did partly the latter (`docs/too-strong.md`). The share is that of the one-way analysis of variance
    with random effects (Searle, Casella & McCulloch, "Variance Components", 1992), so it does not depend on the number
    of views. It is NaN where all representations are equal or one is NaN or inf.

    Args:
        views: two or more (N, D), with row i of each from the same image; or a tensor (V, N, D).

    Raises:
        ValueError: fewer than two views, or not real (N, D) of one shape with N >= 2 and D >= 1.

    >>> image = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 4.0]])
    >>> view_share([image, image]).item(), round(view_share([image, image.flip(1)]).item(), 3)
    (0.0, 0.857)
    """
    x = torch.stack([view.double() for view in _checked_views(views)])
    if not torch.isfinite(x).all():
        return torch.full((), torch.nan, dtype=torch.float64, device=x.device)
    # Equal rows become exactly 0 and an offset costs no digits. Scaling before keeps differences from overflowing,
    # scaling after keeps squares from vanishing.
    x = _scaled(x)
    x = _scaled(x - x[0, 0])
    count, images = x.shape[:2]
    apart = x - x[0]  # exactly 0 where views are equal, whatever the rounding of their mean
    within = (apart - apart.mean(0)).square().sum() / (images * (count - 1))
    means = x[0] + apart.mean(0)
    between = (means - means.mean(0)).square().sum() / (images - 1) - within / count
    return within / (within + between.clamp_min(0))


def _scaled(x: Tensor) -> Tensor:
    """Divide x by its largest entry, unless that is 0."""
    largest = x.abs().max()
    return x / torch.where(largest > 0, largest, 1)


def _checked_views(views: Iterable[Any]) -> list[Tensor]:
    try:
        given = list(views)
    except TypeError as error:
        raise ValueError(f"views: expected two or more (N, D), got {type(views).__name__}") from error
    found = [as_numbers(view, "views") for view in given]
    shapes = [tuple(view.shape) for view in found]
    valid = len(found) > 1 and len(set(shapes)) == 1 and len(shapes[0]) == 2 and shapes[0][0] > 1 and shapes[0][1] > 0
    if not valid or any(view.is_complex() for view in found):
        got = ", ".join(f"{view.dtype} {tuple(view.shape)}".removeprefix("torch.") for view in found[:4])
        raise ValueError(f"views: expected two or more real (N, D) of one shape with N >= 2, got {got or 'none'}")
    return found
