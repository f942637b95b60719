"""The rows that the text table and the page both show."""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ldreg.inspection.report import ClassLID, DimensionReport, Reading
from ldreg.text import count, interval, number, percent

ESTIMATORS = {"mom": "method of moments", "mle": "maximum likelihood", "tle": "tight locality"}


class Row(NamedTuple):
    """A quantity, its value, a remark (empty where there is nothing to say), and the same of a set compared with."""

    name: str
    value: str
    remark: str
    beside: "Row | None" = None


def local_rows(report: DimensionReport) -> list[Row]:
    """What LID says: means, spread, points without a regular value."""
    rows = _with_other(_local, report)
    if report.comparison is not None:
        other = report.comparison.other
        distance = report.comparison.fisher_rao
        ratio = f"{number(report.mean.value)} / {number(other.mean.value)}"
        remark = "" if math.isnan(distance) else f"to {other.title}: |ln({ratio})|"
        rows.append(Row("Fisher-Rao distance", number(distance), remark))
    return rows


def global_rows(report: DimensionReport) -> list[Row]:
    """Dimensions of the set as a whole."""
    return _with_other(_global, report)


def _with_other(measured: Callable[[DimensionReport], list[Row]], report: DimensionReport) -> list[Row]:
    """The rows of a set, those of the one that it is compared with beside them; a dash where just one has a value."""
    own = measured(report)
    if report.comparison is None:
        return own
    other = measured(report.comparison.other)
    names = dict.fromkeys(row.name for rows in sorted((own, other), key=len, reverse=True) for row in rows)
    return [_named(own, name)._replace(beside=_named(other, name)) for name in names]


def _named(rows: Iterable[Row], name: str) -> Row:
    return next((row for row in rows if row.name == name), Row(name, number(None), ""))


def _local(report: DimensionReport) -> list[Row]:
    low, median, high = map(number, report.quartiles)
    return [
        Row("LID, geometric mean", number(report.mean.value), f"95 % confidence {_mean_interval(report)}"),
        *_guided(report),
        Row("LID, 5 % quantile", number(report.lid_low), "falls first where a part collapses"),
        Row("LID, median", median, f"quartiles {low} and {high}"),
        Row("LID, arithmetic mean", number(report.arithmetic_mean), f"harmonic mean {number(report.harmonic_mean)}"),
        Row("Fréchet variance", number(report.frechet_variance), "variance of ln LID"),
        Row("Degenerate points", percent(report.degenerate_share), _degenerate(report)),
        Row("Exact duplicates", count(report.duplicated), "points with one; LID reads low there"),
    ]


def _guided(report: DimensionReport) -> list[Row]:
    """What Gaussian points read, where it is known."""
    found, rows = report.expected, []
    if found.gaussian_lid is not None:
        rows.append(Row("LID of a Gaussian", number(found.gaussian_lid), "with the same covariance, k and N"))
    if found.gaussian_dimension is not None:
        rows.append(Row("Gaussian dimension", number(found.gaussian_dimension), "of a Gaussian that reads this LID"))
    return rows


def _global(report: DimensionReport) -> list[Row]:
    return [
        Row("Effective rank", number(report.effective_rank), "entropy of the covariance spectrum"),
        Row("RankMe", number(report.rankme), "entropy of the singular values, uncentered"),
        _reading("TwoNN", report.twonn, "two nearest neighbors; reads low above 20"),
        _reading("DANCo", report.danco, "angles and norms of neighbors"),
    ]


def settings(report: DimensionReport) -> list[tuple[str, str]]:
    """What was measured and how."""
    convention = ", paper's mean over k" if report.convention == "paper" else ", pseudocode's mean over k - 1"
    return [
        ("Points", count(report.points)),
        ("Dimensions", count(report.dimensions)),
        ("Measured", f"{count(report.measured)} points, neighbors from all"),
        ("Neighbors k", str(report.k)),
        ("Estimator", ESTIMATORS[report.estimator] + (convention if report.estimator != "tle" else "")),
        ("Seed", str(report.seed)),
        ("Device", report.device),
    ]


def classes_of_other(report: DimensionReport) -> dict[str, ClassLID]:
    """The classes of the set compared with that the first has as well, by their names."""
    if report.comparison is None:
        return {}
    own = {row.label for row in report.classes}
    return {row.label: row for row in report.comparison.other.classes if row.label in own}


def shown_classes(report: DimensionReport, most: int) -> list[ClassLID]:
    """All classes in their order, or where there are more than `most`, those of lowest and highest LID by LID."""
    if len(report.classes) <= most:
        return list(report.classes)
    ranked = sorted((row for row in report.classes if row.regular), key=lambda row: row.mean.value)
    return ranked[: most - most // 2] + ranked[-(most // 2) :] if len(ranked) > most else ranked


def _mean_interval(report: DimensionReport) -> str:
    return interval(report.mean.low, report.mean.high)


def _degenerate(report: DimensionReport) -> str:
    return f"LID 0: {count(report.zero)}; infinite: {count(report.infinite)}; of {count(report.measured)}"


def _reading(name: str, reading: Reading, meaning: str) -> Row:
    remark = reading.note if reading.value is None else f"{meaning}; {reading.note}" if reading.note else meaning
    return Row(name, number(reading.value), remark)
