"""What `ldreg evaluate` left in the folder of a run, as rows of a report."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ldreg.assessment.source import Source
from ldreg.assessment.transfer import default_folder
from ldreg.io.files import read_text
from ldreg.record import PRECISIONS
from ldreg.text import printable

Told = Mapping[str, Any]

_LONGEST = 300  # characters of what is said of a file that is left out


def evaluated(source: Source, *, images: str | None = None) -> tuple[dict[str, float], list[str]]:
    """Results by the keys that a report knows, such as "knn/k = 20", and a note for each file that is left out.

    Left out is what cannot be read, and what was measured of other weights.

    Args:
        source: the encoder, with its run folder; a plain checkpoint has no results of its own.
        images: name of the data that need not be told; results on others say on which.
    """
    results: dict[str, float] = {}
    notes: list[str] = []
    if source.folder is None:
        return results, notes
    for path in sorted(default_folder(source).glob("*.json")):
        try:
            found = _results(path, source.encoder.key, images)
        except (ValueError, OSError, RecursionError) as error:
            reason = printable(" ".join(str(error).split()))[:_LONGEST]
            notes.append(f"{path.parent.name}/{printable(path.name)} is left out: {reason}")
            continue
        for key, value in found.items():  # of two by other options, such as seeds, the file's name tells the second
            name = f" ({path.stem})" if "/" in key else f"/{path.stem}"
            results[key + name if key in results else key] = value
    return results, notes


def _results(path: Path, key: str, images: str | None) -> dict[str, float]:
    """The rows of one file.

    Raises:
        ValueError: it is damaged, or of other weights.
    """
    try:
        told = _mapping(json.loads(read_text(path)), "a JSON object")
    except UnicodeDecodeError as error:
        raise ValueError("expected JSON, got a file that is not text") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"expected JSON, got {error}") from error
    kind = told.get("kind")
    if kind not in _ROWS:
        raise ValueError(f"kind: expected one of {', '.join(_ROWS)}, got {kind!r}")
    if _part(told, "source").get("key") != key:
        raise ValueError("it was measured of other weights than the run has now")
    return _ROWS[kind](told, _suffix(told, images))


def _suffix(told: Told, images: str | None) -> str:
    """On which images it was, where they are not those of the report."""
    if told.get("data") is None:
        return ""
    name = _part(told, "data").get("name")
    return "" if name == images else f" on {name}"


def _linear(told: Told, suffix: str) -> dict[str, float]:
    return {f"linear/{_part(told, 'options').get('protocol')} protocol{suffix}": _share(told, "linear")}


def _knn(told: Told, suffix: str) -> dict[str, float]:
    return {f"knn/k = {_number(told, 'k'):g}{suffix}": _share(told, "knn")}


def _finetuned(told: Told, suffix: str) -> dict[str, float]:
    part = _finite(_part(told, "options").get("fraction"), "fraction")
    labels = "all labels" if part == 1 else f"{100 * part:g} % of labels"
    return {f"finetune/{labels}{suffix}": _share(told, "finetune")}


def _dimension(told: Told, suffix: str) -> dict[str, float]:
    split = _part(told, "options").get("split")
    return {
        f"lid/{split} images, k = {_number(told, 'k'):g}{suffix}": _number(told, "lid"),
        f"effective_rank/{split} images{suffix}": _number(told, "effective_rank"),
    }


def _transferred(told: Told, suffix: str) -> dict[str, float]:
    """`suffix` is about the run's own images, which do not matter here."""
    protocol = _part(told, "options").get("protocol")
    how = "" if protocol == "transfer" else f", {protocol} protocol"
    return {
        f"transfer/{name}{how}": _share({"results": numbers}, "linear")
        for name, numbers in _part(told, "results").items()
    }


def _detected(told: Told, suffix: str) -> dict[str, float]:
    return {name: _share(told, name) for name in PRECISIONS}


_ROWS: dict[str, Callable[[Told, str], dict[str, float]]] = {
    "linear": _linear,
    "knn": _knn,
    "finetune": _finetuned,
    "dimension": _dimension,
    "transfer": _transferred,
    "detection": _detected,
}


def _mapping(value: Any, expected: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"expected {expected}, got {type(value).__name__}")
    return value


def _part(told: Told, name: str) -> dict[str, Any]:
    return _mapping(told.get(name), f"an object {name!r}")


def _number(told: Told, name: str) -> float:
    return _finite(_part(told, "results").get(name), f"results: {name}")


def _finite(value: Any, name: str) -> float:
    """A number that a table can show."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1e30:
        raise ValueError(f"{name}: expected a finite number, got {json.dumps(value)[:40]}")
    return float(value)


def _share(told: Told, name: str) -> float:
    found = _number(told, name)
    if not 0 <= found <= 1:
        raise ValueError(f"results: {name}: expected a share from 0 to 1, got {found:g}")
    return found
