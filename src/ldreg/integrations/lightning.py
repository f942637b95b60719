"""The monitor as a callback for anyone's `LightningModule`, under `lightning` and under `pytorch_lightning` alike.

A monitor becomes a callback of the package that is loaded when it is made, or of both. It never imports the other.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ldreg.distributed import active, gather_rows
from ldreg.evaluate.extract import undisturbed
from ldreg.evaluate.measure import evenly_spaced, measure
from ldreg.integrations import check_whole
from ldreg.monitor.watch import Watch, callback_bases, check_settings, logger
from ldreg.regularizers.ldreg import strengths

__all__ = ["DimensionMonitor"]


class DimensionMonitor(Watch):
    """Log LID and effective rank of representations while a LightningModule is trained, and warn when they collapse.

    `ldreg/train/lid` and the other measures of `ldreg.evaluate.measure.measure` are of a training batch, at the first
    optimizer step and every `every_steps` after it. `ldreg/val/…` are of the first validation set. With several
    processes they are of the rows of all. All go to the trainer's loggers, whatever its `log_every_n_steps`, and
    `EarlyStopping` and `ModelCheckpoint` can use them. If the module contains an `LDReg`, its pull and effective beta
    are logged too, as `ldreg/train/pull` and `ldreg/train/effective_beta`.

    Given a name, the rows are what that submodule returned at its first call in the step: one view, if the step has
    several. They cost no forward pass and training does not change. A function is called after the step, in eval mode
    and without gradients; torch's random generators are restored.

    Args:
        representations: the name of a submodule that returns representations (N, D), as "backbone", or a function of
            module and batch that does.
        k: number of neighbors, at least 2; batches and sets of at most k rows are not measured, with one warning.
        every_steps: optimizer steps between measurements of the training batch; 0: never.
        points: measure at most this many rows, evenly spread over the batch or set.
        validation: whether to measure the validation set.
        alarm: share of its running maximum below which LID, its 5 % quantile or effective rank raises the alarm, which
            also watches spread and degenerate share; 0: no alarm.
        stop_on_alarm: whether the alarm ends training.
        name: log as `ldreg/NAME/train/lid` and so on; several monitors of one trainer need different names.

    Attributes:
        latest: the last value of every measure.
        alarms: all alarms raised, in order.

    Raises:
        ValueError: a setting is out of range; in training, the submodule does not exist, is not called in the step, or
            does not return (N, D).
        ModuleNotFoundError: neither package is installed.

    >>> monitor = DimensionMonitor("backbone", k=20)
    >>> monitor.latest, monitor.alarms
    ({}, [])
    """

    def __new__(cls, *args: Any, **options: Any) -> "DimensionMonitor":
        """A monitor that is also a `Callback` of the package that is in use."""
        plain: Any = cls
        made: DimensionMonitor = object.__new__(_as_callback(plain, callback_bases()))
        return made

    def __init__(
        self,
        representations: str | Callable[[Any, Any], Tensor],
        *,
        k: int = 64,
        every_steps: int = 50,
        points: int = 2000,
        validation: bool = True,
        alarm: float = 0.5,
        stop_on_alarm: bool = False,
        name: str | None = None,
    ) -> None:
        if name is not None and (not isinstance(name, str) or not name):
            raise ValueError(f"name: expected a word for the names of what is logged, or None, got {name!r}")
        if isinstance(representations, Module):  # which is callable, but not with a module and a batch
            wanted = 'the name of a submodule, as "backbone", or a function of module and batch'
            raise ValueError(f"representations: expected {wanted}, got the module {type(representations).__name__}")
        check_whole(2, k=k, points=points)
        check_whole(0, every_steps=every_steps)
        check_settings(k=k, points=points, alarm=alarm, stop_on_alarm=stop_on_alarm)
        super().__init__(alarm)
        self.k = k
        self.every_steps = every_steps
        self.points = points
        self.validation = validation
        self.stop_on_alarm = stop_on_alarm
        self.name = name
        self._source = representations
        self._next = 0  # the step from which a training batch is measured
        self._before = 0  # the step at which a training batch began
        self._epoch = 0.0
        self._hook: Any = None
        self._wanted = False  # whether to keep what the submodule returns next
        self._returned: Any = None
        self._rows: list[Tensor] = []
        self._warned: set[str] = set()

    def __reduce__(self) -> Any:
        """Pickle by the plain class, because the class with a `Callback` base cannot be found by name."""
        return _remade, (getattr(type(self), "_plain", type(self)),), self.__dict__

    @property
    def state_key(self) -> str:
        """The name of this monitor in a checkpoint."""
        kind = type(self).__qualname__
        return kind if self.name is None else f"{kind}[{self.name}]"

    def state_dict(self) -> dict[str, Any]:
        """The state that makes a resumed run log and warn as an uninterrupted one."""
        return {"alarm": self._alarm.state_dict(), "next": self._next, "epoch": self._epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self._alarm.load_state_dict(state_dict["alarm"])
        self._next, self._epoch = state_dict["next"], state_dict["epoch"]

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Hook the submodule."""
        self._attach(pl_module)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Decide whether to measure this batch."""
        self._before = trainer.global_step
        self._wanted = self.every_steps > 0 and self._before >= self._next

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Measure the batch if that is due."""
        self._epoch = trainer.current_epoch + (batch_idx + 1) / trainer.num_training_batches
        if trainer.global_step == self._before:  # of accumulated parts only the last is measured
            self._wanted, self._returned = False, None
        found = self._found(trainer, pl_module, batch, "training_step")
        if found is None:
            return
        self._next = (self._before // self.every_steps + 1) * self.every_steps
        values = self._measured(trainer, found, "train")
        pl_module.log_dict(values, on_step=True, on_epoch=False, logger=False)
        for target in trainer.loggers:
            target.log_metrics(values, step=trainer.global_step)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Hook the submodule if validation is not part of training."""
        self._attach(pl_module)
        self._rows = []

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Decide whether this batch belongs to the measured set."""
        self._wanted = self.validation and dataloader_idx == 0

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Keep some rows of every batch, because a set may be sorted by class."""
        found = self._found(trainer, pl_module, batch, "validation_step")
        kept = sum(map(len, self._rows))
        if found is None or kept >= self.points:
            return
        batches = trainer.num_val_batches[0] if not trainer.sanity_checking else trainer.num_sanity_val_batches[0]
        share = self.points if math.isinf(batches) else math.ceil(self.points / (batches * trainer.world_size))
        self._rows.append(evenly_spaced(found, min(share, self.points - kept)))

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Measure the set."""
        rows, self._rows = self._rows, []
        if not self.validation or trainer.sanity_checking:
            return
        values = self._measured(trainer, torch.cat(rows) if rows else torch.empty(0, 0, device=pl_module.device), "val")
        pl_module.log_dict(values, on_step=False, on_epoch=True, batch_size=1, sync_dist=True)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Remove the hook."""
        self._detach()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Remove the hook."""
        self._detach()

    def _attach(self, module: Any) -> None:
        if self._hook is not None or not isinstance(self._source, str):
            return
        try:
            part = module.get_submodule(self._source)
        except AttributeError:
            names = ", ".join(name for name, _ in module.named_children())
            raise ValueError(
                f"representations: expected the name of a submodule, as {names}, got {self._source!r}"
            ) from None
        self._hook = part.register_forward_hook(self._keep)

    def _detach(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._hook = None

    def _keep(self, part: Any, inputs: Any, output: Any) -> None:
        """Keep a copy of what the submodule returns first; the next layer may overwrite it."""
        if self._wanted and self._returned is None:
            self._returned = output.detach().clone() if isinstance(output, Tensor) else output

    def _found(self, trainer: Any, module: Any, batch: Any, step: str) -> Tensor | None:
        """The representations (N, D) of this batch; None if it is not measured."""
        if not self._wanted:
            return None
        self._wanted = False
        if isinstance(self._source, str):
            found, self._returned = self._returned, None
            if found is None:
                raise ValueError(f"representations: expected {step} to call {self._source!r}, but it did not")
        else:
            with undisturbed(module, module.device), trainer.precision_plugin.forward_context():
                found = self._source(module, batch)
        return _as_rows(found)

    def _measured(self, trainer: Any, rows: Tensor, stage: str) -> dict[str, float]:
        """The measures of all processes' rows, the same on each; empty if there are too few rows."""
        prefix = "/".join(part for part in ("ldreg", self.name, stage) if part is not None)
        share = math.ceil(self.points / trainer.world_size)
        rows = evenly_spaced(_gathered(evenly_spaced(rows, share)), self.points)
        if len(rows) <= self.k:
            if stage not in self._warned and trainer.is_global_zero:
                logger.warning("%s: expected more than k (%d) rows to measure, got %d", prefix, self.k, len(rows))
            self._warned.add(stage)
            return {}
        found = measure(rows, k=self.k) if trainer.is_global_zero else {}
        if stage == "train":
            found |= strengths(trainer.lightning_module)
        values = {f"{prefix}/{name}": value for name, value in trainer.strategy.broadcast(found).items()}
        self.latest |= values
        if self.check(values, step=trainer.global_step, epoch=self._epoch, log=trainer.is_global_zero):
            trainer.should_stop = trainer.should_stop or self.stop_on_alarm
        return values


@cache
def _as_callback(cls: Any, bases: tuple[type, ...]) -> Any:
    missing = tuple(base for base in bases if not issubclass(cls, base))
    if not missing:
        return cls
    named = {"__doc__": cls.__doc__, "__module__": cls.__module__, "__qualname__": cls.__qualname__, "_plain": cls}
    return type(cls.__name__, (cls, *missing), named)


def _remade(cls: type[DimensionMonitor]) -> DimensionMonitor:
    return cls.__new__(cls)


def _as_rows(found: Any) -> Tensor:
    """Representations (N, D), without the further axes of size 1 that pooling leaves.

    >>> _as_rows(torch.zeros(8, 3, 1, 1)).shape
    torch.Size([8, 3])
    """
    if isinstance(found, Tensor) and found.ndim >= 2 and found.shape[2:].numel() == 1:
        return found.detach().flatten(1)
    got = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
    advice = "a function of module and batch can take it out or pool it"
    raise ValueError(f"representations: expected a tensor (N, D), got {got}; {advice}")


def _gathered(rows: Tensor) -> Tensor:
    """All processes' rows (n, D) in rank order; a process may have fewer, or none."""
    if not active():
        return rows
    return torch.cat(gather_rows(rows.float()))
