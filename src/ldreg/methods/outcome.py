"""What every method takes and returns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Outcome:
    """One step's loss and what a regularizer may see of it.

    Args:
        loss: The scalar to minimize, of the batch of all ranks.
        terms: Detached scalars to log, by name.
        representations: Encoder outputs (V·N, D) with gradient, to be regularized: one view's rows after the other's.
        reference: (M, D) where neighbors of the representations are sought; None: among themselves.
        self_index: (V·N,) the row of the reference that is representation i; None without a reference.
    """

    loss: Tensor
    terms: dict[str, Tensor]
    representations: Tensor
    reference: Tensor | None = None
    self_index: Tensor | None = None


class Method(nn.Module):
    """A self-supervised method around an encoder that maps images (B, C, S, S) to representations (B, D).

    Args:
        encoder: Module with an integer attribute `dimension`, its D.

    Raises:
        ValueError: the encoder has no such attribute; in the call, another number of views than `view_count`.
    """

    view_count: ClassVar[int] = 2
    candidates: ClassVar[int] = 2  # rows for each image among which neighbors of a representation are sought
    encoder: nn.Module

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.dimension = dimension(encoder)

    def forward(self, views: Sequence[Tensor], generator: torch.Generator | None = None) -> Outcome:
        """The outcome of one batch.

        Args:
            views: `view_count` tensors (N, C, S, S), row i of each made from the same image.
            generator: Where a method's own randomness is drawn from, of the views' device; None: torch's.
        """
        raise NotImplementedError

    def after_step(self, progress: float) -> None:
        """What follows an optimizer step; progress is the share of the training done before it: 0 at the first."""

    def compiled_parts(self) -> list[nn.Module]:
        """The modules in which a step spends its time, each called as a whole: what `torch.compile` is for."""
        return [self.encoder]

    def _check(self, views: Sequence[Tensor]) -> None:
        if len(views) != self.view_count or len({view.shape for view in views}) != 1:
            shapes = [tuple(view.shape) for view in views]
            raise ValueError(f"views: expected {self.view_count} of one shape, got shapes {shapes}")


def dimension(encoder: nn.Module) -> int:
    """The number of columns of the encoder's representations.

    Raises:
        ValueError: the encoder does not say.

    >>> encoder = nn.Flatten()
    >>> encoder.dimension = 64
    >>> dimension(encoder)
    64
    """
    columns = getattr(encoder, "dimension", None)
    if not isinstance(columns, int) or columns < 1:
        raise ValueError(f"encoder: expected an integer attribute `dimension` from 1 on, got {columns!r}")
    return columns
