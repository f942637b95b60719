"""State dicts of other libraries: rename their keys as timm does, and infer the encoder from names and shapes."""

import re
from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from typing import Any, Literal

from torch import Tensor

from ldreg.encoders.build import EncoderConfig, Stem
from ldreg.text import listed

Layout = Literal["ldreg", "timm", "torchvision", "authors"]
Weights = dict[str, Tensor]

# Keys under which checkpoints hold the state dict.
WRAPPERS = ("state_dict", "model_state_dict", "model", "encoder")
# Prefixes from DistributedDataParallel, torch.compile and a module attribute.
PREFIXES = ("module.", "_orig_mod.", "model.")

# Torchvision's names of a ViT's parts and timm's, replaced in this order; the MLP's names changed in 0.14.
VIT_NAMES = (
    (r"^class_token$", "cls_token"),
    (r"^conv_proj\.", "patch_embed.proj."),
    (r"^encoder\.pos_embedding$", "pos_embed"),
    (r"^encoder\.ln\.", "norm."),
    (r"^encoder\.layers\.encoder_layer_(\d+)\.", r"blocks.\1."),
    (r"^(blocks\.\d+)\.ln_([12])\.", r"\1.norm\2."),
    (r"^(blocks\.\d+)\.self_attention\.in_proj_(weight|bias)$", r"\1.attn.qkv.\2"),
    (r"^(blocks\.\d+)\.self_attention\.out_proj\.", r"\1.attn.proj."),
    (r"^(blocks\.\d+)\.mlp\.(?:0|linear_1)\.", r"\1.mlp.fc1."),
    (r"^(blocks\.\d+)\.mlp\.(?:3|linear_2)\.", r"\1.mlp.fc2."),
)

# First parts of the keys of classifiers in different libraries.
HEADS = {"fc", "head", "heads", "head_dist", "classifier", "linear"}
# Words in the first part of the keys of other parts of pretraining: projectors, probes, targets, decoders.
OTHER_PARTS = {
    *("projector", "projection", "predictor", "prediction", "online", "probe"),
    *("target", "momentum", "teacher", "ema", "queue", "decoder"),
}
# Counters that a profiler adds to every layer; the authors' code skips them too.
COUNTERS = {"total_ops", "total_params"}

# By the blocks of the four stages, and whether they are bottlenecks.
RESNETS: dict[tuple[tuple[int, ...], bool], str] = {
    ((2, 2, 2, 2), False): "resnet18",
    ((3, 4, 6, 3), False): "resnet34",
    ((3, 4, 6, 3), True): "resnet50",
    ((3, 4, 23, 3), True): "resnet101",
    ((3, 8, 36, 3), True): "resnet152",
}
# By width and depth.
VITS: dict[tuple[int, ...], str] = {
    (192, 12): "vit_tiny",
    (384, 12): "vit_small",
    (768, 12): "vit_base",
    (1024, 24): "vit_large_patch16_224",
}
STEMS: dict[int, Stem] = {3: "cifar", 7: "imagenet"}
RESNET_SIZES: dict[Stem | None, int] = {"cifar": 32, "imagenet": 224}


def unwrap(content: object) -> Weights:
    """The one state dict inside a checkpoint, without the prefix that all its keys share.

    >>> import torch
    >>> unwrap({"epoch": torch.tensor(3), "model": {"module.conv1.weight": torch.zeros(1)}})
    {'conv1.weight': tensor([0.])}
    """
    if not isinstance(content, Mapping):
        raise ValueError(f"expected a state dict of names and tensors, got a {type(content).__name__}")
    inside = [name for name in WRAPPERS if isinstance(content.get(name), Mapping)]
    if len(inside) > 1:
        raise ValueError(f"expected one state dict, got several: {listed(inside)}")
    if inside:  # before looking at tensors, because the epoch may be one
        return unwrap(content[inside[0]])
    weights = {name: value for name, value in content.items() if isinstance(name, str) and isinstance(value, Tensor)}
    if not weights:
        got = f"a dict of {listed(map(str, content))}" if content else "an empty dict"
        raise ValueError(f"expected a state dict of names and tensors, got {got}")
    return _without_prefix(weights)


def _without_prefix(weights: Weights) -> Weights:
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in weights):
            return _without_prefix({name.removeprefix(prefix): tensor for name, tensor in weights.items()})
    return weights


def in_timm_names(weights: Weights) -> tuple[Layout, Weights]:
    """The layout of the weights, and the weights under timm's names, still with classifiers and projectors.

    The authors' checkpoints (github.com/HanxunH/LDReg) also hold a projector, predictor, decoder or online probe, and
    the encoder's keys may begin with `encoder.`; then all others must be known parts of pretraining. ResNets are named
    alike in torchvision and timm and count as timm's.

    >>> import torch
    >>> in_timm_names({"encoder.conv1.weight": torch.zeros(1), "projector.0.weight": torch.zeros(2)})
    ('authors', {'conv1.weight': tensor([0.])})
    """
    if "conv_proj.weight" in weights:
        names = dict(zip(weights, weights, strict=True))
        for pattern, replacement in VIT_NAMES:
            names = {old: re.sub(pattern, replacement, new) for old, new in names.items()}
        return "torchvision", {names[old]: tensor for old, tensor in weights.items()}
    inside = {name: tensor for name, tensor in weights.items() if name.startswith("encoder.")}
    if inside:
        if unknown := [name for name in weights if name not in inside and not is_other_part(name)]:
            raise ValueError(f"expected known parts beside the encoder, got {len(unknown)} keys {listed(unknown, 3)}")
        return "authors", {name.removeprefix("encoder."): tensor for name, tensor in inside.items()}
    first = {name.partition(".")[0] for name in weights}
    return "authors" if "linear" in first or any(_of_pretraining(part) for part in first) else "timm", weights


def is_other_part(name: str) -> bool:
    """Whether a key belongs to another part than the encoder, such as a classifier or a projector.

    >>> [is_other_part(name) for name in ("fc.bias", "online_cls.weight", "fc_norm.weight", "layer1.conv1.total_ops")]
    [True, True, False, True]
    """
    first, _, _ = name.partition(".")
    return first in HEADS or _of_pretraining(first) or name.rpartition(".")[2] in COUNTERS


def _of_pretraining(part: str) -> bool:
    return part == "mask_token" or not OTHER_PARTS.isdisjoint(part.split("_"))


def has_decoder(weights: Weights) -> bool:
    """Whether the weights include a masked autoencoder's decoder."""
    return any("decoder" in name.partition(".")[0].split("_") for name in weights)


def recognize(
    weights: Weights, *, encoder: EncoderConfig | None, channels: int | None, size: int | None
) -> tuple[EncoderConfig, int, int]:
    """The encoder of these weights, and the channels and size of its images; given values take precedence.

    Stem, patch size and channels come from the weights, a ViT's size from its position embedding. A ResNet's size is
    not in its weights: it defaults to 224, or 32 with the CIFAR stem.

    >>> import timm
    >>> model = timm.create_model("resnet18", num_classes=0, in_chans=1)
    >>> config, channels, size = recognize(model.state_dict(), encoder=None, channels=None, size=None)
    >>> config.name, config.stem, channels, size
    ('resnet18', 'imagenet', 1, 224)
    """
    config = completed(encoder or infer(weights), weights)
    first = "blocks.0.0" if config.name == "small_cnn" else getattr(_pretrained(config), "first_conv", None)
    shape = _shape(weights, f"{first}.weight")  # timm does not name the first convolution of every model
    found = shape[1] if len(shape) == 4 else None
    if channels is not None and found is not None and channels != found:
        raise ValueError(f"channels: expected {found}, from its weights, got {channels}")
    return config, channels or found or 3, image_size(config, weights, size)


def _pretrained(config: EncoderConfig) -> Any:
    """What timm says of the images of a model; None for a model without pretrained weights."""
    import timm

    return timm.get_pretrained_cfg(config.timm_name)


def infer(weights: Weights) -> EncoderConfig:
    """The ResNet or ViT of a usual depth and width that has weights of these names and shapes."""
    # ResNeXts, wide ResNets and ResNet-Ds have as many blocks, but other widths or another stem.
    widths = _shape(weights, "layer1.0.conv1.weight")[:1], _shape(weights, "layer1.0.conv2.weight")[:2]
    stem, width = _shape(weights, "conv1.weight"), _shape(weights, "patch_embed.proj.weight")[:1]
    if widths == ((64,), (64, 64)) and len(stem) == 4 and stem[-1] in STEMS:
        blocks = tuple(_count(weights, f"layer{stage}.") for stage in range(1, 5))
        name = RESNETS.get((blocks, "layer1.0.conv3.weight" in weights))
    else:
        name = VITS.get((*width, _count(weights, "blocks.")))
    if name is None:
        raise ValueError(
            f"expected the weights of a usual ResNet or ViT, got {len(weights)} tensors {listed(weights, 3)}; "
            "name any other encoder (--encoder.name)"
        )
    return EncoderConfig(name)


def _shape(weights: Weights, name: str) -> tuple[int, ...]:
    return tuple(weights[name].shape) if name in weights else ()


def _count(weights: Weights, prefix: str) -> int:
    """The number of different parts that follow the prefix."""
    return len({name.removeprefix(prefix).partition(".")[0] for name in weights if name.startswith(prefix)})


def completed(config: EncoderConfig, weights: Weights) -> EncoderConfig:
    """The config with its missing stem or patch size taken from the weights."""
    stem, patch = _shape(weights, "conv1.weight"), _shape(weights, "patch_embed.proj.weight")
    if config.stem is None and len(stem) == 4 and stem[-1] in STEMS and config.is_from("resnet"):
        return replace(config, stem=STEMS[stem[-1]])
    if config.patch_size is None and len(patch) == 4 and config.is_from("vision_transformer"):
        return replace(config, patch_size=patch[-1])
    return config


def image_size(config: EncoderConfig, weights: Weights, given: int | None) -> int:
    """The side of the images: from the position embedding, else as given, else the encoder's default."""
    positions, patches = _shape(weights, "pos_embed"), _shape(weights, "patch_embed.proj.weight")
    if len(positions) == 3 and len(patches) == 4:
        for count in (positions[1] - 1, positions[1]):  # with a class token, and without
            if count > 0 and isqrt(count) ** 2 == count:
                size = isqrt(count) * patches[-1]
                if given not in (None, size):
                    raise ValueError(f"size: expected {size}, from its position embedding, got {given}")
                return size
    if given is not None:
        return given
    if config.name == "small_cnn":
        raise ValueError("size: expected the side of the images (--size), which is not in the weights of a small CNN")
    if config.stem is not None:
        return RESNET_SIZES[config.stem]
    pretrained = _pretrained(config)
    return pretrained.input_size[-1] if pretrained is not None else 224
