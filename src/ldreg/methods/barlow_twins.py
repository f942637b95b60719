"""Barlow Twins: bring the cross-correlation of two views to the identity."""

from dataclasses import dataclass

from torch import Tensor, nn

from ldreg.methods.base import Method, MethodEntry, check_weights, check_widths, mlp
from ldreg.methods.losses import barlow_twins


@dataclass(frozen=True)
class BarlowTwinsConfig:
    """Options of Barlow Twins (Zbontar et al., ICML 2021), by default the original's.

    Args:
        redundancy: Weight of the squared correlations of different columns.
        projector: Widths of the projector's layers.
    """

    redundancy: float = 0.005
    projector: tuple[int, ...] = (8192, 8192, 8192)

    def __post_init__(self) -> None:
        check_weights(redundancy=self.redundancy)
        check_widths(projector=self.projector)


class BarlowTwins(Method):
    """Make each column agree between views and be uncorrelated with the others (Zbontar et al., ICML 2021).

    Batch statistics of the encoder are of both views together; the original takes each view's own. The loss
    standardizes each view by itself, over the batch of all ranks. The logged terms are unweighted.

    >>> import torch
    >>> encoder = nn.Flatten()
    >>> encoder.dimension = 16
    >>> method = BarlowTwins(encoder, BarlowTwinsConfig(projector=(8, 4)))
    >>> sorted(method((torch.randn(6, 1, 4, 4), torch.randn(6, 1, 4, 4))).terms)
    ['invariance', 'redundancy']
    """

    def __init__(self, encoder: nn.Module, config: BarlowTwinsConfig) -> None:
        super().__init__(encoder)
        self.redundancy = config.redundancy
        self.projector = mlp(self.dimension, config.projector)

    def loss(self, *embeddings: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Barlow Twins' loss and its two terms."""
        return barlow_twins(*embeddings, redundancy=self.redundancy)


METHODS = {"barlow_twins": MethodEntry(BarlowTwinsConfig, BarlowTwins)}
