"""What a document has to say, in one table before all others."""

from collections.abc import Sequence

from ldreg.report.tables import Cell, Mark, Table
from ldreg.reproduce.findings import NOTHING, origins, study_table
from ldreg.reproduce.shelf import Part
from ldreg.reproduce.trends import claims

_OF_METHODS = ("table1", "methods")  # studies that have every method without and with LDReg
_COLUMNS = ["Study", "Runs", "Epochs", "Seeds", "As in the paper", "Opposite", "Within noise"]


def glance(parts: Sequence[Part]) -> Table:
    """A row for each study: how much was run for it, and how many effects and claims are the paper's."""
    return Table(_COLUMNS, [[Cell(text) for text in _row(part)] for part in parts], keys=1)


def verdict(parts: Sequence[Part]) -> str:
    """For how many methods LDReg moves each result as in the paper, in a sentence; empty where none was compared."""
    marks: dict[str, list[Mark]] = {}
    for part in parts:
        if part.study.name in _OF_METHODS:
            table = study_table(part.study, part.scale, part.gathered)
            for title, cells in zip(table.columns, zip(*table.rows, strict=True), strict=True):
                marks.setdefault(title, []).extend(cell.mark for cell in cells if cell.mark)
    told = [f"{title.partition(',')[0]} {_counted(found)}" for title, found in marks.items() if found]
    return f"For how many methods LDReg does what it does in the paper: {'; '.join(told)}." if told else ""


def _counted(marks: Sequence[Mark]) -> str:
    """How many there are of each, without those there are none of.

    >>> _counted(["agrees", "noise", "agrees"])
    'as in the paper 2, within noise 1'
    """
    words: dict[Mark, str] = {"agrees": "as in the paper", "disagrees": "opposite", "noise": "within noise"}
    return ", ".join(f"{word} {marks.count(mark)}" for mark, word in words.items() if mark in marks)


def _row(part: Part) -> list[str]:
    by_row = [part.records(row) for row in part.rows]
    records = {record.name: record for found in by_row for record in found}
    seeds = sorted({len(found) for found in by_row if found})
    several = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
    table = study_table(part.study, part.scale, part.gathered)
    marks = [cell.mark for row in table.rows for cell in row]
    marks += [mark for claim in claims(part.study.name, part.scale, part.gathered) for mark in claim.marks]
    counts = [str(marks.count(mark)) if any(marks) else NOTHING for mark in ("agrees", "disagrees", "noise")]
    return [part.study.title, str(len(records)), origins(list(records.values()), "epochs"), several, *counts]
