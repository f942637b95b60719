"""The words of `ldreg reproduce` as its options."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ldreg.options import words_to_options
from ldreg.reproduce.reproduction import ReproduceOptions, Reproduction, prepare

# The largest numbers that are taken; all runs are listed before any begins.
_LARGEST: Mapping[str, int] = {"epochs": 1_000_000, "seeds": 1000, "jobs": 1000}
_PATHS = ("write", "out", "results")
_OWN = ("scale", *_LARGEST, *_PATHS, "methods", "datasets", "coco", "minutes")
_INSTEAD = {"schedule.epochs": "--epochs", "seed": "--seeds", "detection.path": "--coco"}


def parse(words: Sequence[str]) -> ReproduceOptions:
    """The options in these words.

    Raises:
        ValueError: which is wrong.

    >>> parse(["table1", "--seeds", "3", "--batch_size", "64"]).settings
    (('batch_size', '64'),)
    """
    studies, rest = words[0].lower().strip(), list(words[1:])
    if studies.startswith("-"):
        raise ValueError(f"expected the name of a table or figure, or all, got {studies!r}; --help lists them")
    if rest and not rest[0].startswith("-"):
        meant = f"{studies},{rest[0]}"
        raise ValueError(f"expected names with commas between them, as in {meant!r}, got {rest[0]!r} apart")
    options = words_to_options([word for word in rest if word not in ("--plan", "--show")])
    own = {key: value for key, value in options if key in _OWN}
    for key, value in own.items():
        if value is None or not value:
            raise ValueError(f"--{key}: expected a value, got none")
    for key, value in options:
        if key in _INSTEAD:
            raise ValueError(f"--{key}: expected {_INSTEAD[key]} in its place, got {value!r}")
        if key == "detection":
            raise ValueError(f"--detection: expected an option of it, such as --detection.lr, got {value!r}")
    others = [(key, "true" if value is None else value) for key, value in options if key not in _OWN]
    known: dict[str, Any] = {key: _typed(key, str(value)) for key, value in own.items()}
    return ReproduceOptions(
        studies,
        **known,
        plan="--plan" in rest,
        show="--show" in rest,
        detection=tuple((key.removeprefix("detection."), value) for key, value in others if _is_of_detection(key)),
        settings=tuple(pair for pair in others if not _is_of_detection(pair[0])),
        words=tuple(words),
    )


def request(words: Sequence[str]) -> Reproduction:
    """What these words ask for. Raises ValueError."""
    return prepare(parse(words))


def _is_of_detection(key: str) -> bool:
    return key.startswith("detection.")


def _typed(key: str, text: str) -> Any:
    """The value of an option.

    >>> _typed("minutes", "2.5"), _typed("seeds", "3"), _typed("scale", "digits")
    (2.5, 3, 'digits')
    """
    if key in _LARGEST:
        largest = _LARGEST[key]
        if not text.isdecimal() or len(text) > len(str(largest)) or not 1 <= int(text) <= largest:
            raise ValueError(f"--{key}: expected a whole number from 1 to {largest}, got {text!r}")
        return int(text)
    if key == "minutes":
        try:
            minutes = float(text)
        except ValueError:
            minutes = math.nan
        if not 0 < minutes < math.inf:
            raise ValueError(f"--minutes: expected a positive number, got {text!r}")
        return minutes
    return Path(text) if key in _PATHS else text
