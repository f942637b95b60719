"""What a document has to say, in one table before all others."""

from collections.abc import Sequence

from ldreg.reporting.study_table import StudyCell, StudyTable
from ldreg.reproduction.findings import NOTHING, origins, study_table
from ldreg.reproduction.shelf import Part

_COLUMNS = ["Study", "Runs", "Epochs", "Seeds", "Paper's direction", "Opposite", "Within noise"]


def glance(parts: Sequence[Part]) -> StudyTable:
    """A row for each study: how much was run for it, and how many effects have the paper's direction."""
    return StudyTable(_COLUMNS, [[StudyCell(text) for text in _row(part)] for part in parts], keys=1)


def _row(part: Part) -> list[str]:
    by_row = [part.records(row) for row in part.rows]
    records = {record.name: record for found in by_row for record in found}
    seeds = sorted({len(found) for found in by_row if found})
    several = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
    marks = [cell.mark for row in study_table(part.study, part.scale, part.gathered).rows for cell in row if cell.mark]
    counts = [str(marks.count(mark)) if marks else NOTHING for mark in ("agrees", "disagrees", "noise")]
    return [part.study.title, str(len(records)), origins(list(records.values()), "epochs"), several, *counts]
