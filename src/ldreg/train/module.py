"""One training step, as Lightning runs it: loss = method's loss + regularizer(representations)."""

from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from ldreg.data import Batch, Loader, derived_seed
from ldreg.methods import Method, Outcome
from ldreg.optim import OptimizerConfig, ScheduleConfig, build_optimizer, build_scheduler
from ldreg.regularizers import LDReg
from ldreg.views import Views

LoaderFactory = Callable[[int, int, torch.device], Loader]  # of rank, world and device


class Pretraining(pl.LightningModule):
    """A method with its regularizer, its views and its optimizer.

    Every random draw of a step is seeded by (seed, epoch, batch, rank), so that a run can be resumed at any step
    without the state of a random generator.

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
        pull_steps: optimizer steps between measurements of the regularizer's pull; None: never.
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
        pull_steps: int | None = None,
    ) -> None:
        super().__init__()
        self.method, self.regularizer, self.views = method, regularizer, views
        self._loader, self._optimizer, self._schedule = loader, optimizer, schedule
        self._steps_per_epoch = steps_per_epoch
        self._batch_size, self._start, self._seed = batch_size, regularizer_start, seed
        self._pull_steps = pull_steps
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        self._generator: torch.Generator | None = None
        self._batches: Loader | None = None

    def train_dataloader(self) -> Loader:
        """The batches of this process."""
        self._batches = self._loader(self.global_rank, self.trainer.world_size, self.device)
        return self._batches

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
        optimizer = build_optimizer(self.method, self._optimizer, batch_size=self._batch_size)
        scheduler = build_scheduler(optimizer, self._schedule, steps_per_epoch=self._steps_per_epoch)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole training.

        Lightning's own estimate would create the loader too early to resume within an epoch.
        """
        return self._schedule.epochs * self._steps_per_epoch

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
        return self.current_epoch + batch_index / self.trainer.num_training_batches >= self._start

    def _pull_is_due(self) -> bool:
        """Whether to measure the pull now; on all ranks at once, as gradients pass through collectives."""
        every, step = self._pull_steps, self.global_step + 1
        return every is not None and (step == 1 or step % every == 0)

    def _seeded(self, batch_index: int) -> torch.Generator:
        """The generator of this step; the global one, which dropout uses, is seeded as well."""
        seed = derived_seed(self._seed, self.current_epoch, batch_index, self.global_rank)
        if self._generator is None or self._generator.device != self.device:
            self._generator = torch.Generator(self.device)
        torch.manual_seed(seed)
        return self._generator.manual_seed(seed)


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
