"""Results over seeds, and whether a difference has the paper's direction, the opposite one, or is within noise."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ldreg.record import ACCURACIES, PRECISIONS, Record
from ldreg.report.tables import Mark
from ldreg.report.words import sampling_noise
from ldreg.reproduce.studies import Arm, Records, Row, Scale, Study

TIMES = ("minutes", "images_per_second")
TRAIN_LID = "train_lid"  # the end of the curve of LID of training images, as in the paper's Figure 2(a, b)

_DEGENERATE = 0.5  # share of points without a defined LID from which a run counts as collapsed
_AP_FLOOR = 0.5  # points of AP by which two trainings of a detector differ anyway
_NO_EFFECT = 1e-3  # relative difference in the paper that is no effect, as 583.5 and 583.8
_LAST_DIGIT, _LAST_DIGIT_OF_AP = 0.1, 0.01  # that the paper prints
# Relative difference of dimensions that one seed each cannot tell from chance: 2√2 times their deviation over seeds,
# which for SimCLR, BYOL and MoCo at CIFAR-10 size makes 4.3 % of LID, but 9.4 % of effective rank.
_UNSURE = 0.05
_UNSURE_OF = {"effective_rank": 0.1}


@dataclass(frozen=True)
class Sample:
    """One result of an arm by seed; accuracies and AP in percent."""

    by_seed: Mapping[int, float] = field(default_factory=dict)  # finite values
    test_size: int = 0  # images classified for an accuracy, else 0
    floor: float = 0.0  # a smaller difference is always noise
    unsure: float = _UNSURE  # share of the value below which a difference of single seeds is noise
    collapsed: bool = False  # whether there are no values because runs collapsed
    by: str = "ldreg"  # what trained the runs; seeds of two trainers have nothing in common

    @property
    def values(self) -> tuple[float, ...]:
        """The values without their seeds."""
        return tuple(self.by_seed.values())

    @property
    def mean(self) -> float:
        """Mean over seeds; NaN without values."""
        return statistics.fmean(self.values) if self.by_seed else math.nan

    @property
    def deviation(self) -> float:
        """Standard deviation over seeds; NaN for fewer than two."""
        return statistics.stdev(self.values) if len(self.by_seed) > 1 else math.nan


@dataclass(frozen=True)
class Comparison:
    """A row beside its baseline by one metric."""

    difference: float = math.nan  # NaN where one of them has no values, as is `noise`
    noise: float = math.nan  # the difference that chance may make
    mark: Mark = ""  # of the direction, where the paper claims one

    @property
    def verdict(self) -> str:
        """Higher, lower or within noise; empty where there is no difference."""
        if math.isnan(self.difference):
            return ""
        return "within noise" if abs(self.difference) <= self.noise else "higher" if self.difference > 0 else "lower"


@dataclass(frozen=True)
class Section:
    """A study at a scale, with the records of its rows."""

    study: Study
    scale: Scale
    records: Records

    @property
    def rows(self) -> Sequence[Row]:
        """The study's rows at this scale."""
        return self.study.rows(self.scale)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The results that are shown as columns."""
        return self.study.metrics_at(self.scale)

    def of(self, row: Row) -> Sequence[Record]:
        """The records of a row."""
        return self.records.get(row.arm, ())

    def sample(self, row: Row, metric: str) -> Sample:
        """One result of a row."""
        return sample(self.of(row), metric)

    @property
    def runs(self) -> dict[str, Record]:
        """All records by name, row by row."""
        return {record.name: record for row in self.rows for record in self.of(row)}

    @property
    def effects(self) -> set[tuple[Arm, Arm, str]]:
        """What it compares: an arm with another, by a metric."""
        pairs = [(row.arm, self.rows[row.baseline].arm) for row in self.rows if row.baseline is not None]
        return {(*pair, metric) for pair in pairs for metric in self.metrics}

    def compared(self, row: Row, metric: str) -> Comparison:
        """A row beside its baseline; an empty comparison for a row without one."""
        if row.baseline is None:
            return Comparison()
        other = self.rows[row.baseline]
        own, base = self.sample(row, metric), self.sample(other, metric)
        mark = direction(own, base, row.values.get(metric), other.values.get(metric)) if row.judged else ""
        both = own.values and base.values
        return Comparison(difference(own, base), noise(own, base), mark) if both else Comparison(mark=mark)


def sample(records: Sequence[Record], metric: str) -> Sample:
    """A metric over the records of an arm; records without it do not count.

    Times are those of runs that had the machine to themselves, where there are any.
    """
    if metric in TIMES:
        records = [record for record in records if int(record.origin.get("at_once") or 1) == 1] or records
    factor = 100.0 if in_percent(metric) else 1.0
    found = {int(record.origin.get("seed") or 0): factor * value_of(record, metric) for record in records}
    values = {seed: value for seed, value in found.items() if math.isfinite(value)}
    key = f"tested/{metric.partition('/')[2]}" if "/" in metric else "held_out"
    sizes = [int(record.origin.get(key) or 0) for record in records if not record.origin.get("failed")]
    return Sample(
        values,
        min(sizes, default=0) if metric in ACCURACIES or "/" in metric else 0,
        _AP_FLOOR if metric in PRECISIONS else 0.0,
        _UNSURE_OF.get(metric, _UNSURE),
        collapsed=not values and collapses(records) > 0,
        by=next((str(record.settings.get("by", "ldreg")) for record in records), "ldreg"),
    )


def value_of(record: Record, metric: str) -> float:
    """A result of one run; NaN where it has none, as a failed run has no LID at the end of its curve."""
    if metric != TRAIN_LID:
        return record.results.get(metric, math.nan)
    curve = () if record.origin.get("failed") else record.curves.get("lid", ())
    return curve[-1][1] if curve else math.nan


def in_percent(metric: str) -> bool:
    """Whether a metric is a share that tables show in percent."""
    return metric in ACCURACIES or metric in PRECISIONS or metric == "view_share" or metric.startswith("transfer/")


def collapses(records: Sequence[Record]) -> int:
    """How many runs ended without numbers, or with representations that have no dimension."""
    return sum(
        bool(record.origin.get("failed")) or record.results.get("degenerate", 0.0) > _DEGENERATE for record in records
    )


def noise(own: Sample, base: Sample) -> float:
    """The difference of two means that chance may make.

    Runs of the same seed begin alike, so differences are taken seed by seed: with two or more, noise is half the width
    of the 95 % interval of their mean by Student's t, and for accuracies at least one test image. Runs of two trainers
    do not begin alike; theirs is the interval of the difference of two means with pooled variance. With one seed, it is
    twice the sampling error of the test images for accuracies, and for dimensions the share of the value by which they
    vary between seeds: a twentieth of LID, a tenth of effective rank. Average precisions always need half a point.

    >>> noise(Sample({0: 5.0, 1: 6.0, 2: 7.0}), Sample({0: 4.0, 1: 5.0, 2: 6.0}))
    0.0
    >>> round(noise(Sample({0: 5.0, 1: 6.1, 2: 6.9}), Sample({0: 4.0, 1: 5.0, 2: 6.0})), 2)
    0.25
    >>> round(noise(Sample({0: 5.0, 1: 6.0}), Sample({0: 4.0, 1: 5.0, 2: 6.0}, by="lightly")), 2)
    2.65
    """
    paired, tested = _differences(own, base), min(own.test_size, base.test_size)
    degrees = len(own.values) + len(base.values) - 2
    if own.by != base.by and own.values and base.values and degrees > 0:
        squares = sum((value - some.mean) ** 2 for some in (own, base) for value in some.values)
        error = math.sqrt(squares / degrees * (1 / len(own.values) + 1 / len(base.values)))
    elif len(paired) > 1:
        degrees, error = len(paired) - 1, statistics.stdev(paired) / math.sqrt(len(paired))
    elif tested:
        return sampling_noise((own.mean / 100, base.mean / 100), tested)
    else:
        return max(own.unsure * max(abs(own.mean), abs(base.mean)), own.floor)
    return max(student(degrees) * error, 100 / tested if tested else 0.0, own.floor)


def _differences(own: Sample, base: Sample) -> list[float]:
    """The differences seed by seed, of the seeds by which runs of both begin alike."""
    shared = sorted(own.by_seed.keys() & base.by_seed.keys()) if own.by == base.by else []
    return [own.by_seed[seed] - base.by_seed[seed] for seed in shared]


def student(degrees: int) -> float:
    """Student's t at 95 % by degrees of freedom, to two digits as in printed tables.

    >>> student(2), student(30)
    (4.3, 2.04)
    """
    from scipy import stats  # takes long to import

    return round(float(stats.t.ppf(0.975, degrees)), 2)


def difference(own: Sample, base: Sample) -> float:
    """How much higher one is: the mean over the seeds that both have where these are several, else of all they have.

    >>> difference(Sample({0: 5.0, 1: 6.0, 2: 30.0}), Sample({0: 4.0, 1: 5.5}))
    0.75
    """
    paired = _differences(own, base)
    return statistics.fmean(paired) if len(paired) > 1 else own.mean - base.mean


def direction(own: Sample, base: Sample, paper: float | None, paper_base: float | None) -> Mark:
    """Whether a difference has the paper's direction; empty where the paper or the runs have none to judge.

    A difference of the paper's last digit is none. A collapse counts as lower: in the paper, where it is NaN, and here,
    where it has all runs of one side.

    >>> direction(Sample({0: 7.0}), Sample({0: 6.0}), 20.0, 18.8), direction(Sample({0: 6.1}), Sample({0: 6.0}), 20, 19)
    ('agrees', 'noise')
    >>> direction(Sample(collapsed=True), Sample({0: 6.0}), 20.0, 18.8)
    'disagrees'
    """
    found = difference(own, base)
    if own.collapsed != base.collapsed and (own.values or base.values):
        found = -math.inf if own.collapsed else math.inf
    if paper is None or paper_base is None or math.isnan(found):
        return ""
    last_digit = _LAST_DIGIT_OF_AP if own.floor == _AP_FLOOR else _LAST_DIGIT
    if abs(paper - paper_base) <= max(_NO_EFFECT * abs(paper_base), 1.5 * last_digit):
        return ""
    if math.isfinite(found) and abs(found) <= noise(own, base):
        return "noise"
    return "agrees" if (found > 0) == (paper > paper_base) else "disagrees"
