"""A training from its first iteration, or from where it was left, to its last."""

import json
import math
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.utilities.exceptions import SIGTERMException
from torch import Tensor

from ldreg.detection.config import DetectionConfig
from ldreg.detection.module import IDENTITY, Detecting, Progress
from ldreg.elapsed import Elapsed
from ldreg.io.torch_files import load_torch
from ldreg.termination import Termination

CHECKPOINT = "last.ckpt"
PRECISION: dict[str, Any] = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
_EVERY = 20  # iterations between two looks at the losses on a GPU, which has to be waited for


class Watch(Callback):
    """Stop when the loss is not finite, and tell of the training meanwhile."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total, self._progress = total, progress
        self._unseen: list[tuple[int, dict[str, Tensor]]] = []

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Look at the losses, on a GPU those of several iterations together."""
        self._unseen.append((trainer.global_step, outputs["terms"]))
        if module.device.type == "cpu" or len(self._unseen) >= _EVERY or trainer.global_step == self._total:
            loss = self.check()
            if self._progress is not None and trainer.is_global_zero:
                done = trainer.global_step
                self._progress(f"iteration {done}/{self._total}, loss {loss:.3f}", done / self._total)

    def check(self) -> float:
        """The latest loss.

        Raises:
            ArithmeticError: the loss of an iteration since the last look is NaN or infinite.
        """
        seen, self._unseen = self._unseen, []
        values = torch.stack([torch.stack(tuple(terms.values())) for _, terms in seen]).tolist()
        for (iteration, terms), losses in zip(seen, values, strict=True):
            if not all(map(math.isfinite, losses)):
                listed = ", ".join(f"{name} = {loss:.4g}" for name, loss in zip(terms, losses, strict=True))
                raise ArithmeticError(f"the loss is not finite at iteration {iteration}: {listed}")
        return float(sum(values[-1]))

    @property
    def unseen(self) -> bool:
        """Whether there are losses that nobody has looked at."""
        return bool(self._unseen)


class Checkpoints(Elapsed, Callback):
    """Save the whole state every so many iterations, in one step, so that there is always a whole one."""

    def __init__(self, folder: Path, watch: Watch) -> None:
        super().__init__()
        self._folder, self._watch = folder, watch

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Save; what Lightning calls an epoch ends where a checkpoint is due."""
        if self._watch.unseen:
            self._watch.check()
        norms = torch.stack([parameter.detach().float().norm() for parameter in module.parameters()])
        if not torch.isfinite(norms).all():
            raise ArithmeticError(f"the weights are not finite after iteration {trainer.global_step}")
        fresh = self._folder / "writing.ckpt"
        trainer.save_checkpoint(fresh)
        if trainer.is_global_zero:
            with fresh.open("rb") as file:
                os.fsync(file.fileno())
            fresh.replace(self._folder / CHECKPOINT)


def build_trainer(
    config: DetectionConfig, folder: Path, *, progress: Progress | None
) -> tuple[pl.Trainer, Checkpoints]:
    """Lightning's trainer for these settings, and the callback that writes into the folder.

    Raises:
        ValueError: a CUDA device is asked for and there is none, or fp16 without one.
    """
    cuda = on_cuda(config.device)
    if config.precision == "fp16" and not cuda:
        raise ValueError("precision: expected fp32 or bf16 on a CPU, got 'fp16'")
    watch = Watch(config.total_iterations, progress)
    checkpoints = Checkpoints(folder, watch)
    trainer = pl.Trainer(
        accelerator="gpu" if cuda else "cpu",
        devices=config.devices,
        strategy="ddp" if config.devices > 1 else "auto",
        precision=PRECISION[config.precision],
        max_steps=config.total_iterations,
        max_epochs=-1,
        reload_dataloaders_every_n_epochs=1,
        callbacks=[watch, checkpoints, Termination()],
        inference_mode=False,  # the evaluation begins with statistics, which go into buffers
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    return trainer, checkpoints


def on_cuda(device: str) -> bool:
    """Whether to train on a CUDA device.

    Raises:
        ValueError: one is asked for, and there is none.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: expected a CUDA device for 'cuda', got none on this machine")
    return device != "cpu" and torch.cuda.is_available()


def fit(trainer: pl.Trainer, module: Detecting, folder: Path) -> None:
    """Train to the last iteration, from the folder's checkpoint where it has one.

    Raises:
        ArithmeticError: the loss is not finite.
        KeyboardInterrupt: by a signal; the message says where the training stands.
    """
    checkpoint = folder / CHECKPOINT
    resume = checkpoint if checkpoint.exists() else None
    before = signal.getsignal(signal.SIGINT)
    try:
        trainer.fit(module, ckpt_path=resume, weights_only=True if resume else None)
    except SystemExit as leave:  # Lightning's word for SIGINT and SIGTERM alike
        kept = peek(checkpoint)[0] if checkpoint.exists() else 0
        name = "terminated" if isinstance(leave, SIGTERMException) else "interrupted"
        raise KeyboardInterrupt(
            f"{name} at iteration {trainer.global_step}; the same command goes on from iteration {kept}"
        ) from leave
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)  # which Lightning leaves ignored


def peek(checkpoint: Path) -> tuple[int, dict[str, Any]]:
    """The iterations done in a checkpoint, and the settings that it belongs to.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        content: Any = load_torch(checkpoint)
        made = json.loads(content[IDENTITY])
        if not isinstance(made, dict):
            raise ValueError("settings that are no JSON object")
        return int(content["global_step"]), made
    except Exception as error:  # another file may hold anything in the place of the settings
        raise ValueError(f"{checkpoint}: expected a checkpoint of a detector, got one that cannot be read") from error
