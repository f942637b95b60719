"""Short runs, for tests of what comes after a run."""

from pathlib import Path

from ldreg.train.recipes import load_recipe
from ldreg.train.run import pretrain
from ldreg.train.settings import resolve

QUICK = {
    "schedule.epochs": "1",
    "schedule.warmup_epochs": "0",
    "data.limit": "200",
    "batch_size": "64",
    "monitor.k": "16",
    "trainer.threads": "1",
    "trainer.device": "cpu",
}


def short_run(method: str, path: Path) -> Path:
    """The folder of one epoch over a few digits, whose cache lies beside it."""
    options = {**QUICK, "data.cache": str(path.parent / "cache")}
    pretrain(resolve(load_recipe(f"digits/{method}"), list(options.items())), path)
    return path
