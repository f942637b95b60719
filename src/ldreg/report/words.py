"""Reports in words: findings as sentences, what differs between runs, and whole reports as text for a terminal."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from rich.console import RenderableType
from rich.text import Text

from ldreg.inspection.report import DimensionReport, findings_in_words
from ldreg.record import ACCURACIES, Finding, Record, brief
from ldreg.report import tables
from ldreg.report.tables import Cell, run_names, setting
from ldreg.text import count, number, one_line, percent, printable

# Which number to use for what: once in every report.
USES = (
    "Higher LID is not better in itself: noise raises it. Compare sets of as many points at the same k. Use the 5 % "
    "quantile of LID to see a part collapse, its geometric mean for neighborhoods as a whole, effective rank for how "
    "many directions the whole set uses, RankMe where papers report it, TwoNN for a global dimension below 20 and "
    "DANCo above."
)

FEW_RUNS = 3  # of more runs, a terminal shows runs as rows

_NAMED_CLASSES = 5
_MENTIONED = 0.01  # of the rows of both sets
_DOMINANT = 0.5  # of a group's points: the label of so many describes it
_CLASSES_AS_TEXT = 10  # the lowest; the page has all
_NAMED_SETTINGS = 6
_FALLEN = 0.5  # of the layer before
_NAME = 40  # characters of a point's name in a sentence
_STYLES = {"critical": "bold red", "warning": "bold", "note": ""}


def sentence(found: Finding, report: DimensionReport) -> str:
    """A finding with its numbers, as a sentence."""
    numbers, share, k = found.numbers, percent(found.share), report.k
    other = "the other set" if report.comparison is None else printable(report.comparison.other.title)
    rows = _places(found.examples, report)
    label = printable(found.labels[0][0]) if found.labels else ""
    jump = f"Around {share} of the points the distances jump after {count(round(numbers.get('before', 0)))} of the {k}"
    match found.kind:
        case "complete_collapse" if numbers["equal"] > 0.5:
            return f"Complete collapse: {percent(numbers['equal'])} of the points have {k} equal rows."
        case "complete_collapse":
            spread = number(numbers["spread"])
            return f"Complete collapse: all rows are one constant plus noise. They spread by {spread} of their norm."
        case "degenerate":
            rest = f"All other numbers are of the remaining {percent(1 - found.share)}"
            end = ", and say nothing of the whole set." if found.severity == "critical" else "."
            return f"{share} of the points are degenerate: {_why_degenerate(found, k)}. {rest}{end}"
        case "collapsed_group":
            size, bulk = count(len(found.rows)), number(numbers["bulk"])
            lid = f"LID {number(numbers['lid'])}, the other points {bulk}"
            return f"A group of {size} points ({share}) is collapsed: {lid}. In its middle: {rows}.{_classes_in(found)}"
        case "collapsed_class":
            ratio = f"{numbers['ratio']:.1f} times lower than that of other classes"
            lid = f"LID {number(numbers['lid'])}, {ratio} when each is measured at the same share of its points"
            return f"Class {label} ({share} of the points) is collapsed: {lid}."
        case "duplicates" | "near_duplicates":
            copy = "an exact duplicate" if found.kind == "duplicates" else "a near-copy"
            groups, largest = round(numbers["groups"]), count(round(numbers["largest"]))
            where = f"in {count(groups)} groups of up to {largest} ({rows})" if groups > 1 else f"in one group ({rows})"
            return f"{share} of the points have {copy}, {where}. LID is too low there; measure again with one of each."
        case "copies":
            return f"{jump} neighbors: the rows hold copies or views of the same things. Measure with one of each."
        case "small_clusters":
            smaller = next((each for each in (64, 32, 16) if each < round(numbers["before"])), 8)
            few = f"clusters have fewer than {k} points. Measure with a smaller k, such as {smaller}."
            return f"{jump} neighbors: {few}"
        case "low_rank":
            rank = f"effective rank {number(numbers['effective_rank'])} of {count(round(numbers['most']))}"
            return f"The set as a whole uses few directions: {rank}."
        case "hubs":
            taken = f"{count(len(found.rows))} hubs take {percent(numbers['taken'])} of all neighbor places ({rows})"
            return f"{taken}; {percent(numbers['never'])} of the points are nobody's neighbor."
        case "collapsed_beside":
            fell = numbers.get("fell", 0.0)
            fallen = f" The LID of {percent(fell)} of the rows, net of those that rose, is at least 30 % lower."
            fallen = fallen if fell >= _MENTIONED else ""
            return f"Collapsed compared with {other}: {_beside(found)}.{fallen}{_lower(found)}"
        case "comparison_collapsed":
            return f"The other set, {other}, is collapsed compared with this one: {_beside(found)}.{_lower(found)}"
        case "higher_beside":
            return f"LID is higher than in {other}: {_beside(found)}.{_lower(found)}"
        case "similar_beside":
            return f"Similar to {other}: {_beside(found)}.{_lower(found)}"
        case "not_compared":
            size = "another number of" if report.comparison is None else count(report.comparison.other.points)
            return f"Not compared with {other}: it has {size} points, and LID depends on their number."
        case "leaked":
            usual = f"{percent(numbers['usual'])} of the rows of {other} have a duplicate within it"
            return f"Copies of rows of {other}: {_points_of(found, rows)}. For comparison, {usual}."
        case "nearly_leaked":
            return f"Near-copies of rows of {other}: {_points_of(found, rows)}."
        case "out_of_distribution":
            edge = f"Their neighbor {k} is further than that of 99.9 % of the rows of {other}"
            return f"Far from {other}: {_points_of(found, rows)}. {edge}."
        case "fits_reference":
            return f"No point is a copy or near-copy of a row of {other}, and no more than usual are far from it."
    return "Nothing unusual found. A single set cannot tell more: compare with one that you trust."


def _places(rows: Sequence[int], report: DimensionReport) -> str:
    """Rows by their numbers and, if they have some, their names."""
    names = [report.name_of(row) for row in rows]
    quoted = [f' "{printable(one_line(name, _NAME))}"' if name else "" for name in names]
    listed = ", ".join(f"{row}{name}" for row, name in zip(rows, quoted, strict=True))
    return f"row{'' if len(rows) == 1 else 's'} {listed}"


def _points_of(found: Finding, rows: str) -> str:
    """How many points a finding concerns, and the first of them."""
    points = len(found.rows)
    more = f" and {count(points - len(found.examples))} more" if points > len(found.examples) else ""
    return f"{count(points)} point{'' if points == 1 else 's'} ({percent(found.share)}; {rows}{more})"


def _why_degenerate(found: Finding, k: int) -> str:
    reasons = {
        "zero": "coincide with their neighbors",
        "dead": "are all zeros",
        "noise": "differ from their neighbors by noise only",
        "infinite": f"have {k} neighbors at one distance",
    }
    counts = {name: round(found.numbers[name]) for name in reasons}
    return ", ".join(f"{count(points)} {reasons[name]}" for name, points in counts.items() if points)


def _classes_in(found: Finding) -> str:
    """Which class most of a group is of, or of how many it is."""
    if not found.labels:
        return ""
    label, points = found.labels[0]
    if points >= _DOMINANT * len(found.rows):
        return f" {percent(points / len(found.rows))} of it is class {printable(label)}."
    return f" It has points of {count(len(found.labels))} classes."


def _beside(found: Finding) -> str:
    """The numbers of a set, each with that of the other set."""
    names = {"lid_5": "5 % quantile of LID", "lid_50": "median LID", "effective_rank": "effective rank"}
    pairs = [
        f"{shown} {number(found.numbers[name])} (there {number(found.numbers[f'other_{name}'])})"
        for name, shown in names.items()
    ]
    own, other = (found.numbers[name] for name in ("degenerate", "other_degenerate"))
    if own or other:
        pairs.append(f"degenerate points {percent(own)} (there {percent(other)})")
    return ", ".join(pairs)


def _lower(found: Finding) -> str:
    """The classes of far lower LID than in the other set."""
    if not found.labels:
        return ""
    named = ", ".join(printable(label) for label, _ in found.labels[:_NAMED_CLASSES])
    more = f" and {count(len(found.labels) - _NAMED_CLASSES)} more" if len(found.labels) > _NAMED_CLASSES else ""
    return f" Classes that read far less than there: {named}{more}."


# Comparisons of runs


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
    keys = [row[0].text for row in tables.setting_table(records, differing=True).rows]
    if len(keys) > _NAMED_SETTINGS:
        differing = f"The runs differ in {len(keys)} settings."
    else:
        differing = f"The runs differ in {_listed(keys)}." if keys else "The runs have the same settings."
    return [differing, _chance(records), *_incomparable(records)]


def _chance(records: Sequence[Record]) -> str:
    """How large chance may be."""
    conditions = [{key: setting(record, key) for key in record.settings if key != "seed"} for record in records]
    if any(condition in conditions[:place] for place, condition in enumerate(conditions)):
        return "Runs that differ only in their seed show how large chance is."
    if not any(key in ACCURACIES for record in records for key in record.results):
        return "One run each: chance is unknown; LID and effective rank vary by some percent from seed to seed."
    # Accuracies vary by about a point from seed to seed, however many test images there are.
    noise = f"{max(1.0, accuracy_noise(records)):.2g}"
    points = "1 point" if noise == "1" else f"{noise} points"
    return (
        f"One run each: differences of up to {points} in accuracy and of some percent in LID and effective rank are "
        "within chance."
    )


def accuracy_noise(records: Sequence[Record]) -> float:
    """The largest difference of an accuracy to the first run, in points, that the choice of test images explains."""
    base, *others = records
    noise = 0.0
    for record in others:
        for key in ACCURACIES & record.results.keys() & base.results.keys():
            shares = record.results[key], base.results[key]
            if record.test_images and base.test_images and math.isfinite(sum(shares)):
                noise = max(noise, sampling_noise(shares, min(record.test_images, base.test_images)))
    return noise


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
    images = sorted({printable(setting(record, "data.name")) for record in measured})
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
    texts = ["; ".join(_measured(record)) for record in records]
    if len(set(texts)) == 1:
        return [f"{texts[0]}."] if texts[0] else []
    return [f"{name}: {text}." for name, text in zip(run_names(records), texts, strict=True) if text]


def _measured(record: Record) -> Iterator[str]:
    images = record.images
    if record.measured and record.k is not None:
        some = images is not None and images > record.measured
        of, what = (f" of {count(images or 0)}", "LID") if some else ("", "LID and effective rank")
        kind = "held-out" if record.held_out else "training"
        yield f"{what}: {count(record.measured)}{of} {kind} images, k = {record.k}"
        if some:
            yield "effective rank: all of them"
    if record.test_images:
        probes = ["linear probe (logistic regression)"] if "linear" in record.results else []
        probes += [f"kNN (k = {record.voters})"] if "knn" in record.results and record.voters else []
        if probes:
            yield f"{' and '.join(probes)}: {count(record.test_images)} test images"


def _listed(parts: Sequence[str]) -> str:
    """The parts with commas and a final "and".

    >>> _listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


# Reports as text


def inspection_text(report: DimensionReport, *, width: int = 80, color: bool = False) -> str:
    """The whole report as lines of at most `width` columns, with terminal colors if wanted."""
    scope = [f"{size(report)}; k = {report.k}, {report.estimator}, {report.device}"]
    if report.comparison is not None:
        other = report.comparison.other
        relation = "neighbors are rows of" if report.in_reference else "compared with"
        scope.append(f"{relation} {printable(other.title)}, {size(other)}")
    parts: list[RenderableType] = [
        *(
            Text(_mark(found.severity) + found.text, style=_STYLES[found.severity])
            for found in brief(findings_in_words(report, ""))
        ),
        "",
        Text(printable(report.title), style="bold"),
        Text("\n".join(scope)),
        "",
        *(part for table in tables.report_tables(report) for part in tables.text_parts(table, width=width)),
        *(Text(f"{text}\n", style="bold") for text in filter(None, [fallen_layers(report)])),
        Text(USES, style="dim"),
    ]
    return tables.rendered(parts, width=width, color=color)


def fallen_layers(report: DimensionReport) -> str:
    """Which layers read less than half the LID, or effective rank, of the layer before; empty if none does."""
    said = []
    for one in [report] if report.comparison is None else [report, report.comparison.other]:
        of = "" if report.comparison is None else f" of {printable(one.title)}"
        for before, layer in pairwise(one.layers):
            pairs = {
                "LID": (before.mean.value, layer.mean.value),
                "effective rank": (before.effective_rank, layer.effective_rank),
            }
            for name, (high, low) in pairs.items():
                if high > 0 and not low >= _FALLEN * high:  # also of a LID that is not defined
                    said.append(f"{name} {number(low)} in layer {printable(layer.name)}{of}, {number(high)} before it")
    return f"Falls by more than half: {'; '.join(said)}." if said else ""


def _mark(severity: str) -> str:
    return "" if severity == "note" else f"[{severity}] "


def size(report: DimensionReport) -> str:
    """How many points of how many dimensions."""
    part = "" if report.measured == report.points else f", {count(report.measured)} measured"
    left_out = f", {count(report.left_out)} rows with NaN or inf left out" if report.left_out else ""
    return f"{count(report.points)} points × {count(report.dimensions)} dimensions{part}{left_out}"


def comparison_text(records: Sequence[Record], *, width: int = 80, color: bool = False) -> str:
    """Findings, results and LID per class of the runs in at most `width` columns.

    Raises:
        ValueError: there is no run.
    """
    if not records:
        raise ValueError("records: expected at least one run, got none")
    parts: list[RenderableType] = [Text(_mark(severity) + line) for severity, line in finding_lines(records)]
    parts += [""] if parts else []
    if len(records) <= FEW_RUNS:
        shown = [tables.result_table(records)]
        classes = tables.run_class_table(records)
        rows = list(classes.rows[:_CLASSES_AS_TEXT])
        if more := len(classes.rows) - len(rows):
            rows.append([Cell(f"({more} more)"), *[Cell("")] * len(records)])
        shown += [replace(classes, rows=rows)] if rows else []
    else:
        shown = [tables.runs_as_rows(tables.result_table(records))]
    measured = what_was_measured(records)
    words = [*in_words(records), *(measured if len(measured) == 1 else []), *notes(records)]
    parts += [part for table in shown for part in tables.text_parts(table, width=width)]
    return tables.rendered([*parts, Text(" ".join(words))], width=width, color=color)
