"""Where a reproduction lies on the disk, and what its runs are given beside their recipes."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ldreg.record import Record
from ldreg.reproduce.jobs import DETECTION, TRANSFER, TSNE, Job, Options
from ldreg.reproduce.lightly_settings import CHECKPOINT, UNTOLD
from ldreg.reproduce.scales import Scale
from ldreg.text import printable
from ldreg.train.folder import RunFolder
from ldreg.train.recipes import flattened, read_yaml
from ldreg.train.settings import CHANGEABLE, Settings, usual

# The set that stands for COCO where none is given.
GENERATED: Mapping[str, int] = {"train": 240, "val": 40, "size": 96, "seed": 0}

State = Literal["done", "to measure", "to continue", "missing"]


@dataclass(frozen=True)
class Workplace:
    """Folders of runs and records, and the machine-dependent settings of runs.

    Args:
        scale: of the studies
        out: folder of everything that is made
        results: folder of the records, one JSON file for each run
        options: settings that do not change what a run is, such as data.path and trainer.device
        datasets: paths by name of the transfer table's sets
        coco: folder in COCO's layout
        generated: whether that is a small set that is made when it is needed
        detection: options of `ldreg evaluate detection`
        at_once: how many runs share the machine
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
        """What the runs say while they are under way."""
        return self.out / "workers.log"

    @property
    def cache(self) -> Path:
        """Where representations are kept."""
        return self.out / "cache"

    @property
    def detected(self) -> str:
        """Where the images are that detectors are trained on."""
        return f"{self.coco}/train2017"

    def run_options(self, job: Job) -> Options:
        """Settings of a run that its record does not depend on.

        An encoder of plain images that is to detect is trained on those to be detected in, unless others are given.
        """
        if DETECTION not in job.measures or job.settings.data.name != "folder":
            return self.options
        return (("data.path", self.detected), *self.options)

    def settings(self, job: Job) -> Settings:
        """All settings that a run is trained with. Raises ValueError."""
        return job.settings_with(self.run_options(job))

    def detection_config(self) -> Any:
        """How detectors are trained, as `ldreg evaluate detection` takes it.

        Raises:
            ValueError: an option that it does not have, or a wrong value.
        """
        from ldreg.evaluate.options import request

        given = {"path": self.coco, "device": self.device, **dict(self.detection)}
        try:
            return request("detection", "", list(given.items())).config
        except ValueError as error:
            told, _, rest = str(error).partition(": ")
            words = {"path": "--coco", "device": "--trainer.device"}  # as they were given
            words |= {key: f"--detection.{key}" for key, _ in self.detection}
            key = told.removeprefix("--")
            raise ValueError(f"{words[key]}: {rest}" if key in words else str(error)) from error

    def folder(self, job: Job) -> RunFolder:
        """Where the run is trained."""
        return RunFolder(self.out / "runs" / job.name)

    def record(self, job: Job) -> Path:
        """Where what was measured of it is kept."""
        return self.results / f"{job.name}.json"

    def state(self, job: Job) -> State:
        """How far a run has come.

        Raises:
            ValueError: what is there was made with other settings.
        """
        folder, path = self.folder(job), self.record(job)
        if path.exists():  # as what else than a file, it could not be replaced by a record either
            record = read_record(path, job)
            if not missing_measures(record, job, self.scale):
                return "done"
        if job.arm.by == "lightly":  # whose checkpoint is checked when it is read
            return "to continue" if (folder.path / CHECKPOINT).is_file() else "missing"
        if folder.config.is_file():
            check_same(folder.config, flattened(read_yaml(folder.config)), job)
            return "to measure" if folder.card.is_file() else "to continue"
        return "missing"


def missing_measures(record: Record, job: Job, scale: Scale) -> frozenset[str]:
    """What a job asks for that its record does not have; of a run that failed nothing is missing."""
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
        ValueError: it is no record, that of another run, or of one with other settings.
        OSError: it cannot be read.
    """
    record = Record.from_json(path)
    check_named(path, record, seed=job.seed)
    check_same(path, record.settings, job)
    return record


def check_named(path: Path, record: Record, *, seed: int) -> None:
    """Refuse the record of another run than its file is named after.

    Raises:
        ValueError: of which it is.
    """
    seeds = {record.origin.get("seed"), record.settings.get("seed", seed)}
    if record.name != path.stem or seeds != {seed}:
        other = next(iter(seeds - {seed}), seed)
        told = f"{printable(record.name)} of seed {printable(str(other))}"
        raise ValueError(f"{path}: expected the record of {path.stem}, got that of {told}")


def check_same(path: Path, settings: Mapping[str, object], job: Job) -> None:
    """Refuse what was made with settings that differ from the job's in anything that changes a run.

    Files of an earlier version may lack settings, which then have their defaults, but not those that the job is about.

    Raises:
        ValueError: the first setting that is missing, or that differs, with both values.
    """
    asked = job.wanted
    for key in sorted(job.identity - settings.keys()):
        raise ValueError(f"{path}: expected {key} = {asked[key]!r} among its settings, got none")
    always = UNTOLD if job.arm.by == "lightly" else frozenset()
    made = {"by": "ldreg", **usual(job.settings, asked.keys() - always), **settings}
    for key in sorted(asked.keys() & made.keys() - CHANGEABLE):
        if made[key] != asked[key]:
            raise ValueError(
                f"{path}: expected {key} = {asked[key]!r}, as the recipe {job.arm.recipe} now says, "
                f"got {made[key]!r}; move it away to have it made anew"
            )


@contextmanager
def occupied(out: Path) -> Iterator[None]:
    """Keep the folder to this process.

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


def paths_of(results: Path) -> dict[str, dict[int, Path]]:
    """Files of a folder that are named as records are: by the name of the arm, then by seed."""
    found: dict[str, dict[int, Path]] = {}
    for path in sorted(results.glob("*.json")):
        named = re.fullmatch(r"(.+)-seed(\d+)", path.stem)
        if named is not None:
            found.setdefault(named[1], {})[int(named[2])] = path
    return found
