"""BYOL: predict a slowly moving copy's embedding of the other view."""

from dataclasses import dataclass

from torch import Tensor, nn

from ldreg.methods.base import Method, MethodEntry, MomentumBranch, check_shares, check_widths, mlp
from ldreg.methods.losses import byol


@dataclass(frozen=True)
class BYOLConfig:
    """Options of BYOL (Grill et al., NeurIPS 2020), by default as the LDReg paper sets them.

    Args:
        momentum: Share of the momentum branch that a step keeps, at the start of training.
        momentum_end: The same at the end; between them it follows half a cosine.
        projector: Widths of the projector's layers.
        predictor: Widths of the predictor's layers; it ends in the projector's last width.
    """

    momentum: float = 0.99
    momentum_end: float = 1.0
    projector: tuple[int, ...] = (4096, 256)
    predictor: tuple[int, ...] = (4096, 256)

    def __post_init__(self) -> None:
        check_shares(momentum=self.momentum, momentum_end=self.momentum_end)
        check_widths(projector=self.projector, predictor=self.predictor)


class BYOL(Method):
    """Predict the momentum branch's embedding of the other view, in both directions (Grill et al., NeurIPS 2020).

    Batch statistics are of both views together; the original takes each view's own. Neighbors of the online
    representations are searched among those of both branches (LDReg paper, appendix "LDReg and SSL methods").

    >>> import torch
    >>> encoder = nn.Flatten()
    >>> encoder.dimension = 16
    >>> method = BYOL(encoder, BYOLConfig(projector=(8, 4), predictor=(8, 4)))
    >>> outcome = method((torch.randn(6, 1, 4, 4), torch.randn(6, 1, 4, 4)))
    >>> outcome.representations.shape, outcome.reference.shape
    (torch.Size([12, 16]), torch.Size([24, 16]))
    """

    candidates = 4
    predictor: nn.Module
    target: MomentumBranch

    def __init__(self, encoder: nn.Module, config: BYOLConfig) -> None:
        super().__init__(encoder)
        self.projector = mlp(self.dimension, config.projector)
        self.predictor = mlp(config.projector[-1], config.predictor)
        self.target = MomentumBranch(encoder, self.projector, start=config.momentum, end=config.momentum_end)

    def loss(self, *embeddings: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """BYOL's loss."""
        loss = byol(*embeddings)
        return loss, {"byol": loss.detach()}


METHODS = {"byol": MethodEntry(BYOLConfig, BYOL)}
