"""What the studies train: recipes with options (arms), and arms with a seed (jobs)."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Literal

from ldreg.reproduce.lightly_settings import recipe_of
from ldreg.train.recipes import flattened, load_recipe
from ldreg.train.settings import CHANGEABLE, REGULARIZERS, Settings, record_settings, resolve

Options = tuple[tuple[str, str], ...]
Trainer = Literal["ldreg", "lightly"]

_SHORT = ("schedule.epochs", "views.jitter", "batch_size", "encoder.name", "data.name", "data.validation")

# What can be measured of a finished run beyond dimensions and accuracies.
TRANSFER, TSNE, DETECTION = "transfer", "tsne", "detection"
AP = ("box_ap", "box_ap50", "box_ap75", "mask_ap", "mask_ap50", "mask_ap75")  # results of detection


@dataclass(frozen=True)
class Arm:
    """A recipe with options over it: one side of a comparison, run with one or several seeds.

    Args:
        recipe: its name.
        options: over it, sorted by key.
        by: what trains it; lightly has one recipe, and `recipe` is ldreg's version of it.

    >>> Arm("digits/simclr_ldreg", (("ldreg.beta", "0.2"),)).slug
    'simclr_ldreg-beta0.2'
    >>> Arm("cifar10/simclr_lightly", (("schedule.epochs", "30"),), by="lightly").slug
    'simclr_by_lightly-epochs30'
    """

    recipe: str
    options: Options = ()
    by: Trainer = "ldreg"

    def but(self, **options: object) -> "Arm":
        """The arm with further options; two underscores stand for a dot.

        >>> Arm("digits/simclr").but(views__jitter=0.25).options
        (('views.jitter', '0.25'),)
        """
        more = {key.replace("__", "."): str(value) for key, value in options.items()}
        return replace(self, options=tuple(sorted({**dict(self.options), **more}.items())))

    def over(self, settings: Options) -> "Arm":
        """The arm over settings that are given for every run; its own options stay.

        >>> Arm("digits/simclr").but(views__jitter=0).over((("views.jitter", "1"), ("batch_size", "64"))).options
        (('batch_size', '64'), ('views.jitter', '0'))
        """
        return replace(self, options=tuple(sorted({**dict(settings), **dict(self.options)}.items())))

    @property
    def slug(self) -> str:
        """A readable name for files that differs between the arms of a scale."""
        named = sorted(self.options, key=lambda pair: pair[0] != "regularizer")  # the regularizer before its options
        parts = [_part(key, value) for key, value in named]
        recipe = self.recipe.rpartition("/")[2]
        who = recipe if self.by == "ldreg" else f"{recipe.removesuffix(f'_{self.by}')}_by_{self.by}"
        name = "-".join([who, *parts])
        safe = re.sub(r"[^A-Za-z0-9_.=-]", "_", name)
        if safe == name and len(name) <= 120:
            return name
        return f"{safe[:100]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _part(key: str, value: str) -> str:
    """A setting in a name: short for settings that the studies vary, else with its whole key.

    >>> _part("ldreg.k", "8"), _part("monitor.k", "8"), _part("regularizer", "minlid")
    ('k8', 'monitor.k=8', 'minlid')
    """
    group, _, name = key.rpartition(".")
    if key == "regularizer":
        return value
    return f"{name}{value}" if group in REGULARIZERS or key in _SHORT else f"{key}={value}"


@dataclass(frozen=True)
class Job:
    """An arm with a seed, and what to measure of it beyond the results of every run."""

    arm: Arm
    seed: int
    measures: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The name of its folder and of its record."""
        return f"{self.arm.slug}-seed{self.seed}"

    @cached_property
    def settings(self) -> Settings:
        """All settings of its pretraining."""
        return self.settings_with(())

    def settings_with(self, options: Options) -> Settings:
        """The settings with further options. Raises ValueError."""
        known = _settings(self.arm, options)
        return replace(known, run=replace(known.run, seed=self.seed), tree={**known.tree, "seed": self.seed})

    @cached_property
    def expected(self) -> Mapping[str, object]:
        """The settings that its record has, and what trained it.

        Raises:
            ValueError: lightly trains it, whose recipe does not have these settings.
        """
        if self.arm.by == "lightly":
            return recipe_of(self.settings).settings
        return {**flattened(self.settings.tree), "by": self.arm.by}

    @cached_property
    def required(self) -> frozenset[str]:
        """The settings that its record must have: method, epochs, and the options over the recipe.

        Records leave out a regularizer's options that have their defaults.
        """
        about = {"method", "schedule.epochs", *dict(self.arm.options)}
        return frozenset(about & self.expected.keys() & record_settings(self.settings).keys() - CHANGEABLE)

    @property
    def command(self) -> str:
        """The command that trains it; lightly's runs come with those of the seeds before."""
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
    """The settings of an arm's runs, which differ in the seed and take long to check."""
    return resolve(load_recipe(arm.recipe), [*arm.options, *options])


def merged(jobs: list[Job]) -> list[Job]:
    """Every run once, with everything to measure of it, in the order of first mention.

    >>> arm = Arm("digits/simclr")
    >>> [sorted(job.measures) for job in merged([Job(arm, 0), Job(arm, 0, frozenset({"tsne"}))])]
    [['tsne']]
    """
    found: dict[tuple[Arm, int], frozenset[str]] = {}
    for job in jobs:
        found[job.arm, job.seed] = found.get((job.arm, job.seed), frozenset()) | job.measures
    return [Job(arm, seed, measures) for (arm, seed), measures in found.items()]
