"""Encoders of runs as models of timm and torchvision: outputs equal those of the encoder that the run holds."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from PIL import Image
from safetensors.torch import load_file
from tests.integrations.conftest import MakeRun
from timm.data import create_transform, resolve_model_data_config
from torch import Tensor, nn

from ldreg.data import DataConfig, ImageFiles, ResidentImages, load_images
from ldreg.encoders import EncoderConfig
from ldreg.encoders.checkpoints import load_encoder
from ldreg.evaluate.features import features
from ldreg.integrations.timm import create_model
from ldreg.views import Views, ViewsConfig


def images(size: int, channels: int = 3) -> Tensor:
    return torch.randn(3, channels, size, size, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def assert_same(model: nn.Module, encoder: nn.Module, x: Tensor) -> None:
    found, expected = model(x), encoder(x)
    assert expected.ndim == 2
    assert expected.std() > 0
    assert torch.equal(found, expected)


PLAIN: dict[str, tuple[EncoderConfig, int, dict[str, Any]]] = {
    "resnet18": (EncoderConfig("resnet18"), 64, {}),
    "vit_tiny_patch16_224": (EncoderConfig("vit_tiny"), 224, {}),
    "vit_small_patch16_224": (EncoderConfig("vit_small", patch_size=8), 32, {"img_size": 32, "patch_size": 8}),
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_timm_loads_it(make_run: MakeRun, name: str) -> None:
    config, size, options = PLAIN[name]
    run, encoder = make_run(config, size=size)
    model = timm.create_model(name, num_classes=0, checkpoint_path=run / "encoder.safetensors", **options)
    assert_same(model.eval(), encoder, images(size))
    again = timm.create_model(name, num_classes=0, **options)
    again.load_state_dict(load_file(run / "encoder.safetensors"))
    assert_same(again.eval(), encoder, images(size))


def test_torchvision_loads_a_resnet(make_run: MakeRun) -> None:
    run, encoder = make_run(EncoderConfig("resnet18", stem="imagenet"), size=64)
    model = torchvision.models.resnet18(num_classes=1)
    left = model.load_state_dict(load_file(run / "encoder.safetensors"), strict=False)
    assert (left.missing_keys, left.unexpected_keys) == (["fc.weight", "fc.bias"], [])
    model.fc = nn.Identity()
    assert_same(model.eval(), encoder, images(64))


ANY: list[tuple[EncoderConfig, int, int]] = [
    (EncoderConfig("resnet18", stem="cifar"), 32, 3),
    (EncoderConfig("resnet18", stem="cifar"), 28, 1),
    (EncoderConfig("resnet18"), 160, 3),
    (EncoderConfig("vit_tiny", patch_size=4, freeze_patch_embedding=True), 32, 3),
    (EncoderConfig("mobilenetv3_small_050"), 64, 3),
    (EncoderConfig("small_cnn"), 8, 1),
]


@pytest.mark.parametrize(("config", "size", "channels"), ANY, ids=lambda value: getattr(value, "name", None))
def test_any_run_is_a_model(make_run: MakeRun, config: EncoderConfig, size: int, channels: int) -> None:
    run, encoder = make_run(config, size=size, channels=channels)
    model: Any = create_model(run)
    assert not model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert_same(model, encoder, images(size, channels))
    assert model.dimension == encoder.dimension == model(images(size, channels)).shape[1]
    card = json.loads((run / "card.json").read_text())["input"]
    found = resolve_model_data_config(model)
    assert found["input_size"] == (channels, size, size)
    assert [*found["mean"], *found["std"]] == pytest.approx([*card["mean"], *card["std"]])
    assert (found["crop_pct"], found["interpolation"]) == (0.875 if size == 160 else 1.0, "bilinear")


def test_timms_transform_is_what_the_run_saw(make_run: MakeRun) -> None:
    run, _ = make_run(EncoderConfig("resnet18", stem="cifar"), size=32)
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    transform = create_transform(**resolve_model_data_config(create_model(run)))
    expected = Views(ViewsConfig(normalization="cifar"), size=32, channels=3).plain(
        torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0)
    )
    torch.testing.assert_close(transform(Image.fromarray(pixels)), expected[0])


SHAPES: dict[str, list[tuple[int, int]]] = {
    "the encoder's size": [],
    "squares": [(40, 40)],
    "wide": [(40, 57)],
    "mixed": [(40, 57), (64, 64), (300, 90), (7, 9)],
}


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("size", [32, 64, 96, 128, 160, 224])
@pytest.mark.parametrize("channels", [3, 1])
def test_representations_are_those_of_evaluate(
    make_run: MakeRun, tmp_path: Path, shapes: str, size: int, channels: int
) -> None:
    """By both ways from files: color, gray, palette, transparent; from an array where all are squares of one size."""
    run, _ = make_run(EncoderConfig("small_cnn"), size=size, channels=channels)
    chance = np.random.default_rng(0)
    for number in range(8):
        height, width = (SHAPES[shapes] or [(size, size)])[number % max(1, len(SHAPES[shapes]))]
        rgba = chance.integers(0, 256, (height, width, 4), dtype=np.uint8)
        folder = tmp_path / "images" / "train" / "cat"
        folder.mkdir(parents=True, exist_ok=True)
        mode, suffix = (("RGB", "jpg"), ("RGBA", "png"), ("L", "png"), ("P", "png"))[number % 4]
        Image.fromarray(rgba).convert(mode).save(folder / f"{number}.{suffix}")
    data = DataConfig("folder", str(tmp_path / "images"), workers=0, cache=str(tmp_path / "cache"))
    images = load_images(data, "train")
    assert isinstance(images, ResidentImages if len(SHAPES[shapes]) < 2 and shapes != "wide" else ImageFiles)
    expected = features(load_encoder(run), data, "train", device="cpu", images=images).representations
    model: Any = create_model(run)
    files = sorted(folder.iterdir())
    opened = [Image.open(file) for file in files]
    for given in (files, opened):
        with torch.no_grad():
            found = model(torch.stack([model.transform(image) for image in given]))
        torch.testing.assert_close(found, expected)
    assert expected.std(0).max() > 0


def test_the_transform_goes_with_a_copy_of_the_model(make_run: MakeRun) -> None:
    run, _ = make_run(EncoderConfig("small_cnn"), size=16)
    model: Any = pickle.loads(pickle.dumps(create_model(run)))
    assert model.transform(Image.new("RGB", (20, 30))).shape == (3, 16, 16)


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny"])
def test_a_classifier_is_put_on_it(make_run: MakeRun, name: str) -> None:
    run, encoder = make_run(EncoderConfig(name), size=32 if name == "resnet18" else 224)
    model: Any = create_model(run, num_classes=7)
    x = images(model.pretrained_cfg["input_size"][1])
    with torch.no_grad():
        assert model(x).shape == (3, 7)
        torch.testing.assert_close(model(x), model.get_classifier()(encoder(x)))
    assert (model.num_classes, model.pretrained_cfg["num_classes"]) == (7, 7)


@pytest.mark.parametrize("wrong", [7, -1, 2.5])
def test_a_number_of_classes_that_cannot_be_is_named(make_run: MakeRun, wrong: Any) -> None:
    run, _ = make_run(EncoderConfig(), size=8)
    with pytest.raises(ValueError, match=f"^num_classes: expected .*got {wrong}"):
        create_model(run, num_classes=wrong)
