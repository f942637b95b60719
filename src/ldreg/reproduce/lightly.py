"""Lightly's CIFAR-10 recipe of SimCLR, trained by lightly: what our runs are compared with.

The recipe is that of docs/source/getting_started/benchmarks/cifar10_benchmark.py in lightly's repository. Its numbers
are in our recipe cifar10/simclr_lightly.
"""

import statistics
import time
from collections.abc import Mapping
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

from ldreg.data import DataConfig, ResidentImages, derived_seed, load_images, output_size, worker_count
from ldreg.encoders.checkpoints import LoadedEncoder, content_key
from ldreg.evaluate.classification import load_classification
from ldreg.evaluate.extract import torch_device
from ldreg.evaluate.source import Source
from ldreg.io.files import exclusive
from ldreg.optim import scaled_lr
from ldreg.record import Record
from ldreg.record import origin as origin_in
from ldreg.reproduce.jobs import ADDED_LATER, Job, Workspace
from ldreg.train.checkpoints import Saved, check_same, latest, seconds_taken
from ldreg.train.engine import fit, quiet
from ldreg.train.folder import RunFolder, environment, say
from ldreg.train.settings import Settings


def train(job: Job, workspace: Workspace) -> tuple[Source, Record, dict[str, float]]:
    """Train lightly's recipe through lightly, or resume after the last whole epoch in the run's folder.

    Lightly's are the model, the views, the loss, the optimizer's settings and its dataset, over the pixels that our
    runs get; Lightning's is the loop; torch's the loader. A resumed run has other random draws than the run would have
    had. Lightly's script also measures kNN after every epoch, which is left out here, as from our speeds.

    Returns:
        The backbone on the CPU, its record without measures, and its median speed and minutes.

    Raises:
        ValueError: unusable data, a folder in use, or a checkpoint of other settings or that cannot be read.
        InterruptedRunError: by a signal.
    """
    settings, out = workspace.settings(job), workspace.folder(job).path
    data, seed, epochs = settings.data, settings.run.seed, settings.schedule.epochs
    images, place = _images(data), torch_device(workspace.device)
    size, cuda, workers = output_size(data, images), place.type == "cuda", worker_count(data)
    out.mkdir(parents=True, exist_ok=True)
    with quiet(), exclusive(out), torch.random.fork_rng([place] if cuda else []):
        saved = find_checkpoint(out, job.expected)
        torch.manual_seed(seed)
        model, log = LightlySimCLR(settings), EpochLog()
        # A resumed run must not repeat the order and the views of its first epochs.
        torch.manual_seed(derived_seed(seed, saved.epoch + 1 if saved else 0))
        model.loader = batches(images, settings, size=size, pin=cuda)
        fitted = fit(
            model,
            out,
            job.expected,
            saved=saved,
            device=place.type,
            precision=settings.trainer.precision,
            callbacks=[log],
            check_steps=len(model.loader),  # once an epoch: lightly's speed is measured
            max_epochs=epochs,
            benchmark=False,
        )
    # Lightly's backbone in the place of an encoder of ours: color images normalized as lightly's views are. The config
    # and layout describe it as nearly as ours can; nothing is built or read by them.
    backbone = model.backbone.to("cpu").eval()
    cast(Any, backbone).dimension = 512
    key = content_key(backbone, f"resnet-18 of lightly, imagenet's normalization, 3 x {size} x {size}")
    encoder = LoadedEncoder(backbone, settings.encoder, 3, size, "imagenet", "torchvision", key)
    facts = environment(job.command)
    known = origin_in(
        {**facts, "gpu": facts["gpu"] if cuda else None},
        version=f"{facts['ldreg']}, lightly {facts['packages']['lightly']}",
        workers=workers,
        seed=seed,
        epochs=epochs,
        minutes=round(fitted.minutes, 4),
    )
    record = Record(job.name, job.expected, {}, curves=log.curves, origin=known)
    times = {"images_per_second": log.speed, "minutes": fitted.minutes}
    return Source(encoder, job.name, out, RunFolder(out), None, data), record, times


def _images(data: DataConfig) -> ResidentImages:
    """The training images, once it is known that nothing will be refused after the training."""
    load_classification(data, say=False)
    images = load_images(data, "train")
    if not isinstance(images, ResidentImages):
        raise ValueError(f"data: expected square images of one size that fit in memory, got files of {data.name}")
    if not images.labeled:
        raise ValueError(f"data: expected a label for every training image, got some of {data.name} without")
    return images


def find_checkpoint(out: Path, asked: Mapping[str, Any]) -> Saved | None:
    """The checkpoint to resume from, if any; ValueError if it cannot be read or was made with other settings."""
    saved = latest(out)
    if saved is not None:
        defaults = {key: asked[key] for key in ADDED_LATER}
        check_same(saved.settings, asked, where=f"{saved.path}: expected the settings of this run", defaults=defaults)
    return saved


class EpochLog(Callback):
    """Loss and speed of every epoch, printed at its end and kept in the checkpoints."""

    def __init__(self) -> None:
        self._epochs: list[dict[str, float]] = []
        self._first = True  # epoch of this process, in which workers start and kernels are chosen

    @property
    def curves(self) -> dict[str, list[tuple[float, float]]]:
        """The mean loss and the speed of each epoch, and the seconds until its end, which old checkpoints lack."""
        names = {"loss": "loss", "images_per_second": "speed", "seconds": "seconds"}
        return {
            name: [(number, epoch[key]) for number, epoch in enumerate(self._epochs, 1) if key in epoch]
            for name, key in names.items()
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


def batches(images: ResidentImages, settings: Settings, *, size: int, pin: bool) -> DataLoader[Any]:
    """Lightly's pairs of views: ((first, second), labels, file names), the views (B, 3, size, size)."""
    transform = SimCLRTransform(input_size=size, cj_strength=cast(float, settings.views.jitter), gaussian_blur=0.0)
    workers = worker_count(settings.data)
    return DataLoader(
        LightlyDataset.from_torch_dataset(Pictures(images), transform=transform),
        batch_size=settings.run.batch_size,
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

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        layers = list(ResNetGenerator("resnet-18").children())[:-1]
        self.backbone = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.projection_head = SimCLRProjectionHead(512, *settings.method.projector)
        self.criterion = NTXentLoss(temperature=settings.method.temperature)
        self._settings = settings
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
        config, rate = self._settings.optimizer, scaled_lr(self._settings.optimizer, self._settings.run.batch_size)
        decay = config.weight_decay
        optimizer = torch.optim.SGD(self.parameters(), lr=rate, momentum=config.momentum, weight_decay=decay)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self._settings.schedule.epochs)
        return [optimizer], [schedule]
