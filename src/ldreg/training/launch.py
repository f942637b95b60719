"""What surrounds a run: how many processes, which device, how many threads, how much is said."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ldreg.training.settings import Settings


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
