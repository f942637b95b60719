"""A whole pretraining run: settings in, a run folder with a trained encoder out."""

import logging
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import DDPStrategy

from ldreg.monitor.callback import Monitor
from ldreg.training.assembly import build_module, build_views, extractor, held_out_images, training_images
from ldreg.training.checkpoints import Checkpoints, FiniteGuard, latest
from ldreg.training.folder import RunFolder, check_new, create, log_to, save_encoder, say
from ldreg.training.loggers import build_loggers
from ldreg.training.module import Pretraining
from ldreg.training.progress import ProgressBar
from ldreg.training.settings import Settings
from ldreg.version import __version__

PRECISION: dict[str, Any] = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


@dataclass(frozen=True)
class Run:
    """Everything built and wired, ready to be trained."""

    module: Pretraining
    trainer: pl.Trainer
    monitor: Monitor


@dataclass(frozen=True)
class Result:
    """A finished run: where it lies, what was last measured, how long this part of it took."""

    folder: RunFolder
    metrics: Mapping[str, float]
    minutes: float
    stopped: str | None  # why it ended before its last epoch
    module: Pretraining
    main: bool  # whether this is the process that writes


def pretrain(settings: Settings, path: Path, *, command: str = "", resume: bool = False) -> Result:
    """Train an encoder by these settings, and leave everything in the folder at `path`.

    Nothing is written before the data was found and everything was built.

    Args:
        settings: all of them.
        path: a new or empty folder, or with `resume` that of the run to go on with.
        command: what was asked for, for the record.
        resume: go on from the folder's last checkpoint; from the start where it has none yet.

    Raises:
        ValueError: settings that do not fit together or the data, or a folder that holds something.
        NotFiniteError: the loss went NaN; the last good checkpoint stays.
        OSError: a file cannot be read or written.
    """
    started = time.monotonic()
    new = not resume and first_process()
    if new:
        check_new(path)
    folder = RunFolder(path)
    with quiet(), threads(settings.trainer.threads):
        run = build(settings, folder)
        if new:
            create(path, settings.tree, command=command)
        with logged(folder):
            if new:
                say(f"pretraining into {path}")
            checkpoint = latest(folder.checkpoints) if resume else None
            if resume and first_process():
                say(f"going on from {checkpoint}" if checkpoint else "no checkpoint yet: starting from the beginning")
            run.trainer.fit(run.module, ckpt_path=checkpoint, weights_only=True if checkpoint else None)
            result = Result(
                folder,
                metrics=dict(run.monitor.latest),
                minutes=(time.monotonic() - started) / 60,
                stopped=run.monitor.stop_reason,
                module=run.module,
                main=run.trainer.is_global_zero,
            )
            if result.main:
                save_encoder(folder, run.module.method.encoder, card(settings, result))
            return result


def build(settings: Settings, folder: RunFolder) -> Run:
    """The module, the trainer and the monitor of these settings.

    Raises:
        ValueError: settings that do not fit together or the data.
    """
    config = settings.trainer
    cuda = on_cuda(config.device)
    train, test = training_images(settings), held_out_images(settings)
    module = build_module(settings, train, build_views(settings, train), cuda=cuda)
    monitor = Monitor(settings.monitor, path=folder.metrics, extract=extractor(settings, module, train, test))
    guard = FiniteGuard(every_steps=settings.monitor.every_steps)
    checkpoints = Checkpoints(
        folder.checkpoints, guard, every_epochs=config.checkpoint_epochs, every_steps=config.checkpoint_steps
    )
    trainer = pl.Trainer(
        accelerator="gpu" if cuda else "cpu",
        devices=config.devices,
        num_nodes=config.nodes,
        # Batch statistics are the same on every rank, and MoCo's queue is large: buffers need not be sent around.
        strategy=DDPStrategy(broadcast_buffers=False) if config.devices * config.nodes > 1 else "auto",
        precision=PRECISION[config.precision],
        max_epochs=settings.schedule.epochs,
        accumulate_grad_batches=config.accumulate,
        gradient_clip_val=config.clip_norm,
        logger=build_loggers(config.log_to, folder.path) or False,
        callbacks=[guard, monitor, checkpoints, ProgressBar(monitor.latest)],
        benchmark=cuda,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    return Run(module, trainer, monitor)


def first_process() -> bool:
    """Whether this process is not one that the first process of the run started, or that came with it."""
    return all(int(os.environ.get(name, 0)) == 0 for name in ("LOCAL_RANK", "RANK", "SLURM_PROCID"))


def on_cuda(device: str) -> bool:
    """Whether to train on a CUDA device.

    Raises:
        ValueError: one is asked for, and there is none.

    >>> on_cuda("cpu")
    False
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("trainer.device: expected a CUDA device for 'cuda', got none on this machine")
    return device != "cpu" and torch.cuda.is_available()


def card(settings: Settings, result: Result) -> dict[str, Any]:
    """What the encoder is, how to feed it, and how it came about."""
    run, views = settings.run, result.module.views
    mean, deviation = views.normalization
    return {
        "ldreg": __version__,
        "encoder": asdict(settings.encoder),
        "dimension": result.module.method.dimension,
        "input": {"channels": views.channels, "size": views.size, "mean": mean, "std": deviation},
        "method": run.method,
        "regularizer": run.regularizer,
        "options": {name: settings.tree[name] for name in (run.method, run.regularizer) if name in settings.tree},
        "data": settings.data.name,
        "epochs": result.module.current_epoch,
        "batch_size": run.batch_size,
        "seed": run.seed,
        "minutes": round(result.minutes, 2),
        "stopped": result.stopped,
        "metrics": dict(result.metrics),
    }


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """So many threads of the CPU for PyTorch; as before where there is no count."""
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def logged(folder: RunFolder) -> Iterator[None]:
    """What is said goes to the run's log."""
    handler = log_to(folder)
    try:
        yield
    finally:
        logging.getLogger("ldreg").removeHandler(handler)
        handler.close()


@contextmanager
def quiet() -> Iterator[None]:
    """Lightning without its notices of the hardware, and without advice that does not apply here."""
    lightning = logging.getLogger("pytorch_lightning")
    fabric = logging.getLogger("lightning_fabric")
    levels = lightning.level, fabric.level
    lightning.setLevel(logging.WARNING)
    fabric.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for message in _ADVICE:
                warnings.filterwarnings("ignore", message=message)
            yield
    finally:
        lightning.setLevel(levels[0])
        fabric.setLevel(levels[1])


_ADVICE = (
    ".*isinstance\\(treespec, LeafSpec\\).*",  # of Lightning about its own use of torch
    ".*does not have many workers.*",
    ".*`weights_only` was not set.*",
    ".*GPU available but not used.*",
    ".*sync_dist=True.*",
)
