"""The encoder of a run, or of any checkpoint that `ldreg` reads, as a model of timm.

Weights of a run have timm's names, so plain timm loads those of a ResNet with the ImageNet stem or of a ViT:
`timm.create_model("resnet18", num_classes=0, checkpoint_path="runs/first/encoder.safetensors")`, with `in_chans`,
`img_size` and `patch_size` as the run's `card.json` has them. What is here needs no such knowledge, and has the
CIFAR stem, which timm has not, and the small CNN too.
"""

from functools import partial
from os import PathLike
from statistics import fmean
from typing import Any

from ldreg.encoders.checkpoints import LoadedEncoder, load_encoder
from ldreg.evaluate.features import plain_image, plain_views
from ldreg.integrations.settings import check_whole
from ldreg.views.config import NORMALIZATIONS

__all__ = ["create_model"]

# Under this side, sets are mostly of squares of one size, which are taken whole.
_CROPPED_FROM = 128


def create_model(path: str | PathLike[str], *, num_classes: int = 0) -> Any:
    """The model of a run's folder or of a checkpoint with its weights in it, in float32, on the CPU, in eval mode.

    It maps normalized images (B, C, S, S) to representations (B, D), D its attribute `dimension`. `model.transform`
    makes (C, S, S) of an image, given as a file or as Pillow opened it: what `ldreg evaluate` gives the encoder on the
    CPU.

    Size, mean and deviation stand in its `pretrained_cfg`, where timm looks for them. timm's own `create_transform`
    makes similar images of it, not the same: it crops squares as it crops others, drops transparency, and resizes by
    Pillow, which rounds differently.

    Args:
        path: a run's folder, or a file that `ldreg.encoders.load_encoder` takes.
        num_classes: outputs of a new linear classifier with random weights, as in timm; 0: none.

    Raises:
        ValueError: what is no checkpoint or does not fit, or a classifier that cannot be or for an encoder that is not
            timm's.
        OSError: there is no such file, or it cannot be read.

    >>> import tempfile, timm, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save(timm.create_model("resnet18").state_dict(), f"{folder}/mine.pt")
    ...     model = create_model(f"{folder}/mine.pt", num_classes=10)
    >>> model.dimension, timm.data.resolve_model_data_config(model)["input_size"]
    (512, (3, 224, 224))
    """
    check_whole(0, num_classes=num_classes)
    loaded = load_encoder(path)
    model: Any = loaded.module
    if loaded.config.name == "small_cnn":
        if num_classes:
            raise ValueError(f"num_classes: expected 0, as a small CNN has no classifier, got {num_classes}")
    elif num_classes:
        model.reset_classifier(num_classes)
    # What was frozen in pretraining is the user's to freeze.
    model.requires_grad_(True)
    model.transform = partial(plain_image, views=plain_views(loaded))
    model.pretrained_cfg = model.default_cfg = data_config(loaded) | {"num_classes": num_classes}
    return model


def data_config(loaded: LoadedEncoder) -> dict[str, Any]:
    """What timm's `resolve_data_config` reads of the images for an encoder.

    `crop_pct` is the 224/256 that `ldreg` evaluates images with that are no squares, and 1 for small encoders.
    """
    mean, std = NORMALIZATIONS[loaded.normalization]
    if loaded.channels != 3:
        mean, std = (fmean(mean),), (fmean(std),)
    return {
        "architecture": loaded.config.timm_name,
        "input_size": (loaded.channels, loaded.size, loaded.size),
        "mean": mean,
        "std": std,
        "interpolation": "bilinear",
        "crop_pct": 1.0 if loaded.size < _CROPPED_FROM else 224 / 256,
    }
