"""Runs side by side as a table in a terminal."""

from collections.abc import Sequence
from io import StringIO

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ldreg.record import Record
from ldreg.report.differences import (
    Cell,
    class_rows,
    finding_lines,
    in_words,
    remarks,
    result_rows,
    run_names,
    what_was_measured,
)
from ldreg.text import broken

COLUMNS = 3  # runs that have room for their differences beside the values; a terminal shows more as rows
_VALUE, _CHANGE = 12, 11  # columns of a terminal that a value and a difference take
_TITLE = 24
_CLASSES = 10  # the lowest; the page has all
_MARKS = {"critical": "[critical] ", "warning": "[warning] ", "note": ""}  # as a report of one set has them
_GAP = 3  # columns of a terminal between two columns of a table


def comparison_text(records: Sequence[Record], *, width: int = 80, color: bool = False) -> str:
    """Findings, results and LID per class of the runs in at most `width` columns, and what they say in words.

    Raises:
        ValueError: there is no run.
    """
    if not records:
        raise ValueError("records: expected at least one run, got none")
    console = Console(
        file=StringIO(), width=width, force_terminal=color, color_system="standard" if color else None, highlight=False
    )
    results, classes = result_rows(records), class_rows(records)
    if len(records) <= COLUMNS:
        tables = [_metrics_down(records, width, "Results", results)]
        more = [(f"({len(classes) - _CLASSES} more)", [Cell("", "")] * len(records))] if len(classes) > _CLASSES else []
        lowest = [*classes[:_CLASSES], *more]
        tables += [_metrics_down(records, width, "LID per class", lowest)] if classes else []
    else:
        tables = _runs_down(records, width, results)
    parts: list[RenderableType] = [Text(f"{_MARKS[severity]}{told}") for severity, told in finding_lines(records)]
    parts += [""] if parts else []
    parts += [part for table in tables for part in (table, "")]
    with console.capture() as capture:
        console.print(Group(*parts, Text(" ".join([*in_words(records), *_short(records), *remarks(records)]))))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _short(records: Sequence[Record]) -> list[str]:
    """What was measured, where it is the same for all."""
    told = what_was_measured(records)
    return told if len(told) == 1 else []


def _metrics_down(
    records: Sequence[Record], width: int, title: str, rows: Sequence[tuple[str, Sequence[Cell]]]
) -> Table:
    """Results as rows, runs as columns, each but the first with its difference to the first."""
    table = Table(box=SIMPLE_HEAD, expand=True, show_edge=False, padding=(0, 1))
    table.add_column(title, min_width=14)
    room = (width - _TITLE - (_CHANGE + _GAP) * (len(records) - 1)) // len(records) - _GAP
    for place, name in enumerate(run_names(records)):
        table.add_column(Text(broken(name, max(8, room))), justify="right", overflow="fold", style="bold")
        if place:
            table.add_column("", justify="right", overflow="fold", style="dim")
    for name, cells in rows:
        first, *others = cells
        table.add_row(Text(name), first.value, *(part for cell in others for part in cell))
    return table


def _runs_down(records: Sequence[Record], width: int, rows: Sequence[tuple[str, Sequence[Cell]]]) -> list[Table]:
    """Runs as rows, results as columns, in as many tables as the width asks for."""
    most = max(1, (width - _TITLE) // (_VALUE + 2))
    return [_block(run_names(records), rows[start : start + most], width) for start in range(0, len(rows), most)]


def _block(names: Sequence[str], rows: Sequence[tuple[str, Sequence[Cell]]], width: int) -> Table:
    table = Table(box=SIMPLE_HEAD, expand=True, show_edge=False, padding=(0, 1))
    table.add_column("Results", ratio=1, overflow="fold")
    for title, _ in rows:
        table.add_column(Text(title), justify="right", width=_VALUE, overflow="fold", style="bold")
    for place, name in enumerate(names):
        table.add_row(
            Text(broken(name, width - len(rows) * (_VALUE + _GAP) - 2)), *(cells[place].value for _, cells in rows)
        )
    return table
