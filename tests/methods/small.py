"""Every method around a small encoder of 8×8 images, by its name; moco_v3 is the third version of MoCo."""

from dataclasses import fields

import torch
from timm.models import VisionTransformer
from torch import nn

from ldreg.methods import METHODS, Method

SMALL: dict[str, object] = {
    "projector": (16, 8),
    "predictor": (16, 8),
    "queue_size": 40,
    "decoder_width": 16,
    "decoder_depth": 1,
    "decoder_heads": 2,
}
NAMES = [*METHODS, "moco_v3"]


class Convolutions(nn.Sequential):
    dimension = 12

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 6, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Conv2d(6, 12, 3, stride=2, padding=1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )


def transformer(size: int = 8, patch: int = 2, channels: int = 1) -> VisionTransformer:
    vit = VisionTransformer(size, patch, channels, num_classes=0, embed_dim=16, depth=2, num_heads=2)
    vit.dimension = 16  # type: ignore[assignment]
    return vit


def build(name: str, **options: object) -> Method:
    torch.manual_seed(0)
    method, _, version = name.partition("_v")
    entry = METHODS[method]
    unused = {"queue_size"} if version else {"predictor"} if method == "moco" else set()
    small = {field.name: SMALL[field.name] for field in fields(entry.config) if field.name in SMALL.keys() - unused}
    encoder = transformer() if method == "mae" else Convolutions()
    return entry.build(encoder, entry.config(**small | options | ({"version": f"v{version}"} if version else {})))
