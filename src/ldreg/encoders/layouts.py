"""State dicts as others leave them, under timm's names: what wraps them, how keys are called, what is in them."""

import re
from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from ldreg.text import listed

Layout = Literal["ldreg", "timm", "torchvision", "authors"]
Weights = dict[str, Tensor]

# Under which names a checkpoint keeps the state dict among epochs, optimizer states and the like.
WRAPPERS = ("state_dict", "model_state_dict", "model", "encoder")
# What DistributedDataParallel, torch.compile and an attribute of that name put before every key.
PREFIXES = ("module.", "_orig_mod.", "model.")

# Torchvision's names of a ViT's parts and timm's, applied one after the other; the MLP's names changed in 0.14.
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

# First parts of the keys of classifiers, by library.
HEADS = {"fc", "head", "heads", "head_dist", "classifier", "linear"}
# Words in the first part of the keys that pretraining has beside the encoder: projectors, probes, targets, decoders.
BESIDE = {
    *("projector", "projection", "predictor", "prediction", "online", "probe"),
    *("target", "momentum", "teacher", "ema", "queue", "decoder"),
}
# Counters that a profiler leaves in every layer; the authors' code skips them too.
COUNTERS = {"total_ops", "total_params"}


def unwrap(content: object) -> Weights:
    """The state dict in what a checkpoint holds, without the prefix that all its keys share.

    Raises:
        ValueError: there is none, or several.

    >>> import torch
    >>> unwrap({"epoch": torch.tensor(3), "model": {"module.conv1.weight": torch.zeros(1)}})
    {'conv1.weight': tensor([0.])}
    """
    if not isinstance(content, Mapping):
        raise ValueError(f"expected a state dict of names and tensors, got a {type(content).__name__}")
    inside = [name for name in WRAPPERS if isinstance(content.get(name), Mapping)]
    if len(inside) > 1:
        raise ValueError(f"expected one state dict, got several: {listed(inside)}")
    if inside:  # first, as what lies beside, such as the epoch, may be tensors, too
        return unwrap(content[inside[0]])
    weights = {name: value for name, value in content.items() if isinstance(name, str) and isinstance(value, Tensor)}
    if not weights:
        held = f"a dict of {listed(map(str, content))}" if content else "an empty dict"
        raise ValueError(f"expected a state dict of names and tensors, got {held}")
    return _without_prefix(weights)


def _without_prefix(weights: Weights) -> Weights:
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in weights):
            return _without_prefix({name.removeprefix(prefix): tensor for name, tensor in weights.items()})
    return weights


def in_timm_names(weights: Weights) -> tuple[Layout, Weights]:
    """Which layout the weights are in, and the encoder's under timm's names, classifiers and projectors still with it.

    The authors' (github.com/HanxunH/LDReg) have a projector, predictor, decoder or online probe beside the encoder,
    whose keys may begin with `encoder.`. ResNets have the same names in torchvision and timm, and count as timm's.

    Raises:
        ValueError: what lies beside the keys that begin with `encoder.` is no known part of pretraining.

    >>> import torch
    >>> in_timm_names({"encoder.conv1.weight": torch.zeros(1), "projector.0.weight": torch.zeros(2)})
    ('authors', {'conv1.weight': tensor([0.])})
    """
    if "conv_proj.weight" in weights:
        return "torchvision", {_vit_name(name): tensor for name, tensor in weights.items()}
    inside = {name: tensor for name, tensor in weights.items() if name.startswith("encoder.")}
    if inside:
        if unknown := [name for name in weights if name not in inside and not beside(name)]:
            raise ValueError(f"expected known parts beside the encoder, got {len(unknown)} keys {listed(unknown, 3)}")
        return "authors", {name.removeprefix("encoder."): tensor for name, tensor in inside.items()}
    first = {name.partition(".")[0] for name in weights}
    return "authors" if "linear" in first or any(_of_pretraining(part) for part in first) else "timm", weights


def _vit_name(name: str) -> str:
    for pattern, replacement in VIT_NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def beside(name: str) -> bool:
    """Whether a key is of what lies beside an encoder, such as a classifier or a projector.

    >>> [beside(name) for name in ("fc.bias", "online_cls.1.weight", "fc_norm.weight", "layer1.0.conv1.total_ops")]
    [True, True, False, True]
    """
    first, _, _ = name.partition(".")
    return first in HEADS or _of_pretraining(first) or name.rpartition(".")[2] in COUNTERS


def _of_pretraining(part: str) -> bool:
    return part == "mask_token" or not BESIDE.isdisjoint(part.split("_"))


def has_decoder(weights: Weights) -> bool:
    """Whether the weights are of a masked autoencoder, decoder included."""
    return any("decoder" in name.partition(".")[0].split("_") for name in weights)
