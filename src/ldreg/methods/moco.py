"""MoCo: version 2 with a queue of past keys, version 3 within the batch."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ldreg.distributed import gather
from ldreg.methods.base import (
    Method,
    MethodEntry,
    MomentumBranch,
    Outcome,
    check,
    check_positive,
    check_shares,
    check_widths,
    mlp,
)
from ldreg.methods.losses import info_nce

Version = Literal["v2", "v3"]


@dataclass(frozen=True)
class MoCoConfig:
    """Options of MoCo; the defaults are the original values of the chosen version.

    Args:
        version: "v2": queue, one direction (Chen et al., 2020); "v3": batch, symmetric, predictor (ICCV 2021).
        temperature: Divisor of the cosine similarities; v2: 0.2, v3: 1.0.
        momentum: Share of the momentum branch that a step keeps, at the start; v2: 0.999, v3: 0.99.
        momentum_end: The same at the end, along half a cosine; v2: 0.999, or `momentum` where given; v3: 1.0.
        projector: Widths of the projector's layers; v2: 2048, 128, v3: 4096, 256.
        predictor: Widths of the predictor's layers, v3 only: 4096, 256.
        queue_size: Number of past keys that are candidates, v2 only: 65536.
    """

    version: Version = "v2"
    temperature: float | None = None
    momentum: float | None = None
    momentum_end: float | None = None
    projector: tuple[int, ...] | None = None
    predictor: tuple[int, ...] | None = None
    queue_size: int | None = None

    def __post_init__(self) -> None:
        versions = get_args(Version)
        check(self.version in versions, "version", f"one of {', '.join(versions)}", repr(self.version))
        unused = "predictor" if self.version == "v2" else "queue_size"
        given = getattr(self, unused)
        check(given is None, unused, f"None with version {self.version!r}", given)
        whole = self.settings()
        check_positive(temperature=whole.temperature)
        check_shares(momentum=whole.momentum, momentum_end=whole.momentum_end)
        check_widths(projector=whole.projector)
        if self.version == "v2":
            check_positive(queue_size=whole.queue_size)
        else:
            check_widths(projector=whole.projector, predictor=whole.predictor)

    def settings(self) -> "MoCoSettings":
        """All values, with the version's defaults filled in."""
        given = {field.name: getattr(self, field.name) for field in fields(MoCoSettings)}
        if self.version == "v2" and self.momentum_end is None:
            given["momentum_end"] = self.momentum
        return replace(DEFAULTS[self.version], **{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True)
class MoCoSettings:
    """A complete `MoCoConfig`; options that the version does not have are empty."""

    temperature: float
    momentum: float
    momentum_end: float
    projector: tuple[int, ...]
    predictor: tuple[int, ...] = ()
    queue_size: int = 0


DEFAULTS: dict[Version, MoCoSettings] = {
    "v2": MoCoSettings(0.2, 0.999, 0.999, (2048, 128), queue_size=65536),
    "v3": MoCoSettings(1.0, 0.99, 1.0, (4096, 256), predictor=(4096, 256)),
}


class MoCoV2(Method):
    """Tell an image's key from a queue of past keys (Chen et al., "Improved Baselines with Momentum Contrast", 2020).

    The encoder makes queries of the first view, the momentum branch makes keys of the second; representations (N, D)
    are those of the first view. Keys of all ranks replace the oldest of the queue, in the same order on every rank;
    the queue is part of the state dict. The original shuffles keys between devices, because each device normalizes by
    its own batch. Here batch statistics are of all ranks, so a shuffle would change nothing.

    >>> encoder = nn.Flatten()
    >>> encoder.dimension = 16
    >>> method = MoCoV2(encoder, MoCoConfig(projector=(8, 4), queue_size=10))
    >>> outcome = method((torch.randn(6, 1, 4, 4), torch.randn(6, 1, 4, 4)))
    >>> outcome.representations.shape, method.pointer
    (torch.Size([6, 16]), tensor(6))
    """

    candidates = 1
    target: MomentumBranch
    queue: Tensor
    pointer: Tensor

    def __init__(self, encoder: nn.Module, config: MoCoConfig) -> None:
        super().__init__(encoder)
        self.settings = config.settings()
        self.projector = mlp(self.dimension, self.settings.projector, batch_norm=False)
        self.target = MomentumBranch(
            encoder, self.projector, start=self.settings.momentum, end=self.settings.momentum_end
        )
        queue = torch.randn(self.settings.queue_size, self.settings.projector[-1])
        self.register_buffer("queue", F.normalize(queue, dim=1))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))

    def forward(self, views: Sequence[Tensor], generator: torch.Generator | None = None) -> Outcome:
        """The outcome of two views, whose keys then enter the queue; the generator is not used."""
        self._check(views)
        for_loss, representations = self.fork(self.encoder(views[0]))
        queries = self.projector(for_loss)
        _, keys = self.target(views[1])
        # A copy, because the backward pass needs the queue as it was before these keys enter it.
        loss = info_nce(queries, keys, temperature=self.settings.temperature, queue=self.queue.clone())
        if self.training:
            self._enqueue(keys)
        return Outcome(loss, {"info_nce": loss.detach()}, representations)

    @torch.no_grad()
    def _enqueue(self, keys: Tensor) -> None:
        """Replace the oldest keys by those of all ranks; the queue size need not be a multiple of the batch size."""
        new = gather(F.normalize(keys.to(self.queue.dtype), dim=1))[-len(self.queue) :]
        place = (self.pointer + torch.arange(len(new), device=new.device)) % len(self.queue)
        self.queue.index_copy_(0, place, new)
        self.pointer.add_(len(new)).remainder_(len(self.queue))


class MoCoV3(Method):
    """Tell an image's key from the batch's others, in both directions (Chen, Xie & He, ICCV 2021).

    The loss is 2τ times the cross-entropy, summed over both directions. Heads are those of the original for ResNet:
    batch norm in every layer but the predictor's last, without scale and shift in the projector's last. Batch
    statistics are of both views together; the original takes each view's own.

    >>> encoder = nn.Flatten()
    >>> encoder.dimension = 16
    >>> method = MoCoV3(encoder, MoCoConfig(version="v3", projector=(8, 4), predictor=(8, 4)))
    >>> method((torch.randn(6, 1, 4, 4), torch.randn(6, 1, 4, 4))).representations.shape
    torch.Size([12, 16])
    """

    predictor: nn.Module
    target: MomentumBranch

    def __init__(self, encoder: nn.Module, config: MoCoConfig) -> None:
        super().__init__(encoder)
        self.settings = config.settings()
        self.projector = mlp(self.dimension, self.settings.projector, last="plain")
        self.predictor = mlp(self.settings.projector[-1], self.settings.predictor)
        self.target = MomentumBranch(
            encoder, self.projector, start=self.settings.momentum, end=self.settings.momentum_end
        )

    def loss(self, *embeddings: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The contrastive loss of queries and keys."""
        query_a, query_b, key_a, key_b = embeddings
        temperature = self.settings.temperature
        both = info_nce(query_a, key_b, temperature=temperature) + info_nce(query_b, key_a, temperature=temperature)
        loss = 2 * temperature * both
        return loss, {"info_nce": loss.detach()}


VERSIONS: dict[Version, type[MoCoV2] | type[MoCoV3]] = {"v2": MoCoV2, "v3": MoCoV3}
METHODS = {"moco": MethodEntry(MoCoConfig, lambda encoder, config: VERSIONS[config.version](encoder, config))}
