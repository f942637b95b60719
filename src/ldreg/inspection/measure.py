"""All steps of an inspection, on one process or shared by several."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy
import torch
from torch import Tensor

from ldreg import distributed
from ldreg.dimension.estimators import Convention, Estimator, LIDEstimate
from ldreg.dimension.expected import DIMENSIONS, Calibrated, beyond, expected_lid, gaussian_dimension
from ldreg.dimension.geometry import arithmetic_mean, fisher_rao, frechet_variance, harmonic_mean, regular
from ldreg.dimension.global_dim import danco, twonn
from ldreg.dimension.search import Neighbors, refuse_nonfinite
from ldreg.dimension.spectrum import entropy_rank, rankme, relative_spread, scaled_eigenvalues
from ldreg.dimension.streaming import resident, stream_lid
from ldreg.inspection import findings
from ldreg.inspection.arguments import as_device, as_embeddings, as_names, check_settings, device_name
from ldreg.inspection.interval import mean_lid, reach
from ldreg.inspection.plane import ROWS, draw, principal_plane
from ldreg.inspection.report import ClassLID, CollapsedPoint, Comparison, DimensionReport, Expected, Reading
from ldreg.inspection.sharing import Sharing
from ldreg.version import __version__

Progress = Callable[[str, float], None]

_GLOBAL_POINTS = 5000  # settle TwoNN and DANCo, which are one number for the whole set
_BLOCK_ROWS = 4096  # rows looked at at a time
_MOST_COLLAPSED = 10  # points listed in a report
_NOT_MEASURED = Reading(None, "not measured")


@torch.no_grad()
def inspect(
    x: Any,
    labels: Sequence[Any] | Tensor | None = None,
    k: int = 64,
    *,
    estimator: Estimator = "mom",
    convention: Convention = "paper",
    compare: Any = None,
    compare_labels: Sequence[Any] | Tensor | None = None,
    sample: int | None = None,
    device: str | torch.device | None = None,
    seed: int = 0,
    share: bool = False,
    progress: Progress | None = None,
) -> DimensionReport:
    """Measure the local and global dimensionality of embeddings.

    However many processes share the work, and whether the embeddings fit on the device or not, distances and LID by
    "mom" and "mle" are the same to rounding, and mostly bit for bit. Where several points tie for the k-th place, which
    of them is named may differ, and with it LID by "tle" and the digits of confidence intervals (`lid.streaming`).

    Args:
        x: embeddings (N, D), a tensor or anything that torch.as_tensor takes; a memory-mapped one is not copied.
        labels: N class labels (numbers or text), for LID per class.
        k: neighbors of each point, below N.
        estimator: of LID: method of moments, maximum likelihood (Hill), or tight locality.
        convention: of "mom" and "mle": mean over all k distances (paper), or over the first k - 1 (its pseudocode).
        compare: second embeddings (M, any dimension), measured alike and compared by Fisher-Rao distance; what is
            known of them is in `comparison.other` of the report.
        compare_labels: M class labels of the second embeddings, to compare class by class with `labels`.
        sample: measure at most this many points, drawn at random; their neighbors still come from all N.
        device: "cpu", "cuda", ...; None or "auto": where x is, or else a GPU if there is one. Embeddings that do not
            fit on it come to it block by block.
        seed: of every random draw.
        share: whether the processes of the default torch.distributed group (gloo) share the points to measure. All of
            them must call, with the same arguments, and all get one report.
        progress: called with the name of the step and the fraction of the whole that is done.

    Raises:
        ValueError: wrong shapes, dtypes or sizes, NaN or inf, k or seed out of range, labels of another length.
        LostProcessError: a process that shares the work is gone.

    >>> x = torch.randn(300, 3, generator=torch.Generator().manual_seed(0)) @ torch.eye(3, 16)
    >>> report = inspect(x, k=50)
    >>> report.points, report.dimensions, report.degenerate
    (300, 16, 0)
    >>> 2.8 < report.mean.low < report.mean.value < report.mean.high < 3.4
    True
    """
    sharing = Sharing(distributed.rank(), distributed.world()) if share else Sharing()

    def prepared() -> tuple["_Set", "_Set | None"]:
        check_settings(k, estimator=estimator, convention=convention, sample=sample, device=device, seed=seed)
        points = as_embeddings(x, "x", k)
        if compare_labels is not None and (compare is None or labels is None):
            raise ValueError("compare_labels: expected compare and labels with them, to compare class by class")
        names = None if labels is None else as_names(labels, "labels", len(points), of="x")
        other = None if compare is None else as_embeddings(compare, "compare", k)
        others = None
        if other is not None and compare_labels is not None:
            others = as_names(compare_labels, "compare_labels", len(other), of="compare")
        place = as_device(points, device, shared=sharing.several)
        second = None if other is None else _Set(other, "compare", place, others)
        return _Set(points, "x", place, names), second

    own, other = sharing.agreed(prepared)
    settings = _Settings(k, estimator, convention, sample, seed)
    with _current(own.device):
        steps = _Steps(progress, _costs(own, other, sample))
        measured = _measured(own, settings, sharing, steps.enter(own.step("LID")))
        compared = None if other is None else _measured(other, settings, sharing, steps.enter(other.step("LID")))
        return sharing.from_first(partial(_completed, measured, compared, settings, steps))


@torch.no_grad()
def quick_report(
    x: Tensor,
    labels: Sequence[Any] | Tensor | None = None,
    k: int = 64,
    *,
    sample: int | None = None,
    device: str | torch.device | None = "input",
    plane: bool = False,
    progress: Progress | None = None,
) -> DimensionReport:
    """`inspect` with its findings but without RankMe, TwoNN and DANCo, which take long.

    Args:
        x: embeddings (N, D).
        labels: N class labels.
        k: neighbors of each point.
        sample: as in `inspect`.
        device: as in `inspect`; "input": where x is.
        plane: whether to compute the coordinates of the map, which are 0 otherwise.
        progress: as in `inspect`.

    Raises:
        ValueError: as `inspect`.

    >>> x = torch.randn(300, 16, generator=torch.Generator().manual_seed(0))
    >>> quick_report(torch.cat([x, torch.zeros(100, 16)])).findings[0].kind
    'degenerate'
    """
    device = x.device if device == "input" else device
    check_settings(k, sample=sample, device=device)
    embeddings = as_embeddings(x, "x", k)
    names = None if labels is None else as_names(labels, "labels", len(x), of="x")
    points = _Set(embeddings, "x", as_device(embeddings, device, shared=False), names)
    settings = _Settings(k, "mom", "paper", sample, 0)
    with _current(points.device):
        steps = _Steps(progress, _costs(points, None, sample))
        measured = _measured(points, settings, Sharing(), steps.enter("LID"))
        report, _ = _described(measured, settings, steps, quick=True, plane=plane)
        steps.finish()
        return report


class _Settings(NamedTuple):
    k: int
    estimator: Estimator
    convention: Convention
    sample: int | None
    seed: int


class _Set(NamedTuple):
    """Embeddings (N, D), their name in messages, the device that measures them, and their labels."""

    x: Tensor
    name: str
    device: torch.device
    labels: list[str] | None = None

    def step(self, name: str) -> str:
        """The name of a step of its measurement in the progress."""
        return f"comparison: {name}" if self.name == "compare" else name


class _Measured(NamedTuple):
    """Rows (n,) of a set, their LID among all of it, and distances after the k-th; complete on rank 0 only."""

    points: _Set
    rows: Tensor
    found: LIDEstimate
    beyond: Tensor


class _Steps:
    """Turns the progress of each step into the progress of the whole."""

    def __init__(self, report: Progress | None, costs: dict[str, float]) -> None:
        self.report, self.costs, self.total = report, costs, sum(costs.values())
        self.before, self.cost = 0.0, 0.0

    def enter(self, name: str) -> Callable[[float], None] | None:
        """Begin a step, which ends the one before; the result takes the fraction of this step that is done."""
        self.before, self.cost = self.before + self.cost, self.costs[name]
        if self.report is None:
            return None
        report, before, cost = self.report, self.before, self.cost

        def advance(fraction: float) -> None:
            report(name, (before + cost * fraction) / self.total)

        advance(0.0)
        return advance

    def finish(self) -> None:
        """End the last step."""
        if self.report is not None:
            self.report("done", 1.0)


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Launch kernels on this device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _measured(
    points: _Set, settings: _Settings, sharing: Sharing, progress: Callable[[float], None] | None
) -> _Measured:
    rows = draw(len(points.x), settings.sample, settings.seed)
    placed, part = sharing.agreed(partial(_part, points, sharing.share(rows), settings, progress))
    values, errors, (distances, indices) = sharing.gathered(part, len(rows))
    k = settings.k
    near = Neighbors(distances[:, :k].contiguous(), indices[:, :k].contiguous())
    return _Measured(placed, rows, LIDEstimate(values, errors, near), distances[:, k:])


def _part(
    points: _Set, rows: Tensor, settings: _Settings, progress: Callable[[float], None] | None
) -> tuple[_Set, LIDEstimate]:
    """The set, on its device where it fits there, and the LID of some of its rows among all of it."""
    k, estimator, convention, *_ = settings
    beyond = min(reach(k), len(points.x) - 1 - k)
    x = resident(points.x, k + beyond, points.device)
    measure = partial(
        stream_lid,
        estimator=estimator,
        convention=convention,
        device=points.device,
        progress=progress,
        beyond=beyond,
    )
    try:
        if len(rows) == len(x):  # without a reference, a set against itself costs half the arithmetic
            return points._replace(x=x), measure(x, k)
        return points._replace(x=x), measure(_some(x, rows), k, x, self_index=rows)
    except ValueError as error:
        refuse_nonfinite(points.x, points.name)
        argument, _, rest = str(error).partition(": ")
        if argument in ("x", "reference"):
            raise ValueError(f"{points.name}: {rest}") from error
        raise


def _some(x: Tensor, rows: Tensor) -> Tensor:
    """Rows, ascending, of x; not copied where they follow one another."""
    first, last = int(rows[0]), int(rows[-1])
    return x[first : last + 1] if last - first + 1 == len(rows) else x[rows]


def _completed(measured: _Measured, compared: _Measured | None, settings: _Settings, steps: _Steps) -> DimensionReport:
    """The report, once LID is known."""
    own, points = _described(measured, settings, steps)
    if compared is None:
        steps.finish()
        return own
    other, others = _described(compared, settings, steps)
    steps.finish()
    found = findings.compare(points, others, own.findings, other.findings)
    distance = fisher_rao(own.mean.value, other.mean.value).item()
    comparison = Comparison(replace(other, title="comparison"), distance)
    return replace(own, comparison=comparison, findings=findings.ranked([*own.findings, found]))


def _described(
    measured: _Measured, settings: _Settings, steps: _Steps, *, quick: bool = False, plane: bool = True
) -> tuple[DimensionReport, findings.Points]:
    """The report of one set, and what its findings are from; `quick` leaves out RankMe, TwoNN and DANCo."""
    (x, _, device, names), rows = measured.points, measured.rows
    near = _near(measured)
    labels = None if names is None else [names[row] for row in rows.tolist()]
    lid, distances = near.found.lid, near.found.neighbors.distances
    wide = lid.double()
    ordinary = wide[regular(wide)]
    low, median, high = numpy.quantile(ordinary.cpu(), (0.25, 0.5, 0.75)).tolist() if len(ordinary) else [math.nan] * 3
    mean = mean_lid(near.found, near.rows, len(x), beyond=near.beyond)
    collapsed = _most_collapsed(near.found, near.rows, labels)
    classes = () if labels is None else _classes(near, labels)

    steps.enter(measured.points.step("spectrum"))
    shares, scale = scaled_eigenvalues(x, device=device)
    rank, eigenvalues = entropy_rank(shares).item(), (shares / scale / scale).cpu()
    steps.enter(measured.points.step("RankMe"))
    singular = math.nan if quick else rankme(x, device=device).item()
    steps.enter(measured.points.step("map"))
    flat = principal_plane(x, rows, settings.seed, device=device).cpu() if plane else torch.zeros(len(rows), 2)
    whole = (_NOT_MEASURED, _NOT_MEASURED) if quick else _global(measured.points, settings.seed, steps)

    steps.enter(measured.points.step("findings"))
    points = findings.Points(
        lid=lid,
        distances=distances,
        indices=near.found.neighbors.indices,
        rows=near.rows,
        total=x.shape[0],
        dimensions=x.shape[1],
        effective_rank=rank,
        spread=relative_spread(x, device=device).item(),
        scale=eigenvalues.sum().sqrt().item(),
        dead=torch.cat([(x[part] == 0).all(1).cpu() for part in rows.to(x.device).split(_BLOCK_ROWS)]),
        labels=labels,
    )
    report = DimensionReport(
        points=x.shape[0],
        dimensions=x.shape[1],
        measured=len(rows),
        k=settings.k,
        estimator=settings.estimator,
        convention=settings.convention,
        seed=settings.seed,
        device=device_name(device),
        mean=mean,
        quartiles=(low, median, high),
        frechet_variance=frechet_variance(wide).item() if len(ordinary) else math.nan,
        arithmetic_mean=arithmetic_mean(wide).item(),
        harmonic_mean=harmonic_mean(wide).item(),
        lid_low=findings.lid_quantiles(wide, (0.05,))[0],
        zero=int((wide == 0).sum()),
        infinite=int(torch.isinf(wide).sum()),
        duplicated=int((distances[:, 0] == 0).sum()),
        effective_rank=rank,
        rankme=singular,
        twonn=whole[0],
        danco=whole[1],
        comparison=None,
        most_collapsed=collapsed,
        classes=classes,
        index=rows.cpu(),
        lid=lid.cpu(),
        standard_error=near.found.standard_error.cpu(),
        kth_distance=distances[:, -1].cpu(),
        eigenvalues=eigenvalues,
        coordinates=flat,
        labels=None if labels is None else tuple(labels),
        version=__version__,
        expected=_expected(mean.value, shares.cpu(), (x.shape[0], x.shape[1]), settings),
        findings=findings.find(points),
    )
    return report, points


def _expected(lid: float, eigenvalues: Tensor, shape: tuple[int, int], settings: _Settings) -> Expected:
    """What Gaussian points of the same covariance read, and of which dimension they are that read this LID."""
    k, estimator, convention, *_ = settings
    n, dimensions = shape
    note = beyond(estimator, k, n, dimensions) or ("no point has a LID" if math.isnan(lid) else "")
    if note:
        return Expected(note=note)
    known = cast(Calibrated, estimator)
    usual = expected_lid(eigenvalues, k, n, dimensions, estimator=known, convention=convention)
    dimension = gaussian_dimension(lid, k, n, estimator=known, convention=convention)
    if usual is None:
        note = "the covariance is zero, or too large for a number"
    elif dimension is None:
        note = f"LID is beyond that of Gaussians of 1 to {DIMENSIONS[-1]:,} dimensions"
    return Expected(usual, dimension, note)


def _near(measured: _Measured) -> _Measured:
    """Move the results to the device that holds the points."""
    place = measured.points.x.device
    (distances, indices), (values, errors) = measured.found.neighbors, measured.found[:2]
    found = LIDEstimate(values.to(place), errors.to(place), Neighbors(distances.to(place), indices.to(place)))
    return _Measured(measured.points, measured.rows.to(place), found, measured.beyond.to(place))


def _most_collapsed(found: LIDEstimate, rows: Tensor, labels: list[str] | None) -> tuple[CollapsedPoint, ...]:
    """The measured points of lowest LID, 0 included and inf left out, ties in order of row."""
    order = torch.sort(found.lid, stable=True).indices[:_MOST_COLLAPSED].tolist()
    return tuple(
        CollapsedPoint(
            index=int(rows[i]),
            lid=found.lid[i].item(),
            standard_error=found.standard_error[i].item(),
            label=None if labels is None else labels[i],
        )
        for i in order
        if not torch.isinf(found.lid[i])
    )


def _classes(near: _Measured, labels: list[str]) -> tuple[ClassLID, ...]:
    members: dict[str, list[int]] = {}
    for position, label in enumerate(labels):
        members.setdefault(label, []).append(position)
    found = []
    for label in sorted(members, key=_label_order):
        rows = torch.tensor(members[label], device=near.rows.device)
        mean = mean_lid(near.found, near.rows, len(near.points.x), rows, near.beyond)
        ordinary = int(regular(near.found.lid[rows]).sum())
        coinciding = int((near.found.neighbors.distances[rows, -1] == 0).sum())
        found.append(ClassLID(label, len(rows), ordinary, mean, coinciding))
    return tuple(found)


def _label_order(label: str) -> tuple[bool, int, str]:
    """Sort whole numbers by value, then words by alphabet."""
    whole = label.removeprefix("-").isdecimal()
    return not whole, int(label) if whole else 0, label


def _global(points: _Set, seed: int, steps: _Steps) -> tuple[Reading, Reading]:
    """TwoNN and DANCo of the set, or of a random part of a large one."""
    large = len(points.x) > _GLOBAL_POINTS
    part = points.x[draw(len(points.x), _GLOBAL_POINTS, seed)] if large else points.x
    part = part.to(points.device)
    note = f"from {_GLOBAL_POINTS:,} points drawn at random" if large else ""

    def reading(step: str, estimate: Callable[[Tensor], float]) -> Reading:
        steps.enter(points.step(step))
        try:
            return Reading(float(estimate(part)), note)
        except ValueError as error:  # too few distinct points for this estimator only
            return Reading(None, f"not available: {str(error).removeprefix('x: ')}")

    return reading("TwoNN", twonn), reading("DANCo", partial(danco, seed=seed))


def _costs(points: _Set, other: _Set | None, sample: int | None) -> dict[str, float]:
    """Rough number of multiplications of every step, its weight in the progress."""
    n, d = points.x.shape
    spectrum = n * d * min(n, d) + 4.0 * min(n, d) ** 3
    part = min(n, _GLOBAL_POINTS)
    costs = {"LID": _search_cost(points.x, sample), "spectrum": spectrum, "RankMe": spectrum}
    costs |= {"map": 200.0 * min(n, ROWS) * d, "TwoNN": part**2 * d / 2, "DANCo": part**2 * (d + 50.0)}
    costs["findings"] = 5000.0 * n
    own = {points.step(name): cost for name, cost in costs.items()}
    return own if other is None else {**own, **_costs(other, None, sample)}


def _search_cost(x: Tensor, sample: int | None) -> float:
    n, d = x.shape
    return n * n * (d + 50) / 2 if sample is None or sample >= n else float(sample) * n * (d + 50)
