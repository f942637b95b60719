"""Which encoder, with which options; all but the small CNN are models of timm, so that their weights load there."""

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn

from ldreg.encoders.small import SmallCNN

if TYPE_CHECKING:  # imported where it is used, as it takes seconds
    import timm

Stem = Literal["imagenet", "cifar"]
Init = Literal["timm", "torch"]
Family = Literal["resnet", "vision_transformer"]  # modules of timm

# Short names of the paper's encoders and what timm calls them.
ALIASES = {
    "resnet18": "resnet18",
    "resnet50": "resnet50",
    "vit_tiny": "vit_tiny_patch16_224",
    "vit_small": "vit_small_patch16_224",
    "vit_base": "vit_base_patch16_224",
}
NAMES = ("small_cnn", *ALIASES)
# Families of the models of timm in the recipes, of which timm, whose import takes seconds, need not be asked.
FAMILIES: dict[str, Family] = {
    "resnet18": "resnet",
    "resnet50": "resnet",
    "vit_tiny": "vision_transformer",
    "vit_small": "vision_transformer",
    "vit_base": "vision_transformer",
    "test_vit": "vision_transformer",
}
KNOWN = ("small_cnn", *FAMILIES)
# Options that say how an encoder begins, and nothing of one that is trained.
BEGINNINGS = ("init", "zero_init")
# What timm's models raise, at their making or in use, where an image is too small for them or does not divide.
SIZE_ERRORS = (RuntimeError, AssertionError, ArithmeticError, ValueError)


@dataclass(frozen=True)
class EncoderConfig:
    """Which encoder maps images to representations.

    Args:
        name: small_cnn, resnet18, resnet50, vit_tiny, vit_small, vit_base, or any model name of timm.
        stem: First layers of a ResNet: imagenet (7x7 convolution of stride 2, max pool; the default) or cifar (3x3
            convolution of stride 1, no max pool).
        patch_size: Pixels along the side of a ViT's patch, a divisor of the image size; by default the model's own.
        drop_path: Probability with which the last residual branch is skipped in training, rising linearly from the
            first (stochastic depth).
        freeze_patch_embedding: Keep a ViT's patch embedding as it was drawn, which steadies training (MoCo v3).
        init: How the convolutions of a ResNet begin: timm (normal, by their outputs, as torchvision's too) or torch
            (uniform, by their inputs, as PyTorch's layers do by themselves: in a ResNet-18 all but the first 1.7 to
            2.4 times smaller, and before a batch norm smaller weights learn faster).
        zero_init: Whether the last batch norm of every residual branch of a ResNet begins at 0 and not at 1.

    Raises:
        ValueError: an unknown name, a value out of range, or an option that this encoder does not have.

    >>> EncoderConfig("resnet18", stem="cifar").stem
    'cifar'
    >>> EncoderConfig("resnt18")
    Traceback (most recent call last):
    ...
    ValueError: name: expected small_cnn, resnet18, ... or a model of timm, got 'resnt18'; nearest: resnet18...
    """

    name: str = "small_cnn"
    stem: Stem | None = None
    patch_size: int | None = None
    drop_path: float = 0.0
    freeze_patch_embedding: bool = False
    init: Init = "timm"
    zero_init: bool = True

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        if self.name not in KNOWN:
            check_timm_name(self.name)
        if self.stem not in (None, "imagenet", "cifar"):
            raise ValueError(f"stem: expected imagenet or cifar, got {self.stem!r}")
        if self.init not in ("timm", "torch"):
            raise ValueError(f"init: expected timm or torch, got {self.init!r}")
        if not isinstance(self.zero_init, bool):
            raise ValueError(f"zero_init: expected True or False, got {self.zero_init!r}")
        if self.patch_size is not None and self.patch_size < 1:
            raise ValueError(f"patch_size: expected at least 1, got {self.patch_size}")
        if not 0 <= self.drop_path < 1:
            raise ValueError(f"drop_path: expected a probability in [0, 1), got {self.drop_path}")
        self._check_options_apply()

    @property
    def timm_name(self) -> str:
        """What timm calls this encoder."""
        return ALIASES.get(self.name, self.name)

    def _check_options_apply(self) -> None:
        for option, given, applies, kind in (
            ("stem", self.stem is not None, self.is_from("resnet"), "a ResNet"),
            ("patch_size", self.patch_size is not None, self.is_from("vision_transformer"), "a ViT"),
            ("init", self.init != "timm", self.is_from("resnet"), "a ResNet"),
            ("zero_init", not self.zero_init, self.is_from("resnet"), "a ResNet"),
            ("freeze_patch_embedding", self.freeze_patch_embedding, self.is_from("vision_transformer"), "a ViT"),
            ("drop_path", self.drop_path > 0, self.name != "small_cnn", "a timm model"),
        ):
            if given and not applies:
                value = getattr(self, option)
                raise ValueError(f"{option}: expected to be left out, as {self.name} is not {kind}, got {value!r}")

    def is_from(self, family: Family) -> bool:
        """Whether it is a model of this module of timm."""
        if self.name in KNOWN:
            return FAMILIES.get(self.name) == family
        from timm.models import is_model_in_modules

        return is_model_in_modules(self.name, [family])


def build_encoder(config: EncoderConfig, *, channels: int, size: int) -> nn.Module:
    """An encoder with random weights that maps images (B, channels, size, size) to representations (B, D).

    D is its attribute `dimension`. ResNets, ViTs and whatever else has a timm name are the models of timm themselves,
    without a classifier: their state dict loads with `strict=True` into
    `timm.create_model(name, num_classes=0)`, and a ResNet's into torchvision's too, once its `fc` is an
    `nn.Identity()`. With the CIFAR stem, two lines prepare either:

        model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()

    The last batch norm of every residual branch of a ResNet starts at 0 by default, as in timm, SimCLR, BYOL and Barlow
    Twins. Pretrained weights are never loaded.

    Raises:
        ValueError: channels or size below 1; a patch that does not divide the image; an option that the model does
            not have; a model that yields no vector for images of this size.

    >>> encoder = build_encoder(EncoderConfig("vit_tiny", patch_size=4), channels=3, size=32)
    >>> encoder.dimension, encoder(torch.zeros(2, 3, 32, 32)).shape
    (192, torch.Size([2, 192]))
    """
    for argument, value in (("channels", channels), ("size", size)):
        if value < 1:
            raise ValueError(f"{argument}: expected at least 1, got {value}")
    if config.name == "small_cnn":
        return SmallCNN(channels=channels)
    model = create(config, channels=channels, size=size)
    if config.stem == "cifar":
        replace_stem(model, channels=channels)
    if config.init == "torch":
        for part in model.modules():
            if isinstance(part, nn.Conv2d):
                part.reset_parameters()
    if config.freeze_patch_embedding:
        cast(nn.Module, model.patch_embed).requires_grad_(False)
    # A plain attribute on timm's own module: a wrapper would change the keys of the state dict.
    cast(Any, model).dimension = measure_dimension(model, config=config, channels=channels, size=size)
    return model


def create(config: EncoderConfig, *, channels: int, size: int) -> nn.Module:
    """The timm model of this config for images (B, channels, size, size), without a classifier.

    Raises:
        ValueError: a patch that does not divide the image, a size the model cannot have, or drop_path for a model
            without it.
    """
    import timm

    options: dict[str, Any] = {"num_classes": 0, "in_chans": channels}
    # timm's own sign that a model is built for one image size and takes `img_size`.
    pretrained = timm.get_pretrained_cfg(config.timm_name)
    if pretrained is not None and pretrained.fixed_input_size:
        options["img_size"] = size
    if config.patch_size is not None:
        options["patch_size"] = config.patch_size
    if config.drop_path:
        options["drop_path_rate"] = config.drop_path
    if not config.zero_init:
        options["zero_init_last"] = False
    try:
        model = timm.create_model(config.timm_name, pretrained=False, **options)
    except TypeError as error:
        if "drop_path_rate" not in str(error):
            raise
        raise ValueError(f"drop_path: expected 0, as {config.name} has none, got {config.drop_path}") from error
    except SIZE_ERRORS as error:
        raise ValueError(wrong_size(config, size, error)) from error
    if isinstance(model, timm.models.VisionTransformer):
        check_patches(model, size=size)
    return model


def check_patches(model: "timm.models.VisionTransformer", *, size: int) -> None:
    """Refuse a ViT whose patches do not tile an image of `size` pixels; timm would leave the rest of it out."""
    patch = model.patch_embed.patch_size[0]
    if size % patch:
        raise ValueError(f"patch_size: expected a divisor of the image size {size}, got {patch}")


def replace_stem(model: nn.Module, *, channels: int) -> None:
    """Give a ResNet the stem for small images, in place: a 3x3 convolution of stride 1 and no max pool.

    Raises:
        ValueError: the stem is not one convolution and a max pool (ResNet-D and the like).
    """
    if not (isinstance(model.conv1, nn.Conv2d) and isinstance(model.maxpool, nn.MaxPool2d)):
        raise ValueError("stem: expected imagenet, as this ResNet has a stem of its own, got 'cifar'")
    model.conv1 = nn.Conv2d(channels, model.conv1.out_channels, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()


@torch.no_grad()
def measure_dimension(model: nn.Module, *, config: EncoderConfig, channels: int, size: int) -> int:
    """The D of the model's representations, found by one image: what timm models say of themselves is not uniform.

    Raises:
        ValueError: the model fails on images of this size, or yields no vector per image.
    """
    training = model.training
    model.eval()
    try:
        representations: Tensor = model(torch.zeros(1, channels, size, size))
    except SIZE_ERRORS as error:
        raise ValueError(wrong_size(config, size, error)) from error
    finally:
        model.train(training)
    if representations.ndim != 2:
        shape = tuple(representations.shape)
        raise ValueError(f"name: expected a model that yields (B, D), got {config.name!r}, which yields {shape}")
    return representations.shape[1]


def wrong_size(config: EncoderConfig, size: int, error: Exception) -> str:
    """The error message for images of a size that the model cannot take."""
    return f"size: expected images that {config.name} takes, got {size} px ({error})"


def check_timm_name(name: str) -> None:
    """Refuse a name that is neither ours nor timm's, and say the nearest that are."""
    import timm

    # timm takes a tag after a dot, which names pretrained weights; as none are loaded, it would have no effect.
    if "." not in name and timm.is_model(name):
        return
    near = difflib.get_close_matches(name.partition(".")[0], sorted({*NAMES, *timm.list_models()}), n=3)
    nearest = f"; nearest: {', '.join(near)}" if near else ""
    raise ValueError(f"name: expected {', '.join(NAMES)} or a model of timm, got {name!r}{nearest}")
