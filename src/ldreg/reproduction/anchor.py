"""The anchor of our accuracies and speeds: lightly's SimCLR on CIFAR-10, trained by lightly and measured as ours."""

from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from ldreg.assessment.source import Source
from ldreg.assessment.transfer import linear_on
from ldreg.data import DataConfig, ResidentImages, load_images, output_size, worker_count
from ldreg.data.order import batches_per_epoch
from ldreg.encoders import EncoderConfig
from ldreg.encoders.checkpoints import LoadedEncoder, content_key
from ldreg.evaluation.classes import load_classification
from ldreg.evaluation.compute import Precision, torch_device
from ldreg.evaluation.features import features
from ldreg.evaluation.knn import knn_accuracy
from ldreg.evaluation.protocols import ProtocolName
from ldreg.monitor.config import VOTERS
from ldreg.monitor.measures import measure
from ldreg.reporting.run_record import RunRecord
from ldreg.reproduction.lightly_recipe import BATCH_SIZE, DIMENSION, Recipe
from ldreg.reproduction.lightly_run import train
from ldreg.training.folder import environment


def anchor_name(*, epochs: int, seed: int) -> str:
    """How the run and its record are called.

    >>> anchor_name(epochs=30, seed=0)
    'simclr_by_lightly-epochs30-seed0'
    """
    return f"simclr_by_lightly-epochs{epochs}-seed{seed}"


def run_anchor(
    *,
    data: DataConfig,
    epochs: int,
    seed: int,
    out: Path,
    device: str = "auto",
    k: int = 64,
    batch_size: int = BATCH_SIZE,
    precision: Precision | None = None,
    linear: ProtocolName = "fast",
    cache: Path | None = None,
    command: str = "",
) -> RunRecord:
    """Train lightly's CIFAR-10 recipe of SimCLR through lightly, and measure its encoder as our runs are measured.

    Lightly's are the model, the views, the loss, the optimizer's settings and its dataset, over the pixels that our
    runs get; Lightning's is the loop; torch's the loader, with as many processes as `data.workers` says. Interrupted,
    the same call goes on after the last whole epoch, with other random draws than the run would have had; finished, it
    trains no more. Lightly's script also measures kNN after every epoch, which is left out here, as from our speeds.

    Args:
        data: a set with labels and both splits, square images of one size.
        epochs: passes over the training images.
        seed: of the weights, the order and the views.
        out: folder of the checkpoint.
        device: auto, cpu or cuda.
        k: neighbors that LID is read from.
        batch_size: images of a step.
        precision: of the training; None: bf16 on CUDA, as our CIFAR-10 recipes have it, and fp32 on a CPU.
        linear: protocol of the linear evaluation.
        cache: of representations; None: as `data.cache` or LDREG_CACHE says.
        command: what was asked for, for the record.

    Raises:
        ValueError: data without usable labels, files of several sizes, fewer images than a batch or than k, or a
            checkpoint made with other settings.
        InterruptedRunError: by a signal.
        OSError: something cannot be read or written.
    """
    place = torch_device(device)
    told = precision or ("bf16" if place.type == "cuda" else "fp32")
    recipe = Recipe(data, epochs, seed, batch_size=batch_size, precision=told)
    images = _images(recipe, k)
    size = output_size(data, images)
    trained = train(recipe, images, size=size, place=place, out=out)
    name = anchor_name(epochs=epochs, seed=seed)
    source = Source(_loaded(trained.backbone, size=size), name, out, None, None, data)
    results, held_out = _results(source, data, k=k, linear=linear, device=device, cache=cache)
    return RunRecord(
        name,
        recipe.settings,
        {**results, "images_per_second": trained.images_per_second, "minutes": trained.minutes},
        curves={"loss": trained.losses},
        origin=_origin(recipe, command=command, place=place, minutes=trained.minutes, held_out=held_out),
        points=held_out,
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


def _results(
    source: Source, data: DataConfig, *, k: int, linear: ProtocolName, device: str, cache: Path | None
) -> tuple[dict[str, float], int]:
    """The dimensions of the held-out images and the accuracies on them, and how many they are."""
    known, test = (features(source.encoder, data, split, device=device, cache=cache) for split in ("train", "test"))
    bank, asked = (part.representations.to(torch_device(device)) for part in (known, test))
    results = measure(asked, k=k)
    results["linear"] = linear_on(
        source, data, protocol=linear, device=device, work=source.path / "evaluation", cache=cache
    )
    results["knn"] = knn_accuracy(bank, known.labels, asked, test.labels, k=min(VOTERS, len(known.labels)))
    return results, len(test.labels)


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
