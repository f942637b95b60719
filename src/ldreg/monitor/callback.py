"""The monitor as a Lightning callback, for the trainers of `pytorch_lightning` and of `lightning` alike."""

import logging
import math
from collections.abc import Callable, Mapping
from numbers import Real
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ldreg.dimension.quality import view_share
from ldreg.evaluate.extract import undisturbed
from ldreg.evaluate.measure import Extracted, measure, measure_set, spread
from ldreg.monitor.alarm import CollapseAlarm, PullWarning
from ldreg.monitor.bases import callback_bases
from ldreg.monitor.config import MonitorConfig
from ldreg.monitor.log import MetricsLog, read_metrics
from ldreg.monitor.throughput import Throughput, batch_size

logger = logging.getLogger("ldreg")

if TYPE_CHECKING:
    from pytorch_lightning import Callback
else:
    Callback = type("Callback", callback_bases(), {})


class Monitor(Callback):
    """Logs losses, dimensions, probes and speed of any LightningModule, and raises an alarm when it collapses.

    Batch measures, at the first and last optimizer step and every `every_steps`: `batch/loss`, `terms/<name>`,
    `batch/` with each measure of `measures.measure`, `batch/view_share`, `lr` and `images_per_second`. They are read
    from what training_step returns: a dict of loss, and optionally terms (scalars by name), representations (N, D), and
    view_count, how many views of each image those are of, all rows of one after all of the other.
    Other steps cost nothing: the device is not waited for. Speed leaves out the time that measuring takes.

    Set measures, before training, every `every_epochs` epochs and at the end: `set/` with each measure of
    `measures.measure`, and `set/knn` and `set/linear`, accuracies on test, where labels are known.
    The linear probe is fitted anew each time on the frozen representations of that moment: it has no state, costs
    nothing in between, and is the same whenever the run was resumed.

    Everything is measured and written by the first rank alone, from its own rows; numbers go to the metrics file, to
    the trainer's loggers and into `latest`, alarms to the log "ldreg" and into `alarms`. A term `pull` that stays
    negligible or dominant is said once in the log, and is no alarm (`alarm.PullWarning`). Training itself is not
    touched: no random number is drawn and no buffer changes, so a monitored run is bitwise the unmonitored one.

    Args:
        config: what is watched and how often.
        path: the metrics file (CSV); None: only the trainer's loggers are written to.
        extract: returns representations and classes of training and test images, taken as by
            `evaluation.representations`, which leaves no trace; to be given on every rank and called on the first
            alone, so it must contain no collectives. None: no set measures.
        representations: returns representations (N, D) of a batch, given module and batch, for a module whose
            training_step does not; called at measured steps, in eval mode and without gradients.

    Attributes:
        latest: the last value of every metric.
        alarms: all alarms raised, in order.
        warnings: what was said of the regularizer's pull, if anything.
        stop_reason: the alarm that ended the run, if one did.

    >>> monitor = Monitor(MonitorConfig(k=20), representations=lambda module, batch: module.backbone(batch[0]))
    >>> monitor.latest, monitor.alarms
    ({}, [])
    """

    def __init__(
        self,
        config: MonitorConfig | None = None,
        *,
        path: str | PathLike[str] | None = None,
        extract: Callable[[], Extracted] | None = None,
        representations: Callable[[Any, Any], Tensor] | None = None,
    ) -> None:
        self.config = MonitorConfig() if config is None else config
        self.latest: dict[str, float] = {}
        self.alarms: list[str] = []
        self.warnings: list[str] = []
        self.stop_reason: str | None = None
        self._log = None if path is None else MetricsLog(path)
        self._extract = extract
        self._representations = representations
        self._alarm = CollapseAlarm(self.config.alarm)
        self._pull = PullWarning()
        self._speed = Throughput()
        self._step = 0
        self._epoch = 0.0
        self._lr: float | Tensor | None = None
        self._owed = False  # whether an epoch is over and its set measures are still to come
        self._warned = False

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold for a resumed run to log and warn as an unbroken one."""
        watching = {"alarm": self._alarm.state_dict(), "pull": self._pull.state_dict()}
        return {**watching, "epoch": self._epoch, "owed": self._owed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the state that a checkpoint holds."""
        self._alarm.load_state_dict(state_dict["alarm"])
        if "pull" in state_dict:  # which checkpoints of earlier versions lack
            self._pull.load_state_dict(state_dict["pull"])
        self._epoch, self._owed = state_dict["epoch"], state_dict["owed"]

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Cut the metrics file back to where the run is, and measure the set where that is due."""
        self._step = trainer.global_step
        self._speed, self.stop_reason = Throughput(), None
        if self._step == 0:
            self._epoch = 0.0
        if self._log and trainer.is_global_zero:
            self._log.resume(self._step)
            self.latest |= {name: rows[-1][2] for name, rows in read_metrics(self._log.path).items()}
        # A checkpoint taken at the last batch of an epoch resumes with the next epoch: what was to come between is
        # made up for here.
        if self._step == 0 or self._owed:
            self._measure_set(trainer, module)

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """Note the learning rate of this step; once it is over, the schedule has already moved on."""
        self._lr = trainer.optimizers[0].param_groups[0]["lr"]

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Measure the batch where an optimizer step has made that due."""
        self._speed.add(batch_size(batch) * trainer.world_size)
        before, self._step = self._step, trainer.global_step
        self._epoch = trainer.current_epoch + (batch_idx + 1) / trainer.num_training_batches
        self._owed = trainer.is_last_batch and self._set_is_due(trainer)
        every = self.config.every_steps
        # A multiple was passed, rather than hit: several optimizers make several steps per batch.
        due = self._step // every > before // every or before == 0 < self._step
        # Beside the set too, so that what is said of an epoch is not the loss of one long past.
        beside = self._owed and self._extract is not None
        if due or (self._step > before and (beside or _is_last(trainer))):
            values = self._batch_values(trainer, module, outputs, batch) if trainer.is_global_zero else {}
            self._conclude(trainer, values)
            self._speed.restart()

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """Measure the set where that is due."""
        if self._set_is_due(trainer):
            self._measure_set(trainer, module)

    def _set_is_due(self, trainer: Any) -> bool:
        done = trainer.current_epoch + 1
        last = done == trainer.max_epochs or 0 < trainer.max_steps <= self._step or trainer.should_stop
        return bool(last or done % self.config.every_epochs == 0)

    def _measure_set(self, trainer: Any, module: Any) -> None:
        self._owed = False
        if self._extract is None:
            return
        values = {}
        if trainer.is_global_zero:
            _synchronize(module.device)
            with self._speed.paused():
                config = self.config
                found = measure_set(
                    self._extract(),
                    k=config.k,
                    points=config.points,
                    knn_k=config.knn_k,
                    knn=config.knn,
                    probe=config.probe,
                )
            values = {f"set/{name}": value for name, value in found.items()}
        self._conclude(trainer, values)

    def _batch_values(self, trainer: Any, module: Any, outputs: Any, batch: Any) -> dict[str, float]:
        _synchronize(module.device)
        rate = self._speed.rate()
        outputs = outputs if isinstance(outputs, Mapping) else {"loss": outputs}
        scalars = {f"terms/{name}": value for name, value in outputs.get("terms", {}).items()}
        # "objective" where the trainer divides "loss" by the number of accumulated parts.
        loss = outputs.get("objective", outputs.get("loss"))
        if loss is not None:
            scalars = {"batch/loss": loss, **scalars}
        values = _numbers(scalars, module.device)
        found = self._batch_representations(trainer, module, outputs, batch)
        if found is not None:
            # No more rows than of the set: at batches of thousands, neighbors and spectrum would take seconds.
            dimensions = measure(spread(found, self.config.points), k=self.config.k)
            values |= {f"batch/{name}": value for name, value in dimensions.items()}
            if self._representations is None and (views := _views(found, outputs.get("view_count", 1))):
                values["batch/view_share"] = float(view_share(views))
        if self._lr is not None:
            values["lr"] = float(self._lr)
        return values if rate is None else values | {"images_per_second": rate}

    def _batch_representations(self, trainer: Any, module: Any, outputs: Any, batch: Any) -> Tensor | None:
        """Representations (N, D) to be measured; None where there are none, or too few, which is said once."""
        found: Tensor | None = outputs.get("representations")
        if self._representations is not None:
            with undisturbed(module, module.device), trainer.precision_plugin.forward_context():
                found = self._representations(module, batch)
        if found is None or len(found) > self.config.k:
            return found
        if not self._warned:
            wanted = f"more than k ({self.config.k}) representations in a batch"
            logger.warning("step %d: expected %s to measure dimensions, got %d", self._step, wanted, len(found))
            self._warned = True
        return None

    def _conclude(self, trainer: Any, values: dict[str, float]) -> None:
        """Write the values, and let the alarm speak; every rank must come here, for all of them stop or none does."""
        message = None
        if values:
            self.latest |= values
            if self._log:
                self._log.write(values, step=self._step, epoch=self._epoch)
            for target in trainer.loggers:
                target.log_metrics(values, step=self._step)
            watched = {name: value for name, value in values.items() if not name.startswith("terms/")}
            message = self._alarm.check(watched, step=self._step, epoch=self._epoch)
            self._warn_of_pull(values.get("terms/pull"))
        if message:
            self.alarms.append(message)
            logger.warning(message)
        if self.config.stop_on_alarm and trainer.strategy.reduce_boolean_decision(message is not None, all=False):
            trainer.should_stop = True
            self.stop_reason = message or "collapse alarm on the first rank"

    def _warn_of_pull(self, pull: float | None) -> None:
        if pull is None or self.config.alarm == 0:
            return
        if warning := self._pull.check(pull, step=self._step, epoch=self._epoch):
            self.warnings.append(warning)
            logger.warning(warning)


def _is_last(trainer: Any) -> bool:
    """Whether this is the last step of the whole training."""
    return bool(trainer.is_last_batch and trainer.current_epoch + 1 == trainer.max_epochs)


def _views(rows: Tensor, count: Any) -> tuple[Tensor, ...] | None:
    """The rows view by view; None where there is but one view, or one image.

    Raises:
        ValueError: rows are not of so many views.
    """
    if not isinstance(count, int | np.integer) or count < 1 or len(rows) % count:
        told = count if isinstance(count, int | float | str) else type(count).__name__
        raise ValueError(f"view_count: expected how many views of an image the {len(rows)} rows are of, got {told!r}")
    return rows.chunk(int(count)) if count > 1 and len(rows) > count else None


def _numbers(scalars: dict[str, Any], device: torch.device) -> dict[str, float]:
    """The scalars, wherever they are, as numbers, read from the device in one transfer.

    Raises:
        ValueError: one is no single number.
    """
    if not scalars:
        return {}
    for name, value in scalars.items():
        shape = tuple(getattr(value, "shape", ()))
        if not isinstance(value, Tensor | np.ndarray | np.generic | Real) or math.prod(shape) != 1:
            raise ValueError(f"{name}: expected a number, got {type(value).__name__} of shape {shape}")
    tensors = [torch.as_tensor(value, dtype=torch.float32, device=device) for value in scalars.values()]
    stacked = torch.stack([each.detach().reshape(()) for each in tensors])
    return dict(zip(scalars, stacked.tolist(), strict=True))


def _synchronize(device: torch.device) -> None:
    """Wait for the device, so that the clock reads the work done and not the work asked for."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
