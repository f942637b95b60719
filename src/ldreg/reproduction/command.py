"""`ldreg reproduce`: the words of the command line to studies, their runs, and what came of them."""

import os
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ldreg.reporting.run_record import RunRecord
from ldreg.reporting.study import table_text
from ldreg.reporting.text import number
from ldreg.reproduction.jobs import DETECTION, TRANSFER, Arm, Job, Options, merged
from ldreg.reproduction.scales import SCALES, Scale
from ldreg.reproduction.studies import STUDIES, Study, chosen
from ldreg.reproduction.workplace import Workplace, occupied
from ldreg.training.command import words_to_options
from ldreg.training.settings import CHANGEABLE

USAGE = """usage: ldreg reproduce WHAT --scale SCALE [options]

Train and measure what a table or figure of the paper needs, and show it beside the paper's values. Runs that are there
already are used, those that were interrupted go on where they stood.

  WHAT                 all, or names with commas between them:
{names}
  --scale SCALE        digits (a CPU, minutes), cifar10 (one GPU) or imagenet (the paper's own); default digits
  --plan               list the runs with an estimate of time and memory, and stop
  --show               make tables and figures of what is there, and train nothing
  --epochs N           of every run (default: the scale's); the long pretrainings stay as much longer
  --seeds N            seeds of every run, from 0 on (default: 1)
  --out FOLDER         for runs, records, figures and the report (default: reproduction/SCALE)
  --results FOLDER     for the records alone, one JSON file for each run (default: OUT/results)
  --jobs N             runs at a time (default: one on a GPU, else one for each core)
  --datasets NAME=PATH,...   where the sets of the transfer table are
  --coco FOLDER        train2017, val2017 and annotations for table3 (default: a small generated set)
  --SETTING VALUE      of every run, as of ldreg pretrain: --data.path, --batch_size, --trainer.device, ...

examples:
  ldreg reproduce all --scale digits
  ldreg reproduce table1 --scale cifar10 --data.path cifar10.tar.xz --plan
  ldreg reproduce table1,minlid --scale cifar10 --data.path cifar10.tar.xz --seeds 3
"""

_OWN = ("scale", "epochs", "seeds", "out", "results", "jobs", "datasets", "coco")
_GENERATED = {"train": 240, "val": 60, "size": 128, "seed": 0}
# Detection on the generated set, by the scale of its encoders: few small images on a CPU, more on a GPU.
_SMALL_DETECTION: Mapping[str, object] = {
    "iterations": 300, "batch_size": 4, "lr": 0.04, "train_sizes": (128,), "test_size": 128, "max_size": 128,
    "anchor_sizes": (16, 32, 64), "regions": 64, "workers": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Request:
    """What was asked for."""

    studies: Sequence[Study]
    place: Workplace
    jobs: Sequence[Job]
    processes: int
    settings: Options
    plan: bool
    show: bool
    command: str


def usage() -> str:
    """The help, with the names of all studies."""
    names = "\n".join(
        f"    {' '.join((study.name, *study.aliases)):<26} {study.title.partition(': ')[2]}"
        for study in STUDIES.values()
    )
    return USAGE.format(names=names)


def request(words: Sequence[str]) -> Request:
    """What these words ask for.

    Raises:
        ValueError: an unknown name or setting, or a value out of range.
    """
    what, rest = words[0], list(words[1:])
    if what.startswith("-"):
        raise ValueError(f"expected the name of a table or figure, or all, got {what!r}; --help lists them")
    options = words_to_options([word for word in rest if word not in ("--plan", "--show")])
    own = {key: value for key, value in options if key in _OWN}
    for key, value in own.items():
        if value is None or not value:
            raise ValueError(f"--{key}: expected a value, got none")
    if any(key == "schedule.epochs" for key, _ in options):
        raise ValueError("--schedule.epochs: expected --epochs, which keeps the long pretrainings longer")
    scale = _scale(own.get("scale") or "digits", epochs=_count(own, "epochs", 0))
    settings: Options = tuple((key, "true" if value is None else value) for key, value in options if key not in _OWN)
    lasting = tuple(pair for pair in settings if pair[0] not in CHANGEABLE)
    studies = [study for study in chosen(what) if what != "all" or study.name != "table3" or own.get("coco")]
    out = Path(own.get("out") or f"reproduction/{scale.name}")
    place = Workplace(
        scale=scale,
        out=out,
        results=Path(own.get("results") or out / "results"),
        options=tuple(pair for pair in settings if pair[0] in CHANGEABLE),
        datasets=_datasets(own.get("datasets"), scale),
        coco=own.get("coco") or str(out / "generated"),
        generated=not own.get("coco"),
        detection={} if own.get("coco") else _SMALL_DETECTION,
    )
    return Request(
        studies,
        place,
        _jobs(studies, place, lasting, _count(own, "seeds", 1)),
        _count(own, "jobs", _processes(place)),
        settings=lasting,
        plan="--plan" in rest,
        show="--show" in rest,
        command=shlex.join(["ldreg", "reproduce", *words]),
    )


def _scale(name: str, *, epochs: int) -> Scale:
    if name not in SCALES:
        raise ValueError(f"--scale: expected one of {', '.join(SCALES)}, got {name!r}")
    return SCALES[name].with_epochs(epochs) if epochs else SCALES[name]


def _count(own: Mapping[str, str | None], key: str, usual: int) -> int:
    given = own.get(key)
    if given is None:
        return usual
    if not given.isdecimal() or int(given) < 1:
        raise ValueError(f"--{key}: expected a whole number of at least 1, got {given!r}")
    return int(given)


def _processes(place: Workplace) -> int:
    from ldreg.data.config import available_cores
    from ldreg.training.launch import on_cuda

    return 1 if on_cuda(place.device) else available_cores()


def _datasets(given: str | None, scale: Scale) -> dict[str, str]:
    """Paths by name.

    >>> _datasets("dtd=/data/dtd", SCALES["imagenet"])
    {'dtd': '/data/dtd'}
    """
    found = {}
    for entry in given.split(",") if given else ():
        name, equals, path = entry.partition("=")
        if not equals or not path or name not in scale.datasets:
            names = ", ".join(scale.datasets)
            raise ValueError(f"--datasets: expected NAME=PATH with a name among {names}, got {entry!r}")
        found[name] = path
    return found


def _jobs(studies: Sequence[Study], place: Workplace, settings: Options, seeds: int) -> list[Job]:
    """The runs of all studies, each once; and checked, so that a wrong setting is found before any begins."""
    listed = [
        Job(given(row.arm, settings), seed, study.measures)
        for study in studies
        for row in study.rows(place.scale)
        for seed in range(seeds)
    ]
    jobs = merged(listed)
    for job in jobs:
        _ = job.settings
    return jobs


def given(arm: Arm, settings: Options) -> Arm:
    """The arm with the settings that were given for every run; what the arm itself varies stays.

    >>> given(Arm("digits/simclr", (("views.jitter", "0"),)), (("views.jitter", "1"), ("batch_size", "64"))).options
    (('batch_size', '64'), ('views.jitter', '0'))
    """
    return Arm(arm.recipe, tuple(sorted({**dict(settings), **dict(arm.options)}.items()))) if settings else arm


def reproduce_command(words: Sequence[str]) -> None:
    """Run `ldreg reproduce` with these words."""
    if not words or any(word in ("-h", "--help") for word in words):
        print(usage(), end="")
        if not words:
            raise ValueError("expected the name of a table or figure, or all, got nothing")
        return
    asked = request(words)
    if asked.plan:
        _show_plan(asked)
        return
    if asked.show:  # also while another process is at work: files are replaced whole
        _present(asked)
        return
    with occupied(asked.place.out):
        check_data(asked)
        _carry_out(asked)
        _present(asked)


def _show_plan(asked: Request) -> None:
    from ldreg.reproduction.plan import plan_table

    table, words = plan_table(asked.jobs, asked.place, processes=asked.processes)
    _print(f"{table_text(table, width=_width(), color=False)}\n\n{words}")


def check_data(asked: Request) -> None:
    """Find out before the work that images are missing.

    Raises:
        ValueError: which, and the option that says where they are.
    """
    from ldreg.data import load_images
    from ldreg.detection.generated import write_generated
    from ldreg.reproduction.scales import dataset
    from ldreg.training.assembly import training_images
    from ldreg.training.settings import resolve

    place, left = asked.place, [job for job in asked.jobs if asked.place.state(job) != "done"]
    if any(DETECTION in job.measures for job in left) and place.generated:
        write_generated(Path(place.coco), **_GENERATED)
    for name in {job.settings.data.name for job in left}:
        job = next(job for job in left if job.settings.data.name == name)
        training_images(resolve(job.settings.tree, list(place.run_options(job))))
    if any(TRANSFER in job.measures for job in left):
        for name in place.scale.datasets:
            if name != place.scale.name:
                try:
                    load_images(dataset(name, place.datasets), "train")
                except ValueError as error:
                    raise ValueError(f"--datasets: {name}: {error}") from error


def _carry_out(asked: Request) -> None:
    from ldreg.reproduction.harness import carry_out

    started = time.monotonic()
    left = sum(asked.place.state(job) != "done" for job in asked.jobs)
    if asked.jobs:
        ready = len(asked.jobs) - left
        _say(f"{left} runs to do, {ready} done before; {asked.processes} at a time, into {asked.place.out}")

    def told(job: Job, record: RunRecord, done: int, of: int) -> None:
        elapsed = time.monotonic() - started
        ahead = elapsed / done * (of - done) / 60
        rest = f"; about {ahead:.0f} min left" if of > done else ""
        _say(f"{done}/{of} {job.name}: {_brief(record)}{rest}")

    carry_out(asked.jobs, asked.place, processes=asked.processes, told=told)


def _brief(record: RunRecord) -> str:
    if record.origin.get("failed"):
        return f"collapsed ({record.origin['failed']})"
    shown = {"lid": "LID", "effective_rank": "effective rank", "linear": "linear"}
    return ", ".join(f"{title} {number(record.results[key])}" for key, title in shown.items() if key in record.results)


def _present(asked: Request) -> None:
    from ldreg.reproduction.rendering import as_text, rendered, write

    gathered = gather(asked)
    found = rendered(asked.studies, asked.place.scale, gathered)
    records = [record for some in gathered.values() for record in some]
    title = f"The LDReg paper at the scale of {asked.place.scale.name}"
    page = write(found, asked.place.out, title=title, origin=_origin(records, asked.command))
    _print(as_text(found, width=_width(), color=sys.stdout.isatty() and "NO_COLOR" not in os.environ))
    print(f"The report is {page}; figures as PNG and PDF are in {asked.place.out / 'figures'}")


def gather(asked: Request) -> dict[Arm, list[RunRecord]]:
    """The records there are, by the arms of the studies' rows."""
    found: dict[Arm, list[RunRecord]] = {}
    for study in asked.studies:
        for row in study.rows(asked.place.scale):
            jobs = [job for job in asked.jobs if job.arm == given(row.arm, asked.settings)]
            paths = [asked.place.record(job) for job in jobs]
            found[row.arm] = [RunRecord.from_json(path) for path in paths if path.is_file()]
    return found


def _origin(records: Sequence[RunRecord], command: str) -> str:
    """Where the numbers come from, in a sentence or two."""
    if not records:
        return f"Made by: {command}"

    def told(key: str) -> str:
        return ", ".join(sorted({str(record.origin[key]) for record in records if record.origin.get(key) is not None}))

    runs = {record.name for record in records}
    return (
        f"Made by: {command}\n\n{len(runs)} runs; commits {told('commit') or 'unknown'}; on {told('hardware')}; seeds "
        f"{told('seed')}; epochs {told('epochs')}. Accuracies are of the last epoch."
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _width() -> int:
    return min(110, shutil.get_terminal_size().columns) if sys.stdout.isatty() else 80


def _print(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))
