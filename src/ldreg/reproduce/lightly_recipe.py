"""The model, the loss and the views of lightly's CIFAR-10 recipe of SimCLR, from lightly's own parts."""

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

from ldreg.data import ResidentImages
from ldreg.reproduce.lightly_settings import DIMENSION, EMBEDDING, JITTER, MOMENTUM, TEMPERATURE, WEIGHT_DECAY


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
