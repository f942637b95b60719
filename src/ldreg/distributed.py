"""The batch of all ranks, with the gradient of one process that holds it all, and work shared by ranks.

Data-parallel training averages gradients over ranks. For a value that every rank computes from gathered rows or summed
sums, each rank contributes its share of the gradient, and the average is the gradient of the value itself.

Ranks share work in common steps. If one rank fails at a step, all raise there. If one is gone, the others raise
`LostProcessError` at the next step.
"""

import atexit
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

T = TypeVar("T")

_PATIENCE = timedelta(days=1)  # how long a rank waits for the work of others, which may be hours slower
_MEETING = timedelta(seconds=60)  # how long it waits for others to start


class LostProcessError(ConnectionError):
    """Another process of the group is gone."""


def active() -> bool:
    """Whether there is more than one process."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    """The rank of this process; 0 in a single process."""
    return dist.get_rank() if active() else 0


def world() -> int:
    """The number of processes."""
    return dist.get_world_size() if active() else 1


_DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)


def gather(x: Tensor) -> Tensor:
    """All ranks' rows of x in rank order, (world·N, D); gradients flow back to each rank's own rows, summed.

    Every rank must hold the same number of rows, of one dtype. Without other processes, x itself.

    Raises:
        ValueError: ranks hold different numbers of rows, or different dtypes; on every rank.

    >>> gather(torch.ones(2, 3)).shape
    torch.Size([2, 3])
    """
    if not active():
        return x
    dtype = _DTYPES.index(x.dtype)
    found = torch.tensor([len(x), -len(x), dtype, -dtype], device=x.device)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    most, fewest, last, first = found.tolist()
    if last != -first:
        raise ValueError(f"gather: expected one dtype on every rank, got {_DTYPES[-first]} and {_DTYPES[last]}")
    if most != -fewest:
        raise ValueError(f"gather: expected as many rows on every rank, got {-fewest} to {most}")
    joined: Tensor = _Gather.apply(x)
    return joined


def gather_rows(rows: Tensor, group: Any = None) -> list[Tensor]:
    """The rows (n, D) of every process, in order of rank; a process without rows may pass any empty tensor.

    Unlike in `gather`, processes may hold different numbers of rows, and no gradient flows.
    torchmetrics' own function needs the same rank and dtype on every process, which a process without a batch lacks.
    """
    from torchmetrics.utilities.distributed import gather_all_tensors  # Lightning brings it

    shapes: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(shapes, (rows.dtype, tuple(rows.shape)) if rows.numel() else None, group=group)
    seen = [each for each in shapes if each is not None]
    if not seen:
        return [rows for _ in shapes]
    widths = {shape[1:] for _, shape in seen}
    if len(widths) > 1:
        raise ValueError(f"representations: expected rows of one length in all processes, got {sorted(widths)}")
    dtype = reduce(torch.promote_types, (dtype for dtype, _ in seen))
    own = rows.to(dtype) if rows.numel() else rows.new_empty((0, *widths.pop()), dtype=dtype)
    gathered: list[Tensor] = gather_all_tensors(own, group)
    return gathered


def total(value: Tensor) -> Tensor:
    """The sum of `value` over all ranks, with gradients summed over ranks too; `value` itself in a single process.

    >>> total(torch.tensor([1.0, 2.0]))
    tensor([1., 2.])
    """
    if not active():
        return value
    summed: Tensor = _Total.apply(value)
    return summed


def _summed(value: Tensor) -> Tensor:
    summed = value.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(summed)
    return summed


class _Gather(torch.autograd.Function):
    """Rows of all ranks; in the backward pass each rank's rows receive the sum of all ranks' gradients.

    The same in torch.distributed.nn.functional is deprecated.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        rows = x.contiguous()
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _summed(grad).chunk(dist.get_world_size())[dist.get_rank()]


class _Total(torch.autograd.Function):
    """The sum over ranks; its backward pass sums the gradients of all ranks."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return _summed(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _summed(grad)


def first_process() -> bool:
    """Whether this is the first process of a training run, the one that writes files and messages."""
    return all(int(os.environ.get(name, 0)) == 0 for name in ("LOCAL_RANK", "RANK", "SLURM_PROCID"))


def local_rank() -> int:
    """The rank of this process on its machine, from LOCAL_RANK as set by torchrun; 0 if not set."""
    return _number("LOCAL_RANK", default="0", low=0)


def launched() -> bool:
    """Whether torchrun, or a launcher with the same variables, started this process as one of several."""
    processes = _number("WORLD_SIZE", default="1", low=1)
    _number("RANK", default="0", low=0, high=processes - 1 if "WORLD_SIZE" in os.environ else None)
    return "RANK" in os.environ and processes > 1


def _number(name: str, *, default: str = "", low: int, high: int | None = None) -> int:
    """An integer from the environment, or the default if not set; ValueError if it is not in the range."""
    text = os.environ.get(name, default)
    if re.fullmatch(r"-?\d+", text) and low <= int(text) and (high is None or int(text) <= high):
        return int(text)
    span = f"of at least {low}" if high is None else f"from {low} to {high}"
    raise ValueError(f"{name}: expected an integer {span} in the environment, got {text!r}")


@contextmanager
def joined() -> Iterator[None]:
    """The process group of all that were launched together (gloo); ConnectionError if some do not come in a minute."""
    processes = _number("WORLD_SIZE", low=1)
    number = _number("RANK", low=0, high=processes - 1)
    store = _meet(number, processes)
    with _exchange():
        dist.init_process_group("gloo", store=store, rank=number, world_size=processes, timeout=_PATIENCE)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _meet(number: int, processes: int) -> "Store":
    """The key-value store of the group, once all processes have connected to it."""
    from torch.distributed.rendezvous import rendezvous  # not in every torch

    host, port = os.environ.get("MASTER_ADDR"), _number("MASTER_PORT", low=1, high=65535)
    if not host:
        raise ValueError("MASTER_ADDR: expected the address of process 0 in the environment, got nothing")
    limit = _MEETING.total_seconds()
    try:
        _reach(host, port, time.monotonic() + limit, serving=number == 0)
        store: Store = next(rendezvous("env://", number, processes, timeout=_MEETING))[0]
        store.set(f"here/{number}", "")
        last = time.monotonic() + limit
        for other in range(processes):
            while not store.check([f"here/{other}"]):
                if time.monotonic() > last:
                    raise TimeoutError(f"process {other} did not come")
                time.sleep(0.02)
    except (OSError, dist.DistError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).partition("\n")[0]
        message = f"expected {processes} processes at {host}:{port} within {limit:g} seconds: {reason}"
        raise ConnectionError(message) from error
    return store


def _reach(host: str, port: int, last: float, *, serving: bool) -> None:
    """Wait until the address resolves and, unless this process serves there, answers; OSError after too long.

    torch would wait too, but writes a long trace to stderr at every attempt.
    """
    while True:
        try:
            if serving:
                socket.getaddrinfo(host, port)
            else:
                socket.create_connection((host, port), timeout=max(1.0, last - time.monotonic())).close()
            return
        except OSError:  # a starting machine may not have a name yet
            if time.monotonic() > last:
                raise
        time.sleep(0.2)


@contextmanager
def _exchange() -> Iterator[None]:
    """Turn torch's errors in communication, which mean that a process is gone, into LostProcessError."""
    try:
        yield
    except RuntimeError as error:
        raise LostProcessError("lost another process: it has ended, or does not answer; see what it says") from error


def agreed(work: Callable[[], T]) -> T:
    """Return `work()` of this rank, after it has succeeded on all ranks.

    Raises:
        Exception: as raised by `work` on this rank.
        ValueError: `work` failed on another rank; names the rank and its error.
        LostProcessError: another rank is gone.

    >>> agreed(lambda: 3)
    3
    """
    if not active():
        return work()
    failure: Exception | None = None
    try:
        result = work()
    except Exception as error:  # raised below, once all ranks know
        failure = error
    failures: list[str | None] = [None] * world()
    with _exchange():
        dist.all_gather_object(failures, None if failure is None else str(failure) or type(failure).__name__)
    if failure is not None:
        raise failure
    for number, message in enumerate(failures):
        if message is not None:
            raise ValueError(f"process {number}: {message}")
    return result


def from_first(work: Callable[[], T]) -> T:
    """Call `work` on rank 0 only, and return its result on all ranks; errors are those of `agreed`.

    >>> from_first(lambda: 3)
    3
    """
    carried: list[Any] = agreed(lambda: [work() if rank() == 0 else None])
    if active():
        with _exchange():
            dist.broadcast_object_list(carried, src=0)
    result: T = carried[0]
    return result


def from_all(work: Callable[[], T]) -> list[T]:
    """What `work()` returns on each rank, on all ranks; errors are those of `agreed`.

    >>> from_all(lambda: 3)
    [3]
    """
    result = agreed(work)
    if not active():
        return [result]
    found: list[Any] = [None] * world()
    with _exchange():
        dist.all_gather_object(found, result)
    return found


def gather_parts(x: Tensor) -> Tensor:
    """On rank 0 the rows of x (n, ...) of all ranks, in rank order; on other ranks x itself. x must be on the CPU.

    Unlike in `gather`, ranks may hold different numbers of rows, and no gradient flows.

    >>> gather_parts(torch.ones(2, 3)).shape
    torch.Size([2, 3])
    """
    if not active():
        return x
    counts: list[int] = [0] * world()
    with _exchange():
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
    """Exit with a status after running exit functions and flushing output, but without Python's own shutdown.

    DistributedDataParallel keeps gloo's threads alive after their group is destroyed. A thread that needs the
    interpreter during shutdown aborts the process, so that a finished and saved run would end as a failure.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # the parent process may have closed it
            stream.flush()
    os._exit(status)
