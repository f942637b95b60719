"""What `ldreg reproduce` is asked for: options, and the studies, runs and folders that follow from them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ldreg.data.config import WITHOUT_PATH, available_cores
from ldreg.reproduce.jobs import DETECTION, TRANSFER, Job, Options, merged
from ldreg.reproduce.lightly_settings import recipe_of
from ldreg.reproduce.studies import SCALES, Scale, ScaleName, Study, chosen, method_of
from ldreg.reproduce.workspace import Workspace, record_paths
from ldreg.train.settings import CHANGEABLE

_GROUPS = ("all", "tables", "figures")
# How detectors are trained on the generated images that stand for COCO, by the scale of the encoders.
_SMALL: Options = (
    ("train_sizes", "[96]"), ("test_size", "96"), ("max_size", "144"), ("anchor_sizes", "[16,32,64]"), ("workers", "0"),
    ("test_regions", "100"),
)  # fmt: skip
_LONGER: Options = (("iterations", "1000"), ("lr", "0.04"), ("regions", "64"))
_ON_GENERATED: Mapping[str, Options] = {
    "digits": (
        *_SMALL,
        ("iterations", "300"),
        ("batch_size", "2"),
        ("lr", "0.08"),
        ("regions", "16"),
        ("precise_iterations", "20"),
    ),
    "cifar10": (*_SMALL, *_LONGER),
    "imagenet": (*_SMALL, *_LONGER),
}
# On COCO itself; the paper fine-tunes with MoCo's configuration, coco_R_50_C4_2x.
_ON_COCO: Mapping[str, Options] = {"imagenet": (("schedule", "2x"),)}
# Options that apply to the studies with one measure alone.
_OF_STUDIES: Mapping[str, tuple[str, str]] = {
    "datasets": (TRANSFER, "table2"), "coco": (DETECTION, "table3"), "detection": (DETECTION, "table3")
}  # fmt: skip


# Settings of runs that have an option of their own here.
_INSTEAD = {"schedule.epochs": "--epochs", "seed": "--seeds", "detection.path": "--coco"}
# The largest numbers that are taken; all runs are listed before any begins.
_LARGEST: Mapping[str, int] = {"epochs": 1_000_000, "seeds": 1000, "jobs": 1000}


@dataclass(frozen=True)
class ReproduceOptions:
    """Options of `ldreg reproduce`; None stands for one that was not given.

    Args:
        scale: digits (a CPU, minutes), cifar10 (one GPU) or imagenet (the paper's own)
        epochs: of every run, by default the scale's; long pretrainings keep their ratio to it
        methods: only the runs of these methods, with commas between them
        seeds: of every run, from 0 on; by default one, and with --show all that have records
        plan: list the runs with estimates of time and memory, and train nothing
        show: make tables and figures of what is there, and train nothing
        write: Markdown of every record that --results has of these studies, with pictures in images/NAME beside it;
            the same bytes for the same records; trains nothing
        out: for runs, records, figures and the report; by default reproduction/SCALE
        results: for the records, one JSON file for each run; by default OUT/results
        jobs: runs at a time; by default one on a GPU, else one for each core
        minutes: after which to stop with exit status 75 if runs are left; the same command continues them
        datasets: paths of the sets of the transfer table
        coco: with train2017, val2017 and annotations, for table3; by default a small generated set

    Raises:
        ValueError: a number out of range.
    """

    scale: ScaleName = "digits"
    epochs: int | None = None
    methods: str | None = None
    seeds: int | None = None
    plan: bool = False
    show: bool = False
    write: Path | None = None
    out: Path | None = None
    results: Path | None = None
    jobs: int | None = None
    minutes: float | None = None
    datasets: str | None = None
    coco: str | None = None

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise ValueError(f"--scale: expected one of {', '.join(SCALES)}, got {self.scale!r}")
        for key, largest in _LARGEST.items():
            value = getattr(self, key)
            if value is not None and not 1 <= value <= largest:
                raise ValueError(f"--{key}: expected a whole number from 1 to {largest}, got {value}")
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise ValueError(f"--minutes: expected a positive number, got {self.minutes}")


@dataclass(frozen=True)
class Reproduction:
    """Studies, their runs, and the folders of both.

    Args:
        what: the studies as the command names them.
        options: of the command.
        studies: in the order of the command.
        workspace: the folders.
        jobs: the runs, each once.
        processes: runs at a time.
        settings: that every run is given, as far as they change it.
        name: of the report.
        command: for the report.
    """

    what: str
    options: ReproduceOptions
    studies: Sequence[Study]
    workspace: Workspace
    jobs: Sequence[Job]
    processes: int
    settings: Options
    name: str
    command: str


def prepare(
    what: str, options: ReproduceOptions, settings: Sequence[tuple[str, str | None]] = (), *, command: str = ""
) -> Reproduction:
    """The runs that are asked for, and their folders.

    Args:
        what: names with commas between them: of studies, or all, tables, figures.
        options: of the command.
        settings: of every run, as of `ldreg pretrain`, and `detection.OPTION` as of `ldreg evaluate detection`; None
            for one without a value.
        command: as it was typed, for the report.

    Raises:
        ValueError: an unknown name or setting, a value out of range, or an option that does not apply.
    """
    what = what.strip().lower()
    names = [name.strip() for name in what.split(",")]
    single = [name for name in names if name not in _GROUPS]
    named = chosen(",".join(single)) if single else []
    whole = "all" in names
    for key, value in settings:
        if key in _INSTEAD:
            raise ValueError(f"--{key}: expected {_INSTEAD[key]} in its place, got {value!r}")
        if key == "detection":
            raise ValueError(f"--detection: expected an option of it, such as --detection.lr, got {value!r}")
    known = tuple((key, "true" if value is None else value) for key, value in settings)
    detection = tuple((key.removeprefix("detection."), value) for key, value in known if key.startswith("detection."))
    run_settings = tuple(pair for pair in known if not pair[0].startswith("detection."))
    given = {key: value for key, value in asdict(options).items() if value not in (None, False)} | dict(known)
    _check_mode(options, given, whole=whole)
    scale = SCALES[options.scale] if options.epochs is None else SCALES[options.scale].with_epochs(options.epochs)
    lasting = tuple(pair for pair in run_settings if pair[0] not in CHANGEABLE)
    studies = [study for study in chosen(what) if not whole or study in named or _is_part_of_all(study, options)]
    for study in named:
        others = [other.name for other in SCALES.values() if study.rows(other)]
        if others and not study.rows(scale):
            raise ValueError(f"{study.name}: expected --scale {' or '.join(others)}, got {scale.name}")
    _check_studies(given, studies, scale)
    workspace = _workspace(options, scale, run_settings, detection)
    if any(DETECTION in study.measures for study in studies):
        workspace.detection_config()  # which checks the options
    _check_varied(studies, scale, lasting)
    return Reproduction(
        what,
        options,
        studies,
        workspace,
        [] if options.write else _jobs(studies, workspace, lasting, options),
        options.jobs or _processes(workspace),
        settings=lasting,
        name="report" if whole else "-".join(study.name for study in studies),
        command=command,
    )


def _check_mode(options: ReproduceOptions, given: Mapping[str, object], *, whole: bool) -> None:
    """Reject options that have no effect in this mode; a plan takes those of the command without --plan.

    Raises:
        ValueError: which.
    """
    if options.plan and options.show:
        raise ValueError("--show: expected to be given without --plan, which shows no tables, got both")
    of_training = [key for key in given if _is_of_training(key, whole=whole)]
    if options.write is not None:
        for key, value in (("plan", options.plan), ("show", options.show)):
            if value:
                raise ValueError(f"--write: expected to be given without --{key}, got both")
        if options.out and options.results:
            raise ValueError(
                "--out: expected to be given without --results, which --write reads in its place, got both"
            )
        found = [key for key in given if key in (*of_training, "seeds", "methods")]
        if found:
            values = ", ".join(repr(str(given[key])) for key in found)
            raise ValueError(f"{_flags(found)}: expected to be left out, as --write takes all records, got {values}")
    unused = of_training if options.show else ["minutes"] if options.plan else []
    found = [key for key in unused if key in given]
    if found:
        mode = "--show" if options.show else "--plan"
        raise ValueError(f"{_flags(found)}: expected to be given without {mode}, which trains nothing, got both")


def _is_of_training(key: str, *, whole: bool) -> bool:
    """Whether an option says how runs are made; with `all`, --coco also adds the study of detection."""
    training = {"jobs", "minutes", "datasets", *CHANGEABLE}
    return key in training or key.startswith("detection.") or (key == "coco" and not whole)


def _flags(keys: Iterable[str]) -> str:
    return ", ".join(f"--{key}" for key in keys)


def _is_part_of_all(study: Study, options: ReproduceOptions) -> bool:
    if study.name == "table3":
        return options.coco is not None
    return not study.only_named or options.write is not None


def _check_studies(given: Mapping[str, object], studies: Sequence[Study], scale: Scale) -> None:
    """Reject options that apply to none of the studies. Raises ValueError."""
    names = ", ".join(study.name for study in studies)
    for key, value in given.items():
        measure, applies = _OF_STUDIES.get(key.partition(".")[0], ("", ""))
        if measure and not any(measure in study.measures for study in studies):
            raise ValueError(f"--{key}: applies only to {applies}, got {value!r} with {names}")
    if not any(study.rows(scale) for study in studies):
        for key, value in given.items():
            if key not in ("scale", "out", "write", "plan", "show"):
                raise ValueError(f"--{key}: expected to be left out, as nothing is trained for {names}, got {value!r}")


def _check_varied(studies: Sequence[Study], scale: Scale, settings: Options) -> None:
    """Reject settings for every run that a study itself varies. Raises ValueError."""
    for study in studies:
        varied = {"method", "regularizer"} | {key for row in study.rows(scale) for key, _ in row.arm.options}
        for key, value in settings:
            if key in varied - {"schedule.epochs"}:
                raise ValueError(f"--{key}: expected to be left out, as {study.name} has its own values, got {value!r}")


def _workspace(options: ReproduceOptions, scale: Scale, settings: Options, detection: Options) -> Workspace:
    out = options.out or Path(f"reproduction/{scale.name}")
    usual = _ON_COCO.get(scale.name, ()) if options.coco else _ON_GENERATED[scale.name]
    return Workspace(
        scale=scale,
        out=out,
        results=options.results or out / "results",
        options=tuple(pair for pair in settings if pair[0] in CHANGEABLE),
        datasets=_datasets(options.datasets, scale, dict(settings).get("data.name", scale.name)),
        coco=options.coco or str(out / "generated"),
        generated=not options.coco,
        detection=(*usual, *detection),
    )


def _datasets(given: str | None, scale: Scale, trained_on: str) -> dict[str, str]:
    """Paths by name, of sets that need a path; that of the pretraining has an option of its own.

    >>> _datasets("dtd=/data/dtd", SCALES["imagenet"], "imagenet")
    {'dtd': '/data/dtd'}
    """
    found: dict[str, str] = {}
    known = [name for name in scale.datasets if name != trained_on and name not in WITHOUT_PATH]
    for entry in given.split(",") if given else ():
        name, equals, path = entry.partition("=")
        if not known:
            raise ValueError(
                f"--datasets: expected to be left out, as no other set of {scale.name} needs a path, got {entry!r}"
            )
        if not equals or not path or name not in known or name in found:
            expected = f"NAME=PATH with a name among {', '.join(known)}, each once"
            raise ValueError(f"--datasets: expected {expected}, got {entry!r}")
        found[name] = path
    return found


def _processes(workspace: Workspace) -> int:
    from ldreg.evaluate.extract import torch_device

    return 1 if torch_device(workspace.device).type == "cuda" else available_cores()


def _jobs(studies: Sequence[Study], workspace: Workspace, settings: Options, options: ReproduceOptions) -> list[Job]:
    """The runs of all studies, each once, with settings that have been checked. Raises ValueError."""
    seeds: Sequence[int] = range(options.seeds or 1)
    if options.show and options.seeds is None:
        seeds = sorted({0}.union(*record_paths(workspace.results).values()))
    listed = [
        Job(row.arm.over(settings), seed, study.measures)
        for study in studies
        for row in study.rows(workspace.scale)
        for seed in seeds
    ]
    jobs = _of_methods(merged(listed), options.methods)
    for job in jobs:
        _ = job.expected  # which checks the settings
    # Settings of the machine are the same for all and take long to check.
    unlike = {(job.arm.by, job.settings.data.name, job.settings.run.batch_size): job for job in reversed(jobs)}
    for job in unlike.values():
        known = workspace.settings(job)
        if job.arm.by == "lightly":
            try:
                recipe_of(known)
            except ValueError as error:
                raise ValueError(f"{job.name}: {error}") from error
    return jobs


def _of_methods(jobs: Sequence[Job], methods: str | None) -> list[Job]:
    """The runs of the methods that were named, or all. Raises ValueError for an unknown name."""
    if methods is None:
        return list(jobs)
    names = [name.strip().lower() for name in methods.split(",")]
    known = list(dict.fromkeys(method_of(job.arm) for job in jobs))
    for name in names:
        if name not in known:
            raise ValueError(f"--methods: expected names among {', '.join(known)}, got {name!r}")
    return [job for job in jobs if method_of(job.arm) in names]
