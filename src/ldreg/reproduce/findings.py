"""What the records say: tables of means over seeds beside the paper's values, effects marked by their direction."""

import math
from collections.abc import Mapping, Sequence

from ldreg.record import ACCURACIES, Record
from ldreg.report.comparison import metric_title
from ldreg.report.tables import Cell, Table
from ldreg.reproduce.effects import (
    TIMES,
    TRAIN_LID,
    Sample,
    collapses,
    difference,
    direction,
    in_percent,
    noise,
    sample,
)
from ldreg.reproduce.jobs import Arm
from ldreg.reproduce.paper import AP
from ldreg.reproduce.rows import Row
from ldreg.reproduce.scales import Scale
from ldreg.reproduce.studies import Study
from ldreg.text import count, number

Gathered = Mapping[Arm, Sequence[Record]]

COLLAPSED = "collapsed"
NOTHING = "–"


def value_text(metric: str, found: Sample) -> str:
    """Mean and standard deviation as people read them, both to the same digit, of percentages the latter to one more.

    >>> value_text("lid", Sample({0: 6.0, 1: 6.2})), value_text("linear", Sample({0: 97.53, 1: 97.53}))
    ('6.10 ± 0.14', '97.5 ± 0.00')
    >>> value_text("images_per_second", Sample({0: 40000.2}))
    '40,000'
    """
    if not found.values:
        return NOTHING
    percent = in_percent(metric)
    text = f"{found.mean:.1f}" if percent else _plain(metric, found.mean)
    if math.isnan(found.deviation):
        return text
    digits = ".2g" if "e" in text else f",.{len(text.partition('.')[2]) + percent}f"
    return f"{text} ± {found.deviation:{digits}}"


def _plain(metric: str, value: float) -> str:
    return count(round(value)) if metric == "images_per_second" else number(value)


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


def told(study: Study, scale: Scale, records: Sequence[Record]) -> bool:
    """Whether records say anything that a row of the study shows, be it a collapse."""
    return collapses(records) > 0 or any(sample(records, metric).values for metric in metrics_of(study, scale))


def origins(records: Sequence[Record], key: str) -> str:
    """The values that records have of a part of their origin, numbers in their order.

    >>> origins([Record("", {}, {}, origin={"seed": seed}) for seed in (10, 9, 10)], "seed")
    '9, 10'
    """
    found = {record.origin[key] for record in records if record.origin.get(key) is not None}
    numbers = sorted(value for value in found if isinstance(value, int | float))
    return ", ".join([*map(str, numbers), *sorted(value for value in found if isinstance(value, str))])


def study_table(study: Study, scale: Scale, gathered: Gathered) -> Table:
    """The study's table: one row for each of its rows, measured values with the paper's beside them."""
    rows, metrics = study.rows(scale), metrics_of(study, scale)
    cells = []
    for row in rows:
        base = None if row.baseline is None else rows[row.baseline]
        values = [_cell(metric, row, base, gathered) for metric in metrics]
        cells.append([*(Cell(name) for name in row.names), *values])
    columns = [*study.keys, *(column_title(metric) for metric in metrics)]
    return Table(columns, cells, keys=len(study.keys))


def _cell(metric: str, row: Row, base: Row | None, gathered: Gathered) -> Cell:
    records = gathered.get(row.arm, ())
    own, of_paper, lost = sample(records, metric), row.values.get(metric), collapses(records)
    told = paper_text(metric, of_paper)
    if own.collapsed and of_paper is not None and math.isnan(of_paper):
        return Cell(COLLAPSED, told, "agrees")
    some = f" ({lost} of {len(records)} {COLLAPSED})" if lost else ""
    text = COLLAPSED if own.collapsed else value_text(metric, own) + some
    if base is None or not row.judged:
        return Cell(text, told)
    other = sample(gathered.get(base.arm, ()), metric)
    return Cell(text, told, direction(own, other, of_paper, base.values.get(metric)))


def in_words(table: Table) -> str:
    """How many effects have the paper's direction, in a sentence; empty where none is judged."""
    marks = [cell.mark for row in table.rows for cell in row if cell.mark]
    if not marks:
        return ""
    counts = {mark: marks.count(mark) for mark in ("agrees", "disagrees", "noise")}
    return (
        f"Of {len(marks)} effect{'' if len(marks) == 1 else 's'}, {counts['agrees']} with the paper's direction, "
        f"{counts['disagrees']} with the opposite one, {counts['noise']} within noise."
    )


def difference_table(study: Study, scale: Scale, gathered: Gathered) -> Table:
    """How far each row lies from the one that it is compared with, and how far chance may take it.

    Rows that have nothing to compare are left out, as are times, of which no noise is known; ≈ marks what is within
    noise.
    """
    rows, metrics = study.rows(scale), [metric for metric in metrics_of(study, scale) if metric not in TIMES]
    cells = []
    for row in rows:
        base = None if row.baseline is None else rows[row.baseline]
        if base is None or not gathered.get(row.arm) or not gathered.get(base.arm):
            continue
        values = [_difference(metric, gathered[row.arm], gathered[base.arm]) for metric in metrics]
        if any(cell.text != NOTHING for cell in values):
            cells.append([*(Cell(name) for name in row.names), Cell(row_name(base)), *values])
    columns = [*study.keys, "Compared with", *(column_title(metric) for metric in metrics)]
    return Table(columns, cells, keys=len(study.keys) + 1)


def row_name(row: Row) -> str:
    """The names of a row as one, without those that stand for nothing.

    >>> row_name(Row(("BYOL", "LDReg", "-"), Arm("digits/byol_ldreg"))), row_name(Row(("-",), Arm("digits/simclr")))
    ('BYOL, LDReg', 'no regularization')
    """
    return ", ".join(name for name in row.names if name != "-") or "no regularization"


def _difference(metric: str, records: Sequence[Record], others: Sequence[Record]) -> Cell:
    own, base = sample(records, metric), sample(others, metric)
    if not own.values or not base.values:
        return Cell(NOTHING)
    found, chance = difference(own, base), noise(own, base)
    text = f"{round(found, 2) + 0.0:+.2f} (noise {chance:.2f})"  # the sum has no -0
    return Cell(text, mark="noise" if abs(found) <= chance else "")
