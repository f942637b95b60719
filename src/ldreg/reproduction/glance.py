"""What a document has to say, in one table before all others."""

from collections.abc import Sequence

from ldreg.reporting.study_table import StudyCell, StudyTable
from ldreg.reproduction.findings import NOTHING, origins, study_table
from ldreg.reproduction.shelf import Part
from ldreg.reproduction.trends import claims

_COLUMNS = ["Study", "Runs", "Epochs", "Seeds", "As in the paper", "Opposite", "Within noise"]


def glance(parts: Sequence[Part]) -> StudyTable:
    """A row for each study: how much was run for it, and how many effects and claims are the paper's."""
    return StudyTable(_COLUMNS, [[StudyCell(text) for text in _row(part)] for part in parts], keys=1)


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
