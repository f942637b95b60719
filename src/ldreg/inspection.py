"""Embeddings in, their local and global dimensionality out."""

import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypedDict

import numpy
import torch
from torch import Tensor

from ldreg.lid.estimators import Convention, Estimator, LIDEstimate, check_options, estimate_lid
from ldreg.lid.geometry import arithmetic_mean, fisher_rao, frechet_variance, harmonic_mean, regular
from ldreg.lid.global_dim import danco, twonn
from ldreg.lid.neighbors import as_matrix
from ldreg.reporting.record import ClassLID, CollapsedPoint, Comparison, DimensionReport, MeanLID, Reading
from ldreg.spectrum import covariance_eigenvalues, entropy_rank, rankme
from ldreg.version import __version__

Progress = Callable[[str, float], None]

# TwoNN and DANCo are one number for the whole set, settled by this many points; more only cost time.
_GLOBAL_POINTS = 5000
# Rows that the plane of the map is fitted to, and the most numbers that may be copied for it (64 MiB of float32).
_PLANE_ROWS, _PLANE_NUMBERS = 4096, 2**24
_MOST_COLLAPSED = 10
_EDGES = 2**22  # neighbor pairs handled at a time


@torch.no_grad()
def inspect(
    x: Any,
    labels: Sequence[Any] | Tensor | None = None,
    k: int = 64,
    *,
    estimator: Estimator = "mom",
    convention: Convention = "paper",
    compare: Any = None,
    sample: int | None = None,
    device: str | torch.device | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> DimensionReport:
    """Measure the local and global dimensionality of embeddings.

    Args:
        x: embeddings (N, D), a tensor or anything that torch.as_tensor takes; a memory-mapped one is not copied.
        labels: N class labels (numbers or text), for LID per class.
        k: neighbors of each point, below N.
        estimator: of LID: method of moments, maximum likelihood (Hill), or tight locality.
        convention: of "mom" and "mle": mean over all k distances (paper), or over the first k - 1 (its pseudocode).
        compare: second embeddings (M, any dimension), measured alike and compared by Fisher-Rao distance.
        sample: measure at most this many points, drawn at random; their neighbors still come from all N.
        device: "cpu", "cuda", ...; None or "auto": where x is, or else a GPU that it fits on, or else the CPU.
        seed: of every random draw.
        progress: called with the name of the step and the fraction of the whole that is done.

    Raises:
        ValueError: wrong shapes, dtypes or sizes, NaN or inf, k out of range, labels of another length.

    >>> x = torch.randn(300, 3, generator=torch.Generator().manual_seed(0)) @ torch.eye(3, 16)
    >>> report = inspect(x, k=50)
    >>> report.points, report.dimensions, report.degenerate
    (300, 16, 0)
    >>> 2.8 < report.mean.low < report.mean.value < report.mean.high < 3.4
    True
    """
    check_settings(k, estimator=estimator, convention=convention, sample=sample, device=device)
    settings = _Settings(k, estimator, convention, sample, seed)
    x = _embeddings(x, "x", k)
    names = None if labels is None else _names(labels, len(x))
    other = None if compare is None else _embeddings(compare, "compare", k)
    x = x.to(_device(x, device))
    return _report(x, names, other, settings, _Steps(progress, _costs(x, other, sample)))


class _Settings(NamedTuple):
    k: int
    estimator: Estimator
    convention: Convention
    sample: int | None
    seed: int


def _report(
    x: Tensor, names: list[str] | None, other: Tensor | None, settings: _Settings, steps: "_Steps"
) -> DimensionReport:
    rows, found = _measure(x, settings, steps.enter("LID"))
    local = _local(found, rows, len(x), None if names is None else [names[row] for row in rows.tolist()])
    spectral = _spectral(x, rows, settings.seed, steps)
    whole = _global(x, settings.seed, steps)
    comparison = None
    if other is not None:
        other = other.to(x.device)
        comparison = _compared(other, *_measure(other, settings, steps.enter("comparison")), local["mean"])
    steps.finish()
    return DimensionReport(
        points=x.shape[0],
        dimensions=x.shape[1],
        measured=len(rows),
        k=settings.k,
        estimator=settings.estimator,
        convention=settings.convention,
        seed=settings.seed,
        device=_device_name(x.device),
        **local,
        **spectral,
        **whole,
        comparison=comparison,
        version=__version__,
    )


def _measure(x: Tensor, settings: _Settings, progress: Callable[[float], None] | None) -> tuple[Tensor, LIDEstimate]:
    """The rows measured (n,) and their LID among all of x."""
    k, estimator, convention, sample, seed = settings
    rows = _draw(x, sample, seed)
    if len(rows) == len(x):  # without a reference, a set against itself costs half the arithmetic
        return rows, estimate_lid(x, k, estimator=estimator, convention=convention, progress=progress)
    return rows, estimate_lid(
        x[rows], k, x, estimator=estimator, convention=convention, self_index=rows, progress=progress
    )


class _Local(TypedDict):
    mean: MeanLID
    quartiles: tuple[float, float, float]
    frechet_variance: float
    arithmetic_mean: float
    harmonic_mean: float
    zero: int
    infinite: int
    duplicated: int
    most_collapsed: tuple[CollapsedPoint, ...]
    classes: tuple[ClassLID, ...]
    index: Tensor
    lid: Tensor
    standard_error: Tensor
    kth_distance: Tensor
    labels: tuple[str, ...] | None


def _local(found: LIDEstimate, rows: Tensor, points: int, labels: list[str] | None) -> _Local:
    """What is known from the LID of the measured points."""
    lid, distances = found.lid.double(), found.neighbors.distances
    ordinary = lid[regular(lid)]
    low, median, high = numpy.quantile(ordinary.cpu(), (0.25, 0.5, 0.75)).tolist() if len(ordinary) else [math.nan] * 3
    return _Local(
        mean=mean_lid(found, rows, points),
        quartiles=(low, median, high),
        frechet_variance=frechet_variance(lid).item() if len(ordinary) else math.nan,
        arithmetic_mean=arithmetic_mean(lid).item(),
        harmonic_mean=harmonic_mean(lid).item(),
        zero=int((lid == 0).sum()),
        infinite=int(torch.isinf(lid).sum()),
        duplicated=int((distances[:, 0] == 0).sum()),
        most_collapsed=_most_collapsed(found, rows, labels),
        classes=() if labels is None else _classes(found, rows, points, labels),
        index=rows.cpu(),
        lid=found.lid.cpu(),
        standard_error=found.standard_error.cpu(),
        kth_distance=distances[:, -1].cpu(),
        labels=None if labels is None else tuple(labels),
    )


def mean_lid(found: LIDEstimate, rows: Tensor, points: int, members: Tensor | None = None) -> MeanLID:
    """Geometric-mean LID with a 95 % confidence interval that knows that neighboring points share neighbors.

    The mean of ln LID is a function of independent points, and its variance is that of the sum of what each point adds
    to it: its own deviation, and its pull on the estimates that it is a neighbor in. The pulls are already in the
    deviations of those estimates, so their squares are taken off once. Never below the variance of independent values.
    The interval covers chance, not the bias of the estimator.

    Args:
        found: the estimates of the n measured points, with their neighbors.
        rows: (n,) the row of each measured point in the data.
        points: number of rows of the data.
        members: positions among the n that the mean is over; None: all.
    """
    if members is None:
        members = torch.arange(len(rows), device=rows.device)
    members = members[regular(found.lid[members])]
    n = len(members)
    if n == 0:
        return MeanLID(math.nan, math.nan, math.nan)
    logs = found.lid[members].double().log()
    mean = logs.mean()
    if n == 1:
        return MeanLID(mean.exp().item(), math.nan, math.nan)
    deviations = logs - mean
    added = torch.zeros(points, dtype=torch.float64, device=rows.device)
    added[rows[members]] = deviations
    pulls = added.new_zeros(())
    for block in torch.split(members, max(1, _EDGES // found.neighbors.indices.shape[1])):
        pull = _pull(found.neighbors.distances[block].double())
        added.index_add_(0, found.neighbors.indices[block].flatten(), pull.flatten())
        pulls += pull.square().sum()
    variance = torch.maximum(added.square().sum() - pulls, deviations.square().sum()) / (n * (n - 1))
    margin = _student(n - 1) * variance.sqrt()
    return MeanLID(mean.exp().item(), (mean - margin).exp().item(), (mean + margin).exp().item())


def _pull(distances: Tensor) -> Tensor:
    """How far each neighbor (n, k) moves ln LID of its point, to first order, by the method of moments.

    LID = r / (1 - r) with r the mean of distance / largest distance, so d(ln LID) = dr / (r (1 - r)); the other
    estimators weigh the same distances almost alike.
    """
    ratios = distances / distances[:, -1:]
    r = ratios.mean(1, keepdim=True)
    return (ratios - r) / (r * (1 - r)) / distances.shape[1]


def _student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))


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


def _classes(found: LIDEstimate, rows: Tensor, points: int, labels: list[str]) -> tuple[ClassLID, ...]:
    members: dict[str, list[int]] = {}
    for position, label in enumerate(labels):
        members.setdefault(label, []).append(position)
    return tuple(
        _class(label, found, rows, points, torch.tensor(members[label], device=rows.device))
        for label in sorted(members, key=_label_order)
    )


def _label_order(label: str) -> tuple[bool, int, str]:
    """Whole numbers by value, then words by alphabet."""
    whole = label.removeprefix("-").isdecimal()
    return not whole, int(label) if whole else 0, label


def _class(label: str, found: LIDEstimate, rows: Tensor, points: int, members: Tensor) -> ClassLID:
    mean = mean_lid(found, rows, points, members)
    return ClassLID(label, len(members), int(regular(found.lid[members]).sum()), mean)


class _Spectral(TypedDict):
    effective_rank: float
    rankme: float
    eigenvalues: Tensor
    coordinates: Tensor


def _spectral(x: Tensor, rows: Tensor, seed: int, steps: "_Steps") -> _Spectral:
    """What is known from the spectrum of the whole set."""
    steps.enter("spectrum")
    eigenvalues = covariance_eigenvalues(x)
    steps.enter("RankMe")
    singular = rankme(x).item()
    steps.enter("map")
    return _Spectral(
        effective_rank=entropy_rank(eigenvalues).item(),
        rankme=singular,
        eigenvalues=eigenvalues.cpu(),
        coordinates=principal_plane(x, rows, seed).cpu(),
    )


def principal_plane(x: Tensor, rows: Tensor, seed: int = 0) -> Tensor:
    """Coordinates (n, 2) of some rows of x (N, D) on its first two principal axes, for a map.

    The axes are those of a few thousand rows drawn at random, found by subspace iteration. Each points where its
    largest component is positive, so that the same data give the same map.
    """
    most = min(_PLANE_ROWS, max(16, _PLANE_NUMBERS // x.shape[1]))
    block = x[_draw(x, most, seed)].to(torch.promote_types(x.dtype, torch.float32), copy=True)
    center = block.mean(0)
    block -= center
    # Scaled to 1, or squares would overflow or vanish for data of extreme size.
    block /= block.abs().max().clamp_min(torch.finfo(block.dtype).tiny)
    axes = torch.randn(x.shape[1], min(8, *x.shape), generator=torch.Generator().manual_seed(seed)).to(block)
    for _ in range(12):
        axes = torch.linalg.qr(block.T @ (block @ axes)).Q
    turn = torch.linalg.svd(block @ axes, full_matrices=False).Vh.T
    axes = (axes @ turn)[:, :2]
    axes = axes * torch.where(axes.gather(0, axes.abs().argmax(0, keepdim=True)) < 0, -1, 1)
    flat = torch.cat([(x[part].to(block.dtype) - center) @ axes for part in torch.split(rows, most)])
    return torch.nn.functional.pad(flat, (0, 2 - flat.shape[1]))


class _Global(TypedDict):
    twonn: Reading
    danco: Reading


def _global(x: Tensor, seed: int, steps: "_Steps") -> _Global:
    """The global dimension of the set, of a random part of it where it is large."""
    part = x if len(x) <= _GLOBAL_POINTS else x[_draw(x, _GLOBAL_POINTS, seed)]
    note = "" if part is x else f"from {_GLOBAL_POINTS:,} points drawn at random"

    def reading(step: str, estimate: Callable[[Tensor], float]) -> Reading:
        steps.enter(step)
        try:
            return Reading(float(estimate(part)), note)
        except ValueError as error:  # too few distinct points for this one estimator: the rest still stands
            return Reading(None, f"not available: {str(error).removeprefix('x: ')}")

    return _Global(twonn=reading("TwoNN", twonn), danco=reading("DANCo", partial(danco, seed=seed)))


def _compared(other: Tensor, rows: Tensor, found: LIDEstimate, mean: MeanLID) -> Comparison:
    other_mean = mean_lid(found, rows, len(other))
    return Comparison(
        title="comparison",
        points=other.shape[0],
        dimensions=other.shape[1],
        measured=len(rows),
        mean=other_mean,
        fisher_rao=fisher_rao(*torch.tensor([mean.value, other_mean.value], dtype=torch.float64)).item(),
    )


def _draw(x: Tensor, sample: int | None, seed: int) -> Tensor:
    """Rows of x, ascending: all of them, or `sample` drawn at random where there are more."""
    if sample is None or sample >= len(x):
        return torch.arange(len(x), device=x.device)
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:sample]
    return chosen.sort().values.to(x.device)


def check_settings(
    k: int,
    *,
    estimator: Estimator = "mom",
    convention: Convention = "paper",
    sample: int | None = None,
    device: str | torch.device | None = None,
) -> None:
    """Raise ValueError for settings of `inspect` that are wrong whatever the data."""
    check_options(k, estimator, convention)
    if sample is not None and sample < 1:
        raise ValueError(f"sample: expected at least 1, got {sample}")
    if device is None or str(device) == "auto":
        return
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise ValueError(f"device: expected auto, cpu or cuda, got {str(device)!r}") from error
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"device: expected auto, cpu or cuda, got {str(device)!r}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device: torch finds no CUDA device for {str(device)!r}; expected cpu or auto")


def _embeddings(value: Any, name: str, k: int) -> Tensor:
    with warnings.catch_warnings():
        # Of a memory-mapped array opened for reading, torch warns that it must not be written to; nothing here does.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        x = as_matrix(value, name).detach()
    if k >= len(x):
        raise ValueError(f"k: expected less than {len(x)}, the number of points in {name}, got {k}")
    return x


def _names(labels: Sequence[Any] | Tensor, points: int) -> list[str]:
    values = labels.tolist() if isinstance(labels, Tensor | numpy.ndarray) else list(labels)
    if len(values) != points:
        raise ValueError(f"labels: expected {points}, one for each row of x, got {len(values)}")
    return [str(int(value)) if isinstance(value, float) and value.is_integer() else str(value) for value in values]


def _device(x: Tensor, wanted: str | torch.device | None) -> torch.device:
    if wanted is not None and str(wanted) != "auto":
        return torch.device(wanted)
    if x.device.type != "cpu" or not torch.cuda.is_available():
        return x.device
    free, _ = torch.cuda.mem_get_info()
    # The search wants about as much again for its working copy of the points.
    return torch.device("cuda" if 3 * x.nbytes < free else "cpu")


def _device_name(device: torch.device) -> str:
    return f"{device.type} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type


def _costs(x: Tensor, other: Tensor | None, sample: int | None) -> dict[str, float]:
    """Rough number of multiplications of every step, which weigh them in the progress."""
    n, d = x.shape
    spectrum = n * d * min(n, d) + 4.0 * min(n, d) ** 3
    part = min(n, _GLOBAL_POINTS)
    costs = {"LID": _search_cost(x, sample), "spectrum": spectrum, "RankMe": spectrum}
    costs |= {"map": 200.0 * min(n, _PLANE_ROWS) * d, "TwoNN": part**2 * d / 2, "DANCo": part**2 * (d + 50.0)}
    return costs if other is None else {**costs, "comparison": _search_cost(other, sample)}


def _search_cost(x: Tensor, sample: int | None) -> float:
    n, d = x.shape
    return n * n * (d + 50) / 2 if sample is None or sample >= n else float(sample) * n * (d + 50)


class _Steps:
    """Turns the progress of each step into that of the whole."""

    def __init__(self, report: Progress | None, costs: dict[str, float]) -> None:
        self.report, self.costs, self.total = report, costs, sum(costs.values())
        self.before, self.cost = 0.0, 0.0

    def enter(self, name: str) -> Callable[[float], None] | None:
        """Begin a step, which ends the one before; what it returns takes the fraction of this step that is done."""
        self.before, self.cost = self.before + self.cost, self.costs[name]
        if self.report is None:
            return None
        report, before, cost = self.report, self.before, self.cost

        def advance(fraction: float) -> None:
            report(name, (before + cost * fraction) / self.total)

        advance(0.0)
        return advance

    def finish(self) -> None:
        if self.report is not None:
            self.report("done", 1.0)
