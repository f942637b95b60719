"""The report as a table in a terminal."""

from io import StringIO
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ldreg.inspection.report import ClassLID, DimensionReport
from ldreg.record import Finding
from ldreg.report.summary import Row, classes_of_other, global_rows, local_rows, shown_classes
from ldreg.report.words import USES, sentence
from ldreg.text import count, interval, number, percent, printable

_CLASSES = 20
_TOLD = 3  # findings of one kind
_STYLES = {"critical": "bold red", "warning": "bold", "note": ""}


def as_text(report: DimensionReport, *, width: int = 80, color: bool = False) -> str:
    """The whole report as lines of at most `width` columns, with terminal colors if wanted."""
    console = Console(
        file=StringIO(), width=width, force_terminal=color, color_system="standard" if color else None, highlight=False
    )
    with console.capture() as capture:
        console.print(_render(report))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _render(report: DimensionReport) -> RenderableType:
    other = "" if report.comparison is None else report.comparison.other.title
    parts: list[RenderableType] = [
        *_findings(report),
        "",
        Text(printable(report.title), style="bold"),
        Text(_scope(report)),
        "",
        _quantities("Local dimensionality", local_rows(report), other),
        "",
        _quantities("Global dimensionality", global_rows(report), other),
        "",
        _collapsed(report),
        "",
    ]
    if report.classes:
        parts += [_classes(report), ""]
    return Group(*parts, Text(USES, style="dim"))


def _findings(report: DimensionReport) -> list[Text]:
    """The findings, a paragraph each, the most serious first; of many of one kind the first few."""
    told: list[Text] = []
    for kind, group in groupby(report.findings, key=lambda finding: finding.kind):
        found = list(group)
        told += [Text(_marked(finding, report), style=_STYLES[finding.severity]) for finding in found[:_TOLD]]
        if len(found) > _TOLD:
            share = percent(sum(finding.share for finding in found[_TOLD:]))
            told.append(Text(f"{len(found) - _TOLD} more findings of the kind {kind}, {share} of the points."))
    return told


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


def _table(*, title: str) -> Table:
    table = Table(box=SIMPLE_HEAD, expand=True, show_edge=False, padding=(0, 1))
    table.add_column(title, width=21, no_wrap=True, overflow="ellipsis")
    return table


def _quantities(title: str, rows: list[Row], other: str) -> Table:
    """Quantities, each followed by that of the `other` set where it is compared with one."""
    table = _table(title=title)
    table.add_column("", justify="right", width=9, style="bold")
    table.add_column("", ratio=1, style="dim")
    for row in rows:
        table.add_row(row.name, row.value, Text(printable(row.remark)))
        if row.beside is not None:
            remark = "" if row.beside.remark == row.remark else row.beside.remark
            table.add_row(Text(f"  {printable(other)}"), row.beside.value, Text(printable(remark)))
    return table


def _collapsed(report: DimensionReport) -> Table:
    table = _table(title="Points of lowest LID")
    table.add_column("LID", justify="right", width=9, style="bold")
    table.add_column("± s.e.", justify="right", width=8)
    table.add_column("label" if report.labels is not None else "", ratio=1, no_wrap=True, overflow="ellipsis")
    for point in report.most_collapsed:
        label = Text(printable(point.label or ""))
        table.add_row(f"row {point.index}", number(point.lid), number(point.standard_error), label)
    return table


def _classes(report: DimensionReport) -> Table:
    shown = shown_classes(report, _CLASSES)
    table = _table(title="LID per class")
    table.add_column("LID", justify="right", width=9, style="bold")
    table.add_column("points", justify="right", width=8)
    table.add_column("95 % confidence", ratio=1, style="dim")
    beside = classes_of_other(report)
    for row in shown:
        table.add_row(Text(printable(row.label)), *_class_cells(row))
        if row.label in beside and report.comparison is not None:
            table.add_row(Text(f"  {printable(report.comparison.other.title)}"), *_class_cells(beside[row.label]))
    if len(shown) < len(report.classes):
        table.add_row(f"({len(report.classes) - len(shown)} more)", "", "", "lowest and highest by LID are shown")
    return table


def _class_cells(row: ClassLID) -> tuple[str, str, str]:
    return number(row.mean.value), count(row.count), interval(row.mean.low, row.mean.high)
