"""Two gloo processes, in which tests compute what one process computes of the whole batch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from ldreg.distributed import leave

WORLD = 2


def on_every_rank(compute: Callable[[int], Any], folder: Path) -> list[Any]:
    """What a function of a module gives for its rank, in processes that see each other."""
    start_processes(_worker, args=(compute, str(folder)), nprocs=WORLD, start_method="spawn")
    return [torch.load(folder / str(rank)) for rank in range(WORLD)]


def _worker(rank: int, compute: Callable[[int], Any], folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    torch.save(compute(rank), f"{folder}/{rank}")
    dist.destroy_process_group()
    leave(0)
