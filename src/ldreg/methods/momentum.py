"""The slowly moving copy of an encoder and its projector that BYOL and MoCo take their targets from."""

import copy
import math

import torch
from torch import Tensor, nn


class MomentumBranch(nn.Module):
    """A copy of encoder and projector without gradient, which follows them by an exponential moving average.

    Parameters alone follow. Batch statistics are the branch's own: like the original BYOL and MoCo, it normalizes by
    those of the batch it sees while training.

    >>> online = nn.Linear(1, 1), nn.Linear(1, 1)
    >>> branch = MomentumBranch(*online)
    >>> representations, embeddings = branch(torch.ones(3, 1))
    >>> embeddings.shape, embeddings.requires_grad
    (torch.Size([3, 1]), False)
    """

    def __init__(self, encoder: nn.Module, projector: nn.Module) -> None:
        super().__init__()
        self.encoder = copy.deepcopy(encoder).requires_grad_(False)
        self.projector = copy.deepcopy(projector).requires_grad_(False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Representations (N, D) and embeddings (N, E) of images (N, C, S, S)."""
        representations = self.encoder(images)
        return representations, self.projector(representations)

    @torch.no_grad()
    def update(self, encoder: nn.Module, projector: nn.Module, *, momentum: float) -> None:
        """Move to momentum times the branch plus (1 - momentum) times encoder and projector."""
        online: list[Tensor] = [*encoder.parameters(), *projector.parameters()]
        torch._foreach_lerp_(list(self.parameters()), online, 1 - momentum)  # a few launches for all of them


def cosine_momentum(progress: float, *, start: float, end: float) -> float:
    """The momentum after a share of the training: from start to end along half a cosine.

    (Grill et al., "Bootstrap Your Own Latent", NeurIPS 2020.)

    Raises:
        ValueError: progress is not from 0 to 1.

    >>> [round(cosine_momentum(progress, start=0.99, end=1.0), 4) for progress in (0, 0.5, 1)]
    [0.99, 0.995, 1.0]
    """
    if not 0 <= progress <= 1:
        raise ValueError(f"progress: expected a number from 0 to 1, got {progress}")
    return end - (end - start) * (math.cos(math.pi * progress) + 1) / 2
