"""Does the collapse alarm ring when it should, and only then? Forty trainings on digits.

Run as `python benchmarks/alarm.py`, which prints the table of docs/howto/pretrain.md and writes benchmarks/alarm.json;
`--only TEXT` takes the runs whose name contains it. Thresholds were set with seeds up to 305, and with the 155 runs of
results/cifar10; the seeds 400 and 401 judge. Twenty trainings are healthy: every method by its recipe, without and with
LDReg. Twenty collapse in part:

- dying: from a third of the training on, the biases of the encoder's last batch norm are lowered at every step, of a
  share of its units or of all, as units die that a bad step has pushed below zero.
- minlid: LDReg with the opposite sign.
- copies: a share of the images is replaced by copies of a few of them.
- diverging: a learning rate many times too large.

Trainings are shorter than their recipes, and are measured as often as those: 24 epochs of 5 steps, the batch every 5
steps, the set every 4 epochs.
"""

import argparse
import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from PIL import Image

from ldreg.data import DataConfig, ResidentImages, load_images
from ldreg.train.checkpoints import NotFiniteError
from ldreg.train.engine import quiet
from ldreg.train.folder import RunFolder
from ldreg.train.recipes import load_recipe
from ldreg.train.run import Run
from ldreg.train.settings import resolve

EPOCHS = 24
OPTIONS = {
    "schedule.epochs": str(EPOCHS),
    "monitor.every_steps": "5",
    "monitor.every_epochs": "4",
    "monitor.knn": "false",
    "monitor.probe": "false",
    "trainer.device": "cpu",
    "trainer.threads": "1",
}
RESULTS = Path(__file__).with_name("alarm.json")
METHODS = ("simclr", "simclr_tuned", "byol", "moco", "vicreg", "barlow_twins", "mae")


@dataclass(frozen=True)
class Case:
    """One training: its kind, recipe and seed, the options that spoil it, and what else does."""

    kind: str
    recipe: str
    seed: int
    options: dict[str, str] = field(default_factory=dict)
    dying: float = 0.0  # share of the units
    depth: float = 100.0  # by how much their biases are lowered
    copies: float = 0.0  # share of the images
    originals: int = 5

    @property
    def name(self) -> str:
        """What tells it from the others."""
        told = [f"{key.rpartition('.')[2]} {value}" for key, value in self.options.items() if key[:5] != "regul"]
        told += [f"{self.dying:.0%} of units"] if self.dying else []
        told += [f"by {self.depth:g}"] if self.depth < 100 else []
        told += [f"{self.copies:.0%} of images, of {self.originals}"] if self.copies else []
        return ", ".join([self.kind, self.recipe, *told, f"seed {self.seed}"])


def cases(seed: int) -> Iterator[Case]:
    """The forty trainings."""
    for method in METHODS:
        for recipe in (method, f"{method}_ldreg"):
            yield Case("healthy", recipe, seed)
    for recipe in ("simclr_vit", "simclr_vit_ldreg", "byol", "byol_ldreg", "moco_ldreg", "barlow_twins"):
        yield Case("healthy", recipe, seed + 1)
    all_units = (("simclr", 1.0, 3.0), ("byol_ldreg", 1.0, 100.0), ("vicreg", 1.0, 3.0))
    for recipe, dying, depth in (*all_units, ("moco", 0.9, 100.0), ("barlow_twins", 0.9, 100.0)):
        yield Case("dying", recipe, seed, dying=dying, depth=depth)
    for recipe, beta in (("simclr_tuned", 1), ("simclr", 3), ("byol", 1), ("vicreg", 3), ("moco", 3)):
        minlid = {"regularizer": "minlid", "minlid.k": "32", "minlid.beta": str(beta)}
        yield Case("minlid", recipe, seed, minlid)
    several = (("simclr", 0.3, 5), ("byol", 0.45, 8), ("vicreg_ldreg", 0.6, 10), ("mae", 0.3, 3))
    for recipe, copies, originals in (*several, ("moco", 0.6, 1)):
        yield Case("copies", recipe, seed, copies=copies, originals=originals)
    for recipe, rate in (("simclr", 10.0), ("byol", 0.1), ("vicreg", 0.1), ("barlow_twins_ldreg", 1.0), ("mae", 0.1)):
        yield Case("diverging", recipe, seed, {"optimizer.lr": str(rate)})


class Dying(pl.Callback):
    """Lowers the biases of the last batch norm, of a share of its units, from a third of the training on."""

    def __init__(self, share: float, depth: float) -> None:
        self.share, self.left = share, depth

    @torch.no_grad()
    def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
        """One step down."""
        if 3 * trainer.current_epoch >= trainer.max_epochs and self.left > 0:
            self.left -= 0.1
            bias = module.method.encoder.blocks[-1][1].bias
            bias[: round(self.share * len(bias))] -= 0.1


def write_copies(folder: Path, case: Case) -> None:
    """Digits as files, of which a share are copies of a few."""
    images = load_images(DataConfig(), "train")
    assert isinstance(images, ResidentImages)
    random = np.random.RandomState(case.seed)
    copied = random.random_sample(len(images)) < case.copies
    source = np.where(copied, random.randint(case.originals, size=len(images)), np.arange(len(images)))
    (folder / "train" / "all").mkdir(parents=True)
    for place, original in enumerate(source):
        Image.fromarray(images.images[original, 0].numpy()).save(folder / "train" / "all" / f"{place:04d}.png")


def train(case: Case, folder: Path, *, epochs: int = EPOCHS) -> dict[str, Any]:
    """Train, and say which alarms rang."""
    options = {**OPTIONS, **case.options, "schedule.epochs": str(epochs), "seed": str(case.seed)}
    if case.copies:
        write_copies(folder / "images", case)
        options |= {"data.name": "folder", "data.path": str(folder / "images"), "data.workers": "0"}
    (folder / "checkpoints").mkdir(parents=True)
    ended = None
    settings = resolve(load_recipe(f"digits/{case.recipe}"), list(options.items()))
    callbacks = [Dying(case.dying, case.depth)] if case.dying else []
    with quiet():
        run = Run(settings, RunFolder(folder))
        try:
            run.train(callbacks=callbacks)
        except NotFiniteError as error:
            ended = str(error)
    spoken = {"alarms": run.monitor.alarms, "warnings": run.monitor.warnings}
    return {"name": case.name, "kind": case.kind, **spoken, "ended": ended}


_FIRST = re.compile(r"at epoch ([\d.]+), step \d+: [^(]*\((\S+)\)")


def row(result: dict[str, Any]) -> str:
    """A line of the table: the run, and the first alarm's measure and epoch."""
    first = _FIRST.search(result["alarms"][0]) if result["alarms"] else None
    rang = f"`{first[2]}` | {float(first[1]):g}" if first else f"{result['ended'] or 'none'} | –"
    return f"| {result['name']} | {rang} |"


def main() -> None:
    """Train them all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=400)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    results = []
    print("| training | first alarm by | at epoch |\n|---|---|---|")
    for case in cases(asked.seed):
        if asked.only in case.name:
            with tempfile.TemporaryDirectory() as folder:
                results.append(train(case, Path(folder)))
            print(row(results[-1]), *results[-1]["warnings"], flush=True)
    for told, kinds in (("collapsing", False), ("healthy", True)):
        some = [result for result in results if (result["kind"] == "healthy") == kinds]
        print(f"{told}: the alarm rang in {sum(bool(result['alarms']) for result in some)} of {len(some)}")
    if not asked.only and asked.seed == parser.get_default("seed"):
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
