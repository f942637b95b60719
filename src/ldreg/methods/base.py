"""What methods share: their interface, projectors, the momentum branch, and the checks of their options."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

# The encoder's outputs in two branches: for the loss and for a regularizer.
Fork = Callable[[Tensor], tuple[Tensor, Tensor]]
Last = Literal["linear", "scale", "plain"]


@dataclass(frozen=True)
class Outcome:
    """The loss of one step, and the representations to regularize.

    Args:
        loss: The scalar to minimize, over the batch of all ranks.
        terms: Detached scalars to log, by name.
        representations: Encoder outputs (V·N, D) with gradient, view after view: the second branch of the fork.
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

    A subclass of two views assigns `projector`, where it has them a `predictor` and a momentum branch, `target`, and
    defines `loss`. Others define `forward`.

    Args:
        encoder: Module with an integer attribute `dimension`, its D.

    Raises:
        ValueError: the encoder has no such attribute; in the call, the number of views is not `view_count`.
    """

    view_count: ClassVar[int] = 2
    candidates: ClassVar[int] = 2  # rows per image among which neighbors of a representation are searched
    encoder: nn.Module
    projector: nn.Module
    predictor: nn.Module | None
    target: "MomentumBranch | None"
    fork: Fork

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        columns = getattr(encoder, "dimension", None)
        check(isinstance(columns, int) and columns > 0, "encoder", "an integer attribute `dimension` above 0", columns)
        self.encoder = encoder
        self.dimension: int = encoder.dimension  # type: ignore[assignment]  # checked above
        self.predictor = self.target = None
        self.fork = unforked  # or a Balance, which gives a regularizer its share of the gradient

    def forward(self, views: Sequence[Tensor], generator: torch.Generator | None = None) -> Outcome:
        """The outcome of one batch; both views pass the encoder in one call, which takes their batch statistics.

        With `candidates` = 4 the representations of the momentum branch are candidates too.

        Args:
            views: `view_count` tensors (N, C, S, S); row i of each is a view of the same image.
            generator: Source of the method's own random numbers, on the views' device; None: torch's.
        """
        self._check(views)
        images = torch.cat(tuple(views))
        for_loss, representations = self.fork(self.encoder(images))
        embeddings = self.projector(for_loss)
        if self.target is None:
            return Outcome(*self.loss(*embeddings.chunk(2)), representations)
        predictions = embeddings if self.predictor is None else self.predictor(embeddings)
        momentum_representations, targets = self.target(images)
        loss, terms = self.loss(*predictions.chunk(2), *targets.chunk(2))
        if self.candidates == self.view_count:
            return Outcome(loss, terms, representations)
        reference = torch.cat((representations, momentum_representations))
        own = torch.arange(len(representations), device=representations.device)
        return Outcome(loss, terms, representations, reference, own)

    def loss(self, *embeddings: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss, and its detached terms, of both views' embeddings (N, E) and those of the momentum branch."""
        raise NotImplementedError

    def after_step(self, progress: float) -> None:
        """Update the momentum branch after an optimizer step; progress is the share of training done before it."""
        if self.target is not None:
            self.target.update(self.encoder, self.projector, progress)

    def compiled_parts(self) -> list[nn.Module]:
        """The modules that `torch.compile` should compile."""
        return [self.encoder] if self.target is None else [self.encoder, self.target.encoder]

    def _check(self, views: Sequence[Tensor]) -> None:
        shapes = [tuple(view.shape) for view in views]
        valid = len(views) == self.view_count and len(set(shapes)) == 1
        check(valid, "views", f"{self.view_count} of one shape", f"shapes {shapes}")


def unforked(x: Tensor) -> tuple[Tensor, Tensor]:
    """The same tensor for both branches."""
    return x, x


class MethodEntry(NamedTuple):
    """A method's config class, and the function that builds the method from an encoder and a config."""

    config: type[Any]
    build: Callable[[nn.Module, Any], Method]


def mlp(dimension: int, widths: Sequence[int], *, batch_norm: bool = True, last: Last = "linear") -> nn.Sequential:
    """Linear layers, all but the last followed by batch norm and ReLU: (N, dimension) to (N, E).

    With batch norm no linear layer has a bias, not even the last, as in the original BYOL, VICReg and Barlow Twins.
    The last layer is followed by nothing ("linear"), by batch norm with a scale but no shift ("scale", as in SimCLR),
    or by batch norm with neither ("plain", as in MoCo v3).

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
    normalizes by those of its own batch in training. The share of the branch that a step leaves goes from `start` to
    `end` along half a cosine (Grill et al., 2020).
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
        momentum = self.end - (self.end - self.start) * (math.cos(math.pi * progress) + 1) / 2
        online: list[Tensor] = [*encoder.parameters(), *projector.parameters()]
        torch._foreach_lerp_(list(self.parameters()), online, 1 - momentum)  # one kernel for many tensors


def check(valid: bool, name: str, expected: str, got: object) -> None:
    """Raise ValueError unless an option is valid.

    >>> check(False, "temperature", "a number above 0", -1)
    Traceback (most recent call last):
    ValueError: temperature: expected a number above 0, got -1
    """
    if not valid:
        raise ValueError(f"{name}: expected {expected}, got {got}")


def check_positive(**options: float) -> None:
    """Raise ValueError unless all options are finite and above 0."""
    for name, value in options.items():
        check(0 < value < math.inf, name, "a finite number above 0", value)


def check_weights(**options: float) -> None:
    """Raise ValueError unless all options are finite and at least 0."""
    for name, value in options.items():
        check(0 <= value < math.inf, name, "a finite number of at least 0", value)


def check_shares(**options: float) -> None:
    """Raise ValueError unless all options lie from 0 to 1."""
    for name, value in options.items():
        check(0 <= value <= 1, name, "a number from 0 to 1", value)


def check_widths(**heads: Sequence[int]) -> None:
    """Raise ValueError unless each head has one or more widths of at least 1, and all end in the same width."""
    for name, widths in heads.items():
        check(len(widths) > 0 and min(widths) > 0, name, "one or more widths of at least 1", tuple(widths))
        first, *_ = heads.values()
        check(widths[-1] == first[-1], name, f"the projector's last width, {first[-1]}, last", widths)
