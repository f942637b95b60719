"""What a person sees while a run goes on: a bar on a terminal, a line per epoch elsewhere."""

import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ldreg.text import number
from ldreg.train.module import Pretraining

_PAUSE = 5.0  # seconds at least between two lines where there is no terminal
_REFRESH = 0.2  # seconds between two looks at the bar, so that it costs a fast run nothing
# Of the batch, whose augmented views have a higher LID than the images themselves; what fits into 80 columns.
_BRIEF = {"batch/loss": "loss", "batch/lid": "batch LID", "set/knn": "kNN"}
_WHOLE = {
    "batch/loss": "loss",
    "batch/lid": "batch LID",
    "batch/effective_rank": "batch rank",
    "set/lid": "set LID",
    "set/knn": "kNN",
    "set/linear": "linear",
    "images_per_second": "img/s",
}


class ProgressBar(Callback):
    """Steps done, time left, and the latest loss, LID and probes, on stderr.

    Args:
        latest: values by name that are looked up whenever the display changes; the monitor keeps them.
    """

    def __init__(self, latest: Mapping[str, float]) -> None:
        self._latest = latest
        self._bar: Progress | None = None
        self._next = self._next_line = 0.0
        self._untrained: Mapping[str, float] = {}

    def on_train_start(self, trainer: pl.Trainer, module: Pretraining) -> None:  # type: ignore[override]  # the only module it is given
        """Show the bar, where there is a terminal."""
        self._started = time.monotonic()
        self._untrained = {name: value for name, value in self._latest.items() if trainer.global_step == 0}
        if not trainer.is_global_zero:
            return
        if self._untrained:
            self._say(f"before training: {self._values(_WHOLE, untrained=True)}", aloud=not sys.stderr.isatty())
        if not sys.stderr.isatty():
            return
        columns = (
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=12),
            TimeRemainingColumn(),
            TextColumn("left  {task.fields[values]}"),
        )
        self._bar = Progress(*columns, console=Console(stderr=True))
        self._task = self._bar.add_task(
            "", total=module.total_steps, completed=trainer.global_step, epoch="", values=""
        )
        self._bar.start()

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move the bar on."""
        now = time.monotonic()
        if self._bar is None or now < self._next:
            return
        self._next = now + _REFRESH
        self._show(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Move the bar on, and put a line into the log, which is also said where there is no terminal."""
        if self._bar is not None:
            self._show(trainer)
        now, last = time.monotonic(), trainer.current_epoch + 1 == trainer.max_epochs
        if not trainer.is_global_zero or (now < self._next_line and not last):
            return
        self._next_line = now + _PAUSE
        done = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}, step {trainer.global_step}"
        self._say(f"{done}, {now - self._started:.0f} s: {self._values(_WHOLE)}", aloud=self._bar is None)

    def teardown(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        """Take the bar down."""
        self._take_down()

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        """Take the bar down, as no teardown follows Ctrl-C, and it would be drawn again below what is said then."""
        self._take_down()

    def _take_down(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show(self, trainer: pl.Trainer) -> None:
        assert self._bar is not None
        epoch = f"{trainer.current_epoch + 1}/{trainer.max_epochs}"
        self._bar.update(self._task, completed=trainer.global_step, epoch=epoch, values=self._values(_BRIEF))

    def _say(self, line: str, *, aloud: bool) -> None:
        logging.getLogger("ldreg").info(line)
        if aloud:
            print(line, file=sys.stderr, flush=True)

    def _values(self, names: Mapping[str, str], *, untrained: bool = False) -> str:
        """The latest values; those of the untrained encoder are told once, and not beside a trained one's."""
        # The set's values are measured together: where one has changed, those that are as before were measured again.
        # Dicts are compared as a whole since NaN, as LID of a collapsed encoder is, differs from itself otherwise.
        again = {name: self._latest[name] for name in self._untrained} != self._untrained
        known = self._latest if untrained or again else dict(self._latest.items() - self._untrained.items())
        named = ((shown, known.get(name)) for name, shown in names.items())
        return "  ".join(f"{shown} {number(value)}" for shown, value in named if value is not None)
