"""Projectors and predictors, and the momentum branch of BYOL and MoCo."""

import copy
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

Last = Literal["linear", "scale", "plain"]


def mlp(dimension: int, widths: Sequence[int], *, batch_norm: bool = True, last: Last = "linear") -> nn.Sequential:
    """Linear layers, all but the last followed by batch norm and ReLU: (N, dimension) to (N, E).

    With batch norm no linear layer has a bias, not even the last, as in the original BYOL, VICReg and Barlow Twins.

    Args:
        dimension: Columns of the input.
        widths: Columns after each linear layer; the last is E.
        batch_norm: Whether batch norm follows every linear layer but the last.
        last: What follows the last layer: nothing ("linear"), batch norm with a scale but no shift ("scale", as in
            SimCLR), or batch norm with neither ("plain", as in MoCo v3).

    >>> mlp(32, (64, 16))
    Sequential(
      (0): Linear(in_features=32, out_features=64, bias=False)
      (1): BatchNorm1d(64, ...)
      (2): ReLU(inplace=True)
      (3): Linear(in_features=64, out_features=16, bias=False)
    )
    """
    layers: list[nn.Module] = []
    for columns, width in pairwise((dimension, *widths)):
        layers.append(nn.Linear(columns, width, bias=not batch_norm))
        layers += [nn.BatchNorm1d(width)] if batch_norm else []
        layers.append(nn.ReLU(inplace=True))
    del layers[-2 if batch_norm else -1 :]
    if last != "linear":
        norm = nn.BatchNorm1d(widths[-1], affine=last == "scale")
        if last == "scale":
            norm.bias.requires_grad_(False)  # stays 0: a shift common to all embeddings only reduces their contrast
        layers.append(norm)
    return nn.Sequential(*layers)


class MomentumBranch(nn.Module):
    """A copy of encoder and projector without gradient that follows them by an exponential moving average.

    Only parameters are averaged. Batch statistics are the branch's own: as in the original BYOL and MoCo, it
    normalizes by those of its own batch in training.

    Args:
        encoder: Copied; its copy is `encoder`.
        projector: Copied; its copy is `projector`.
        start: Share of the branch that a step keeps, at the start of training.
        end: The same at the end of training.

    >>> online = nn.Linear(1, 1), nn.Linear(1, 1)
    >>> branch = MomentumBranch(*online, start=0.99, end=1.0)
    >>> representations, embeddings = branch(torch.ones(3, 1))
    >>> embeddings.shape, embeddings.requires_grad
    (torch.Size([3, 1]), False)
    """

    def __init__(self, encoder: nn.Module, projector: nn.Module, *, start: float, end: float) -> None:
        super().__init__()
        self.start, self.end = start, end
        self.encoder = copy.deepcopy(encoder).requires_grad_(False)
        self.projector = copy.deepcopy(projector).requires_grad_(False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Representations (N, D) and embeddings (N, E) of images (N, C, S, S)."""
        representations = self.encoder(images)
        return representations, self.projector(representations)

    @torch.no_grad()
    def update(self, encoder: nn.Module, projector: nn.Module, progress: float) -> None:
        """Move toward encoder and projector, with the momentum of this share of the training."""
        momentum = cosine_momentum(progress, start=self.start, end=self.end)
        online: list[Tensor] = [*encoder.parameters(), *projector.parameters()]
        torch._foreach_lerp_(list(self.parameters()), online, 1 - momentum)  # one kernel for many tensors


def cosine_momentum(progress: float, *, start: float, end: float) -> float:
    """The momentum at a share of the training, from start to end along half a cosine (Grill et al., 2020).

    Raises:
        ValueError: progress is not from 0 to 1.

    >>> [round(cosine_momentum(progress, start=0.99, end=1.0), 4) for progress in (0, 0.5, 1)]
    [0.99, 0.995, 1.0]
    """
    if not 0 <= progress <= 1:
        raise ValueError(f"progress: expected a number from 0 to 1, got {progress}")
    return end - (end - start) * (math.cos(math.pi * progress) + 1) / 2
