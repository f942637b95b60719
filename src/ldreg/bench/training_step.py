"""Steps of the real training: recipe, Lightning module, loader and Trainer, with a clock beside them."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from ldreg.bench.benchmark import Pictures, Setting
from ldreg.bench.measure import METERS, Measurement, Stopwatch
from ldreg.bench.pictures import draw
from ldreg.bench.regularizer import pseudocode_penalty
from ldreg.data import ResidentImages
from ldreg.methods import Outcome
from ldreg.train.engine import PRECISION, quiet
from ldreg.train.module import Pretraining
from ldreg.train.recipes import load_recipe
from ldreg.train.settings import Settings, resolve

Regularizer = Literal["ldreg", "pseudocode"]

_IMAGES = {"cpu": 8, "cuda": 97}  # batches that the set has; CIFAR-10's 50,000 images are 97 of 512
_WARM_UP = {"cpu": 1, "cuda": 12}  # steps of each kind that compile, choose and record kernels
_STEPS = {"cpu": 3, "cuda": 50}  # of a block


def train(setting: Setting, *, regularizer: Regularizer | None, compiled: bool = True) -> Measurement:
    """Time blocks of steps; where there is a regularizer, blocks with and without it take turns.

    `compiled` is heeded on CUDA alone: elsewhere compiling takes longer than it saves here.
    """
    settings = settings_of(setting, regularized=regularizer == "ldreg", compiled=compiled)
    images = synthetic(setting)
    meter = METERS[setting.device]()
    module = Pretraining(settings, images)
    if regularizer == "pseudocode":
        module.regularizer = Pseudocode(setting.k, beta=0.01)
    blocks = Blocks(setting, module)
    trainer = pl.Trainer(
        accelerator="gpu" if setting.device == "cuda" else "cpu",
        devices=1,
        precision=PRECISION[settings.trainer.precision],
        max_epochs=settings.schedule.epochs,
        max_steps=blocks.total,
        callbacks=[blocks],
        benchmark=setting.device == "cuda",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    with quiet(), marked(module, blocks.watch):
        trainer.fit(module)
    return blocks.measurement(meter.extra_mb)


def settings_of(setting: Setting, *, regularized: bool, compiled: bool = True) -> Settings:
    """The CIFAR-10 recipe with this batch and encoder."""
    size, cuda = setting.size, setting.device == "cuda"
    options = {
        "data.path": "synthetic",
        "batch_size": size.images,
        "seed": setting.seed,
        "encoder.name": size.encoder,
        "encoder.stem": "cifar" if size.encoder.startswith("resnet") else "null",
        "trainer.device": setting.device,
        "trainer.precision": "bf16" if cuda else "fp32",
        "trainer.compile": str(cuda and compiled).lower(),
        **({"ldreg.k": setting.k} if regularized else {}),
    }
    recipe = load_recipe("cifar10/simclr_ldreg" if regularized else "cifar10/simclr")
    return resolve(recipe, [(key, str(value)) for key, value in options.items()])


def synthetic(setting: Setting) -> ResidentImages:
    """Random images in place of CIFAR-10's."""
    size = setting.size
    drawn = draw(Pictures(size.images, size.pixels), seed=setting.seed)[..., : size.pixels, : size.pixels]
    pixels = drawn.repeat(_IMAGES[setting.device], 1, 1, 1)
    return ResidentImages(pixels, torch.zeros(len(pixels), dtype=torch.int64), ("all",), "synthetic")


class Pseudocode(nn.Module):
    """The paper's Algorithms 1 and 2 in the place of `ldreg.LDReg`."""

    def __init__(self, k: int, *, beta: float) -> None:
        super().__init__()
        self.k, self.beta = k, beta

    def forward(self, representations: Tensor) -> Tensor:
        """The value to add to the loss."""
        return self.beta * pseudocode_penalty(representations.float(), k=self.k)


class Block(NamedTuple):
    """Steps in a row: with the regularizer or not, timed or not."""

    steps: int
    regularized: bool
    timed: bool


class Blocks(pl.Callback):
    """Walks through blocks of steps, times each as a whole, and the parts of those with all there is."""

    def __init__(self, setting: Setting, module: Pretraining) -> None:
        self.watch = Stopwatch(setting.device)
        self._cuda, self._regularizer = setting.device == "cuda", module.regularizer
        kinds = (True,) if self._regularizer is None else (True, False)
        warm, steps = _WARM_UP[setting.device], _STEPS[setting.device]
        self._blocks = [Block(warm, kind, timed=False) for kind in kinds]
        self._blocks += [Block(steps, kind, timed=True) for _ in range(setting.repeats) for kind in kinds]
        self._seconds: dict[bool, list[float]] = {True: [], False: []}
        self._block, self._done, self._start = 0, 0, 0.0

    @property
    def total(self) -> int:
        """Steps of all blocks."""
        return sum(block.steps for block in self._blocks)

    def measurement(self, extra_mb: float | None) -> Measurement:
        """What the blocks took."""
        without = self._seconds[False]
        return Measurement(
            tuple(self._seconds[True]),
            extra_mb,
            without=statistics.median(without) if without else None,
            parts=self.watch.parts(),
        )

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        """Begin a block, or end the wait for a batch within one."""
        if self._done:
            self.watch.mark("input")
            return
        block = self._blocks[self._block]
        module.regularizer = self._regularizer if block.regularized else None
        self._start = self._now()
        if block.timed and block.regularized:
            self.watch.begin()

    def on_before_backward(self, *_: Any) -> None:
        """The loss is there."""
        self.watch.mark("loss")

    def on_after_backward(self, *_: Any) -> None:
        """The gradients are there."""
        self.watch.mark("backward")

    def on_train_batch_end(self, *_: Any) -> None:
        """End a step, and with its last step the block."""
        self.watch.mark("update")
        self.watch.end_step()
        self._done += 1
        block = self._blocks[self._block]
        if self._done == block.steps:
            self.watch.stop()
            if block.timed:
                self._seconds[block.regularized].append((self._now() - self._start) / block.steps)
            self._block, self._done = self._block + 1, 0

    def _now(self) -> float:
        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


@contextmanager
def marked(module: Pretraining, watch: Stopwatch) -> Iterator[None]:
    """Have the module's own parts set marks; whatever is compiled stays as it is."""
    stand_in: Any = module
    views, penalty = module.views, module._penalty

    def made(*arguments: Any) -> tuple[Tensor, ...]:
        found = views(*arguments)
        watch.mark("views")
        return found

    def added(outcome: Outcome) -> Tensor:
        watch.mark("loss")
        value = penalty(outcome)
        watch.mark("LDReg")
        return value

    projector: Any = module.method.projector
    before: Callable[..., None] = lambda *_: watch.mark("encoder")  # noqa: E731 - a hook of one line
    hook = projector.register_forward_pre_hook(before)
    stand_in.views, stand_in._penalty = made, added
    try:
        yield
    finally:
        stand_in.views = views
        del stand_in._penalty
        hook.remove()
