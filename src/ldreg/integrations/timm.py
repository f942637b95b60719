"""The encoder of a run, or of any checkpoint that `ldreg` reads, as a timm model.

Weights of a run have timm's names, so plain timm loads those of a ResNet with the ImageNet stem or of a ViT:
`timm.create_model("resnet18", num_classes=0, checkpoint_path="runs/first/encoder.safetensors")`, with `in_chans`,
`img_size` and `patch_size` from the run's `card.json`. `create_model` reads these itself and also builds the CIFAR
stem and the small CNN, which timm does not have.
"""

from functools import partial
from os import PathLike
from statistics import fmean
from typing import Any

from ldreg.encoders.checkpoints import LoadedEncoder, load_encoder
from ldreg.evaluate.features import plain_image, plain_views
from ldreg.integrations import check_whole
from ldreg.views.config import NORMALIZATIONS

__all__ = ["create_model"]

# Below this side, images are mostly squares of one size, which are not cropped.
_CROPPED_FROM = 128


def create_model(path: str | PathLike[str], *, num_classes: int = 0) -> Any:
    """The encoder of a run's folder or a checkpoint as a timm model with its weights, in float32, on the CPU.

    It maps normalized images (B, C, S, S) to representations (B, D), D its attribute `dimension`, and is in eval
    mode. `model.transform` turns an image, a file or a Pillow image, into (C, S, S), exactly as `ldreg evaluate`
    does on the CPU.

    Size, mean and deviation are in its `pretrained_cfg`, where timm looks for them. timm's own `create_transform` gives
    similar images, not the same: it also crops squares, drops transparency, and resizes with Pillow, which rounds
    differently.

    Args:
        path: a run's folder, or a file that `ldreg.encoders.load_encoder` takes.
        num_classes: outputs of a new linear classifier with random weights, as in timm; 0: none.

    Raises:
        ValueError: the file is not a checkpoint or does not fit, or the encoder cannot have this classifier.
        OSError: the file does not exist or cannot be read.

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
    # Pretraining may have frozen parameters.
    model.requires_grad_(True)
    model.transform = partial(plain_image, views=plain_views(loaded))
    model.pretrained_cfg = model.default_cfg = data_config(loaded) | {"num_classes": num_classes}
    return model


def data_config(loaded: LoadedEncoder) -> dict[str, Any]:
    """The images that an encoder takes, as timm's `resolve_data_config` reads them.

    `crop_pct` is 224/256, as in `ldreg evaluate` for images that are not squares, and 1 for small encoders.
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
