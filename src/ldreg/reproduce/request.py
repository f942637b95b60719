"""The words of `ldreg reproduce` to what is asked for: studies, their runs, and where they lie."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ldreg.data.config import WITHOUT_PATH, available_cores
from ldreg.options import words_to_options
from ldreg.reproduce.heeded import check_mode, check_studies
from ldreg.reproduce.jobs import DETECTION, Arm, Job, Options, merged
from ldreg.reproduce.lightly_settings import recipe_of
from ldreg.reproduce.rows import method_of
from ldreg.reproduce.scales import SCALES, Scale
from ldreg.reproduce.studies import Study, chosen
from ldreg.reproduce.workplace import Workplace, paths_of
from ldreg.train.settings import CHANGEABLE

_SEVERAL = ("all", "tables", "figures")
# The most that is taken of a number; all runs are listed before any begins.
_MOST: Mapping[str, int] = {"epochs": 1_000_000, "seeds": 1000, "jobs": 1000}
_OWN = ("scale", "epochs", "seeds", "out", "results", "jobs", "datasets", "coco", "write", "methods", "minutes")
# How detectors are trained on the set that stands for COCO, by the scale of the encoders.
_SMALL: Options = (
    ("train_sizes", "[96]"), ("test_size", "96"), ("max_size", "144"), ("anchor_sizes", "[16,32,64]"), ("workers", "0"),
    ("test_regions", "100"),
)  # fmt: skip
_SHORT: Mapping[str, Options] = {
    "digits": (
        *_SMALL,
        ("iterations", "300"),
        ("batch_size", "2"),
        ("lr", "0.08"),
        ("regions", "16"),
        ("precise_iterations", "20"),
    ),
    "cifar10": (*_SMALL, ("iterations", "1000"), ("lr", "0.04"), ("regions", "64")),
    "imagenet": (*_SMALL, ("iterations", "1000"), ("lr", "0.04"), ("regions", "64")),
}
# And on COCO itself; the paper's encoders are fine-tuned by MoCo's configuration, coco_R_50_C4_2x.
_ON_COCO: Mapping[str, Options] = {"imagenet": (("schedule", "2x"),)}


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
    what: str
    name: str  # of the report
    write: Path | None = None  # the file to write from records alone
    seconds: float = math.inf  # that it may take
    one_length: bool = False  # whether runs of these epochs alone are meant


def request(words: Sequence[str]) -> Request:
    """What these words ask for.

    Raises:
        ValueError: an unknown name or setting, or a value out of range.
    """
    what, rest = words[0].lower().strip(), list(words[1:])
    if what.startswith("-"):
        raise ValueError(f"expected the name of a table or figure, or all, got {what!r}; --help lists them")
    if rest and not rest[0].startswith("-"):
        meant = f"{what},{rest[0]}"
        raise ValueError(f"expected names with commas between them, as in {meant!r}, got {rest[0]!r} apart")
    options = words_to_options([word for word in rest if word not in ("--plan", "--show")])
    own = {key: value for key, value in options if key in _OWN}
    whole, named = "all" in _names(what), _named(what)
    _check_given(own, dict(options))
    check_mode(rest, dict(options), whole=whole)
    scale = _scale(own.get("scale") or "digits", epochs=_count(own, "epochs", 0))
    others: Options = tuple((key, "true" if value is None else value) for key, value in options if key not in _OWN)
    settings = tuple(pair for pair in others if not pair[0].startswith("detection."))
    detection = tuple((key.removeprefix("detection."), value) for key, value in others if (key, value) not in settings)
    lasting = tuple(pair for pair in settings if pair[0] not in CHANGEABLE)
    studies = [study for study in chosen(what) if not whole or study in named or _among_all(study, own)]
    _check_there(named, scale)
    check_studies(dict(options), studies, scale)
    place = _workplace(scale, own, settings, detection)
    if any(study.measures & {DETECTION} for study in studies):
        place.detection_config()  # which refuses wrong options
    _check_free(studies, scale, lasting)
    return Request(
        studies,
        place,
        [] if own.get("write") else _jobs(studies, place, lasting, own, _seeds(own, place, shown="--show" in rest)),
        _count(own, "jobs", _processes(place)),
        settings=lasting,
        plan="--plan" in rest,
        show="--show" in rest,
        command=shlex.join(["ldreg", "reproduce", *(word for word in words if word != "--show")]),
        what=what,
        name="report" if whole else "-".join(study.name for study in studies),
        write=Path(target) if (target := own.get("write")) else None,
        seconds=60 * _minutes(own.get("minutes")),
        one_length="epochs" in own,
    )


def _workplace(scale: Scale, own: Mapping[str, str | None], settings: Options, detection: Options) -> Workplace:
    """Where the runs lie, with the settings that may differ from one part of a run to the next."""
    out = Path(own.get("out") or f"reproduction/{scale.name}")
    return Workplace(
        scale=scale,
        out=out,
        results=Path(own.get("results") or out / "results"),
        options=tuple(pair for pair in settings if pair[0] in CHANGEABLE),
        datasets=_datasets(own.get("datasets"), scale, dict(settings).get("data.name", scale.name)),
        coco=own.get("coco") or str(out / "generated"),
        generated=not own.get("coco"),
        detection=(*(_ON_COCO.get(scale.name, ()) if own.get("coco") else _SHORT[scale.name]), *detection),
    )


def _check_given(own: Mapping[str, str | None], options: Mapping[str, str | None]) -> None:
    """Refuse options without a value, and those that others stand for.

    Raises:
        ValueError: which.
    """
    for key, value in own.items():
        if value is None or not value:
            raise ValueError(f"--{key}: expected a value, got none")
    for key, instead in (("schedule.epochs", "--epochs"), ("seed", "--seeds"), ("detection.path", "--coco")):
        if key in options:
            raise ValueError(f"--{key}: expected {instead} in its place, got {options[key]!r}")


def _names(what: str) -> list[str]:
    return [name.strip() for name in what.split(",")]


def _named(what: str) -> list[Study]:
    """The studies that are named one by one, not as all or as a kind.

    >>> [study.name for study in _named("figures, table3")]
    ['table3']
    """
    names = [name for name in _names(what) if name not in _SEVERAL]
    return chosen(",".join(names)) if names else []


def _check_there(studies: Sequence[Study], scale: Scale) -> None:
    """Refuse by name what a scale has nothing of.

    Raises:
        ValueError: which, and the scales that have it.
    """
    for study in studies:
        others = [other.name for other in SCALES.values() if study.rows(other)]
        if others and not study.rows(scale):
            raise ValueError(f"{study.name}: expected --scale {' or '.join(others)}, got {scale.name}")


def _among_all(study: Study, own: Mapping[str, str | None]) -> bool:
    """Whether a study is meant by `all`."""
    if study.name == "table3":
        return bool(own.get("coco"))
    return not study.apart or bool(own.get("write"))


def _of_methods(jobs: Sequence[Job], own: Mapping[str, str | None]) -> list[Job]:
    """Those of the methods that were named; all where none was.

    Raises:
        ValueError: a name that no method has, or that these studies do not have.
    """
    named = own.get("methods")
    if named is None:
        return list(jobs)
    names = [name.strip().lower() for name in named.split(",")]
    known = list(dict.fromkeys(method_of(job.arm) for job in jobs))
    for name in names:
        if name not in known:
            raise ValueError(f"--methods: expected names among {', '.join(known)}, got {name!r}")
    return [job for job in jobs if method_of(job.arm) in names]


def _scale(name: str, *, epochs: int) -> Scale:
    if name not in SCALES:
        raise ValueError(f"--scale: expected one of {', '.join(SCALES)}, got {name!r}")
    return SCALES[name].with_epochs(epochs) if epochs else SCALES[name]


def _count(own: Mapping[str, str | None], key: str, usual: int) -> int:
    given = own.get(key)
    if given is None:
        return usual
    if not given.isdecimal() or len(given) > len(str(_MOST[key])) or not 1 <= int(given) <= _MOST[key]:
        raise ValueError(f"--{key}: expected a whole number from 1 to {_MOST[key]}, got {given!r}")
    return int(given)


def _minutes(given: str | None) -> float:
    """So many; without end where nothing was given.

    >>> _minutes("2.5"), _minutes(None)
    (2.5, inf)
    """
    try:
        minutes = math.inf if given is None else float(given)
    except ValueError:
        minutes = math.nan
    if given is not None and not 0 < minutes < math.inf:
        raise ValueError(f"--minutes: expected a positive number, got {given!r}")
    return minutes


def _processes(place: Workplace) -> int:
    from ldreg.train.processes import on_cuda

    return 1 if on_cuda(place.device) else available_cores()


def _datasets(given: str | None, scale: Scale, trained_on: str) -> dict[str, str]:
    """Paths by name, of the sets that a path is asked of; that of the pretraining has its own option.

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
            wanted = f"NAME=PATH with a name among {', '.join(known)}, each once"
            raise ValueError(f"--datasets: expected {wanted}, got {entry!r}")
        found[name] = path
    return found


def _seeds(own: Mapping[str, str | None], place: Workplace, *, shown: bool) -> Sequence[int]:
    """As many from 0 on as were asked for, by default one; where records are only shown, by default all they have."""
    if shown and "seeds" not in own:
        return sorted({0}.union(*paths_of(place.results).values()))
    return range(_count(own, "seeds", 1))


def _jobs(
    studies: Sequence[Study],
    place: Workplace,
    settings: Options,
    own: Mapping[str, str | None],
    seeds: Sequence[int],
) -> list[Job]:
    """The runs of all studies, each once; and checked, so that a wrong setting is found before any begins."""
    listed = [
        Job(given(row.arm, settings), seed, study.measures)
        for study in studies
        for row in study.rows(place.scale)
        for seed in seeds
    ]
    jobs = _of_methods(merged(listed), own)
    for job in jobs:
        _ = job.wanted  # which refuses wrong settings
    _check_machine(jobs, place)
    return jobs


def _check_machine(jobs: Sequence[Job], place: Workplace) -> None:
    """Refuse wrong settings of the machine, which are the same for all and take long to check.

    Raises:
        ValueError: which.
    """
    unlike = {(job.arm.by, job.settings.data.name, job.settings.run.batch_size): job for job in reversed(jobs)}
    for job in unlike.values():
        settings = place.settings(job)
        if job.arm.by == "lightly":
            try:
                recipe_of(settings)
            except ValueError as error:
                raise ValueError(f"{job.name}: {error}") from error


def _check_free(studies: Sequence[Study], scale: Scale, settings: Options) -> None:
    """Refuse settings for every run that the studies themselves vary, or are about.

    Raises:
        ValueError: which, and in which study.
    """
    for study in studies:
        varied = {"method", "regularizer"} | {key for row in study.rows(scale) for key, _ in row.arm.options}
        for key, value in settings:
            if key in varied - {"schedule.epochs"}:
                raise ValueError(f"--{key}: expected to be left out, as {study.name} has its own values, got {value!r}")


def given(arm: Arm, settings: Options) -> Arm:
    """The arm with the settings that were given for every run; what the arm itself varies stays.

    >>> given(Arm("digits/simclr", (("views.jitter", "0"),)), (("views.jitter", "1"), ("batch_size", "64"))).options
    (('batch_size', '64'), ('views.jitter', '0'))
    """
    return replace(arm, options=tuple(sorted({**dict(settings), **dict(arm.options)}.items()))) if settings else arm
