"""The anchor of our accuracies and speeds: lightly's SimCLR on CIFAR-10, trained by lightly and measured as ours."""

from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from ldreg.data import ResidentImages, load_images, output_size, worker_count
from ldreg.data.order import batches_per_epoch
from ldreg.encoders import EncoderConfig
from ldreg.encoders.checkpoints import LoadedEncoder, content_key
from ldreg.evaluate.classes import load_classification
from ldreg.evaluate.extract import torch_device
from ldreg.evaluate.protocols import ProtocolName
from ldreg.evaluate.source import Source
from ldreg.record import Record
from ldreg.reproduce.lightly import Trained, train
from ldreg.reproduce.lightly_settings import DIMENSION, Recipe
from ldreg.reproduce.measure import measure_held_out
from ldreg.train.folder import RunFolder, environment


def train_anchor(recipe: Recipe, *, out: Path, device: str = "auto", k: int = 64) -> Trained:
    """Train lightly's CIFAR-10 recipe of SimCLR through lightly.

    Lightly's are the model, the views, the loss, the optimizer's settings and its dataset, over the pixels that our
    runs get; Lightning's is the loop; torch's the loader, with as many processes as `data.workers` says. Interrupted,
    the same call goes on after the last whole epoch, with other random draws than the run would have had; finished, it
    trains no more. Lightly's script also measures kNN after every epoch, which is left out here, as from our speeds.

    Args:
        recipe: with a set that has labels and both splits, square images of one size.
        out: folder of the checkpoint.
        device: auto, cpu or cuda.
        k: neighbors that LID is to be read from.

    Raises:
        ValueError: data without usable labels, files of several sizes, fewer images than a batch or than k, or a
            checkpoint made with other settings.
        InterruptedRunError: by a signal.
        OSError: something cannot be read or written.
    """
    images = _images(recipe, k)
    return train(recipe, images, size=output_size(recipe.data, images), place=torch_device(device), out=out)


def measure_anchor(
    trained: Trained,
    *,
    name: str,
    device: str = "auto",
    k: int = 64,
    linear: ProtocolName = "fast",
    cache: Path | None = None,
    command: str = "",
) -> Record:
    """Measure the encoder that lightly trained as our runs are measured.

    Args:
        trained: by `train_anchor`.
        name: of the record.
        device: auto, cpu or cuda.
        k: neighbors that LID is read from.
        linear: protocol of the linear evaluation.
        cache: of representations; None: as `data.cache` or LDREG_CACHE says.
        command: what was asked for, for the record.

    Raises:
        ValueError: representations that are not finite.
        OSError: something cannot be read or written.
    """
    recipe = trained.recipe
    encoder = _loaded(trained.backbone, size=trained.size)
    source = Source(encoder, name, trained.out, RunFolder(trained.out), None, recipe.data)
    found = measure_held_out(source, recipe.data, k=k, linear=linear, device=device, cache=cache)
    place, minutes = torch_device(device), trained.minutes
    return Record(
        name,
        recipe.settings,
        {**found.results, "images_per_second": trained.images_per_second, "minutes": minutes},
        curves=trained.curves,
        origin=_origin(recipe, command=command, place=place, minutes=minutes, held_out=found.held_out),
        points=found.points,
        k=k,
    )


def _images(recipe: Recipe, k: int) -> ResidentImages:
    """The training images, once it is known that nothing will be refused after the training."""
    data = recipe.data
    _, test = load_classification(data, say=False)
    images = load_images(data, "train")
    if not isinstance(images, ResidentImages):
        raise ValueError(f"data: expected square images of one size that fit in memory, got files of {data.name}")
    if not images.labeled:
        raise ValueError(f"data: expected a label for every training image, got some of {data.name} without")
    if not 1 <= k < len(test):
        raise ValueError(f"k: expected at least 1 and fewer than the {len(test)} test images, got {k}")
    batches_per_epoch(len(images), world=1, batch_size=recipe.batch_size)
    return images


def _loaded(backbone: nn.Module, *, size: int) -> LoadedEncoder:
    """Lightly's backbone in the place of an encoder of ours: color images normalized as lightly's views are."""
    cast(Any, backbone).dimension = DIMENSION
    key = content_key(backbone, f"resnet-18 of lightly, imagenet's normalization, 3 x {size} x {size}")
    # The config and layout describe it as nearly as ours can; nothing is built or read by them.
    config = EncoderConfig("resnet18", stem="cifar")
    return LoadedEncoder(backbone, config, 3, size, "imagenet", "torchvision", key)


def _origin(
    recipe: Recipe, *, command: str, place: torch.device, minutes: float, held_out: int
) -> dict[str, str | float | int | None]:
    facts = environment(command)
    cores = f"{facts['processor']}, {facts['cores']} cores"
    told = {
        "command": command or None,
        "commit": facts["commit"],
        "version": f"{facts['ldreg']}, lightly {facts['packages']['lightly']}",
        "hardware": facts["gpu"] if place.type == "cuda" else cores,
        "workers": worker_count(recipe.data),
        "seed": recipe.seed,
        "epochs": recipe.epochs,
        "minutes": round(minutes, 4),
        "held_out": held_out,
    }
    return {key: value for key, value in told.items() if value is not None}
