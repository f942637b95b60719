"""KoLeo: spread representations by their distances to the nearest neighbor."""

import torch
from torch import Tensor

from ldreg.dimension.neighbors import neighbors
from ldreg.regularizers.base import Regularizer


class KoLeo(Regularizer):
    """The Kozachenko-Leonenko entropy regularizer: maps representations (N, D) to a scalar to add to the loss.

    The value is -beta times the mean over rows of ln(distance to the nearest other row), on rows scaled to length 1
    unless `normalize` is off (Sablayrolles et al., "Spreading vectors for similarity search", ICLR 2019; with weight
    0.1 in Oquab et al., "DINOv2", 2023). The gradient moves both ends of each distance. Rows at distance 0 from
    another have no direction to move in and are left out of the mean; if all are, value and gradient are 0. A row of
    zeros is not scaled. The value is computed in float32 or wider, even under autocast.

    Args:
        beta: weight of the term.
        normalize: whether to scale rows to length 1 first.
        gather: whether to work on the batch of all ranks. Gradients averaged over ranks, as in DDP, then equal those
            of one process with the whole batch.

    Raises:
        ValueError: beta is negative or not finite; in the call, representations are not a floating-point (N, D) or
            have fewer than two rows, or hold NaN or inf.

    >>> round(KoLeo(beta=1.0)(torch.tensor([[1.0, 0.0], [0.0, 2.0]])).item(), 4)  # -ln(sqrt(2))
    -0.3466
    """

    def __init__(self, beta: float = 0.1, *, normalize: bool = True, gather: bool = False) -> None:
        super().__init__(beta, gather=gather)
        self.normalize = normalize

    def term(self, x: Tensor) -> Tensor:
        """Minus the mean of ln(distance to the nearest other row) over rows where that is not 0; 0 if all are."""
        distance = neighbors(_unit_rows(x) if self.normalize else x, 1, reference_grad=True).distances[:, 0]
        apart = distance > 0
        return -torch.where(apart, distance, 1).log().sum() / apart.sum().clamp_min(1)


def _unit_rows(x: Tensor) -> Tensor:
    largest = x.detach().abs().amax(1, keepdim=True)
    # In units of its largest entry, the length of a row neither overflows nor underflows.
    x = x / torch.where(largest == 0, 1, largest)
    length = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    return x / torch.where(length == 0, 1, length)
