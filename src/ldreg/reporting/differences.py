"""What differs between runs: the rows and sentences that the terminal's table and the page both show."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ldreg.reporting.run_record import ACCURACIES, SHARES, RunRecord
from ldreg.reporting.text import count, number, percent, printable

TITLES = {
    "lid": "LID, geometric mean",
    "effective_rank": "Effective rank",
    "linear": "Linear probe",
    "linear_best": "Linear probe, best epoch",
    "knn": "kNN accuracy",
    "finetune": "Fine-tuned",
    "rankme": "RankMe",
    "frechet_variance": "Fréchet variance of LID",
    "degenerate": "Degenerate points",
    "loss": "Loss",
    "minutes": "Minutes of training",
    "images_per_second": "Images per second",
}
HEADLINES = ("lid", "effective_rank", "linear", "knn")  # what the words and tiles are about

_WORDS = {"lid": "LID", "effective_rank": "effective rank", "linear": "linear-probe accuracy", "knn": "kNN accuracy"}
_SYMBOLS = {"beta": "β"}
_SPOKEN_RUNS = 4  # of more runs the words give the range
_SPOKEN_SETTINGS = 3


class Cell(NamedTuple):
    """A value, and how it differs from the first run's (empty for the first, and where one of the two is missing)."""

    value: str
    change: str


def metric_title(key: str) -> str:
    """The name of a result as a heading; of an unknown one, its key as words."""
    return TITLES.get(key) or printable(key.replace("_", " "))


def metric_value(key: str, value: float) -> str:
    """A result as people read it: accuracies and other shares in percent, NaN as a dash.

    >>> metric_value("linear", 0.9612), metric_value("lid", 7.4), metric_value("lid", float("nan"))
    ('96.1 %', '7.40', '–')
    """
    return percent(value) if key in SHARES and math.isfinite(value) else number(value)


def change(key: str, value: float, first: float) -> str:
    """How a result differs from the first run's: points of percent for shares, else the relative difference.

    >>> change("linear", 0.961, 0.968), change("lid", 9.1, 7.4), change("lid", 7.4, 7.4)
    ('−0.7 points', '+23 %', '±0')
    """
    if not (math.isfinite(value) and math.isfinite(first)):
        return ""
    if metric_value(key, value) == metric_value(key, first):
        return "±0"
    if key in SHARES:
        return f"{_signed(100 * (value - first), 1)} points"
    if first > 0:
        relative = 100 * (value - first) / first
        return f"{_signed(relative, 0 if abs(relative) >= 9.95 else 1)} %"
    return ("+" if value > first else "−") + number(abs(value - first))


def run_names(records: Sequence[RunRecord]) -> list[str]:
    """The runs' names, told apart by a number where they are the same."""
    names = [printable(record.name) or "unnamed" for record in records]
    return [
        name if names.count(name) == 1 else f"{name} ({names[: place + 1].count(name)})"
        for place, name in enumerate(names)
    ]


def result_rows(records: Sequence[RunRecord]) -> list[tuple[str, list[Cell]]]:
    """Title and one cell for each run, for every result that some run has; the known ones first."""
    return [(metric_title(key), _cells(key, records)) for key in ordered_keys(record.results for record in records)]


def headline_rows(records: Sequence[RunRecord]) -> list[tuple[str, list[Cell]]]:
    """Those of `result_rows` that matter most and that some run has a value for."""
    return [(metric_title(key), _cells(key, records)) for key in _headlines(records)]


def ordered_keys(mappings: Iterable[Iterable[str]]) -> list[str]:
    """All keys once: known results in the order of their importance, then the rest as they come."""
    found = list(dict.fromkeys(key for mapping in mappings for key in mapping))
    return [key for key in TITLES if key in found] + [key for key in found if key not in TITLES]


def setting_rows(records: Sequence[RunRecord], *, differing: bool) -> list[tuple[str, list[str]]]:
    """Settings by key with the value of each run, all of them or those that are not the same in all runs."""
    keys = dict.fromkeys(key for record in records for key in record.settings)
    rows = [(key, [_setting(record, key) for record in records]) for key in keys]
    return [(printable(key), values) for key, values in rows if not differing or len(set(values)) > 1]


def in_words(records: Sequence[RunRecord]) -> list[str]:
    """What differs between the runs and what came of it, and what chance may have to do with it, in sentences."""
    first, *others = run_names(records)
    headlines = _headlines(records)
    if not others:
        facts = [f"{_WORDS[key]} is {metric_value(key, records[0].results[key])}" for key in headlines]
        return [f"{first}: {_listed(facts)}."] if facts else []
    sentences = [_settings_sentence(records)]
    if len(records) <= _SPOKEN_RUNS:
        for name, record in zip(others, records[1:], strict=True):
            sentences += _against(name, record, first, records[0], alone=len(records) == 2)
    else:
        sentences += [_range(key, records) for key in headlines]
    return [*sentences, *_caveats(records)]


def remarks(records: Sequence[RunRecord]) -> list[str]:
    """What the runs themselves have to say on what is missing, each with the run's name."""
    named = zip(run_names(records), records, strict=True)
    return [f"{name}: {printable(note)}" for name, record in named for note in record.notes]


def _cells(key: str, records: Sequence[RunRecord]) -> list[Cell]:
    first, *others = [record.results.get(key, math.nan) for record in records]
    return [Cell(metric_value(key, first), ""), *(Cell(metric_value(key, x), change(key, x, first)) for x in others)]


def _headlines(records: Sequence[RunRecord]) -> list[str]:
    return [key for key in HEADLINES if any(not math.isnan(record.results.get(key, math.nan)) for record in records)]


def _settings_sentence(records: Sequence[RunRecord]) -> str:
    keys = [key for key, _ in setting_rows(records, differing=True)]
    if not keys:
        return "The runs have the same settings."
    if len(keys) > 2 * _SPOKEN_SETTINGS:
        return f"The runs differ in {len(keys)} settings."
    return f"The runs differ in {_listed(keys)}."


def _against(name: str, record: RunRecord, first: str, base: RunRecord, *, alone: bool) -> list[str]:
    """What changed from one run to another, in a sentence; none where they have no result in common."""
    facts = []
    for key in HEADLINES:
        value, before = record.results.get(key, math.nan), base.results.get(key, math.nan)
        if math.isnan(value) or math.isnan(before):
            continue
        shown, shown_before = metric_value(key, value), metric_value(key, before)
        compared = change(key, value, before)
        facts.append(
            f"{_WORDS[key]} is the same ({shown})"
            if shown == shown_before
            else f"{_WORDS[key]} is {shown} instead of {shown_before}" + (f" ({compared})" if compared else "")
        )
    origin = "" if alone else f" against {first}"
    return [f"With {name}{_settings_of(record, base)}{origin}, {_listed(facts)}."] if facts else []


def _settings_of(record: RunRecord, base: RunRecord) -> str:
    """The settings of a run that another does not have, in parentheses."""
    rows = [(key, values[1]) for key, values in setting_rows([base, record], differing=True) if values[1] != "–"]
    parts = [f"{_spoken(key)} = {value}" for key, value in rows]
    if len(parts) > _SPOKEN_SETTINGS:
        parts = [*parts[:_SPOKEN_SETTINGS], f"and {len(parts) - _SPOKEN_SETTINGS} more settings"]
    return f" ({', '.join(parts)})" if parts else ""


def _spoken(key: str) -> str:
    leaf = key.rpartition(".")[2]
    return _SYMBOLS.get(leaf, leaf)


def _range(key: str, records: Sequence[RunRecord]) -> str:
    """Between which runs a result lies."""
    word = _WORDS[key] if key == "knn" else _WORDS[key][0].upper() + _WORDS[key][1:]
    known = [
        (record.results[key], name)
        for name, record in zip(run_names(records), records, strict=True)
        if not math.isnan(record.results.get(key, math.nan))
    ]
    (low, lowest), (high, highest) = min(known), max(known)
    return f"{word} goes from {metric_value(key, low)} ({lowest}) to {metric_value(key, high)} ({highest})."


def _caveats(records: Sequence[RunRecord]) -> list[str]:
    sentences = []
    conditions = [
        [(key, _setting(record, key)) for key in sorted(record.settings) if key != "seed"] for record in records
    ]
    if any(condition in conditions[:place] for place, condition in enumerate(conditions)):
        sentences.append("Runs that differ in nothing but their seed show how large chance is.")
    elif any(key in ACCURACIES for record in records for key in record.results):
        sentences.append("One run each: differences of a point or so in accuracy are within chance.")
    else:
        sentences.append("One run each: how much of a difference is chance is not known.")
    return [*sentences, *_incomparable(records)]


def _incomparable(records: Sequence[RunRecord]) -> list[str]:
    """Where LID must not be compared because it was not measured alike, in sentences."""
    measured = [record for record in records if record.measured]
    sentences = []
    images = sorted({_setting(record, "data.name") for record in measured})
    if len(images) > 1:
        sentences.append(f"The runs were measured on different images ({_listed(images)}): do not compare their LID.")
    sizes = sorted({record.measured for record in measured})
    if len(sizes) > 1:
        points = f"{count(sizes[0])} and {count(sizes[-1])}"
        sentences.append(f"LID was measured on sets of between {points} points, which alone changes it.")
    neighbors = sorted({record.k for record in measured if record.k is not None})
    if len(neighbors) > 1:
        values = _listed([str(k) for k in neighbors])
        sentences.append(f"LID was estimated from k = {values} neighbors, which alone changes it.")
    return sentences


def _setting(record: RunRecord, key: str) -> str:
    return _written(record.settings[key]) if key in record.settings else "–"


def _written(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_written, value)) or "none"
    return printable(str(value))


def _signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def _listed(parts: Sequence[str]) -> str:
    """The parts with commas, and a word before the last.

    >>> _listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
