"""One batch out of all ranks' batches, with the gradient of one process that holds the whole.

Data-parallel training averages gradients over ranks. A value that every rank computes from gathered rows, or from
summed sums, then receives from each rank its own share of the gradient, and the average of those is the gradient of
the value itself.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.nn import functional as dist_nn


def active() -> bool:
    """Whether there is more than one process to work with."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def gather(x: Tensor) -> Tensor:
    """All ranks' rows of x in rank order, (world·N, D); gradients flow back to each rank's own rows, summed.

    Every rank must hold the same number of rows. Without other processes, x itself.

    Raises:
        ValueError: where ranks hold different numbers of rows.

    >>> gather(torch.ones(2, 3)).shape
    torch.Size([2, 3])
    """
    if not active():
        return x
    rows = torch.tensor([len(x), -len(x)], device=x.device)
    dist.all_reduce(rows, op=dist.ReduceOp.MAX)
    most, fewest = rows.tolist()
    if most != -fewest:
        raise ValueError(f"gather: expected as many rows on every rank, got {-fewest} to {most}")
    if x.requires_grad and torch.is_grad_enabled():
        return torch.cat(dist_nn.all_gather(x.contiguous()))
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.detach().contiguous())
    return torch.cat(parts)


def total(value: Tensor) -> Tensor:
    """The sum of `value` over all ranks, with gradients summed over ranks as well; `value` itself on one process.

    >>> total(torch.tensor([1.0, 2.0]))
    tensor([1., 2.])
    """
    return dist_nn.all_reduce(value) if active() else value


def rank() -> int:
    """This process's rank; 0 without others."""
    return dist.get_rank() if active() else 0
