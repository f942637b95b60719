"""A whole pretraining run: settings in, a run folder with a trained encoder out."""

import json
import logging
import shutil
import signal
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.accelerators.cuda import CUDAAccelerator
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.utilities.exceptions import SIGTERMException

from ldreg.data import DataConfig, ImageFiles, ImageSet, ResidentImages
from ldreg.data.file_batches import watched
from ldreg.data.unreadable import transparent_line
from ldreg.encoders.build import BEGINNINGS
from ldreg.encoders.checkpoints import restore
from ldreg.io.files import read_text
from ldreg.monitor.callback import Monitor
from ldreg.notices import quiet
from ldreg.record import Finding, brief, read_findings
from ldreg.termination import Termination
from ldreg.text import printable
from ldreg.train.assembly import (
    build_module,
    build_views,
    extractor,
    held_out_images,
    named,
    steps_per_epoch,
    training_images,
)
from ldreg.train.checkpoints import LAST, CheckpointFiles, Checkpoints, FiniteGuard, latest, peek
from ldreg.train.endings import explained, stands
from ldreg.train.findings import Findings
from ldreg.train.folder import RunFolder, check_new, create, held, save_encoder, say
from ldreg.train.launch import ENDED, bound, check_launch, cluster, first_process, meet_again, on_cuda, threads
from ldreg.train.loggers import build_loggers
from ldreg.train.module import Pretraining
from ldreg.train.progress import ProgressBar
from ldreg.train.settings import Settings, identity, usual
from ldreg.version import __version__

PRECISION: dict[str, Any] = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


@dataclass(frozen=True)
class Run:
    """Everything built and wired, ready to be trained."""

    module: Pretraining
    trainer: pl.Trainer
    monitor: Monitor
    checkpoints: Checkpoints
    images: ImageSet
    held_out: ImageSet | None
    findings: Findings


@dataclass(frozen=True)
class Result:
    """A finished run: where it lies, what was last measured, how long it took."""

    folder: RunFolder
    metrics: Mapping[str, float]
    minutes: float
    stopped: str | None  # why it ended before its last epoch
    module: Pretraining
    main: bool  # whether this is the process that writes
    findings: Sequence[Finding] = ()  # of the images and the last representations


class InterruptedRunError(KeyboardInterrupt):
    """The run was interrupted from outside; `status` is what the process is to end with."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def pretrain(settings: Settings, path: Path, *, command: str = "", resume: bool = False) -> Result:
    """Train an encoder by these settings, and leave everything in the folder at `path`.

    Nothing is written before the data was found and everything was built, and nothing stays of a new run that did not
    get through its first step. A run that was finished before is left as it is.

    Args:
        settings: all of them.
        path: a new or empty folder, or with `resume` that of the run to go on with.
        command: what was asked for, for the record.
        resume: go on from the folder's last checkpoint; from the start where it has none yet.

    Raises:
        ValueError: settings that do not fit together or the data, a folder that holds something or is in use, or a
            checkpoint that does not fit.
        NotFiniteError: the loss went NaN; the last good checkpoint stays.
        InterruptedRunError: by a signal.
        OSError: a file cannot be read or written; what was saved before stays.
    """
    check_launch(settings)
    new = not resume and first_process()
    if new:
        check_new(path)
    folder = RunFolder(path)
    with quiet(), threads(settings.trainer.threads):
        run = build(settings, folder)
        with held(folder, new=new) if first_process() else nullcontext():
            if new:
                create(path, settings.tree, command=command)
            checkpoint = _checkpoint(folder, settings) if resume else None
            if checkpoint is not None and _finished(checkpoint, run.module) and folder.card.is_file():
                return _as_it_was(folder, run)
            if first_process():
                said = f"pretraining into {path}" + (", which has no checkpoint yet" if resume else "")
                said = f"going on from {checkpoint}" if checkpoint else said
                say(said)
                for line in _met_before(run):
                    logging.getLogger("ldreg").warning(line)
            with explained(folder):
                _fit(run, folder, checkpoint, fresh=new)
                result = _result(folder, run)
                for found in brief(result.findings):
                    level = logging.WARNING if found.serious else logging.INFO
                    logging.getLogger("ldreg").log(level, "%s: %s", found.of, found.text)
                if result.main:
                    save_encoder(folder, run.module.method.encoder, card(settings, result))
            if result.main:
                _tell_unreadable(run.images, folder)
            return result


def _met_before(run: Run) -> list[str]:
    """What was said of sets that are decoded as a whole, before there was a log: unreadable and transparent images."""
    sets = [images for images in (run.images, run.held_out) if isinstance(images, ResidentImages)]
    lines = [f"unreadable image: {file}" for images in sets for file in images.unreadable]
    lines += [transparent_line(*images.transparent) for images in sets if images.transparent[0]]
    return list(dict.fromkeys(lines))


def _tell_unreadable(images: ImageSet, folder: RunFolder) -> None:
    listed = images.tally.listed if isinstance(images, ImageFiles) else images.unreadable
    if listed:
        count = len(images) if isinstance(images, ImageFiles) else len(images) + len(listed)
        say(f"{len(listed)} of {count} images could not be read and were left out; {folder.log} lists them")


def _fit(run: Run, folder: RunFolder, checkpoint: Path | None, *, fresh: bool) -> None:
    """Train; an interruption says where the run stands, and a new folder without a step in it goes."""
    before = signal.getsignal(signal.SIGINT)
    try:
        meet_again(cuda=isinstance(run.trainer.accelerator, CUDAAccelerator))
        with watched(), named("data", DataConfig), bound():
            run.trainer.fit(run.module, ckpt_path=checkpoint, weights_only=True if checkpoint else None)
    except SystemExit as leave:  # Lightning's word for SIGINT and SIGTERM alike
        code = leave.code if isinstance(leave, SIGTERMException) else 130
        stopped = f"interrupted at step {run.trainer.global_step}; {stands(folder)}"
        raise InterruptedRunError(stopped, code if isinstance(code, int) else 143) from leave
    except (ValueError, MisconfigurationException) as error:
        if fresh and run.trainer.global_step == 0:
            shutil.rmtree(folder.path)
        if isinstance(error, MisconfigurationException):
            raise ValueError(f"trainer: {' '.join(str(error).split())}") from error
        raise
    except RuntimeError as error:
        if "peer" in str(error):  # gloo's word for a process at the other end
            raise ConnectionError(ENDED) from error
        raise
    finally:
        run.module.release()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)  # which Lightning leaves ignored


def _result(folder: RunFolder, run: Run) -> Result:
    return Result(
        folder,
        metrics=dict(run.monitor.latest),
        minutes=run.checkpoints.seconds / 60,
        stopped=run.monitor.stop_reason,
        module=run.module,
        main=run.trainer.is_global_zero,
        findings=run.findings.at_the_end() if run.trainer.is_global_zero else (),
    )


def _checkpoint(folder: RunFolder, settings: Settings) -> Path | None:
    """The checkpoint to go on from; None where there is none yet.

    Raises:
        ValueError: it cannot be read, or was made with other settings.
    """
    path = latest(folder.checkpoints)
    if path is None:
        return None
    if path.name != LAST and (folder.checkpoints / LAST).exists():
        say(f"{folder.checkpoints / LAST} cannot be read; the one before it can")
    asked = json.loads(identity(settings))
    made = {**usual(settings, asked), **peek(path)["settings"]}  # an option that there was not yet has its default
    if differing := sorted(key for key in made.keys() | asked.keys() if made.get(key) != asked.get(key)):
        raise ValueError(
            f"{folder.config}: expected the settings that {path.name} was made with, "
            f"got others for {', '.join(differing)}"
        )
    return path


def _finished(checkpoint: Path, module: Pretraining) -> bool:
    return bool(peek(checkpoint)["step"] >= module.total_steps)


def _as_it_was(folder: RunFolder, run: Run) -> Result:
    """The result of a run that was finished before."""
    try:
        told = json.loads(read_text(folder.card))
        numbers = {name: float("nan") if value is None else float(value) for name, value in told["metrics"].items()}
        minutes, stopped = float(told["minutes"]), told["stopped"] and printable(told["stopped"])
        findings = read_findings(told.get("findings", []))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{folder.card}: expected the card of a finished run, got another ({error})") from error
    say(f"{folder.path} was finished before; nothing is left to do")
    restore(run.module.method.encoder, folder.encoder, name="the encoder of this run")
    return Result(folder, numbers, minutes, stopped, run.module, first_process(), findings)


def build(settings: Settings, folder: RunFolder) -> Run:
    """The module, the trainer and the monitor of these settings.

    Raises:
        ValueError: settings that do not fit together or the data.
    """
    config = settings.trainer
    cuda = on_cuda(config.device)
    if config.precision == "fp16" and not cuda:
        raise ValueError("trainer.precision: expected fp32 or bf16 on a CPU, got 'fp16'")
    train, test = training_images(settings), held_out_images(settings)
    module = build_module(settings, train, build_views(settings, train), cuda=cuda)
    extract = extractor(settings, module, train, test)
    monitor = Monitor(settings.monitor, path=folder.metrics, extract=extract)
    findings = Findings(extract, settings.monitor.k)
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
        limit_train_batches=steps_per_epoch(settings, len(train)) * config.accumulate,
        accumulate_grad_batches=config.accumulate,
        gradient_clip_val=config.clip_norm,
        logger=build_loggers(config.log_to, folder.path) or False,
        callbacks=[guard, monitor, findings, checkpoints, ProgressBar(monitor.latest), Termination()],
        plugins=[CheckpointFiles(), *cluster()],
        default_root_dir=folder.path,  # Lightning's default is the working directory, which it would look for states in
        benchmark=cuda,
        log_every_n_steps=1,  # the monitor decides when
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    return Run(module, trainer, monitor, checkpoints, train, test, findings)


def card(settings: Settings, result: Result) -> dict[str, Any]:
    """What the encoder is, how to feed it, and how it came about."""
    run, views = settings.run, result.module.views
    mean, deviation = views.normalization
    return {
        "ldreg": __version__,
        "encoder": {name: value for name, value in asdict(settings.encoder).items() if name not in BEGINNINGS},
        "timm": None if settings.encoder.name == "small_cnn" else settings.encoder.timm_name,
        "dimension": result.module.method.dimension,
        "input": {"channels": views.channels, "size": views.size, "mean": mean, "std": deviation},
        "method": run.method,
        "regularizer": run.regularizer,
        "options": {name: settings.tree[name] for name in (run.method, run.regularizer) if name in settings.tree},
        "data": settings.data.name,
        "epochs": settings.schedule.epochs if result.stopped is None else result.module.current_epoch,
        "batch_size": run.batch_size,
        "seed": run.seed,
        "minutes": round(result.minutes, 4),
        "stopped": result.stopped,
        "metrics": dict(result.metrics),
        "findings": [found.plain() for found in result.findings],
    }
