"""The processes, devices and threads that a training runs on, and the lock that keeps its folder to them."""

import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ldreg.io.locks import locked

if TYPE_CHECKING:  # Lightning takes seconds to import
    from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment

LOST_PROCESS = "another process of the run ended, and this one with it"

_FIRST_PID = "LDREG_FIRST_PROCESS"  # in the environment of the processes that the first one starts
_GRACE = 10.0  # seconds in which a process that lost another may report an error of its own


def check_hardware(device: str, devices: int, nodes: int, precision: str) -> bool:
    """Check the settings of the hardware, and return whether to train on CUDA.

    Raises:
        ValueError: the machine or the launcher does not match the settings.

    >>> check_hardware("cpu", devices=1, nodes=1, precision="fp32")
    False
    """
    started = os.environ.get("WORLD_SIZE")
    if started is not None and int(started) != devices * nodes:
        raise ValueError(
            f"devices: expected devices × nodes to be the {started} processes started, got {devices * nodes}"
        )
    if nodes > 1 and not any(name in os.environ for name in ("WORLD_SIZE", "SLURM_PROCID", "MASTER_ADDR")):
        raise ValueError(f"nodes: expected torchrun or SLURM to start the processes of {nodes} nodes")
    cuda = on_cuda(device)
    if precision == "fp16" and not cuda:
        raise ValueError("precision: expected fp32 or bf16 on a CPU, got 'fp16'")
    return cuda


def on_cuda(device: str) -> bool:
    """Return whether "auto", "cpu" or "cuda" means a CUDA device here.

    Raises:
        ValueError: CUDA is asked for and not available.

    >>> on_cuda("cpu")
    False
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: expected a CUDA device for 'cuda', got none on this machine")
    return device != "cpu" and torch.cuda.is_available()


def first_process() -> bool:
    """Return whether this is the first process of a run, which alone writes files and messages."""
    return all(int(os.environ.get(name, 0)) == 0 for name in ("LOCAL_RANK", "RANK", "SLURM_PROCID"))


def restarted() -> bool:
    """Return whether torchrun or SLURM has restarted the command after a failure.

    >>> restarted()
    False
    """
    return any(int(os.environ.get(name, 0)) > 0 for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"))


def slurm() -> "list[ClusterEnvironment]":
    """Return the plugin that keeps Lightning from saving and requeueing by itself when SLURM signals a job."""
    from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment

    found = SLURMEnvironment.detect() and not TorchElasticEnvironment.detect()
    return [SLURMEnvironment(auto_requeue=False)] if found else []


def rejoin(*, cuda: bool) -> None:
    """Join the other processes after a restart by torchrun; Lightning then finds the group initialized.

    torchrun keeps one store for all attempts, in which torch would find the addresses of processes that are gone.
    """
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    if attempt == 0 or int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return
    from torch.distributed.rendezvous import rendezvous  # not in every torch

    store, rank, world = next(rendezvous("env://"))
    own = dist.PrefixStore(f"attempt_{attempt}", store)  # type: ignore[attr-defined]
    dist.init_process_group("nccl" if cuda else "gloo", store=own, rank=rank, world_size=world)


@contextmanager
def ending_together() -> Iterator[None]:
    """End the processes that Lightning starts for further devices when the first one ends.

    Processes that communicate by sockets notice by themselves. A GPU waits half an hour for a process that is gone.
    """
    if first_process():
        # Lightning ends the others when one of them dies, and logs the reason at this level only.
        logging.getLogger("lightning_fabric.strategies.launchers.subprocess_script").setLevel(logging.INFO)
        os.environ[_FIRST_PID] = str(os.getpid())
        try:
            yield
        finally:
            del os.environ[_FIRST_PID]
        return
    done = threading.Event()
    if _FIRST_PID in os.environ:
        threading.Thread(target=_end_with, args=(int(os.environ[_FIRST_PID]), done), daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _end_with(first: int, done: threading.Event) -> None:
    while os.getppid() == first:
        if done.wait(1.0):
            return
    if not done.wait(_GRACE):
        print(f"ldreg: error: {LOST_PROCESS}", file=sys.stderr, flush=True)
        os._exit(1)  # the training thread waits for the lost process


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Let PyTorch use this many CPU threads; None changes nothing."""
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def exclusive(folder: Path, file: Path | None = None) -> Iterator[None]:
    """Keep other runs out of a folder, by a lock on it and on a file in it; a warning where neither can be locked.

    The processes that the first one starts pass through. A file may be moved away, but some file systems lock only
    files.

    Raises:
        ValueError: another process uses the folder.
    """
    places = [folder] if file is None else [folder, file]
    failures: list[str] = []
    with ExitStack() as stack:
        for place in places if first_process() else []:
            try:
                stack.enter_context(locked(place, wait=False))
            except BlockingIOError:
                message = f"{folder}: expected a run that no other process works on, got one in use"
                raise ValueError(message) from None
            except OSError as error:
                failures.append(error.strerror or str(error))
        if len(failures) == len(places):
            logging.getLogger("ldreg").warning("%s cannot be kept from other processes (%s)", folder, failures[-1])
        yield
