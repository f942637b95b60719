"""VICReg: agree between views, vary over images, decorrelate."""

from dataclasses import dataclass

from torch import Tensor, nn

from ldreg.methods.base import Method, MethodEntry, check_weights, check_widths, mlp
from ldreg.methods.losses import vicreg


@dataclass(frozen=True)
class VICRegConfig:
    """Options of VICReg (Bardes, Ponce & LeCun, ICLR 2022), by default the original's.

    Args:
        invariance: Weight of the squared distance of the two views.
        variance: Weight of the shortfall of each column's standard deviation from 1.
        covariance: Weight of the squared covariances of different columns.
        projector: Widths of the layers of the projector, which VICReg calls expander.
    """

    invariance: float = 25.0
    variance: float = 25.0
    covariance: float = 1.0
    projector: tuple[int, ...] = (8192, 8192, 8192)

    def __post_init__(self) -> None:
        check_weights(invariance=self.invariance, variance=self.variance, covariance=self.covariance)
        check_widths(projector=self.projector)


class VICReg(Method):
    """Pull two views together while each column varies and no two covary (Bardes, Ponce & LeCun, ICLR 2022).

    Batch statistics of the encoder are of both views together; the original takes each view's own. The logged terms
    are unweighted.

    >>> import torch
    >>> encoder = nn.Flatten()
    >>> encoder.dimension = 16
    >>> outcome = VICReg(encoder, VICRegConfig(projector=(8, 4)))((torch.randn(6, 1, 4, 4), torch.randn(6, 1, 4, 4)))
    >>> sorted(outcome.terms)
    ['covariance', 'invariance', 'variance']
    """

    def __init__(self, encoder: nn.Module, config: VICRegConfig) -> None:
        super().__init__(encoder)
        self.config = config
        self.projector = mlp(self.dimension, config.projector)

    def loss(self, *embeddings: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """VICReg's loss and its three terms."""
        weights = {name: getattr(self.config, name) for name in ("invariance", "variance", "covariance")}
        return vicreg(*embeddings, **weights)


METHODS = {"vicreg": MethodEntry(VICRegConfig, VICReg)}
