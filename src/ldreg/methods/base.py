"""The interface of every method, its entry by name, and the checks that configs share."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ldreg.methods.heads import MomentumBranch


@dataclass(frozen=True)
class Outcome:
    """The loss of one step, and the representations to regularize.

    Args:
        loss: The scalar to minimize, over the batch of all ranks.
        terms: Detached scalars to log, by name.
        representations: Encoder outputs (V·N, D) with gradient, view after view.
        reference: Candidates (M, D) for the neighbors of the representations; None: the representations themselves.
        self_index: (V·N,) the row of the reference that equals representation i; None without a reference.
    """

    loss: Tensor
    terms: dict[str, Tensor]
    representations: Tensor
    reference: Tensor | None = None
    self_index: Tensor | None = None


class Method(nn.Module):
    """A self-supervised method around an encoder that maps images (B, C, S, S) to representations (B, D).

    A subclass with a momentum branch assigns it to `target`, and its projector to `projector`.

    Args:
        encoder: Module with an integer attribute `dimension`, its D.

    Raises:
        ValueError: the encoder has no such attribute; in the call, the number of views is not `view_count`.
    """

    view_count: ClassVar[int] = 2
    candidates: ClassVar[int] = 2  # rows per image among which neighbors of a representation are searched
    encoder: nn.Module
    projector: nn.Module
    target: MomentumBranch | None

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        columns = getattr(encoder, "dimension", None)
        if not isinstance(columns, int) or columns < 1:
            raise ValueError(f"encoder: expected an integer attribute `dimension` of at least 1, got {columns!r}")
        self.encoder = encoder
        self.dimension = columns
        self.target = None

    def forward(self, views: Sequence[Tensor], generator: torch.Generator | None = None) -> Outcome:
        """The outcome of one batch.

        Args:
            views: `view_count` tensors (N, C, S, S); row i of each is a view of the same image.
            generator: Source of the method's own random numbers, on the views' device; None: torch's.
        """
        raise NotImplementedError

    def after_step(self, progress: float) -> None:
        """Update the momentum branch after an optimizer step; progress is the share of training done before it."""
        if self.target is not None:
            self.target.update(self.encoder, self.projector, progress)

    def compiled_parts(self) -> list[nn.Module]:
        """The modules that `torch.compile` should compile."""
        return [self.encoder] if self.target is None else [self.encoder, self.target.encoder]

    def _check(self, views: Sequence[Tensor]) -> None:
        if len(views) != self.view_count or len({view.shape for view in views}) != 1:
            shapes = [tuple(view.shape) for view in views]
            raise ValueError(f"views: expected {self.view_count} of one shape, got shapes {shapes}")


class MethodEntry(NamedTuple):
    """A method's config class, and the function that builds the method from an encoder and a config."""

    config: type[Any]
    build: Callable[[nn.Module, Any], Method]


def check_positive(name: str, value: float) -> None:
    """Raise ValueError unless the value is finite and above 0.

    >>> check_positive("temperature", 0.1)
    """
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name}: expected a finite number above 0, got {value}")


def check_weight(name: str, value: float) -> None:
    """Raise ValueError unless the value is finite and at least 0.

    >>> check_weight("covariance", 0.0)
    """
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name}: expected a finite number of at least 0, got {value}")


def check_share(name: str, value: float) -> None:
    """Raise ValueError unless the value lies from 0 to 1.

    >>> check_share("momentum", 0.99)
    """
    if not 0 <= value <= 1:
        raise ValueError(f"{name}: expected a number from 0 to 1, got {value}")


def check_widths(projector: Sequence[int], predictor: Sequence[int] | None = None) -> None:
    """Raise ValueError unless all widths are positive and the predictor ends in the projector's last width.

    >>> check_widths((2048, 128))
    """
    for name, widths in (("projector", projector), ("predictor", predictor)):
        if widths is not None and (not widths or any(width < 1 for width in widths)):
            raise ValueError(f"{name}: expected one or more widths of at least 1, got {tuple(widths)}")
    if predictor is not None and predictor[-1] != projector[-1]:
        raise ValueError(f"predictor: expected the projector's last width, {projector[-1]}, last, got {predictor}")
