"""Checkpoints of a training: written whole or not at all, never with a NaN inside, and the one before is kept."""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins import TorchCheckpointIO
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.utilities.exceptions import SIGTERMException
from torch import Tensor

from ldreg.io.guard import load_torch
from ldreg.text import printable

LAST, PREVIOUS = "last.ckpt", "previous.ckpt"
SETTINGS = "ldreg_settings"  # key of a checkpoint: the settings that it was made with, as JSON
_OLDER_KEYS = ("ldreg_evaluation", "ldreg_detection")  # the same in classifiers and detectors of older versions


class NotFiniteError(ArithmeticError):
    """The loss or a weight became NaN or infinite."""


@dataclass(frozen=True)
class Saved:
    """What a checkpoint says of itself."""

    path: Path
    settings: Mapping[str, Any]  # that it was made with
    step: int  # optimizer steps done
    epoch: int  # counted from 0, at whose end or in which it was made
    seconds: float  # that the training took up to it, over all interruptions


def latest(folder: Path) -> Saved | None:
    """Read the newest whole checkpoint in a folder; None if there is none.

    A run killed between the two renames of a save has only the previous one.

    Raises:
        ValueError: there are checkpoints and none can be read.
    """
    failures: list[str] = []
    for path in (folder / LAST, folder / PREVIOUS):
        if not path.exists():
            continue
        try:
            content: Any = load_torch(path)
            settings = json.loads(next(content[key] for key in (SETTINGS, *_OLDER_KEYS) if key in content))
            return Saved(path, dict(settings), int(content["global_step"]), int(content["epoch"]), _seconds(content))
        except Exception as error:  # any file may lie there
            reason = printable(" ".join(str(error).split()))[:200]
            failures.append(f"{path}: expected a checkpoint of ldreg, got one that cannot be read ({reason})")
    if failures:
        raise ValueError(failures[0])
    return None


def _seconds(content: Mapping[str, Any]) -> float:
    """The time taken; in older versions the callback had other names."""
    return float(next((state["seconds"] for state in content.get("callbacks", {}).values() if "seconds" in state), 0.0))


def check_same(
    made: Mapping[str, Any], asked: Mapping[str, Any], *, where: str, defaults: Mapping[str, Any] | None = None
) -> None:
    """Raise ValueError unless the settings asked for are those that a checkpoint was made with.

    `where` begins the message and names the file; `defaults` are values of settings that an older version lacked.
    """
    made = {**(defaults or {}), **made}
    if differing := sorted(key for key in made.keys() | asked.keys() if made.get(key) != asked.get(key)):
        raise ValueError(f"{where}, got others for {', '.join(differing)}")


class FiniteGuard(Callback):
    """Stop when the loss is NaN or infinite, and name the step and the terms.

    On a CPU every step is checked when it is made. On a GPU reading a value makes the host wait, so steps are checked
    together, every `every_steps` steps and before each checkpoint.
    """

    def __init__(self, *, every_steps: int) -> None:
        self._every = every_steps
        self._unchecked: list[tuple[int, dict[str, Tensor]]] = []

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Remember the loss of this step, and check it when it is time."""
        # Lightning divides "loss" by the number of accumulated parts; "objective" is the whole.
        loss = outputs.get("objective", outputs["loss"]).detach()
        self._unchecked.append((trainer.global_step, {"loss": loss, **outputs.get("terms", {})}))
        if loss.device.type == "cpu" or len(self._unchecked) >= self._every:
            self.check()

    def check(self) -> None:
        """Raise NotFiniteError if the loss of a step since the last check is not finite."""
        if not self._unchecked:
            return
        steps, self._unchecked = self._unchecked, []
        bad = (~torch.isfinite(torch.stack([terms["loss"].double() for _, terms in steps]))).tolist()
        if any(bad):
            step, terms = steps[bad.index(True)]
            listed = ", ".join(f"{name} = {value.item():.6g}" for name, value in terms.items())
            raise NotFiniteError(f"the loss is not finite at step {step}: {listed}")


class Checkpoints(Callback):
    """Save the whole state with its settings, and count the time that the training takes.

    A checkpoint is written beside the last one, flushed to the disk and renamed, so that a run killed at any moment
    leaves a whole one. It is saved every so many epochs, within an epoch every so many steps (None: never), and, with
    `on_signal`, when a signal stops the training within an epoch.
    """

    def __init__(
        self,
        folder: Path,
        guard: FiniteGuard,
        settings: Mapping[str, Any],
        *,
        every_epochs: int,
        every_steps: int | None,
        on_signal: bool,
    ) -> None:
        self._folder, self._guard, self._settings = folder, guard, json.dumps(settings, sort_keys=True)
        self._epochs, self._steps, self._on_signal = every_epochs, every_steps, on_signal
        self._saved_step = -1
        self._seconds_before, self._started = 0.0, time.monotonic()

    @property
    def seconds(self) -> float:
        """Time taken so far, including before the training was resumed."""
        return self._seconds_before + time.monotonic() - self._started

    def state_dict(self) -> dict[str, Any]:
        """The time."""
        return {"seconds": self.seconds}

    def on_save_checkpoint(self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the settings."""
        checkpoint[SETTINGS] = self._settings

    def on_load_checkpoint(self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Count on from the time in the checkpoint."""
        self._seconds_before, self._started = _seconds(checkpoint), time.monotonic()

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        """Save when a signal asks the process to end; Lightning raises that between two steps."""
        if self._on_signal and isinstance(exception, SIGTERMException) and trainer.global_step != self._saved_step:
            self._save(trainer)

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save within an epoch."""
        step = trainer.global_step
        last = batch_idx + 1 >= trainer.num_training_batches  # on_train_epoch_end follows
        if self._steps is not None and step != self._saved_step and step % self._steps == 0 and not last:
            self._save(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Save after an epoch."""
        done = trainer.current_epoch + 1
        if done % self._epochs == 0 or done == trainer.max_epochs or trainer.should_stop:
            self._save(trainer)

    def _save(self, trainer: pl.Trainer) -> None:
        self._guard.check()
        # The last step may have broken the weights; its loss was still good.
        norms = torch._foreach_norm([parameter.detach() for parameter in trainer.lightning_module.parameters()])
        if not torch.isfinite(torch.stack([norm.float() for norm in norms])).all():
            raise NotFiniteError(f"the weights are not finite after step {trainer.global_step}")
        self._saved_step = trainer.global_step
        new, last = self._folder / "writing.ckpt", self._folder / LAST
        trainer.save_checkpoint(new)
        if trainer.is_global_zero:
            if last.exists():
                last.replace(self._folder / PREVIOUS)
            new.replace(last)
            _flush(self._folder)


def _flush(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def seconds_taken(trainer: pl.Trainer) -> float:
    """Time that a running training has taken so far, over all interruptions."""
    return next(callback.seconds for callback in trainer.callbacks if isinstance(callback, Checkpoints))  # type: ignore[attr-defined]


class CheckpointFiles(TorchCheckpointIO):
    """Write a state straight into its file and flush it to the disk.

    Lightning's own class makes a copy in memory and another in the system's temporary folder.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Write the state; remove the file if that fails.

        Raises:
            OSError: the file cannot be written; it is named.
        """
        target = Path(path)
        try:
            with target.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
        except BaseException as error:
            target.unlink(missing_ok=True)
            # torch says only that the file is too short; the system's error is behind it.
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, OSError):
                cause = cause.__context__
            if cause is None:
                raise
            raise OSError(cause.errno, cause.strerror, str(target)) from error
