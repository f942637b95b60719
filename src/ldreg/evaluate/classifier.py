"""A linear classifier on an encoder, frozen or trained with it, and its training."""

import json
import logging
from collections.abc import Mapping
from contextlib import closing
from copy import deepcopy
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.callbacks import LambdaCallback
from torch import Tensor, nn
from torch.nn import functional

from ldreg.data import (
    Batch,
    DataConfig,
    ImageSet,
    Loader,
    derived_seed,
    worker_count,
)
from ldreg.distributed import active, total
from ldreg.encoders.checkpoints import LoadedEncoder
from ldreg.evaluate.classification import ClassifierResult, folder_name
from ldreg.evaluate.extract import AUTOCAST, Precision, representations, undisturbed, with_channels
from ldreg.evaluate.features import Features, Setup, images_key, plain_batches, plain_views
from ldreg.evaluate.protocols import FinetuneConfig, LinearConfig, Plan, augmentation, fitted_plan, warn_small
from ldreg.io.files import exclusive
from ldreg.io.guard import load_torch
from ldreg.methods import synchronize_batch_norm
from ldreg.optim import build_optimizer, build_scheduler
from ldreg.text import number
from ldreg.train.checkpoints import PREVIOUS, Saved, latest
from ldreg.train.engine import fit
from ldreg.views import Views
from ldreg.views.views import DRAWS

logger = logging.getLogger("ldreg")

HISTORY = "ldreg_history"  # key of a checkpoint
_ROWS, _IMAGES = 16384, 1024  # batch of representations, and of images, without gradients


def linear_head(dimension: int, classes: int, *, normalized: bool, seed: int) -> nn.Module:
    """A classifier (B, dimension) to (B, classes), drawn by the seed: weights of deviation 0.01, no bias.

    If `normalized`, a batch norm without scale and shift comes first, as in the code of LDReg's authors and in He et
    al., "Masked Autoencoders Are Scalable Vision Learners", CVPR 2022, appendix A.1: one learning rate then fits
    encoders of any scale. Its statistics are the mean over all batches, as a frozen encoder does not drift.

    >>> linear_head(8, 3, normalized=True, seed=0)
    Sequential(
      (0): BatchNorm1d(8, ..., affine=False, ...)
      (1): Linear(in_features=8, out_features=3, bias=True)
    )
    """
    linear = nn.Linear(dimension, classes)
    nn.init.normal_(linear.weight, std=0.01, generator=torch.Generator().manual_seed(derived_seed(seed, classes)))
    nn.init.zeros_(linear.bias)
    norms = [nn.BatchNorm1d(dimension, affine=False, momentum=None)] if normalized else []
    return nn.Sequential(*norms, linear)


class Classifier(pl.LightningModule):
    """Trains a head on an encoder's representations of augmented images, by cross-entropy.

    Each step draws for the batch of all processes from (seed, epoch, batch), and each process takes its part of the
    draw, so that two processes train as one does. `test` are representations if the encoder is frozen, else images.
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        views: Views,
        *,
        train: ImageSet,
        test: ImageSet | Features,
        plan: Plan,
        precision: Precision,
        workers: int,
    ) -> None:
        super().__init__()
        self.head, self.views, self.plan = head, views, plan
        self.frozen = isinstance(test, Features)
        # A frozen encoder is no part of the module: it is neither trained nor put into every checkpoint.
        self._outside: tuple[nn.Module, ...] = (encoder,) if self.frozen else ()
        if not self.frozen:
            self.encoder = encoder
        self._train, self._test = train, test
        self._precision, self._workers = precision, workers
        self._losses: list[Tensor] = []
        self._batches: Loader | None = None
        self.history: list[dict[str, float]] = []

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one epoch."""
        return self.plan.steps(len(self._train))

    def on_fit_start(self) -> None:
        """Move a frozen encoder to the device, in evaluation mode."""
        for encoder in self._outside:
            encoder.to(self.device).eval()

    def close(self) -> None:
        """Move a frozen encoder back to the CPU, and end the processes that load the batches."""
        if self._batches is not None:
            self._batches.close()
        for encoder in self._outside:
            encoder.to("cpu")

    def train_dataloader(self) -> Loader:
        """The batches of this process."""
        world = self.trainer.world_size
        self._batches = Loader(
            self._train,
            batch_size=self.plan.batch_size // world,
            seed=self.plan.seed,
            crop=partial(_crop, self.views),
            rank=self.global_rank,
            world=world,
            workers=self._workers,
            device=self.device,
        )
        return self._batches

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        """The cross-entropy of this process's part of the batch."""
        uniforms = self._drawn(batch_index, len(batch.labels))
        (view,) = self.views.render(with_channels(batch.images, self.views.channels), uniforms)
        x = self._represent(view)
        if batch_index == 0 and not torch.isfinite(x).all():
            raise ValueError("encoder: expected finite representations, got NaN or inf for a training image")
        loss = functional.cross_entropy(self.head(x), batch.labels)
        self._losses.append(loss.detach())
        return loss

    def configure_optimizers(self) -> Any:
        """The optimizer, and its schedule by steps."""
        optimizer = build_optimizer(self, self.plan.optimizer, batch_size=self.plan.batch_size)
        scheduler = build_scheduler(optimizer, self.plan.schedule, steps_per_epoch=self.steps_per_epoch)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what was measured so far."""
        checkpoint[HISTORY] = list(self.history)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore what was measured."""
        self.history = list(checkpoint[HISTORY])

    def end_epoch(self) -> None:
        """Add the mean loss of the epoch and the accuracy on the test images to the history."""
        losses, self._losses = torch.stack(self._losses).double().mean(), []
        loss = (total(losses) / self.trainer.world_size).item()
        correct, count = self._correct()
        self.history.append({"loss": loss, "accuracy": correct / count})

    def _correct(self) -> tuple[int, int]:
        """Test images classified correctly, and all of them, over all processes."""
        test, found = self._test, torch.zeros(2, dtype=torch.int64, device=self.device)
        if isinstance(test, Features):
            with undisturbed(self.head, self.device):
                for x, labels in zip(test.representations.split(_ROWS), test.labels.split(_ROWS), strict=True):
                    found += _counts(self.head(x.to(self.device)), labels.to(self.device))
        else:
            part = torch.arange(len(test))[self.global_rank :: self.trainer.world_size]
            if len(part):
                how: dict[str, Any] = {"device": self.device, "batch_size": _IMAGES // 2, "workers": self._workers}
                pairs = ((one.images, one.labels) for one in plain_batches(test.take(part), self.views, **how))
                network, autocast = nn.Sequential(self.encoder, self.head), AUTOCAST[self._precision]
                found += _counts(*representations(network, pairs, device=self.device, autocast=autocast))
            if active():
                dist.all_reduce(found)
        correct, count = found.tolist()
        return correct, count

    def _represent(self, view: Tensor) -> Tensor:
        if not self.frozen:
            trained: Tensor = self.encoder(view)
            return trained
        # In parts, which change nothing in evaluation mode: the paper's batch of 4096 would fill a GPU at once.
        with torch.no_grad():
            return torch.cat([self._outside[0](part) for part in view.split(_IMAGES)])

    def _drawn(self, batch_index: int, rows: int) -> Tensor:
        """Uniform numbers (rows, DRAWS) for this process's views; dropout has a seed for each rank."""
        torch.manual_seed(derived_seed(self.plan.seed, self.current_epoch, batch_index, self.global_rank))
        seed = derived_seed(self.plan.seed, self.current_epoch, batch_index)
        generator = torch.Generator(self.device).manual_seed(seed)
        shape = (rows * self.trainer.world_size, sum(DRAWS))
        drawn = torch.rand(shape, generator=generator, device=self.device)
        return drawn[rows * self.global_rank : rows * (self.global_rank + 1)]


def _counts(logits: Tensor, labels: Tensor) -> Tensor:
    """How many rows (N, classes) are classified correctly, and N."""
    return torch.stack([(logits.argmax(1) == labels).sum(), labels.new_tensor(len(labels))])


def _crop(views: Views, image: Tensor, generator: torch.Generator) -> Tensor:
    return views.crop(with_channels(image, views.channels), generator)


def train_classifier(
    encoder: LoadedEncoder,
    data: DataConfig,
    config: LinearConfig | FinetuneConfig,
    setup: Setup,
    *,
    train: ImageSet,
    test: ImageSet,
) -> ClassifierResult:
    """Train a classifier on the frozen encoder, or with a copy of it, from the start or from its checkpoint.

    Everything that the result depends on is hashed into the name of the folder. The history of a finished training
    comes from its checkpoint.
    """
    plan, views = fitted_plan(config, images=len(train), devices=setup.devices), augmentation(config, data)
    warn_small(plan, config, images=len(train), data=data.name)
    frozen = isinstance(config, LinearConfig)
    tested = setup.features(encoder, data, "test", test) if frozen else test
    module = encoder.module if frozen else deepcopy(encoder.module).requires_grad_(True).train()
    dimension = int(module.dimension)  # type: ignore[arg-type]
    settings: dict[str, Any] = {
        "encoder": encoder.key,
        "plan": asdict(plan),
        "train": images_key(train),
        "kind": "linear" if frozen else "finetune",
        "test": tested.key if isinstance(tested, Features) else images_key(tested),
        "precision": setup.precision,
        **views,
    }
    del settings["plan"]["optimizer"]["decay_all"]  # no protocol sets it, and checkpoints of older versions lack it
    classifier = Classifier(
        module,
        linear_head(dimension, len(train.classes), normalized=frozen, seed=plan.seed),
        plain_views(encoder, **views),
        train=train,
        test=tested,
        plan=plan,
        precision=setup.precision,
        workers=worker_count(data, processes=setup.devices),
    )
    title = f"linear-{config.protocol}" if isinstance(config, LinearConfig) else "finetune"
    minutes = _fit(classifier, setup.out / "work" / folder_name(f"{title}-{data.name}", settings), settings, setup)
    history = classifier.history
    return ClassifierResult(
        accuracy=history[-1]["accuracy"],
        classes=len(train.classes),
        train_images=len(train),
        test_images=len(tested.labels),
        minutes=minutes,
        best=max(epoch["accuracy"] for epoch in history),
        epochs=len(history),
        steps=len(history) * plan.steps(len(train)),
        batch_size=plan.batch_size,
        lr=plan.peak_lr,
        history=tuple(history),
    )


def _fit(classifier: Classifier, folder: Path, settings: Mapping[str, Any], setup: Setup) -> float:
    """Train a classifier, and return the minutes it took over all interruptions."""
    plan, progress = classifier.plan, setup.progress
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder, folder / "lock"):
        saved = _saved(folder, settings)
        if saved is not None and saved.epoch + 1 == plan.schedule.epochs:
            content: Any = load_torch(saved.path)
            classifier.on_load_checkpoint(content)
            return saved.seconds / 60
        if setup.devices > 1:
            if not classifier.frozen:
                classifier.encoder = synchronize_batch_norm(classifier.encoder, device=setup.place)
            classifier.head = synchronize_batch_norm(classifier.head, device=setup.place)

        def show(trainer: pl.Trainer, module: pl.LightningModule) -> None:
            if progress is not None and trainer.is_global_zero:
                done, last = len(classifier.history), classifier.history[-1]
                values = f"loss {number(last['loss'])}  accuracy {number(last['accuracy'])}"
                progress(f"epoch {done}/{plan.schedule.epochs}  {values}", done / plan.schedule.epochs)

        with closing(classifier):
            fitted = fit(
                classifier,
                folder,
                settings,
                saved=saved,
                device=setup.device,
                devices=setup.devices,
                precision=setup.precision,
                callbacks=[LambdaCallback(on_train_epoch_end=lambda *_: classifier.end_epoch())],
                displays=[LambdaCallback(on_train_epoch_end=show)],
                max_epochs=plan.schedule.epochs,
                limit_train_batches=classifier.steps_per_epoch,
            )
        if fitted.trainer.is_global_zero:
            (folder / PREVIOUS).unlink(missing_ok=True)
        return fitted.minutes


def _saved(folder: Path, settings: Mapping[str, Any]) -> Saved | None:
    """The checkpoint to resume from, if there is a readable one of this training."""
    try:
        saved = latest(folder)
    except ValueError as error:
        logger.warning("%s, so training starts again", error)
        return None
    return saved if saved and saved.settings == json.loads(json.dumps(settings)) else None
