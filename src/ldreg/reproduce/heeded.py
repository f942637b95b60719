"""Which options of `ldreg reproduce` a command heeds, by its mode and its studies; others are refused."""

from collections.abc import Mapping, Sequence

from ldreg.reproduce.jobs import DETECTION, TRANSFER
from ldreg.reproduce.scales import Scale
from ldreg.reproduce.studies import Study
from ldreg.train.settings import CHANGEABLE

Given = Mapping[str, str | None]

_TRAINING = {"jobs", "minutes", "datasets", *CHANGEABLE}  # how runs are made, which tells nothing of what came of them
_SELECTING = {"seeds", "methods"}
# What is heeded where nothing is trained, as for points of the plane.
_WITHOUT_RUNS = ("scale", "out", "write")
# What single studies alone heed, by what they measure.
_OF_STUDIES: Mapping[str, tuple[str, str]] = {
    "datasets": (TRANSFER, "table2"), "coco": (DETECTION, "table3"), "detection": (DETECTION, "table3")
}  # fmt: skip


def check_mode(words: Sequence[str], options: Given, *, whole: bool) -> None:
    """Refuse what the mode would not heed; a plan is of the command without --plan, and takes all that it takes.

    Args:
        words: of the command, among them --plan and --show.
        options: by their keys.
        whole: whether all studies are asked for, among which --coco has that of detection.

    Raises:
        ValueError: which.
    """
    if "--plan" in words and "--show" in words:
        raise ValueError("--show: expected to be given without --plan, which shows no tables, got both")
    if "write" in options:
        _check_written(words, options, whole=whole)
    for word, unheeded in (("--plan", ["minutes"]), ("--show", _of_training(options, whole=whole))):
        found = [key for key in unheeded if key in options]
        if found and word in words:
            raise ValueError(f"{_named(found)}: expected to be given without {word}, which trains nothing, got both")


def _check_written(words: Sequence[str], options: Given, *, whole: bool) -> None:
    """Refuse beside --write what it would not heed. Raises ValueError."""
    for word in ("--plan", "--show"):
        if word in words:
            raise ValueError(f"--write: expected to be given without {word}, got both")
    if "out" in options and "results" in options:
        raise ValueError("--out: expected to be given without --results, which --write reads in its place, got both")
    unheeded = {*_of_training(options, whole=whole), *_SELECTING}
    found = [key for key in options if key in unheeded]
    if found:
        values = ", ".join(repr(options[key]) for key in found)
        raise ValueError(f"{_named(found)}: expected to be left out, as --write takes all records, got {values}")


def _of_training(options: Given, *, whole: bool) -> list[str]:
    """Those of the options that say how runs are made."""
    return [key for key in options if key in _TRAINING or key.startswith("detection.") or (key == "coco" and not whole)]


def check_studies(options: Given, studies: Sequence[Study], scale: Scale) -> None:
    """Refuse what none of the studies would heed.

    Raises:
        ValueError: which, and the study that heeds it.
    """
    names = ", ".join(study.name for study in studies)
    for key, value in options.items():
        if key == "detection":
            raise ValueError(f"--detection: expected an option of it, such as --detection.lr, got {value!r}")
        measure, heeding = _OF_STUDIES.get(key.partition(".")[0], ("", ""))
        if measure and not any(measure in study.measures for study in studies):
            raise ValueError(f"--{key}: expected beside {heeding}, which alone heeds it, got {value!r} beside {names}")
    if not any(study.rows(scale) for study in studies):
        for key, value in options.items():
            if key not in _WITHOUT_RUNS:
                raise ValueError(f"--{key}: expected to be left out, as nothing is trained for {names}, got {value!r}")


def _named(keys: Sequence[str]) -> str:
    return ", ".join(f"--{key}" for key in keys)
