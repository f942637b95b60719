"""Measure embeddings: LID of all points, on one process or shared by several, then all else of the report."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy
import torch
from torch import Tensor

from ldreg import __version__, distributed
from ldreg.dimension import quality
from ldreg.dimension.estimators import Convention, Estimator, LIDEstimate, estimate_from
from ldreg.dimension.expected import DIMENSIONS, Calibrated, beyond, expected_lid, gaussian_dimension
from ldreg.dimension.geometry import arithmetic_mean, fisher_rao, frechet_variance, harmonic_mean, regular
from ldreg.dimension.global_dim import danco, twonn
from ldreg.dimension.search import Neighbors, refuse_nonfinite
from ldreg.dimension.spectrum import Moments, entropy_rank, rankme, relative_spread, scaled_eigenvalues
from ldreg.dimension.streaming import NearestRows, resident, stream_lid
from ldreg.inspection import findings
from ldreg.inspection.inputs import as_device, as_embeddings, as_names, check_points, check_settings, column_names
from ldreg.inspection.interval import mean_lid, reach
from ldreg.inspection.maps import Map, check_map, laid_out
from ldreg.inspection.report import ClassLID, CollapsedPoint, Comparison, DimensionReport, Expected, MeanLID, Reading
from ldreg.inspection.streamed import Ranks, look, nonfinite_rows, stream
from ldreg.io.shards import Shards
from ldreg.text import label_order, listed

Progress = Callable[[str, float], None]
_ALONE = Ranks()

_GLOBAL_POINTS = 5000  # settle TwoNN and DANCo, which are one number for the whole set
_BLOCK_ROWS = 4096  # rows looked at at a time
_MOST_COLLAPSED = 10  # points listed in a report
# Rows that the plane of the map is fitted to, and the most numbers copied for it (64 MiB of float32).
_PLANE_ROWS, _PLANE_NUMBERS = 4096, 2**24
_NOT_MEASURED = Reading(None, "not measured")
_NONE = torch.empty(0, dtype=torch.int64)
# Rough shares of the time, for the progress: between those of 10,000 and of 50,000 points on a CPU.
_WEIGHTS = {"LID": 70, "spectrum": 3, "RankMe": 2, "map": 1, "TwoNN": 4, "DANCo": 8, "findings": 4, "measures": 8}


@torch.no_grad()
def inspect(
    x: Any,
    labels: Sequence[Any] | Tensor | None = None,
    k: int = 64,
    *,
    names: Sequence[str] | None = None,
    estimator: Estimator = "mom",
    convention: Convention = "paper",
    compare: Any = None,
    compare_labels: Sequence[Any] | Tensor | None = None,
    reference: Any = None,
    views: Any = None,
    sample: int | None = None,
    device: str | torch.device | None = None,
    seed: int = 0,
    share: bool = False,
    keep_neighbors: bool = False,
    skip_nonfinite: bool = False,
    resume: str | PathLike[str] | None = None,
    map: Map = "pca",
    progress: Progress | None = None,
) -> DimensionReport:
    """Measure the local and global dimensionality of embeddings.

    However many processes share the work, and whether the embeddings fit on the device or not, distances and LID by
    "mom" and "mle" are the same to rounding, and mostly bit for bit. Where several points tie for the k-th place, which
    of them is named may differ, and with it LID by "tle" and the digits of confidence intervals
    (`dimension.streaming`).

    Args:
        x: embeddings (N, D), a tensor or anything that torch.as_tensor takes; a memory-mapped one is not copied. Also
            `io.shards.open_shards` of many files: with `sample` they are read in blocks and need not fit into memory.
        labels: N class labels (numbers or text), for LID per class.
        k: neighbors of each point, below N.
        names: N names or texts, to name points by.
        estimator: of LID: method of moments, maximum likelihood (Hill), or tight locality.
        convention: of "mom" and "mle": mean over all k distances (paper), or over the first k - 1 (its pseudocode).
        compare: second embeddings (M, any dimension), measured alike and compared by Fisher-Rao distance; what is
            known of them is in `comparison.other` of the report.
        compare_labels: M class labels of the second embeddings, to compare class by class with `labels`.
        reference: embeddings (M, D) among which the neighbors of x are sought in place of x, such as a training set for
            new points: findings are copies of its rows and points far from all of them. What is known of it is in
            `comparison.other`.
        views: embeddings (N, D) of another view of each row of x, or of what it is paired with; gives `alignment` and
            `lidar` in the measures of the report.
        sample: measure at most this many points, drawn at random; their neighbors still come from all N.
        device: "cpu", "cuda", ...; None or "auto": where x is, or else a GPU if there is one. Embeddings that do not
            fit on it come to it block by block.
        seed: of every random draw.
        share: whether the processes of the default torch.distributed group (gloo) share the points to measure. All of
            them must call, with the same arguments, and all get one report.
        keep_neighbors: whether the report keeps the k neighbors of each point, as `report.neighbors`.
        skip_nonfinite: whether to leave out rows with NaN or inf, which are an error otherwise, and count them.
        resume: path that the names of state files begin with; only for shards with `sample`. The same call resumes from
            them after an interruption. They are removed at the end.
        map: what the coordinates of the report are: the first two principal axes, t-SNE (of at most 10,000 points
            drawn at random), or UMAP (of at most 20,000; needs ldreg[umap]), both from exact neighbors.
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
    ranks = Ranks(distributed.rank(), distributed.world()) if share else Ranks()

    def checked() -> list[_Set]:
        check_settings(k, estimator=estimator, convention=convention, sample=sample, device=device, seed=seed)
        options: dict[str, Any] = {"skip": skip_nonfinite, "load": sample is None}
        check_map(map)
        least = k if reference is None else 1  # neighbors that the set itself has to have
        own = _as_set(x, "x", labels, least, device, shared=ranks.world > 1, names=names, **options)
        if views is not None:
            own = own._replace(views=_as_views(views, own))
        if compare_labels is not None and (compare is None or labels is None):
            raise ValueError("compare_labels: expected compare and labels with them, to compare class by class")
        if compare is not None and reference is not None:
            raise ValueError("reference: expected it without compare, got both")
        sets = [own]
        if reference is not None:
            other = _as_set(reference, "reference", None, k, own.device, **options)
            names_of = [column_names(value) for value in (x, reference)]
            if all(names_of) and names_of[0] != names_of[1]:
                raise ValueError(f"reference: expected the columns of x in their order, got {listed(names_of[1])}")
            if other.x.shape[1] != own.x.shape[1]:
                raise ValueError(f"reference: expected {own.x.shape[1]} dimensions, as x has, got {other.x.shape[1]}")
            sets.append(other)
        if compare is not None:
            sets.append(_as_set(compare, "compare", compare_labels, k, own.device, **options))
        streamed = any(isinstance(one.x, Shards) for one in sets)
        if streamed and estimator == "tle":
            raise ValueError("estimator: expected mom or mle for shards with sample, got tle")
        if resume is not None and not streamed:
            raise ValueError("resume: expected it with shards and sample")
        return sets

    sets = distributed.agreed(checked) if ranks.world > 1 else checked()
    settings = _Settings(k, estimator, convention, sample, seed, keep_neighbors, resume, map)
    steps = _Steps(progress, len(sets))
    with _current(sets[0].device):
        sets = [_looked_at(one, settings, ranks, skip_nonfinite) for one in sets]
        within = None if reference is None else sets[-1]
        measured = [_measured(one, settings, steps, ranks, within if one is sets[0] else None) for one in sets]
        report = partial(_report, measured, settings, steps)
        found = distributed.from_first(report) if ranks.world > 1 else report()
    for one in sets:
        if (state := settings.state(one, ranks)) is not None:
            state.unlink(missing_ok=True)
    return found


@torch.no_grad()
def quick_report(
    x: Tensor,
    labels: Sequence[Any] | Tensor | None = None,
    k: int = 64,
    *,
    estimator: Estimator = "mom",
    convention: Convention = "paper",
    sample: int | None = None,
    device: str | torch.device | None = "input",
    seed: int = 0,
    plane: bool = False,
    progress: Progress | None = None,
) -> DimensionReport:
    """`inspect` with its findings but without RankMe, TwoNN and DANCo, which take long.

    Args:
        x: embeddings (N, D).
        labels: N class labels.
        k: neighbors of each point.
        estimator: as in `inspect`.
        convention: as in `inspect`.
        sample: as in `inspect`.
        device: as in `inspect`; "input": where x is.
        seed: as in `inspect`.
        plane: whether to compute the coordinates of the map, which are 0 otherwise.
        progress: as in `inspect`.

    Raises:
        ValueError: as `inspect`.

    >>> x = torch.randn(300, 16, generator=torch.Generator().manual_seed(0))
    >>> quick_report(torch.cat([x, torch.zeros(100, 16)])).findings[0].kind
    'degenerate'
    """
    device = x.device if device == "input" else device
    check_settings(k, estimator=estimator, convention=convention, sample=sample, device=device, seed=seed)
    own = _as_set(x, "x", labels, k, device)
    settings, steps = _Settings(k, estimator, convention, sample, seed), _Steps(progress, 1)
    with _current(own.device):
        report, _ = _described(_measured(own, settings, steps), settings, steps, quick=True, plane=plane)
    steps.enter("done")
    return report


class _Settings(NamedTuple):
    k: int
    estimator: Estimator = "mom"
    convention: Convention = "paper"
    sample: int | None = None
    seed: int = 0
    keep_neighbors: bool = False
    resume: str | PathLike[str] | None = None
    map: Map = "pca"

    def state(self, points: "_Set", ranks: Ranks) -> Path | None:
        """Where this process keeps what it has measured in the rows of a set."""
        return None if self.resume is None else Path(f"{self.resume}-{points.name}-{ranks.rank}")


class _Set(NamedTuple):
    """Embeddings (N, D), their name in messages, the device that measures them, labels, names and views of the points.

    `left_out` are rows that were left out before, in the numbers that they had then.
    """

    x: Tensor | Shards
    name: str
    device: torch.device
    labels: Mapping[int, str] | Sequence[str] | None = None
    names: Mapping[int, str] | Sequence[str] | None = None
    left_out: Tensor = _NONE
    views: Tensor | None = None
    moments: Moments | None = None  # of shards


class _Measured(NamedTuple):
    """Rows (n,) of a set, their LID among all of it or in a reference, and distances after the k-th; of rank 0 only."""

    points: _Set
    rows: Tensor
    found: LIDEstimate
    beyond: Tensor
    reference: _Set | None = None


class _Steps:
    """Turns the progress of each step of each set into the progress of the whole."""

    def __init__(self, report: Progress | None, sets: int) -> None:
        self._report, self._whole, self._done, self._weight = report, sets * sum(_WEIGHTS.values()), 0, 0

    def enter(self, step: str, points: _Set | None = None) -> Callable[[float], None] | None:
        """Begin a step of a set, or with "done" the end; the result takes the fraction of this step that is done."""
        self._done, self._weight = self._done + self._weight, _WEIGHTS.get(step, 0)
        if self._report is None:
            return None
        report, done, weight, whole = self._report, self._done, self._weight, self._whole
        name = {"compare": "comparison: ", "reference": "reference: "}.get(points.name if points else "", "") + step

        def advance(fraction: float) -> None:
            report(name, 1.0 if step == "done" else (done + weight * fraction) / whole)

        advance(0.0)
        return advance


def _as_set(
    value: Any,
    name: str,
    labels: Any,
    k: int,
    device: str | torch.device | None,
    *,
    shared: bool = False,
    names: Any = None,
    skip: bool = False,
    load: bool = True,
) -> _Set:
    """Checked embeddings, labels and names; shards are loaded on request."""
    if isinstance(value, Shards) and load:
        labels, names = (value.labels() if labels is None else labels), (value.names() if names is None else names)
        value = value.load()
    x = value if isinstance(value, Shards) else as_embeddings(value, name)
    count, dimensions = (x.rows if isinstance(x, Shards) else len(x)), x.shape[1]
    check_points(count, dimensions, name, k)
    argument = "compare_labels" if name == "compare" else "labels"
    classes = None if labels is None else as_names(labels, argument, count, of=name)
    named = None if names is None else as_names(names, "names", count, of=name)
    left_out = nonfinite_rows(x) if skip and isinstance(x, Tensor) else _NONE
    if len(left_out) and isinstance(x, Tensor):
        kept = torch.ones(count, dtype=torch.bool, device="cpu")
        kept[left_out] = False
        x = x[kept.to(x.device)]
        classes, named = (
            None if one is None else [one[row] for row in kept.nonzero().flatten()] for one in (classes, named)
        )
        check_points(len(x), dimensions, name, k)
    return _Set(x, name, as_device(x, device, shared=shared), classes, named, left_out)


def _looked_at(points: _Set, settings: _Settings, ranks: Ranks, skip: bool) -> _Set:
    """The set; of shards with the rows that are needed kept, without those to be left out."""
    x, name = points.x, points.name
    if isinstance(x, Tensor):
        return points
    # Of smaller samples, further rows are needed for the global dimension and the map.
    drawn = partial(draw, sample=max(settings.sample or 0, _GLOBAL_POINTS), seed=settings.seed)
    moments = look(x, name, drawn, points.device, ranks, skip=skip)

    def words() -> list[Mapping[int, str] | Sequence[str] | None]:
        check_points(len(x), x.width, name, settings.k)
        rows = draw(len(x), settings.sample, settings.seed)
        numbers = _original(rows, x.left_out)

        def of(given: Any, read: Callable[[Tensor], list[str] | None]) -> Mapping[int, str] | None:
            found = read(numbers) if given is None else [given[row] for row in numbers.tolist()]
            return None if found is None else dict(zip(rows.tolist(), found, strict=True))

        return [of(points.labels, x.labels), of(points.names, x.names)]

    labels, names = distributed.agreed(words) if ranks.world > 1 else words()
    return points._replace(labels=labels, names=names, left_out=x.left_out, moments=moments)


def _original(rows: Tensor, left_out: Tensor) -> Tensor:
    """The numbers that rows had before others were left out.

    >>> _original(torch.tensor([0, 1, 2]), torch.tensor([1, 2]))
    tensor([0, 3, 4])
    """
    return rows + torch.searchsorted(left_out - torch.arange(len(left_out)), rows.contiguous(), right=True)


def _as_views(value: Any, points: _Set) -> Tensor:
    """Checked embeddings of another view of each row of a set."""
    if isinstance(points.x, Shards):
        raise ValueError("views: expected no sample of shards, as views are of all rows")
    views = as_embeddings(value.load() if isinstance(value, Shards) else value, "views")
    rows, dimensions = len(points.x) + len(points.left_out), points.x.shape[1]
    if views.shape != (rows, dimensions):
        raise ValueError(f"views: expected shape {(rows, dimensions)}, as x has, got {tuple(views.shape)}")
    if not len(points.left_out):
        refuse_nonfinite(views, "views")
        return views
    finite = views.clone()
    finite[points.left_out.to(views.device)] = 0
    refuse_nonfinite(finite, "views")  # by the numbers of all rows
    return finite[_original(torch.arange(len(points.x)), points.left_out).to(views.device)]


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Launch kernels on this device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def draw(points: int, sample: int | None, seed: int) -> Tensor:
    """Rows of a set, ascending: all of them, or `sample` of them drawn at random.

    >>> draw(4, 9, 0)
    tensor([0, 1, 2, 3])
    """
    if sample is None or sample >= points:
        return torch.arange(points, device="cpu")
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(points, generator=generator, device="cpu")[:sample].sort().values


def _measured(
    points: _Set, settings: _Settings, steps: _Steps, ranks: Ranks = _ALONE, reference: _Set | None = None
) -> _Measured:
    """LID of the rows of a set; of several ranks, each measures its share."""
    rows = draw(len(points.x), settings.sample, settings.seed)
    progress = steps.enter("LID", points)
    if isinstance(points.x, Shards) or (reference is not None and isinstance(reference.x, Shards)):
        found = _streamed(points, rows, settings, ranks, progress, reference)
    else:
        start, stop = ranks.part(len(rows))
        mine = rows[start : max(stop, start + 1)]  # with more ranks than rows, a spare row
        measure = partial(_lid, points, mine, settings, progress, reference)
        if ranks.world == 1:
            points, found = measure()
        else:
            points, part = distributed.agreed(measure)
            columns = (part.lid, part.standard_error, *part.neighbors)
            values, errors, *near = (distributed.gather_parts(column[: stop - start]) for column in columns)
            found = LIDEstimate(values, errors, Neighbors(*near))
    place, k = points.x.device, settings.k
    distances, indices = (column.to(place) for column in found.neighbors)
    nearest = Neighbors(distances[:, :k].contiguous(), indices[:, :k].contiguous())
    estimates = LIDEstimate(found.lid.to(place), found.standard_error.to(place), nearest)
    return _Measured(points, rows, estimates, distances[:, k:], reference)


def _streamed(
    points: _Set,
    rows: Tensor,
    settings: _Settings,
    ranks: Ranks,
    progress: Callable[[float], None] | None,
    reference: _Set | None,
) -> LIDEstimate:
    """LID of some rows, of shards or among shards; with it comes the spectrum of a set in shards."""
    within, k, device = reference or points, settings.k, points.device
    most = k + min(reach(k), len(within.x) - 1 - k)
    nearest = NearestRows(points.x[rows].to(device), most, rows if reference is None else None)
    options: dict[str, Any] = {"device": device, "ranks": ranks, "progress": progress}
    if reference is not None and points.moments is not None:
        stream(points.x, None, points.moments, **options)
    moments = points.moments if reference is None else None
    stream(within.x, nearest, moments, **options, state=settings.state(points, ranks))
    found = nearest.found
    near = Neighbors(found.distances[:, :k], found.indices[:, :k])
    values, errors = estimate_from(near, nearest.queries, nearest.queries, settings.estimator, settings.convention)
    return LIDEstimate(values, errors, found)


def _lid(
    points: _Set,
    rows: Tensor,
    settings: _Settings,
    progress: Callable[[float], None] | None,
    reference: _Set | None = None,
) -> tuple[_Set, LIDEstimate]:
    """The set, on its device where it fits there, and the LID of some of its rows, among all of it or the reference."""
    k, estimator, convention, *_ = settings
    further = min(reach(k), len((reference or points).x) - 1 - k)
    x = resident(cast(Tensor, points.x), k + further, points.device)
    options: dict[str, Any] = {"estimator": estimator, "convention": convention, "device": points.device}
    options |= {"progress": progress, "beyond": further}
    try:
        if (
            len(rows) == len(x) and reference is None
        ):  # without a reference, a set against itself costs half the arithmetic
            return points._replace(x=x), stream_lid(x, k, **options)
        first, last = int(rows[0]), int(rows[-1])
        queries = x[first : last + 1] if last - first + 1 == len(rows) else x[rows]  # a slice is not copied
        if reference is not None:
            return points._replace(x=x), stream_lid(queries, k, cast(Tensor, reference.x), **options)
        return points._replace(x=x), stream_lid(queries, k, x, self_index=rows, **options)
    except ValueError as error:
        for one in (points, reference) if reference else (points,):
            _refuse_nonfinite(one)
        argument, _, rest = str(error).partition(": ")
        if argument in ("x", "reference"):
            raise ValueError(f"{points.name}: {rest}") from error
        raise


def _refuse_nonfinite(points: _Set) -> None:
    try:
        refuse_nonfinite(cast(Tensor, points.x), points.name)
    except ValueError as error:
        raise ValueError(f"{error}; skip_nonfinite=True leaves them out") from error


def _report(measured: Sequence[_Measured], settings: _Settings, steps: _Steps) -> DimensionReport:
    """The report, once LID is known."""
    (own, points), *rest = [_described(one, settings, steps) for one in measured]
    steps.enter("done")
    first, *others_left_out = (one.points.left_out for one in measured)
    for (other, others), left_out in zip(rest, others_left_out, strict=True):
        distance = fisher_rao(own.mean.value, other.mean.value).item()
        numbered = _renumbered(other, left_out, left_out)
        if own.in_reference:
            comparison = Comparison(replace(numbered, title="reference"), distance)
            own = replace(own, comparison=comparison, findings=findings.find_in_reference(points, others))
            return _renumbered(own, first, left_out)
        found = findings.compare(points, others, own_findings=own.findings, other_findings=other.findings)
        comparison = Comparison(replace(numbered, title="comparison"), distance)
        own = replace(own, comparison=comparison, findings=findings.ranked([*own.findings, found]))
    return _renumbered(own, first, first)


def _described(
    measured: _Measured, settings: _Settings, steps: _Steps, *, quick: bool = False, plane: bool = True
) -> tuple[DimensionReport, findings.Points]:
    """The report of one set, and what its findings are from; `quick` leaves out RankMe, TwoNN and DANCo."""
    points, rows, found, further, reference = measured
    x, device, moments, views = points.x, points.device, points.moments, points.views
    total = len(x) if reference is None else len(reference.x)
    labels, names = (
        None if one is None else [one[row] for row in rows.tolist()] for one in (points.labels, points.names)
    )
    distances = found.neighbors.distances
    wide = found.lid.double()
    ordinary = wide[regular(wide)]
    low, median, high = numpy.quantile(ordinary.cpu(), (0.25, 0.5, 0.75)).tolist() if len(ordinary) else [math.nan] * 3
    mean_of = partial(mean_lid, found, rows.to(x.device), len(x), beyond=further, shared=reference is None)
    mean = mean_of()

    steps.enter("spectrum", points)
    shares, scale = moments.scaled_eigenvalues() if moments else scaled_eigenvalues(x, device=device)
    rank, eigenvalues = entropy_rank(shares).item(), (shares / scale / scale).cpu()
    steps.enter("RankMe", points)
    singular = math.nan if quick else (moments.rankme(x.dtype) if moments else rankme(x, device=device)).item()
    steps.enter("map", points)
    flat = principal_plane(x, rows, settings.seed, device=device).cpu() if plane else torch.zeros(len(rows), 2)
    if settings.map != "pca":
        flat = laid_out(x, rows, flat, settings.map, settings.seed, device=device)
    part = x if quick and not isinstance(x, Shards) else _part(points, settings.seed)
    whole = (_NOT_MEASURED, _NOT_MEASURED) if quick else _global(points, part, settings.seed, steps)

    steps.enter("findings", points)
    seen = findings.Points(
        lid=found.lid,
        distances=distances,
        indices=found.neighbors.indices,
        rows=rows,
        total=total,
        dimensions=x.shape[1],
        effective_rank=rank,
        spread=(moments.relative_spread() if moments else relative_spread(x, device=device)).item(),
        scale=eigenvalues.sum().sqrt().item(),
        dead=torch.cat([(x[part] == 0).all(1).cpu() for part in rows.split(_BLOCK_ROWS)]),
        labels=labels,
        left_out=points.left_out,
    )
    groups, counts = None, None
    if reference is None:
        groups = findings.duplicate_groups(seen)
        counts = quality.hub_counts(found.neighbors.indices, total).cpu()
    steps.enter("measures", points)
    other_views = None if views is None else _part(points._replace(x=views), settings.seed)
    report = DimensionReport(
        points=x.shape[0],
        dimensions=x.shape[1],
        measured=len(rows),
        k=settings.k,
        estimator=settings.estimator,
        convention=settings.convention,
        seed=settings.seed,
        device=f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type,
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
        most_collapsed=_most_collapsed(found, rows, labels, names, groups),
        classes=() if labels is None else _classes(found, labels, mean_of),
        index=rows,
        lid=found.lid.cpu(),
        standard_error=found.standard_error.cpu(),
        kth_distance=distances[:, -1].cpu(),
        nearest=found.neighbors.indices[:, 0].cpu(),
        nearest_distance=distances[:, 0].cpu(),
        eigenvalues=eigenvalues,
        coordinates=flat,
        map=settings.map,
        duplicate_group=groups,
        neighbor_of=None if counts is None else counts[rows],
        measures={} if quick else _measures(part, other_views, singular, shares, distances, counts, groups),
        neighbors=Neighbors(distances.cpu(), found.neighbors.indices.cpu()) if settings.keep_neighbors else None,
        labels=None if labels is None else tuple(labels),
        names=None if names is None else tuple(names),
        version=__version__,
        expected=Expected(note="of points in a reference")
        if reference
        else _expected(mean.value, shares.cpu(), (x.shape[0], x.shape[1]), settings),
        findings=() if reference else findings.find(seen),  # in a reference, they are known once it is measured
        in_reference=reference is not None,
        left_out=len(points.left_out),
    )
    return report, seen


def _renumbered(report: DimensionReport, left_out: Tensor, of_neighbors: Tensor) -> DimensionReport:
    """The report with the numbers that rows had before others were left out, of the set and of its neighbors."""
    if not len(left_out) and not len(of_neighbors):
        return report

    def numbers(rows: Sequence[int]) -> tuple[int, ...]:
        return tuple(_original(torch.tensor(rows, dtype=torch.int64, device="cpu"), left_out).tolist())

    near = report.neighbors
    return replace(
        report,
        index=_original(report.index, left_out),
        nearest=_original(report.nearest, of_neighbors),
        neighbors=None if near is None else Neighbors(near.distances, _original(near.indices, of_neighbors)),
        most_collapsed=tuple(replace(one, index=numbers([one.index])[0]) for one in report.most_collapsed),
        findings=tuple(replace(one, rows=numbers(one.rows), examples=numbers(one.examples)) for one in report.findings),
    )


def _expected(lid: float, eigenvalues: Tensor, shape: tuple[int, int], settings: _Settings) -> Expected:
    """The LID of Gaussian points with the same covariance, and the dimension of Gaussian points with this LID."""
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


def _most_collapsed(
    found: LIDEstimate, rows: Tensor, labels: list[str] | None, names: list[str] | None, groups: Tensor | None
) -> tuple[CollapsedPoint, ...]:
    """The measured points of lowest LID, 0 included and inf left out, ties in order of row; one of equal rows."""
    lid, errors = found.lid.cpu(), found.standard_error.cpu()
    groups = torch.full((len(lid),), -1) if groups is None else groups
    of = groups.tolist()
    listed: dict[int, CollapsedPoint] = {}
    for i in torch.sort(lid, stable=True).indices.tolist():
        key = of[i] if of[i] >= 0 else -1 - i  # a row without an equal is alone
        if key in listed:
            continue
        if len(listed) == _MOST_COLLAPSED or torch.isinf(lid[i]):
            break
        listed[key] = CollapsedPoint(
            index=int(rows[i]),
            lid=lid[i].item(),
            standard_error=errors[i].item(),
            label=None if labels is None else labels[i],
            name=None if names is None else names[i],
            copies=int((groups == of[i]).sum()) if of[i] >= 0 else 1,
        )
    return tuple(listed.values())


def _classes(found: LIDEstimate, labels: list[str], mean_of: Callable[[Tensor], MeanLID]) -> tuple[ClassLID, ...]:
    """LID of the measured points of each class."""
    members: dict[str, list[int]] = {}
    for position, label in enumerate(labels):
        members.setdefault(label, []).append(position)
    classes = []
    for label in sorted(members, key=label_order):
        own = torch.tensor(members[label], device=found.lid.device)
        ordinary = int(regular(found.lid[own]).sum())
        coinciding = int((found.neighbors.distances[own, -1] == 0).sum())
        classes.append(ClassLID(label, len(own), ordinary, mean_of(own), coinciding))
    return tuple(classes)


def _part(points: _Set, seed: int) -> Tensor:
    """The set, or a random part of a large one, on its device."""
    x = points.x
    if isinstance(x, Shards) or len(x) > _GLOBAL_POINTS:
        x = x[draw(len(x), _GLOBAL_POINTS, seed)]
    return x.to(points.device)


def _measures(
    part: Tensor,
    views: Tensor | None,
    singular: float,
    eigenvalues: Tensor,
    distances: Tensor,
    counts: Tensor | None,
    groups: Tensor | None,
) -> dict[str, Any]:
    """Numbers of `dimension.quality`, by name.

    None: not known in a reference, those of hubs in a sample, and those of views without them.
    """
    power = quality.alpha_req(eigenvalues)
    known = counts if counts is not None and len(distances) == len(counts) else None
    equal = None if groups is None else groups[groups >= 0]
    return {
        "rankme": singular,
        "participation_ratio": quality.participation_ratio(eigenvalues).item(),
        "nesum": quality.nesum(eigenvalues).item(),
        "alpha_req": power.alpha,
        "alpha_req_r2": power.r2,
        "uniformity": quality.uniformity(part).item(),
        "hubness": None if known is None else quality.hubness(known).item(),
        "antihubs": None if known is None else quality.antihubs(known).item(),
        "alignment": None if views is None else quality.alignment([part, views]).item(),
        "lidar": None if views is None else _lidar(part, views),
        "gride": [scale._asdict() for scale in quality.gride(distances)],
        "duplicates": None if equal is None else {"points": len(equal), "groups": len(equal.unique())},
    }


def _lidar(x: Tensor, views: Tensor) -> float | None:
    """LiDAR of two views; None where its delta is lost beside the size of the numbers."""
    try:
        return quality.lidar([x, views]).item()
    except ValueError:
        return None


def _global(points: _Set, part: Tensor, seed: int, steps: _Steps) -> tuple[Reading, Reading]:
    """TwoNN and DANCo of the set, or of a random part of a large one."""
    note = f"from {len(part):,} points drawn at random" if len(part) < len(points.x) else ""

    def reading(step: str, estimate: Callable[[Tensor], float]) -> Reading:
        steps.enter(step, points)
        try:
            return Reading(float(estimate(part)), note)
        except ValueError as error:  # too few distinct points for this estimator only
            return Reading(None, f"not available: {str(error).removeprefix('x: ')}")

    return reading("TwoNN", twonn), reading("DANCo", partial(danco, seed=seed))


def principal_plane(x: Tensor | Shards, rows: Tensor, seed: int = 0, *, device: torch.device | None = None) -> Tensor:
    """Coordinates (n, 2) of some rows of x (N, D) on its first two principal axes, for a map.

    The axes are those of a few thousand rows drawn at random, found by subspace iteration. Each points where its
    largest component is positive, so that the same data give the same map. Computed on the device (None: where x is),
    to which a few thousand rows come at a time.
    """
    device = x.device if device is None else device
    most = min(_PLANE_ROWS, max(16, _PLANE_NUMBERS // x.shape[1]))
    block = x[draw(len(x), most, seed)].to(device).to(torch.promote_types(x.dtype, torch.float32), copy=True)
    center = (block / len(block)).sum(0)  # the sum alone may overflow
    block -= center
    # Scaled to 1, or squares would overflow or vanish for data of extreme size.
    block /= block.abs().max().clamp_min(torch.finfo(block.dtype).tiny)
    generator = torch.Generator().manual_seed(seed)
    shape = x.shape[1], min(8, *x.shape)
    axes = torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu").to(block)
    for _ in range(12):
        axes = torch.linalg.qr(block.T @ (block @ axes)).Q
    turn = torch.linalg.svd(block @ axes, full_matrices=False).Vh.T
    axes = (axes @ turn)[:, :2]
    axes = axes * torch.where(axes.gather(0, axes.abs().argmax(0, keepdim=True)) < 0, -1, 1)
    parts = torch.split(rows, most)
    flat = torch.cat([(x[part].to(device).to(block.dtype) - center) @ axes for part in parts])
    return torch.nn.functional.pad(flat, (0, 2 - flat.shape[1]))
