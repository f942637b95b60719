"""Every recipe that comes with the package builds and takes two steps, on a handful of images and with narrow heads."""

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from ldreg.encoders import build_encoder
from ldreg.methods import METHODS
from ldreg.monitor.log import read_metrics
from ldreg.train.checkpoints import LAST
from ldreg.train.folder import RunFolder
from ldreg.train.recipes import load_recipe, recipe_names
from ldreg.train.run import pretrain
from ldreg.train.settings import Settings, resolve

TINY = {
    "batch_size": "8",
    "schedule.epochs": "1",
    "schedule.warmup_epochs": "0",
    "monitor.k": "3",
    "monitor.knn_k": "3",
    "monitor.points": "8",
    "monitor.every_steps": "1",
    "trainer.device": "cpu",
    "trainer.compile": "false",
    "trainer.precision": "fp32",
    "trainer.threads": "1",
}
TRAIN_IMAGES, TEST_IMAGES = 17, 6
# A ResNet takes seconds. Fast are the digits', CIFAR-10's with LDReg, and two with regularizers that those do not have.
QUICK = [
    *(name for name in recipe_names() if name.startswith("digits/")),
    *(name for name in recipe_names() if name.startswith("cifar10/") and name.endswith("_ldreg")),
    "imagenet/simclr_minlid",
    "imagenet/byol_variance_covariance",
]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images that differ in size, in two classes."""
    root = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    for split, count in (("train", TRAIN_IMAGES), ("val", TEST_IMAGES)):
        for number in range(count):
            path = root / split / ("cat", "dog")[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            height, width = generator.integers(36, 49, 2)
            Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path)
    return root


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    """A folder that goes after the test: checkpoints of all recipes would fill 15 GB."""
    yield RunFolder(tmp_path / "run")
    shutil.rmtree(tmp_path / "run", ignore_errors=True)


def thin(settings: Settings) -> dict[str, str]:
    """Options for narrow heads with as many layers as the recipe has."""
    method: Any = settings.method.settings() if settings.run.method == "moco" else settings.method
    found = {name: getattr(method, name, ()) for name in ("projector", "predictor")}
    options: dict[str, Any] = {name: [16] * (len(widths) - 1) + [8] for name, widths in found.items() if widths}
    if settings.run.method == "mae":
        options |= {"decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2}
    if getattr(method, "queue_size", 0):
        options["queue_size"] = 16
    return {f"{settings.run.method}.{name}": str(value) for name, value in options.items()}


def tiny(recipe: str, images: Path) -> Settings:
    """The recipe as it is, but for the size of everything."""
    tree = load_recipe(recipe)
    whole = resolve(tree)
    options = {**TINY, **thin(whole)}
    if whole.data.name == "digits":
        options["data.limit"] = str(TRAIN_IMAGES)
    else:
        options |= {"data.name": "folder", "data.path": str(images), "data.workers": "0"}
        options["data.size"] = {"cifar10": "16", "imagenet": "32"}[whole.data.name]
    if "k" in whole.regularizer:
        options[f"{whole.run.regularizer}.k"] = "3"
    return resolve(tree, list(options.items()))


def marked(recipe: str) -> Any:
    return pytest.param(recipe, marks=[] if recipe in QUICK else [pytest.mark.slow])


@pytest.mark.parametrize("recipe", [marked(name) for name in recipe_names()])
def test_every_recipe_takes_two_steps(recipe: str, images: Path, run: RunFolder) -> None:
    settings = tiny(recipe, images)
    pretrain(settings, run.path)
    saved = torch.load(run.checkpoints / LAST, weights_only=True, mmap=True)
    assert saved["global_step"] == 2
    assert_losses_are_finite(settings, run)
    weights = load_file(run.encoder)
    assert all(torch.isfinite(tensor).all() for tensor in weights.values())
    channels, size = (3, settings.data.size) if settings.data.size else (1, 8)
    with torch.device("meta"):  # names and shapes alone; drawing a ViT-B's weights takes longer than training it
        encoder = build_encoder(settings.encoder, channels=channels, size=size)
    encoder.load_state_dict(weights, strict=True, assign=True)


def assert_losses_are_finite(settings: Settings, run: RunFolder) -> None:
    logged = read_metrics(run.metrics)
    losses = {name: rows for name, rows in logged.items() if name.startswith("terms/") or name == "batch/loss"}
    assert {"batch/loss", "terms/ssl_loss"} <= losses.keys()
    assert ("terms/regularizer" in losses) == (settings.run.regularizer != "none")
    for name, rows in losses.items():
        assert [step for step, _, _ in rows] == ([1] if name == "terms/pull_at_weights" else [1, 2]), name
        assert all(math.isfinite(value) for _, _, value in rows), name


def test_the_fast_recipes_have_every_method_and_nearly_every_regularizer() -> None:
    quick, every = ([load_recipe(name) for name in names] for names in (QUICK, recipe_names()))
    assert {tree["method"] for tree in quick} == set(METHODS)
    # What VICReg's covariance term does is a part of what the two together do.
    assert {tree.get("regularizer") for tree in quick} == {tree.get("regularizer") for tree in every} - {"covariance"}
