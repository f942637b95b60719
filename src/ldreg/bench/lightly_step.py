"""Steps of lightly's CIFAR-10 recipe of SimCLR: its transform, heads and loss, torch's loader, a plain loop."""

import itertools
import time
from collections.abc import Iterator
from typing import Any

import torch
from lightly.loss import NTXentLoss
from lightly.models.modules import SimCLRProjectionHead
from lightly.transforms.simclr_transform import SimCLRTransform
from torch import nn
from torch.utils.data import DataLoader

from ldreg.bench.benchmark import Setting
from ldreg.bench.measure import METERS, Measurement
from ldreg.bench.training_step import settings_of, synthetic
from ldreg.bench.view_makers import InMemory
from ldreg.encoders import build_encoder

_STEPS = {"cpu": 3, "cuda": 20}  # of a block
_AHEAD = 2  # batches that torch's loader has each worker make in advance


def train(setting: Setting) -> Measurement:
    """Time blocks of steps, after so many that the loader's reserve is used up and the workers set the pace."""
    batches = _batches(setting)
    meter = METERS[setting.device]()
    step = _Step(setting)
    for _ in range(_AHEAD * setting.threads + 2):
        step(next(batches))
    seconds = []
    steps = _STEPS[setting.device]
    for _ in range(setting.repeats):
        start = _now(setting)
        for _ in range(steps):
            step(next(batches))
        seconds.append((_now(setting) - start) / steps)
    return Measurement(tuple(seconds), meter.extra_mb)


class _Step:
    """The model with its loss and optimizer."""

    def __init__(self, setting: Setting) -> None:
        torch.manual_seed(setting.seed)
        encoder: Any = build_encoder(
            settings_of(setting, regularized=False).encoder, channels=3, size=setting.size.pixels
        )
        head = SimCLRProjectionHead(encoder.dimension, encoder.dimension, 128)
        self.device = setting.device
        self.model = nn.Sequential(encoder, head).to(self.device)
        self.criterion = NTXentLoss(temperature=0.5)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.06, momentum=0.9, weight_decay=5e-4)

    def __call__(self, views: list[torch.Tensor]) -> None:
        first, second = (view.to(self.device, non_blocking=True) for view in views)
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            loss = self.criterion(self.model(first), self.model(second))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def _batches(setting: Setting) -> Iterator[list[torch.Tensor]]:
    # Arrays that become Pillow images when drawn, as torchvision's CIFAR10 has them: faster than reading files.
    pixels = synthetic(setting).images
    transform = SimCLRTransform(input_size=setting.size.pixels, cj_strength=0.5, gaussian_blur=0.0)
    loader = DataLoader(
        InMemory(list(pixels), _FromArray(transform)),
        batch_size=setting.size.images,
        shuffle=True,
        drop_last=True,
        num_workers=setting.threads,
        persistent_workers=True,
        pin_memory=setting.device == "cuda",
    )
    return (views for _ in itertools.count() for views, _ in loader)


class _FromArray:
    """A transform of Pillow images, for arrays (3, H, W)."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, array: torch.Tensor) -> Any:
        from PIL import Image

        return self.transform(Image.fromarray(array.permute(1, 2, 0).numpy()))


def _now(setting: Setting) -> float:
    if setting.device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
