"""A small set in COCO's layout, and encoders with random weights."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ldreg.encoders import EncoderConfig, LoadedEncoder, build_encoder
from ldreg.encoders.build import Stem
from ldreg.evaluate.detection.coco import write_generated

Encoders = Callable[..., LoadedEncoder]


@pytest.fixture(scope="session")
def encoder() -> Encoders:
    """An encoder by name, the same weights each time."""

    def make(name: str = "test_resnet", *, stem: Stem | None = None, channels: int = 3) -> LoadedEncoder:
        torch.manual_seed(0)
        config = EncoderConfig(name, stem=stem)
        module = build_encoder(config, channels=channels, size=64).eval()
        return LoadedEncoder(module, config, channels, 64, "imagenet", "timm", f"{name} of seed 0")

    return make


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated set; not to be changed."""
    root = tmp_path_factory.mktemp("generated")
    write_generated(root, train=6, val=3, size=96)
    return root


@pytest.fixture
def copied(generated: Path, tmp_path: Path) -> Path:
    """A copy of the set, to be broken."""
    return Path(shutil.copytree(generated, tmp_path / "coco"))
