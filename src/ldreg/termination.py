"""SIGTERM in a run of several processes: all of them stop at the same step.

Lightning's own handler starts a collective from within the signal, which waits forever where another process waits for
this one, in a gradient or a checkpoint.
"""

import signal
import threading
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.utilities.exceptions import SIGTERMException

_EVERY = 8  # batches of an epoch between two times that processes ask one another


class Termination(pl.Callback):
    """Notes SIGTERM and raises Lightning's exception for it where all processes stand at the same step.

    That is after the first batch of an epoch, a few batches later again, and at the end of an epoch. With one process
    Lightning's handler is left to it.
    """

    def __init__(self) -> None:
        self._asked = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the signal over from Lightning, which gives it back to whoever had it before."""
        if trainer.world_size == 1 or threading.current_thread() is not threading.main_thread():
            return

        def note(number: int, frame: FrameType | None) -> None:
            launcher: Any = trainer.strategy.launcher
            if not self._asked and launcher is not None:
                launcher.kill(number)  # the processes that this one started
            self._asked = True

        signal.signal(signal.SIGTERM, note)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop here where any process was asked to, but for the last batch, after which the epoch ends."""
        if batch_idx % _EVERY == 0 and batch_idx + 1 < trainer.num_training_batches:
            self._stop_together(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop here where any process was asked to; after the last epoch there is nothing to stop."""
        if trainer.current_epoch + 1 != trainer.max_epochs:
            self._stop_together(trainer)

    def _stop_together(self, trainer: pl.Trainer) -> None:
        if trainer.world_size == 1:
            return
        asked = torch.tensor(int(self._asked), device=trainer.strategy.root_device)
        dist.all_reduce(asked, op=dist.ReduceOp.MAX)
        if asked.item():
            raise SIGTERMException
