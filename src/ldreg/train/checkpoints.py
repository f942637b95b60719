"""Checkpoints that are whole or not there, and a guard that keeps a broken state out of them."""

import json
import os
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins import TorchCheckpointIO
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.utilities.exceptions import SIGTERMException
from torch import Tensor

from ldreg.elapsed import Elapsed
from ldreg.io.torch_files import load_torch
from ldreg.train.module import SETTINGS

LAST, PREVIOUS = "last.ckpt", "previous.ckpt"


class NotFiniteError(ArithmeticError):
    """The loss went NaN or infinite."""


class FiniteGuard(Callback):
    """Stop when the loss is NaN or infinite, and say at which step and in which terms.

    On a CPU every step is looked at as it is made. On a GPU reading a value makes the host wait, so steps are looked
    at together, every `every_steps` steps and before each checkpoint.
    """

    def __init__(self, *, every_steps: int) -> None:
        self._every = every_steps
        self._unseen: list[tuple[int, dict[str, Tensor]]] = []

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take note of this step's loss."""
        loss = outputs["objective"]
        self._unseen.append((trainer.global_step, {"loss": loss, **outputs["terms"]}))
        if loss.device.type == "cpu" or len(self._unseen) >= self._every:
            self.check()

    def check(self) -> None:
        """Raise NotFiniteError if a step taken note of was bad."""
        if not self._unseen:
            return
        steps, self._unseen = self._unseen, []
        losses = torch.stack([terms["loss"].double() for _, terms in steps])
        bad = (~torch.isfinite(losses)).tolist()
        if any(bad):
            step, terms = steps[bad.index(True)]
            listed = ", ".join(f"{name} = {value.item():.6g}" for name, value in terms.items())
            raise NotFiniteError(f"the loss is not finite at step {step}: {listed}")


class CheckpointFiles(TorchCheckpointIO):
    """Writes a state straight into its file, and has the disk hold it.

    Lightning's own makes a copy in memory and another in the system's temporary folder, where a full disk is as little
    expected as what a killed run leaves there.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Write the state; where that fails, nothing stays of it.

        Raises:
            OSError: the file cannot be written, with its name.
        """
        target = Path(path)
        try:
            with target.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
        except BaseException as error:
            target.unlink(missing_ok=True)
            cause = _write_error(error)
            if cause is None:
                raise
            raise OSError(cause.errno, cause.strerror, str(target)) from error


def _write_error(error: BaseException | None) -> OSError | None:
    """The error of the system behind one of torch's, which says only that the file came out too short."""
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return error


class Checkpoints(Elapsed, Callback):
    """Save the whole state after epochs, and after steps where asked, keeping the one before.

    A checkpoint is written beside the last one, flushed to the disk, and put into its place in one step, so that a
    run killed at any moment finds a whole one.
    """

    def __init__(self, folder: Path, guard: FiniteGuard, *, every_epochs: int, every_steps: int | None) -> None:
        super().__init__()
        self._folder, self._guard = folder, guard
        self._epochs, self._steps = every_epochs, every_steps
        self._saved_step = -1

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        """Save when the machine is to be given up: Lightning raises that between two steps."""
        if isinstance(exception, SIGTERMException) and trainer.global_step != self._saved_step:
            self.save(trainer)

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save within an epoch."""
        step = trainer.global_step
        last = batch_idx + 1 >= trainer.num_training_batches  # the end of the epoch has its own turn
        if self._steps is not None and step != self._saved_step and step % self._steps == 0 and not last:
            self.save(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Save after an epoch."""
        done = trainer.current_epoch + 1
        if done % self._epochs == 0 or done == trainer.max_epochs or trainer.should_stop:
            self.save(trainer)

    def save(self, trainer: pl.Trainer) -> None:
        """Write the state, once it is known to be finite."""
        self._guard.check()
        _check_weights(trainer)
        self._saved_step = trainer.global_step
        fresh, last = self._folder / "writing.ckpt", self._folder / LAST
        trainer.save_checkpoint(fresh)
        if trainer.is_global_zero:
            if last.exists():
                last.replace(self._folder / PREVIOUS)
            fresh.replace(last)
            _flush(self._folder)


def _check_weights(trainer: pl.Trainer) -> None:
    """Refuse weights that a step has broken; the loss of that step was still good."""
    norms = torch._foreach_norm([parameter.detach() for parameter in trainer.lightning_module.parameters()])
    if not torch.isfinite(torch.stack([norm.float() for norm in norms])).all():
        raise NotFiniteError(f"the weights are not finite after step {trainer.global_step}")


def latest(folder: Path) -> Path | None:
    """The newest whole checkpoint in a folder; None where there is none at all.

    A run killed between the two renames of a save has no last one; the one before is then the newest.

    Raises:
        ValueError: there are checkpoints, and none of them can be read.
    """
    there = [path for path in (folder / LAST, folder / PREVIOUS) if path.exists()]
    for path in there:
        if _peek(path) is not None:
            return path
    if there:
        raise ValueError(f"{there[0]}: expected a checkpoint of ldreg pretrain, got one that cannot be read")
    return None


def peek(path: Path) -> dict[str, Any]:
    """What a checkpoint says of itself: its step, and the settings it belongs to."""
    found = _peek(path)
    assert found is not None
    return found


def _peek(path: Path) -> dict[str, Any] | None:
    try:
        content: Any = load_torch(path)
        settings = dict(json.loads(content[SETTINGS]))
        return {"step": int(content["global_step"]), "settings": settings}
    except Exception:  # another file may hold anything in the place of the settings
        return None


def _flush(path: Path) -> None:
    """Have the disk hold what was written."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
