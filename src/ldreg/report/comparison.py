"""What differs between runs: names and values of results, tables, and the sentences that no table shows."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from ldreg.record import ACCURACIES, Record, brief, is_share
from ldreg.report.tables import Cell, Table, rendered, text_parts
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
HEADLINES = ("lid", "effective_rank", "linear", "knn")
FEW_RUNS = 3  # of more runs, a terminal shows runs as rows

# Start of the title of a result with a detail, such as "knn/k = 20".
_DETAILED = {
    "lid": "LID, ",
    "effective_rank": "Effective rank, ",
    "linear": "Linear, ",
    "knn": "kNN, ",
    "finetune": "Fine-tuned, ",
    "transfer": "Transfer to ",
}
_ACCURACY_NAMES = {"linear": "linear-probe accuracy", "knn": "kNN accuracy"}
_CLASSES_AS_TEXT = 10  # the lowest; the page has all
_NAMED_SETTINGS = 6
_DASH = number(None)


def metric_title(key: str) -> str:
    """The name of a result as a heading; an unknown key as words.

    >>> metric_title("knn"), metric_title("knn/k = 20"), metric_title("transfer/shapes"), metric_title("my_own")
    ('kNN accuracy', 'kNN, k = 20', 'Transfer to shapes', 'my own')
    """
    what, _, detail = key.partition("/")
    if detail and what in TITLES:
        return _DETAILED.get(what, f"{TITLES[what]}, ") + printable(detail)
    return TITLES.get(key) or printable(key.replace("_", " "))


def metric_value(key: str, value: float) -> str:
    """A result as text: shares in percent, times with their unit, NaN as a dash.

    >>> metric_value("linear", 0.9612), metric_value("lid", 7.4), metric_value("lid", float("nan"))
    ('96.1 %', '7.40', '–')
    >>> metric_value("minutes", 0.08)
    '4.8 s'
    """
    if key == "minutes":
        return duration(value)
    return percent(value) if is_share(key) and math.isfinite(value) else number(value)


def change(key: str, value: float, first: float) -> str:
    """The difference of a result to the first run's: in points of percent for shares, else relative.

    >>> change("linear", 0.961, 0.968), change("lid", 9.1, 7.4), change("lid", 7.4, 7.4)
    ('−0.7 points', '+23 %', '±0')
    >>> change("minutes", 0.08, 0.09)  # may be equal before rounding
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


def _rounding(minutes: float) -> float:
    """The rounding error of a time in minutes, as displayed and as stored (to hundredths)."""
    steps = ((1 / 6, 0.1 / 60), (2, 1 / 60), (10, 0.1), (120, 1), (600, 6), (2880, 60), (math.inf, 144))
    return max(0.01, next(step for most, step in steps if minutes < most)) + 1e-9


def _signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def run_names(records: Sequence[Record]) -> list[str]:
    """The names of the runs, numbered where they are equal."""
    names = [printable(record.name) or "unnamed" for record in records]
    return [
        name if names.count(name) == 1 else f"{name} ({names[: place + 1].count(name)})"
        for place, name in enumerate(names)
    ]


def ordered_keys(mappings: Iterable[Iterable[str]]) -> list[str]:
    """All keys once: known results by importance, then the others as they come."""
    found = dict.fromkeys(key for mapping in mappings for key in mapping)
    order = list(TITLES)

    def rank(key: str) -> int:
        what = key.partition("/")[0]
        return order.index(what) if what in TITLES else len(order)

    return sorted(found, key=rank)


def result_table(records: Sequence[Record]) -> Table:
    """Every result of any run, with the differences to the first run."""
    rows = []
    for key in ordered_keys(record.results for record in records):
        values = [record.results.get(key, math.nan) for record in records]
        rows.append([Cell("Training time" if key == "minutes" else metric_title(key)), *_compared(key, values)])
        if key == "lid":
            rows += _fisher_rao_row(values)
    return Table(["", *run_names(records)], rows, title="Results")


def headline_table(records: Sequence[Record]) -> Table:
    """The most important results that some run has."""
    rows = []
    for key in HEADLINES:
        values = [record.results.get(key, math.nan) for record in records]
        if not all(map(math.isnan, values)):
            rows.append([Cell(metric_title(key)), *_compared(key, values)])
    return Table(["", *run_names(records)], rows)


def class_table(records: Sequence[Record]) -> Table:
    """LID of each class in each run, the lowest class of the first run first."""
    lowest: dict[str, float] = {}
    for record in records:
        for label, value in record.classes.items():
            lowest.setdefault(label, value)
    order = sorted(lowest, key=lambda label: (math.isnan(lowest[label]), lowest[label]))
    rows = [
        [Cell(label), *_compared("lid", [record.classes.get(label, math.nan) for record in records])] for label in order
    ]
    return Table(["", *run_names(records)], rows, title="LID per class")


def setting_table(records: Sequence[Record], *, differing: bool) -> Table:
    """The settings of each run, all of them or those that differ."""
    rows = []
    for key in dict.fromkeys(key for record in records for key in record.settings):
        values = [_setting(record, key) for record in records]
        if not differing or len(set(values)) > 1:
            rows.append([*map(Cell, (key, *values))])
    return Table(["", *run_names(records)], rows, title="Settings that differ" if differing else "All settings")


def _compared(key: str, values: Sequence[float]) -> list[Cell]:
    first, *others = values
    return [
        Cell(metric_value(key, first)),
        *(Cell(metric_value(key, value), remark=change(key, value, first)) for value in others),
    ]


def _fisher_rao_row(means: Sequence[float]) -> list[list[Cell]]:
    """|ln ratio| of the mean LIDs of each run and the first; empty if no two runs have one."""
    logs = [math.log(mean) if math.isfinite(mean) and mean > 0 else math.nan for mean in means]
    distances = [abs(log - logs[0]) for log in logs[1:]]
    if not any(map(math.isfinite, distances)):
        return []
    return [[Cell("Fisher-Rao distance of LID"), Cell(_DASH), *(Cell(number(each)) for each in distances)]]


def finding_lines(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Severity and sentence of the findings in each run; runs without one share the last line."""
    lines, without = [], []
    for name, record in zip(run_names(records), records, strict=True):
        for found in brief(record.findings):
            if found.kind == "nothing_unusual":
                without.append(name)
            else:
                lead = name if found.of == "representations" else f"{name}, {printable(found.of)}"
                lines.append((found.severity, f"{lead}: {printable(found.text)}"))
    return [*lines, *([("note", f"{_listed(without)}: nothing unusual found.")] if without else [])]


def notes(records: Sequence[Record]) -> list[str]:
    """The notes of all runs, each with the run's name."""
    named = zip(run_names(records), records, strict=True)
    return [f"{name}: {printable(note)}" for name, record in named for note in record.notes]


def in_words(records: Sequence[Record]) -> list[str]:
    """Which settings differ, what may be chance, and what must not be compared; empty for a single run."""
    if len(records) < 2:
        return []
    keys = [row[0].text for row in setting_table(records, differing=True).rows]
    if len(keys) > _NAMED_SETTINGS:
        differing = f"The runs differ in {len(keys)} settings."
    else:
        differing = f"The runs differ in {_listed(keys)}." if keys else "The runs have the same settings."
    return [differing, _chance(records), *_incomparable(records)]


def _chance(records: Sequence[Record]) -> str:
    """How large chance may be."""
    conditions = [{key: _setting(record, key) for key in record.settings if key != "seed"} for record in records]
    if any(condition in conditions[:place] for place, condition in enumerate(conditions)):
        return "Runs that differ only in their seed show how large chance is."
    if not any(key in ACCURACIES for record in records for key in record.results):
        return "One run each: chance is unknown; LID and effective rank vary by some percent from seed to seed."
    # Accuracies vary by about a point from seed to seed, however many test images there are.
    noise = {key: max(points, 1.0) for key, points in accuracy_noise(records).items()}
    limits = "a point or so in accuracy"
    if max(noise.values(), default=1.0) > 1:
        parts = [
            f"up to {points:.{0 if points >= 10 else 1}f} points in {_ACCURACY_NAMES[key]}"
            for key, points in noise.items()
        ]
        fewest = min(record.tested for record in records if record.tested)
        limits = f"{_listed(parts)} (with {count(fewest)} test images)"
    return f"One run each: differences of {limits} and of some percent in LID and effective rank are within chance."


def accuracy_noise(records: Sequence[Record]) -> dict[str, float]:
    """For each accuracy, the largest difference to the first run in points that the test images alone may make."""
    base, *others = records
    found: dict[str, float] = {}
    for record in others:
        for key in _ACCURACY_NAMES:
            shares = record.results.get(key, math.nan), base.results.get(key, math.nan)
            if record.tested and base.tested and math.isfinite(sum(shares)):
                noise = sampling_noise(shares, min(record.tested, base.tested))
                found[key] = max(noise, found.get(key, 0.0))
    return found


def sampling_noise(shares: tuple[float, float], tested: int) -> float:
    """The difference of two accuracies, in points, that this many test images make by chance: twice its error.

    >>> round(sampling_noise((0.70, 0.75), 60), 1), round(sampling_noise((0.785, 0.790), 10_000), 1)
    (16.3, 1.2)
    """
    least = 1 / max(tested, 2)  # none or all right of few images does not make chance 0
    inner = [min(max(share, least), 1 - least) for share in shares]
    return min(200 * math.sqrt(sum(share * (1 - share) / tested for share in inner)), 100.0)


def _incomparable(records: Sequence[Record]) -> list[str]:
    """Warnings where LID was not measured alike."""
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


def what_was_measured(records: Sequence[Record]) -> list[str]:
    """Which images and k results were measured with: one sentence, or one per run if they differ."""
    parts = [_measured(record) for record in records]
    if len(set(parts)) == 1:
        return [f"{parts[0]}."] if parts[0] else []
    return [f"{name}: {text}." for name, text in zip(run_names(records), parts, strict=True) if text]


def _measured(record: Record) -> str:
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


def _setting(record: Record, key: str) -> str:
    return _written(record.settings[key]) if key in record.settings else _DASH


def _written(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_written, value)) or "none"
    return printable(str(value))


def _listed(parts: Sequence[str]) -> str:
    """The parts with commas and a final "and".

    >>> _listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def comparison_text(records: Sequence[Record], *, width: int = 80, color: bool = False) -> str:
    """Findings, results and LID per class of the runs in at most `width` columns.

    Raises:
        ValueError: there is no run.
    """
    if not records:
        raise ValueError("records: expected at least one run, got none")
    marks = {"critical": "[critical] ", "warning": "[warning] ", "note": ""}
    parts: list[RenderableType] = [Text(f"{marks[severity]}{line}") for severity, line in finding_lines(records)]
    parts += [""] if parts else []
    if len(records) <= FEW_RUNS:
        tables = [result_table(records), *_lowest_classes(records)]
    else:
        tables = [_runs_as_rows(result_table(records))]
    measured = what_was_measured(records)
    words = [*in_words(records), *(measured if len(measured) == 1 else []), *notes(records)]
    parts += [part for table in tables for part in text_parts(table, width=width)]
    return rendered([*parts, Text(" ".join(words))], width=width, color=color)


def _lowest_classes(records: Sequence[Record]) -> list[Table]:
    table = class_table(records)
    rows = list(table.rows[:_CLASSES_AS_TEXT])
    if more := len(table.rows) - len(rows):
        rows.append([Cell(f"({more} more)"), *[Cell("")] * len(records)])
    return [Table(table.columns, rows, title=table.title)] if rows else []


def _runs_as_rows(table: Table) -> Table:
    """The values of a table with rows and columns exchanged."""
    rows = [
        [Cell(name), *(Cell(row[place].text) for row in table.rows)]
        for place, name in enumerate(table.columns)
        if place
    ]
    return Table([table.title, *(row[0].text for row in table.rows)], rows)
