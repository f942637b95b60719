"""One training, whatever is trained: `fit` runs Lightning's Trainer so that it can be interrupted and resumed."""

import errno
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.utilities.exceptions import SIGTERMException

from ldreg.data.file_batches import report_lost_workers
from ldreg.distributed import first_process
from ldreg.evaluate.extract import torch_device
from ldreg.train.checkpoints import CheckpointFiles, Checkpoints, FiniteGuard, NotFiniteError, Saved, latest

PRECISION: dict[str, Any] = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}

SAME_COMMAND = "the same command"  # what most trainings are resumed with

_LOST_PROCESS = "another process of the run ended, and this one with it"
_FIRST_PID = "LDREG_FIRST_PROCESS"  # in the environment of the processes that the first one starts
_GRACE = 10.0  # seconds in which a process that lost another may report an error of its own
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SIGNAL_STEPS = 8  # steps between two exchanges of received signals by several processes

# SIGTERM comes from systems that end a process; `sbatch --signal` and the like send the others some time before.
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1", "SIGUSR2") if hasattr(signal, name))

# Advice of Lightning and torch that is for their developers or does not apply here.
_IGNORED_WARNINGS = (
    ".*LeafSpec.*",
    ".*broadcast_buffers.*",
    ".*does not have many workers.*",
    ".*`weights_only` was not set.*",
    ".*GPU available but not used.*",
    ".*sync_dist=True.*",
    ".*`max_epochs` was not set.*",
    ".*module\\(s\\) in eval mode.*",
    ".*callbacks used to create the checkpoint.*",
)


class InterruptedRunError(KeyboardInterrupt):
    """A signal stopped the training; `status` is the exit code: 130 for SIGINT, 143 for SIGTERM."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Fitted:
    """A training that ended."""

    trainer: pl.Trainer
    minutes: float  # since its start, over all interruptions, without the pauses


def check_hardware(device: str, devices: int, nodes: int, precision: str) -> bool:
    """Check the settings of the hardware, and return whether to train on CUDA.

    Raises:
        ValueError: the machine or the launcher does not match the settings.
    """
    started, asked = os.environ.get("WORLD_SIZE"), devices * nodes
    if started is not None and int(started) != asked:
        raise ValueError(f"devices: expected devices × nodes to be the {started} processes started, got {asked}")
    if nodes > 1 and not any(name in os.environ for name in ("WORLD_SIZE", "SLURM_PROCID", "MASTER_ADDR")):
        raise ValueError(f"nodes: expected torchrun or SLURM to start the processes of {nodes} nodes")
    cuda = torch_device(device).type == "cuda"
    if precision == "fp16" and not cuda:
        raise ValueError("precision: expected fp32 or bf16 on a CPU, got 'fp16'")
    return cuda


def fit(
    module: pl.LightningModule,
    folder: Path,
    settings: Mapping[str, Any],
    *,
    saved: Saved | None,
    device: str,
    devices: int = 1,
    nodes: int = 1,
    precision: str = "fp32",
    callbacks: Sequence[Callback] = (),
    displays: Sequence[Callback] = (),
    check_steps: int = 20,
    checkpoint_epochs: int = 1,
    checkpoint_steps: int | None = None,
    save_on_signal: bool = False,
    resume_with: str = SAME_COMMAND,
    **options: Any,
) -> Fitted:
    """Train a Lightning module to its end, with checkpoints that it can be resumed from exactly.

    The caller keeps other processes out of the folder, reads the newest checkpoint by `latest`, and checks that it is
    of this training.

    Args:
        module: with its data and optimizer; its steps return a loss, and "objective" and "terms" where that is a sum.
        folder: for the checkpoints; it exists.
        settings: everything that the training depends on; written into each checkpoint.
        saved: the checkpoint to resume from, if any.
        device: auto, cpu or cuda.
        devices: processes on each node.
        nodes: machines, as torchrun or SLURM started them.
        precision: fp32, bf16 or fp16.
        callbacks: called before a checkpoint is saved at the end of an epoch.
        displays: called after it.
        check_steps: steps between checks for a finite loss on a GPU.
        checkpoint_epochs: epochs between checkpoints.
        checkpoint_steps: steps between checkpoints within an epoch; None: none.
        save_on_signal: whether the module can be resumed within an epoch, so that a signal saves where it stops.
        resume_with: what a user does to resume, for messages.
        options: further arguments of Lightning's Trainer.

    Raises:
        ValueError: settings or data that do not fit.
        NotFiniteError: the loss or a weight became NaN or infinite; the last good checkpoint stays.
        InterruptedRunError: by a signal.
        ConnectionError: another process of the training is gone.
        OSError: a file cannot be read or written; earlier checkpoints stay.
    """
    cuda = check_hardware(device, devices, nodes, precision)
    guard = FiniteGuard(every_steps=check_steps)
    checkpoints = Checkpoints(
        folder, guard, settings, every_epochs=checkpoint_epochs, every_steps=checkpoint_steps, on_signal=save_on_signal
    )
    slurm = SLURMEnvironment.detect() and not TorchElasticEnvironment.detect()
    own: dict[str, Any] = {
        "accelerator": "gpu" if cuda else "cpu",
        "devices": devices,
        "num_nodes": nodes,
        # All processes compute the same batch statistics, and MoCo's queue is large: buffers are not sent around.
        "strategy": DDPStrategy(broadcast_buffers=False) if devices * nodes > 1 else "auto",
        "precision": PRECISION[precision],
        "callbacks": [guard, *callbacks, checkpoints, *displays, StopOnSignal()],
        # Under SLURM, Lightning would otherwise save and requeue by itself when a job is signaled.
        "plugins": [CheckpointFiles(), *([SLURMEnvironment(auto_requeue=False)] if slurm else [])],
        "default_root_dir": folder,  # Lightning would look for checkpoints in the working directory
        "benchmark": cuda,
        "logger": False,
        "log_every_n_steps": 1,
        "use_distributed_sampler": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    with quiet(), explained_errors(folder, resume_with):
        trainer = pl.Trainer(**{**own, **options})
        with interruptible(trainer, folder, resume_with), report_lost_workers(), _ending_together():
            _rejoin(cuda=cuda)
            trainer.fit(module, ckpt_path=saved.path if saved else None, weights_only=True if saved else None)
    return Fitted(trainer, checkpoints.seconds / 60)


class StopOnSignal(Callback):
    """Stop all processes at the same step after SIGTERM, SIGUSR1 or SIGUSR2.

    Lightning's own handler starts a collective within the signal, which waits forever where another process waits for
    this one. It also stops between the parts of an accumulated step, whose gradients no checkpoint holds, and under
    SLURM it saves into the working directory at SIGUSR1.

    A single process stops after its current step, of training or testing. Several exchange what they received after
    the first step of an epoch, every few steps and at the end of an epoch. The exit code is 128 plus the number of the
    signal.
    """

    def __init__(self) -> None:
        self._received = 0  # number of the first signal

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Install the handlers; Lightning restores the earlier ones at the end."""
        if threading.current_thread() is not threading.main_thread():
            return

        def receive(number: int, frame: FrameType | None) -> None:
            launcher: Any = trainer.strategy.launcher
            if not self._received and launcher is not None:
                launcher.kill(number)  # the processes that this one started
            self._received = self._received or number

        for number in _SIGNALS:
            # SIGTERM is handled by Lightning here; a handler that somebody else set for the others stays.
            if number == signal.SIGTERM or signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, receive)

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop between two steps of an epoch."""
        step, part = divmod(batch_idx + 1, trainer.accumulate_grad_batches)
        due = trainer.world_size == 1 or step % _SIGNAL_STEPS == 1
        if part == 0 and due and batch_idx + 1 < trainer.num_training_batches:
            self._stop_together(trainer)

    def on_test_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Install the handlers."""
        self.on_train_start(trainer, module)

    def on_test_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *args: Any) -> None:
        """Stop a single process between two batches; several need not have the same number of batches."""
        if trainer.world_size == 1:
            self._stop_together(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Stop between two epochs."""
        if trainer.current_epoch + 1 != trainer.max_epochs:
            self._stop_together(trainer)

    def _stop_together(self, trainer: pl.Trainer) -> None:
        number = self._received
        if trainer.world_size > 1:
            received = torch.tensor(number, device=trainer.strategy.root_device)
            dist.all_reduce(received, op=dist.ReduceOp.MAX)
            number = int(received.item())
        if number:
            raise SIGTERMException(128 + number)


@contextmanager
def interruptible(trainer: pl.Trainer, folder: Path, resume_with: str) -> Iterator[None]:
    """Raise InterruptedRunError after a signal, and restore the handler of SIGINT, which Lightning leaves ignored."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as leave:  # Lightning raises it for SIGINT and SIGTERM
        code = leave.code if isinstance(leave, SIGTERMException) and isinstance(leave.code, int) else 130
        message = f"interrupted at step {trainer.global_step}; {_what_is_saved(folder, resume_with)}"
        raise InterruptedRunError(message, code) from leave
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Lightning's messages about the hardware and advice that does not apply."""
    # The last two log in place of the first two where the package `lightning` is loaded as well.
    names = ("pytorch_lightning", "lightning_fabric", "lightning.pytorch", "lightning.fabric")
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for message in _IGNORED_WARNINGS:
                warnings.filterwarnings("ignore", message=message)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def explained_errors(folder: Path, resume_with: str) -> Iterator[None]:
    """Turn errors of Lightning and gloo into plain ones, and say what an ended training can be resumed from."""
    try:
        yield
    except MisconfigurationException as error:
        raise ValueError(f"devices: {' '.join(str(error).split())}") from error
    except RuntimeError as error:
        if "peer" in str(error):  # gloo's word for a process at the other end
            raise ConnectionError(_LOST_PROCESS) from error
        raise
    except NotFiniteError as error:
        saved = latest(folder)
        good = f"the last good state, of step {saved.step}, is {saved.path}" if saved else "nothing was saved yet"
        raise NotFiniteError(f"{error}; {good}") from error
    except ChildProcessError as error:
        raise ChildProcessError(f"{error}; {_what_is_saved(folder, resume_with)}") from error
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        place = error.filename or folder
        raise OSError(f"cannot write {place}: {error.strerror}; {_what_is_saved(folder, resume_with)}") from error


def _what_is_saved(folder: Path, resume_with: str) -> str:
    saved = latest(folder)
    return f"{resume_with} goes on from step {saved.step}" if saved else "nothing was saved yet"


def _rejoin(*, cuda: bool) -> None:
    """Join the other processes after a restart by torchrun; Lightning then finds the group initialized.

    torchrun keeps one store for all attempts, in which torch would find the addresses of processes that are gone.
    """
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    if attempt == 0 or int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return
    from torch.distributed.rendezvous import rendezvous  # not in every torch

    store, rank, world = next(rendezvous("env://"))
    own = dist.PrefixStore(f"attempt_{attempt}", store)  # type: ignore[attr-defined]
    dist.init_process_group("nccl" if cuda else "gloo", store=own, rank=rank, world_size=world)


@contextmanager
def _ending_together() -> Iterator[None]:
    """End the processes that Lightning starts for further devices when the first one ends.

    Processes that communicate by sockets notice by themselves. A GPU waits half an hour for a process that is gone.
    """
    if first_process():
        # Lightning ends the others when one of them dies, and logs the reason at this level only.
        logging.getLogger("lightning_fabric.strategies.launchers.subprocess_script").setLevel(logging.INFO)
        os.environ[_FIRST_PID] = str(os.getpid())
        try:
            yield
        finally:
            del os.environ[_FIRST_PID]
        return
    done = threading.Event()
    if _FIRST_PID in os.environ:
        threading.Thread(target=_end_with, args=(int(os.environ[_FIRST_PID]), done), daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _end_with(first: int, done: threading.Event) -> None:
    while os.getppid() == first:
        if done.wait(1.0):
            return
    if not done.wait(_GRACE):
        print(f"ldreg: error: {_LOST_PROCESS}", file=sys.stderr, flush=True)
        os._exit(1)  # the training thread waits for the lost process


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Let PyTorch use this many CPU threads; None changes nothing."""
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)
