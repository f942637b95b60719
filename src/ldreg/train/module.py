"""The module that Lightning trains: loss = method's loss + regularizer(representations)."""

from collections.abc import Mapping
from typing import Any, TypeGuard

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from ldreg.data import (
    Batch,
    FileLoader,
    ImageSet,
    Loader,
    RandomCrops,
    ResidentImages,
    ResidentLoader,
    derived_seed,
    output_size,
    worker_count,
)
from ldreg.data.order import batches_per_epoch
from ldreg.encoders import build_encoder
from ldreg.evaluate.extract import torch_device
from ldreg.methods import METHODS, Method, Outcome, synchronize_batch_norm
from ldreg.optim import build_optimizer, build_scheduler, scaled_lr
from ldreg.regularizers import LDReg
from ldreg.train.settings import REGULARIZERS, Settings
from ldreg.views import Views


class Pretraining(pl.LightningModule):
    """A method around a freshly drawn encoder, with its regularizer, views, batches and optimizer.

    Every random draw of a step is seeded by (seed, epoch, batch, rank), so that a run can be resumed at any step
    without the state of a random generator.

    Args:
        settings: of the run.
        images: to train on.

    Raises:
        ValueError: settings that do not fit together or the images.
    """

    def __init__(self, settings: Settings, images: ImageSet) -> None:
        super().__init__()
        run, hardware = settings.run, settings.trainer
        views = Views(settings.views, size=output_size(settings.data, images), channels=images.channels)
        torch.manual_seed(run.seed)
        self.method = _build_method(settings, views)
        self.regularizer = build_regularizer(run.regularizer, settings.regularizer)
        self.views = views
        _check_neighbors(settings, self.method)
        self._settings, self._images = settings, images
        self._steps_per_epoch = steps_per_epoch(settings, len(images))
        self._layout = torch.channels_last if hardware.channels_last else torch.contiguous_format
        self._generator: torch.Generator | None = None
        self._batches: Loader | None = None
        cuda, several = torch_device(hardware.device).type == "cuda", hardware.devices * hardware.nodes > 1
        if hardware.channels_last:
            self.method.to(memory_format=torch.channels_last)
        if hardware.sync_batch_norm and several:
            synchronize_batch_norm(self.method, device="cuda" if cuda else "cpu")
        if hardware.compile:
            self._compile(graphs=cuda and not several)
        # The backward pass of a compiled regularizer runs only once, and float16 rounds gradients of an unscaled loss
        # to 0.
        measurable = not (hardware.compile and cuda) and hardware.precision != "fp16"
        self._pull_steps = settings.monitor.every_steps if measurable else None

    def _compile(self, *, graphs: bool) -> None:
        """Compile what takes the time; CUDA graphs spare the host the launches, which small encoders wait for."""
        captured = [self.regularizer] if graphs and _can_be_captured(self.regularizer) else []
        for part in (*self.method.compiled_parts(), *captured):
            part.compile(mode="reduce-overhead" if graphs else None)
        self.views.compile()

    def train_dataloader(self) -> Loader:
        """The batches of this process."""
        settings, images = self._settings, self._images
        options: dict[str, Any] = {
            "batch_size": settings.micro_batch,
            "seed": settings.run.seed,
            "rank": self.global_rank,
            "world": self.trainer.world_size,
            "device": self.device,
        }
        batches: Any
        if isinstance(images, ResidentImages):
            batches = ResidentLoader(images, **options)
        else:
            workers = worker_count(settings.data, processes=settings.trainer.devices)
            batches = FileLoader(images, workers=workers, crop=RandomCrops(self.views), **options)
        batches.sampler = batches  # where Lightning looks for set_epoch
        self._batches = batches
        return batches  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the processes that load the batches."""
        if self._batches is not None:
            self._batches.close()

    def training_step(self, batch: Batch, batch_index: int) -> dict[str, Any]:
        """The loss to minimize, with its terms and the representations for callbacks."""
        torch.compiler.cudagraph_mark_step_begin()  # the outputs of the last step are no longer needed
        generator = self._seeded(batch_index)
        views = [view.contiguous(memory_format=self._layout) for view in self.views(batch.images, generator)]
        outcome = self.method(views, generator)
        loss, terms = outcome.loss, {"ssl_loss": outcome.loss.detach(), **outcome.terms}
        if self.regularizer is not None and self._regularized(batch_index):
            added = self._penalty(outcome)
            loss, terms["regularizer"] = loss + added, added.detach()
            if self._pull_is_due() and (found := pull(outcome.loss, added, outcome.representations)) is not None:
                terms["pull"] = found
            if (share := getattr(self.regularizer, "regular_share", None)) is not None:
                terms["regular_share"] = share
        # Lightning divides "loss" by the number of accumulated parts.
        watched = {"objective": loss.detach(), "representations": outcome.representations.detach()}
        views_each = len(outcome.representations) // len(batch.images)
        return {"loss": loss, "terms": terms, "view_count": views_each, **watched}

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Update the method, such as its moving average, after the optimizer."""
        super().optimizer_step(*args, **kwargs)
        # Lightning counts this step later: progress begins at 0, as in the original code of BYOL and MoCo v3.
        self.method.after_step(self.global_step / self.total_steps)

    def configure_optimizers(self) -> Any:
        """The optimizer, and its schedule by steps."""
        settings = self._settings
        optimizer = build_optimizer(self.method, settings.optimizer, batch_size=settings.run.batch_size)
        scheduler = build_scheduler(optimizer, settings.schedule, steps_per_epoch=self._steps_per_epoch)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole training.

        Lightning's own estimate would create the loader too early to resume within an epoch.
        """
        return self._settings.schedule.epochs * self._steps_per_epoch

    def _penalty(self, outcome: Outcome) -> Tensor:
        """What the regularizer adds; NaN where the representations of any rank are not finite, for FiniteGuard."""
        assert self.regularizer is not None
        try:
            return penalty(self.regularizer, outcome)
        except ValueError:
            if torch.isfinite(outcome.loss) and torch.isfinite(outcome.representations).all():
                raise
            return outcome.loss.detach() * float("nan")

    def _regularized(self, batch_index: int) -> bool:
        start = self._settings.run.regularizer_start
        return self.current_epoch + batch_index / self.trainer.num_training_batches >= start

    def _pull_is_due(self) -> bool:
        """Whether to measure the pull now; on all ranks at once, as gradients pass through collectives."""
        every, step = self._pull_steps, self.global_step + 1
        return every is not None and (step == 1 or step % every == 0)

    def _seeded(self, batch_index: int) -> torch.Generator:
        """The generator of this step; the global one, which dropout uses, is seeded as well."""
        seed = derived_seed(self._settings.run.seed, self.current_epoch, batch_index, self.global_rank)
        if self._generator is None or self._generator.device != self.device:
            self._generator = torch.Generator(self.device)
        torch.manual_seed(seed)
        return self._generator.manual_seed(seed)


def _build_method(settings: Settings, views: Views) -> Method:
    name = settings.run.method
    encoder = build_encoder(settings.encoder, channels=views.channels, size=views.size)
    method = METHODS[name].build(encoder, settings.method)
    if views.count != method.view_count:
        raise ValueError(
            f"views.policy: expected a policy of {method.view_count} view(s) for {name}, "
            f"got {settings.views.policy!r}, which makes {views.count}"
        )
    return method


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


def _check_neighbors(settings: Settings, method: Method) -> None:
    """Refuse a batch too small for k before the first step does."""
    run, parts = settings.run, settings.trainer.accumulate
    k, candidates = settings.regularizer.get("k"), run.batch_size // parts * method.candidates
    if k is not None and k >= candidates:
        raise ValueError(
            f"{run.regularizer}.k: expected fewer than the {candidates} representations there are at once "
            f"with a batch_size of {run.batch_size} in {parts} part(s), got {k}"
        )


def _can_be_captured(regularizer: nn.Module | None) -> TypeGuard[LDReg]:
    """Whether a CUDA graph can hold it; the others wait for the device, and a queue grows."""
    return isinstance(regularizer, LDReg) and regularizer.estimator == "mom" and regularizer.queue_size == 0


def steps_per_epoch(settings: Settings, images: int) -> int:
    """Optimizer steps of one epoch; what does not fill a whole batch at its end is left out.

    Raises:
        ValueError: the images do not fill one batch, or the schedule does not fit the steps.
    """
    config, schedule, whole = settings.trainer, settings.schedule, settings.run.batch_size
    batches = batches_per_epoch(images, world=config.devices * config.nodes, batch_size=settings.micro_batch)
    steps = batches // config.accumulate
    if steps == 0:
        raise ValueError(f"batch_size: expected at most the {images} images there are, got {whole}")
    if settings.micro_batch < 2:
        raise ValueError(f"batch_size: expected at least 2 images for each process and part, got {whole}")
    if round(schedule.warmup_epochs * steps) >= schedule.epochs * steps:
        raise ValueError(
            f"schedule.warmup_epochs: expected to leave a step of {schedule.epochs * steps} after the warm-up, "
            f"got {schedule.warmup_epochs} epochs of {steps}; take 0, or more epochs"
        )
    peak = scaled_lr(settings.optimizer, whole)
    if schedule.min_lr > peak:
        raise ValueError(f"schedule.min_lr: expected at most the peak learning rate {peak:g}, got {schedule.min_lr}")
    return steps


def penalty(regularizer: nn.Module, outcome: Outcome) -> Tensor:
    """What the regularizer adds to the loss of this batch; LDReg uses the method's reference if there is one."""
    value: Tensor
    if isinstance(regularizer, LDReg) and outcome.reference is not None:
        value = regularizer(outcome.representations, outcome.reference, self_index=outcome.self_index)
    else:
        value = regularizer(outcome.representations)
    return value


def pull(loss: Tensor, added: Tensor, representations: Tensor) -> Tensor | None:
    """Norm of the regularizer's gradient at the representations over that of the method's loss, as a scalar.

    None where a loss does not depend on the representations, as for MAE, whose loss ignores the class token. Gradients
    of weights stay untouched, and the graph is kept for the backward pass.

    >>> x = torch.ones(4, 2, requires_grad=True)
    >>> pull(x.sum(), 0.1 * x.sum(), x)
    tensor(0.1000, dtype=torch.float64)
    """
    norms: list[Tensor] = []
    for each in (added, loss):
        if not each.requires_grad:
            return None
        found: Any = torch.autograd.grad(each, representations, retain_graph=True, allow_unused=True)[0]
        if found is None:
            return None
        norms.append(found.double().norm())
    return norms[0] / norms[1]
