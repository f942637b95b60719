import copy
from typing import Any, cast

import pytest
import timm
import torch
import torchvision
from timm.layers.drop import DropPath
from timm.models import is_model_in_modules
from torch import Tensor, nn

from ldreg.encoders import EncoderConfig, build_encoder
from ldreg.encoders.build import FAMILIES, NAMES


def dimension(encoder: nn.Module) -> int:
    return cast(int, encoder.dimension)


def state(encoder: nn.Module) -> dict[str, Tensor]:
    return encoder.state_dict()


def test_what_is_known_without_timm_is_what_timm_says() -> None:
    assert set(NAMES) <= {"small_cnn", *FAMILIES}
    for name, family in FAMILIES.items():
        assert is_model_in_modules(EncoderConfig(name).timm_name, [family])


def named(value: object) -> str:
    return value.name if isinstance(value, EncoderConfig) else str(value)


@pytest.mark.parametrize(
    ("config", "channels", "size", "expected"),
    [
        (EncoderConfig(), 1, 8, 128),
        (EncoderConfig(), 3, 32, 128),
        (EncoderConfig("resnet18", stem="cifar"), 1, 8, 512),
        (EncoderConfig("resnet50", stem="cifar"), 3, 16, 2048),
        (EncoderConfig("vit_tiny"), 3, 224, 192),
        (EncoderConfig("vit_tiny", patch_size=2), 1, 8, 192),
        (EncoderConfig("convnext_atto", drop_path=0.1), 3, 64, 320),
        # A head of its own before the classifier: the model calls its width 576, its outputs have 1024.
        (EncoderConfig("mobilenetv3_small_100"), 1, 32, 1024),
    ],
    ids=named,
)
def test_images_become_representations(config: EncoderConfig, channels: int, size: int, expected: int) -> None:
    encoder = build_encoder(config, channels=channels, size=size)
    assert encoder.training
    representations = encoder(torch.randn(2, channels, size, size))
    assert representations.shape == (2, expected)
    assert representations.dtype == torch.float32
    assert dimension(encoder) == expected
    assert dimension(copy.deepcopy(encoder)) == expected


@pytest.mark.parametrize(("name", "stem"), [("resnet18", None), ("resnet50", None), ("resnet18", "cifar")])
def test_resnets_load_into_torchvision_and_timm_and_agree(name: str, stem: Any) -> None:
    encoder = build_encoder(EncoderConfig(name, stem=stem), channels=3, size=64).eval()
    theirs = getattr(torchvision.models, name)()
    theirs.fc = nn.Identity()
    images = torch.randn(2, 3, 64, 64)
    for model in (theirs, timm.create_model(name, num_classes=0)):
        if stem:
            model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
        model.load_state_dict(state(encoder), strict=True)
        torch.testing.assert_close(model.eval()(images), encoder(images))


def test_vits_are_plain_timm_with_the_class_token_as_representation() -> None:
    encoder = build_encoder(EncoderConfig("vit_tiny", patch_size=4), channels=3, size=16).eval()
    assert type(encoder) is timm.models.VisionTransformer
    model = timm.create_model("vit_tiny_patch16_224", num_classes=0, img_size=16, patch_size=4).eval()
    model.load_state_dict(state(encoder), strict=True)
    images = torch.randn(2, 3, 16, 16)
    tokens = cast(Any, model).forward_features(images)
    assert tokens.shape == (2, 1 + 16, 192)
    torch.testing.assert_close(encoder(images), tokens[:, 0])


def test_freezing_the_patch_embedding_stops_its_gradient_alone() -> None:
    config = EncoderConfig("vit_tiny", patch_size=4, freeze_patch_embedding=True)
    encoder = build_encoder(config, channels=3, size=8)
    encoder(torch.randn(2, 3, 8, 8)).square().sum().backward()
    assert {name for name, p in encoder.named_parameters() if p.grad is None} == {
        "patch_embed.proj.weight",
        "patch_embed.proj.bias",
    }


@pytest.mark.parametrize("config", [EncoderConfig("resnet18", drop_path=0.4), EncoderConfig("vit_tiny", drop_path=0.4)])
def test_drop_path_skips_branches_in_training_only(config: EncoderConfig) -> None:
    torch.manual_seed(0)
    encoder = build_encoder(config, channels=3, size=32)
    rates = [part.drop_prob for part in encoder.modules() if isinstance(part, DropPath)]
    assert max(rates) == pytest.approx(0.4)
    for part in encoder.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.ones_(part.weight)  # residual branches that are 0 would not be missed
    images = torch.randn(8, 3, 32, 32)
    assert not torch.equal(encoder(images), encoder(images))
    encoder.eval()
    assert torch.equal(encoder(images), encoder(images))


def test_small_cnn_is_small_and_averages_over_pixels() -> None:
    encoder = build_encoder(EncoderConfig("small_cnn"), channels=1, size=8).eval()
    # 3x3 convolutions 1-16-32-64-128 without biases, and two parameters for each of 240 normalized channels.
    assert sum(p.numel() for p in encoder.parameters()) == 9 * (16 + 16 * 32 + 32 * 64 + 64 * 128) + 2 * 240
    images = torch.randn(2, 1, 8, 8)
    final = cast(Any, encoder).blocks(images)
    assert final.shape == (2, 128, 2, 2)
    torch.testing.assert_close(encoder(images), nn.functional.adaptive_avg_pool2d(final, 1).flatten(1))


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("smal_cnn", "small_cnn"),
        ("resnet-50", "resnet50"),
        ("vit-base", "vit_base"),
        ("convnext_tinny", "convnext_tiny"),
        # A tag names pretrained weights, which are never loaded.
        ("resnet50.a1_in1k", "resnet50"),
    ],
)
def test_unknown_names_are_answered_with_near_ones(name: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"^name: expected small_cnn, .* got '{name}'; nearest: .*{nearest}"):
        EncoderConfig(name)
    with pytest.raises(ValueError, match=r"vit_base or a model of timm, got '!!!!'$"):
        EncoderConfig("!!!!")


def test_a_resnet_begins_as_timms_unless_asked() -> None:
    plain, weights, branches = (
        build_encoder(EncoderConfig("resnet18", stem="cifar", **options), channels=3, size=32)
        for options in ({}, {"init": "torch"}, {"zero_init": False})
    )
    for encoder, wide, zero in ((plain, True, True), (weights, False, True), (branches, True, False)):
        block: Any = encoder.layer1[1]  # type: ignore[index]
        outputs = block.conv2.weight.shape[0] * 9
        assert (block.conv2.weight.var().item() > 1.5 / outputs) == wide
        assert (block.bn2.weight == 0).all() == zero
        assert (block.bn1.weight == 1).all()


@pytest.mark.parametrize(
    ("option", "options"),
    [
        ("stem", {"name": "vit_tiny", "stem": "cifar"}),
        ("stem", {"stem": "imagenet"}),
        ("stem", {"name": "resnet18", "stem": "big"}),
        ("patch_size", {"name": "resnet18", "patch_size": 4}),
        ("patch_size", {"name": "vit_tiny", "patch_size": 0}),
        ("freeze_patch_embedding", {"name": "resnet18", "freeze_patch_embedding": True}),
        ("init", {"name": "vit_tiny", "init": "torch"}),
        ("zero_init", {"zero_init": False}),
        ("zero_init", {"name": "resnet18", "zero_init": "false"}),
        ("init", {"name": "resnet18", "init": "zeros"}),
        ("drop_path", {"drop_path": 0.1}),
        ("drop_path", {"name": "vit_tiny", "drop_path": 1.0}),
    ],
)
def test_options_that_do_not_apply_are_rejected(option: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{option}: .* {options[option]!r}$|^{option}: .* {options[option]}$"):
        EncoderConfig(**options)


@pytest.mark.parametrize(
    ("option", "config", "size"),
    [
        ("patch_size", EncoderConfig("vit_tiny"), 8),
        ("patch_size", EncoderConfig("vit_tiny", patch_size=5), 32),
        ("stem", EncoderConfig("resnet18d", stem="cifar"), 32),
        ("size", EncoderConfig("mobilenetv3_small_100"), 0),
        ("size", EncoderConfig("convnext_atto"), 8),
        ("size", EncoderConfig("swin_tiny_patch4_window7_224"), 30),
        ("drop_path", EncoderConfig("dla34", drop_path=0.1), 32),
    ],
    ids=named,
)
def test_what_cannot_be_built_is_rejected(option: str, config: EncoderConfig, size: int) -> None:
    with pytest.raises(ValueError, match=f"^{option}: "):
        build_encoder(config, channels=3, size=size)
    with pytest.raises(ValueError, match=r"^channels: "):
        build_encoder(config, channels=0, size=size)
