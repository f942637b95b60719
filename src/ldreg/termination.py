"""Signals that a machine is to be given up: all processes of a run stop at the same step, saved.

Lightning's own handler of SIGTERM starts a collective from within the signal, which waits forever where another process
waits for this one, in a gradient or a checkpoint. It also stops between the parts of an accumulated step, whose
gradients no checkpoint holds, and under SLURM it takes SIGUSR1 for a wish to save into the working directory.
"""

import signal
import threading
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.utilities.exceptions import SIGTERMException

_EVERY = 8  # steps of an epoch between two times that processes ask one another

# SIGTERM from systems that end a process, the others as `sbatch --signal` and the like have them sent some time before.
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1", "SIGUSR2") if hasattr(signal, name))


class Termination(pl.Callback):
    """Notes SIGTERM, SIGUSR1 and SIGUSR2, and raises Lightning's exception for it where all processes are at one step.

    One process alone stops after the step that it is at; several after the first step of an epoch, a few steps later
    again, and at the end of an epoch. The exception's code is what a shell says of a process that the signal ended.
    """

    def __init__(self) -> None:
        self._asked = 0  # the number of the signal that came first

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the signals over; Lightning gives them back in the end, all of them, to whoever had them before."""
        if threading.current_thread() is not threading.main_thread():
            return

        def note(number: int, frame: FrameType | None) -> None:
            launcher: Any = trainer.strategy.launcher
            if not self._asked and launcher is not None:
                launcher.kill(number)  # the processes that this one started
            self._asked = self._asked or number

        for number in _SIGNALS:
            # SIGTERM is Lightning's own here; another one that somebody has a use for is left to it.
            if number == signal.SIGTERM or signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, note)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop here where any process was asked to, but for the last batch, after which the epoch ends."""
        step, part = divmod(batch_idx + 1, trainer.accumulate_grad_batches)
        turn = trainer.world_size == 1 or step % _EVERY == 1
        if part == 0 and turn and batch_idx + 1 < trainer.num_training_batches:
            self._stop_together(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop here where any process was asked to; after the last epoch there is nothing to stop."""
        if trainer.current_epoch + 1 != trainer.max_epochs:
            self._stop_together(trainer)

    def _stop_together(self, trainer: pl.Trainer) -> None:
        number = self._asked
        if trainer.world_size > 1:
            asked = torch.tensor(number, device=trainer.strategy.root_device)
            dist.all_reduce(asked, op=dist.ReduceOp.MAX)
            number = int(asked.item())
        if number:
            raise SIGTERMException(128 + number)
