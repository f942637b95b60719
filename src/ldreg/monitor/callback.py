"""The monitor as a Lightning callback, for the trainers of `pytorch_lightning` and of `lightning` alike."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ldreg.dimension.quality import view_share
from ldreg.distributed import active, gather_rows
from ldreg.evaluate.extract import undisturbed
from ldreg.evaluate.measure import Extracted, evenly_spaced, measure, measure_set
from ldreg.monitor.alarm import SETTLED
from ldreg.monitor.log import MetricsLog, read_metrics
from ldreg.monitor.watch import MonitorConfig, Watch, callback_bases, logger
from ldreg.regularizers.balance import PullWarning

if TYPE_CHECKING:
    from pytorch_lightning import Callback
else:
    Callback = type("Callback", callback_bases(), {})


class Monitor(Watch, Callback):
    """Log losses, dimensions, probes and speed of any LightningModule, and raise an alarm when it collapses.

    Batch measures, at the first and last optimizer step and every `every_steps`: `batch/loss`, `terms/<name>`,
    `batch/` with each measure of `ldreg.evaluate.measure.measure`, `batch/view_share`, `lr` and `images_per_second`.
    They come from what training_step returns: a dict of loss and optionally terms (scalars by name), representations
    (N, D), view after view, and view_count, the number of views of each image. Other steps cost nothing and do not
    synchronize the device. Speed excludes the time of measuring.

    Set measures, before training, every `every_epochs` epochs and at the end: `set/` with each measure of
    `ldreg.evaluate.measure.measure`, and, if labels are known, the test accuracies `set/knn` and `set/linear`.
    The linear probe is fitted again each time on the frozen representations of that moment: it has no state, costs
    nothing between measurements, and does not depend on where a run was resumed.

    A batch is that of all ranks. The first rank measures and writes. Numbers go to the metrics file, to the trainer's
    loggers and into `latest`; alarms go to the log "ldreg" and into `alarms`. A term `pull` that stays negligible or
    dominant from step 50 on is logged once and is not an alarm (`PullWarning`), unless there is a term `share`.
    Training does not change: no random number is drawn and no buffer changes, so a monitored run is bitwise equal to
    an unmonitored one.

    Args:
        config: what is measured and how often.
        path: the metrics file (CSV); None: write only to the trainer's loggers.
        extract: returns representations and classes of training and test images without side effects. Pass it on
            every rank; only the first calls it, so it must contain no collectives. None: no set measures.
        representations: function of module and batch that returns representations (N, D), for a module whose
            training_step does not; called at measured steps, in eval mode and without gradients.

    Attributes:
        latest: the last value of every metric.
        alarms: all alarms raised, in order.
        warnings: warnings about the regularizer's pull.
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
        super().__init__(self.config.alarm)
        self.warnings: list[str] = []
        self.stop_reason: str | None = None
        self._log = None if path is None else MetricsLog(path)
        self._extract = extract
        self._representations = representations
        self._pull = PullWarning()
        self._speed = Throughput()
        self._step = 0
        self._epoch = 0.0
        self._lr: float | Tensor | None = None
        self._owed = False  # an epoch is over and its set is not measured yet
        self._warned = False

    def state_dict(self) -> dict[str, Any]:
        """The state that makes a resumed run log and warn as an uninterrupted one."""
        watching = {"alarm": self._alarm.state_dict(), "pull": self._pull.state_dict()}
        return {**watching, "epoch": self._epoch, "owed": self._owed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self._alarm.load_state_dict(state_dict["alarm"])
        if "pull" in state_dict:  # missing from checkpoints of earlier versions
            self._pull.load_state_dict(state_dict["pull"])
        self._epoch, self._owed = state_dict["epoch"], state_dict["owed"]

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Cut the metrics file back to the step of the run, and measure the set if that is due."""
        self._step = trainer.global_step
        self._speed, self.stop_reason = Throughput(), None
        if self._step == 0:
            self._epoch = 0.0
        if self._log and trainer.is_global_zero:
            self._log.resume(self._step)
            self.latest |= {name: rows[-1][2] for name, rows in read_metrics(self._log.path).items()}
        # A checkpoint of the last batch of an epoch resumes with the next epoch, so the set is measured here.
        if self._step == 0 or self._owed:
            self._measure_set(trainer, module)

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """Note the learning rate of this step, before the schedule changes it."""
        self._lr = trainer.optimizers[0].param_groups[0]["lr"]

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Measure the batch if an optimizer step made that due."""
        self._speed.images += batch_size(batch) * trainer.world_size
        before, self._step = self._step, trainer.global_step
        self._epoch = trainer.current_epoch + (batch_idx + 1) / trainer.num_training_batches
        self._owed = trainer.is_last_batch and self._set_is_due(trainer)
        every = self.config.every_steps
        # Passed, not hit: several optimizers make several steps per batch.
        due = self._step // every > before // every or before == 0 < self._step
        # Also whenever the set is measured, so that the loss belongs to the same time.
        with_set = self._owed and self._extract is not None
        last = trainer.is_last_batch and trainer.current_epoch + 1 == trainer.max_epochs
        if due or (self._step > before and (with_set or last)):
            outputs = outputs if isinstance(outputs, Mapping) else {"loss": outputs}
            views = self._views(trainer, module, outputs, batch)
            self._conclude(trainer, self._batch_values(module, outputs, views) if trainer.is_global_zero else {})
            self._speed.restart()

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """Measure the set if that is due."""
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
            config = self.config
            with self._speed.paused():
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

    def _batch_values(self, module: Any, outputs: Mapping[str, Any], views: Sequence[Tensor]) -> dict[str, float]:
        _synchronize(module.device)
        rate = self._speed.rate()
        scalars = {f"terms/{name}": value for name, value in outputs.get("terms", {}).items()}
        # "objective" is the loss before the trainer divides it by the number of accumulated parts.
        loss = outputs.get("objective", outputs.get("loss"))
        if loss is not None:
            scalars = {"batch/loss": loss, **scalars}
        values = _numbers(scalars, module.device)
        if views and self._enough(sum(map(len, views))):
            # Measuring a batch of thousands of rows would take seconds.
            dimensions = measure(evenly_spaced(torch.cat(tuple(views)), self.config.points), k=self.config.k)
            values |= {f"batch/{name}": value for name, value in dimensions.items()}
            if len(views) > 1:
                values["batch/view_share"] = float(view_share(views))
        if self._lr is not None:
            values["lr"] = float(self._lr)
        return values if rate is None else values | {"images_per_second": rate}

    def _views(self, trainer: Any, module: Any, outputs: Mapping[str, Any], batch: Any) -> Sequence[Tensor]:
        """Representations (N, D) of each view, of all ranks; one view where they are not known apart, or none."""
        found: Tensor | None = outputs.get("representations")
        count = outputs.get("view_count", 1)
        if self._representations is not None:
            with undisturbed(module, module.device), trainer.precision_plugin.forward_context():
                found, count = self._representations(module, batch), 1
        if found is None:
            return ()
        views = by_view(found.detach(), count)
        return [torch.cat(gather_rows(view)) for view in views] if active() else views

    def _enough(self, rows: int) -> bool:
        """Whether a batch has more than k rows; one warning if not."""
        if rows <= self.config.k and not self._warned:
            wanted = f"more than k ({self.config.k}) representations in a batch"
            logger.warning("step %d: expected %s to measure dimensions, got %d", self._step, wanted, rows)
            self._warned = True
        return rows > self.config.k

    def _conclude(self, trainer: Any, values: dict[str, float]) -> None:
        """Write and check the values; called on every rank, because all ranks stop together."""
        message = None
        if values:
            self.latest |= values
            if self._log:
                self._log.write(values, step=self._step, epoch=self._epoch)
            for target in trainer.loggers:
                target.log_metrics(values, step=self._step)
            self._warn_of_pull(values)
            message = self.check(values, step=self._step, epoch=self._epoch)
        if self.config.stop_on_alarm and trainer.strategy.reduce_boolean_decision(message is not None, all=False):
            trainer.should_stop = True
            self.stop_reason = message or "collapse alarm on the first rank"

    def _warn_of_pull(self, values: Mapping[str, float]) -> None:
        """Say once if a regularizer's pull is negligible or dominant, unless it was chosen as a share."""
        pull = values.get("terms/pull")
        if pull is None or "terms/share" in values or self._step < SETTLED or self.config.alarm == 0:
            return
        if message := self._pull.check(pull, beta=values.get("terms/effective_beta")):
            warning = f"regularizer at epoch {self._epoch:.2f}, step {self._step}: {message}"
            self.warnings.append(warning)
            logger.warning(warning)


class Throughput:
    """Images per second between two restarts, by a clock that returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._start: float | None = None  # None: the first steps compile and warm up
        self.images = 0

    def rate(self) -> float | None:
        """Images per second since the last restart; None before the first restart or without images."""
        return None if self._start is None or self.images == 0 else self.images / (self._clock() - self._start)

    def restart(self) -> None:
        """Start counting again."""
        self.images, self._start = 0, self._clock()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time of the block."""
        before = self._clock()
        yield
        if self._start is not None:
            self._start += self._clock() - before


def batch_size(batch: Any) -> int:
    """Rows of the first tensor in a batch of tensors, tuples, lists and mappings; 0 if there is none."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else 0
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return next((size for part in parts if (size := batch_size(part))), 0)


def by_view(rows: Tensor, count: Any) -> tuple[Tensor, ...]:
    """Rows that lie view after view, in as many parts; one part if there is a single image."""
    if not isinstance(count, int | np.integer) or count < 1 or len(rows) % count:
        got = count if isinstance(count, int | float | str) else type(count).__name__
        raise ValueError(f"view_count: expected a number of views that divides the {len(rows)} rows, got {got!r}")
    return rows.chunk(int(count)) if len(rows) > count else (rows,)


def _numbers(scalars: dict[str, Any], device: torch.device) -> dict[str, float]:
    """The scalars as numbers, read from the device in one transfer."""
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
    """Wait for the device, so that the clock measures finished work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
