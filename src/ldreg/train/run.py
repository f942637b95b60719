"""A whole pretraining run: settings in, a run folder with a trained encoder out."""

import importlib.util
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import Logger, TensorBoardLogger, WandbLogger

from ldreg import __version__
from ldreg.data import DataConfig, ImageFiles, ImageSet, ResidentImages, device_decoder, load_images
from ldreg.data.datasets import MissingSplitError
from ldreg.data.images import transparency_note
from ldreg.distributed import first_process
from ldreg.encoders.build import BEGINNINGS
from ldreg.encoders.checkpoints import restore
from ldreg.evaluate.extract import torch_device
from ldreg.io.files import read_text
from ldreg.monitor.callback import Monitor
from ldreg.record import SCHEMA, Finding, brief, read_findings
from ldreg.text import printable
from ldreg.train.checkpoints import LAST, NotFiniteError, Saved, check_same, latest
from ldreg.train.engine import Fitted, check_hardware, fit, quiet, saying_what_is_saved, torch_threads
from ldreg.train.folder import RunFolder, check_new, create, held, logger, save_encoder, say
from ldreg.train.module import Pretraining, steps_per_epoch
from ldreg.train.observers import Extractor, Findings, ProgressBar
from ldreg.train.settings import AUTO, Settings, TrainerConfig, defaults, identity, named, resolve


@dataclass(frozen=True)
class Result:
    """A finished run: its folder, the last measurements and how long it took."""

    folder: RunFolder
    metrics: Mapping[str, float]
    minutes: float
    stopped: str | None  # why it ended before its last epoch
    module: Pretraining
    main: bool  # whether this is the process that writes
    findings: Sequence[Finding] = ()  # about the images and the last representations


def pretrain(settings: Settings, path: Path, *, command: str = "", resume: bool = False) -> Result:
    """Train an encoder by these settings, and leave everything in the folder at `path`.

    Nothing is written before the data was found and everything was built, and nothing stays of a new run that failed
    before its first step. A run that is finished already is left unchanged.

    Args:
        settings: all of them.
        path: a new or empty folder; with `resume` the folder of the run to resume.
        command: the command line, for the record.
        resume: continue from the last checkpoint in the folder, or from the start if there is none.

    Raises:
        ValueError: settings that do not fit together or the data, a folder that is not empty or in use, or a
            checkpoint of another run.
        NotFiniteError: the loss became NaN; the last good checkpoint stays.
        InterruptedRunError: by a signal.
        OSError: a file cannot be read or written; earlier checkpoints stay.
    """
    folder, main, config = RunFolder(path), first_process(), settings.trainer
    new = main and not resume
    with named("trainer", TrainerConfig):
        check_hardware(config.device, config.devices, config.nodes, config.precision)
    if new:
        check_new(path)
    with quiet(), torch_threads(config.threads):
        if settings.regularizer.get("beta") == AUTO:
            settings = with_suggested_beta(settings)
        run = build(settings, folder)
        with held(folder, new=new) if main else nullcontext():
            if new:
                create(path, settings.tree, command=command)
            saved = _saved(folder, settings) if resume else None
            if saved is not None and saved.step >= run.module.total_steps and folder.card.is_file():
                return _finished_before(folder, run)
            if main:
                missing = ", which has no checkpoint yet" if resume else ""
                say(f"going on from {saved.path}" if saved else f"pretraining into {path}{missing}")
                for line in _problems_while_decoding(run):
                    logger.warning(line)
            try:
                fitted = train(run, settings, folder, saved=saved)
            except NotFiniteError as error:
                logger.error("%s", error)
                raise
            except ValueError:
                if new and run.module.global_step == 0:  # never the folder of a run that is resumed
                    shutil.rmtree(path)
                raise
            main = fitted.trainer.is_global_zero
            result = Result(
                folder,
                dict(run.monitor.latest),
                fitted.minutes,
                run.monitor.stop_reason,
                run.module,
                main,
                run.findings.at_the_end() if main else (),
            )
            if main:
                _finish(result, run, settings)
            return result


@dataclass(frozen=True)
class Run:
    """Everything that a run consists of, ready to be trained."""

    module: Pretraining
    images: ImageSet
    held_out: ImageSet | None
    monitor: Monitor
    findings: Findings
    loggers: Sequence[Logger]


def build(settings: Settings, folder: RunFolder) -> Run:
    """Build the module, its data and what watches it; nothing is written.

    Raises:
        ValueError: settings that do not fit together or the data.
    """
    images, held_out = training_images(settings), held_out_images(settings)
    module = Pretraining(settings, images)
    extract = Extractor(settings, module, images, held_out)
    monitor = Monitor(settings.monitor, path=folder.metrics, extract=extract)
    findings = Findings(extract, settings.monitor.k)
    return Run(module, images, held_out, monitor, findings, _loggers(settings.trainer.log_to, folder.path))


def with_suggested_beta(settings: Settings) -> Settings:
    """The settings with a number for the beta "auto": what gives the regularizer 10 % of the gradient at the start.

    Raises:
        ValueError: settings that do not fit together or the data, or no gradient to go by.
    """
    name = settings.run.regularizer
    trial = _with_beta(settings, 1.0)
    module = Pretraining(trial, training_images(trial)).to(torch_device(settings.trainer.device))
    with closing(module):
        try:
            found = module.suggest_beta()
        except ValueError as error:
            raise ValueError(f"{name}.beta: no value gives a share of the gradient ({error})") from error
    spread = f"{min(found.betas):.2g} to {max(found.betas):.2g} in {len(found.betas)} batches"
    say(f"{name}.beta {found.beta:.2g} gives {100 * found.share:.0f} % of the gradient before training ({spread})")
    return _with_beta(settings, float(f"{found.beta:.3g}"))


def _with_beta(settings: Settings, beta: float) -> Settings:
    name = settings.run.regularizer
    return resolve({**settings.tree, name: {**settings.tree[name], "beta": beta}})


def training_images(settings: Settings) -> ImageSet:
    """The images to train on.

    Raises:
        ValueError: there are none, or the device cannot decode them as asked, named by the whole key of the setting.
    """
    with named("data", DataConfig):
        images = load_images(settings.data, "train")
        if isinstance(images, ImageFiles):
            device_decoder(images.decoding, torch_device(settings.trainer.device).type)
        return images


def held_out_images(settings: Settings) -> ImageSet | None:
    """The test images, or None if the set has none."""
    with named("data", DataConfig):
        try:
            return load_images(settings.data, "test")
        except MissingSplitError:
            return None


def _loggers(names: Sequence[str], folder: Path) -> list[Logger]:
    """The loggers for TensorBoard and Weights & Biases, which write into the run folder."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ValueError(f"trainer.log_to: {name} is not installed; pip install 'ldreg[{name}]' brings it")
    loggers: list[Logger] = []
    if "tensorboard" in names:
        loggers.append(TensorBoardLogger(folder, name="tensorboard", version=""))
    if "wandb" in names:
        # An absolute path: wandb's own process may work in another folder.
        loggers.append(WandbLogger(name=folder.name, save_dir=folder.resolve(), project="ldreg"))
    return loggers


def train(
    run: Run, settings: Settings, folder: RunFolder, *, saved: Saved | None = None, callbacks: Sequence[Callback] = ()
) -> Fitted:
    """Train what was built, from the start or from a checkpoint; `callbacks` are called before the run's own."""
    config = settings.trainer
    with closing(run.module), named("data", DataConfig), named("trainer", TrainerConfig):
        return fit(
            run.module,
            folder.checkpoints,
            identity(settings),
            saved=saved,
            device=config.device,
            devices=config.devices,
            nodes=config.nodes,
            precision=config.precision,
            callbacks=[*callbacks, run.monitor, run.findings],
            displays=[ProgressBar(run.monitor.latest)],
            check_steps=settings.monitor.every_steps,
            checkpoint_epochs=config.checkpoint_epochs,
            checkpoint_steps=config.checkpoint_steps,
            save_on_signal=True,
            resume_with=f"--resume {folder.path}",
            max_epochs=settings.schedule.epochs,
            limit_train_batches=steps_per_epoch(settings, len(run.images)) * config.accumulate,
            accumulate_grad_batches=config.accumulate,
            gradient_clip_val=config.clip_norm,
            logger=run.loggers or False,
            default_root_dir=folder.path,
        )


def _saved(folder: RunFolder, settings: Settings) -> Saved | None:
    """The checkpoint to resume from, if any; ValueError if it was made with other settings."""
    saved = latest(folder.checkpoints)
    if saved is None:
        return None
    if saved.path.name != LAST and (folder.checkpoints / LAST).exists():
        say(f"{folder.checkpoints / LAST} cannot be read; the one before it can")
    asked = identity(settings)
    where = f"{folder.config}: expected the settings that {saved.path.name} was made with"
    check_same(saved.settings, asked, where=where, defaults=defaults(settings, asked))
    return saved


def _problems_while_decoding(run: Run) -> list[str]:
    """Warnings about sets that were decoded as a whole, before there was a log."""
    sets = [images for images in (run.images, run.held_out) if isinstance(images, ResidentImages)]
    lines = [f"unreadable image: {file}" for images in sets for file in images.unreadable]
    lines += [transparency_note(*images.transparent) for images in sets if images.transparent[0]]
    return list(dict.fromkeys(lines))


def _finish(result: Result, run: Run, settings: Settings) -> None:
    """Log the findings, and write the encoder and its card."""
    folder, images = result.folder, run.images
    for found in brief(result.findings):
        logger.log(logging.WARNING if found.serious else logging.INFO, "%s: %s", found.of, found.text)
    with saying_what_is_saved(folder.checkpoints, f"--resume {folder.path}"):
        save_encoder(folder, run.module.method.encoder, card(settings, result))
    files = isinstance(images, ImageFiles)
    if unreadable := images.tally.listed if isinstance(images, ImageFiles) else images.unreadable:
        count = len(images) + (0 if files else len(unreadable))
        say(f"{len(unreadable)} of {count} images could not be read and were left out; {folder.log} lists them")


def _finished_before(folder: RunFolder, run: Run) -> Result:
    """The result of a run that was finished by an earlier command."""
    try:
        content = json.loads(read_text(folder.card))
        metrics = {name: float("nan") if value is None else float(value) for name, value in content["metrics"].items()}
        minutes, stopped = float(content["minutes"]), content["stopped"] and printable(content["stopped"])
        findings = read_findings(content.get("findings", []))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{folder.card}: expected the card of a finished run, got another ({error})") from error
    say(f"{folder.path} was finished before; nothing is left to do")
    restore(run.module.method.encoder, folder.encoder, name="the encoder of this run")
    return Result(folder, metrics, minutes, stopped, run.module, first_process(), findings)


def card(settings: Settings, result: Result) -> dict[str, Any]:
    """What the encoder is, what it takes as input, and how it was trained."""
    run, views = settings.run, result.module.views
    mean, deviation = views.normalization
    return {
        "schema": SCHEMA,
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
