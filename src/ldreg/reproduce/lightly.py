"""Lightly's CIFAR-10 recipe of SimCLR from lightly's own parts, and its training with loss and speed by epochs."""

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytorch_lightning as pl
import torch
from lightly.data import LightlyDataset
from lightly.loss import NTXentLoss
from lightly.models import ResNetGenerator
from lightly.models.modules import SimCLRProjectionHead
from lightly.transforms.simclr_transform import SimCLRTransform
from PIL import Image
from pytorch_lightning.callbacks import Callback
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ldreg.data import ResidentImages, derived_seed, worker_count
from ldreg.reproduce.lightly_settings import (
    DIMENSION,
    EMBEDDING,
    JITTER,
    MOMENTUM,
    TEMPERATURE,
    UNTOLD,
    WEIGHT_DECAY,
    Recipe,
)
from ldreg.train.checkpoints import Saved, check_same, latest, seconds_taken
from ldreg.train.engine import fit, quiet
from ldreg.train.folder import say
from ldreg.train.processes import exclusive


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
    """Train on views (B, 3, size, size) of the images, or resume after the last whole epoch in `out`.

    Raises:
        ValueError: `out` is in use, or its checkpoint cannot be read or was made with other settings.
        InterruptedRunError: by a signal.
    """
    cuda = place.type == "cuda"
    out.mkdir(parents=True, exist_ok=True)
    with quiet(), exclusive(out), torch.random.fork_rng([place] if cuda else []):
        saved = find_checkpoint(out, recipe)
        torch.manual_seed(recipe.seed)
        model, log = LightlySimCLR(epochs=recipe.epochs, lr=recipe.lr), EpochLog()
        # A resumed run must not repeat the order and the views of its first epochs.
        torch.manual_seed(derived_seed(recipe.seed, saved.epoch + 1 if saved else 0))
        workers = worker_count(recipe.data)
        model.loader = batches(images, size=size, batch_size=recipe.batch_size, workers=workers, pin=cuda)
        fitted = fit(
            model,
            out,
            recipe.settings,
            saved=saved,
            device=place.type,
            precision=recipe.precision,
            callbacks=[log],
            check_steps=len(model.loader),  # once an epoch: lightly's speed is measured
            max_epochs=recipe.epochs,
            benchmark=False,
        )
    backbone = model.backbone.to("cpu").eval()
    return Trained(recipe, out, size, backbone, log.curves, log.speed, fitted.minutes)


def find_checkpoint(out: Path, recipe: Recipe) -> Saved | None:
    """The checkpoint to resume from, if any; ValueError if it cannot be read or was made with other settings."""
    saved, asked = latest(out), recipe.settings
    if saved is not None:
        defaults = {key: asked[key] for key in UNTOLD}
        check_same(saved.settings, asked, where=f"{saved.path}: expected the settings of this run", defaults=defaults)
    return saved


class EpochLog(Callback):
    """Loss and speed of every epoch, printed at its end and kept in the checkpoints."""

    def __init__(self) -> None:
        self._epochs: list[dict[str, float]] = []
        self._first = True  # epoch of this process, in which workers start and kernels are chosen

    @property
    def curves(self) -> dict[str, list[tuple[float, float]]]:
        """(epochs done, value) of the mean loss and the speed of each epoch, and of the seconds until its end.

        The speeds and the seconds together show the time between the epochs. Old checkpoints lack the seconds.
        """
        names = {"loss": "loss", "images_per_second": "speed", "seconds": "seconds"}
        numbered = list(enumerate(self._epochs, 1))
        return {
            name: [(number, epoch[key]) for number, epoch in numbered if key in epoch] for name, key in names.items()
        }

    @property
    def speed(self) -> float:
        """Images per second: the median over epochs, without the first of each process where there are others."""
        steady = [epoch for epoch in self._epochs if not epoch["first"]]
        return statistics.median(epoch["speed"] for epoch in steady or self._epochs)

    def state_dict(self) -> dict[str, Any]:
        """The epochs so far."""
        return {"epochs": self._epochs}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the epochs."""
        self._epochs = list(state_dict["epochs"])

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Start the clock."""
        self._images, self._loss, self._start = 0, torch.zeros((), device=module.device), time.perf_counter()

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add up the loss, without waiting for the device."""
        count = len(batch[0][0])
        self._images += count
        self._loss += count * outputs["loss"].detach().float()

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Print the epoch; reading the loss waits for the device, so that the time is that of finished work."""
        loss = (self._loss / self._images).item()
        speed = self._images / (time.perf_counter() - self._start)
        seconds = seconds_taken(trainer)
        self._epochs.append({"loss": loss, "speed": speed, "seconds": seconds, "first": float(self._first)})
        self._first = False
        epoch = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
        say(f"lightly, {epoch}, {seconds:.0f} s: loss {loss:.4f}  img/s {speed:,.0f}")


class Pictures(Dataset[Any]):
    """Images in memory as Pillow images with labels, as torchvision's CIFAR10 returns them."""

    def __init__(self, images: ResidentImages) -> None:
        color = images.images.expand(-1, 3, -1, -1) if images.channels == 1 else images.images
        self._pixels: np.ndarray[Any, np.dtype[np.uint8]] = color.permute(0, 2, 3, 1).contiguous().numpy()
        self._labels = images.labels.tolist()
        self.transform: Any = None  # set by lightly

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = Image.fromarray(self._pixels[index])
        return image if self.transform is None else self.transform(image), self._labels[index]


def batches(images: ResidentImages, *, size: int, batch_size: int, workers: int, pin: bool) -> DataLoader[Any]:
    """Lightly's pairs of views: ((first, second), labels, file names), the views (B, 3, size, size)."""
    transform = SimCLRTransform(input_size=size, cj_strength=JITTER, gaussian_blur=0.0)
    return DataLoader(
        LightlyDataset.from_torch_dataset(Pictures(images), transform=transform),
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=pin,
    )


class LightlySimCLR(pl.LightningModule):
    """SimCLR as lightly's benchmark puts it together.

    The benchmark chains the layers of lightly's ResNet-18, which leaves out the ReLU after the first batch norm.
    """

    def __init__(self, *, epochs: int, lr: float) -> None:
        super().__init__()
        layers = list(ResNetGenerator("resnet-18").children())[:-1]
        self.backbone = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.projection_head = SimCLRProjectionHead(DIMENSION, DIMENSION, EMBEDDING)
        self.criterion = NTXentLoss(temperature=TEMPERATURE)
        self._epochs, self._lr = epochs, lr
        self.loader: DataLoader[Any] | None = None

    def train_dataloader(self) -> Any:
        """The batches of an epoch."""
        return self.loader

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of a pair of views."""
        (first, second), _, _ = batch
        embeddings = [self.projection_head(self.backbone(view)) for view in (first, second)]
        return cast(Tensor, self.criterion(*embeddings))

    def configure_optimizers(self) -> Any:
        """SGD over all parameters, with a cosine schedule by epochs."""
        optimizer = torch.optim.SGD(self.parameters(), lr=self._lr, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self._epochs)]
