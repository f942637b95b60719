"""The typed record of one inspection: numbers and arrays, written as text, JSON or a page."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, searchsorted

from ldreg.dimension.search import Neighbors
from ldreg.inspection.maps import Map
from ldreg.io.files import json_values, write_atomically
from ldreg.record import Finding, write_json
from ldreg.thumbnails import ImageLike

if TYPE_CHECKING:  # a slow import
    from pandas import DataFrame


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
    """A point of low LID: its row, LID, standard error, its label and name where they were given.

    It stands for all `copies` measured points with an equal row.
    """

    index: int
    lid: float
    standard_error: float
    label: str | None
    name: str | None = None
    copies: int = 1


@dataclass(frozen=True)
class ClassLID:
    """LID of the points of one class: how many were measured, how many are regular, their geometric mean.

    `coinciding` of them have at least k exact duplicates, and so no LID.
    """

    label: str
    count: int
    regular: int
    mean: MeanLID
    coinciding: int = 0


@dataclass(frozen=True)
class Expected:
    """LID compared with as many Gaussian points at the same k; None: not known, for the reason in `note`.

    Args:
        gaussian_lid: LID of Gaussian points with the covariance of the set
        gaussian_dimension: dimension of the standard Gaussian with the LID of the set
        note: why a number is not known
    """

    gaussian_lid: float | None = None
    gaussian_dimension: float | None = None
    note: str = ""


@dataclass(frozen=True, eq=False)
class Comparison:
    """A second set of embeddings, measured like the first, and the Fisher-Rao distance of the two geometric means.

    How the two compare is among the findings of the first.
    """

    other: "DimensionReport"
    fisher_rao: float

    def to_dict(self) -> dict[str, Any]:
        """The other set's numbers and arrays, and the distance, as `DimensionReport.to_dict` has them."""
        left_out = ("comparison", "version", "command", "in_words")  # the first set's, whose words tell of both
        numbers = {name: value for name, value in self.other.to_dict().items() if name not in left_out}
        return {**numbers, **json_values({"fisher_rao": self.fisher_rao})}


@dataclass(frozen=True)
class Layer:
    """What one layer of a model reads: dimensions of its representations, LID, its 5 % quantile, rank and findings."""

    name: str
    dimensions: int
    mean: MeanLID
    lid_low: float
    effective_rank: float
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class DimensionReport:
    """Local and global dimensionality of embeddings (N, D); made by `ldreg.inspect`.

    Statistics are over the regular points, those with a finite LID above zero; `zero` and `infinite` count the rest.
    `lid_low` is the 5 % quantile over all points, so that rows that coincide lower it. `findings` are what is wrong
    with the set, the most serious first, or one of the kind "nothing_unusual". `measures` are numbers of
    `dimension.quality` by name.

    Arrays are on the CPU and have one row for each measured point, whose row in the data is in `index`. `nearest` is
    the row of its nearest neighbor. `duplicate_group` is a number that equal rows share, -1 for rows without an equal.
    `neighbor_of` says how many measured points have a point among their k nearest. `neighbors` are kept only on
    request. `left_out` rows with NaN or inf are not among the points; rows have the numbers that they have with these.
    `coordinates` are those of the `map`, NaN for points that it leaves out. With `in_reference`, neighbors are rows of
    the set in `comparison.other`, and `duplicate_group` and `neighbor_of` are None. `layers` has what each layer of a
    model reads, where `ldreg inspect --layers` measured them.
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
    nearest: Tensor
    nearest_distance: Tensor
    eigenvalues: Tensor
    coordinates: Tensor
    labels: tuple[str, ...] | None
    names: tuple[str, ...] | None
    duplicate_group: Tensor | None
    neighbor_of: Tensor | None
    measures: Mapping[str, Any]
    version: str
    title: str = "embeddings"
    command: str = ""
    in_reference: bool = False
    left_out: int = 0
    map: Map = "pca"
    neighbors: Neighbors | None = None
    lid_low: float = math.nan
    expected: Expected = Expected()
    findings: tuple[Finding, ...] = ()
    layers: tuple[Layer, ...] = ()

    @property
    def degenerate(self) -> int:
        """How many measured points have no regular LID (0 or inf)."""
        return self.zero + self.infinite

    @property
    def degenerate_share(self) -> float:
        """Share of the measured points that have no regular LID."""
        return self.degenerate / self.measured

    def name_of(self, row: int) -> str | None:
        """The name of a measured row of the data; None of another row, or if names were not given."""
        place = int(searchsorted(self.index, row))
        known = self.names is not None and place < len(self.index) and int(self.index[place]) == row
        return self.names[place] if self.names is not None and known else None

    def in_words(self) -> str:
        """The findings in sentences, the most serious first."""
        from ldreg.report.words import sentence

        return " ".join(sentence(finding, self) for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the map and the neighbors, as plain Python values; numbers that are not finite become None.

        What is known of a second set is in `comparison`, by the same names. `lid` is None where LID is infinite (all k
        neighbors equally far).
        """
        from ldreg.report.words import sentence

        values = {field.name: getattr(self, field.name) for field in fields(self)}
        del values["neighbors"], values["map"]
        if not self.layers:
            del values["layers"]
        arrays = {name: value.tolist() for name, value in values.items() if isinstance(value, Tensor)}
        del arrays["coordinates"]
        plain = {name: _nested(value) for name, value in values.items() if not isinstance(value, Tensor)}
        plain |= {"degenerate": self.degenerate, "degenerate_share": self.degenerate_share}
        plain["in_words"] = self.in_words()
        for entry, finding in zip(plain["findings"], self.findings, strict=True):
            entry["text"] = sentence(finding, self)
            del entry["of"]
        plain["comparison"] = None if self.comparison is None else self.comparison.to_dict()
        found: dict[str, Any] = json_values(plain | arrays)
        return found

    def to_frame(self) -> "DataFrame":
        """A pandas frame with a row for each measured point: LID, its error, findings, duplicates, hub count."""
        from ldreg.inspection.points import points_table

        return points_table(self)

    @property
    def rows(self) -> int:
        """Rows of the data, with those left out."""
        return self.points + self.left_out

    def to_json(self, path: str | PathLike[str]) -> None:
        """Write `to_dict` as strict JSON (no NaN or Infinity), the same bytes for the same numbers."""
        write_json(path, self.to_dict())

    def to_html(self, path: str | PathLike[str], *, images: Sequence[ImageLike | None] | None = None) -> None:
        """Write a self-contained page: summary, linked views of the points, figures, tables; it makes no request.

        Args:
            path: of the page.
            images: for each row of the data an image file, or an image uint8 (C, H, W), or None for a missing one; the
                page shows small copies of them.

        Raises:
            ValueError: another number of images than of rows.
        """
        from ldreg.report.pages import inspection_page

        write_atomically(path, inspection_page(self, images=images))

    def __str__(self) -> str:
        """The report as a plain-text table, 80 columns wide."""
        from ldreg.report.words import inspection_text

        return inspection_text(self)

    __repr__ = __str__  # that of a dataclass prints every array

    def _repr_html_(self) -> str:
        """What a notebook shows: findings and tables."""
        from ldreg.report.pages import notebook_output

        return notebook_output(self)


def findings_in_words(report: DimensionReport, of: str, rows: Sequence[int] | None = None) -> list[Finding]:
    """The findings of a report as a run has them, in words and without their rows.

    Args:
        report: of what was measured.
        of: what it was, such as "images".
        rows: the number of the image for each point; None: the points' own.
    """
    from ldreg.report.words import sentence

    found = []
    for one in report.findings:
        named = one if rows is None else replace(one, examples=tuple(rows[row] for row in one.examples))
        found.append(replace(one, rows=(), examples=(), labels=(), of=of, text=sentence(named, report)))
    return found


def _nested(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_nested(item) for item in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
