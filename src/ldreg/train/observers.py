"""What watches a run: representations for the monitor, findings in them, and the progress on the terminal."""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from torch.nn import functional

from ldreg.data import Batch, ImageSet, batches_in_order, worker_count
from ldreg.evaluate.extract import representations
from ldreg.evaluate.measure import Extracted, voters
from ldreg.inspection.measure import quick_report
from ldreg.inspection.report import findings_in_words
from ldreg.record import Finding, brief, most_serious_first
from ldreg.text import number
from ldreg.train.folder import logger, say
from ldreg.train.module import Pretraining
from ldreg.train.settings import Settings

_BATCH = 512
_SIDE = 16  # of images that are searched for findings
_LARGE = 1e30  # beyond it distances do not fit into float32
_PAUSE = 5.0  # seconds at least between two lines if there is no terminal
_REFRESH = 0.2  # seconds between two updates of the bar, so that it costs a fast run nothing
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


class Extractor:
    """Extract representations of a fixed part of the training set, and of the test set if there is something to probe.

    Of a set that is labeled in part, the labeled images are taken; a set of one class has nothing to probe for.

    Attributes:
        latest: the representations (N, D) of training images that were last extracted.
        rows: the places of these images in the training set.
        names: their classes by name; None if they are not known.
        pixels: (N, C · S · S) the images themselves, S at most 16, from the first call on.

    Raises:
        ValueError: too few images for the monitor's settings.
    """

    def __init__(self, settings: Settings, module: Pretraining, train: ImageSet, test: ImageSet | None) -> None:
        config, labeled = settings.monitor, train.labeled_indices
        places = labeled if 0 < len(labeled) < len(train) else torch.arange(len(train))
        self._places = places = _part(places, config.points)
        train = train.take(places) if len(places) < len(train) else train
        if test is not None and not (test.labeled and train.labeled and len(train.labels.unique()) > 1):
            test = None
        if test is not None and len(test) > config.points:
            test = test.take(_part(torch.arange(len(test)), config.points))
        measured = f"the {len(train)} images that are measured"
        if config.k >= len(train):
            raise ValueError(f"monitor.k: expected fewer than {measured}, got {config.k}")
        if test is not None and config.knn and voters(len(train), config.knn_k) > len(train):
            raise ValueError(f"monitor.knn_k: expected at most {measured}, got {config.knn_k}")
        self._module, self._train, self._test = module, train, test
        self._workers = worker_count(settings.data, processes=settings.trainer.devices)
        self.latest: Tensor | None = None
        self.rows: Sequence[int] = ()
        self.names: Sequence[str] | None = None
        self.pixels: Tensor | None = None

    def __call__(self) -> Extracted:
        """Training representations and labels, test representations and labels; None where there are no labels."""
        indices, small = [], []

        def note(batch: Batch) -> None:
            indices.append(batch.indices.cpu())
            if self.pixels is None:  # averaged, so that their neighbors are found quickly
                side = min(_SIDE, batch.images.shape[-1])
                small.append(functional.adaptive_avg_pool2d(batch.images.float(), side).flatten(1))

        self.latest, labels = self._represent(self._train, note)
        self.rows = self._places[torch.cat(indices)].tolist()
        self.pixels = torch.cat(small) if small else self.pixels
        if self._test is None:
            return self.latest, None, None, None
        self.names = [self._train.classes[label] for label in labels.tolist()]
        return self.latest, labels, *self._represent(self._test)

    def _represent(self, images: ImageSet, note: Callable[[Batch], None] | None = None) -> tuple[Tensor, Tensor]:
        """Representations (N, D) of images without augmentation, and their labels (N,); `note` is given each batch."""
        views, device = self._module.views, self._module.device
        batches = batches_in_order(images, batch_size=_BATCH, device=device, size=views.size, workers=self._workers)

        def plain() -> Iterator[tuple[Tensor, Tensor]]:
            for batch in batches:
                if note is not None:
                    note(batch)
                yield views.plain(batch.images), batch.labels

        # Not through what is compiled for training: another mode and batch size would have it compiled anew.
        with torch.compiler.set_stance("force_eager"):
            return representations(self._module.method.encoder, plain(), device=device)


def _part(places: Tensor, points: int) -> Tensor:
    """At most so many of the places, ascending, always the same ones."""
    if len(places) <= points:
        return places
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(0))
    return places[order[:points].sort().values]


class Findings(Callback):
    """Look for findings in what the monitor extracts, on the first rank; training is not touched.

    Warnings on the images, and on the representations of an untrained encoder, are printed when training starts.
    """

    def __init__(self, extract: Extractor, k: int) -> None:
        self._extract, self._k = extract, k
        self._images: list[Finding] | None = None

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Print what is unusual before training; it runs after the monitor has measured the set."""
        latest = self._extract.latest
        if not trainer.is_global_zero or latest is None:
            return
        untrained = self._look(latest, "untrained encoder") if trainer.global_step == 0 else []
        for found in brief([*self._of_images(), *untrained]):
            if found.serious:
                say(f"{found.of}: {found.text}", level=logging.WARNING)

    def at_the_end(self) -> list[Finding]:
        """Warnings on the images and all findings of the last representations; none where nothing was extracted."""
        latest = self._extract.latest
        if latest is None:
            return []
        images = [found for found in self._of_images() if found.serious]
        return most_serious_first([*images, *self._look(latest, "representations", self._extract.names)])

    def _of_images(self) -> list[Finding]:
        if self._images is None:
            assert self._extract.pixels is not None
            self._images = self._look(self._extract.pixels, "images")
        return self._images

    def _look(self, x: Tensor, of: str, labels: Sequence[str] | None = None) -> list[Finding]:
        return look(x, of, k=self._k, rows=self._extract.rows, labels=labels)


def look(x: Tensor, of: str, *, k: int, rows: Sequence[int], labels: Sequence[str] | None = None) -> list[Finding]:
    """The findings of x (N, D), in which row i is of image `rows[i]`."""
    finite = torch.isfinite(x).all(1)
    if not finite.all():
        share = 1 - finite.double().mean().item()
        return [Finding("not_finite", "critical", share, {}, of=of, text="Some values are NaN or inf.")]
    x = x.double() if bool((x.abs() > _LARGE).any()) else x
    return findings_in_words(quick_report(x, labels, k), of, rows)


class ProgressBar(Callback):
    """Steps done, time left, and the latest measures: a bar on a terminal, a line per epoch elsewhere, on stderr."""

    def __init__(self, latest: Mapping[str, float]) -> None:
        self._latest = latest
        self._bar: Progress | None = None
        self._next = self._next_line = 0.0
        self._untrained: Mapping[str, float] = {}

    def on_train_start(self, trainer: pl.Trainer, module: Pretraining) -> None:  # type: ignore[override]  # the only module it is given
        """Show the bar if there is a terminal."""
        self._started = time.monotonic()
        self._untrained = dict(self._latest) if trainer.global_step == 0 else {}
        if not trainer.is_global_zero:
            return
        terminal = sys.stderr.isatty()
        if self._untrained:
            self._say(f"before training: {_values(self._untrained, _WHOLE)}", aloud=not terminal)
        if not terminal:
            return
        self._bar = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=12),
            TimeRemainingColumn(),
            TextColumn("left  {task.fields[values]}"),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task("", total=module.total_steps, epoch="", values="")
        self._bar.update(self._task, completed=trainer.global_step)
        self._bar.start()

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Advance the bar."""
        now = time.monotonic()
        if self._bar is not None and now >= self._next:
            self._next = now + _REFRESH
            self._show(self._bar, trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Advance the bar and log a line, which is also printed if there is no terminal."""
        if self._bar is not None:
            self._show(self._bar, trainer)
        now, done = time.monotonic(), trainer.current_epoch + 1
        if trainer.is_global_zero and (now >= self._next_line or done == trainer.max_epochs):
            self._next_line = now + _PAUSE
            place = f"epoch {done}/{trainer.max_epochs}, step {trainer.global_step}, {now - self._started:.0f} s"
            self._say(f"{place}: {_values(self._trained(), _WHOLE)}", aloud=self._bar is None)

    def teardown(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        """Remove the bar: no teardown follows Ctrl-C, and it would be drawn again below the error."""
        self.teardown(trainer, module, "fit")

    def _show(self, bar: Progress, trainer: pl.Trainer) -> None:
        epoch = f"{trainer.current_epoch + 1}/{trainer.max_epochs}"
        bar.update(self._task, completed=trainer.global_step, epoch=epoch, values=_values(self._trained(), _BRIEF))

    def _say(self, line: str, *, aloud: bool) -> None:
        logger.info(line)
        if aloud:
            print(line, file=sys.stderr, flush=True)

    def _trained(self) -> Mapping[str, float]:
        """The latest values, without those of the untrained encoder."""
        # The set's values are measured together: where one has changed, those that are as before were measured again.
        # Dicts are compared as a whole since NaN, as LID of a collapsed encoder is, differs from itself otherwise.
        again = {name: self._latest[name] for name in self._untrained} != self._untrained
        return self._latest if again else dict(self._latest.items() - self._untrained.items())


def _values(latest: Mapping[str, float], names: Mapping[str, str]) -> str:
    return "  ".join(f"{short} {number(latest[name])}" for name, short in names.items() if name in latest)
