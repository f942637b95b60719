"""What the studies ask to be trained: a recipe with options, and a seed."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Literal

from ldreg.reproduce.lightly_settings import recipe_of
from ldreg.train.recipes import flattened, load_recipe
from ldreg.train.settings import CHANGEABLE, REGULARIZERS, Settings, resolve, told_settings

Options = tuple[tuple[str, str], ...]
Trainer = Literal["ldreg", "lightly"]

_SHORT = ("schedule.epochs", "views.jitter", "batch_size", "encoder.name", "data.name", "data.validation")

# What is measured of a finished run beside its probes and dimensions.
TRANSFER, TSNE, DETECTION = "transfer", "tsne", "detection"


@dataclass(frozen=True)
class Arm:
    """A recipe with options over it: one side of a comparison, to be run with one seed or several.

    Args:
        recipe: its name
        options: over it
        by: what trains it; lightly has one recipe, of which `recipe` is how ours is called

    >>> Arm("digits/simclr_ldreg", (("ldreg.beta", "0.2"),)).slug
    'simclr_ldreg-beta0.2'
    >>> Arm("cifar10/simclr_lightly", (("schedule.epochs", "30"),), by="lightly").slug
    'simclr_by_lightly-epochs30'
    """

    recipe: str
    options: Options = ()
    by: Trainer = "ldreg"

    def but(self, **options: object) -> "Arm":
        """The same with further options; two underscores stand for a dot.

        >>> Arm("digits/simclr").but(views__jitter=0.25).options
        (('views.jitter', '0.25'),)
        """
        more = {key.replace("__", "."): str(value) for key, value in options.items()}
        return replace(self, options=tuple(sorted({**dict(self.options), **more}.items())))

    @property
    def slug(self) -> str:
        """A name for files: readable, and different for different arms of a scale."""
        named = sorted(self.options, key=lambda pair: pair[0] != "regularizer")  # what it is before how much of it
        parts = [_part(key, value) for key, value in named]
        recipe = self.recipe.rpartition("/")[2]
        who = recipe if self.by == "ldreg" else f"{recipe.removesuffix(f'_{self.by}')}_by_{self.by}"
        name = "-".join([who, *parts])
        safe = re.sub(r"[^A-Za-z0-9_.=-]", "_", name)
        if safe == name and len(name) <= 120:
            return name
        return f"{safe[:100]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _part(key: str, value: str) -> str:
    """A setting in a name: short for what the studies vary, whole for what was given beside.

    >>> _part("ldreg.k", "8"), _part("monitor.k", "8"), _part("regularizer", "minlid")
    ('k8', 'monitor.k=8', 'minlid')
    """
    group, _, name = key.rpartition(".")
    if key == "regularizer":
        return value
    return f"{name}{value}" if group in REGULARIZERS or key in _SHORT else f"{key}={value}"


@dataclass(frozen=True)
class Job:
    """An arm with its seed, and what is to be measured of it beyond what is always measured."""

    arm: Arm
    seed: int
    measures: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """How its folder and its record are called."""
        return f"{self.arm.slug}-seed{self.seed}"

    @cached_property
    def settings(self) -> Settings:
        """All settings of its pretraining."""
        return self.settings_with(())

    def settings_with(self, options: Options) -> Settings:
        """The same with further options. Raises ValueError."""
        known = _settings(self.arm, options)
        return replace(known, run=replace(known.run, seed=self.seed), tree={**known.tree, "seed": self.seed})

    @cached_property
    def wanted(self) -> Mapping[str, object]:
        """What its record has to say of its settings, and of who trained it.

        Raises:
            ValueError: settings that who trains it does not have.
        """
        if self.arm.by == "lightly":
            return recipe_of(self.settings).settings
        return {**flattened(self.settings.tree), "by": self.arm.by}

    @cached_property
    def identity(self) -> frozenset[str]:
        """The settings that its record cannot lack: method, length, and the options over the recipe.

        Of a regularizer's options records leave out those that nobody changed.
        """
        about = {"method", "schedule.epochs", *dict(self.arm.options)}
        return frozenset(about & self.wanted.keys() & told_settings(self.settings).keys() - CHANGEABLE)

    @property
    def command(self) -> str:
        """The command that would train it alone; lightly's run comes with those of the seeds before it."""
        if self.arm.by == "lightly":
            scale, epochs = self.arm.recipe.partition("/")[0], self.settings.schedule.epochs
            start = f"ldreg reproduce anchor --scale {scale} --epochs {epochs} --seeds {self.seed + 1}"
            options = [pair for pair in self.arm.options if pair[0] != "schedule.epochs"]
        else:
            start = f"ldreg pretrain --recipe {self.arm.recipe}"
            options = [*self.arm.options, ("seed", str(self.seed))]
        return " ".join([start, *(f"--{key} {value}" for key, value in options)])


@cache
def _settings(arm: Arm, options: Options) -> Settings:
    """The settings of all runs of an arm, which differ in the seed alone and take long to check."""
    return resolve(load_recipe(arm.recipe), [*arm.options, *options])


def merged(jobs: list[Job]) -> list[Job]:
    """Every run once, with all that is to be measured of it, in the order of their first mention.

    >>> arm = Arm("digits/simclr")
    >>> [sorted(job.measures) for job in merged([Job(arm, 0), Job(arm, 0, frozenset({"tsne"}))])]
    [['tsne']]
    """
    found: dict[tuple[Arm, int], frozenset[str]] = {}
    for job in jobs:
        found[job.arm, job.seed] = found.get((job.arm, job.seed), frozenset()) | job.measures
    return [Job(arm, seed, measures) for (arm, seed), measures in found.items()]
