"""Results over seeds, and whether an effect has the paper's direction, the opposite one, or none that can be told."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ldreg.record import ACCURACIES, Record
from ldreg.report.comparison import sampling_noise
from ldreg.report.tables import Mark
from ldreg.reproduce.paper import AP

TIMES = ("minutes", "images_per_second")
TRAIN_LID = "train_lid"  # of training images: the end of the curve, as the paper's Figure 2(a, b) has it

_DEGENERATE = 0.5  # share of points without a defined LID from which a run counts as collapsed
_AP_FLOOR = 0.5  # points of AP, by which trainings of a detector differ anyway
_NOTHING = 1e-3  # relative difference in the paper that is no effect, as 583.5 against 583.8
_LAST_DIGITS = (0.1, 0.01)  # that the paper prints, of AP the second
# Relative difference of dimensions that one seed each cannot tell from chance: 2√2 times their deviation over seeds,
# which for SimCLR, BYOL and MoCo at CIFAR-10 size makes 4.3 % of LID, but 9.4 % of effective rank.
_UNSURE = 0.05
_UNSURE_OF = {"effective_rank": 0.1}
# Student's t at 95 % by degrees of freedom.
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)


@dataclass(frozen=True)
class Sample:
    """A result by seed, accuracies and AP in percent.

    `test_size` images were classified for an accuracy, else 0; a difference below `floor` is never told from chance,
    nor one of single seeds below the share `unsure` of the value. `collapsed` says that there are no values because
    every run that could have one collapsed. `by` is who trained them: a seed means the same to one trainer alone.
    """

    by_seed: Mapping[int, float] = field(default_factory=dict)
    test_size: int = 0
    floor: float = 0.0
    unsure: float = _UNSURE
    collapsed: bool = False
    by: str = "ldreg"

    @property
    def values(self) -> tuple[float, ...]:
        """The values alone."""
        return tuple(self.by_seed.values())

    @property
    def mean(self) -> float:
        """Mean over seeds; NaN where there is none."""
        return statistics.fmean(self.values) if self.by_seed else math.nan

    @property
    def deviation(self) -> float:
        """Standard deviation over seeds; NaN for fewer than two."""
        return statistics.stdev(self.values) if len(self.by_seed) > 1 else math.nan


def sample(records: Sequence[Record], metric: str) -> Sample:
    """A metric over the records of an arm; those that lack it do not count."""
    if metric in TIMES:
        records = _alone(records)
    found = {int(record.origin.get("seed") or 0): value_of(record, metric) for record in records}
    factor = 100.0 if in_percent(metric) else 1.0
    key = f"tested/{metric.partition('/')[2]}" if "/" in metric else "held_out"
    sizes = [int(record.origin.get(key) or 0) for record in records if not record.origin.get("failed")]
    counted = metric in ACCURACIES or "/" in metric
    values = {seed: factor * value for seed, value in found.items() if math.isfinite(value)}
    return Sample(
        values,
        min(sizes, default=0) if counted else 0,
        _AP_FLOOR if metric in AP else 0.0,
        _UNSURE_OF.get(metric, _UNSURE),
        collapsed=not values and collapses(records) > 0,
        by=next((str(record.settings.get("by", "ldreg")) for record in records), "ldreg"),
    )


def _alone(records: Sequence[Record]) -> Sequence[Record]:
    """Those that had the machine to themselves, where there are any: beside others a run takes longer."""
    return [record for record in records if int(record.origin.get("at_once") or 1) == 1] or records


def value_of(record: Record, metric: str) -> float:
    """A result of one run; NaN where it has none."""
    if metric == TRAIN_LID and record.origin.get("failed"):  # its curve does not reach the end
        return math.nan
    if metric == TRAIN_LID:
        curve = record.curves.get("lid", ())
        return curve[-1][1] if curve else math.nan
    return record.results.get(metric, math.nan)


def in_percent(metric: str) -> bool:
    """Whether a metric is a share that tables have in percent."""
    return metric in ACCURACIES or metric in AP or metric == "view_share" or metric.startswith("transfer/")


def collapses(records: Sequence[Record]) -> int:
    """How many runs ended without numbers, or with representations that have no dimension."""
    return sum(
        bool(record.origin.get("failed")) or record.results.get("degenerate", 0.0) > _DEGENERATE for record in records
    )


def noise(own: Sample, base: Sample) -> float:
    """The difference of two means that chance may make.

    Runs of the same seed begin alike, so differences are taken seed by seed: with two or more, noise is half the width
    of the 95 % interval of their mean by Student's t, and for accuracies at least one test image. Runs of two trainers
    do not begin alike; theirs is the interval of the difference of two means, whose deviation is pooled. With one seed,
    it is twice the sampling error of the test images for accuracies, and for dimensions the share of the value by which
    they vary between seeds: a twentieth of LID, a tenth of effective rank. Average precisions always need half a point.

    >>> noise(Sample({0: 5.0, 1: 6.0, 2: 7.0}), Sample({0: 4.0, 1: 5.0, 2: 6.0}))
    0.0
    >>> round(noise(Sample({0: 5.0, 1: 6.1, 2: 6.9}), Sample({0: 4.0, 1: 5.0, 2: 6.0})), 2)
    0.25
    >>> round(noise(Sample({0: 5.0, 1: 6.0}), Sample({0: 4.0, 1: 5.0, 2: 6.0}, by="lightly")), 2)
    2.65
    """
    shared = _shared(own, base)
    tested = min(own.test_size, base.test_size)
    interval = None
    if own.by != base.by and own.values and base.values and len(own.values) + len(base.values) > 2:
        interval = _apart(own.values, base.values)
    elif len(shared) > 1:
        differences = [own.by_seed[seed] - base.by_seed[seed] for seed in shared]
        interval = student(len(shared) - 1) * statistics.stdev(differences) / math.sqrt(len(shared))
    if interval is not None:
        return max(interval, 100 / tested if tested else 0.0, own.floor)
    if tested:
        return sampling_noise((own.mean / 100, base.mean / 100), tested)
    return max(own.unsure * max(abs(own.mean), abs(base.mean)), own.floor)


def _shared(own: Sample, base: Sample) -> list[int]:
    """The seeds by which runs of both begin alike."""
    return sorted(own.by_seed.keys() & base.by_seed.keys()) if own.by == base.by else []


def _apart(own: Sequence[float], base: Sequence[float]) -> float:
    """Half the 95 % interval of the difference of two means, by the deviation within both, which has to be known."""
    degrees = len(own) + len(base) - 2
    squares = sum((value - statistics.fmean(some)) ** 2 for some in (own, base) for value in some)
    return student(degrees) * math.sqrt(squares / degrees * (1 / len(own) + 1 / len(base)))


def student(degrees: int) -> float:
    """Student's t at 95 % by degrees of freedom; beyond the table by the first terms of Fisher's expansion.

    >>> student(2), round(student(11), 2), round(student(30), 2), round(student(999), 2)
    (4.3, 2.2, 2.04, 1.96)
    """
    if degrees <= len(_STUDENT):
        return _STUDENT[degrees - 1]
    z = statistics.NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def difference(own: Sample, base: Sample) -> float:
    """How much higher one is: the mean over the seeds that both have where these are several, else of all they have.

    Seeds of two trainers have nothing in common.

    >>> difference(Sample({0: 5.0, 1: 6.0, 2: 30.0}), Sample({0: 4.0, 1: 5.5}))
    0.75
    """
    shared = _shared(own, base)
    if len(shared) > 1:
        return statistics.fmean(own.by_seed[seed] - base.by_seed[seed] for seed in shared)
    return own.mean - base.mean


def direction(own: Sample, base: Sample, paper: float | None, paper_base: float | None) -> Mark:
    """Whether an effect has the paper's direction: where it is larger than its noise, and the paper has one.

    A difference of its last digit is none. A collapse counts as lower: in the paper, where it is NaN, and here, where
    it has all runs of one side.

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
    last_digit = _LAST_DIGITS[own.floor == _AP_FLOOR]
    if abs(paper - paper_base) <= max(_NOTHING * abs(paper_base), 1.5 * last_digit):
        return ""
    if math.isfinite(found) and abs(found) <= noise(own, base):
        return "noise"
    return "agrees" if (found > 0) == (paper > paper_base) else "disagrees"
