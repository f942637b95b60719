"""The module that Lightning trains: loss = method's loss + regularizer(representations)."""

import math
from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from ldreg.data import (
    Batch,
    ImageSet,
    Loader,
    derived_seed,
    output_size,
    worker_count,
)
from ldreg.data.images import batches_per_epoch
from ldreg.encoders import build_encoder
from ldreg.evaluate.extract import torch_device
from ldreg.methods import METHODS, Method, Outcome, synchronize_batch_norm
from ldreg.optim import ScheduleConfig, build_optimizer, build_scheduler, scaled_lr
from ldreg.regularizers import LDReg
from ldreg.regularizers.balance import Balance, BetaSuggestion, suggestion
from ldreg.train.settings import BALANCE, REGULARIZERS, Settings, named
from ldreg.views import Views

_RARELY = 10  # times that the pull is measured at the representations, for once at the weights


class Pretraining(pl.LightningModule):
    """A method around a freshly drawn encoder, with its regularizer, views, batches and optimizer.

    Every random draw of a step is seeded by (seed, epoch, batch, rank), so a run resumes at any step without the state
    of a random generator.

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
        with named(run.regularizer):
            self.regularizer = build_regularizer(run.regularizer, settings.regularizer)
            strength = {name: value for name, value in settings.regularizer.items() if name in BALANCE}
            self.method.fork = self._balance = Balance(**{"share": None, **strength}, gather=True)
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
        # A compiled backward pass runs only once, and float16 rounds gradients of an unscaled loss to 0.
        self._repeatable = not hardware.compile and hardware.precision != "fp16"
        self._ratio_at_weights: Tensor | None = None

    def _compile(self, *, graphs: bool) -> None:
        """Compile what takes the time; CUDA graphs spare the host the launches, which small encoders wait for."""
        parts, own = [*self.method.compiled_parts()], self.regularizer
        # A CUDA graph cannot hold the others: they wait for the device, and a queue grows.
        if graphs and isinstance(own, LDReg) and own.estimator == "mom" and own.queue_size == 0:
            parts.append(own)
        for part in parts:
            part.compile(mode="reduce-overhead" if graphs else None)
        self.views.compile()

    def train_dataloader(self) -> Loader:
        """The batches of this process."""
        return self._loader(self.trainer.world_size)

    def _loader(self, world: int) -> Loader:
        settings = self._settings
        self._batches = Loader(
            self._images,
            batch_size=settings.micro_batch,
            seed=settings.run.seed,
            crop=self.views,
            rank=self.global_rank,
            world=world,
            workers=worker_count(settings.data, processes=settings.trainer.devices),
            device=self.device,
        )
        return self._batches

    def close(self) -> None:
        """End the processes that load the batches."""
        if self._batches is not None:
            self._batches.close()

    def training_step(self, batch: Batch, batch_index: int) -> dict[str, Any]:
        """The loss to minimize, with its terms and the representations for callbacks."""
        torch.compiler.cudagraph_mark_step_begin()  # the outputs of the last step are no longer needed
        regularized = self.regularizer is not None and self._regularized(batch_index)
        self._balance.due = regularized and self._is_due()
        outcome = self._outcome(batch, batch_index)
        loss, terms = outcome.loss, {"ssl_loss": outcome.loss.detach(), **outcome.terms}
        if regularized:
            added = self._penalty(outcome)
            if self._repeatable and self._is_due(_RARELY):
                terms["pull_at_weights"] = self._ratio_at_weights = self._ratio(added, outcome.loss)
            loss, terms["regularizer"] = loss + added, added.detach()
            if self._balance.due:
                terms |= self._strength()
            if (share := getattr(self.regularizer, "regular_share", None)) is not None:
                terms["regular_share"] = share
        # Lightning divides "loss" by the number of accumulated parts.
        watched = {"objective": loss.detach(), "representations": outcome.representations.detach()}
        views_each = len(outcome.representations) // len(batch.images)
        return {"loss": loss, "terms": terms, "view_count": views_each, **watched}

    def suggest_beta(self, *, share: float = 0.1, batches: int = 8) -> BetaSuggestion:
        """The beta that gives the regularizer a share of the gradient in the first batches, before any step.

        Raises:
            ValueError: no batch has usable gradients.
        """
        beta: Any = getattr(self.regularizer, "beta", None)
        betas: list[float] = []
        loader = self._loader(1)
        for index, batch in zip(range(batches), loader, strict=False):
            outcome = self._outcome(batch, index)
            (outcome.loss + self._penalty(outcome)).backward()
            betas.append(beta * share / self._balance.pull.item())
        loader.close()
        return suggestion(betas, share=share)

    def on_after_backward(self) -> None:
        """Turn the ratio of the gradients at the weights into the pull, now that the factor of a share is known."""
        if self._ratio_at_weights is not None:
            self._ratio_at_weights *= self._balance.effective_beta
            self._ratio_at_weights = None

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

    def _outcome(self, batch: Batch, batch_index: int) -> Outcome:
        generator = self._seeded(batch_index)
        views = [view.contiguous(memory_format=self._layout) for view in self.views(batch.images, generator)]
        return self.method(views, generator)  # type: ignore[no-any-return]

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

    def _is_due(self, times: int = 1) -> bool:
        """Whether the monitor measures this step, or each so many times that it does; on all ranks at once."""
        every, step = times * self._settings.monitor.every_steps, self.global_step + 1
        return step == 1 or step % every == 0

    def _strength(self) -> dict[str, Tensor]:
        """How strong the regularizer is; the backward pass of this step fills in what depends on its gradients."""
        balance = self._balance
        if balance.share is None:
            beta: Any = getattr(self.regularizer, "beta", math.nan)
            return {"pull": balance.pull, "effective_beta": torch.tensor(beta)}
        return {"pull": balance.pull, "effective_beta": balance.effective_beta, "share": torch.tensor(balance.share)}

    def _ratio(self, added: Tensor, loss: Tensor) -> Tensor:
        """The norm of the regularizer's gradient at the encoder's weights over that of the method's loss."""
        weights = [weight for weight in self.method.encoder.parameters() if weight.requires_grad]
        norms = []
        with self._balance.separate():
            for value in (added, loss):
                found = torch.autograd.grad(value, weights, retain_graph=True, allow_unused=True)
                norms.append(nn.utils.get_total_norm([each for each in found if each is not None]))
        return norms[0] / norms[1]

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
    """
    if name == "none":
        return None
    entry = REGULARIZERS[name]
    own = {key: value for key, value in options.items() if key not in BALANCE}
    if options.get("share") is not None:
        own["beta"] = 1.0  # its gradient is scaled instead
    return entry.type(**own, **entry.fixed)


def _check_neighbors(settings: Settings, method: Method) -> None:
    """Refuse a batch too small for k before the first step does."""
    run, parts = settings.run, settings.trainer.accumulate
    k, candidates = settings.regularizer.get("k"), run.batch_size // parts * method.candidates
    if k is not None and k >= candidates:
        raise ValueError(
            f"{run.regularizer}.k: expected fewer than the {candidates} representations there are at once "
            f"with a batch_size of {run.batch_size} in {parts} part(s), got {k}"
        )


def steps_per_epoch(settings: Settings, images: int) -> int:
    """Optimizer steps of one epoch; an incomplete batch at its end is dropped.

    Raises:
        ValueError: the images do not fill one batch, or the schedule does not fit the steps.
    """
    config, whole = settings.trainer, settings.run.batch_size
    batches = batches_per_epoch(images, world=config.devices * config.nodes, batch_size=settings.micro_batch)
    steps = batches // config.accumulate
    if steps == 0:
        raise ValueError(f"batch_size: expected at most the {images} images there are, got {whole}")
    if settings.micro_batch < 2:
        raise ValueError(f"batch_size: expected at least 2 images for each process and part, got {whole}")
    with named("schedule", ScheduleConfig):
        settings.schedule.check(peak=scaled_lr(settings.optimizer, whole), steps_per_epoch=steps)
    return steps


def penalty(regularizer: nn.Module, outcome: Outcome) -> Tensor:
    """What the regularizer adds to the loss of this batch; LDReg uses the method's reference if there is one."""
    value: Tensor
    if isinstance(regularizer, LDReg) and outcome.reference is not None:
        value = regularizer(outcome.representations, outcome.reference, self_index=outcome.self_index)
    else:
        value = regularizer(outcome.representations)
    return value
