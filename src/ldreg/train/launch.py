"""What surrounds a run: how many processes, which device, how many threads, how much is said."""

import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ldreg.train.settings import Settings

if TYPE_CHECKING:
    from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment

ENDED = "another process of the run ended, and this one with it"

# The number of the process that started the others of a run, for these to watch.
_FIRST = "LDREG_FIRST_PROCESS"

_GRACE = 10.0  # seconds for an error of its own in a process that another one has left


def check_launch(settings: Settings) -> None:
    """Refuse a number of processes other than the one that was started.

    Raises:
        ValueError: it is another.
    """
    config = settings.trainer
    world, started = config.devices * config.nodes, os.environ.get("WORLD_SIZE")
    if started is not None and int(started) != world:
        raise ValueError(
            f"trainer.devices: expected devices × nodes to be the {started} processes started, got {world}"
        )
    if config.nodes > 1 and not any(name in os.environ for name in ("WORLD_SIZE", "SLURM_PROCID", "MASTER_ADDR")):
        raise ValueError(f"trainer.nodes: expected torchrun or SLURM to start the processes of {config.nodes} nodes")


def first_process() -> bool:
    """Whether this process is not one that the first process of the run started, or that came with it."""
    return all(int(os.environ.get(name, 0)) == 0 for name in ("LOCAL_RANK", "RANK", "SLURM_PROCID"))


def restarted() -> bool:
    """Whether torchrun or SLURM gives the command of a run that it began before once more.

    >>> restarted()
    False
    """
    return any(int(os.environ.get(name, 0)) > 0 for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"))


def meet_again(*, cuda: bool) -> None:
    """Join the other processes of a run that torchrun has started once more; Lightning finds that done.

    torchrun keeps one store for all attempts, where torch would look up the addresses of processes that are gone.
    """
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    if attempt == 0 or int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return
    from torch.distributed.rendezvous import rendezvous  # not in every torch

    store, rank, world = next(rendezvous("env://"))
    own = dist.PrefixStore(f"attempt_{attempt}", store)  # type: ignore[attr-defined]
    dist.init_process_group("nccl" if cuda else "gloo", store=own, rank=rank, world_size=world)


@contextmanager
def bound() -> Iterator[None]:
    """Have processes that Lightning starts for further devices end with the first, and it with them, saying why.

    Processes that speak by sockets notice by themselves. A GPU waits for half an hour for one that is gone.
    """
    if first_process():
        # Lightning looks after the processes that it started, and has the reason for its kill said at this level alone.
        logging.getLogger("lightning_fabric.strategies.launchers.subprocess_script").setLevel(logging.INFO)
        os.environ[_FIRST] = str(os.getpid())
        try:
            yield
        finally:
            del os.environ[_FIRST]
        return
    done = threading.Event()
    if _FIRST in os.environ:
        threading.Thread(target=_follow, args=(int(os.environ[_FIRST]), done), daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _follow(first: int, done: threading.Event) -> None:
    """End this process some seconds after its first one, unless it is done with the run before."""
    while os.getppid() == first:
        if done.wait(1.0):
            return
    if not done.wait(_GRACE):
        print(f"ldreg pretrain: error: {ENDED}", file=sys.stderr, flush=True)
        os._exit(1)  # the thread that trains waits for what does not come


def cluster() -> "list[ClusterEnvironment]":
    """What Lightning is to know of SLURM: to leave saving and queueing again at a signal to the run and its owner."""
    # Lightning takes seconds to import, and others want to know of processes and devices alone.
    from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment

    slurm = SLURMEnvironment.detect() and not TorchElasticEnvironment.detect()
    return [SLURMEnvironment(auto_requeue=False)] if slurm else []


def on_cuda(device: str) -> bool:
    """Whether to train on a CUDA device.

    Raises:
        ValueError: one is asked for, and there is none.

    >>> on_cuda("cpu")
    False
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("trainer.device: expected a CUDA device for 'cuda', got none on this machine")
    return device != "cpu" and torch.cuda.is_available()


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """So many threads of the CPU for PyTorch; as before where there is no count."""
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)
