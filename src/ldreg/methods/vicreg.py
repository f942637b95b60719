"""VICReg: agree between views, vary over images, decorrelate."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ldreg.methods.base import Method, MethodEntry, Outcome, check_weight, check_widths
from ldreg.methods.heads import mlp
from ldreg.methods.losses import vicreg


@dataclass(frozen=True)
class VICRegConfig:
    """Options of VICReg (Bardes, Ponce & LeCun, ICLR 2022), by default the original's.

    Args:
        invariance: Weight of the squared distance of the two views.
        variance: Weight of the shortfall of each column's standard deviation from 1.
        covariance: Weight of the squared covariances of different columns.
        projector: Widths of the layers of the projector, which VICReg calls expander.

    Raises:
        ValueError: a weight is negative or not finite, or a width not positive.
    """

    invariance: float = 25.0
    variance: float = 25.0
    covariance: float = 1.0
    projector: tuple[int, ...] = (8192, 8192, 8192)

    def __post_init__(self) -> None:
        for name in ("invariance", "variance", "covariance"):
            check_weight(name, getattr(self, name))
        check_widths(self.projector)


class VICReg(Method):
    """Pull two views together while each column varies and no two covary (Bardes, Ponce & LeCun, ICLR 2022).

    Both views pass the encoder in one call, so batch statistics are of both views together; the original takes each
    view's own. The logged terms are unweighted.

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

    def forward(self, views: Sequence[Tensor], generator: torch.Generator | None = None) -> Outcome:
        """The outcome of two views; the generator is not used."""
        self._check(views)
        representations = self.encoder(torch.cat(tuple(views)))
        loss, terms = vicreg(
            *self.projector(representations).chunk(2),
            invariance=self.config.invariance,
            variance=self.config.variance,
            covariance=self.config.covariance,
        )
        return Outcome(loss, terms, representations)


METHODS = {"vicreg": MethodEntry(VICRegConfig, VICReg)}
