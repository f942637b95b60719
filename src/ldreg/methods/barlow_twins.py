"""Barlow Twins: bring the cross-correlation of two views to the identity."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ldreg.methods.base import Method, MethodEntry, Outcome, check_weight, check_widths
from ldreg.methods.heads import mlp
from ldreg.methods.losses import barlow_twins


@dataclass(frozen=True)
class BarlowTwinsConfig:
    """Options of Barlow Twins (Zbontar et al., ICML 2021), by default the original's.

    Args:
        redundancy: Weight of the squared correlations of different columns.
        projector: Widths of the projector's layers.

    Raises:
        ValueError: the weight is negative or not finite, or a width not positive.
    """

    redundancy: float = 0.005
    projector: tuple[int, ...] = (8192, 8192, 8192)

    def __post_init__(self) -> None:
        check_weight("redundancy", self.redundancy)
        check_widths(self.projector)


class BarlowTwins(Method):
    """Make each column agree between views and be uncorrelated with the others (Zbontar et al., ICML 2021).

    Both views pass the encoder in one call, so batch statistics are of both views together; the original takes each
    view's own. The loss standardizes each view by itself, over the batch of all ranks. The logged terms are unweighted.

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

    def forward(self, views: Sequence[Tensor], generator: torch.Generator | None = None) -> Outcome:
        """The outcome of two views; the generator is not used."""
        self._check(views)
        representations = self.encoder(torch.cat(tuple(views)))
        loss, terms = barlow_twins(*self.projector(representations).chunk(2), redundancy=self.redundancy)
        return Outcome(loss, terms, representations)


METHODS = {"barlow_twins": MethodEntry(BarlowTwinsConfig, BarlowTwins)}
