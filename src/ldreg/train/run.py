"""A whole pretraining run: settings in, a run folder with a trained encoder out."""

import importlib.util
import json
import logging
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import Logger, TensorBoardLogger, WandbLogger

from ldreg import __version__
from ldreg.data import DataConfig, ImageFiles, ImageSet, ResidentImages, device_decoder, load_images
from ldreg.data.datasets import MissingSplitError
from ldreg.distributed import first_process
from ldreg.encoders.build import INITIALIZATION
from ldreg.encoders.checkpoints import restore
from ldreg.evaluate.extract import torch_device
from ldreg.io.files import read_text
from ldreg.monitor.callback import Monitor
from ldreg.record import SCHEMA, Finding, brief, read_findings
from ldreg.text import printable
from ldreg.train.checkpoints import LAST, NotFiniteError, Saved, check_same, latest
from ldreg.train.engine import Fitted, check_hardware, explained_errors, fit, quiet, torch_threads
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
        run = Run(settings, folder)
        with held(folder, new=new) if main else nullcontext():
            if new:
                create(path, settings.tree, command=command)
            saved = run.newest_checkpoint() if resume else None
            if saved is not None and saved.step >= run.module.total_steps and folder.card.is_file():
                return run.finished_before()
            if main:
                missing = ", which has no checkpoint yet" if resume else ""
                say(f"going on from {saved.path}" if saved else f"pretraining into {path}{missing}")
                for line in run.notes_while_decoding():
                    logger.warning(line)
            try:
                fitted = run.train(saved)
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
                run.finish(result)
            return result


class Run:
    """A training with everything that it consists of; building it writes nothing.

    Raises:
        ValueError: settings that contradict each other or the data.
    """

    def __init__(self, settings: Settings, folder: RunFolder) -> None:
        self.settings, self.folder = settings, folder
        self.images, self.held_out = training_images(settings), held_out_images(settings)
        self.module = Pretraining(settings, self.images)
        extract = Extractor(settings, self.module, self.images, self.held_out)
        self.monitor = Monitor(settings.monitor, path=folder.metrics, extract=extract)
        self.findings = Findings(extract, settings.monitor.k)
        self._loggers = _loggers(settings.trainer.log_to, folder.path)
        self._resume_with = f"--resume {folder.path}"

    def newest_checkpoint(self) -> Saved | None:
        """The checkpoint to resume from, if any; ValueError if it was made with other settings."""
        checkpoints = self.folder.checkpoints
        saved = latest(checkpoints)
        if saved is None:
            return None
        if saved.path.name != LAST and (checkpoints / LAST).exists():
            say(f"{checkpoints / LAST} cannot be read; the one before it can")
        asked = identity(self.settings)
        where = f"{self.folder.config}: expected the settings that {saved.path.name} was made with"
        check_same(saved.settings, asked, where=where, defaults=defaults(self.settings, asked))
        return saved

    def notes_while_decoding(self) -> Iterable[str]:
        """Warnings about sets that were decoded as a whole, before there was a log."""
        sets = [images for images in (self.images, self.held_out) if isinstance(images, ResidentImages)]
        return dict.fromkeys(line for images in sets for line in images.tally.notes)

    def train(self, saved: Saved | None = None, *, callbacks: Sequence[Callback] = ()) -> Fitted:
        """Train from the start or from a checkpoint; `callbacks` are called before the run's own."""
        settings, config = self.settings, self.settings.trainer
        with closing(self.module), named("data", DataConfig), named("trainer", TrainerConfig):
            return fit(
                self.module,
                self.folder.checkpoints,
                identity(settings),
                saved=saved,
                device=config.device,
                devices=config.devices,
                nodes=config.nodes,
                precision=config.precision,
                callbacks=[*callbacks, self.monitor, self.findings],
                displays=[ProgressBar(self.monitor.latest)],
                check_steps=settings.monitor.every_steps,
                checkpoint_epochs=config.checkpoint_epochs,
                checkpoint_steps=config.checkpoint_steps,
                save_on_signal=True,
                resume_with=self._resume_with,
                max_epochs=settings.schedule.epochs,
                limit_train_batches=steps_per_epoch(settings, len(self.images)) * config.accumulate,
                accumulate_grad_batches=config.accumulate,
                gradient_clip_val=config.clip_norm,
                logger=self._loggers or False,
                default_root_dir=self.folder.path,
            )

    def finish(self, result: Result) -> None:
        """Log the findings, and write the encoder and its card."""
        folder, tally = self.folder, self.images.tally
        for found in brief(result.findings):
            logger.log(logging.WARNING if found.serious else logging.INFO, "%s: %s", found.of, found.text)
        with explained_errors(folder.checkpoints, self._resume_with):
            save_encoder(folder, self.module.method.encoder, self._card(result))
        if bad := len(tally.listed):
            say(f"{bad} of {tally.count} images could not be read and were left out; {folder.log} lists them")

    def finished_before(self) -> Result:
        """The result of a run that was finished by an earlier command."""
        folder = self.folder
        try:
            content = json.loads(read_text(folder.card))
            kept = {name: float("nan") if value is None else float(value) for name, value in content["metrics"].items()}
            minutes, stopped = float(content["minutes"]), content["stopped"] and printable(content["stopped"])
            findings = read_findings(content.get("findings", []))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{folder.card}: expected the card of a finished run, got another ({error})") from error
        say(f"{folder.path} was finished before; nothing is left to do")
        restore(self.module.method.encoder, folder.encoder, name="the encoder of this run")
        return Result(folder, kept, minutes, stopped, self.module, first_process(), findings)

    def _card(self, result: Result) -> dict[str, Any]:
        """What the encoder is, what it takes as input, and how it was trained."""
        settings, run, views = self.settings, self.settings.run, self.module.views
        mean, deviation = views.normalization
        return {
            "schema": SCHEMA,
            "ldreg": __version__,
            "encoder": {name: value for name, value in asdict(settings.encoder).items() if name not in INITIALIZATION},
            "timm": None if settings.encoder.name == "small_cnn" else settings.encoder.timm_name,
            "dimension": self.module.method.dimension,
            "input": {"channels": views.channels, "size": views.size, "mean": mean, "std": deviation},
            "method": run.method,
            "regularizer": run.regularizer,
            "options": {name: settings.tree[name] for name in (run.method, run.regularizer) if name in settings.tree},
            "data": settings.data.name,
            "epochs": settings.schedule.epochs if result.stopped is None else self.module.current_epoch,
            "batch_size": run.batch_size,
            "seed": run.seed,
            "minutes": round(result.minutes, 4),
            "stopped": result.stopped,
            "metrics": dict(result.metrics),
            "findings": [found.plain() for found in result.findings],
        }


def with_suggested_beta(settings: Settings) -> Settings:
    """The settings with a number for the beta "auto": what gives the regularizer 10 % of the gradient at the start.

    Raises:
        ValueError: settings that contradict each other or the data, or no usable gradient.
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
    """The images to train on."""
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
