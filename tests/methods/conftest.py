"""Small encoders that every method can be built around."""

from collections.abc import Callable

import pytest
import torch
from timm.models import VisionTransformer
from torch import nn

from ldreg.methods import METHODS, Method

SMALL: dict[str, dict[str, object]] = {
    "simclr": {"projector": (16, 8)},
    "simclr_tuned": {"projector": (16, 16, 8)},
    "byol": {"projector": (16, 8), "predictor": (16, 8)},
    "moco": {"projector": (16, 8), "queue_size": 40},
    "moco_v3": {"version": "v3", "projector": (16, 8), "predictor": (16, 8)},
    "vicreg": {"projector": (16, 16, 8)},
    "barlow_twins": {"projector": (16, 16, 8)},
    "mae": {"decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2},
}


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
    entry = METHODS[name.removesuffix("_v3")]
    encoder = transformer() if name == "mae" else Convolutions()
    return entry.build(encoder, entry.config(**(SMALL[name] | options)))


@pytest.fixture
def make() -> Callable[..., Method]:
    """A method by name ("moco_v3": the third version of MoCo) around a small encoder of 8×8 images."""
    torch.manual_seed(0)
    return build


@pytest.fixture
def make_transformer() -> Callable[..., VisionTransformer]:
    torch.manual_seed(0)
    return transformer


@pytest.fixture(params=list(SMALL))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)
