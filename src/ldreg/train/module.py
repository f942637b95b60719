"""One training step, as Lightning runs it: loss = method's loss + regularizer(representations)."""

from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from ldreg.data import Batch, Loader, derived_seed
from ldreg.methods import Method, Outcome
from ldreg.optim import OptimizerConfig, ScheduleConfig, build_optimizer, build_scheduler
from ldreg.train.regularization import penalty, pull
from ldreg.views import Views

SETTINGS = "ldreg_settings"  # key of a checkpoint

LoaderFactory = Callable[[int, int, torch.device], Loader]  # of rank, world and device


class Pretraining(pl.LightningModule):
    """A method with its regularizer, its views and its optimizer.

    Every random draw of a step comes from a seed made of (seed, epoch, batch, rank), so that a run can be taken up at
    any step without the state of a random generator.

    Args:
        method: with the encoder inside.
        regularizer: added to the method's loss, or None.
        views: images to augmented views.
        loader: makes the batches of one rank.
        optimizer: its options.
        schedule: of the learning rate.
        steps_per_epoch: of the optimizer.
        batch_size: of one optimizer step over all processes, which learning rates are scaled by.
        regularizer_start: epochs before the regularizer is added.
        channels_last: memory layout of the views.
        seed: of every random draw.
        identity: the settings that a checkpoint belongs to, as text.
        pull_steps: optimizer steps between measurements of the regularizer's pull, as the monitor makes them; None: it
            is not measured.
    """

    def __init__(
        self,
        method: Method,
        regularizer: nn.Module | None,
        views: Views,
        *,
        loader: LoaderFactory,
        optimizer: OptimizerConfig,
        schedule: ScheduleConfig,
        steps_per_epoch: int,
        batch_size: int,
        regularizer_start: float,
        channels_last: bool,
        seed: int,
        identity: str = "",
        pull_steps: int | None = None,
    ) -> None:
        super().__init__()
        self.method, self.regularizer, self.views = method, regularizer, views
        self._loader, self._optimizer, self._schedule = loader, optimizer, schedule
        self._steps_per_epoch, self._identity = steps_per_epoch, identity
        self._batch_size, self._start, self._seed = batch_size, regularizer_start, seed
        self._pull_steps = pull_steps
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        self._generator: torch.Generator | None = None
        self._batches: Loader | None = None

    def train_dataloader(self) -> Loader:
        """The batches of this process."""
        self._batches = self._loader(self.global_rank, self.trainer.world_size, self.device)
        return self._batches

    def release(self) -> None:
        """End the processes that make the batches, whatever ended the training."""
        if self._batches is not None:
            self._batches.close()

    def training_step(self, batch: Batch, batch_index: int) -> dict[str, Any]:
        """The loss to minimize, with its terms and the representations for those who watch."""
        torch.compiler.cudagraph_mark_step_begin()  # what compiled parts returned in the last step is done with
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

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Have the checkpoint say what settings it belongs to."""
        checkpoint[SETTINGS] = self._identity

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Let the method follow (its moving average, say) after the optimizer has moved the weights."""
        super().optimizer_step(*args, **kwargs)
        # Lightning counts this step later: progress begins at 0, as the originals of BYOL and MoCo v3 have it.
        self.method.after_step(self.global_step / self.total_steps)

    def configure_optimizers(self) -> Any:
        """The optimizer, and the schedule that is moved on at each of its steps."""
        optimizer = build_optimizer(self.method, self._optimizer, batch_size=self._batch_size)
        scheduler = build_scheduler(optimizer, self._schedule, steps_per_epoch=self._steps_per_epoch)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole training.

        Lightning's own estimate would set up the loader early, and a resumed run's would then not find its place.
        """
        return self._schedule.epochs * self._steps_per_epoch

    def _penalty(self, outcome: Outcome) -> Tensor:
        """What the regularizer adds; NaN where the representations are not finite, for the guard to report.

        They may be those of another rank, which has to go the same way: the loss is of all ranks.
        """
        assert self.regularizer is not None
        try:
            return penalty(self.regularizer, outcome)
        except ValueError:
            if torch.isfinite(outcome.loss) and torch.isfinite(outcome.representations).all():
                raise
            return outcome.loss.detach() * float("nan")

    def _regularized(self, batch_index: int) -> bool:
        return self.current_epoch + batch_index / self.trainer.num_training_batches >= self._start

    def _pull_is_due(self) -> bool:
        """At the first step and every `pull_steps`, on every rank: gradients pass through collectives."""
        every, step = self._pull_steps, self.global_step + 1
        return every is not None and (step == 1 or step % every == 0)

    def _seeded(self, batch_index: int) -> torch.Generator:
        """The generator of this step's draws; the global ones, which dropout takes from, start anew as well."""
        seed = derived_seed(self._seed, self.current_epoch, batch_index, self.global_rank)
        if self._generator is None or self._generator.device != self.device:
            self._generator = torch.Generator(self.device)
        torch.manual_seed(seed)
        return self._generator.manual_seed(seed)
