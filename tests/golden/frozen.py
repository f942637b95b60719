"""What a golden case returns, in a form that is compact, comparable, and free of what changes from run to run."""

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
LONG = 12  # a longer list is replaced by its length, sum and ends
MANY = 150  # a longer list of strings is replaced by its length and a hash

# Fields whose value depends on the machine, the clock or the release; their type is frozen.
VOLATILE = {
    *("minutes", "seconds", "started", "command", "version", "ldreg", "commit", "images_per_second", "path", "cache"),
    *("key", "timm", "device", "python", "platform", "processor", "cores", "gpu", "gpus", "date", "load", "others"),
    *("threads", "memory_gb", "system", "extra_mb", "deviation", "median", "packages"),
}
PROSE = {"text", "in_words", "note", "notes", "verdicts", "deviation_of", "skipped"}  # may be worded anew


def frozen(value: Any) -> Any:
    """Replace volatile values and prose by their types, and long lists by their length, sum and ends."""
    if isinstance(value, dict):
        return {str(key): frozen_field(key, one) for key, one in sorted(value.items())}
    if isinstance(value, list | tuple):
        return frozen_list(list(value))
    if isinstance(value, str) and len(value) > 200:
        return "<long str>"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def frozen_field(key: str, value: Any) -> Any:
    if key in VOLATILE or key in PROSE:
        return kind(value)
    return value if key == "at_least" else frozen(value)


def frozen_list(values: list[Any]) -> Any:
    if len(values) <= LONG:
        return [frozen(one) for one in values]
    numbers = flat(values)
    if numbers is not None:
        total = math.fsum(number for number in numbers if math.isfinite(number))
        return {"length": len(values), "sum": total, "ends": frozen([*numbers[:3], *numbers[-3:]])}
    if all(isinstance(one, str) for one in values):
        return values if len(values) <= MANY else {"length": len(values), "digest": digest(values)}
    return {"length": len(values), "ends": frozen([values[0], values[-1]])}


def digest(value: Any) -> str:
    """A short hash of anything that JSON can write."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def flat(values: list[Any]) -> list[float] | None:
    """All numbers of a nested list, or None if it holds anything else."""
    numbers: list[float] = []
    for one in values:
        if isinstance(one, list | tuple):
            inner = flat(list(one))
            if inner is None:
                return None
            numbers += inner
        elif isinstance(one, int | float):
            numbers.append(one)
        elif one is None:
            numbers.append(math.nan)
        else:
            return None
    return numbers


def kind(value: Any) -> Any:
    """The type of a value; of a dict, that of every field."""
    if isinstance(value, dict):
        return {str(key): kind(one) for key, one in sorted(value.items())}
    return f"<{type(value).__name__}>"


def differences(expected: Any, actual: Any, tolerance: float, where: str = "") -> Iterator[str]:
    """Every place where two frozen values differ by more than the relative tolerance."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in expected | actual:
            if key == "at_least" and key in expected and key in actual:
                yield from (f"{where}: {one!r} is missing" for one in expected[key] if one not in actual[key])
            elif key not in actual:
                yield f"{where}/{key}: missing, expected {short(expected[key])}"
            elif key not in expected:
                yield f"{where}/{key}: unexpected, got {short(actual[key])}"
            else:
                yield from differences(expected[key], actual[key], tolerance, f"{where}/{key}")
    elif isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            yield f"{where}: expected {len(expected)} items, got {len(actual)}: {short(expected)} | {short(actual)}"
        for i, (one, other) in enumerate(zip(expected, actual, strict=False)):
            yield from differences(one, other, tolerance, f"{where}/{i}")
    elif isinstance(expected, float) and isinstance(actual, float):
        if not math.isclose(expected, actual, rel_tol=tolerance, abs_tol=tolerance * 1e-2):
            yield f"{where}: expected {expected!r}, got {actual!r}"
    elif type(expected) is not type(actual) or expected != actual:
        yield f"{where}: expected {short(expected)}, got {short(actual)}"


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def write(name: str, value: Any) -> None:
    (DATA / f"{name}.json").write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def read(name: str) -> Any:
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))


def round_trip(value: Any) -> Any:
    """The value as it is read back from JSON."""
    return json.loads(json.dumps(value))
