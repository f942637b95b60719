"""Neighbor distances that do not grow as those in one neighborhood do: jumps, and ties."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

_EDGES = 2**22  # neighbor pairs handled at a time
# Times the median of a point's own gaps. In Gaussians of any dimension one point in a hundred has a gap so large, at
# k from 8 to 256; where k reaches out of a cluster almost all have.
_JUMP = 20.0


class Gaps(NamedTuple):
    """Shares of the measured points, and where the jump is.

    `jumping`: whose neighbor distances jump; `before`: the neighbors before the jump, in the median of these points;
    `tied`: of whose neighbors at least half are exactly as far as the one before.
    """

    jumping: float = 0.0
    before: float = math.nan
    tied: float = 0.0


def gaps(distances: Tensor) -> Gaps:
    """What the distances (n, k), ascending, of points to their neighbors show; points with a duplicate show nothing.

    Where points fill a neighborhood evenly, j ln(r(j+1) / r(j)) is exponential with the same mean for all j (it is
    what LID and TwoNN rest on). A value far above the others is a hole around the first j neighbors.

    >>> even, clustered = torch.arange(1.0, 17).view(1, -1), torch.tensor([[1.0, 1.1, 1.2, 1.3, 9.0, 9.1, 9.2, 9.3]])
    >>> gaps(even), gaps(clustered)
    (Gaps(jumping=0.0, before=nan, tied=0.0), Gaps(jumping=1.0, before=4.0, tied=0.0))
    """
    ends, tied = [], 0
    ranks = torch.arange(1, distances.shape[1], dtype=torch.float64, device=distances.device)
    for block in torch.split(distances, max(1, _EDGES // distances.shape[1])):
        logs = block[block[:, 0] > 0].double().log()
        if not logs.numel():
            continue
        steps = ranks * logs.diff(dim=1)
        typical = steps.median(1).values
        largest, place = steps.max(1)
        tied += int((typical == 0).sum())
        ends.append(place[(typical > 0) & (largest > _JUMP * typical)].double() + 1)
    before = torch.cat(ends) if ends else distances.new_empty(0, dtype=torch.float64)
    count = len(distances)
    return Gaps(len(before) / count, before.median().item() if len(before) else math.nan, tied / count)
