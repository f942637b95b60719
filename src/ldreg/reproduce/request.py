"""The words of `ldreg reproduce` as its options."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ldreg.options import words_to_options
from ldreg.reproduce.options import ReproduceOptions, Reproduction, prepare

_PATHS = ("write", "out", "results")
_NUMBERS = ("epochs", "seeds", "jobs")
_OWN = ("scale", *_NUMBERS, *_PATHS, "methods", "datasets", "coco", "minutes")


def parse(words: Sequence[str]) -> tuple[str, ReproduceOptions, list[tuple[str, str | None]], str]:
    """The studies, options, settings of runs and command in these words.

    Raises:
        ValueError: which is wrong.

    >>> parse(["table1", "--seeds", "3", "--batch_size", "64"])[2:]
    ([('batch_size', '64')], 'ldreg reproduce table1 --seeds 3 --batch_size 64')
    """
    studies, rest = words[0].strip(), list(words[1:])
    if studies.startswith("-"):
        raise ValueError(f"expected the name of a table or figure, or all, got {studies!r}; --help lists them")
    if rest and not rest[0].startswith("-"):
        meant = f"{studies},{rest[0]}"
        raise ValueError(f"expected names with commas between them, as in {meant!r}, got {rest[0]!r} apart")
    given = words_to_options([word for word in rest if word not in ("--plan", "--show")])
    own: dict[str, Any] = {}
    for key, value in given:
        if key in _OWN:
            if not value:
                raise ValueError(f"--{key}: expected a value, got none")
            own[key] = _typed(key, value)
    options = ReproduceOptions(**own, plan="--plan" in rest, show="--show" in rest)
    command = shlex.join(["ldreg", "reproduce", *words])
    return studies, options, [pair for pair in given if pair[0] not in _OWN], command


def request(words: Sequence[str]) -> Reproduction:
    """What these words ask for. Raises ValueError."""
    studies, options, settings, command = parse(words)
    return prepare(studies, options, settings, command=command)


def _typed(key: str, text: str) -> Any:
    """The value of an option.

    >>> _typed("minutes", "2.5"), _typed("seeds", "3"), _typed("scale", "digits")
    (2.5, 3, 'digits')
    """
    try:
        if key in _NUMBERS:
            return int(text[:20])
        if key == "minutes":
            return float(text)
    except ValueError:
        expected = "a whole number" if key in _NUMBERS else "a positive number"
        raise ValueError(f"--{key}: expected {expected}, got {text[:20]!r}") from None
    return Path(text) if key in _PATHS else text
