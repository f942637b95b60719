"""What is unusual in the images and representations of a run: said at its start, kept at its end."""

import logging
from collections.abc import Sequence

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from ldreg.inspection import quick_report
from ldreg.inspection.report import findings_in_words
from ldreg.record import Finding, brief, most_serious_first
from ldreg.train.assembly import Extractor
from ldreg.train.folder import say

_LARGE = 1e30  # beyond it distances do not fit into float32


class Findings(Callback):
    """Looks for findings in what the monitor extracts, on the first rank; training is not touched.

    Warnings on the images, and on the representations of an untrained encoder, are said when training starts.

    Args:
        extract: gives the monitor its representations, and keeps the last.
        k: neighbors that LID is read from.
    """

    def __init__(self, extract: Extractor, k: int) -> None:
        self._extract, self._k = extract, k
        self._images: list[Finding] | None = None

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Say what is unusual before training; to be called after the monitor has measured the set."""
        if not trainer.is_global_zero or self._extract.latest is None:
            return
        untrained = self._representations("untrained encoder") if trainer.global_step == 0 else []
        for found in brief([*self._of_images(), *untrained]):
            if found.serious:
                say(f"{found.of}: {found.text}", level=logging.WARNING)

    def at_the_end(self) -> list[Finding]:
        """Warnings on the images and all findings of the last representations; none where nothing was extracted."""
        if self._extract.latest is None:
            return []
        images = [found for found in self._of_images() if found.serious]
        representations = self._representations("representations", labels=self._extract.names)
        return most_serious_first([*images, *representations])

    def _of_images(self) -> list[Finding]:
        if self._images is None:
            assert self._extract.pixels is not None
            self._images = look(self._extract.pixels, "images", k=self._k, rows=self._extract.rows)
        return self._images

    def _representations(self, of: str, labels: Sequence[str] | None = None) -> list[Finding]:
        assert self._extract.latest is not None
        return look(self._extract.latest, of, k=self._k, rows=self._extract.rows, labels=labels)


def look(x: Tensor, of: str, *, k: int, rows: Sequence[int], labels: Sequence[str] | None = None) -> list[Finding]:
    """The findings of x (N, D), in which row i is of image `rows[i]`."""
    finite = torch.isfinite(x).all(1)
    if not finite.all():
        share = 1 - finite.double().mean().item()
        return [Finding("not_finite", "critical", share, {}, of=of, text="Some values are NaN or inf.")]
    x = x.double() if bool((x.abs() > _LARGE).any()) else x
    return findings_in_words(quick_report(x, labels, k), of, rows)
