"""The mean of LID, and how far chance may have moved it."""

import math

import torch
from torch import Tensor

from ldreg.lid.estimators import LIDEstimate
from ldreg.lid.geometry import regular
from ldreg.reporting.record import MeanLID

_EDGES = 2**22  # neighbor pairs handled at a time


def mean_lid(found: LIDEstimate, rows: Tensor, points: int, members: Tensor | None = None) -> MeanLID:
    """Geometric-mean LID with a 95 % confidence interval that knows that neighboring points share neighbors.

    The mean of ln LID is a function of independent points, and its variance is that of the sum of what each point adds
    to it: its own deviation, and its pull on the estimates that it is a neighbor in. The pulls are already in the
    deviations of those estimates, so their squares are taken off once. Never below the variance of independent values.
    The interval covers chance, not the bias of the estimator.

    Args:
        found: the estimates of the n measured points, with their neighbors.
        rows: (n,) the row of each measured point in the data.
        points: number of rows of the data.
        members: positions among the n that the mean is over; None: all.
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
    deviations = logs - mean
    added = torch.zeros(points, dtype=torch.float64, device=rows.device)
    added[rows[members]] = deviations
    pulls = added.new_zeros(())
    for block in torch.split(members, max(1, _EDGES // found.neighbors.indices.shape[1])):
        pull = _pull(found.neighbors.distances[block].double())
        added.index_add_(0, found.neighbors.indices[block].flatten(), pull.flatten())
        pulls += pull.square().sum()
    variance = torch.maximum(added.square().sum() - pulls, deviations.square().sum()) / (n * (n - 1))
    margin = _student(n - 1) * variance.sqrt()
    return MeanLID(mean.exp().item(), (mean - margin).exp().item(), (mean + margin).exp().item())


def _pull(distances: Tensor) -> Tensor:
    """How far each neighbor (n, k) moves ln LID of its point, to first order, by the method of moments.

    LID = r / (1 - r) with r the mean of distance / largest distance, so d(ln LID) = dr / (r (1 - r)); the other
    estimators weigh the same distances almost alike.
    """
    last = distances[:, -1:]
    r = (distances / last).mean(1, keepdim=True)
    gaps = (last - distances) / last  # whose mean is 1 - r, and above 0 even where r rounds to 1
    gap = gaps.mean(1, keepdim=True)
    return (gap - gaps) / (r * gap) / distances.shape[1]


def _student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))
