"""`ldreg reproduce` as a function: plan the runs of studies, train what is missing, show or write what came of them."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from ldreg.data.config import WITHOUT_PATH, available_cores
from ldreg.extras import require
from ldreg.io.files import exclusive
from ldreg.options import CommandLine, Settings
from ldreg.report.tables import table_text
from ldreg.reproduce.jobs import Job, Workspace, lightly_settings, merged, read_record, record_paths
from ldreg.reproduce.studies import (
    DETECTION,
    SCALES,
    STUDIES,
    TRANSFER,
    Options,
    Records,
    Scale,
    ScaleName,
    Study,
    chosen,
    method_of,
)
from ldreg.terminal import columns, print_text, show
from ldreg.text import counted, filled
from ldreg.train.settings import CHANGEABLE

_WIDEST = 240  # columns of a terminal; these tables have more columns than those of other commands
_GROUPS = ("all", "tables", "figures")
# Options that apply to the studies with one measure alone.
_OF_STUDIES: Mapping[str, tuple[str, str]] = {
    "datasets": (TRANSFER, "table2"), "coco": (DETECTION, "table3"), "detection": (DETECTION, "table3")
}  # fmt: skip
# Settings of runs that have an option of their own here.
_INSTEAD = {"schedule.epochs": "--epochs", "seed": "--seeds", "detection.path": "--coco"}
# The largest numbers that are taken; all runs are listed before any begins.
_LARGEST: Mapping[str, int] = {"epochs": 1_000_000, "seeds": 1000, "jobs": 1000}


class TimeOverError(KeyboardInterrupt):
    """The minutes that were given are over; the command ends as one that was interrupted."""

    status = 75  # EX_TEMPFAIL: the same may go well another time


@dataclass(frozen=True)
class ReproduceOptions:
    """Options of `ldreg reproduce`; None stands for one that was not given.

    Args:
        scale: digits (a CPU, minutes), cifar10 (one GPU) or imagenet (the paper's own)
        epochs: epochs of every run, by default the scale's; long pretrainings keep their ratio to it
        methods: only the runs of these methods, with commas between them
        seeds: number of seeds of every run, from 0 on; by default one, and with --show all that have records
        plan: list the runs with estimates of time and memory, and train nothing
        show: make tables and figures of what is there, and train nothing
        write: Markdown of every record that --results has of these studies, with pictures in images/NAME beside it;
            the same bytes for the same records; trains nothing
        out: folder of runs, records, figures and the report; by default reproduction/SCALE
        results: folder of the records, one JSON file for each run; by default OUT/results
        jobs: runs at a time; by default one on a GPU, else one for each core
        minutes: after which to stop with exit status 75 if runs are left; the same command continues them
        datasets: paths of the sets of the transfer table
        coco: folder with train2017, val2017 and annotations, for table3; by default a small generated set

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
        for key, largest in _LARGEST.items():
            value = getattr(self, key)
            if value is not None and not 1 <= value <= largest:
                raise ValueError(f"--{key}: expected a whole number from 1 to {largest}, got {value}")
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise ValueError(f"--minutes: expected a positive number, got {self.minutes}")


@dataclass(frozen=True)
class Reproduction:
    """Studies, their runs, and the folders of both."""

    options: ReproduceOptions
    studies: Sequence[Study]
    workspace: Workspace
    jobs: Sequence[Job]  # each once
    settings: Options  # given for every run, as far as they change it
    name: str  # of the report

    @property
    def processes(self) -> int:
        """Runs at a time."""
        from ldreg.evaluate.extract import torch_device

        default = 1 if torch_device(self.workspace.device).type == "cuda" else available_cores()
        return self.options.jobs or default

    @property
    def records(self) -> Records:
        """The records there are, by those arms of the studies' rows that have runs. Raises ValueError, OSError."""
        found = {}
        for arm in dict.fromkeys(row.arm for study in self.studies for row in study.rows(self.workspace.scale)):
            jobs = [job for job in self.jobs if job.arm == arm.over(self.settings)]
            paths = [(self.workspace.record_path(job), job) for job in jobs]
            if jobs:
                found[arm] = [read_record(path, job) for path, job in paths if path.exists()]
        return found


def prepare(what: str, options: ReproduceOptions, settings: Sequence[tuple[str, str | None]] = ()) -> Reproduction:
    """The runs that are asked for, and their folders; arguments as of `reproduce`.

    Raises:
        ValueError: an unknown name or setting, a value out of range, or an option that does not apply.
    """
    names = [name.strip() for name in what.lower().split(",")]
    single = [name for name in names if name not in _GROUPS]
    named, whole = chosen(",".join(single)) if single else [], "all" in names
    for key, value in settings:
        if key in _INSTEAD:
            raise ValueError(f"--{key}: expected {_INSTEAD[key]} in its place, got {value!r}")
        if key == "detection":
            raise ValueError(f"--detection: expected an option of it, such as --detection.lr, got {value!r}")
    known = {key: "true" if value is None else value for key, value in settings}
    detection = {key.removeprefix("detection."): value for key, value in known.items() if key.startswith("detection.")}
    of_runs = [pair for pair in known.items() if not pair[0].startswith("detection.")]
    lasting = tuple(pair for pair in of_runs if pair[0] not in CHANGEABLE)
    given = {key: value for key, value in asdict(options).items() if value not in (None, False)} | known
    _check_mode(given, whole=whole)
    scale = SCALES[options.scale] if options.epochs is None else SCALES[options.scale].with_epochs(options.epochs)
    left_out = {"table3"} if options.coco is None else set()
    left_out |= {study.name for study in STUDIES.values() if study.only_named and options.write is None}
    studies = [study for study in chosen(what) if not whole or study in named or study.name not in left_out]
    for study in named:
        others = [other.name for other in SCALES.values() if study.rows(other)]
        if others and not study.rows(scale):
            raise ValueError(f"{study.name}: expected --scale {' or '.join(others)}, got {scale.name}")
    _check_studies(given, studies, scale)
    out = options.out or Path(f"reproduction/{scale.name}")
    usual = scale.on_coco if options.coco else scale.on_generated
    workspace = Workspace(
        scale=scale,
        out=out,
        results=options.results or out / "results",
        options=tuple(pair for pair in of_runs if pair[0] in CHANGEABLE),
        datasets=_datasets(options.datasets, scale, known.get("data.name", scale.name)),
        coco=options.coco or str(out / "generated"),
        generated=not options.coco,
        detection=(*usual.items(), *detection.items()),
    )
    if any(DETECTION in study.measures for study in studies):
        workspace.detection_config()  # which checks the options
    for study in studies:
        varied = {"method", "regularizer"} | {key for row in study.rows(scale) for key, _ in row.arm.options}
        for key, value in lasting:
            if key in varied:
                raise ValueError(f"--{key}: expected to be left out, as {study.name} has its own values, got {value!r}")
    jobs = [] if options.write else _jobs(studies, workspace, lasting, options)
    name = "report" if whole else "-".join(study.name for study in studies)
    return Reproduction(options, studies, workspace, jobs, lasting, name)


def _check_mode(given: Mapping[str, object], *, whole: bool) -> None:
    """Reject options that have no effect in this mode; a plan takes those of the command without --plan."""
    mode, *others = [mode for mode in ("write", "show", "plan") if mode in given] or [""]
    if others:
        raise ValueError(f"--{mode}: expected to be given without --{others[0]}, got both")
    if not mode:
        return
    if mode == "write" and {"out", "results"} <= given.keys():
        raise ValueError("--out: expected to be given without --results, which --write reads in its place, got both")
    unused = {"minutes"}
    if mode != "plan":
        unused |= {"jobs", "datasets", *CHANGEABLE, *(key for key in given if key.startswith("detection."))}
        unused |= set() if whole else {"coco"}  # with `all` it also adds the study of detection
    if mode == "write":
        unused |= {"seeds", "methods"}
    for key, value in given.items():
        if key in unused:
            expected = f"expected to be left out with --{mode}, which trains nothing"
            raise ValueError(f"--{key}: {expected}, got {str(value)!r}")


def _check_studies(given: Mapping[str, object], studies: Sequence[Study], scale: Scale) -> None:
    """Reject options that apply to none of the studies."""
    names, trained = ", ".join(study.name for study in studies), any(study.rows(scale) for study in studies)
    for key, value in given.items():
        measure, applies = _OF_STUDIES.get(key.partition(".")[0], ("", ""))
        if measure and not any(measure in study.measures for study in studies):
            raise ValueError(f"--{key}: applies only to {applies}, got {value!r} with {names}")
        if not trained and key not in ("scale", "out", "write", "plan", "show"):
            raise ValueError(f"--{key}: expected to be left out, as nothing is trained for {names}, got {value!r}")


def _datasets(given: str | None, scale: Scale, trained_on: str) -> dict[str, str]:
    """Paths by name, of sets that need a path; that of the pretraining has an option of its own."""
    found: dict[str, str] = {}
    known = [name for name in scale.datasets if name != trained_on and name not in WITHOUT_PATH]
    for entry in given.split(",") if given else ():
        name, _, path = entry.partition("=")
        if not path or name not in known or name in found:
            expected = f"NAME=PATH with a name among {', '.join(known)}, each once" if known else "to be left out"
            raise ValueError(f"--datasets: expected {expected}, got {entry!r}")
        found[name] = path
    return found


def _jobs(studies: Sequence[Study], workspace: Workspace, settings: Options, options: ReproduceOptions) -> list[Job]:
    """The runs of all studies, each once, with settings that have been checked."""
    seeds: Sequence[int] = range(options.seeds or 1)
    if options.show and options.seeds is None:
        seeds = sorted({0}.union(*record_paths(workspace.results).values()))
    jobs = merged(
        Job(row.arm.over(settings), seed, study.measures)
        for study in studies
        for row in study.rows(workspace.scale)
        for seed in seeds
    )
    if options.methods is not None:
        names = [name.strip().lower() for name in options.methods.split(",")]
        known = list(dict.fromkeys(method_of(job.arm) for job in jobs))
        for name in names:
            if name not in known:
                raise ValueError(f"--methods: expected names among {', '.join(known)}, got {name!r}")
        jobs = [job for job in jobs if method_of(job.arm) in names]
    for job in jobs:
        _ = job.expected  # which checks the settings
    # Settings of the machine are the same for all and take long to check.
    unlike = {(job.arm.by, job.settings.data.name, job.settings.run.batch_size): job for job in reversed(jobs)}
    for job in unlike.values():
        known_settings = workspace.settings(job)
        if job.arm.by == "lightly":
            try:
                lightly_settings(known_settings)
            except ValueError as error:
                raise ValueError(f"{job.name}: {error}") from error
    return jobs


def reproduce(studies: str, *, config: ReproduceOptions, settings: Settings, command: CommandLine) -> None:
    """Train and measure what tables and figures of the paper need, and show it beside the paper's values.

    Runs that are finished are used again, and interrupted ones continue.

    Args:
        studies: all, or names with commas between them
        config: the options.
        settings: of every run, as of `ldreg pretrain`, and `detection.OPTION` as of `ldreg evaluate detection`.
        command: as it was typed, for the report.

    Raises:
        ValueError: an option that is wrong or does not apply, missing images, or files of other settings.
        OSError: a file cannot be read or written.
        FailedRunsError: some runs failed, after the others.
        TimeOverError: the minutes are over with runs left.
    """
    begun, asked = time.monotonic(), prepare(studies, config, settings)
    if config.write is not None:
        _write(asked, config.write, studies.strip().lower())
    elif config.plan:
        _show_plan(asked)
    elif config.show:  # also while another process is at work: files are replaced whole
        _present(asked, command)
    else:
        _train(asked, begun, command)


def study_list() -> str:
    """The names of all studies, and further options, for the help."""
    names = "\n".join(f"  {name:<16}  {study.title}" for name, study in STUDIES.items())
    return f"""studies:
{names}
  all               every study but table3, search, share_search, baselines
                    and anchor; with --coco also table3, with --write all
  tables, figures   those of the paper

settings:
  --SETTING VALUE   of every run, as of ldreg pretrain: --data.path,
                    --batch_size, --trainer.device, ...
  --detection.OPTION VALUE
                    of table3, as of ldreg evaluate detection:
                    --detection.schedule 1x, --detection.devices 8"""


def _train(asked: Reproduction, begun: float, command: str) -> None:
    require("train")
    from ldreg.reproduce.runs import check_data, train_missing

    minutes, out = asked.options.minutes, asked.workspace.out
    out.mkdir(parents=True, exist_ok=True)
    with exclusive(out, out / ".lock"):
        check_data(asked.jobs, asked.workspace)
        seconds = math.inf if minutes is None else 60 * minutes - (time.monotonic() - begun)
        left, failed = train_missing(asked.jobs, asked.workspace, processes=asked.processes, seconds=seconds)
        if left < len(asked.jobs) or not left:
            _present(asked, command)
    if failed is not None:
        raise failed
    if left and all(asked.workspace.state(job) == "missing" for job in asked.jobs):  # repeating it would not help
        found = f"got {minutes:g}: the time was over before one had"
        raise ValueError(f"--minutes: expected enough to begin a run, {found}")
    if left:
        raise TimeOverError(
            f"the time is over with {left} of {len(asked.jobs)} runs left; the same command goes on with them"
        )


def _write(asked: Reproduction, path: Path, what: str) -> None:
    from ldreg.reproduce.document import check_replaceable, document, picture_folder, write_document

    check_replaceable(path)
    folder = picture_folder(path)
    made = document(
        asked.studies,
        asked.workspace.scale,
        asked.workspace.results,
        settings=asked.settings,
        what=what,
        folder=folder,
        one_length=asked.options.epochs is not None,
    )
    write_document(made, path)
    unused = f"; its end names {counted(len(made.unused), 'record')} that no table shows" if made.unused else ""
    studies = f"{made.studies} {'study' if made.studies == 1 else 'studies'}"
    pictures = f", {counted(len(made.pictures), 'picture')} in {path.parent / folder}" if made.pictures else ""
    print_text(f"{path}: {studies}, {counted(len(made.shown), 'run')}{pictures}{unused}")


def _show_plan(asked: Reproduction) -> None:
    from ldreg.reproduce.plan import plan_table

    workspace = asked.workspace
    paths = {"--data.path": dict(workspace.options).get("data.path")}
    paths |= {} if workspace.generated else {"--coco": workspace.coco}
    paths |= {f"--datasets: {name}": path for name, path in workspace.datasets.items()}
    for option, path in paths.items():
        if path is not None and not Path(path).expanduser().exists():
            raise ValueError(f"{option}: expected images at {path}, found nothing there")
    table, words = plan_table(asked.jobs, workspace, processes=asked.processes)
    width = columns(widest=_WIDEST)
    print_text(f"{table_text(table, width=width, color=False)}\n\n{filled(words, width)}")


def _present(asked: Reproduction, command: str) -> None:
    """Print the tables and write the report."""
    workspace, records = asked.workspace, asked.records
    if asked.jobs and not any(records.values()):
        raise ValueError(
            f"{workspace.results}: expected records of these runs, got none; without --show they are made, and "
            "--plan lists them"
        )
    from ldreg.reproduce.document import as_text, study_reports, write_page  # which imports matplotlib

    reports = study_reports(asked.studies, workspace.scale, records)
    page = write_page(reports, workspace.scale, workspace.out, name=asked.name, command=command, records=records)
    show(partial(as_text, reports), widest=_WIDEST)
    figures = f"; figures as PNG and PDF are in {workspace.out / 'figures'}"
    print(f"The report is {page}{figures if any(report.figures for report in reports) else ''}")
