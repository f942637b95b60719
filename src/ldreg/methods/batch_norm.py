"""Batch norm over the batch of all ranks, on any device."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ldreg.distributed import active, total


class GlobalBatchNorm(_BatchNorm):
    """`nn.BatchNorm1d`, `2d` and `3d` with the statistics of all ranks' batches: (N, C, ...) to the same shape.

    `nn.SyncBatchNorm` needs a GPU; this one runs wherever `torch.distributed` does. With one process, and in
    evaluation, it equals the plain layer. Parameters, buffers and their names are always those of the plain layer.

    >>> GlobalBatchNorm(3)(torch.randn(4, 3, 2, 2)).shape
    torch.Size([4, 3, 2, 2])
    """

    def __init__(self, num_features: int, **options: Any) -> None:
        super().__init__(num_features, **options)
        # Named as in timm's BatchNormAct2d, which applies them after the norm.
        self.drop: nn.Module = nn.Identity()
        self.act: nn.Module = nn.Identity()

    def forward(self, input: Tensor) -> Tensor:
        """The normalized input, scaled and shifted."""
        batch = self.training or self.running_mean is None
        normalized = self._globally(input) if batch and active() else super().forward(input)
        result: Tensor = self.act(self.drop(normalized))
        return result

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"input: expected at least 2 dimensions, got shape {tuple(input.shape)}")

    def _globally(self, input: Tensor) -> Tensor:
        x = input.to(torch.promote_types(input.dtype, torch.float32))
        others = [axis for axis in range(x.ndim) if axis != 1]
        column = [1, -1] + [1] * (x.ndim - 2)
        sums = total(torch.cat((x.sum(others), x.new_full((1,), x.numel() // x.shape[1]))))
        mean, count = sums[:-1] / sums[-1], sums[-1].detach()
        centered = x - mean.view(column)
        variance = total(centered.square().sum(others)) / count
        if self.training and self.track_running_stats:
            self._track(mean.detach(), variance.detach() * count / (count - 1))
        normalized = centered * (variance + self.eps).rsqrt().view(column)
        if self.weight is not None:
            normalized = normalized * self.weight.view(column)
        if self.bias is not None:
            normalized = normalized + self.bias.view(column)
        return normalized.to(input.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        """Update the running statistics as `nn.BatchNorm2d` does, with the unbiased variance."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        weight = 1 / self.num_batches_tracked if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean), weight)
        self.running_var.lerp_(variance.to(self.running_var), weight)


def synchronize_batch_norm(module: nn.Module, *, device: torch.device | str = "cpu") -> nn.Module:
    """Convert every batch norm in the module to statistics over all ranks; parameters and names stay.

    Args:
        module: Changed in place, unless it is a batch norm itself.
        device: Where it will run. On CUDA batch norms become `nn.SyncBatchNorm` (by timm's converter, which keeps the
            activations of timm's own batch norms), elsewhere `GlobalBatchNorm`.

    >>> synchronize_batch_norm(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    Sequential(
      (0): Linear(in_features=2, out_features=3, bias=True)
      (1): GlobalBatchNorm(...)
    )
    """
    if torch.device(device).type == "cuda":
        from timm.layers.norm_act import convert_sync_batchnorm

        synchronized: nn.Module = convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]  # timm's
        return synchronized
    for name, child in module.named_children():
        setattr(module, name, synchronize_batch_norm(child))
    return _global(module) if isinstance(module, _BatchNorm) else module


def _global(norm: _BatchNorm) -> nn.Module:
    from timm.layers.norm_act import BatchNormAct2d

    if isinstance(norm, GlobalBatchNorm):
        return norm
    if type(norm) not in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, BatchNormAct2d):
        raise ValueError(f"module: expected batch norms of torch or timm's BatchNormAct2d, got {type(norm).__name__}")
    made = GlobalBatchNorm(norm.num_features)
    vars(made).update({name: value for name, value in vars(norm).items() if name != "_modules"})
    if isinstance(norm, BatchNormAct2d):
        made.drop, made.act = norm.drop, norm.act
    return made
