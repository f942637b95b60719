"""What the records say: tables of means over seeds beside the paper's values, effects marked by their direction."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ldreg.reporting.differences import metric_title
from ldreg.reporting.run_record import ACCURACIES, RunRecord
from ldreg.reporting.study import Mark, StudyCell, StudyTable
from ldreg.reporting.text import number
from ldreg.reproduction.jobs import Arm
from ldreg.reproduction.paper import AP
from ldreg.reproduction.scales import Scale
from ldreg.reproduction.studies import Row, Study

Gathered = Mapping[Arm, Sequence[RunRecord]]

COLLAPSED = "collapsed"
_DEGENERATE = 0.5  # share of points without a defined LID from which a run counts as collapsed
_UNSURE = 0.01  # relative difference of dimensions that one seed each cannot tell from chance
_CERTAIN = 2.0  # standard errors


@dataclass(frozen=True)
class Sample:
    """A result over the seeds of an arm; accuracies and AP are in percent."""

    values: tuple[float, ...]
    test_size: int = 0

    @property
    def mean(self) -> float:
        """Mean over seeds; NaN where there is none."""
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def deviation(self) -> float:
        """Standard deviation over seeds; NaN for fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else math.nan


def sample(records: Sequence[RunRecord], metric: str) -> Sample:
    """A metric over the records of an arm; those that lack it do not count."""
    found = [record.results[metric] for record in records if math.isfinite(record.results.get(metric, math.nan))]
    factor = 100.0 if _in_percent(metric) else 1.0
    size = min((int(record.origin.get("held_out") or 0) for record in records), default=0)
    return Sample(tuple(factor * value for value in found), size if _in_percent(metric) else 0)


def _in_percent(metric: str) -> bool:
    return metric in ACCURACIES or metric in AP or metric.startswith("transfer/")


def collapsed(records: Sequence[RunRecord]) -> bool:
    """Whether most runs ended without numbers, or with representations that have no dimension."""
    ended = [
        bool(record.origin.get("failed")) or record.results.get("degenerate", 0.0) > _DEGENERATE for record in records
    ]
    return bool(ended) and sum(ended) * 2 > len(ended)


def noise(first: Sample, second: Sample) -> float:
    """Twice the standard error of the difference of two means.

    From the spread over seeds where both have at least two; else, of accuracies, from the number of test images, which
    is a lower bound (seeds add to it); else a hundredth of the value.

    >>> noise(Sample((90.0, 91.0, 92.0)), Sample((95.0, 96.0, 97.0))) == 2 * (2 / 3) ** 0.5
    True
    """
    if min(len(first.values), len(second.values)) > 1:
        variance = sum(part.deviation**2 / len(part.values) for part in (first, second))
        return _CERTAIN * math.sqrt(variance)
    if first.test_size and second.test_size:
        shares = [(part.mean / 100, part.test_size) for part in (first, second)]
        return _CERTAIN * 100 * math.sqrt(sum(p * (1 - p) / n for p, n in shares))
    return _UNSURE * max(abs(first.mean), abs(second.mean))


def direction(own: Sample, base: Sample, paper: float | None, paper_base: float | None) -> Mark:
    """Whether an effect has the paper's direction: where it is larger than its noise, and the paper has one.

    >>> direction(Sample((7.0,)), Sample((6.0,)), 20.0, 18.8), direction(Sample((6.01,)), Sample((6.0,)), 20.0, 18.8)
    ('agrees', 'noise')
    """
    difference = own.mean - base.mean
    if paper is None or paper_base is None or not math.isfinite(difference):
        return ""
    if abs(difference) <= noise(own, base):
        return "noise"
    return "agrees" if (difference > 0) == (paper > paper_base) and paper != paper_base else "disagrees"


def value_text(metric: str, found: Sample) -> str:
    """Mean and standard deviation as people read them.

    >>> value_text("lid", Sample((6.0, 6.2))), value_text("linear", Sample((97.53,))), value_text("lid", Sample(()))
    ('6.10 ± 0.14', '97.5', '–')
    """
    if not found.values:
        return "–"
    if _in_percent(metric):
        spread = "" if math.isnan(found.deviation) else f" ± {found.deviation:.1f}"
        return f"{found.mean:.1f}{spread}"
    spread = "" if math.isnan(found.deviation) else f" ± {found.deviation:.2g}"
    return number(found.mean) + spread


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
    own, of_paper = sample(records, metric), row.values.get(metric)
    text = value_text(metric, own)
    if collapsed(records) and not own.values:
        as_in_paper = of_paper is not None and math.isnan(of_paper)
        return StudyCell(COLLAPSED, paper_text(metric, of_paper), "agrees" if as_in_paper else "")
    if base is None:
        return StudyCell(text, paper_text(metric, of_paper))
    other = sample(gathered.get(base.arm, ()), metric)
    mark = direction(own, other, of_paper, base.values.get(metric))
    return StudyCell(text, paper_text(metric, of_paper), mark)


def in_words(table: StudyTable) -> str:
    """How many effects have the paper's direction, in a sentence; empty where none is judged."""
    marks = [cell.mark for row in table.rows for cell in row if cell.mark]
    if not marks:
        return ""
    counts = {mark: marks.count(mark) for mark in ("agrees", "disagrees", "noise")}
    one = len(marks) == 1
    return (
        f"Of {len(marks)} effect{'' if one else 's'}, {counts['agrees']} with the paper's direction, "
        f"{counts['disagrees']} with the opposite one, {counts['noise']} within noise."
    )
