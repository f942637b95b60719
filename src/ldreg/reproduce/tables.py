"""Tables of studies: means over seeds with the paper's values, differences from baselines, and an overview."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from ldreg.bench.measure import Measurement
from ldreg.bench.results import Result, Run, from_json, machine, method, quantity, title
from ldreg.io.files import read_text
from ldreg.record import ACCURACIES, PRECISIONS, Record
from ldreg.report.tables import Cell, Mark, Table, metric_title, table_markdown
from ldreg.reproduce.statistics import TIMES, TRAIN_LID, Comparison, Sample, Section, collapses, in_percent
from ldreg.reproduce.studies import PROSE, Row
from ldreg.text import count, counted, markdown_text, number, printable

COLLAPSED = "collapsed"
NOTHING = "–"
MARK_WORDS: dict[Mark, str] = {"agrees": "as in the paper", "disagrees": "opposite", "noise": "within noise"}
NO_STEP_COST = "Images per second with and without LDReg in the same process (step-*.json by ldreg bench step)"
_WHO = {
    "ldreg": "ldreg: as ldreg pretrain trains",
    "authors' LDReg": "authors' LDReg: the same with the paper's Algorithms 1 and 2 in the place of ours",
    "lightly": "lightly: its own recipe, transform and loop",
}
_COST_COLUMNS = ("Who", "Batch", "With LDReg, images/s", "Without, images/s", "LDReg adds, %")
OVERVIEW = ["Study", "Runs", "Epochs", "Seeds", *(word.capitalize() for word in MARK_WORDS.values())]


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
    return f"{value:.2f}" if metric in PRECISIONS else f"{value:.1f}"


def column_title(metric: str) -> str:
    """The heading of a column.

    >>> column_title("transfer/cifar10"), column_title("box_ap50"), column_title("linear")
    ('cifar10', 'AP50 box', 'Linear probe, %')
    """
    if metric.startswith("transfer/"):
        return metric.removeprefix("transfer/")
    if metric == TRAIN_LID:
        return "LID of training images"
    return metric_title(metric) + (", %" if metric in ACCURACIES else "")


def row_name(row: Row) -> str:
    """The cells that name a row as one text.

    >>> from ldreg.reproduce.studies import Arm
    >>> row_name(Row(("BYOL", "LDReg", "-"), Arm("digits/byol_ldreg"))), row_name(Row(("-",), Arm("digits/simclr")))
    ('BYOL, LDReg', 'no regularization')
    """
    return ", ".join(name for name in row.names if name != "-") or "no regularization"


def origins(records: Iterable[Record], key: str) -> str:
    """The values of one field of the records' origin, numbers in their order.

    >>> origins([Record("", {}, {}, origin={"seed": seed}) for seed in (10, 9, 10)], "seed")
    '9, 10'
    """
    found = {value for record in records if (value := record.origin.get(key)) is not None}
    numbers = sorted(value for value in found if isinstance(value, int | float))
    return ", ".join([*map(str, numbers), *sorted(value for value in found if isinstance(value, str))])


def study_table(section: Section, *, with_seeds: bool = False) -> Table:
    """One row for each of the study's rows: measured values with the paper's beside them.

    `with_seeds` adds the number of seeds, says where a value has fewer, and leaves out rows that have no records.
    """
    keys, rows = section.study.keys, []
    for row in section.rows:
        if with_seeds and not section.of(row):
            continue
        seeds = [Cell(str(len(section.of(row))))] if with_seeds else []
        values = [_cell(section, row, metric, with_seeds=with_seeds) for metric in section.metrics]
        rows.append([*map(Cell, row.names), *seeds, *values])
    columns = [*keys, *(["Seeds"] if with_seeds else []), *map(column_title, section.metrics)]
    return Table(columns, rows, keys=len(keys))


def _cell(section: Section, row: Row, metric: str, *, with_seeds: bool) -> Cell:
    found, own, paper = section.of(row), section.sample(row, metric), row.values.get(metric)
    lost, text = collapses(found), COLLAPSED
    mark: Mark = section.compared(row, metric).mark
    if own.collapsed and paper is not None and math.isnan(paper):
        mark = "agrees"
    if not own.collapsed:
        text = value_text(metric, own)
        text += f" ({lost} of {len(found)} {COLLAPSED})" if lost else ""
        if with_seeds and 0 < len(own.values) < len(found) - lost:
            text += f" (of {counted(len(own.values), 'seed')})"
    return Cell(text, paper_text(metric, paper), mark)


def difference_table(section: Section) -> Table:
    """How far each row lies from its baseline, with the noise; ≈ marks what is within noise.

    Rows without anything to compare are left out, as are times, of which no noise is known.
    """
    metrics, cells = [metric for metric in section.metrics if metric not in TIMES], []
    for row in section.rows:
        found = [section.compared(row, metric) for metric in metrics]
        if row.baseline is not None and any(each.verdict for each in found):
            names = [*row.names, row_name(section.rows[row.baseline])]
            cells.append([*map(Cell, names), *map(_difference, found)])
    keys = [*section.study.keys, "Compared with"]
    return Table([*keys, *map(column_title, metrics)], cells, keys=len(keys))


def _difference(found: Comparison) -> Cell:
    if not found.verdict:
        return Cell(NOTHING)
    within = found.verdict == "within noise"
    return Cell(f"{found.difference:+z.2f} (noise {found.noise:.2f})", mark="noise" if within else "")


def marks_of(table: Table) -> list[Mark]:
    """The marks of all cells."""
    return [cell.mark for row in table.rows for cell in row if cell.mark]


def effects_sentence(table: Table) -> str:
    """How many effects have the paper's direction; empty where none is judged."""
    marks = marks_of(table)
    if not marks:
        return ""
    agree, disagree, within = (marks.count(mark) for mark in MARK_WORDS)
    effects = f"Of {counted(len(marks), 'effect')}, {agree} with the paper's direction"
    return f"{effects}, {disagree} with the opposite one, {within} within noise."


def overview_row(section: Section, claimed: Sequence[Mark]) -> list[Cell]:
    """How much was run for a study, and how many of its effects and other claims are the paper's."""
    runs, by_row = section.runs.values(), [found for row in section.rows if (found := section.of(row))]
    seeds = sorted({len(found) for found in by_row})
    several = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
    marks = [*marks_of(study_table(section)), *claimed]
    counts = [str(marks.count(mark)) if marks else NOTHING for mark in MARK_WORDS]
    return [Cell(text) for text in (section.study.title, str(len(runs)), origins(runs, "epochs"), several, *counts)]


def step_cost(paths: Sequence[Path]) -> list[str]:
    """Markdown on the time that LDReg takes: tables of records of `ldreg bench step`.

    Raises:
        ValueError: a file is not the record of one run of that benchmark, or nothing was measured in it.
        OSError: a file cannot be read.
    """
    texts = [PROSE["step_cost"]] if paths else []
    for path in paths:
        try:
            runs = from_json(read_text(path))
            if [run.benchmark for run in runs if run.measured] != ["step"] or len(runs) > 1:
                raise ValueError(f"runs of {', '.join(run.benchmark for run in runs if run.measured) or 'nothing'}")
            texts += _texts(runs[0])
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:  # as of a foreign file
            found = printable(" ".join(f"{type(error).__name__}: {error}".split()))
            raise ValueError(f"{path}: expected a run of ldreg bench step as its --json has it, got {found}") from error
    return texts


def _texts(run: Run) -> list[str]:
    """The heading, table and origin of one record."""
    rows = [_row(result, found) for result in run.results if (found := result.measured) is not None]
    who = "; ".join(_WHO[name] for name in dict.fromkeys(row[0].text for row in rows) if name in _WHO)
    skipped = dict.fromkeys(f"{result.contender} ({result.skipped})" for result in run.results if not result.measured)
    texts = [
        f"### {markdown_text(title(run))}",
        table_markdown(Table(_COST_COLUMNS, rows, keys=2)),
        f"{markdown_text(who)}." if who else "",
        f"Not measured: {markdown_text('; '.join(skipped))}." if skipped else "",
        f"`{printable(run.command)}`",
        markdown_text(machine(run)),
        markdown_text(method(run)),
    ]
    return [text for text in texts if text]


def _row(result: Result, measured: Measurement) -> list[Cell]:
    """A contender with LDReg, without, and what LDReg adds; one that has no LDReg was measured without it."""
    rate = count(round(quantity(result, "img/s") or 0))
    names = [Cell(result.contender), Cell(str(result.size))]
    share, without = quantity(result, "LDReg"), measured.without
    if share is None or without is None:
        return [*names, Cell("–"), Cell(rate), Cell("–")]
    extremes = [bound(measured.seconds) / without - 1 for bound in (min, max)] if len(measured.seconds) > 1 else []
    return [*names, Cell(rate), Cell(count(round(result.size.images / without))), _added(share, *extremes)]


def _added(share: float, *extremes: float) -> Cell:
    """What LDReg adds in percent: by the median block, and by the fastest and the slowest where there are several.

    >>> _added(0.043, 0.013, 0.071).text, _added(-0.0001).text, _added(0.001, -0.004, 0.002).mark
    ('4.3 (1.3 to 7.1)', '0.0', 'noise')
    """
    between = " to ".join(f"{100 * extreme:z.1f}" for extreme in extremes)
    within = bool(extremes) and min(extremes) <= 0 <= max(extremes)
    return Cell(f"{100 * share:z.1f}" + (f" ({between})" if between else ""), mark="noise" if within else "")
