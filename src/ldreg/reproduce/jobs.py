"""Runs of the studies (jobs), the folders where they and their records are, and which of them are done."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from ldreg.options import built, fields_of, typed
from ldreg.record import Record
from ldreg.reproduce.studies import DETECTION, LIGHTLY, TRANSFER, TSNE, Arm, Options, Records, Scale, recipe_settings
from ldreg.text import printable
from ldreg.train.folder import RunFolder
from ldreg.train.recipes import flattened, load_recipe, read_yaml
from ldreg.train.settings import CHANGEABLE, Settings, defaults, record_settings, resolve

# The images that stand for COCO where none are given.
GENERATED: Mapping[str, int] = {"train": 240, "val": 40, "size": 96, "seed": 0}

State = Literal["done", "to measure", "to continue", "missing"]

# Settings of lightly's runs that files of earlier versions lack.
ADDED_LATER = frozenset({"encoder.init", "encoder.zero_init", "optimizer.decay_all"})


def lightly_settings(settings: Settings, recipe: str = "cifar10/simclr_lightly") -> dict[str, Any]:
    """The settings of a run by lightly; ValueError for one that lightly's run would not follow."""
    if settings.trainer.precision == "fp16":
        raise ValueError("trainer.precision: expected fp32 or bf16, as lightly's recipe is run, got 'fp16'")
    asked, own = flattened(settings.tree), flattened(recipe_settings(recipe).tree)
    for key in sorted(LIGHTLY["fixed"]):
        if asked[key] != own[key]:
            raise ValueError(f"{key}: expected {own[key]!r}, as lightly's recipe has it, got {asked[key]!r}")
    return {"by": "lightly", **{key: asked[key] for key in (*LIGHTLY["fixed"], *LIGHTLY["open"])}}


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
    def expected(self) -> Mapping[str, Any]:
        """The settings of its record, and what trained it; ValueError if lightly's recipe lacks these settings."""
        if self.arm.by == "lightly":
            return lightly_settings(self.settings)
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
    given = [*arm.options, *options]
    return resolve(load_recipe(arm.recipe), given) if given else recipe_settings(arm.recipe)


def merged(jobs: Iterable[Job]) -> list[Job]:
    """Every run once, with everything to measure of it, in the order of first mention.

    >>> arm = Arm("digits/simclr")
    >>> [sorted(job.measures) for job in merged([Job(arm, 0), Job(arm, 0, frozenset({"tsne"}))])]
    [['tsne']]
    """
    found: dict[tuple[Arm, int], frozenset[str]] = {}
    for job in jobs:
        found[job.arm, job.seed] = found.get((job.arm, job.seed), frozenset()) | job.measures
    return [Job(arm, seed, measures) for (arm, seed), measures in found.items()]


@dataclass(frozen=True)
class Workspace:
    """Folders of runs and records, and the settings of runs that depend on the machine."""

    scale: Scale
    out: Path  # folder of everything that is written
    results: Path  # folder of the records, one JSON file for each run
    options: Options = ()  # settings that do not change what a run is, such as data.path and trainer.device
    datasets: Mapping[str, str] = field(default_factory=dict)  # paths by name, for the table of transfer
    coco: str = ""  # folder in COCO's layout
    generated: bool = False  # whether that is a small set that is generated when it is needed
    detection: Options = ()  # of `ldreg evaluate detection`
    at_once: int = 1  # how many runs share the machine

    @property
    def device(self) -> str:
        """auto, cpu or cuda."""
        return dict(self.options).get("trainer.device", "auto")

    @property
    def log(self) -> Path:
        """The file for the messages of runs under way."""
        return self.out / "workers.log"

    @property
    def cache(self) -> Path:
        """The folder of cached representations."""
        return self.out / "cache"

    @property
    def detection_images(self) -> str:
        """The folder of the images that detectors are trained on."""
        return f"{self.coco}/train2017"

    def run_options(self, job: Job) -> Options:
        """Settings of a run that its record does not depend on.

        An encoder for detection that is trained on a folder takes the images of detection, unless others are given.
        """
        if DETECTION not in job.measures or job.settings.data.name != "folder":
            return self.options
        return (("data.path", self.detection_images), *self.options)

    def settings(self, job: Job) -> Settings:
        """All settings that a run is trained with. Raises ValueError."""
        options = self.run_options(job)
        return job.settings_with(options) if options else job.settings

    def detection_config(self) -> Any:
        """The configuration of detectors, as for `ldreg evaluate detection`. Raises ValueError."""
        from ldreg.evaluate.detection import DetectionConfig

        given = {"path": self.coco, "device": self.device, **dict(self.detection)}
        options: list[tuple[str, str | None]] = [(f"detection.{key}", value) for key, value in given.items()]
        try:
            values = typed(fields_of(DetectionConfig, "detection"), options)
            known = {key.removeprefix("detection."): value for key, value in values.items()}
            return built(DetectionConfig, known, "--detection.")
        except ValueError as error:
            said = str(error)
            for key, flag in (("path", "--coco"), ("device", "--trainer.device")):
                if key not in dict(self.detection):
                    said = said.replace(f"--detection.{key}:", f"{flag}:")
            raise ValueError(said) from error

    def folder(self, job: Job) -> RunFolder:
        """The folder of the run."""
        return RunFolder(self.out / "runs" / job.name)

    def record_path(self, job: Job) -> Path:
        """The file of the run's record."""
        return self.results / f"{job.name}.json"

    def state(self, job: Job) -> State:
        """How far a run has come. Raises ValueError if its files were made with other settings."""
        folder, path = self.folder(job), self.record_path(job)
        # A path that is no file, such as a folder, is an error here: no record could be written there.
        if path.exists() and not missing_measures(read_record(path, job), job, self.scale):
            return "done"
        if job.arm.by == "lightly":  # its checkpoint is checked when it is read
            return "to continue" if (folder.path / "last.ckpt").is_file() else "missing"
        if folder.config.is_file():
            check_settings(folder.config, flattened(read_yaml(folder.config)), job)
            return "to measure" if folder.card.is_file() else "to continue"
        return "missing"


def missing_measures(record: Record, job: Job, scale: Scale) -> frozenset[str]:
    """What a job asks for and its record does not have; nothing for a run that failed."""
    if record.origin.get("failed"):
        return frozenset()
    found = {
        TRANSFER: all(f"transfer/{name}" in record.results for name in scale.datasets),
        TSNE: bool(record.tsne),
        DETECTION: "box_ap" in record.results,
    }
    return frozenset(name for name in job.measures if not found[name])


def read_record(path: Path, job: Job) -> Record:
    """The record of a run. Raises ValueError if it is no record, or of another run or other settings."""
    record = Record.from_json(path)
    seeds = {record.origin.get("seed"), record.settings.get("seed", job.seed)}
    if record.name != path.stem or seeds != {job.seed}:
        other = next(iter(seeds - {job.seed}), job.seed)
        found = f"{printable(record.name)} of seed {printable(str(other))}"
        raise ValueError(f"{path}: expected the record of {path.stem}, got that of {found}")
    check_settings(path, {"seed": job.seed, **record.settings}, job)
    return record


def check_settings(path: Path, settings: Mapping[str, object], job: Job) -> None:
    """Check that a file was made with the job's settings, as far as they change a run. Raises ValueError.

    Settings missing from files of earlier versions have their defaults, except those that the job is about.
    """
    expected = job.expected
    for key in sorted(job.required - settings.keys()):
        raise ValueError(f"{path}: expected {key} = {expected[key]!r} among its settings, got none")
    always = ADDED_LATER if job.arm.by == "lightly" else frozenset()
    found = {"by": "ldreg", **defaults(job.settings, expected.keys() - always), **settings}
    for key in sorted(expected.keys() & found.keys() - CHANGEABLE):
        if found[key] != expected[key]:
            raise ValueError(
                f"{path}: expected {key} = {expected[key]!r}, as the recipe {job.arm.recipe} now says, "
                f"got {found[key]!r}; move it away to run it again"
            )


def record_paths(results: Path) -> dict[str, dict[int, Path]]:
    """The files in a folder that are named as records are: by the name of the arm, then by seed."""
    found: dict[str, dict[int, Path]] = {}
    for path in sorted(results.glob("*.json")):
        if named := re.fullmatch(r"(.+)-seed(\d+)", path.stem):
            found.setdefault(named[1], {})[int(named[2])] = path
    return found


def read_records(arms: Iterable[Arm], paths: Mapping[str, Mapping[int, Path]], settings: Options) -> Records:
    """The records of these arms, in the order of their seeds, from files of `record_paths`.

    `settings` were given for every run. Errors are those of `read_record`.
    """
    found = {}
    for arm in arms:
        run = arm.over(settings)
        files = sorted(paths.get(run.slug, {}).items())
        if files:
            found[arm] = [read_record(path, Job(run, seed)) for seed, path in files]
    return found
