"""What the records say: tables of means over seeds beside the paper's values, effects marked by their direction."""

import math
from collections.abc import Mapping, Sequence

from ldreg.reporting.differences import metric_title
from ldreg.reporting.run_record import ACCURACIES, RunRecord
from ldreg.reporting.study import StudyCell, StudyTable
from ldreg.reporting.text import number
from ldreg.reproduction.effects import TRAIN_LID, Sample, collapses, direction, in_percent, sample
from ldreg.reproduction.jobs import Arm
from ldreg.reproduction.paper import AP
from ldreg.reproduction.scales import Scale
from ldreg.reproduction.studies import Row, Study

Gathered = Mapping[Arm, Sequence[RunRecord]]

COLLAPSED = "collapsed"


def value_text(metric: str, found: Sample) -> str:
    """Mean and standard deviation as people read them.

    >>> value_text("lid", Sample({0: 6.0, 1: 6.2})), value_text("linear", Sample({0: 97.53}))
    ('6.10 ± 0.14', '97.5')
    """
    if not found.values:
        return "–"
    spread = "" if math.isnan(found.deviation) else f" ± {found.deviation:.2g}"
    return (f"{found.mean:.1f}" if in_percent(metric) else number(found.mean)) + spread


def paper_text(metric: str, value: float | None) -> str:
    """The paper's value, as it prints it; its minutes as hours."""
    if value is None:
        return ""
    if math.isnan(value):
        return COLLAPSED
    if metric == "minutes":
        return f"{value / 60:.1f} h"
    return f"{value:.2f}" if metric in AP else f"{value:.1f}"


def metrics_of(study: Study, scale: Scale) -> tuple[str, ...]:
    """The columns of a study at this scale."""
    if study.metrics or not study.measures:
        return study.metrics
    return tuple(f"transfer/{name}" for name in scale.datasets)


def column_title(metric: str) -> str:
    """The heading of a column.

    >>> column_title("transfer/cifar10"), column_title("box_ap50"), column_title("linear")
    ('cifar10', 'AP50 box', 'Linear probe, %')
    """
    if metric.startswith("transfer/"):
        return metric.removeprefix("transfer/")
    if metric in AP:
        kind, _, name = metric.partition("_")
        return f"{name.upper()} {kind}"
    if metric == TRAIN_LID:
        return "LID of training images"
    return metric_title(metric) + (", %" if metric in ACCURACIES else "")


def study_table(study: Study, scale: Scale, gathered: Gathered) -> StudyTable:
    """The study's table: one row for each of its rows, measured values with the paper's beside them."""
    rows, metrics = study.rows(scale), metrics_of(study, scale)
    cells = []
    for row in rows:
        base = None if row.baseline is None else rows[row.baseline]
        values = [_cell(metric, row, base, gathered) for metric in metrics]
        cells.append([*(StudyCell(name) for name in row.names), *values])
    columns = [*study.keys, *(column_title(metric) for metric in metrics)]
    return StudyTable(columns, cells, keys=len(study.keys))


def _cell(metric: str, row: Row, base: Row | None, gathered: Gathered) -> StudyCell:
    records = gathered.get(row.arm, ())
    own, of_paper, lost = sample(records, metric), row.values.get(metric), collapses(records)
    told = paper_text(metric, of_paper)
    if lost and not own.values:
        as_in_paper = of_paper is not None and math.isnan(of_paper)
        return StudyCell(COLLAPSED, told, "agrees" if as_in_paper else "")
    text = value_text(metric, own) + (f" ({lost} of {len(records)} {COLLAPSED})" if lost else "")
    if base is None:
        return StudyCell(text, told)
    other = sample(gathered.get(base.arm, ()), metric)
    return StudyCell(text, told, direction(own, other, of_paper, base.values.get(metric)))


def in_words(table: StudyTable) -> str:
    """How many effects have the paper's direction, in a sentence; empty where none is judged."""
    marks = [cell.mark for row in table.rows for cell in row if cell.mark]
    if not marks:
        return ""
    counts = {mark: marks.count(mark) for mark in ("agrees", "disagrees", "noise")}
    return (
        f"Of {len(marks)} effect{'' if len(marks) == 1 else 's'}, {counts['agrees']} with the paper's direction, "
        f"{counts['disagrees']} with the opposite one, {counts['noise']} within noise."
    )
