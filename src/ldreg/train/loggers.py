"""Further loggers beside the metrics file: TensorBoard and Weights & Biases."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from pytorch_lightning.loggers import Logger, TensorBoardLogger, WandbLogger

_EXTRAS = {"tensorboard": "tensorboard", "wandb": "wandb"}


def build_loggers(names: Sequence[str], folder: Path) -> list[Logger]:
    """The loggers of these names, which write into the run folder.

    Raises:
        ValueError: its package is not installed.
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ValueError(f"trainer.log_to: {name} is not installed; pip install 'ldreg[{_EXTRAS[name]}]' brings it")
    made: list[Logger] = []
    if "tensorboard" in names:
        made.append(TensorBoardLogger(folder, name="tensorboard", version=""))
    if "wandb" in names:
        # Absolute, for its process of its own may work in another folder.
        made.append(WandbLogger(name=folder.name, save_dir=folder.resolve(), project="ldreg"))
    return made
