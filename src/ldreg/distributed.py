"""One batch out of all ranks' batches, with the gradient of one process that holds the whole; work that ranks share.

Data-parallel training averages gradients over ranks. A value that every rank computes from gathered rows, or from
summed sums, then receives from each rank its own share of the gradient, and the average of those is the gradient of
the value itself.

Work that ranks share goes in steps that all of them take: where one fails at a step, all raise there.
"""

import atexit
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")

_PATIENCE = timedelta(days=1)  # that a rank waits for the others, which may be slower by hours


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


def world() -> int:
    """How many processes there are to work with; 1 without others."""
    return dist.get_world_size() if active() else 1


def local_rank() -> int:
    """This process's number among those of its machine, as torchrun says it; 0 where nobody says."""
    return int(os.environ.get("LOCAL_RANK", 0))


def launched() -> bool:
    """Whether torchrun, or whoever speaks as it does, started this process as one of several."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", 1)) > 1


@contextmanager
def joined() -> Iterator[None]:
    """The group of the processes that were launched together, for results that lie on the host (gloo).

    Raises:
        ValueError: the environment does not say where to find the others.
    """
    dist.init_process_group("gloo", timeout=_PATIENCE)
    try:
        yield
    finally:
        dist.destroy_process_group()


def agreed(work: Callable[[], T]) -> T:
    """What `work` returns on this rank, once it has returned on all.

    Raises:
        Exception: what `work` raised here.
        ValueError: it was another rank that failed; with that rank and what was wrong.

    >>> agreed(lambda: 3)
    3
    """
    if not active():
        return work()
    failure: Exception | None = None
    try:
        result = work()
    except Exception as error:
        failure = error
    failures: list[str | None] = [None] * world()
    dist.all_gather_object(failures, None if failure is None else str(failure) or type(failure).__name__)
    if failure is not None:
        raise failure
    for number, message in enumerate(failures):
        if message is not None:
            raise ValueError(f"process {number}: {message}")
    return result


def from_first(work: Callable[[], T]) -> T:
    """What `work` returns on rank 0, the only one where it is called, for all ranks.

    Raises:
        Exception: on rank 0, what `work` raised.
        ValueError: on the others, where it did.

    >>> from_first(lambda: 3)
    3
    """
    carried: list[Any] = agreed(lambda: [work() if rank() == 0 else None])
    if active():
        dist.broadcast_object_list(carried, src=0)
    result: T = carried[0]
    return result


def gather_parts(x: Tensor) -> Tensor:
    """On rank 0 all ranks' rows of x (n, ...), which lies on the CPU, in rank order; elsewhere x as it is.

    Unlike for `gather`, ranks may hold different numbers of rows, and no gradient flows.

    >>> gather_parts(torch.ones(2, 3)).shape
    torch.Size([2, 3])
    """
    if not active():
        return x
    counts: list[int] = [0] * world()
    dist.all_gather_object(counts, len(x))
    if rank() > 0:
        if len(x) > 0:
            dist.send(x.contiguous(), dst=0)
        return x
    whole = x.new_empty((sum(counts), *x.shape[1:]))
    first, *others = whole.split(counts)
    first.copy_(x)
    for source, part in enumerate(others, start=1):
        if len(part) > 0:
            dist.recv(part, src=source)
    return whole


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
