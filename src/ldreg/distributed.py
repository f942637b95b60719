"""One batch out of all ranks' batches, with the gradient of one process that holds the whole; work that ranks share.

Data-parallel training averages gradients over ranks. A value that every rank computes from gathered rows, or from
summed sums, then receives from each rank its own share of the gradient, and the average of those is the gradient of
the value itself.

Work that ranks share goes in steps that all of them take: where one fails at a step, all raise there, and where one is
gone, the others raise `LostProcessError` at the next step.
"""

import atexit
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

T = TypeVar("T")

_PATIENCE = timedelta(days=1)  # that a rank waits for the work of the others, which may be slower by hours
_MEETING = timedelta(seconds=60)  # that it waits for them to be there at all


class LostProcessError(ConnectionError):
    """A process that shares the work is gone."""


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
    """This process's number among those of its machine, as torchrun says it; 0 where nobody says.

    Raises:
        ValueError: LOCAL_RANK is no number from 0 on.
    """
    return _number("LOCAL_RANK", default=0, low=0)


def launched() -> bool:
    """Whether torchrun, or whoever speaks as it does, started this process as one of several.

    Raises:
        ValueError: WORLD_SIZE is set but no number from 1 on, or RANK but no number below it.
    """
    processes = _number("WORLD_SIZE", default=1, low=1)
    _number("RANK", default=0, low=0, high=processes - 1 if "WORLD_SIZE" in os.environ else None)
    return "RANK" in os.environ and processes > 1


def _number(name: str, *, default: int | None = None, low: int, high: int | None = None) -> int:
    """An environment variable, or the default where it is not set; ValueError where it is no integer in the range."""
    said = os.environ.get(name)
    if said is None and default is not None:
        return default
    said = "" if said is None else said
    span = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    try:
        value = int(said)
    except ValueError:
        raise ValueError(f"{name}: expected {span} in the environment, got {said!r}") from None
    if value < low or (high is not None and value > high):
        raise ValueError(f"{name}: expected {span} in the environment, got {value}")
    return value


@contextmanager
def joined() -> Iterator[None]:
    """The group of the processes that were launched together, for results that lie on the host (gloo).

    Raises:
        ValueError: the environment does not say where to find the others.
        ConnectionError: not all of them came there within a minute, or (LostProcessError) one is gone again.
    """
    processes = _number("WORLD_SIZE", low=1)
    number = _number("RANK", low=0, high=processes - 1)
    store = _met(number, processes)
    with _exchange():
        dist.init_process_group("gloo", store=store, rank=number, world_size=processes, timeout=_PATIENCE)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _met(number: int, processes: int) -> "Store":
    """The store that all processes have found."""
    from torch.distributed.rendezvous import rendezvous  # not in every torch

    host, port = os.environ.get("MASTER_ADDR"), _number("MASTER_PORT", low=1, high=65535)
    if not host:
        raise ValueError("MASTER_ADDR: expected the address of process 0 in the environment, got nothing")
    try:
        _find(host, port, serving=number == 0)
        store: Store = next(rendezvous("env://", number, processes, timeout=_MEETING))[0]
        _await_all(store, number, processes)
    except (OSError, dist.DistError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).partition("\n")[0]
        limit = f"{_MEETING.total_seconds():g} seconds"
        raise ConnectionError(f"expected {processes} processes at {host}:{port} within {limit}: {reason}") from error
    return store


def _await_all(store: "Store", number: int, processes: int) -> None:
    """Say that this process is there, and wait until all are; TimeoutError where it takes too long."""
    store.set(f"here/{number}", "")
    last = time.monotonic() + _MEETING.total_seconds()
    for other in range(processes):
        while not store.check([f"here/{other}"]):
            if time.monotonic() > last:
                raise TimeoutError(f"process {other} did not come")
            time.sleep(0.02)


def _find(host: str, port: int, *, serving: bool) -> None:
    """Wait until the address is known, and somebody answers there unless that is us; OSError where it takes too long.

    torch would wait as well, but write a long trace to stderr at every attempt.
    """
    last = time.monotonic() + _MEETING.total_seconds()
    while True:
        try:
            if serving:
                socket.getaddrinfo(host, port)
            else:
                socket.create_connection((host, port), timeout=max(1.0, last - time.monotonic())).close()
            return
        except OSError:  # a machine that starts up may not have a name yet
            if time.monotonic() > last:
                raise
        time.sleep(0.2)


@contextmanager
def _exchange() -> Iterator[None]:
    """Turns what torch raises in an exchange with other processes, where one is gone, into an error that says so."""
    try:
        yield
    except RuntimeError as error:
        raise LostProcessError("lost another process: it has ended, or does not answer; see what it says") from error


def agreed(work: Callable[[], T]) -> T:
    """What `work` returns on this rank, once it has returned on all.

    Raises:
        Exception: what `work` raised here.
        ValueError: it was another rank that failed; with that rank and what was wrong.
        LostProcessError: another rank is gone.

    >>> agreed(lambda: 3)
    3
    """
    if not active():
        return work()
    failure: Exception | None = None
    try:
        result = work()
    except Exception as error:  # raised below, once all ranks have heard of it
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
    """What `work` returns on rank 0, the only one where it is called, for all ranks.

    Raises:
        Exception: on rank 0, what `work` raised.
        ValueError: on the others, where it did.
        LostProcessError: another rank is gone.

    >>> from_first(lambda: 3)
    3
    """
    carried: list[Any] = agreed(lambda: [work() if rank() == 0 else None])
    if active():
        with _exchange():
            dist.broadcast_object_list(carried, src=0)
    result: T = carried[0]
    return result


def gather_parts(x: Tensor) -> Tensor:
    """On rank 0 all ranks' rows of x (n, ...), which lies on the CPU, in rank order; elsewhere x as it is.

    Unlike for `gather`, ranks may hold different numbers of rows, and no gradient flows.

    Raises:
        LostProcessError: another rank is gone.

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
            with _exchange():
                dist.send(x.contiguous(), dst=0)
        return x
    whole = x.new_empty((sum(counts), *x.shape[1:]))
    first, *others = whole.split(counts)
    first.copy_(x)
    for source, part in enumerate(others, start=1):
        if len(part) > 0:
            with _exchange():
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
