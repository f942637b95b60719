"""The result of one evaluation: its numbers, what is printed, and the name of its file."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from io import StringIO
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ldreg.data import DataConfig
from ldreg.text import printable

# Options that the title of a kind names already, or that have no say in the result.
_UNNAMED = (
    "protocol", "split", "datasets", "path", "html", "representations", "device", "devices", "workers",
    "checkpoint_iterations",
)  # fmt: skip
_PLAIN = ("folder", "imagenet")  # sets that are whatever lies at their path
_LONGEST = 100  # characters of a name; a hash stands for what is beyond


@dataclass(frozen=True)
class Evaluation:
    """The result of one evaluation.

    Args:
        label: the kind of result; its file's name adds the options that differ from their defaults.
        results: numbers by name.
        text: to be printed.
        minutes: time it took, including parts before an interruption.
        details: more for its file, such as the accuracy after every epoch.
        writers: functions that write further files, by the options that name these files.
    """

    label: str
    results: dict[str, Any]
    text: str
    minutes: float
    details: dict[str, Any] = field(default_factory=dict)
    writers: Mapping[str, Callable[[str], None]] = field(default_factory=dict)


def label(
    title: str,
    config: Any,
    *,
    data: DataConfig | None = None,
    own: DataConfig | None = None,
    datasets: Mapping[str, DataConfig] | None = None,
    more: Mapping[str, Any] | None = None,
) -> str:
    """The name of a result: the kind, the options that differ from their defaults, and the images.

    Args:
        title: of the kind.
        config: its options.
        data: the images, or None.
        own: those of the run, whose settings need no mention.
        datasets: instead of `data`, where there are several.
        more: options beside the config's; None and empty ones need no mention.

    >>> from ldreg.evaluate.knn import KnnConfig
    >>> label("knn", KnnConfig(), data=DataConfig()), label("knn", KnnConfig(k=20), data=DataConfig(limit=500))
    ('knn-digits', 'knn-k20-digits-limit500')
    """
    told = {field.name: getattr(config, field.name) for field in fields(config) if field.name not in _UNNAMED}
    usual = {field.name: field.default for field in fields(config)}
    changed = {name: value for name, value in told.items() if value != usual[name]}
    parts = [title, *_named({**changed, **(more or {})})]
    if getattr(config, "path", None) is not None:
        parts.append(_place(config.path))
    if data is not None:
        parts.append(_images(data, own))
    if datasets is not None:
        parts.append("+".join(_images(each, own) for each in datasets.values()))
    whole = "-".join(parts)
    return whole if len(whole) <= _LONGEST else f"{whole[: _LONGEST - 9]}-{_digits(whole)}"


def _named(options: Mapping[str, Any]) -> list[str]:
    """Options as parts of a name; a word speaks for itself, a number does not."""
    given = {name: value for name, value in options.items() if value not in (None, "")}
    return [_safe(value if isinstance(value, str) else f"{name}{value}") for name, value in given.items()]


def _images(data: DataConfig, own: DataConfig | None) -> str:
    usual = own if own is not None and own.name == data.name else DataConfig(name=data.name)
    named = {key: getattr(data, key) for key in ("limit", "resident") if getattr(data, key) != getattr(usual, key)}
    if data.validation:  # also the run's own: the plain name is for test images
        named["validation"] = data.validation
    if named.get("limit", 0) is None:
        named["limit"] = "all"
    place = [_place(data.path)] if data.name in _PLAIN and data.path not in (None, usual.path) else []
    return "-".join([data.name, *place, *_named(named)])


def _place(path: str | None) -> str:
    """A folder's own name, and digits that tell it from others of that name."""
    whole = Path(path or ".").resolve()
    return f"{_safe(whole.name)[:40]}-{_digits(str(whole))}"


def _safe(text: str) -> str:
    return re.sub(r"[^\w.+-]+", "_", text)


def _digits(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:8]


def lines(rows: Mapping[str, str]) -> str:
    """Names and values, one a line.

    >>> print(lines({"linear": "0.958", "classes": "10"}))
    linear               0.958
    classes              10
    """
    return "\n".join(f"{name:<20} {value}" for name, value in rows.items())


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, width: int = 80) -> str:
    """A table whose first column is text and whose others are numbers.

    >>> print(table(["dataset", "linear"], [["digits", "0.958"], ["shapes", "0.9"]], width=30))
     dataset               linear
    ──────────────────────────────
     digits                 0.958
     shapes                   0.9
    """
    made = Table(box=SIMPLE_HEAD, expand=True, show_edge=False, padding=(0, 1))
    for place, column in enumerate(columns):
        made.add_column(column, justify="right" if place else "left", ratio=1 if not place else None)
    for row in rows:
        made.add_row(*(Text(printable(cell)) for cell in row))
    console = Console(file=StringIO(), width=width, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(made)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
