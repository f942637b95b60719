"""The rows that the text table and the page both show."""

from typing import NamedTuple

from ldreg.reporting.record import ClassLID, DimensionReport, Reading
from ldreg.reporting.text import count, interval, number, percent

ESTIMATORS = {"mom": "method of moments", "mle": "maximum likelihood", "tle": "tight locality"}


class Row(NamedTuple):
    """A quantity, its value, and a remark (empty where there is nothing to say)."""

    name: str
    value: str
    remark: str


def local_rows(report: DimensionReport) -> list[Row]:
    """What LID says: means, spread, points without a regular value."""
    low, median, high = map(number, report.quartiles)
    rows = [
        Row("LID, geometric mean", number(report.mean.value), f"95 % confidence {_mean_interval(report)}"),
        *_guided(report),
        Row("LID, median", median, f"quartiles {low} and {high}"),
        Row("LID, arithmetic mean", number(report.arithmetic_mean), f"harmonic mean {number(report.harmonic_mean)}"),
        Row("Fréchet variance", number(report.frechet_variance), "variance of ln LID"),
        Row("Degenerate points", percent(report.degenerate_share), _degenerate(report)),
        Row("Exact duplicates", count(report.duplicated), "points with one; LID reads low there"),
    ]
    if report.comparison is not None:
        other = report.comparison
        remark = f"to {other.title}: LID {number(other.mean.value)} ({interval(other.mean.low, other.mean.high)})"
        rows.append(Row("Fisher-Rao distance", number(other.fisher_rao), remark))
    return rows


def _guided(report: DimensionReport) -> list[Row]:
    """What Gaussian points read, where it is known."""
    found, rows = report.guidance, []
    if found.usual is not None:
        rows.append(Row("LID, usual", number(found.usual), "of Gaussian points, same covariance"))
    if found.gaussian_dimension is not None:
        rows.append(Row("Gaussian dimension", number(found.gaussian_dimension), "of a Gaussian that reads this LID"))
    return rows


def global_rows(report: DimensionReport) -> list[Row]:
    """Dimensions of the set as a whole."""
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
