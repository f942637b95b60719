"""KoLeo: spread representations by the distance of each to its nearest neighbor."""

import torch
from torch import Tensor, nn

from ldreg.dimension.neighbors import neighbors
from ldreg.regularizers.inputs import batch, full_precision, weight


class KoLeo(nn.Module):
    """The Kozachenko-Leonenko entropy regularizer: maps representations (N, D) to a scalar to add to the loss.

    The value is -beta times the mean over rows of ln(distance to the nearest other row), on rows scaled to length 1
    unless `normalize` is off (Sablayrolles et al., "Spreading vectors for similarity search", ICLR 2019; with weight
    0.1 in Oquab et al., "DINOv2", 2023). The gradient moves both ends of each distance. Rows at distance 0 from
    another are left out of the mean, having no direction to part in; where all are, value and gradient are 0. A row
    of zeros, which has no direction either, is not scaled. It is computed in float32 at least, also under autocast.

    Args:
        beta: Weight of the term.
        normalize: Scale rows to length 1 first.
        gather: Take the batch of all ranks of `torch.distributed` as one. Gradients averaged over ranks, as DDP does,
            are then those of one process with the whole batch.

    Raises:
        ValueError: beta is negative or not finite; in the call, representations are not a floating-point (N, D) or
            have fewer than two rows, or hold NaN or inf, of which no neighbor can be found.

    >>> round(KoLeo(beta=1.0)(torch.tensor([[1.0, 0.0], [0.0, 2.0]])).item(), 4)  # -ln(sqrt(2))
    -0.3466
    """

    def __init__(self, beta: float = 0.1, *, normalize: bool = True, gather: bool = False) -> None:
        super().__init__()
        self.beta = weight("beta", beta)
        self.normalize = normalize
        self.gather = gather

    def forward(self, representations: Tensor) -> Tensor:
        """The scalar to add to the loss."""
        with full_precision(representations):
            x = batch(representations, gathered=self.gather)
            return -self.beta * mean_log_nearest(_unit_rows(x) if self.normalize else x)

    def extra_repr(self) -> str:
        """The options, as `print` shows them."""
        return f"beta={self.beta}, normalize={self.normalize}, gather={self.gather}"


def mean_log_nearest(x: Tensor) -> Tensor:
    """Mean of ln(distance to the nearest other row) over the rows of x (N, D) where it is not 0; 0 where it always is.

    >>> mean_log_nearest(torch.tensor([[0.0], [1.0], [2.0], [2.0]]))
    tensor(0.)
    """
    distance = neighbors(x, 1, reference_grad=True).distances[:, 0]
    apart = distance > 0
    return torch.where(apart, distance, 1).log().sum() / apart.sum().clamp_min(1)


def _unit_rows(x: Tensor) -> Tensor:
    largest = x.detach().abs().amax(1, keepdim=True)
    # In units of its largest entry no row's length over- or underflows.
    x = x / torch.where(largest == 0, 1, largest)
    length = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    return x / torch.where(length == 0, 1, length)
