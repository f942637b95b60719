"""The tables of an inspection, and the whole of it as text."""

import math
from collections.abc import Callable, Iterable
from itertools import groupby

from rich.console import RenderableType
from rich.text import Text

from ldreg.inspection.report import ClassLID, DimensionReport, Reading
from ldreg.record import Finding
from ldreg.report.tables import Cell, Table, rendered, text_parts
from ldreg.report.words import USES, sentence
from ldreg.text import count, interval, number, percent, printable

_Row = tuple[str, str, str]  # name, value, explanation

_ESTIMATORS = {"mom": "method of moments", "mle": "maximum likelihood", "tle": "tight locality"}
_CLASSES_AS_TEXT = 20
_FINDINGS_OF_A_KIND = 3  # shown as text
_STYLES = {"critical": "bold red", "warning": "bold", "note": ""}
_DASH = number(None)


def inspection_text(report: DimensionReport, *, width: int = 80, color: bool = False) -> str:
    """The whole report as lines of at most `width` columns, with terminal colors if wanted."""
    tables = [*_stacked_quantities(report), collapsed_table(report, row="row "), *_stacked_classes(report)]
    parts: list[RenderableType] = [
        *_finding_parts(report),
        "",
        Text(printable(report.title), style="bold"),
        Text(_scope(report)),
        "",
        *(part for table in tables for part in text_parts(table, width=width)),
        Text(USES, style="dim"),
    ]
    return rendered(parts, width=width, color=color)


def quantity_tables(report: DimensionReport) -> list[Table]:
    """Local and global dimensionality; with a second set, both in columns side by side."""
    if report.comparison is None:
        return [
            Table(["", "", ""], [list(map(Cell, row)) for row in rows(report)], title=title, explained=True)
            for title, rows in _QUANTITIES.items()
        ]
    other = report.comparison.other
    tables = []
    for title, rows in _QUANTITIES.items():
        cells = []
        for name, (value, remark), (other_value, other_remark) in _both(rows, report, other):
            own = ("", "", remark) if remark == other_remark else (remark, other_remark, "")
            cells.append([Cell(name), Cell(value, remark=own[0]), Cell(other_value, remark=own[1]), Cell(own[2])])
        if title == "Local dimensionality":
            cells.append([*map(Cell, ("Fisher-Rao distance", _DASH, *_fisher_rao(report)))])
        tables.append(Table(["", report.title, other.title, ""], cells, title=title, explained=True))
    return tables


def collapsed_table(report: DimensionReport, *, of: str = "", row: str = "") -> Table:
    """The points of lowest LID; `row` is what their numbers start with."""
    rows = [
        [f"{row}{point.index}", number(point.lid), number(point.standard_error), point.label or ""]
        for point in report.most_collapsed
    ]
    columns = ["row", "LID", "± s.e.", "label" if report.labels is not None else ""]
    cells = [list(map(Cell, texts)) for texts in rows]
    return Table(columns, cells, title=f"Points of lowest LID{of}", explained=True)


def class_table(report: DimensionReport) -> Table | None:
    """LID per class; with a second set that has the same classes, of both sets."""
    if not report.classes:
        return None
    others = classes_of_other(report)
    if not others or report.comparison is None:
        columns = ["class", "LID", "points", "95 % confidence"]
        return Table(
            columns,
            [[Cell(row.label), *_class_cells(row)] for row in report.classes],
            title="LID per class",
            explained=True,
        )
    rows = []
    for row in report.classes:
        other, points = others.get(row.label), count(row.count)
        if other is not None and other.count != row.count:
            points += f"; {count(other.count)}"
        value = _DASH if other is None else number(other.mean.value)
        rows.append([*map(Cell, (row.label, number(row.mean.value), value, points))])
    return Table(["class", report.title, report.comparison.other.title, "points"], rows, title="LID per class")


def settings(report: DimensionReport) -> list[tuple[str, str]]:
    """How the set was measured."""
    convention = ", paper's mean over k" if report.convention == "paper" else ", pseudocode's mean over k - 1"
    return [
        ("measured", f"{count(report.measured)} points, neighbors from all"),
        ("neighbors k", str(report.k)),
        ("estimator", _ESTIMATORS[report.estimator] + (convention if report.estimator != "tle" else "")),
        ("seed", str(report.seed)),
        ("device", report.device),
    ]


def classes_of_other(report: DimensionReport) -> dict[str, ClassLID]:
    """The classes of the second set that the first has too, by name."""
    if report.comparison is None:
        return {}
    own = {row.label for row in report.classes}
    return {row.label: row for row in report.comparison.other.classes if row.label in own}


def shown_classes(report: DimensionReport, most: int) -> list[ClassLID]:
    """All classes, or of more than `most` those of lowest and highest LID."""
    if len(report.classes) <= most:
        return list(report.classes)
    ranked = sorted((row for row in report.classes if row.regular), key=lambda row: row.mean.value)
    return ranked[: most - most // 2] + ranked[-(most // 2) :] if len(ranked) > most else ranked


def _local_rows(report: DimensionReport) -> list[_Row]:
    low, median, high = map(number, report.quartiles)
    expected, gaussian = report.expected, []
    if expected.gaussian_lid is not None:
        gaussian.append(("LID of a Gaussian", number(expected.gaussian_lid), "with the same covariance, k and N"))
    if expected.gaussian_dimension is not None:
        gaussian.append(
            ("Gaussian dimension", number(expected.gaussian_dimension), "of a Gaussian that reads this LID")
        )
    degenerate = f"LID 0: {count(report.zero)}; infinite: {count(report.infinite)}; of {count(report.measured)}"
    confidence = f"95 % confidence {interval(report.mean.low, report.mean.high)}"
    return [
        ("LID, geometric mean", number(report.mean.value), confidence),
        *gaussian,
        ("LID, 5 % quantile", number(report.lid_low), "falls first where a part collapses"),
        ("LID, median", median, f"quartiles {low} and {high}"),
        ("LID, arithmetic mean", number(report.arithmetic_mean), f"harmonic mean {number(report.harmonic_mean)}"),
        ("Fréchet variance", number(report.frechet_variance), "variance of ln LID"),
        ("Degenerate points", percent(report.degenerate_share), degenerate),
        ("Exact duplicates", count(report.duplicated), "points with one; LID reads low there"),
    ]


def _global_rows(report: DimensionReport) -> list[_Row]:
    return [
        ("Effective rank", number(report.effective_rank), "entropy of the covariance spectrum"),
        ("RankMe", number(report.rankme), "entropy of the singular values, uncentered"),
        _reading("TwoNN", report.twonn, "two nearest neighbors; reads low above 20"),
        _reading("DANCo", report.danco, "angles and norms of neighbors"),
    ]


_QUANTITIES: dict[str, Callable[[DimensionReport], list[_Row]]] = {
    "Local dimensionality": _local_rows,
    "Global dimensionality": _global_rows,
}


def _reading(name: str, reading: Reading, meaning: str) -> _Row:
    remark = reading.note if reading.value is None else f"{meaning}; {reading.note}" if reading.note else meaning
    return name, number(reading.value), remark


def _fisher_rao(report: DimensionReport) -> tuple[str, str]:
    """The distance of two sets, and how it comes about."""
    if report.comparison is None or math.isnan(report.comparison.fisher_rao):
        return _DASH, ""
    other = report.comparison.other
    ratio = f"{number(report.mean.value)} / {number(other.mean.value)}"
    return number(report.comparison.fisher_rao), f"to {other.title}: |ln({ratio})|"


def _both(
    rows: Callable[[DimensionReport], list[_Row]], first: DimensionReport, second: DimensionReport
) -> Iterable[tuple[str, tuple[str, str], tuple[str, str]]]:
    """Each quantity by name with value and explanation in both sets, a dash where a set has none."""
    own, other = ({name: (value, remark) for name, value, remark in rows(one)} for one in (first, second))
    longer, shorter = (own, other) if len(own) >= len(other) else (other, own)
    for name in {**longer, **shorter}:
        yield name, own.get(name, (_DASH, "")), other.get(name, (_DASH, ""))


def _stacked_quantities(report: DimensionReport) -> Iterable[Table]:
    """The quantities for a terminal: those of a second set below the first."""
    if report.comparison is None:
        yield from quantity_tables(report)
        return
    other = report.comparison.other
    for title, rows in _QUANTITIES.items():
        cells: list[_Row] = []
        for name, (value, remark), (other_value, other_remark) in _both(rows, report, other):
            cells += [
                (name, value, remark),
                (f"  {other.title}", other_value, "" if remark == other_remark else other_remark),
            ]
        if title == "Local dimensionality":
            cells.append(("Fisher-Rao distance", *_fisher_rao(report)))
        yield Table(["", "", ""], [list(map(Cell, row)) for row in cells], title=title, explained=True)


def _stacked_classes(report: DimensionReport) -> Iterable[Table]:
    """LID per class for a terminal: many classes are cut to the ends."""
    if not report.classes:
        return
    shown, others = shown_classes(report, _CLASSES_AS_TEXT), classes_of_other(report)
    rows = []
    for row in shown:
        rows.append([Cell(row.label), *_class_cells(row)])
        if row.label in others and report.comparison is not None:
            rows.append([Cell(f"  {report.comparison.other.title}"), *_class_cells(others[row.label])])
    if len(shown) < len(report.classes):
        more = f"({len(report.classes) - len(shown)} more)"
        rows.append([*map(Cell, (more, "", "", "lowest and highest by LID are shown"))])
    yield Table(["class", "LID", "points", "95 % confidence"], rows, title="LID per class", explained=True)


def _class_cells(row: ClassLID) -> list[Cell]:
    return [*map(Cell, (number(row.mean.value), count(row.count), interval(row.mean.low, row.mean.high)))]


def _finding_parts(report: DimensionReport) -> Iterable[Text]:
    """A paragraph per finding; of many of one kind, the first few."""
    for kind, group in groupby(report.findings, key=lambda finding: finding.kind):
        found = list(group)
        for finding in found[:_FINDINGS_OF_A_KIND]:
            yield Text(_marked(finding, report), style=_STYLES[finding.severity])
        if rest := found[_FINDINGS_OF_A_KIND:]:
            share = percent(sum(finding.share for finding in rest))
            yield Text(f"{len(rest)} more findings of the kind {kind}, {share} of the points.")


def _marked(finding: Finding, report: DimensionReport) -> str:
    mark = "" if finding.severity == "note" else f"[{finding.severity}] "
    return mark + sentence(finding, report)


def _scope(report: DimensionReport) -> str:
    lines = [f"{_size(report)}; k = {report.k}, {report.estimator}, {report.device}"]
    if report.comparison is not None:
        other = report.comparison.other
        lines.append(f"compared with {printable(other.title)}, {_size(other)}")
    return "\n".join(lines)


def _size(report: DimensionReport) -> str:
    part = "" if report.measured == report.points else f", {count(report.measured)} measured"
    return f"{count(report.points)} points × {count(report.dimensions)} dimensions{part}"
