"""`ldreg reproduce`: the runs of studies that are missing, and what came of all of them."""

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ldreg.extras import require
from ldreg.record import Record
from ldreg.report.tables import table_text
from ldreg.reproduce.findings import origins
from ldreg.reproduce.jobs import DETECTION, TRANSFER, Arm, Job
from ldreg.reproduce.request import Request, given, request
from ldreg.reproduce.workplace import GENERATED, Workplace, occupied, read_record
from ldreg.terminal import columns, print_text, show
from ldreg.text import duration, filled, number

if TYPE_CHECKING:  # imported where it is used, as it brings matplotlib
    from ldreg.reproduce.rendering import Rendered

_WIDEST = 240  # columns of a terminal: the tables have more of their own than those of other commands


def reproduce(words: Sequence[str]) -> None:
    """Do what these words of `ldreg reproduce` ask for."""
    begun = time.monotonic()
    asked = request(words)
    if asked.write is not None:
        _write(asked, asked.write)
        return
    if asked.plan:
        _show_plan(asked)
        return
    if asked.show:  # also while another process is at work: files are replaced whole
        _present(asked)
        return
    require("train")
    with occupied(asked.place.out):
        check_data(asked)
        left, failed = _carry_out(asked, asked.seconds - (time.monotonic() - begun))
        if left < len(asked.jobs) or not left:
            _present(asked)
    if failed is not None:
        raise failed
    if left:
        raise _time_over(asked, left)


def _time_over(asked: Request, left: int) -> BaseException:
    """How it ends with runs left; in error where the same command would get no further, and be repeated for ever."""
    if all(asked.place.state(job) == "missing" for job in asked.jobs):
        told = f"got {asked.seconds / 60:g}: the time was over before one had"
        return ValueError(f"--minutes: expected enough to begin a run, {told}")
    return TimeOverError(
        f"the time is over with {left} of {len(asked.jobs)} runs left; the same command goes on with them"
    )


class TimeOverError(KeyboardInterrupt):
    """The minutes that were given are over; the command ends as one that was interrupted."""

    status = 75  # EX_TEMPFAIL: the same may go well another time


def _write(asked: Request, path: Path) -> None:
    from ldreg.reproduce.document import check_own, document, picture_folder, write_document

    check_own(path)
    place, folder = asked.place, picture_folder(path)
    made = document(
        asked.studies,
        place.scale,
        place.results,
        settings=asked.settings,
        what=asked.what,
        folder=folder,
        one_length=asked.one_length,
    )
    write_document(made, path)
    unused = f"; its end names {_several(len(made.unused), 'record')} that no table shows" if made.unused else ""
    studies, runs = _several(made.studies, "study", "studies"), _several(len(made.shown), "run")
    pictures = f", {_several(len(made.pictures), 'picture')} in {path.parent / folder}" if made.pictures else ""
    print_text(f"{path}: {studies}, {runs}{pictures}{unused}")


def _several(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def _show_plan(asked: Request) -> None:
    from ldreg.reproduce.plan import plan_table

    _check_paths(asked.place)
    table, words = plan_table(asked.jobs, asked.place, processes=asked.processes)
    width = columns(widest=_WIDEST)
    print_text(f"{table_text(table, width=width, color=False)}\n\n{filled(words, width)}")


def _check_paths(place: Workplace) -> None:
    """Find out without reading images that there is nothing at a path that was given for them. Raises ValueError."""
    given = {"--data.path": dict(place.options).get("data.path"), "--coco": None if place.generated else place.coco}
    given |= {f"--datasets: {name}": path for name, path in place.datasets.items()}
    for option, path in given.items():
        if path is not None and not Path(path).expanduser().exists():
            raise ValueError(f"{option}: expected images at {path}, found nothing there")


def check_data(asked: Request) -> None:
    """Find out before the work that images are missing.

    Raises:
        ValueError: which, and the option that says where they are.
    """
    from ldreg.data import load_images
    from ldreg.reproduce.scales import dataset
    from ldreg.train.assembly import held_out_images, steps_per_epoch, training_images

    place, left = asked.place, [job for job in asked.jobs if asked.place.state(job) != "done"]
    if any(DETECTION in job.measures for job in left) and place.generated:
        _generate(Path(place.coco))
    by_images: dict[tuple[object, ...], list[Job]] = {}
    for job in left:
        data = job.settings.data
        by_images.setdefault((data.name, data.limit, data.validation), []).append(job)
    for jobs in by_images.values():
        settings = place.settings(jobs[0])
        images, aside = training_images(settings), held_out_images(settings)
        for job in jobs:
            try:
                steps_per_epoch(job.settings, len(images))
                if aside is not None and len(aside) <= place.scale.k:
                    expected = f"expected more than the k = {place.scale.k} neighbors of LID"
                    raise ValueError(f"data: {expected} to be held out, got {len(aside)} images")
            except ValueError as error:
                raise ValueError(f"{job.name}: {error}") from error
    judged = [job for job in left if TRANSFER in job.measures]
    if judged:
        for name in place.scale.datasets:
            if name != judged[0].settings.data.name:
                try:
                    load_images(dataset(name, place.datasets), "train")
                except ValueError as error:
                    raise ValueError(f"--datasets: {name}: {error}") from error


def _generate(root: Path) -> None:
    """Have the set that stands for COCO, whole or not at all."""
    from ldreg.detection import write_generated

    if root.is_dir():
        return
    fresh = root.with_name(f"{root.name}.writing")
    shutil.rmtree(fresh, ignore_errors=True)
    write_generated(fresh, **GENERATED)
    fresh.rename(root)


def _carry_out(asked: Request, seconds: float) -> tuple[int, Exception | None]:
    """How many runs are left after so long, and which of them went wrong while others went well."""
    from ldreg.reproduce.harness import FailedRunsError, carry_out

    started = time.monotonic()
    left = sum(asked.place.state(job) != "done" for job in asked.jobs)
    if asked.jobs:
        ready = len(asked.jobs) - left
        _say(f"{_several(left, 'run')} to do, {ready} done before; {asked.processes} at a time, into {asked.place.out}")
        if left:
            _say(f"what they say until they are done is in {asked.place.log}")

    def told(job: Job, record: Record, done: int, of: int) -> None:
        elapsed = time.monotonic() - started
        rest = f"; about {duration(elapsed / done * (of - done) / 60)} left" if of > done else ""
        _say(f"{done}/{of} {job.name}: {_brief(record)}{rest}")

    try:
        return carry_out(asked.jobs, asked.place, processes=asked.processes, told=told, seconds=seconds), None
    except FailedRunsError as error:
        return sum(asked.place.state(job) != "done" for job in asked.jobs), error


def _brief(record: Record) -> str:
    if record.origin.get("failed"):
        return f"collapsed ({record.origin['failed']})"
    shown = {"lid": "LID", "effective_rank": "effective rank", "linear": "linear"}
    return ", ".join(f"{title} {number(record.results[key])}" for key, title in shown.items() if key in record.results)


def _present(asked: Request) -> None:
    gathered = gather(asked)
    records = [record for some in gathered.values() for record in some]
    if asked.jobs and not records:
        raise ValueError(
            f"{asked.place.results}: expected records of these runs, got none; without --show they are made, and "
            "--plan lists them"
        )
    from ldreg.reproduce.rendering import as_text, rendered, write  # which brings matplotlib

    found = [_asked_for(one, asked) for one in rendered(asked.studies, asked.place.scale, gathered)]
    title = f"The LDReg paper at the scale of {asked.place.scale.name}"
    page = write(
        found, asked.place.scale, asked.place.out, name=asked.name, title=title, origin=_origin(records, asked.command)
    )
    show(partial(as_text, found), widest=_WIDEST)
    figures = f"; figures as PNG and PDF are in {asked.place.out / 'figures'}"
    print(f"The report is {page}{figures if any(one.figures for one in found) else ''}")


def _asked_for(one: "Rendered", asked: Request) -> "Rendered":
    """A study without the rows of methods that --methods leaves out, of which nothing is known here."""
    rows, arms = one.study.rows(asked.place.scale), {job.arm for job in asked.jobs}
    if not rows:  # an experiment in the plane, whose table is of clouds
        return one
    known = zip(rows, one.table.rows, strict=True)
    kept = [cells for row, cells in known if given(row.arm, asked.settings) in arms]
    return replace(one, table=replace(one.table, rows=kept))


def gather(asked: Request) -> dict[Arm, list[Record]]:
    """The records there are, by the arms of the studies' rows."""
    found: dict[Arm, list[Record]] = {}
    for study in asked.studies:
        for row in study.rows(asked.place.scale):
            jobs = [job for job in asked.jobs if job.arm == given(row.arm, asked.settings)]
            found[row.arm] = [record for job in jobs if (record := _known(asked.place, job)) is not None]
    return found


def _known(place: Workplace, job: Job) -> Record | None:
    """The record of a run, where there is one.

    Raises:
        ValueError: it is of another run or other settings, or no record.
    """
    path = place.record(job)
    return read_record(path, job) if path.exists() else None


def _origin(records: Sequence[Record], command: str) -> str:
    """Where the numbers come from, in a sentence or two."""
    if not records:
        return f"Made by: {command}"

    runs = _several(len({record.name for record in records}), "run")
    commits, hardware, seeds, epochs = (origins(records, key) for key in ("commit", "hardware", "seed", "epochs"))
    return (
        f"Made by: {command}\n\n{runs}; commits {commits or 'unknown'}; on {hardware}; seeds {seeds}; epochs {epochs}. "
        "Accuracies are of the last epoch."
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
