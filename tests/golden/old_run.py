"""Make data/old_runs.tar.xz: an interrupted and a finished run, written by the version on PYTHONPATH.

    PYTHONPATH=/path/to/old/src python tests/golden/old_run.py

Later versions have to go on with the first and to read the second. Their weights are rounded, so that the archive is
small: the numbers in golden data come from the rounded weights too.
"""

import contextlib
import os
import signal
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.golden.place import Place

ARCHIVE = Path(__file__).parent / "data" / "old_runs.tar.xz"
SETTINGS = (
    *("--schedule.epochs", "4", "--schedule.warmup_epochs", "1", "--trainer.device", "cpu"),
    *("--trainer.checkpoint_steps", "2", "--monitor.every_steps", "1", "--monitor.every_epochs", "2"),
    *("--ldreg.queue_size", "64"),
)


def make() -> None:
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        folder = Path(scratch)
        os.environ["LDREG_CACHE"] = f"{scratch}/cache"
        place = Place(folder, folder)
        metrics, checkpoint = (
            folder / "interrupted" / "metrics.csv",
            folder / "interrupted" / "checkpoints" / "last.ckpt",
        )

        def in_the_second_epoch() -> bool:
            return metrics.exists() and ",7,batch/loss" in metrics.read_text(encoding="utf-8") and checkpoint.exists()

        words = ("pretrain", "--out", "interrupted", *SETTINGS)
        answer = place.process(*words, stop=signal.SIGINT, when=in_the_second_epoch)
        assert answer.code == 130, answer.err
        place.ldreg("pretrain", "--out", "finished", *SETTINGS)
        round_weights(folder)
        for kind in ("knn", "dimension"):
            place.ldreg("evaluate", kind, "finished")
        with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
            for name in place.tree():
                if name.startswith(("interrupted/", "finished/")):
                    archive.add(name)


def round_weights(folder: Path) -> None:
    for kept in ("interrupted", "finished"):
        (folder / kept / "checkpoints" / "previous.ckpt").unlink(missing_ok=True)
    (folder / "finished" / "checkpoints" / "last.ckpt").unlink()
    checkpoint = folder / "interrupted" / "checkpoints" / "last.ckpt"
    torch.save(rounded(torch.load(checkpoint, weights_only=True)), checkpoint)
    encoder = folder / "finished" / "encoder.safetensors"
    with safetensors.safe_open(encoder, "pt") as file:
        metadata = file.metadata()
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    safetensors.torch.save_file(rounded(weights), encoder, metadata)


def rounded(value: Any) -> Any:
    """The value with two significant binary digits left of every float in a large tensor."""
    if isinstance(value, dict):
        return type(value)((key, rounded(one)) for key, one in value.items())
    if isinstance(value, list):
        return [rounded(one) for one in value]
    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel() > 100:
        mantissa, exponent = torch.frexp(value)
        return torch.ldexp((mantissa * 4).round() / 4, exponent)
    return value


if __name__ == "__main__":
    make()
