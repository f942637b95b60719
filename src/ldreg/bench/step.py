"""One SimCLR training step as `ldreg pretrain` takes it, with and without LDReg, and lightly's recipe."""

import itertools
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ldreg.bench.measure import (
    OWN,
    Batches,
    Benchmark,
    Contender,
    Goal,
    Measurement,
    Pictures,
    Setting,
    now,
    watch_memory,
)
from ldreg.bench.regularizer import pseudocode_penalty
from ldreg.bench.views import InMemory, as_pil, draw

if TYPE_CHECKING:  # they bring Lightning and timm
    from ldreg.train.module import Pretraining
    from ldreg.train.settings import Settings

PARTS = ("input", "views", "encoder", "loss", "LDReg", "backward", "update")  # of a step, in their order

# What is trained with each regularizer; the pseudocode's takes the place of ldreg's, or of none.
_RECIPES = {"ldreg": "simclr_ldreg", "share": "simclr_share", "pseudocode": "simclr", None: "simclr"}
_BATCHES = {"cpu": 8, "cuda": 97}  # of the set; CIFAR-10's 50,000 images are 97 of 512
_WARM_UP = {"cpu": 1, "cuda": 12}  # steps of each kind that compile, choose and record kernels
_STEPS = {"cpu": 3, "cuda": 50}  # of a block
_STEPS_OF_LIGHTLY = {"cpu": 3, "cuda": 20}
_AHEAD = 2  # batches that torch's loader has each worker make in advance


def train(
    setting: Setting, *, regularizer: Literal["ldreg", "share", "pseudocode"] | None, compiled: bool = True
) -> tuple[Measurement, None]:
    """Time blocks of steps of the real training; blocks with and without the regularizer take turns.

    `compiled` applies to CUDA only: elsewhere compiling takes longer than it saves here.
    """
    import pytorch_lightning as pl

    from ldreg.data import ResidentImages
    from ldreg.train.engine import PRECISION, quiet
    from ldreg.train.module import Pretraining

    settings = settings_of(setting, recipe=_RECIPES[regularizer], compiled=compiled)
    pixels = synthetic(setting)
    images = ResidentImages(pixels, torch.zeros(len(pixels), dtype=torch.int64), ("all",), "synthetic")
    extra_mb = watch_memory(setting.device)
    module = Pretraining(settings, images)
    if regularizer == "pseudocode":
        module.regularizer = Pseudocode(setting.k, beta=0.01)
    blocks = Blocks(setting, module)
    hooks: dict[str, Any] = {
        "on_train_batch_start": blocks.start_step,
        "on_before_backward": lambda *_: blocks.mark("loss"),
        "on_after_backward": lambda *_: blocks.mark("backward"),
        "on_train_batch_end": blocks.end_step,
    }
    trainer = pl.Trainer(
        accelerator="gpu" if setting.device == "cuda" else "cpu",
        devices=1,
        precision=PRECISION[settings.trainer.precision],
        max_epochs=settings.schedule.epochs,
        max_steps=sum(steps for steps, _, _ in blocks.plan),
        callbacks=[pl.callbacks.LambdaCallback(**hooks)],
        benchmark=setting.device == "cuda",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    with quiet():
        trainer.fit(module)
    without = statistics.median(blocks.seconds[False]) if blocks.seconds[False] else None
    return Measurement(tuple(blocks.seconds[True]), extra_mb(), without=without, parts=blocks.parts()), None


def settings_of(setting: Setting, *, recipe: str = "simclr", compiled: bool = True) -> "Settings":
    """The CIFAR-10 recipe with this batch and encoder."""
    from ldreg.train.recipes import load_recipe
    from ldreg.train.settings import resolve

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
        **({} if recipe == "simclr" else {"ldreg.k": setting.k}),
    }
    return resolve(load_recipe(f"cifar10/{recipe}"), [(key, str(value)) for key, value in options.items()])


def synthetic(setting: Setting) -> Tensor:
    """Random images (N, 3, S, S) in place of CIFAR-10's."""
    size = setting.size
    drawn = draw(Pictures(size.images, size.pixels), seed=setting.seed)[..., : size.pixels, : size.pixels]
    return drawn.repeat(_BATCHES[setting.device], 1, 1, 1)


class Pseudocode(nn.Module):
    """The paper's Algorithms 1 and 2 in the place of `ldreg.LDReg`."""

    def __init__(self, k: int, *, beta: float) -> None:
        super().__init__()
        self.k, self.beta = k, beta

    def forward(self, representations: Tensor) -> Tensor:
        """The value to add to the loss."""
        return self.beta * pseudocode_penalty(representations.float(), k=self.k)


class Blocks:
    """Times blocks of steps with the regularizer and without in turns; of the steps with it also the parts.

    A block is (steps, regularized, timed). The parts are the times between marks, which do not wait for the device.
    """

    def __init__(self, setting: Setting, module: "Pretraining") -> None:
        self.seconds: dict[bool, list[float]] = {True: [], False: []}  # of a step, with the regularizer or without
        self._device, self._module, self._regularizer = setting.device, module, module.regularizer
        kinds = (True,) if self._regularizer is None else (True, False)
        self.plan = [(_WARM_UP[setting.device], kind, False) for kind in kinds]
        self.plan += [(_STEPS[setting.device], kind, True) for _ in range(setting.repeats) for kind in kinds]
        self._block, self._done, self._start = 0, 0, 0.0
        self._marks: list[tuple[str | None, Any]] = []  # a part and when it ended; None: the time before is no part
        self._marking = False

        def marked(work: Callable[..., Any], before: str | None, after: str) -> Callable[..., Any]:
            def run(*arguments: Any) -> Any:
                if before is not None:
                    self.mark(before)
                made = work(*arguments)
                self.mark(after)
                return made

            return run

        stand_in: Any = module  # whose own methods are called; compiled code stays as it is
        stand_in.views = marked(module.views, None, "views")
        stand_in._penalty = marked(module._penalty, "loss", "LDReg")
        stand_in.method.projector.register_forward_pre_hook(lambda *_: self.mark("encoder"))

    def start_step(self, *arguments: Any) -> None:
        """Begin a block, or end the wait for a batch within one."""
        if self._done:
            self.mark("input")
            return
        _, regularized, timed = self.plan[self._block]
        self._module.regularizer = self._regularizer if regularized else None
        self._start = now(self._device)
        self._marking = timed and regularized
        self.mark(None)

    def end_step(self, *_: Any) -> None:
        """End a step, and with its last step the block."""
        self.mark("update")
        self._done += 1
        steps, regularized, timed = self.plan[self._block]
        if self._done == steps:
            self._marking = False
            if timed:
                self.seconds[regularized].append((now(self._device) - self._start) / steps)
            self._block, self._done = self._block + 1, 0

    def mark(self, part: str | None) -> None:
        """Count the time since the last mark as one of PARTS, or as none of them, in blocks that are timed in parts."""
        if self._marking:
            self._marks.append((part, self._now()))

    def _now(self) -> Any:
        if self._device == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def parts(self) -> dict[str, float]:
        """Mean seconds of each part of a step."""
        if self._device == "cuda":
            torch.cuda.synchronize()
        total = dict.fromkeys(PARTS, 0.0)
        for (_, start), (part, end) in itertools.pairwise(self._marks):
            if part is not None:
                total[part] += start.elapsed_time(end) / 1e3 if self._device == "cuda" else end - start
        steps = sum(part == "update" for part, _ in self._marks)
        return {part: seconds / steps for part, seconds in total.items() if seconds}


def train_lightly(setting: Setting) -> tuple[Measurement, None]:
    """Time blocks of steps of lightly's CIFAR-10 recipe: its transform, heads and loss, a plain loop."""
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead
    from lightly.transforms.simclr_transform import SimCLRTransform

    from ldreg.encoders import build_encoder

    transform = SimCLRTransform(input_size=setting.size.pixels, cj_strength=0.5, gaussian_blur=0.0)
    loader = DataLoader(
        InMemory(list(synthetic(setting)), partial(_of_array, transform)),
        batch_size=setting.size.images,
        shuffle=True,
        drop_last=True,
        num_workers=setting.threads,
        persistent_workers=True,
        pin_memory=setting.device == "cuda",
    )
    batches = (views for _ in itertools.count() for views, _ in loader)
    extra_mb = watch_memory(setting.device)
    torch.manual_seed(setting.seed)
    config = settings_of(setting).encoder
    encoder: Any = build_encoder(config, channels=3, size=setting.size.pixels)
    head = SimCLRProjectionHead(encoder.dimension, encoder.dimension, 128)
    model = nn.Sequential(encoder, head).to(setting.device)
    criterion = NTXentLoss(temperature=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.06, momentum=0.9, weight_decay=5e-4)

    def seconds_of(steps: int) -> float:
        start = now(setting.device)
        for _ in range(steps):
            first, second = (view.to(setting.device, non_blocking=True) for view in next(batches))
            with torch.autocast(setting.device, torch.bfloat16, enabled=setting.device == "cuda"):
                loss = criterion(model(first), model(second))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return (now(setting.device) - start) / steps

    seconds_of(_AHEAD * setting.threads + 2)  # uses up what the workers made in advance
    seconds = tuple(seconds_of(_STEPS_OF_LIGHTLY[setting.device]) for _ in range(setting.repeats))
    return Measurement(seconds, extra_mb()), None


def _of_array(transform: Callable[[Any], Any], array: Tensor) -> Any:
    """Apply a transform of Pillow images to an array (3, H, W), as torchvision's CIFAR10 keeps its images."""
    return transform(as_pil(array[None])[0])


def _contender(*, counts: bool = False, eager: bool = False, **options: Any) -> Contender:
    return Contender(
        partial(train, compiled=not eager, **options),
        package="pytorch_lightning",
        install="ldreg[train]",
        devices=("cuda",) if eager else ("cpu", "cuda"),
        counts=counts,
    )


_CIFAR = Batches(512, 32, "resnet18")

BENCHMARK = Benchmark(
    title="One training step of SimCLR",
    contenders={
        OWN: _contender(regularizer="ldreg", counts=True),
        "ldreg (share)": _contender(regularizer="share"),
        "without LDReg": _contender(regularizer=None),
        "authors' LDReg": _contender(regularizer="pseudocode"),
        "ldreg (eager)": _contender(regularizer="ldreg", eager=True),
        "authors' (eager)": _contender(regularizer="pseudocode", eager=True),
        "lightly": Contender(train_lightly, package="lightly", install="ldreg[train]"),
    },
    size=Batches,
    sizes={"cpu": (Batches(64, 32, "small_cnn"),), "cuda": (_CIFAR,)},
    quick_sizes=(Batches(48, 16, "small_cnn"),),
    goals=(
        Goal(_CIFAR, "img/s", 40_000, device="cuda"),
        Goal(_CIFAR, "LDReg", 0.02, device="cuda"),
        Goal(_CIFAR, "views", 0.10, device="cuda"),
    ),
    columns=("img/s", "time", "LDReg", "extra memory", "time vs ldreg"),
    picture="parts",
    conditions=(
        "recipe cifar10/simclr on random images of its shape, views included; bf16, compiled on CUDA, else float32. "
        "LDReg: what it adds to a step, by blocks of steps with and without it in turns"
    ),
)
