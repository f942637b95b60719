"""One SimCLR training step as `ldreg pretrain` takes it, with and without LDReg, beside lightly's recipe."""

import itertools
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ldreg.bench.benchmark import OWN, Batches, Benchmark, Contender, Goal, Pictures, Setting
from ldreg.bench.measure import Measurement, Memory, Stopwatch, now
from ldreg.bench.regularizer import pseudocode_penalty
from ldreg.bench.views import InMemory, draw

if TYPE_CHECKING:  # they bring Lightning and timm
    from ldreg.train.module import Pretraining
    from ldreg.train.settings import Settings

_BATCHES = {"cpu": 8, "cuda": 97}  # of the set; CIFAR-10's 50,000 images are 97 of 512
_WARM_UP = {"cpu": 1, "cuda": 12}  # steps of each kind that compile, choose and record kernels
_STEPS = {"cpu": 3, "cuda": 50}  # of a block
_STEPS_OF_LIGHTLY = {"cpu": 3, "cuda": 20}
_AHEAD = 2  # batches that torch's loader has each worker make in advance


def train(
    setting: Setting, *, regularizer: Literal["ldreg", "pseudocode"] | None, compiled: bool = True
) -> tuple[Measurement, None]:
    """Time blocks of steps of the real training; blocks with and without the regularizer take turns.

    `compiled` applies to CUDA only: elsewhere compiling takes longer than it saves here.
    """
    import pytorch_lightning as pl

    from ldreg.data import ResidentImages
    from ldreg.train.engine import PRECISION, quiet
    from ldreg.train.module import Pretraining

    settings = settings_of(setting, regularized=regularizer == "ldreg", compiled=compiled)
    pixels = synthetic(setting)
    images = ResidentImages(pixels, torch.zeros(len(pixels), dtype=torch.int64), ("all",), "synthetic")
    memory = Memory(setting.device)
    module = Pretraining(settings, images)
    if regularizer == "pseudocode":
        module.regularizer = Pseudocode(setting.k, beta=0.01)
    blocks = Blocks(setting, module)
    hooks: dict[str, Any] = {
        "on_train_batch_start": blocks.start_step,
        "on_before_backward": lambda *_: blocks.watch.mark("loss"),
        "on_after_backward": lambda *_: blocks.watch.mark("backward"),
        "on_train_batch_end": blocks.end_step,
    }
    trainer = pl.Trainer(
        accelerator="gpu" if setting.device == "cuda" else "cpu",
        devices=1,
        precision=PRECISION[settings.trainer.precision],
        max_epochs=settings.schedule.epochs,
        max_steps=sum(steps for steps, _, _ in blocks.blocks),
        callbacks=[pl.callbacks.LambdaCallback(**hooks)],
        benchmark=setting.device == "cuda",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    with quiet(), marked(module, blocks.watch):
        trainer.fit(module)
    without = blocks.seconds[False]
    return Measurement(
        tuple(blocks.seconds[True]),
        memory.extra_mb,
        without=statistics.median(without) if without else None,
        parts=blocks.watch.parts(),
    ), None


def settings_of(setting: Setting, *, regularized: bool, compiled: bool = True) -> "Settings":
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
        **({"ldreg.k": setting.k} if regularized else {}),
    }
    recipe = load_recipe("cifar10/simclr_ldreg" if regularized else "cifar10/simclr")
    return resolve(recipe, [(key, str(value)) for key, value in options.items()])


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
    """Blocks of steps, each (steps, regularized, timed) and timed as a whole; regularized ones also in parts."""

    def __init__(self, setting: Setting, module: "Pretraining") -> None:
        self.watch = Stopwatch(setting.device)
        self.seconds: dict[bool, list[float]] = {True: [], False: []}  # of a step, with the regularizer or without
        self._device, self._regularizer = setting.device, module.regularizer
        kinds = (True,) if self._regularizer is None else (True, False)
        self.blocks = [(_WARM_UP[setting.device], kind, False) for kind in kinds]
        self.blocks += [(_STEPS[setting.device], kind, True) for _ in range(setting.repeats) for kind in kinds]
        self._block, self._done, self._start = 0, 0, 0.0

    def start_step(self, trainer: Any, module: Any, *rest: Any) -> None:
        """Begin a block, or end the wait for a batch within one."""
        if self._done:
            self.watch.mark("input")
            return
        _, regularized, timed = self.blocks[self._block]
        module.regularizer = self._regularizer if regularized else None
        self._start = now(self._device)
        if timed and regularized:
            self.watch.begin()

    def end_step(self, *_: Any) -> None:
        """End a step, and with its last step the block."""
        self.watch.mark("update")
        self.watch.end_step()
        self._done += 1
        steps, regularized, timed = self.blocks[self._block]
        if self._done == steps:
            self.watch.running = False
            if timed:
                self.seconds[regularized].append((now(self._device) - self._start) / steps)
            self._block, self._done = self._block + 1, 0


@contextmanager
def marked(module: "Pretraining", watch: Stopwatch) -> Iterator[None]:
    """Have the module's parts set marks; compiled code stays as it is."""
    stand_in: Any = module
    views, penalty = module.views, module._penalty

    def made(*arguments: Any) -> tuple[Tensor, ...]:
        found = views(*arguments)
        watch.mark("views")
        return found

    def added(outcome: Any) -> Tensor:
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


def train_lightly(setting: Setting) -> tuple[Measurement, None]:
    """Lightly's CIFAR-10 recipe: its transform, heads and loss, torch's loader, a plain loop.

    Blocks of steps are timed after so many that the loader's reserve is used up and the workers set the pace.
    """
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead

    from ldreg.encoders import build_encoder

    batches, memory = _batches(setting), Memory(setting.device)
    torch.manual_seed(setting.seed)
    config = settings_of(setting, regularized=False).encoder
    encoder: Any = build_encoder(config, channels=3, size=setting.size.pixels)
    head = SimCLRProjectionHead(encoder.dimension, encoder.dimension, 128)
    model = nn.Sequential(encoder, head).to(setting.device)
    criterion = NTXentLoss(temperature=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.06, momentum=0.9, weight_decay=5e-4)

    def step() -> None:
        first, second = (view.to(setting.device, non_blocking=True) for view in next(batches))
        with torch.autocast(setting.device, torch.bfloat16, enabled=setting.device == "cuda"):
            loss = criterion(model(first), model(second))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for _ in range(_AHEAD * setting.threads + 2):
        step()
    seconds, count = [], _STEPS_OF_LIGHTLY[setting.device]
    for _ in range(setting.repeats):
        start = now(setting.device)
        for _ in range(count):
            step()
        seconds.append((now(setting.device) - start) / count)
    return Measurement(tuple(seconds), memory.extra_mb), None


def _batches(setting: Setting) -> Iterator[list[Tensor]]:
    from lightly.transforms.simclr_transform import SimCLRTransform

    transform = SimCLRTransform(input_size=setting.size.pixels, cj_strength=0.5, gaussian_blur=0.0)
    loader = DataLoader(
        InMemory(list(synthetic(setting)), _FromArray(transform)),
        batch_size=setting.size.images,
        shuffle=True,
        drop_last=True,
        num_workers=setting.threads,
        persistent_workers=True,
        pin_memory=setting.device == "cuda",
    )
    return (views for _ in itertools.count() for views, _ in loader)


class _FromArray:
    """A transform of Pillow images, for arrays (3, H, W), as torchvision's CIFAR10 keeps its images."""

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self.transform = transform

    def __call__(self, array: Tensor) -> Any:
        from PIL import Image

        return self.transform(Image.fromarray(array.permute(1, 2, 0).numpy()))


def _check(size: Batches) -> None:
    if find_spec("timm") is None:  # then nobody takes part, and the table says so
        return
    from ldreg.encoders import EncoderConfig

    try:
        EncoderConfig(size.encoder)
    except ValueError as error:
        raise ValueError(f"sizes: encoder {error}") from None


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
    check=_check,
    conditions=(
        "recipe cifar10/simclr on random images of its shape, views included; bf16, compiled on CUDA, else float32. "
        "LDReg: what it adds to a step, by blocks of steps with and without it in turns"
    ),
)
