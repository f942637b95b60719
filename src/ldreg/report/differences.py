"""What differs between runs: the rows and sentences that the terminal's table and the page both show."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ldreg.record import ACCURACIES, Record, brief, is_share
from ldreg.text import count, duration, number, percent, printable

TITLES = {
    "lid": "LID, geometric mean",
    "lid_low": "LID, 5 % quantile",
    "effective_rank": "Effective rank",
    "linear": "Linear probe",
    "linear_best": "Linear probe, best epoch",
    "knn": "kNN accuracy",
    "finetune": "Fine-tuned",
    "transfer": "Transfer",
    "box_ap": "AP box",
    "box_ap50": "AP50 box",
    "box_ap75": "AP75 box",
    "mask_ap": "AP mask",
    "mask_ap50": "AP50 mask",
    "mask_ap75": "AP75 mask",
    "rankme": "RankMe",
    "frechet_variance": "Fréchet variance of LID",
    "degenerate": "Degenerate points",
    "view_share": "Share of the view",
    "loss": "Loss",
    "minutes": "Minutes of training",
    "images_per_second": "Images per second",
}
# What comes before the detail of a result that has one, such as "knn/k = 20".
_DETAILED = {
    "lid": "LID, ",
    "effective_rank": "Effective rank, ",
    "linear": "Linear, ",
    "knn": "kNN, ",
    "finetune": "Fine-tuned, ",
    "transfer": "Transfer to ",
}
_FISHER_RAO = "Fisher-Rao distance of LID"
_CARD_STEP = 0.01  # minutes that a run's own account of its time is rounded to
HEADLINES = ("lid", "effective_rank", "linear", "knn")  # what the words and tiles are about

_WORDS = {
    "lid": "LID",
    "lid_low": "5 % quantile of LID",
    "effective_rank": "effective rank",
    "linear": "linear-probe accuracy",
    "knn": "kNN accuracy",
}
_SYMBOLS = {"beta": "β"}
_SPOKEN_RUNS = 4  # of more runs the words give the range
_SPOKEN_SETTINGS = 3


class Cell(NamedTuple):
    """A value, and how it differs from the first run's (empty for the first, and where one of the two is missing)."""

    value: str
    change: str


def metric_title(key: str) -> str:
    """The name of a result as a heading; of an unknown one, its key as words.

    >>> metric_title("knn"), metric_title("knn/k = 20"), metric_title("transfer/shapes"), metric_title("my_own")
    ('kNN accuracy', 'kNN, k = 20', 'Transfer to shapes', 'my own')
    """
    what, _, detail = key.partition("/")
    if detail and what in TITLES:
        return _DETAILED.get(what, f"{TITLES[what]}, ") + printable(detail)
    return TITLES.get(key) or printable(key.replace("_", " "))


def metric_value(key: str, value: float) -> str:
    """A result as people read it: accuracies and other shares in percent, NaN as a dash.

    >>> metric_value("linear", 0.9612), metric_value("lid", 7.4), metric_value("lid", float("nan"))
    ('96.1 %', '7.40', '–')
    >>> metric_value("minutes", 0.08)
    '4.8 s'
    """
    if key == "minutes":
        return duration(value)
    return percent(value) if is_share(key) and math.isfinite(value) else number(value)


def change(key: str, value: float, first: float) -> str:
    """How a result differs from the first run's: points of percent for shares, else the relative difference.

    >>> change("linear", 0.961, 0.968), change("lid", 9.1, 7.4), change("lid", 7.4, 7.4)
    ('−0.7 points', '+23 %', '±0')
    >>> change("minutes", 0.08, 0.09)  # rounded to hundredths by the runs, these may be the same
    ''
    """
    if not (math.isfinite(value) and math.isfinite(first)):
        return ""
    if key == "minutes" and abs(value - first) <= _rounding(max(value, first)):
        return ""
    if metric_value(key, value) == metric_value(key, first):
        return "±0"
    if is_share(key):
        return f"{_signed(100 * (value - first), 1)} points"
    if first > 0:
        relative = 100 * (value - first) / first
        return f"{_signed(relative, 0 if abs(relative) >= 9.95 else 1)} %"
    return ("+" if value > first else "−") + number(abs(value - first))


def run_names(records: Sequence[Record]) -> list[str]:
    """The runs' names, told apart by a number where they are the same."""
    names = [printable(record.name) or "unnamed" for record in records]
    return [
        name if names.count(name) == 1 else f"{name} ({names[: place + 1].count(name)})"
        for place, name in enumerate(names)
    ]


def result_rows(records: Sequence[Record]) -> list[tuple[str, list[Cell]]]:
    """Title and one cell for each run, for every result that some run has; the known ones first."""
    keys = ordered_keys(record.results for record in records)
    rows = [("Training time" if key == "minutes" else metric_title(key), _cells(key, records)) for key in keys]
    distances = _distances(records)
    return (
        [*rows[: keys.index("lid") + 1], (_FISHER_RAO, distances), *rows[keys.index("lid") + 1 :]]
        if distances
        else rows
    )


def headline_rows(records: Sequence[Record]) -> list[tuple[str, list[Cell]]]:
    """Those of `result_rows` that matter most and that some run has a value for."""
    return [(metric_title(key), _cells(key, records)) for key in _headlines(records)]


def ordered_keys(mappings: Iterable[Iterable[str]]) -> list[str]:
    """All keys once: known results in the order of their importance, then the rest as they come."""
    found = list(dict.fromkeys(key for mapping in mappings for key in mapping))
    order = list(TITLES)

    def rank(key: str) -> int:
        what = key.partition("/")[0]
        return order.index(what) if what in TITLES else len(order)

    return sorted(found, key=rank)


def setting_rows(records: Sequence[Record], *, differing: bool) -> list[tuple[str, list[str]]]:
    """Settings by key with the value of each run, all of them or those that are not the same in all runs."""
    keys = dict.fromkeys(key for record in records for key in record.settings)
    rows = [(key, [_setting(record, key) for record in records]) for key in keys]
    return [(printable(key), values) for key, values in rows if not differing or len(set(values)) > 1]


def in_words(records: Sequence[Record]) -> list[str]:
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
        sentences += [_range(key, records) for key in _known(records, (*HEADLINES[:1], "lid_low", *HEADLINES[1:]))]
    return [*sentences, *_caveats(records)]


def remarks(records: Sequence[Record]) -> list[str]:
    """What the runs themselves have to say on what is missing, each with the run's name."""
    named = zip(run_names(records), records, strict=True)
    return [f"{name}: {printable(note)}" for name, record in named for note in record.notes]


def finding_lines(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Severity and sentence of what was found in each run; runs without a finding share one line, the last."""
    told, without = [], []
    for name, record in zip(run_names(records), records, strict=True):
        for found in brief(record.findings):
            if found.kind == "nothing_unusual":
                without.append(name)
            else:
                lead = name if found.of == "representations" else f"{name}, {printable(found.of)}"
                told.append((found.severity, f"{lead}: {printable(found.text)}"))
    return [*told, *([("note", f"{_listed(without)}: nothing unusual found.")] if without else [])]


def class_rows(records: Sequence[Record]) -> list[tuple[str, list[Cell]]]:
    """Class and one cell of LID for each run, the lowest class of the first run first."""
    lowest: dict[str, float] = {}
    for record in records:
        for label, value in record.classes.items():
            lowest.setdefault(label, value)
    order = sorted(lowest, key=lambda label: (math.isnan(lowest[label]), lowest[label]))
    return [
        (printable(label), _compared("lid", [record.classes.get(label, math.nan) for record in records]))
        for label in order
    ]


def _cells(key: str, records: Sequence[Record]) -> list[Cell]:
    return _compared(key, [record.results.get(key, math.nan) for record in records])


def _compared(key: str, values: Sequence[float]) -> list[Cell]:
    first, *others = values
    return [Cell(metric_value(key, first), ""), *(Cell(metric_value(key, x), change(key, x, first)) for x in others)]


def _distances(records: Sequence[Record]) -> list[Cell]:
    """|ln ratio| of the mean LIDs of each run and the first; none where no two runs have one."""
    means = [record.results.get("lid", math.nan) for record in records]
    logs = [math.log(mean) if math.isfinite(mean) and mean > 0 else math.nan for mean in means]
    distances = [abs(log - logs[0]) for log in logs[1:]]
    return (
        [Cell("–", ""), *(Cell(number(each), "") for each in distances)] if any(map(math.isfinite, distances)) else []
    )


def _rounding(minutes: float) -> float:
    """By how much a time may be off as it is shown and as it is kept, in minutes."""
    steps = ((1 / 6, 0.1 / 60), (2, 1 / 60), (10, 0.1), (120, 1), (600, 6), (2880, 60), (math.inf, 144))
    return max(_CARD_STEP, next(step for most, step in steps if minutes < most)) + 1e-9


def _headlines(records: Sequence[Record]) -> list[str]:
    return _known(records, HEADLINES)


def _known(records: Sequence[Record], keys: Iterable[str]) -> list[str]:
    """The keys that some run has a value for."""
    return [key for key in keys if any(not math.isnan(record.results.get(key, math.nan)) for record in records)]


def _settings_sentence(records: Sequence[Record]) -> str:
    keys = [key for key, _ in setting_rows(records, differing=True)]
    if not keys:
        return "The runs have the same settings."
    if len(keys) > 2 * _SPOKEN_SETTINGS:
        return f"The runs differ in {len(keys)} settings."
    return f"The runs differ in {_listed(keys)}."


def _against(name: str, record: Record, first: str, base: Record, *, alone: bool) -> list[str]:
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
    lead = [f"With {name}{_settings_of(record, base)}{origin}, {_listed(facts)}."] if facts else []
    return [*lead, *_lowest(name, record, base, alone=alone)]


def _lowest(name: str, record: Record, base: Record, *, alone: bool) -> list[str]:
    """Whether the points of lowest LID rose from one run to another."""
    value, before = (run.results.get("lid_low", math.nan) for run in (record, base))
    if not (math.isfinite(value) and math.isfinite(before)):
        return []
    shown, shown_before = metric_value("lid_low", value), metric_value("lid_low", before)
    which = "The lowest points" if alone else f"The lowest points of {name}"
    if shown == shown_before:
        return [f"{which} stayed: the 5 % quantile of LID is the same ({shown})."]
    moved, compared = "rose" if value > before else "fell", change("lid_low", value, before)
    return [f"{which} {moved}: the 5 % quantile of LID is {shown} instead of {shown_before} ({compared})."]


def _settings_of(record: Record, base: Record) -> str:
    """The settings of a run that another does not have, in parentheses."""
    rows = [(key, values[1]) for key, values in setting_rows([base, record], differing=True) if values[1] != "–"]
    parts = [f"{_spoken(key)} = {value}" for key, value in rows]
    if len(parts) > _SPOKEN_SETTINGS + 1:  # one more is named in as many words
        parts = [*parts[:_SPOKEN_SETTINGS], f"and {len(parts) - _SPOKEN_SETTINGS} more settings"]
    return f" ({', '.join(parts)})" if parts else ""


def _spoken(key: str) -> str:
    leaf = key.rpartition(".")[2]
    return _SYMBOLS.get(leaf, leaf)


def _range(key: str, records: Sequence[Record]) -> str:
    """Between which runs a result lies."""
    word = _WORDS[key] if key == "knn" else _WORDS[key][0].upper() + _WORDS[key][1:]
    known = [
        (record.results[key], name)
        for name, record in zip(run_names(records), records, strict=True)
        if not math.isnan(record.results.get(key, math.nan))
    ]
    (low, lowest), (high, highest) = min(known), max(known)
    return f"{word} goes from {metric_value(key, low)} ({lowest}) to {metric_value(key, high)} ({highest})."


def _caveats(records: Sequence[Record]) -> list[str]:
    sentences = []
    conditions = [
        [(key, _setting(record, key)) for key in sorted(record.settings) if key != "seed"] for record in records
    ]
    if any(condition in conditions[:place] for place, condition in enumerate(conditions)):
        sentences.append("Runs that differ in nothing but their seed show how large chance is.")
    elif any(key in ACCURACIES for record in records for key in record.results):
        sentences.append(
            f"One run each: differences of {_chance(records)} and of some percent in LID and effective rank are within "
            "chance."
        )
    else:
        sentences.append(
            "One run each: how much of a difference is chance is not known; LID and effective rank vary by some "
            "percent from seed to seed."
        )
    return [*sentences, *_incomparable(records)]


def _chance(records: Sequence[Record]) -> str:
    """Up to which difference of each accuracy is within chance."""
    # From seed to seed accuracies vary by a point or so, however many images there are.
    noise = {key: max(points, 1.0) for key, points in chances(records).items()}
    if max(noise.values(), default=1.0) == 1:
        return "a point or so in accuracy"
    told = [f"up to {points:.{0 if points >= 10 else 1}f} points in {_WORDS[key]}" for key, points in noise.items()]
    fewest = min(record.tested for record in records if record.tested)
    return f"{_listed(told)} (with {count(fewest)} test images)"


def chances(records: Sequence[Record]) -> dict[str, float]:
    """Up to which difference to the first run, in points, the test images alone may make, for each accuracy."""
    base, *others = records
    found: dict[str, float] = {}
    for record in others:
        for key in HEADLINES:
            shares = record.results.get(key, math.nan), base.results.get(key, math.nan)
            if key in ACCURACIES and record.tested and base.tested and math.isfinite(sum(shares)):
                noise = sampling_noise(shares, min(record.tested, base.tested))
                found[key] = max(noise, found.get(key, 0.0))
    return found


def sampling_noise(shares: tuple[float, float], tested: int) -> float:
    """The difference of two accuracies that so many test images may make by chance, in points: twice its error.

    >>> round(sampling_noise((0.70, 0.75), 60), 1), round(sampling_noise((0.785, 0.790), 10_000), 1)
    (16.3, 1.2)
    """
    least = 1 / max(tested, 2)  # as of one image more or less: none right and all right are no sure 0 and 1
    inner = [min(max(share, least), 1 - least) for share in shares]
    return min(200 * math.sqrt(sum(share * (1 - share) / tested for share in inner)), 100.0)


def what_was_measured(records: Sequence[Record]) -> list[str]:
    """On which images and with which k results were measured: one sentence, or one for each run where they differ."""
    told = [_measured(record) for record in records]
    known = [text for text in told if text]
    if not known:
        return []
    if len(set(told)) == 1:
        return [f"{known[0]}."]
    return [f"{name}: {text}." for name, text in zip(run_names(records), told, strict=True) if text]


def _measured(record: Record) -> str:
    """Of one run, as far as its record says."""
    parts = []
    if record.measured and record.k is not None:
        some = record.images is not None and record.images > record.measured
        of = f" of {count(record.images or 0)}" if some else ""
        what = "LID" if some else "LID and effective rank"
        parts.append(f"{what}: {count(record.measured)}{of} training images, k = {record.k}")
        parts += ["effective rank: all of them"] if some else []
    if record.tested:
        probes = ["linear probe (logistic regression)"] if "linear" in record.results else []
        probes += [f"kNN (k = {record.voters})"] if "knn" in record.results and record.voters else []
        parts += [f"{' and '.join(probes)}: {count(record.tested)} test images"] if probes else []
    return "; ".join(parts)


def _incomparable(records: Sequence[Record]) -> list[str]:
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


def _setting(record: Record, key: str) -> str:
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
