"""Settings to the parts of a run: data, views, module, and what the monitor looks at."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

from ldreg.data import (
    Batch,
    DataConfig,
    FileLoader,
    ImageFiles,
    ImageSet,
    Loader,
    RandomCrops,
    ResidentImages,
    ResidentLoader,
    batches_in_order,
    device_decoder,
    load_images,
    output_size,
    worker_count,
)
from ldreg.data.datasets import MissingSplitError
from ldreg.data.order import batches_per_epoch
from ldreg.encoders import build_encoder
from ldreg.evaluate.extract import representations
from ldreg.methods import METHODS, Method, synchronize_batch_norm
from ldreg.optim import scaled_lr
from ldreg.regularizers import LDReg
from ldreg.train.module import LoaderFactory, Pretraining
from ldreg.train.processes import on_cuda
from ldreg.train.settings import REGULARIZERS, Settings
from ldreg.views import Views

EVALUATION_BATCH = 512
_SIDE = 16  # of images that are looked at for findings

Extracted = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]


def build_views(settings: Settings, images: ImageSet) -> Views:
    """The views of these images, as large as the settings or else the images themselves say."""
    return Views(settings.views, size=output_size(settings.data, images), channels=images.channels)


def build_module(settings: Settings, images: ImageSet, views: Views) -> Pretraining:
    """The Lightning module with a freshly drawn encoder.

    Raises:
        ValueError: settings that do not fit together or the images.
    """
    run, config = settings.run, settings.trainer
    cuda = on_cuda(config.device)
    torch.manual_seed(run.seed)
    method = build_method(settings, images, views)
    regularizer = build_regularizer(run.regularizer, settings.regularizer)
    _check_neighbors(settings, method)
    if config.channels_last:
        method.to(memory_format=torch.channels_last)
    if config.sync_batch_norm and config.devices * config.nodes > 1:
        synchronize_batch_norm(method, device="cuda" if cuda else "cpu")
    if config.compile:
        # CUDA graphs spare the host the launches, which small encoders wait for more than for the arithmetic.
        graphs = cuda and config.devices * config.nodes == 1
        for part in (*method.compiled_parts(), *([regularizer] if graphs and _can_be_captured(regularizer) else [])):
            part.compile(mode="reduce-overhead" if graphs else None)
        views.compile()
    # The backward pass of a compiled regularizer runs only once, and float16 rounds gradients of an unscaled loss to 0.
    measurable = not (config.compile and cuda) and config.precision != "fp16"
    return Pretraining(
        method,
        regularizer,
        views,
        loader=loader_factory(settings, images, views),
        optimizer=settings.optimizer,
        schedule=settings.schedule,
        steps_per_epoch=steps_per_epoch(settings, len(images)),
        batch_size=run.batch_size,
        regularizer_start=run.regularizer_start,
        channels_last=config.channels_last,
        seed=run.seed,
        pull_steps=settings.monitor.every_steps if measurable else None,
    )


def steps_per_epoch(settings: Settings, images: int) -> int:
    """Optimizer steps of one epoch; what does not fill a whole batch at its end is left out.

    Raises:
        ValueError: the images do not fill one batch, or the schedule does not fit the steps.
    """
    config, schedule = settings.trainer, settings.schedule
    batches = batches_per_epoch(images, world=config.devices * config.nodes, batch_size=settings.micro_batch)
    steps = batches // config.accumulate
    if steps == 0:
        raise ValueError(f"batch_size: expected at most the {images} images there are, got {settings.run.batch_size}")
    if settings.micro_batch < 2:
        raise ValueError(
            f"batch_size: expected at least 2 images for each process and part, got {settings.run.batch_size}"
        )
    if round(schedule.warmup_epochs * steps) >= schedule.epochs * steps:
        raise ValueError(
            f"schedule.warmup_epochs: expected to leave a step of {schedule.epochs * steps} after the warm-up, "
            f"got {schedule.warmup_epochs} epochs of {steps}; take 0, or more epochs"
        )
    peak = scaled_lr(settings.optimizer, settings.run.batch_size)
    if schedule.min_lr > peak:
        raise ValueError(f"schedule.min_lr: expected at most the peak learning rate {peak:g}, got {schedule.min_lr}")
    return steps


def build_method(settings: Settings, images: ImageSet, views: Views) -> Method:
    """The method around a freshly drawn encoder.

    Raises:
        ValueError: views that are not as many as the method takes.
    """
    name = settings.run.method
    encoder = build_encoder(settings.encoder, channels=images.channels, size=views.size)
    method = METHODS[name].build(encoder, settings.method)
    if views.count != method.view_count:
        raise ValueError(
            f"views.policy: expected a policy of {method.view_count} view(s) for {name}, "
            f"got {settings.views.policy!r}, which makes {views.count}"
        )
    return method


def _check_neighbors(settings: Settings, method: Method) -> None:
    """Refuse a batch too small for k before the first step does."""
    k = settings.regularizer.get("k")
    candidates = settings.run.batch_size // settings.trainer.accumulate * method.candidates
    if k is not None and k >= candidates:
        raise ValueError(
            f"{settings.run.regularizer}.k: expected fewer than the {candidates} representations there are at once "
            f"with a batch_size of {settings.run.batch_size} in {settings.trainer.accumulate} part(s), got {k}"
        )


def build_regularizer(name: str, options: Mapping[str, Any]) -> nn.Module | None:
    """The regularizer of this name with these options; None for "none".

    Raises:
        ValueError: an option is out of range.

    >>> build_regularizer("minlid", {"k": 16, "beta": 0.1}).direction
    'minimize'
    """
    if name == "none":
        return None
    entry = REGULARIZERS[name]
    try:
        return entry.type(**options, **entry.fixed)
    except ValueError as error:
        raise ValueError(f"{name}.{error}") from error


def _can_be_captured(regularizer: nn.Module | None) -> TypeGuard[LDReg]:
    """Whether a CUDA graph can hold it; the others wait for the device, and a queue grows."""
    return isinstance(regularizer, LDReg) and regularizer.estimator == "mom" and regularizer.queue_size == 0


def loader_factory(settings: Settings, images: ImageSet, views: Views) -> LoaderFactory:
    """What makes the training batches of one rank on its device."""

    def loader(rank: int, world: int, device: torch.device) -> Loader:
        shared: dict[str, Any] = {
            "batch_size": settings.micro_batch,
            "seed": settings.run.seed,
            "rank": rank,
            "world": world,
        }
        made: Any
        if isinstance(images, ResidentImages):
            made = ResidentLoader(images, device=device, **shared)
        else:
            workers = worker_count(settings.data, processes=settings.trainer.devices)
            made = FileLoader(images, workers=workers, crop=RandomCrops(views), device=device, **shared)
        made.sampler = made  # where Lightning looks for set_epoch
        return made  # type: ignore[no-any-return]

    return loader


def training_images(settings: Settings) -> ImageSet:
    """The images to train on.

    Raises:
        ValueError: there are none, or the device cannot decode them as asked, named by the whole key of the setting.
    """
    with named("data", DataConfig):
        images = load_images(settings.data, "train")
        if isinstance(images, ImageFiles):
            device_decoder(images.decoding, "cuda" if on_cuda(settings.trainer.device) else "cpu")
        return images


def held_out_images(settings: Settings) -> ImageSet | None:
    """The test images, or None where the set has none."""
    with named("data", DataConfig):
        try:
            return load_images(settings.data, "test")
        except MissingSplitError:
            return None


@contextmanager
def named(group: str, config: type) -> Iterator[None]:
    """Have an error that speaks of a field of the config say the whole key."""
    try:
        yield
    except ValueError as error:
        if str(error).partition(":")[0] in {field.name for field in fields(config)}:
            raise ValueError(f"{group}.{error}") from error
        raise


@dataclass
class Extractor:
    """Takes representations of training images, and of test images where they are probed for.

    Attributes:
        latest: the representations (N, D) of training images that were last taken.
        rows: where in the training set these images stand.
        names: their classes by name; None where they are not known.
        pixels: (N, C · S · S) the images themselves, S at most 16, from the first call on.
    """

    module: Pretraining
    train: ImageSet
    test: ImageSet | None
    places: Tensor  # where in the training set the images of `train` stand
    workers: int
    latest: Tensor | None = None
    rows: Sequence[int] = ()
    names: Sequence[str] | None = None
    pixels: Tensor | None = None

    def __call__(self) -> Extracted:
        """Training representations and labels, test representations and labels; None where there are no labels."""
        indices, small = [], []

        def note(batch: Batch) -> None:
            indices.append(batch.indices.cpu())
            if self.pixels is None:
                small.append(_shrunk(batch.images))

        self.latest, labels = represent(self.module, self.train, workers=self.workers, note=note)
        self.rows = self.places[torch.cat(indices)].tolist()
        self.pixels = torch.cat(small) if small else self.pixels
        if self.test is None:
            return self.latest, None, None, None
        self.names = [self.train.classes[label] for label in labels.tolist()]
        return self.latest, labels, *represent(self.module, self.test, workers=self.workers)


def extractor(settings: Settings, module: Pretraining, train: ImageSet, test: ImageSet | None) -> Extractor:
    """What gives the monitor representations of a fixed part of the training set, and of the test set with labels.

    Of a set that is labeled in part, the labeled images are taken; a set of one class has nothing to probe for.

    Raises:
        ValueError: too few images for the monitor's settings.
    """
    config = settings.monitor
    labeled = train.labeled_indices
    places = _part(labeled if 0 < len(labeled) < len(train) else torch.arange(len(train)), config.points)
    train = train.take(places) if len(places) < len(train) else train
    probed = test is not None and test.labeled and train.labeled and len(train.labels.unique()) > 1
    known = test if probed else None
    if known is not None and len(known) > config.points:
        known = known.take(_part(torch.arange(len(known)), config.points))
    if config.k >= len(train):
        raise ValueError(f"monitor.k: expected fewer than the {len(train)} images that are measured, got {config.k}")
    if known is not None and config.knn and config.voters(len(train)) > len(train):
        raise ValueError(
            f"monitor.knn_k: expected at most the {len(train)} images that are measured, got {config.knn_k}"
        )
    workers = worker_count(settings.data, processes=settings.trainer.devices)
    return Extractor(module, train, known, places, workers)


def represent(
    module: Pretraining, images: ImageSet, *, workers: int = 0, note: Callable[[Batch], None] | None = None
) -> tuple[Tensor, Tensor]:
    """Representations (N, D) of images without augmentation, and their labels (N,); `note` is given each batch."""
    size, device = module.views.size, module.device
    batches = batches_in_order(images, batch_size=EVALUATION_BATCH, device=device, size=size, workers=workers)

    def plain() -> Iterator[tuple[Tensor, Tensor]]:
        for batch in batches:
            if note is not None:
                note(batch)
            yield module.views.plain(batch.images), batch.labels

    # Not through what is compiled for training: another mode and batch size would have it compiled anew.
    with torch.compiler.set_stance("force_eager"):
        return representations(module.method.encoder, plain(), device=device)


def _shrunk(images: Tensor) -> Tensor:
    """Images (B, C, S, S) as rows of numbers, averaged to a side of at most 16: their neighbors are found quickly."""
    return functional.adaptive_avg_pool2d(images.float(), min(_SIDE, images.shape[-1])).flatten(1)


def _part(places: Tensor, points: int) -> Tensor:
    """So many of the places, ascending, always the same ones."""
    if len(places) <= points:
        return places
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(0))
    return places[order[:points].sort().values]
