"""SimCLR and its tuned version."""

from dataclasses import dataclass

from torch import Tensor, nn

from ldreg.methods.base import Method, MethodEntry, check_positive, check_widths, mlp
from ldreg.methods.losses import nt_xent


@dataclass(frozen=True)
class SimCLRConfig:
    """Options of SimCLR (Chen et al., ICML 2020), by default as the LDReg paper sets them.

    Args:
        temperature: Divisor of the cosine similarities.
        projector: Widths of the projector's layers.
    """

    temperature: float = 0.1
    projector: tuple[int, ...] = (2048, 128)

    def __post_init__(self) -> None:
        check_positive(temperature=self.temperature)
        check_widths(projector=self.projector)


@dataclass(frozen=True)
class SimCLRTunedConfig(SimCLRConfig):
    """Options of SimCLR-Tuned (Garrido et al., "On the Duality...", ICLR 2023), as the LDReg paper sets them.

    Args:
        temperature: Divisor of the cosine similarities.
        projector: Widths of the projector's layers.
    """

    temperature: float = 0.15
    projector: tuple[int, ...] = (8192, 8192, 512)


class SimCLR(Method):
    """Tell the other view of an image from the views of all other images (Chen et al., ICML 2020).

    As in the original, batch statistics are of both views together, and the projector ends in batch norm with a scale
    but no shift.

    >>> import torch
    >>> encoder = nn.Flatten()
    >>> encoder.dimension = 16
    >>> outcome = SimCLR(encoder, SimCLRConfig(projector=(8, 4)))((torch.randn(6, 1, 4, 4), torch.randn(6, 1, 4, 4)))
    >>> outcome.representations.shape
    torch.Size([12, 16])
    """

    def __init__(self, encoder: nn.Module, config: SimCLRConfig) -> None:
        super().__init__(encoder)
        self.temperature = config.temperature
        self.projector = mlp(self.dimension, config.projector, last="scale")

    def loss(self, *embeddings: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The contrastive loss."""
        loss = nt_xent(*embeddings, temperature=self.temperature)
        return loss, {"nt_xent": loss.detach()}


METHODS = {"simclr": MethodEntry(SimCLRConfig, SimCLR), "simclr_tuned": MethodEntry(SimCLRTunedConfig, SimCLR)}
