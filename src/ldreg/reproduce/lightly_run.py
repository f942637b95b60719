"""Training of lightly's recipe by Lightning, from wherever it stands, with its loss and speed epoch by epoch."""

import json
import signal
import statistics
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.utilities.exceptions import SIGTERMException
from torch import nn
from torch.utils.data import DataLoader

from ldreg.data import ResidentImages, derived_seed, worker_count
from ldreg.elapsed import Elapsed
from ldreg.io.torch_files import load_torch
from ldreg.notices import quiet
from ldreg.reproduce.lightly_recipe import LightlySimCLR, batches
from ldreg.reproduce.lightly_settings import CHECKPOINT, UNTOLD, Recipe
from ldreg.train.checkpoints import SETTINGS
from ldreg.train.engine import PRECISION, InterruptedRunError
from ldreg.train.folder import say


@dataclass(frozen=True)
class Trained:
    """A finished training: the backbone on the CPU, values by the epochs done, median speed, time.

    `out` is its folder, `size` the side of the images that the backbone takes.
    """

    recipe: Recipe
    out: Path
    size: int
    backbone: nn.Module
    curves: Mapping[str, list[tuple[float, float]]]
    images_per_second: float
    minutes: float


def train(recipe: Recipe, images: ResidentImages, *, size: int, place: torch.device, out: Path) -> Trained:
    """Train on views (B, 3, size, size) of the images, or go on after the last whole epoch that `out` has.

    Raises:
        ValueError: a checkpoint that cannot be read, or was made with other settings.
        InterruptedRunError: by a signal.
    """
    told, path = json.dumps(recipe.settings, sort_keys=True), out / CHECKPOINT
    done = epochs_done(path, told)
    cuda = place.type == "cuda"
    with quiet(), torch.random.fork_rng([place] if cuda else []):
        torch.manual_seed(recipe.seed)
        model, log = LightlySimCLR(epochs=recipe.epochs, lr=recipe.lr), EpochLog(path, told)
        # A run that goes on must not repeat the order and the views that it began with.
        torch.manual_seed(derived_seed(recipe.seed, done))
        loader = batches(images, size=size, batch_size=recipe.batch_size, workers=worker_count(recipe.data), pin=cuda)
        trainer = pl.Trainer(
            accelerator="gpu" if cuda else "cpu",
            devices=1,
            precision=PRECISION[recipe.precision],
            max_epochs=recipe.epochs,
            logger=False,
            callbacks=[log],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        _fit(trainer, model, loader, path if done else None)
    backbone = model.backbone.to("cpu").eval()
    return Trained(recipe, out, size, backbone, log.curves, log.speed, log.seconds / 60)


def _fit(trainer: pl.Trainer, model: LightlySimCLR, loader: DataLoader[Any], checkpoint: Path | None) -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        trainer.fit(model, loader, ckpt_path=checkpoint, weights_only=True if checkpoint else None)
    except SystemExit as leave:  # Lightning's word for SIGINT and SIGTERM alike
        status = 143 if isinstance(leave, SIGTERMException) else 130
        raise InterruptedRunError(
            f"interrupted in epoch {trainer.current_epoch + 1}; the same command goes on from the start of that epoch",
            status,
        ) from leave
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)  # which Lightning leaves ignored


def epochs_done(path: Path, told: str) -> int:
    """How many epochs a checkpoint has behind it; 0 where there is none.

    Raises:
        ValueError: it cannot be read, or was made with other settings than those told.
    """
    if not path.exists():
        return 0
    try:
        content: Any = load_torch(path)
        made, done = dict(json.loads(content[SETTINGS])), int(content["epoch"]) + 1
    except Exception as error:  # another file may hold anything in the place of the settings
        raise ValueError(f"{path}: expected a checkpoint of this recipe, got one that cannot be read") from error
    asked = json.loads(told)
    compared = (made.keys() | asked.keys()) - (UNTOLD - made.keys())
    if differing := sorted(key for key in compared if made.get(key) != asked.get(key)):
        raise ValueError(f"{path}: expected a checkpoint made with the same {', '.join(differing)}, got others")
    return done


class EpochLog(Elapsed, Callback):
    """Loss and speed of every epoch, said when it ends, and kept in a checkpoint, which each epoch replaces.

    Args:
        path: of the checkpoint.
        told: the settings that it belongs to, as text.
    """

    def __init__(self, path: Path, told: str) -> None:
        super().__init__()
        self._path, self._told = path, told
        self._epochs: list[dict[str, float]] = []
        self._first = True  # epoch of this process, in which workers start and kernels are chosen

    @property
    def curves(self) -> dict[str, list[tuple[float, float]]]:
        """(epochs done, value) of the mean loss and the speed of each epoch, and of the seconds until its end.

        From the speeds and the seconds one sees what goes by between the epochs. Epochs of checkpoints from before the
        seconds were kept have none.
        """
        names = {"loss": "loss", "images_per_second": "speed", "seconds": "seconds"}
        told = list(enumerate(self._epochs, 1))
        return {name: [(number, epoch[key]) for number, epoch in told if key in epoch] for name, key in names.items()}

    @property
    def speed(self) -> float:
        """Images per second: the median over epochs, without the first of each process where there are others."""
        steady = [epoch for epoch in self._epochs if not epoch["first"]]
        return statistics.median(epoch["speed"] for epoch in steady or self._epochs)

    def state_dict(self) -> dict[str, Any]:
        """The epochs, and the time they took."""
        return {"epochs": self._epochs, **super().state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        super().load_state_dict(state_dict)
        self._epochs = list(state_dict["epochs"])

    def on_save_checkpoint(self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Say what the checkpoint was made with."""
        checkpoint[SETTINGS] = self._told

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Begin to count."""
        self._images, self._loss, self._start = 0, torch.zeros((), device=module.device), time.perf_counter()

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count, without waiting for the device."""
        count = len(batch[0][0])
        self._images += count
        self._loss += count * outputs["loss"].detach().float()

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Tell and save; reading the loss waits for the device, so that the time is that of work done."""
        loss = (self._loss / self._images).item()
        speed = self._images / (time.perf_counter() - self._start)
        seconds = self.seconds
        self._epochs.append({"loss": loss, "speed": speed, "seconds": seconds, "first": float(self._first)})
        self._first = False
        epoch = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
        say(f"lightly, {epoch}, {seconds:.0f} s: loss {loss:.4f}  img/s {speed:,.0f}")
        trainer.save_checkpoint(self._path)  # whole or not at all, Lightning sees to that
