"""The typed record of one inspection: numbers and arrays, written as text, JSON or a page."""

import json
import math
from dataclasses import asdict, dataclass, fields, is_dataclass
from os import PathLike
from typing import Any, Literal

from torch import Tensor

from ldreg.reporting.files import write_atomically
from ldreg.reporting.text import count, number, percent, printable

_BIASED = 15.0  # from here on a finite set reads LID low by a tenth and more


@dataclass(frozen=True)
class Reading:
    """One number, or None with the reason why there is none; `note` also says how it was taken."""

    value: float | None
    note: str = ""


@dataclass(frozen=True)
class MeanLID:
    """Geometric-mean LID with its 95 % confidence interval; NaN where it is not defined."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class CollapsedPoint:
    """A point of low LID: its row, LID, standard error and, where labels were given, its label."""

    index: int
    lid: float
    standard_error: float
    label: str | None


@dataclass(frozen=True)
class ClassLID:
    """LID of the points of one class: how many were measured, how many are regular, their geometric mean."""

    label: str
    count: int
    regular: int
    mean: MeanLID


@dataclass(frozen=True)
class Comparison:
    """A second set of embeddings and the Fisher-Rao distance between the two geometric means."""

    title: str
    points: int
    dimensions: int
    measured: int
    mean: MeanLID
    fisher_rao: float


@dataclass(frozen=True, eq=False)
class DimensionReport:
    """Local and global dimensionality of embeddings (N, D); made by `ldreg.inspect`.

    Statistics are over the regular points, those with a finite LID above zero; `zero` and `infinite` count the
    rest. Arrays are on the CPU and have one row for each measured point, whose row in the data is in `index`.
    """

    points: int
    dimensions: int
    measured: int
    k: int
    estimator: Literal["mom", "mle", "tle"]
    convention: Literal["paper", "pseudocode"]
    seed: int
    device: str
    mean: MeanLID
    quartiles: tuple[float, float, float]
    frechet_variance: float
    arithmetic_mean: float
    harmonic_mean: float
    zero: int
    infinite: int
    duplicated: int
    effective_rank: float
    rankme: float
    twonn: Reading
    danco: Reading
    comparison: Comparison | None
    most_collapsed: tuple[CollapsedPoint, ...]
    classes: tuple[ClassLID, ...]
    index: Tensor
    lid: Tensor
    standard_error: Tensor
    kth_distance: Tensor
    eigenvalues: Tensor
    coordinates: Tensor
    labels: tuple[str, ...] | None
    version: str
    title: str = "embeddings"
    command: str = ""

    @property
    def degenerate(self) -> int:
        """How many measured points have no regular LID (0 or inf)."""
        return self.zero + self.infinite

    @property
    def degenerate_share(self) -> float:
        """Share of the measured points that have no regular LID."""
        return self.degenerate / self.measured

    def in_words(self) -> str:
        """What the numbers say, in two or three sentences."""
        return " ".join([_mean_sentence(self), *_caveats(self)])

    def to_dict(self) -> dict[str, Any]:
        """Everything but the map, as plain Python values; numbers that are not finite become None.

        `lid` is None where LID is infinite (all k neighbors equally far).
        """
        arrays = ("index", "lid", "standard_error", "kth_distance", "eigenvalues")
        plain = {**self._plain(), "degenerate": self.degenerate, "degenerate_share": self.degenerate_share}
        return {**strict(plain), **{name: _column(getattr(self, name)) for name in arrays}}

    def to_json(self, path: str | PathLike[str]) -> None:
        """Write `to_dict` as strict JSON (no NaN or Infinity), the same bytes for the same numbers."""
        lines = [f"  {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in self.to_dict().items()]
        write_atomically(path, "{\n" + ",\n".join(lines) + "\n}\n")

    def to_html(self, path: str | PathLike[str]) -> None:
        """Write a self-contained page: summary, figures, tables; it makes no request and runs no script."""
        from ldreg.reporting.page import page

        write_atomically(path, page(self))

    def __str__(self) -> str:
        """The report as a plain-text table, 80 columns wide."""
        from ldreg.reporting.table import as_text

        return as_text(self)

    def _plain(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: _nested(value) for name, value in values.items() if not isinstance(value, Tensor)}


@dataclass(frozen=True, eq=False)
class PointCloud:
    """Points (N, 2) of the plane and their dimension.

    `lid` (N,) and its geometric mean, that mean's Fisher-Rao distance to 2, DANCo's value, and one typical point, the
    `anchor`, with the `radius` that its neighbors lie in.
    """

    caption: str
    points: Tensor
    lid: Tensor
    mean_lid: float
    fisher_rao: float
    global_dimension: float
    anchor: int
    radius: float


def _mean_sentence(report: DimensionReport) -> str:
    if math.isnan(report.mean.value):
        return f"None of the {count(report.measured)} measured points has a defined LID."
    if report.mean.value > report.dimensions:
        return (
            f"LID reads {number(report.mean.value)}, more than the {count(report.dimensions)} coordinates that there "
            "are: k or the number of points is too small to tell."
        )
    low, median, _ = report.quartiles
    return (
        f"Around a typical point these embeddings vary in about {number(median)} independent directions, "
        f"of {count(report.dimensions)} coordinates; a quarter of the points read below {number(low)}."
    )


def _caveats(report: DimensionReport) -> list[str]:
    sentences = []
    lowest = min((row for row in report.classes if row.regular), key=lambda row: row.mean.value, default=None)
    if lowest is not None and lowest.mean.value < 0.6 * report.quartiles[1]:
        sentences.append(f"Class {printable(lowest.label)} is collapsed beside the rest: {number(lowest.mean.value)}.")
    if report.quartiles[1] > _BIASED:
        sentences.append("Dimensions this high read low; compare only sets of as many points at the same k.")
    if 0 < report.degenerate < report.measured:
        share = percent(report.degenerate_share)
        sentences.append(f"{_points(report.degenerate)} no defined LID and are left out ({share}).")
    if 0 < report.duplicated < report.measured:
        sentences.append(f"{_points(report.duplicated)} an exact duplicate, where LID reads low.")
    return sentences


def _points(number_of: int) -> str:
    return f"{count(number_of)} {'point has' if number_of == 1 else 'points have'}"


def _nested(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_nested(item) for item in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def strict(value: Any) -> Any:
    """The same nested value, floats to nine digits (the rest is rounding), None for those that JSON cannot hold."""
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return value


def _column(values: Tensor) -> list[Any]:
    return [strict(value) for value in values.tolist()]
