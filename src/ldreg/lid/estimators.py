"""Local intrinsic dimensionality from nearest-neighbor distances."""

from typing import Literal, NamedTuple

from torch import Tensor

from ldreg.lid.neighbors import neighbors

Estimator = Literal["mom", "mle", "tle"]
Convention = Literal["paper", "pseudocode"]


class LIDEstimate(NamedTuple):
    """LID (N,) and its standard error (N,)."""

    lid: Tensor
    standard_error: Tensor


def lid(
    x: Tensor,
    k: int = 64,
    reference: Tensor | None = None,
    *,
    estimator: Estimator = "mom",
    convention: Convention = "paper",
    self_offset: int | None = None,
) -> Tensor:
    """LID (N,)."""
    d = neighbors(x, k, reference, self_offset=self_offset).distances
    w = d[:, -1]
    gap = (w[:, None] - d).mean(1)
    return (w - gap) / gap
