"""The mean of LID, and how far chance may have moved it."""

import math

import torch
from torch import Tensor

from ldreg.dimension.estimators import LIDEstimate
from ldreg.dimension.geometry import regular
from ldreg.inspection.report import MeanLID

_EDGES = 2**20  # neighbor pairs handled at a time
# The slope of ln LID is fitted over ranks this far around k, in units of √k, by which chance moves a rank. Where a
# cluster ends near rank k, the slope is a step. The short reach sees a step near k at its full height, the long one
# sees a step further off. The larger variance counts. Chosen on the kinds of benchmarks/coverage.py.
_REACHES = (0.75, 2.0)


def reach(k: int) -> int:
    """How many neighbors after the k-th `mean_lid` makes use of.

    >>> reach(32), reach(64)
    (11, 16)
    """
    return round(max(_REACHES) * math.sqrt(k))


def mean_lid(
    found: LIDEstimate,
    rows: Tensor,
    points: int,
    members: Tensor | None = None,
    beyond: Tensor | None = None,
    *,
    shared: bool = True,
) -> MeanLID:
    """Geometric-mean LID with a 95 % confidence interval that knows that neighboring points share neighbors.

    The mean of ln LID is a function of independent points, and its variance is that of the sum of what each point adds
    to it. A point adds its own deviation and its pull on every estimate that it is a neighbor in. The pull has two
    parts: where the point lies among the neighbors, and that it pushes the k-th neighbor one rank outward. The second
    part is the slope of ln LID by rank. It is large where a cluster has about k points, because one point more or less
    changes the estimates of the whole cluster.

    Pulls are already in the deviations of the estimates that they act on, so their squares are taken off once. Of two
    points that are neighbors of each other both pulls belong to one pair; half the product of their first parts is
    taken off too (all of it would be too much: the estimates are not sums over pairs). Never below the variance of
    independent values.
    The interval covers chance, not the bias of the estimator.

    Args:
        found: the estimates of the n measured points, with their k neighbors.
        rows: (n,) the row of each measured point in the data.
        points: number of rows of the data.
        members: positions among the n that the mean is over; None: all.
        beyond: (n, any) ascending distances to the neighbors after the k-th, best `reach(k)` of them. Without them the
            slope is fitted up to rank k only, and clusters of just over k points go unseen: the interval is then too
            narrow where cluster sizes are close to k.
        shared: whether points are neighbors of one another. If not, as their neighbors are of a reference, their
            estimates are independent, given the reference.
    """
    if members is None:
        members = torch.arange(len(rows), device=rows.device)
    members = members[regular(found.lid[members])]
    n = len(members)
    if n == 0:
        return MeanLID(math.nan, math.nan, math.nan)
    logs = found.lid[members].double().log()
    mean = logs.mean()
    if n == 1:
        return MeanLID(mean.exp().item(), math.nan, math.nan)
    from scipy.special import stdtrit

    deviations = logs - mean
    added = _added(found, rows, points, members, deviations, beyond) if shared else ()
    squares = torch.stack([deviations.square().sum(), *added])
    margin = float(stdtrit(n - 1, 0.975)) * (squares.max() / (n * (n - 1))).sqrt()
    return MeanLID(mean.exp().item(), (mean - margin).exp().item(), (mean + margin).exp().item())


def _added(
    found: LIDEstimate, rows: Tensor, points: int, members: Tensor, deviations: Tensor, beyond: Tensor | None
) -> Tensor:
    """Squares of what the points add to the mean of ln LID, less those of pairs; one sum for each reach."""
    distances, indices = found.neighbors
    k, total = distances.shape[1], points
    if len(rows) < points:  # of a sample, only rows that occur take memory; all others add 0
        known, places = torch.cat([rows, indices.flatten()]).unique(return_inverse=True)
        points, rows, indices = len(known), places[: len(rows)], places[len(rows) :].view(indices.shape)
    blocks = torch.split(members, max(1, _EDGES // k))
    # By row: the k-th distance, the two numbers that pulls are made of, the slopes. No distance is below -1.
    lists = torch.zeros(points, 3 + len(_REACHES), dtype=torch.float64, device=rows.device)
    lists[:, 0] = -1
    for block in blocks:
        near = distances[block].double()
        further = near[:, :0] if beyond is None else beyond[block].double()
        lists[rows[block]] = torch.cat([_shape(near), *(_slope(near, further, c) for c in _REACHES)], dim=1)
    added = torch.zeros(points, len(_REACHES), dtype=torch.float64, device=rows.device)
    added[rows[members]] = deviations[:, None]
    pairs = added.new_zeros(len(_REACHES))
    for block in blocks:
        near, leads = distances[block].double(), indices[block]
        own = lists[rows[block]][:, None]
        placed = _pull(near, own)
        back = torch.where(near <= lists[leads, 0], _pull(near, lists[leads]), 0)
        pull = placed[..., None] - own[..., 3:]
        added.index_add_(0, leads.flatten(), pull.flatten(0, 1))
        pairs += pull.square().sum((0, 1)) + (placed * back).sum() / 2
    mean = added.sum(0) / total
    return (added - mean).square().sum(0) + (total - points) * mean.square() - pairs


def _shape(distances: Tensor) -> Tensor:
    """For lists of distances (n, k): the last, the mean r of distance / last, and 1 / (k r (1 - r)); (n, 3).

    By the method of moments LID = r / (1 - r), so d(ln LID) = dr / (r (1 - r)); the other estimators weigh the same
    distances almost alike.
    """
    last = distances[:, -1:]
    r = (distances / last).mean(1, keepdim=True)
    gap = ((last - distances) / last).mean(1, keepdim=True)  # 1 - r, and above 0 even where r rounds to 1
    return torch.cat([last, r, 1 / (distances.shape[1] * r * gap)], dim=1)


def _pull(distances: Tensor, lists: Tensor) -> Tensor:
    """How far a neighbor at each distance (n, k) moves ln LID by where it lies in a list of neighbors."""
    return (distances / lists[..., 0] - lists[..., 1]) * lists[..., 2]


def _slope(distances: Tensor, beyond: Tensor, width: float) -> Tensor:
    """Slope (n, 1) of ln LID against the rank read at, by least squares over the ranks within `width` √k of k.

    0 where there is one rank, or ln LID is not finite at one of them.
    """
    k = distances.shape[1]
    far = max(1, round(width * math.sqrt(k)))
    ranks = torch.arange(max(2, k - far), k + min(far, beyond.shape[1]) + 1, device=distances.device)
    reading = torch.cat([distances, beyond[:, : ranks[-1] - k]], dim=1)
    last = reading[:, ranks - 1]
    total = reading.cumsum(1)[:, ranks - 1]
    logs = (total / (ranks * last - total)).log()
    offsets = ranks - ranks.double().mean()
    slope = (logs @ offsets)[:, None] / offsets.square().sum()  # NaN where there is one rank
    return torch.where(torch.isfinite(slope), slope, 0)
