"""One batch out of all ranks' batches, with the gradient of one process that holds the whole.

Data-parallel training averages gradients over ranks. A value that every rank computes from gathered rows, or from
summed sums, then receives from each rank its own share of the gradient, and the average of those is the gradient of
the value itself.
"""

import atexit
import os
import sys
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor


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
    joined: Tensor = _Gather.apply(x)
    return joined


def total(value: Tensor) -> Tensor:
    """The sum of `value` over all ranks, with gradients summed over ranks as well; `value` itself on one process.

    >>> total(torch.tensor([1.0, 2.0]))
    tensor([1., 2.])
    """
    if not active():
        return value
    summed: Tensor = _Total.apply(value)
    return summed


class _Gather(torch.autograd.Function):
    """Rows of all ranks; backward, each rank's rows get the sum of what all ranks say of them.

    torch.distributed.nn.functional has the same, deprecated.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        rows = x.contiguous()
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        own = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(own)
        return own.chunk(dist.get_world_size())[dist.get_rank()]


class _Total(torch.autograd.Function):
    """The sum over ranks; backward, the sum of all ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        summed = value.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(summed)
        return summed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        summed = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(summed)
        return summed


def rank() -> int:
    """This process's rank; 0 without others."""
    return dist.get_rank() if active() else 0


def leave(status: int) -> NoReturn:
    """End this process with an exit status: exit functions run and output is flushed, but Python is not taken down.

    DistributedDataParallel keeps gloo's threads alive after their group is destroyed, and a thread that asks for the
    interpreter while it is taken down aborts the process: a run that was done and saved would end as a failure.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # it may have been closed by whoever started us
            stream.flush()
    os._exit(status)
