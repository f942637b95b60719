"""Build encoders: the small CNN, and models of timm, whose weights load there."""

import difflib
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

Stem = Literal["imagenet", "cifar"]
Init = Literal["timm", "torch"]
Family = Literal["resnet", "vision_transformer"]  # modules of timm

# Short names of the paper's encoders, and their names in timm.
ALIASES = {
    "resnet18": "resnet18",
    "resnet50": "resnet50",
    "vit_tiny": "vit_tiny_patch16_224",
    "vit_small": "vit_small_patch16_224",
    "vit_base": "vit_base_patch16_224",
}
NAMES = ("small_cnn", *ALIASES)
# Families of the timm models in the recipes, so that checking them does not import timm.
FAMILIES: dict[str, Family] = {
    **dict.fromkeys(("resnet18", "resnet50"), "resnet"),
    **dict.fromkeys(("vit_tiny", "vit_small", "vit_base", "test_vit"), "vision_transformer"),
}
KNOWN = ("small_cnn", *FAMILIES)
# Options of the initialization, which a trained encoder no longer depends on.
INITIALIZATION = ("init", "zero_init")
# Output channels and stride of each block of the small CNN: 8 px images end at 2x2, 32 px images at 8x8.
BLOCKS = ((16, 1), (32, 2), (64, 2), (128, 1))
# Errors of timm's models, when built or called, for image sizes that they cannot take.
SIZE_ERRORS = (RuntimeError, AssertionError, ArithmeticError, ValueError)


@dataclass(frozen=True)
class EncoderConfig:
    """The encoder that maps images to representations.

    Args:
        name: small_cnn, resnet18, resnet50, vit_tiny, vit_small, vit_base, or any model name of timm.
        stem: First layers of a ResNet: imagenet (7x7 convolution of stride 2, max pool; the default) or cifar (3x3
            convolution of stride 1, no max pool).
        patch_size: Pixels along the side of a ViT's patch, a divisor of the image size; by default the model's own.
        drop_path: Probability with which the last residual branch is skipped in training, rising linearly from the
            first (stochastic depth).
        freeze_patch_embedding: Do not train a ViT's patch embedding, which stabilizes training (MoCo v3).
        init: Initialization of a ResNet's convolutions: timm (normal, by fan-out, as in torchvision) or torch (uniform,
            by fan-in, PyTorch's default: in a ResNet-18 all but the first are 1.7 to 2.4 times smaller, and before a
            batch norm smaller weights learn faster).
        zero_init: Initialize the last batch norm of every residual branch of a ResNet with 0 instead of 1.

    Raises:
        ValueError: the name is unknown, a value is out of range, or the encoder does not have an option.

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
        if self.name not in KNOWN:
            _check_timm_name(self.name)
        for option, known in (("stem", (None, *get_args(Stem))), ("init", get_args(Init))):
            if (value := getattr(self, option)) not in known:
                raise ValueError(f"{option}: expected one of {', '.join(map(str, known))}, got {value!r}")
        if not isinstance(self.zero_init, bool):
            raise ValueError(f"zero_init: expected True or False, got {self.zero_init!r}")
        if self.patch_size is not None and self.patch_size < 1:
            raise ValueError(f"patch_size: expected at least 1, got {self.patch_size}")
        if not 0 <= self.drop_path < 1:
            raise ValueError(f"drop_path: expected a probability in [0, 1), got {self.drop_path}")
        for options, applies, kind in (
            (("stem", "init", "zero_init"), self.is_from("resnet"), "a ResNet"),
            (("patch_size", "freeze_patch_embedding"), self.is_from("vision_transformer"), "a ViT"),
            (("drop_path",), self.name != "small_cnn", "a timm model"),
        ):
            for option in options:
                if (value := getattr(self, option)) != getattr(type(self), option) and not applies:
                    raise ValueError(f"{option}: applies only to {kind}, not to {self.name}, got {value!r}")

    @property
    def timm_name(self) -> str:
        """The name of this encoder in timm."""
        return ALIASES.get(self.name, self.name)

    def is_from(self, family: Family) -> bool:
        """Whether the encoder belongs to this module of timm."""
        if self.name in KNOWN:
            return FAMILIES.get(self.name) == family
        from timm.models import is_model_in_modules

        return is_model_in_modules(self.name, [family])


def build_encoder(config: EncoderConfig, *, channels: int, size: int) -> nn.Module:
    """An encoder with random weights that maps images (B, channels, size, size) to representations (B, D).

    D is its attribute `dimension`. All but the small CNN are timm's own models without a classifier: their state dict
    loads with `strict=True` into `timm.create_model(name, num_classes=0)`, and a ResNet's also into torchvision's, with
    `fc` replaced by `nn.Identity()`. For the CIFAR stem, prepare either with two lines:

        model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()

    Pretrained weights are never loaded.

    Raises:
        ValueError: channels or size are below 1, a patch does not divide the image, the model does not have an option,
            or it returns no vector for images of this size.

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
    if config.init == "torch":
        for part in model.modules():
            if isinstance(part, nn.Conv2d):
                part.reset_parameters()
    if config.freeze_patch_embedding:
        cast(nn.Module, model.patch_embed).requires_grad_(False)
    # A plain attribute, because a wrapper would change the keys of the state dict.
    cast(Any, model).dimension = _measure_dimension(model, config=config, channels=channels, size=size)
    return model


def create(config: EncoderConfig, *, channels: int, size: int) -> nn.Module:
    """The timm model of this config for images (B, channels, size, size), without a classifier."""
    import timm

    options: dict[str, Any] = {"num_classes": 0, "in_chans": channels}
    # In timm, such a model is built for one image size and takes `img_size`.
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
        raise ValueError(f"drop_path: expected 0 for {config.name}, which has none, got {config.drop_path}") from error
    except SIZE_ERRORS as error:
        raise ValueError(_wrong_size(config, size, error)) from error
    # timm would ignore the rest of the image.
    if isinstance(model, timm.models.VisionTransformer) and size % (patch := model.patch_embed.patch_size[0]):
        raise ValueError(f"patch_size: expected a divisor of the image size {size}, got {patch}")
    if config.stem == "cifar":
        if not (isinstance(model.conv1, nn.Conv2d) and isinstance(model.maxpool, nn.MaxPool2d)):
            raise ValueError("stem: expected imagenet for a ResNet with another stem than one convolution, got 'cifar'")
        model.conv1 = _convolution(channels, model.conv1.out_channels)
        model.maxpool = nn.Identity()
    return model


@torch.no_grad()
def _measure_dimension(model: nn.Module, *, config: EncoderConfig, channels: int, size: int) -> int:
    """The D of the model's representations of one image, because timm's models do not declare it uniformly."""
    training = model.training
    model.eval()
    try:
        representations: Tensor = model(torch.zeros(1, channels, size, size))
    except SIZE_ERRORS as error:
        raise ValueError(_wrong_size(config, size, error)) from error
    finally:
        model.train(training)
    if representations.ndim != 2:
        shape = tuple(representations.shape)
        raise ValueError(f"name: expected a model that returns (B, D), got {config.name!r}, which returns {shape}")
    return representations.shape[1]


def _wrong_size(config: EncoderConfig, size: int, error: Exception) -> str:
    return f"size: expected an image size that {config.name} accepts, got {size} px ({error})"


def _check_timm_name(name: str) -> None:
    """Raise ValueError, with the nearest names, for a name that is neither ours nor timm's."""
    import timm

    # In timm, a tag after a dot names pretrained weights, which are never loaded here.
    if "." not in name and timm.is_model(name):
        return
    near = difflib.get_close_matches(name.partition(".")[0], sorted({*NAMES, *timm.list_models()}), n=3)
    nearest = f"; nearest: {', '.join(near)}" if near else ""
    raise ValueError(f"name: expected {', '.join(NAMES)} or a model of timm, got {name!r}{nearest}")


class SmallCNN(nn.Module):
    """Four blocks of 3x3 convolution, batch norm and ReLU, then the average over pixels: (B, C, S, S) to (B, 128).

    For images of 8 to 32 px; any size works. One CPU core processes about 20,000 digits of 8 px per second, forward and
    backward.

    >>> import torch
    >>> SmallCNN(channels=1)(torch.zeros(4, 1, 8, 8)).shape
    torch.Size([4, 128])
    """

    dimension: int

    def __init__(self, *, channels: int) -> None:
        super().__init__()
        blocks = []
        for width, stride in BLOCKS:
            blocks.append(nn.Sequential(_convolution(channels, width, stride), nn.BatchNorm2d(width), nn.ReLU(True)))
            channels = width
        self.blocks = nn.Sequential(*blocks)
        self.dimension = channels

    def forward(self, images: Tensor) -> Tensor:
        """The representations (B, 128) of normalized images (B, C, S, S)."""
        features: Tensor = self.blocks(images)
        return features.mean((2, 3))


def _convolution(channels: int, width: int, stride: int = 1) -> nn.Conv2d:
    convolution = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution
