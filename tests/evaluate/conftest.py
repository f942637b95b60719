"""Encoders that every test of an evaluation may use."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from ldreg.encoders import EncoderConfig, build_encoder
from ldreg.encoders.checkpoints import LoadedEncoder
from ldreg.options import split as split_words
from ldreg.train.recipes import load_recipe
from ldreg.train.run import pretrain
from ldreg.train.settings import resolve


class Pixels(nn.Module):
    """Pixels as they are, and a count of calls."""

    dimension = 64

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        return images.flatten(1)


@pytest.fixture
def pixels() -> LoadedEncoder:
    """An encoder whose representations are the pixels of 8x8 gray images, from 0 to 1."""
    return LoadedEncoder(Pixels().eval(), EncoderConfig(), 1, 8, "none", "ldreg", "pixels")


@pytest.fixture
def untrained() -> LoadedEncoder:
    """A small CNN with random weights, for 8x8 gray images."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = build_encoder(EncoderConfig(), channels=1, size=8)
    return LoadedEncoder(module.eval(), EncoderConfig(), 1, 8, "imagenet", "ldreg", "untrained")


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two runs of one epoch over a few digits, simclr and simclr_ldreg; not to be changed."""
    folder = tmp_path_factory.mktemp("runs")
    words = "--schedule.epochs 1 --schedule.warmup_epochs 0 --data.limit 200 --batch_size 64 --monitor.k 16"
    options, _ = split_words(
        f"{words} --trainer.threads 1 --trainer.device cpu --data.cache {folder / 'cache'}".split()
    )
    for method in ("simclr", "simclr_ldreg"):
        pretrain(resolve(load_recipe(f"digits/{method}"), options), folder / method)
    return folder


Write = Callable[..., Path]


@pytest.fixture
def write_images(tmp_path: Path) -> Write:
    """Writes folders of class folders of images: write_images(train={"cat": 3}, test={"cat": 2}, side=(20, 24))."""

    def write(*, side: tuple[int, int] = (20, 24), name: str = "images", **splits: dict[str, int]) -> Path:
        generator = np.random.default_rng(0)
        root = tmp_path / name
        for split, classes in splits.items():
            (root / split).mkdir(parents=True, exist_ok=True)
            for place, (label, number) in enumerate(classes.items()):
                folder = root / split / label if label else root / split
                folder.mkdir(exist_ok=True)
                for index in range(number):
                    array = generator.integers(0, 120, (*side, 3)) + 40 * place
                    Image.fromarray(array.astype(np.uint8)).save(folder / f"{index}.png")
        return root

    return write
