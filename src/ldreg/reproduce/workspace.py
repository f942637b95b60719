"""The folders of a reproduction: where runs and records are, what is done, and which records belong to which arm."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ldreg.options import built, fields_of, typed
from ldreg.record import Record
from ldreg.reproduce.jobs import DETECTION, TRANSFER, TSNE, Arm, Job, Options
from ldreg.reproduce.lightly_settings import CHECKPOINT, UNTOLD
from ldreg.reproduce.statistics import Records
from ldreg.reproduce.studies import Scale
from ldreg.text import printable
from ldreg.train.folder import RunFolder
from ldreg.train.recipes import flattened, read_yaml
from ldreg.train.settings import CHANGEABLE, Settings, defaults

# The images that stand for COCO where none are given.
GENERATED: Mapping[str, int] = {"train": 240, "val": 40, "size": 96, "seed": 0}

State = Literal["done", "to measure", "to continue", "missing"]


@dataclass(frozen=True)
class Workspace:
    """Folders of runs and records, and the settings of runs that depend on the machine.

    Args:
        scale: of the studies.
        out: folder of everything that is written.
        results: folder of the records, one JSON file for each run.
        options: settings that do not change what a run is, such as data.path and trainer.device.
        datasets: paths by name, for the table of transfer.
        coco: folder in COCO's layout.
        generated: whether that is a small set that is generated when it is needed.
        detection: options of `ldreg evaluate detection`.
        at_once: how many runs share the machine.
    """

    scale: Scale
    out: Path
    results: Path
    options: Options = ()
    datasets: Mapping[str, str] = field(default_factory=dict)
    coco: str = ""
    generated: bool = False
    detection: Options = ()
    at_once: int = 1

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
        return job.settings_with(self.run_options(job))

    def detection_config(self) -> Any:
        """The configuration of detectors, as for `ldreg evaluate detection`.

        Raises:
            ValueError: an unknown option or a wrong value.
        """
        from ldreg.evaluate.detection import DetectionConfig

        given = {"path": self.coco, "device": self.device, **dict(self.detection)}
        try:
            return built(DetectionConfig, typed(fields_of(DetectionConfig), list(given.items())))
        except ValueError as error:
            if str(error).startswith("unknown option --"):
                raise ValueError(str(error).replace("--", "--detection.")) from error
            option, _, rest = str(error).partition(": ")
            words = {"path": "--coco", "device": "--trainer.device"}  # as the user gave them
            words |= {key: f"--detection.{key}" for key, _ in self.detection}
            key = option.removeprefix("--")
            raise ValueError(f"{words[key]}: {rest}" if key in words else str(error)) from error

    def folder(self, job: Job) -> RunFolder:
        """The folder of the run."""
        return RunFolder(self.out / "runs" / job.name)

    def record_path(self, job: Job) -> Path:
        """The file of the run's record."""
        return self.results / f"{job.name}.json"

    def state(self, job: Job) -> State:
        """How far a run has come.

        Raises:
            ValueError: its files were made with other settings.
        """
        folder, path = self.folder(job), self.record_path(job)
        # A path that is no file, such as a folder, is an error here: no record could be written there.
        if path.exists() and not missing_measures(read_record(path, job), job, self.scale):
            return "done"
        if job.arm.by == "lightly":  # its checkpoint is checked when it is read
            return "to continue" if (folder.path / CHECKPOINT).is_file() else "missing"
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
    """The record of a run.

    Raises:
        ValueError: it is no record, or of another run or other settings.
        OSError: it cannot be read.
    """
    record = Record.from_json(path)
    _check_name(path, record, seed=job.seed)
    check_settings(path, record.settings, job)
    return record


def _check_name(path: Path, record: Record, *, seed: int) -> None:
    """Check that a record is of the run that its file is named after. Raises ValueError."""
    seeds = {record.origin.get("seed"), record.settings.get("seed", seed)}
    if record.name != path.stem or seeds != {seed}:
        other = next(iter(seeds - {seed}), seed)
        found = f"{printable(record.name)} of seed {printable(str(other))}"
        raise ValueError(f"{path}: expected the record of {path.stem}, got that of {found}")


def check_settings(path: Path, settings: Mapping[str, object], job: Job) -> None:
    """Check that a file was made with the job's settings, as far as they change a run.

    Settings missing from files of earlier versions have their defaults, except those that the job is about.

    Raises:
        ValueError: the first setting that is missing or differs, with both values.
    """
    expected = job.expected
    for key in sorted(job.required - settings.keys()):
        raise ValueError(f"{path}: expected {key} = {expected[key]!r} among its settings, got none")
    always = UNTOLD if job.arm.by == "lightly" else frozenset()
    found = {"by": "ldreg", **defaults(job.settings, expected.keys() - always), **settings}
    for key in sorted(expected.keys() & found.keys() - CHANGEABLE):
        if found[key] != expected[key]:
            raise ValueError(
                f"{path}: expected {key} = {expected[key]!r}, as the recipe {job.arm.recipe} now says, "
                f"got {found[key]!r}; move it away to run it again"
            )


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Make the folder and keep other processes out of it.

    Raises:
        ValueError: another process works in it.
        OSError: it cannot be made or written.
    """
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("a") as lock:
        if os.name == "posix":
            import fcntl

            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"{out}: expected a folder that no other process works in, got one in use") from None
        yield


def record_paths(results: Path) -> dict[str, dict[int, Path]]:
    """The files in a folder that are named as records are: by the name of the arm, then by seed."""
    found: dict[str, dict[int, Path]] = {}
    for path in sorted(results.glob("*.json")):
        named = re.fullmatch(r"(.+)-seed(\d+)", path.stem)
        if named is not None:
            found.setdefault(named[1], {})[int(named[2])] = path
    return found


def read_records(arms: Iterable[Arm], paths: Mapping[str, Mapping[int, Path]], settings: Options) -> Records:
    """The records of these arms, in the order of their seeds.

    Args:
        arms: as the studies have them.
        paths: of `record_paths`.
        settings: that every run was given.

    Raises:
        ValueError: a file that is no record, or of another run or other settings.
        OSError: a file cannot be read.
    """
    found: dict[Arm, list[Record]] = {}
    for arm in arms:
        run = arm.over(settings)
        seeds = sorted(paths.get(run.slug, {}).items())
        for seed, path in seeds:
            job = Job(run, seeds[0][0])  # settings of an arm differ in the seed alone and are resolved once
            record = Record.from_json(path)
            _check_name(path, record, seed=seed)
            check_settings(path, {**record.settings, "seed": job.seed}, job)
            found.setdefault(arm, []).append(record)
    return found
