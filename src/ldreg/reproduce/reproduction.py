"""`ldreg reproduce` as a function: plan the runs of studies, train what is missing, show or write what came of them."""

import math
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ldreg.extras import require
from ldreg.options import CommandLine, Settings
from ldreg.record import Record
from ldreg.report.tables import table_text
from ldreg.reproduce.jobs import DETECTION, TRANSFER, Arm, Job
from ldreg.reproduce.options import ReproduceOptions, Reproduction, prepare
from ldreg.reproduce.studies import STUDIES, dataset
from ldreg.reproduce.tables import origins
from ldreg.reproduce.workspace import GENERATED, Workspace, locked, read_record
from ldreg.terminal import columns, print_text, show
from ldreg.text import duration, filled, number

if TYPE_CHECKING:  # imported where it is used, as it imports matplotlib
    from ldreg.reproduce.page import StudyReport

_WIDEST = 240  # columns of a terminal; these tables have more columns than those of other commands


class TimeOverError(KeyboardInterrupt):
    """The minutes that were given are over; the command ends as one that was interrupted."""

    status = 75  # EX_TEMPFAIL: the same may go well another time


def reproduce(studies: str, *, config: ReproduceOptions, settings: Settings, command: CommandLine) -> None:
    """Train and measure what tables and figures of the paper need, and show it beside the paper's values.

    Runs that are finished are used again, and interrupted ones continue.

    Args:
        studies: all, or names with commas between them
        config: the options.
        settings: of every run, and of detection, as for `prepare`.
        command: as it was typed, for the report.

    Raises:
        ValueError: an option that is wrong or does not apply, missing images, or files of other settings.
        OSError: a file cannot be read or written.
        FailedRunsError: some runs failed, after the others.
        TimeOverError: the minutes are over with runs left.
    """
    begun = time.monotonic()
    asked, options = prepare(studies, config, settings, command=command), config
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


def study_list() -> str:
    """The names of all studies, and further options, for the help."""
    names = "\n".join(f"  {name:<16}  {study.title}" for name, study in STUDIES.items())
    return f"""studies:
{names}
  all               every study but table3, search, baselines and anchor; with
                    --coco also table3, with --write all of them
  tables, figures   those of the paper

settings:
  --SETTING VALUE   of every run, as of ldreg pretrain: --data.path,
                    --batch_size, --trainer.device, ...
  --detection.OPTION VALUE
                    of table3, as of ldreg evaluate detection:
                    --detection.schedule 1x, --detection.devices 8"""


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
        what=asked.what,
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
    from ldreg.train.module import steps_per_epoch
    from ldreg.train.run import held_out_images, training_images

    workspace = asked.workspace
    left = [job for job in asked.jobs if workspace.state(job) != "done"]
    if any(DETECTION in job.measures for job in left):
        require("detection")
        if workspace.generated:
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
    from ldreg.evaluate.detection.coco import write_generated

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
    from ldreg.reproduce.page import as_text, study_reports, write_page  # which imports matplotlib

    scale, out = asked.workspace.scale, asked.workspace.out
    reports = [_of_asked_methods(report, asked) for report in study_reports(asked.studies, scale, found)]
    title = f"The LDReg paper at the scale of {scale.name}"
    page = write_page(reports, scale, out, name=asked.name, title=title, origin=_origin(records, asked.command))
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


def _origin(records: Sequence[Record], command: str) -> str:
    """Where the numbers come from, in a sentence or two."""
    command = command.replace(" --show", "")
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
