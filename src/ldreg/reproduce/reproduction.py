"""`ldreg reproduce` as a function: plan the runs of studies, train what is missing, show or write what came of them."""

import math
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ldreg.data.config import WITHOUT_PATH, available_cores
from ldreg.extras import require
from ldreg.record import Record
from ldreg.report.tables import table_text
from ldreg.reproduce.jobs import DETECTION, TRANSFER, Arm, Job, Options, merged
from ldreg.reproduce.lightly_settings import recipe_of
from ldreg.reproduce.studies import SCALES, Scale, ScaleName, Study, chosen, dataset, method_of
from ldreg.reproduce.tables import origins
from ldreg.reproduce.workspace import GENERATED, Workspace, locked, read_record, record_paths
from ldreg.terminal import columns, print_text, show
from ldreg.text import duration, filled, number
from ldreg.train.settings import CHANGEABLE

if TYPE_CHECKING:  # imported where it is used, as it imports matplotlib
    from ldreg.reproduce.document import StudyReport

_WIDEST = 240  # columns of a terminal; these tables have more columns than those of other commands
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


class TimeOverError(KeyboardInterrupt):
    """The minutes that were given are over; the command ends as one that was interrupted."""

    status = 75  # EX_TEMPFAIL: the same may go well another time


@dataclass(frozen=True)
class ReproduceOptions:
    """What `ldreg reproduce` is asked for; None stands for an option that was not given.

    Args:
        studies: names with commas between them: of studies, or all, tables, figures.
        scale: of the runs.
        epochs: of every run; None: the scale's.
        methods: only the runs of these methods, with commas between them.
        seeds: of every run, from 0 on; None: one, and for `show` all that have records.
        plan: list the runs with estimates of time and memory, and train nothing.
        show: make tables and figures of what is there, and train nothing.
        write: Markdown file to write from all records of these studies; trains nothing.
        out: folder for runs, records, figures and the report; None: reproduction/SCALE.
        results: folder for the records; None: OUT/results.
        jobs: runs at a time; None: one on a GPU, else one for each core.
        minutes: after which to stop.
        datasets: paths of the sets of the transfer table: NAME=PATH with commas between them.
        coco: folder with train2017, val2017 and annotations; None: a small generated set.
        detection: options of `ldreg evaluate detection`.
        settings: of every run, as of `ldreg pretrain`.
        words: of the command line, for the report.
    """

    studies: str
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
    detection: Options = ()
    settings: Options = ()
    words: Sequence[str] = field(default=(), compare=False)

    def given(self) -> dict[str, object]:
        """The options that were given besides the studies and the mode, by their keys on the command line."""
        own = {
            "scale": self.scale if self.scale != "digits" else None,
            "epochs": self.epochs,
            "methods": self.methods,
            "seeds": self.seeds,
            "write": self.write,
            "out": self.out,
            "results": self.results,
            "jobs": self.jobs,
            "minutes": self.minutes,
            "datasets": self.datasets,
            "coco": self.coco,
            **{f"detection.{key}": value for key, value in self.detection},
            **dict(self.settings),
        }
        return {key: value for key, value in own.items() if value is not None}


@dataclass(frozen=True)
class Reproduction:
    """Studies, their runs, and the folders of both.

    `settings` are given to every run and change it; `name` is that of the report.
    """

    options: ReproduceOptions
    studies: Sequence[Study]
    workspace: Workspace
    jobs: Sequence[Job]
    processes: int
    settings: Options
    name: str


def reproduce(options: ReproduceOptions) -> None:
    """Plan, show or write studies, or train what is missing of them and show what came of it.

    Raises:
        ValueError: an option that is wrong or does not apply, missing images, or files of other settings.
        OSError: a file cannot be read or written.
        FailedRunsError: some runs failed, after the others.
        TimeOverError: the minutes are over with runs left.
    """
    begun = time.monotonic()
    asked = prepare(options)
    if options.write is not None:
        _write(asked, options.write)
        return
    if options.plan:
        _show_plan(asked)
        return
    if options.show:  # also while another process is at work: files are replaced whole
        _present(asked)
        return
    require("train")
    seconds = math.inf if options.minutes is None else 60 * options.minutes
    with locked(asked.workspace.out):
        check_data(asked)
        left, failed = _train(asked, seconds - (time.monotonic() - begun))
        if left < len(asked.jobs) or not left:
            _present(asked)
    if failed is not None:
        raise failed
    if left:
        raise _time_over(asked, left)


def prepare(options: ReproduceOptions) -> Reproduction:
    """The runs that are asked for, and their folders.

    Raises:
        ValueError: an unknown name or setting, a value out of range, or an option that does not apply.
    """
    names = [name.strip().lower() for name in options.studies.split(",")]
    single = [name for name in names if name not in _GROUPS]
    named = chosen(",".join(single)) if single else []
    whole = "all" in names
    _check_mode(options, whole=whole)
    if options.scale not in SCALES:
        raise ValueError(f"--scale: expected one of {', '.join(SCALES)}, got {options.scale!r}")
    scale = SCALES[options.scale] if options.epochs is None else SCALES[options.scale].with_epochs(options.epochs)
    lasting = tuple(pair for pair in options.settings if pair[0] not in CHANGEABLE)
    found = chosen(options.studies)
    studies = [study for study in found if not whole or study in named or _is_part_of_all(study, options)]
    for study in named:
        others = [other.name for other in SCALES.values() if study.rows(other)]
        if others and not study.rows(scale):
            raise ValueError(f"{study.name}: expected --scale {' or '.join(others)}, got {scale.name}")
    _check_studies(options, studies, scale)
    workspace = _workspace(options, scale)
    if any(DETECTION in study.measures for study in studies):
        workspace.detection_config()  # which checks the options
    _check_varied(studies, scale, lasting)
    return Reproduction(
        options,
        studies,
        workspace,
        [] if options.write else _jobs(studies, workspace, lasting, options),
        options.jobs or _processes(workspace),
        settings=lasting,
        name="report" if whole else "-".join(study.name for study in studies),
    )


def _check_mode(options: ReproduceOptions, *, whole: bool) -> None:
    """Reject options that have no effect in this mode; a plan takes those of the command without --plan.

    Raises:
        ValueError: which.
    """
    given = options.given()
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
            values = ", ".join(repr(given[key]) for key in found)
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


def _check_studies(options: ReproduceOptions, studies: Sequence[Study], scale: Scale) -> None:
    """Reject options that apply to none of the studies. Raises ValueError."""
    names, given = ", ".join(study.name for study in studies), options.given()
    for key, value in given.items():
        measure, applies = _OF_STUDIES.get(key.partition(".")[0], ("", ""))
        if measure and not any(measure in study.measures for study in studies):
            raise ValueError(f"--{key}: applies only to {applies}, got {value!r} with {names}")
    if not any(study.rows(scale) for study in studies):
        for key, value in given.items():
            if key not in ("scale", "out", "write"):
                raise ValueError(f"--{key}: expected to be left out, as nothing is trained for {names}, got {value!r}")


def _check_varied(studies: Sequence[Study], scale: Scale, settings: Options) -> None:
    """Reject settings for every run that a study itself varies. Raises ValueError."""
    for study in studies:
        varied = {"method", "regularizer"} | {key for row in study.rows(scale) for key, _ in row.arm.options}
        for key, value in settings:
            if key in varied - {"schedule.epochs"}:
                raise ValueError(f"--{key}: expected to be left out, as {study.name} has its own values, got {value!r}")


def _workspace(options: ReproduceOptions, scale: Scale) -> Workspace:
    out = options.out or Path(f"reproduction/{scale.name}")
    usual = _ON_COCO.get(scale.name, ()) if options.coco else _ON_GENERATED[scale.name]
    return Workspace(
        scale=scale,
        out=out,
        results=options.results or out / "results",
        options=tuple(pair for pair in options.settings if pair[0] in CHANGEABLE),
        datasets=_datasets(options.datasets, scale, dict(options.settings).get("data.name", scale.name)),
        coco=options.coco or str(out / "generated"),
        generated=not options.coco,
        detection=(*usual, *options.detection),
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
    from ldreg.train.processes import on_cuda

    return 1 if on_cuda(workspace.device) else available_cores()


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


def _time_over(asked: Reproduction, left: int) -> BaseException:
    """The end with runs left; an error where repeating the command would never get further."""
    if all(asked.workspace.state(job) == "missing" for job in asked.jobs):
        found = f"got {asked.options.minutes:g}: the time was over before one had"
        return ValueError(f"--minutes: expected enough to begin a run, {found}")
    return TimeOverError(
        f"the time is over with {left} of {len(asked.jobs)} runs left; the same command goes on with them"
    )


def _write(asked: Reproduction, path: Path) -> None:
    from ldreg.reproduce.document import check_replaceable, document, picture_folder, write_document

    check_replaceable(path)
    folder = picture_folder(path)
    made = document(
        asked.studies,
        asked.workspace.scale,
        asked.workspace.results,
        settings=asked.settings,
        what=asked.options.studies,
        folder=folder,
        one_length=asked.options.epochs is not None,
    )
    write_document(made, path)
    unused = f"; its end names {_count(made.unused, 'record')} that no table shows" if made.unused else ""
    studies = f"{made.studies} {'study' if made.studies == 1 else 'studies'}"
    pictures = f", {_count(made.pictures, 'picture')} in {path.parent / folder}" if made.pictures else ""
    print_text(f"{path}: {studies}, {_count(made.shown, 'run')}{pictures}{unused}")


def _count(things: Sequence[object] | Mapping[str, object], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


def _show_plan(asked: Reproduction) -> None:
    from ldreg.reproduce.plan import plan_table

    _check_paths(asked.workspace)
    table, words = plan_table(asked.jobs, asked.workspace, processes=asked.processes)
    width = columns(widest=_WIDEST)
    print_text(f"{table_text(table, width=width, color=False)}\n\n{filled(words, width)}")


def _check_paths(workspace: Workspace) -> None:
    """Check, without reading images, that something is at each path. Raises ValueError."""
    coco = None if workspace.generated else workspace.coco
    given = {"--data.path": dict(workspace.options).get("data.path"), "--coco": coco}
    given |= {f"--datasets: {name}": path for name, path in workspace.datasets.items()}
    for option, path in given.items():
        if path is not None and not Path(path).expanduser().exists():
            raise ValueError(f"{option}: expected images at {path}, found nothing there")


def check_data(asked: Reproduction) -> None:
    """Check before the work that all images are there.

    Raises:
        ValueError: which are missing, and the option for their path.
    """
    from ldreg.data import load_images
    from ldreg.train.assembly import held_out_images, steps_per_epoch, training_images

    workspace = asked.workspace
    left = [job for job in asked.jobs if workspace.state(job) != "done"]
    if any(DETECTION in job.measures for job in left) and workspace.generated:
        _generate(Path(workspace.coco))
    by_images: dict[tuple[object, ...], list[Job]] = {}
    for job in left:
        data = job.settings.data
        by_images.setdefault((data.name, data.limit, data.validation), []).append(job)
    for jobs in by_images.values():
        settings = workspace.settings(jobs[0])
        images, aside = training_images(settings), held_out_images(settings)
        for job in jobs:
            try:
                steps_per_epoch(job.settings, len(images))
                if aside is not None and len(aside) <= workspace.scale.k:
                    expected = f"expected more than the k = {workspace.scale.k} neighbors of LID"
                    raise ValueError(f"data: {expected} to be held out, got {len(aside)} images")
            except ValueError as error:
                raise ValueError(f"{job.name}: {error}") from error
    transferred = [job for job in left if TRANSFER in job.measures]
    for name in workspace.scale.datasets if transferred else ():
        if name != transferred[0].settings.data.name:
            try:
                load_images(dataset(name, workspace.datasets), "train")
            except ValueError as error:
                raise ValueError(f"--datasets: {name}: {error}") from error


def _generate(root: Path) -> None:
    """Write the images that stand for COCO, all or none."""
    from ldreg.detection import write_generated

    if root.is_dir():
        return
    fresh = root.with_name(f"{root.name}.writing")
    shutil.rmtree(fresh, ignore_errors=True)
    write_generated(fresh, **GENERATED)
    fresh.rename(root)


def _train(asked: Reproduction, seconds: float) -> tuple[int, Exception | None]:
    """Train what is missing; how many runs are left, and the error of runs that failed while others did not."""
    from ldreg.reproduce.runs import FailedRunsError, train_missing

    started, workspace = time.monotonic(), asked.workspace
    left = [job for job in asked.jobs if workspace.state(job) != "done"]
    if asked.jobs:
        done_before = len(asked.jobs) - len(left)
        at_once = f"{asked.processes} at a time, into {workspace.out}"
        _say(f"{_count(left, 'run')} to do, {done_before} done before; {at_once}")
        if left:
            _say(f"messages of runs under way are in {workspace.log}")

    def on_done(job: Job, record: Record, done: int, of: int) -> None:
        elapsed = time.monotonic() - started
        rest = f"; about {duration(elapsed / done * (of - done) / 60)} left" if of > done else ""
        _say(f"{done}/{of} {job.name}: {_brief(record)}{rest}")

    try:
        return train_missing(asked.jobs, workspace, processes=asked.processes, on_done=on_done, seconds=seconds), None
    except FailedRunsError as error:
        return sum(workspace.state(job) != "done" for job in asked.jobs), error


def _brief(record: Record) -> str:
    if record.origin.get("failed"):
        return f"collapsed ({record.origin['failed']})"
    shown = {"lid": "LID", "effective_rank": "effective rank", "linear": "linear"}
    return ", ".join(f"{title} {number(record.results[key])}" for key, title in shown.items() if key in record.results)


def _present(asked: Reproduction) -> None:
    """Print the tables and write the report."""
    found = _records(asked)
    records = [record for some in found.values() for record in some]
    if asked.jobs and not records:
        raise ValueError(
            f"{asked.workspace.results}: expected records of these runs, got none; without --show they are made, and "
            "--plan lists them"
        )
    from ldreg.reproduce.document import as_text, study_reports, write_page  # which imports matplotlib

    scale, out = asked.workspace.scale, asked.workspace.out
    reports = [_of_asked_methods(report, asked) for report in study_reports(asked.studies, scale, found)]
    title = f"The LDReg paper at the scale of {scale.name}"
    page = write_page(reports, scale, out, name=asked.name, title=title, origin=_origin(records, asked.options))
    show(partial(as_text, reports), widest=_WIDEST)
    figures = f"; figures as PNG and PDF are in {out / 'figures'}"
    print(f"The report is {page}{figures if any(report.figures for report in reports) else ''}")


def _of_asked_methods(report: "StudyReport", asked: Reproduction) -> "StudyReport":
    """A study without the rows of methods that --methods leaves out."""
    rows, arms = report.study.rows(asked.workspace.scale), {job.arm for job in asked.jobs}
    if not rows:  # an experiment in the plane, whose table is of clouds
        return report
    known = zip(rows, report.table.rows, strict=True)
    cells = [texts for row, texts in known if row.arm.over(asked.settings) in arms]
    return replace(report, table=replace(report.table, rows=cells))


def _records(asked: Reproduction) -> dict[Arm, list[Record]]:
    """The records there are, by the arms of the studies' rows. Raises ValueError for those of other settings."""
    found: dict[Arm, list[Record]] = {}
    for study in asked.studies:
        for row in study.rows(asked.workspace.scale):
            jobs = [job for job in asked.jobs if job.arm == row.arm.over(asked.settings)]
            paths = [(asked.workspace.record_path(job), job) for job in jobs]
            found[row.arm] = [read_record(path, job) for path, job in paths if path.exists()]
    return found


def _origin(records: Sequence[Record], options: ReproduceOptions) -> str:
    """Where the numbers come from, in a sentence or two."""
    command = shlex.join(["ldreg", "reproduce", *(word for word in options.words if word != "--show")])
    if not records:
        return f"Made by: {command}"
    runs = {record.name: record for record in records}
    commits, hardware, seeds, epochs = (origins(records, key) for key in ("commit", "hardware", "seed", "epochs"))
    return (
        f"Made by: {command}\n\n{_count(runs, 'run')}; commits {commits or 'unknown'}; on {hardware}; "
        f"seeds {seeds}; epochs {epochs}. Accuracies are of the last epoch."
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
