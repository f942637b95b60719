"""Which encoder a state dict under timm's names is of, and for which images, as far as its shapes say."""

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt

from torch import Tensor

from ldreg.encoders.build import EncoderConfig, Stem
from ldreg.text import listed

# Blocks in each of the four stages, and whether they are bottlenecks.
RESNETS: dict[tuple[tuple[int, ...], bool], str] = {
    ((2, 2, 2, 2), False): "resnet18",
    ((3, 4, 6, 3), False): "resnet34",
    ((3, 4, 6, 3), True): "resnet50",
    ((3, 4, 23, 3), True): "resnet101",
    ((3, 8, 36, 3), True): "resnet152",
}
# Width and depth.
VITS: dict[tuple[int, ...], str] = {
    (192, 12): "vit_tiny",
    (384, 12): "vit_small",
    (768, 12): "vit_base",
    (1024, 24): "vit_large_patch16_224",
}
STEMS: dict[int, Stem] = {3: "cifar", 7: "imagenet"}
RESNET_SIZES: dict[Stem | None, int] = {"cifar": 32, "imagenet": 224}

Tensors = Mapping[str, Tensor]


def recognize(
    weights: Tensors, *, encoder: EncoderConfig | None, channels: int | None, size: int | None
) -> tuple[EncoderConfig, int, int]:
    """The encoder of these weights, the channels and the size of its images; what is given goes before what is guessed.

    Stem, patch size and channels are read from the weights, a ViT's size from its position embedding. A ResNet's size
    cannot be: it is 224, and 32 with the CIFAR stem, unless given.

    Raises:
        ValueError: the encoder or the size cannot be told, or what is given contradicts the weights.

    >>> import timm
    >>> model = timm.create_model("resnet18", num_classes=0, in_chans=1)
    >>> config, channels, size = recognize(model.state_dict(), encoder=None, channels=None, size=None)
    >>> config.name, config.stem, channels, size
    ('resnet18', 'imagenet', 1, 224)
    """
    config = completed(encoder or infer(weights), weights)
    found = first_channels(config, weights)
    if channels is not None and found is not None and channels != found:
        raise ValueError(f"channels: expected {found}, as its weights have, got {channels}")
    return config, channels or found or 3, image_size(config, weights, size)


def infer(weights: Tensors) -> EncoderConfig:
    """A ResNet or ViT of a usual depth and width, from the names and shapes of its weights.

    Raises:
        ValueError: they are of none of them.
    """
    name = _resnet(weights) or _vit(weights)
    if name is None:
        raise ValueError(
            f"expected the weights of a usual ResNet or ViT, got {len(weights)} tensors {listed(weights, 3)}; "
            "another encoder has to be named (--encoder.name)"
        )
    return EncoderConfig(name)


def _resnet(weights: Tensors) -> str | None:
    # ResNeXts, wide ResNets and ResNet-Ds have as many blocks, and other widths or another stem.
    widths = _shape(weights, "layer1.0.conv1.weight")[:1], _shape(weights, "layer1.0.conv2.weight")[:2]
    stem = _shape(weights, "conv1.weight")
    if widths != ((64,), (64, 64)) or len(stem) != 4 or stem[-1] not in STEMS:
        return None
    blocks = tuple(_count(weights, f"layer{stage}.") for stage in range(1, 5))
    return RESNETS.get((blocks, "layer1.0.conv3.weight" in weights))


def _vit(weights: Tensors) -> str | None:
    width = _shape(weights, "patch_embed.proj.weight")[:1]
    return VITS.get((*width, _count(weights, "blocks."))) if width else None


def _shape(weights: Tensors, name: str) -> tuple[int, ...]:
    return tuple(weights[name].shape) if name in weights else ()


def _count(weights: Tensors, prefix: str) -> int:
    """How many different numbers follow the prefix."""
    return len({name.removeprefix(prefix).partition(".")[0] for name in weights if name.startswith(prefix)})


def completed(config: EncoderConfig, weights: Tensors) -> EncoderConfig:
    """The config with the stem or patch size that the weights have, where it leaves them open."""
    stem, patch = _shape(weights, "conv1.weight"), _shape(weights, "patch_embed.proj.weight")
    if config.stem is None and len(stem) == 4 and stem[-1] in STEMS and config.is_from("resnet"):
        return replace(config, stem=STEMS[stem[-1]])
    if config.patch_size is None and len(patch) == 4 and config.is_from("vision_transformer"):
        return replace(config, patch_size=patch[-1])
    return config


def first_channels(config: EncoderConfig, weights: Tensors) -> int | None:
    """The input channels of the first convolution; None where timm does not say which that is."""
    if config.name == "small_cnn":
        layer = "blocks.0.0"
    else:
        import timm

        pretrained = timm.get_pretrained_cfg(config.timm_name)
        first = pretrained.first_conv if pretrained is not None else None
        layer = first if isinstance(first, str) else ""
    shape = _shape(weights, f"{layer}.weight")
    return shape[1] if len(shape) == 4 else None


def image_size(config: EncoderConfig, weights: Tensors, given: int | None) -> int:
    """The side of the images: what a position embedding is for, else what is given, else the encoder's usual one.

    Raises:
        ValueError: a position embedding for another size than the given, or a small CNN's size not given.
    """
    positions = positioned_size(weights)
    if positions is not None:
        if given not in (None, positions):
            raise ValueError(f"size: expected {positions}, as its position embedding has, got {given}")
        return positions
    if given is not None:
        return given
    if config.name == "small_cnn":
        raise ValueError("size: expected the side of the images (--size), which a small CNN's weights do not say")
    if config.stem is not None:
        return RESNET_SIZES[config.stem]
    import timm

    pretrained = timm.get_pretrained_cfg(config.timm_name)
    return pretrained.input_size[-1] if pretrained is not None else 224


def positioned_size(weights: Tensors) -> int | None:
    """The size of images that a ViT's position embedding is for: its patches, with or without a class token before."""
    positions, patches = _shape(weights, "pos_embed"), _shape(weights, "patch_embed.proj.weight")
    if len(positions) != 3 or len(patches) != 4:
        return None
    tokens = positions[1]
    grids = (isqrt(count) for count in (tokens - 1, tokens) if count > 0 and isqrt(count) ** 2 == count)
    grid = next(grids, None)
    return None if grid is None else grid * patches[-1]
