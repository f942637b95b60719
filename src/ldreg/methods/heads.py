"""Projectors and predictors: small multilayer perceptrons."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from torch import nn

Last = Literal["linear", "scale", "plain"]


def mlp(dimension: int, widths: Sequence[int], *, batch_norm: bool = True, last: Last = "linear") -> nn.Sequential:
    """Linear layers to each of the widths, all but the last followed by batch norm and ReLU: (N, dimension) to (N, E).

    A linear layer has a bias where `batch_norm` is off; where it is on, none has, not even the last: so have it the
    original BYOL, VICReg and Barlow Twins.

    Args:
        dimension: Columns of the input.
        widths: Columns after each linear layer; the last is E.
        batch_norm: Whether batch norm follows the linear layers but the last.
        last: What follows the last: nothing ("linear"), batch norm with a scale and no shift ("scale", as SimCLR's)
            or batch norm with neither ("plain", as MoCo v3's).

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
    hidden = layers[: -2 if batch_norm else -1]
    return nn.Sequential(*hidden, *_last_norm(widths[-1], last))


def _last_norm(width: int, last: Last) -> list[nn.Module]:
    if last == "linear":
        return []
    norm = nn.BatchNorm1d(width, affine=last == "scale")
    if last == "scale":
        norm.bias.requires_grad_(False)  # stays 0: a shift common to all embeddings would only lessen their contrast
    return [norm]
