"""Training a classifier by Lightning: one process or several, with a checkpoint per epoch to go on from."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.utilities.exceptions import SIGTERMException

from ldreg.data.file_batches import report_lost_workers
from ldreg.elapsed import Elapsed
from ldreg.evaluate.classifier import HISTORY, IDENTITY, Classifier
from ldreg.evaluate.compute import Compute, Synchronize
from ldreg.evaluate.features import Progress
from ldreg.io.torch_files import load_torch
from ldreg.notices import quiet
from ldreg.termination import Termination
from ldreg.text import number, printable

logger = logging.getLogger("ldreg")

CHECKPOINT = "last.ckpt"
PRECISION: dict[str, Any] = {"fp32": "32-true", "bf16": "bf16-mixed"}


@dataclass(frozen=True)
class Fitted:
    """What came of a training: after every epoch the loss and the accuracy on test; and how long it took."""

    history: tuple[dict[str, float], ...]
    minutes: float

    @property
    def accuracy(self) -> float:
        """After the last epoch: what is reported."""
        return self.history[-1]["accuracy"]

    @property
    def best(self) -> float:
        """The best of all epochs, which is chosen by the test images and so flatters."""
        return max(epoch["accuracy"] for epoch in self.history)


class InterruptedEvaluationError(KeyboardInterrupt):
    """The evaluation was interrupted from outside; `status` is what the process is to end with."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def fit(
    classifier: Classifier,
    *,
    folder: Path,
    identity: str,
    compute: Compute,
    progress: Progress | None = None,
    synchronize: Synchronize | None = None,
) -> Fitted:
    """Train a classifier, or go on with one of the same identity whose checkpoint lies in the folder.

    Args:
        classifier: with its images and plan inside.
        folder: for the checkpoint, which is kept; made where it is missing.
        identity: of the settings, the encoder and the images, as text.
        compute: device, processes, precision.
        progress: called with what is done and the fraction that is done.
        synchronize: given the head or the encoder and the device, has its batch norms see all processes' batches.

    Raises:
        ValueError: options that do not fit together, another process works in the folder.
        ArithmeticError: the training diverged.
        InterruptedEvaluationError: by a signal; the same call goes on after the last whole epoch.
    """
    _check_launch(compute)
    folder.mkdir(parents=True, exist_ok=True)
    with _held(folder), quiet():
        checkpoint = _found(folder / CHECKPOINT, identity)
        epochs = _Epochs(folder / CHECKPOINT, progress)
        if checkpoint is not None and len(checkpoint[HISTORY]) == classifier.plan.schedule.epochs:
            return Fitted(tuple(checkpoint[HISTORY]), checkpoint["callbacks"][epochs.state_key]["seconds"] / 60)
        if synchronize is not None and compute.devices > 1:
            for name in () if classifier.frozen else ("encoder",):
                setattr(classifier, name, synchronize(getattr(classifier, name), compute.torch_device))
            classifier.head = synchronize(classifier.head, compute.torch_device)
        trainer = _trainer(classifier, compute, epochs)
        _run(trainer, classifier, folder / CHECKPOINT if checkpoint is not None else None)
        return Fitted(tuple(classifier.history), epochs.seconds / 60)


def _trainer(classifier: Classifier, compute: Compute, epochs: Callback) -> pl.Trainer:
    cuda = compute.torch_device.type == "cuda"
    return pl.Trainer(
        accelerator="gpu" if cuda else "cpu",
        devices=compute.devices,
        strategy=DDPStrategy(broadcast_buffers=False) if compute.devices > 1 else "auto",
        precision=PRECISION[compute.precision],
        max_epochs=classifier.plan.schedule.epochs,
        limit_train_batches=classifier.steps_per_epoch,
        callbacks=[epochs, Termination()],
        benchmark=cuda,
        logger=False,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def _run(trainer: pl.Trainer, classifier: Classifier, checkpoint: Path | None) -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        with report_lost_workers():
            trainer.fit(classifier, ckpt_path=checkpoint, weights_only=True if checkpoint else None)
    except SystemExit as leave:  # Lightning's word for SIGINT and SIGTERM alike
        status = 143 if isinstance(leave, SIGTERMException) else 130
        done = len(classifier.history)
        stands = f"the same command goes on after epoch {done}" if done else "no epoch was done"
        raise InterruptedEvaluationError(f"interrupted; {stands}", status) from leave
    except MisconfigurationException as error:
        raise ValueError(f"devices: {' '.join(str(error).split())}") from error
    except RuntimeError as error:
        if "peer" in str(error):  # gloo's word for a process at the other end
            raise ConnectionError("another process of the evaluation ended, and this one with it") from error
        raise
    finally:
        classifier.release()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)  # which Lightning leaves ignored


class _Epochs(Elapsed, Callback):
    """After each epoch: measure, say how it stands, and put a whole checkpoint in the place of the last one."""

    def __init__(self, path: Path, progress: Progress | None) -> None:
        super().__init__()
        self._path, self._progress = path, progress

    @property
    def state_key(self) -> str:
        """Under which a checkpoint has the time taken."""
        return "epochs"

    def on_train_epoch_end(self, trainer: pl.Trainer, module: Classifier) -> None:  # type: ignore[override]  # the only module it is given
        """Measure, say, save."""
        module.end_epoch()
        fresh = self._path.with_suffix(".writing")
        trainer.save_checkpoint(fresh)
        if trainer.is_global_zero:
            fresh.replace(self._path)
            if self._progress is not None:
                done, last = len(module.history), module.history[-1]
                told = f"loss {number(last['loss'])}  accuracy {number(last['accuracy'])}"
                epochs = module.plan.schedule.epochs
                self._progress(f"epoch {done}/{epochs}  {told}", done / epochs)


def _found(path: Path, identity: str) -> dict[str, Any] | None:
    """The checkpoint at the path, where it is of this identity and whole; what is damaged is said."""
    if not path.exists():
        return None
    try:
        content: Any = load_torch(path)
        return content if content[IDENTITY] == identity else None
    except Exception as error:  # another file may hold anything in the place of the identity
        told = printable(" ".join(str(error).split()))[:200]
        logger.warning("%s: cannot be read, so training begins anew (%s)", path, told)
        return None


def _check_launch(compute: Compute) -> None:
    started = os.environ.get("WORLD_SIZE")
    if started is not None and int(started) != compute.devices:
        raise ValueError(f"devices: expected the {started} processes that were started, got {compute.devices}")


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Keep the folder to this process and those that it starts.

    Raises:
        ValueError: another process works in it.
    """
    if sys.platform == "win32" or int(os.environ.get("LOCAL_RANK", 0)) > 0:
        yield
        return
    import fcntl

    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder}: expected no other process at this evaluation, got one at work") from None
        yield
