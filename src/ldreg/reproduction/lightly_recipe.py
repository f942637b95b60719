"""Lightly's CIFAR-10 recipe of SimCLR, from lightly's own parts."""

from dataclasses import dataclass
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
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ldreg.data import DataConfig, ResidentImages
from ldreg.evaluation.compute import AUTOCAST, Precision
from ldreg.reporting.run_record import Setting

# lightly's benchmark of CIFAR-10, docs/source/getting_started/benchmarks/cifar10_benchmark.py of its repository, at the
# batch size of 512 of its table.
BATCH_SIZE = 512
LR, LR_BATCH = 0.06, 128  # the learning rate is that of a batch of 128, scaled linearly
MOMENTUM, WEIGHT_DECAY = 0.9, 5e-4
TEMPERATURE = 0.5
DIMENSION, EMBEDDING = 512, 128
JITTER = 0.5


@dataclass(frozen=True)
class Recipe:
    """The recipe, and what it leaves open.

    Args:
        data: square images of one size, of which workers, at most as many as cores, make the views
        epochs: passes over the training images
        seed: of the weights, the order and the views
        batch_size: images of a step
        precision: of the training; lightly's script has fp32

    >>> Recipe(DataConfig("cifar10", "cifar10.tar.xz"), epochs=30, seed=0).lr
    0.24
    """

    data: DataConfig
    epochs: int
    seed: int
    batch_size: int = BATCH_SIZE
    precision: Precision = "fp32"

    def __post_init__(self) -> None:
        for name, value in (("epochs", self.epochs), ("batch_size", self.batch_size)):
            if value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        if self.precision not in AUTOCAST:
            raise ValueError(f"precision: expected {' or '.join(AUTOCAST)}, got {self.precision!r}")

    @property
    def lr(self) -> float:
        """The learning rate at the start."""
        return LR * self.batch_size / LR_BATCH

    @property
    def settings(self) -> dict[str, Setting]:
        """By the keys of our own runs where they mean the same."""
        return {
            "by": "lightly",
            "method": "simclr",
            "regularizer": "none",
            "batch_size": self.batch_size,
            "seed": self.seed,
            "simclr.temperature": TEMPERATURE,
            "simclr.projector": [DIMENSION, EMBEDDING],
            "data.name": self.data.name,
            "data.size": self.data.size,
            "data.limit": self.data.limit,
            "data.validation": self.data.validation,
            "views.policy": "simclr",
            "views.jitter": JITTER,
            "views.blur": False,
            "views.normalization": "imagenet",
            "encoder.name": "resnet-18",
            "optimizer.name": "sgd",
            "optimizer.lr": self.lr,
            "optimizer.lr_scaling": "none",
            "optimizer.weight_decay": WEIGHT_DECAY,
            "optimizer.momentum": MOMENTUM,
            "schedule.epochs": self.epochs,
            "schedule.warmup_epochs": 0.0,
            "schedule.min_lr": 0.0,
            "trainer.precision": self.precision,
        }


class Pictures(Dataset[Any]):
    """Images that lie in memory, as Pillow images with their labels, which is how torchvision's CIFAR10 gives them."""

    def __init__(self, images: ResidentImages) -> None:
        color = images.images.expand(-1, 3, -1, -1) if images.channels == 1 else images.images
        self._pixels: np.ndarray[Any, np.dtype[np.uint8]] = color.permute(0, 2, 3, 1).contiguous().numpy()
        self._labels = images.labels.tolist()
        self.transform: Any = None  # which lightly sets

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

    The benchmark takes the layers of lightly's ResNet-18 one after the other, which leaves out the ReLU after the first
    batch norm; so does this.
    """

    def __init__(self, *, epochs: int, lr: float) -> None:
        super().__init__()
        layers = list(ResNetGenerator("resnet-18").children())[:-1]
        self.backbone = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.projection_head = SimCLRProjectionHead(DIMENSION, DIMENSION, EMBEDDING)
        self.criterion = NTXentLoss(temperature=TEMPERATURE)
        self._epochs, self._lr = epochs, lr

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of a pair of views."""
        (first, second), _, _ = batch
        embeddings = [self.projection_head(self.backbone(view)) for view in (first, second)]
        return cast(Tensor, self.criterion(*embeddings))

    def configure_optimizers(self) -> Any:
        """SGD over all parameters, with a cosine that falls epoch by epoch."""
        optimizer = torch.optim.SGD(self.parameters(), lr=self._lr, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self._epochs)]
