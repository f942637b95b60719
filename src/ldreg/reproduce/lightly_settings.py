"""The settings of lightly's CIFAR-10 recipe of SimCLR: what it fixes, and what it leaves open."""

from dataclasses import dataclass

from ldreg.data import DataConfig
from ldreg.evaluate.extract import AUTOCAST, Precision
from ldreg.record import Setting
from ldreg.train.recipes import flattened
from ldreg.train.settings import Settings

# lightly's benchmark of CIFAR-10, docs/source/getting_started/benchmarks/cifar10_benchmark.py of its repository, at the
# batch size of 512 of its table.
BATCH_SIZE = 512
LR, LR_BATCH = 0.06, 128  # the learning rate is that of a batch of 128, scaled linearly
MOMENTUM, WEIGHT_DECAY = 0.9, 5e-4
TEMPERATURE = 0.5
DIMENSION, EMBEDDING = 512, 128
JITTER = 0.5
CHECKPOINT = "last.ckpt"  # in the folder of a run
# Settings that checkpoints of earlier versions do not tell, and had as they are.
UNTOLD = frozenset({"encoder.init", "encoder.zero_init", "optimizer.decay_all"})


@dataclass(frozen=True)
class Recipe:
    """The recipe, and what it leaves open.

    Args:
        data: square images of one size, of which workers, at most as many as cores, make the views
        epochs: passes over the training images
        seed: of the weights, the order and the views
        batch_size: images of a step
        precision: of the training; lightly's script has fp32

    >>> Recipe(DataConfig("cifar10", "cifar10.tar.xz"), epochs=30, seed=0).lr
    0.24
    """

    data: DataConfig
    epochs: int
    seed: int
    batch_size: int = BATCH_SIZE
    precision: Precision = "fp32"

    def __post_init__(self) -> None:
        for name, value in (("epochs", self.epochs), ("batch_size", self.batch_size)):
            if value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        if self.precision not in AUTOCAST:
            raise ValueError(f"precision: expected {' or '.join(AUTOCAST)}, got {self.precision!r}")

    @property
    def lr(self) -> float:
        """The learning rate at the start."""
        return LR * self.batch_size / LR_BATCH

    @property
    def settings(self) -> dict[str, Setting]:
        """By the keys of our own runs where they mean the same."""
        return {
            "by": "lightly",
            "method": "simclr",
            "regularizer": "none",
            "batch_size": self.batch_size,
            "seed": self.seed,
            "simclr.temperature": TEMPERATURE,
            "simclr.projector": [DIMENSION, EMBEDDING],
            "data.name": self.data.name,
            "data.size": self.data.size,
            "data.limit": self.data.limit,
            "data.validation": self.data.validation,
            "views.policy": "simclr",
            "views.jitter": JITTER,
            "views.flip": 0.5,
            "views.min_scale": None,  # those of SimCLR's policy
            "views.max_scale": 1.0,
            "views.grayscale": None,
            "views.interpolation": None,
            "views.blur": False,
            "views.normalization": "imagenet",
            "encoder.name": "resnet18",
            "encoder.stem": "cifar",
            "encoder.drop_path": 0.0,
            "encoder.init": "torch",
            "encoder.zero_init": False,
            "optimizer.name": "sgd",
            "optimizer.lr": LR * 256 / LR_BATCH,  # our linear scaling is from 256 images
            "optimizer.lr_scaling": "linear",
            "optimizer.bias_lr": None,
            "optimizer.weight_decay": WEIGHT_DECAY,
            "optimizer.momentum": MOMENTUM,
            "optimizer.nesterov": False,
            "optimizer.decay_all": True,
            "schedule.epochs": self.epochs,
            "schedule.warmup_epochs": 0.0,
            "schedule.min_lr": 0.0,
            "trainer.precision": self.precision,
            "trainer.devices": 1,
            "trainer.nodes": 1,
            "trainer.accumulate": 1,
            "trainer.clip_norm": None,
        }


def recipe_of(settings: Settings) -> Recipe:
    """The recipe with the data, length, batch, seed and precision of settings that are lightly's in all else.

    Raises:
        ValueError: a setting that lightly's run would not heed, and what its recipe has.
    """
    precision = settings.trainer.precision
    if precision == "fp16":
        raise ValueError("trainer.precision: expected fp32 or bf16, as lightly's recipe is run, got 'fp16'")
    run = settings.run
    recipe = Recipe(settings.data, settings.schedule.epochs, run.seed, batch_size=run.batch_size, precision=precision)
    asked, own = flattened(settings.tree), recipe.settings
    for key in sorted(asked.keys() & own.keys()):
        if asked[key] != own[key]:
            raise ValueError(f"{key}: expected {own[key]!r}, as lightly's recipe has it, got {asked[key]!r}")
    return recipe
