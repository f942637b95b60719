"""Tables of studies: means over seeds with the paper's values, differences from baselines, and an overview."""

import math
from collections.abc import Sequence
from dataclasses import replace

from ldreg.record import ACCURACIES, Record
from ldreg.report.tables import Cell, Mark, Table, metric_title
from ldreg.reproduce.jobs import AP
from ldreg.reproduce.statistics import TIMES, TRAIN_LID, Records, Sample, collapses, comparisons, in_percent, sample
from ldreg.reproduce.studies import Row, Scale, Study
from ldreg.text import count, number

COLLAPSED = "collapsed"
NOTHING = "–"
MARK_WORDS: dict[Mark, str] = {"agrees": "as in the paper", "disagrees": "opposite", "noise": "within noise"}
_OVERVIEW = ["Study", "Runs", "Epochs", "Seeds", *(word.capitalize() for word in MARK_WORDS.values())]


def value_text(metric: str, found: Sample) -> str:
    """Mean and standard deviation, both to the same digit; the deviation of percentages to one more.

    >>> value_text("lid", Sample({0: 6.0, 1: 6.2})), value_text("linear", Sample({0: 97.53, 1: 97.53}))
    ('6.10 ± 0.14', '97.5 ± 0.00')
    >>> value_text("images_per_second", Sample({0: 40000.2}))
    '40,000'
    """
    if not found.values:
        return NOTHING
    percent = in_percent(metric)
    plain = count(round(found.mean)) if metric == "images_per_second" else number(found.mean)
    text = f"{found.mean:.1f}" if percent else plain
    if math.isnan(found.deviation):
        return text
    digits = ".2g" if "e" in text else f",.{len(text.partition('.')[2]) + percent}f"
    return f"{text} ± {found.deviation:{digits}}"


def paper_text(metric: str, value: float | None) -> str:
    """The paper's value as it prints it; minutes as hours."""
    if value is None:
        return ""
    if math.isnan(value):
        return COLLAPSED
    if metric == "minutes":
        return f"{value / 60:.1f} h"
    return f"{value:.2f}" if metric in AP else f"{value:.1f}"


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


def row_name(row: Row) -> str:
    """The cells that name a row as one text.

    >>> from ldreg.reproduce.jobs import Arm
    >>> row_name(Row(("BYOL", "LDReg", "-"), Arm("digits/byol_ldreg"))), row_name(Row(("-",), Arm("digits/simclr")))
    ('BYOL, LDReg', 'no regularization')
    """
    return ", ".join(name for name in row.names if name != "-") or "no regularization"


def origins(records: Sequence[Record], key: str) -> str:
    """The values of one field of the records' origin, numbers in their order.

    >>> origins([Record("", {}, {}, origin={"seed": seed}) for seed in (10, 9, 10)], "seed")
    '9, 10'
    """
    found = {record.origin[key] for record in records if record.origin.get(key) is not None}
    numbers = sorted(value for value in found if isinstance(value, int | float))
    return ", ".join([*map(str, numbers), *sorted(value for value in found if isinstance(value, str))])


def study_table(study: Study, scale: Scale, records: Records) -> Table:
    """One row for each of the study's rows: measured values with the paper's beside them."""
    rows, metrics = study.rows(scale), study.metrics_at(scale)
    compared = comparisons(rows, metrics, records)
    marks = dict(zip(zip(compared["row"], compared["metric"], strict=True), compared["mark"], strict=True))
    cells = [
        [
            *map(Cell, row.names),
            *(_cell(metric, row, records, marks.get((place, metric), "")) for metric in metrics),
        ]
        for place, row in enumerate(rows)
    ]
    return Table([*study.keys, *map(column_title, metrics)], cells, keys=len(study.keys))


def _cell(metric: str, row: Row, records: Records, mark: Mark) -> Cell:
    found = records.get(row.arm, ())
    own, paper, lost = sample(found, metric), row.values.get(metric), collapses(found)
    if own.collapsed and paper is not None and math.isnan(paper):
        return Cell(COLLAPSED, paper_text(metric, paper), "agrees")
    some = f" ({lost} of {len(found)} {COLLAPSED})" if lost else ""
    return Cell(COLLAPSED if own.collapsed else value_text(metric, own) + some, paper_text(metric, paper), mark)


def seeds_table(study: Study, scale: Scale, records: Records) -> Table:
    """The study's table without rows that have no records, with a column of the number of seeds.

    A value of fewer seeds than the row has says so.
    """
    whole, metrics = study_table(study, scale, records), study.metrics_at(scale)
    keys, cells = whole.keys, []
    for row, texts in zip(study.rows(scale), whole.rows, strict=True):
        found = records.get(row.arm, ())
        if not found:
            continue
        usual, values = len(found) - collapses(found), []
        for cell, metric in zip(texts[keys:], metrics, strict=True):
            seeds = len(sample(found, metric).values)
            fewer = f" (of {seeds} seed{'' if seeds == 1 else 's'})" if 0 < seeds < usual else ""
            values.append(replace(cell, text=f"{cell.text}{fewer}"))
        cells.append([*texts[:keys], Cell(str(len(found))), *values])
    return Table([*whole.columns[:keys], "Seeds", *whole.columns[keys:]], cells, keys=keys)


def difference_table(study: Study, scale: Scale, records: Records) -> Table:
    """How far each row lies from its baseline, with the noise; ≈ marks what is within noise.

    Rows without anything to compare are left out, as are times, of which no noise is known.
    """
    rows, metrics = study.rows(scale), [metric for metric in study.metrics_at(scale) if metric not in TIMES]
    cells = []
    for (place, baseline), lines in comparisons(rows, metrics, records).groupby(["row", "baseline"]):
        if lines["difference"].notna().any():
            values = [
                _difference(found, chance) for found, chance in zip(lines["difference"], lines["noise"], strict=True)
            ]
            cells.append([*map(Cell, rows[place].names), Cell(row_name(rows[baseline])), *values])
    columns = [*study.keys, "Compared with", *map(column_title, metrics)]
    return Table(columns, cells, keys=len(study.keys) + 1)


def _difference(found: float, chance: float) -> Cell:
    if math.isnan(found):
        return Cell(NOTHING)
    text = f"{round(found, 2) + 0.0:+.2f} (noise {chance:.2f})"  # the sum has no -0
    return Cell(text, mark="noise" if abs(found) <= chance else "")


def marks_of(table: Table) -> list[Mark]:
    """The marks of all cells."""
    return [cell.mark for row in table.rows for cell in row if cell.mark]


def effects_sentence(table: Table) -> str:
    """How many effects have the paper's direction; empty where none is judged."""
    marks = marks_of(table)
    if not marks:
        return ""
    agree, disagree, within = (marks.count(mark) for mark in MARK_WORDS)
    return (
        f"Of {len(marks)} effect{'' if len(marks) == 1 else 's'}, {agree} with the paper's direction, "
        f"{disagree} with the opposite one, {within} within noise."
    )


def overview_row(study: Study, scale: Scale, records: Records, claimed: Sequence[Mark]) -> list[Cell]:
    """How much was run for a study, and how many of its effects and other claims are the paper's."""
    by_row = [found for row in study.rows(scale) if (found := records.get(row.arm))]
    runs = {record.name: record for found in by_row for record in found}
    seeds = sorted({len(found) for found in by_row})
    several = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
    marks = [*marks_of(study_table(study, scale, records)), *claimed]
    counts = [str(marks.count(mark)) if marks else NOTHING for mark in MARK_WORDS]
    texts = [study.title, str(len(runs)), origins(list(runs.values()), "epochs"), several, *counts]
    return [Cell(text) for text in texts]


def overview_table(rows: Sequence[Sequence[Cell]]) -> Table:
    """The rows by `overview_row` of all studies that are shown."""
    return Table(_OVERVIEW, rows, keys=1)
