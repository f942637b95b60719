"""Findings: what is wrong with a set of embeddings, from the LID and the neighbors of its points.

Every function is pure: it takes the results of one search and returns fields. `reporting.words` makes sentences of
them. The thresholds were set on half of the sources of `benchmarks/findings.py` and judged on the other half.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_matrix, csr_matrix
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree
from torch import Tensor

from ldreg.lid.geometry import regular

Kind = Literal[
    "complete_collapse", "degenerate", "collapsed_group", "collapsed_class", "collapsed_beside", "comparison_collapsed",
    "duplicates", "near_duplicates", "copies", "small_clusters", "low_rank", "hubs", "higher_beside", "similar_beside",
    "not_compared",
]  # fmt: skip
Severity = Literal["critical", "warning", "note"]
Labels = NDArray[np.str_]
_ORDER: tuple[Severity, ...] = ("critical", "warning", "note")

_BLOCK = 2**22  # neighbor pairs handled at a time
_EXAMPLES = 5  # rows named for a finding, or groups of duplicates

_CONSTANT = 1e-3  # spread beside norm: less is rounding noise around a constant
_ALL = 0.95  # of the points: that many equal rows are all
_DEGENERATE, _MANY_DEGENERATE = 0.01, 0.1  # of the points
_TRIM = 8  # the largest eighth of the spacings is left out: a jump in the distances is among them
_LOW, _LOW_NEARER = 1.8, 1.5  # times: the bulk's LID beside a collapsed group's, from k and from fewer neighbors
_LOW_MAJORITY = 2.2  # the same from k where the group is most of the points, as outliers read high
_GAP = 1.5  # times: a collapsed group stays the same while the threshold on LID rises by this factor
_GROWTH = 0.5  # of the points of the group, or of the rest if fewer: with as many more it is still the same group
_GROWTH_OF_ALL = 0.1  # of all points: the most that a group may gain
_SLACK = 0.01  # of its points: a larger group may gain as many more than those within it, and still have a clear edge
_LEAST_BULK = 0.05  # of the points: fewer that read high are outliers and no bulk
_STEP = math.log(1.08)  # between two thresholds
_LEAST_GROUP, _LARGE_GROUP = 0.01, 0.05  # of the points
_LEAST_OF_K = 1.5  # times k points: fewer do not hold the neighbors of their points
_CLASS = 0.6  # times the LID of the other classes
_FEWEST = 8  # neighbors: fewer read LID with an error above a third
_DUPLICATES, _MANY_DUPLICATES = 0.01, 0.1  # of the points
_NEAR, _BY_CHANCE = 0.3, 1e-3  # of the distance to the k-th neighbor; less where more points are so near by chance
_JUMP = 20.0  # times the typical spacing
_JUMPING = 0.3  # of the points
_COPIES = 9  # neighbors: where fewer lie before the jump they are copies of one thing
_LINE, _FEW = 1.5, 0.05  # effective rank; share of all directions
_HUBS, _TOP = 0.5, 0.01  # of all neighbor places, taken by this share of the points
_BESIDE = (0.05, 0.25, 0.5)  # quantiles compared
_LOWER, _HIGHER = 0.75, 1.25  # times the other set's quantile
_LOWER_RANK = 0.6  # times the other set's effective rank, which differs more between sound encoders
_MORE_DEGENERATE = 0.02  # of the points: that many more without a LID, or with an exact duplicate


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Args:
        kind: what it is.
        severity: "critical": do not use the numbers before it is dealt with; "warning": look at it; "note".
        share: of the measured points that it concerns.
        numbers: the evidence, by name.
        rows: rows of the data that it concerns, ascending; empty where it is of the whole set.
        examples: a few of them to look at: nearest to a group's middle, or one of each group of duplicates.
        labels: how many of the rows have which label, largest first, where labels are known.
    """

    kind: Kind
    severity: Severity
    share: float
    numbers: Mapping[str, float]
    rows: tuple[int, ...] = ()
    examples: tuple[int, ...] = ()
    labels: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Points:
    """What one search and the spectrum tell of a set (N, D).

    Args:
        lid: (n,) of the measured points.
        distances: (n, k) to their neighbors, ascending.
        indices: (n, k) rows of these neighbors.
        rows: (n,) rows of the measured points, ascending.
        total: N.
        dimensions: D.
        effective_rank: of the covariance.
        spread: root-mean-square distance to the mean, beside the root-mean-square norm.
        dead: rows whose entries are all 0.
        labels: (n,) of the measured points, or None.
    """

    lid: Tensor
    distances: Tensor
    indices: Tensor
    rows: Tensor
    total: int
    dimensions: int
    effective_rank: float
    spread: float
    dead: int = 0
    labels: Sequence[str] | None = None

    @property
    def k(self) -> int:
        """Neighbors of each point."""
        return self.distances.shape[1]


def find(points: Points) -> tuple[Finding, ...]:
    """All findings of a set, the most serious first; empty where nothing unusual was found."""
    collapse = _complete_collapse(points)
    if collapse is not None:
        return (collapse,)
    found = [*_degenerate(points), *_groups(points), *_classes(points), *_duplicates(points), *_jumps(points)]
    return ranked([*found, *_low_rank(points), *_hubs(points)])


def ranked(found: Sequence[Finding]) -> tuple[Finding, ...]:
    """The most serious first, and of equally serious ones that of the larger share."""
    return tuple(sorted(found, key=lambda finding: (_ORDER.index(finding.severity), -finding.share)))


def serious(found: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings that are more than a note."""
    return tuple(finding for finding in found if finding.severity != "note")


def _complete_collapse(points: Points) -> Finding | None:
    equal = (points.distances[:, -1] == 0).double().mean().item()
    if not (equal > _ALL or points.spread < _CONSTANT):
        return None
    return Finding("complete_collapse", "critical", 1.0, {"equal": equal, "spread": points.spread})


def _degenerate(points: Points) -> list[Finding]:
    """Points without a LID, from 1 % on."""
    without = ~regular(points.lid)
    share, dead = without.double().mean().item(), points.dead / points.total
    if max(share, dead) < _DEGENERATE:
        return []
    zero, infinite = int((points.lid == 0).sum()), int(torch.isinf(points.lid).sum())
    severity: Severity = "critical" if max(share, dead) >= _MANY_DEGENERATE else "warning"
    numbers = {"zero": zero, "infinite": infinite, "dead": points.dead}
    return [_of(points, "degenerate", severity, without, numbers, share=max(share, dead))]


def local_dimension(distances: Tensor, k: int | None = None) -> Tensor:
    """A LID (n,) for each row of neighbor distances (n, K) that a jump among the first k does not lower; NaN: none.

    In a neighborhood of d dimensions j ln(r(j+1) / r(j)) is exponential with mean 1/d for every j (Rényi). Where a
    cluster ends before the k-th neighbor one of them is very large, and LID by any mean is low. The largest eighth is
    left out, and the mean of the rest is divided by what it is for an exponential.

    >>> within, beyond = torch.linspace(1, 2, 40), torch.linspace(50, 51, 8)
    >>> local_dimension(torch.cat([within, beyond])[None]).item() > 1
    True
    """
    k = distances.shape[1] if k is None else k
    kept = (k - 1) - (k - 1) // _TRIM
    usual = np.cumsum(1 / np.arange(k - 1, 0, -1))[:kept].mean()  # of the order statistics of k - 1 exponentials
    ranks = torch.arange(1, k, dtype=torch.float64, device=distances.device)
    parts = []
    for block in torch.split(distances[:, :k], max(1, _BLOCK // k)):
        # Between exact duplicates, at 0, there is no spacing; ranks go on counting them.
        spacings = (ranks * block.double().log().diff(dim=1)).nan_to_num(nan=0.0, posinf=math.inf)
        mean = spacings.sort(dim=1).values[:, :kept].mean(1)
        fit = (mean > 0) & mean.isfinite() & (block[:, k // 2] > 0)
        parts.append(torch.where(fit, usual / mean, math.nan))
    return torch.cat(parts)


def _groups(points: Points) -> list[Finding]:
    """Connected groups of points whose LID is far below the bulk's."""
    n, k = len(points.rows), points.k
    if k < _FEWEST:
        return []
    place = torch.full((points.total,), -1, dtype=torch.long)
    place[points.rows.cpu()] = torch.arange(n)
    indices = place[points.indices.cpu()]  # of measured points; -1: not measured
    scales = sorted({min(k, max(_FEWEST, scale)) for scale in (k // 4, k // 2, k)})
    readings = np.stack([local_dimension(points.distances, scale).log().cpu().numpy() for scale in scales])
    height = _height(torch.as_tensor(readings[-1]), indices).numpy()
    known = np.isfinite(readings).all(0) & np.isfinite(height)
    least = math.ceil(max(_LEAST_OF_K * k * n / points.total, _LEAST_GROUP * n))
    if known.sum() < 2 * least:
        return []
    near = min(k, math.ceil(max(_FEWEST, k / 4) * points.total / n))  # of whom a sample measures a part
    tree = _tree(height, indices[:, :near].numpy())
    low = _low(_basins(height, tree, least), readings, known)
    if low is None:
        return []
    edge = _edge(height, low)
    part = _parts(tree, edge, height <= edge)
    groups = [part == label for label in np.flatnonzero(np.bincount(part[part >= 0], minlength=1) >= least)]
    bulk = known & (height > edge)
    found = []
    for group in groups:
        lid, others = (float(np.exp(np.median(readings[-1][members]))) for members in (group & known, bulk))
        share = group.sum() / n
        found.append(
            _of(
                points,
                "collapsed_group",
                "critical" if share >= _LARGE_GROUP else "warning",
                torch.as_tensor(group),
                {"points": float(group.sum()), "lid": lid, "bulk": others},
                examples=_middle(points, torch.as_tensor(group), indices),
            )
        )
    return found


def _low(
    groups: Sequence[NDArray[np.bool_]], readings: NDArray[np.float64], known: NDArray[np.bool_]
) -> NDArray[np.bool_] | None:
    """The points of those disjoint groups that are collapsed: the lowest, where all read far less than the rest.

    Of several choices that with the most variance between the two parts counts (Otsu).
    """
    ordered = sorted(groups, key=lambda group: float(np.median(readings[-1][group & known])))
    best, found = 0.0, None
    for count in range(1, len(ordered) + 1):
        union = np.any(ordered[:count], axis=0)
        rest = known & ~union
        if rest.sum() < _LEAST_BULK * known.sum():
            continue
        needed = _LOW if 2 * union.sum() <= known.sum() else _LOW_MAJORITY
        bulk = np.median(readings[:, rest], axis=1)
        # From fewer neighbors too: a group of fewer points than the others' reads low at the largest k alone.
        ratios = np.min([bulk - np.median(readings[:, group & known], axis=1) for group in ordered[:count]], axis=0)
        apart = bulk[-1] - np.median(readings[-1][union & known])
        between = apart**2 * union.mean() * (1 - union.mean())
        if ratios[-1] >= math.log(needed) and ratios.min() >= math.log(_LOW_NEARER) and between > best:
            best, found = between, union
    return found


def _edge(height: NDArray[np.float64], among: NDArray[np.bool_]) -> float:
    """The height between a collapsed group and the rest that the fewest points have."""
    first, last = np.nanmedian(height[among]), np.nanmedian(height[~among])
    levels = np.arange(first + _STEP, max(last, first + 2 * _STEP), _STEP / 2)
    counts = [(np.abs(height - level) < _STEP).sum() for level in levels]
    return float(levels[int(np.argmin(counts))])


def _height(own: Tensor, indices: Tensor) -> Tensor:
    """Log LID of each point or the mean of it over the point and its neighbors, whichever is higher; NaN: none.

    A point is low where its neighbors are low too, which takes the noise out of the lower tail. And it is not low for
    its neighbors alone: points outside of a collapsed group often have their neighbors in it.
    """
    parts = []
    for first, block in zip(range(0, len(own), _BLOCK), indices.split(_BLOCK), strict=False):
        near = torch.where(block >= 0, own[block.clamp_min(0)], math.nan)
        around = torch.cat([own[first : first + len(block), None], near], 1).nanmean(1)
        parts.append(around)
    return torch.maximum(own, torch.cat(parts))


def _tree(height: NDArray[np.float64], indices: NDArray[np.int64]) -> coo_matrix:
    """Neighbors that are connected below every threshold: from the higher of their heights on."""
    n = len(height)
    start, end = np.repeat(np.arange(n), indices.shape[1]), indices.ravel()
    weight = np.maximum(height[start], np.where(end >= 0, height[end], math.nan))
    real = np.isfinite(weight)
    low = np.nanmin(height) - 1  # no weight may be 0, which is no edge
    graph = csr_matrix((weight[real] - low, (start[real], end[real])), shape=(n, n))
    tree = minimum_spanning_tree(graph).tocoo()
    return coo_matrix((tree.data + low, (tree.row, tree.col)), shape=(n, n))


def _basins(height: NDArray[np.float64], tree: coo_matrix, least: int) -> list[NDArray[np.bool_]]:
    """Disjoint groups that are connected below a threshold and stay the same while it rises by a factor `_GAP`.

    A group takes the place of those within it where it is about as low as they are and has as clear an edge.
    """
    n = len(height)
    levels = np.arange(np.nanmin(height), np.nanquantile(height, 1 - _LEAST_BULK) + math.log(_GAP), _STEP)
    parts = [_parts(tree, level, height <= level) for level in levels]
    steps = math.ceil(math.log(_GAP) / _STEP)
    found: list[_Basin] = []
    for part, later in zip(parts, parts[steps:], strict=False):
        sizes = np.bincount(part[part >= 0], minlength=1)
        for label in np.flatnonzero(sizes >= least):
            members = part == label
            added = int((later == later[np.argmax(members)]).sum() - sizes[label])
            if added > min(_GROWTH * min(sizes[label], n - sizes[label]), _GROWTH_OF_ALL * n):
                continue
            middle = float(np.median(height[members]))
            within = [other for other in found if (other.members & members).any()]
            before = sum(other.added for other in within)
            if not within or (
                middle <= min(other.height for other in within) + math.log(_GAP)
                and added <= before + _SLACK * sizes[label]
            ):
                added = min(added, before) if within else added
                found = [other for other in found if not (other.members & members).any()]
                found.append(_Basin(members, middle, added))
    return [basin.members for basin in found]


class _Basin(NamedTuple):
    """Which points are in a group, their median height, and how many more there are as the threshold rises."""

    members: NDArray[np.bool_]
    height: float
    added: int


def _parts(tree: coo_matrix, level: float, below: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The number of the component of each point that is below the level, -1 of the others."""
    kept = tree.data <= level
    graph = csr_matrix((np.ones(kept.sum()), (tree.row[kept], tree.col[kept])), shape=tree.shape)
    labels = connected_components(graph, directed=False)[1]
    return np.where(below, labels, -1)


def _middle(points: Points, members: Tensor, indices: Tensor) -> tuple[int, ...]:
    """The members that most others of the group have among their neighbors."""
    inner = members.nonzero().flatten()
    near = indices[inner]
    counts = torch.bincount(near[near >= 0], minlength=len(points.rows))[inner]
    best = counts.sort(descending=True, stable=True).indices[:_EXAMPLES]
    return tuple(points.rows.cpu()[inner[best]].tolist())


def _classes(points: Points) -> list[Finding]:
    """Classes whose LID is far below that of the other classes, each pair read at the same share of its points.

    k neighbors in a small class are a larger part of it than in a large one, and LID reads lower by that alone. So of
    two classes of n < m points the smaller is read from k n / m neighbors, which one search has all of.
    """
    if points.labels is None:
        return []
    names, of = np.unique(np.asarray(points.labels), return_inverse=True)
    sizes = np.bincount(of) * points.total / len(points.rows)
    scales = _scales(points.k)
    logs = np.stack([local_dimension(points.distances, scale).log().cpu().numpy() for scale in scales])
    fit = np.isfinite(logs)
    count = np.stack([np.bincount(of[row], minlength=len(names)) for row in fit])
    mean, error = np.full(count.shape, math.nan), np.full(count.shape, math.nan)
    for place, (row, some) in enumerate(zip(logs, fit, strict=True)):
        total = np.bincount(of[some], row[some], len(names))
        squares = np.bincount(of[some], row[some] ** 2, len(names))
        with np.errstate(invalid="ignore", divide="ignore"):
            mean[place] = total / count[place]
            # Points share their neighbors: about one in scale / 2 of them is a draw of its own.
            error[place] = np.sqrt(
                np.maximum(squares / count[place] - mean[place] ** 2, 0) / count[place] * scales[place] / 2
            )
    found = []
    for c in range(len(names)):
        others = [_pair(c, other, sizes, scales, mean) for other in range(len(names)) if other != c]
        differences = np.array([pair for pair in others if pair is not None])
        if sizes[c] <= points.k or 2 * len(differences) < len(names) - 1 or not len(differences):
            continue
        ratio = float(np.exp(np.median(differences)))
        if np.median(differences) + 2 * error[-1, c] < math.log(_CLASS):
            numbers = {"points": float(round(sizes[c])), "lid": float(np.exp(mean[-1, c])), "ratio": 1 / ratio}
            members = torch.as_tensor(of == c)
            found.append(_of(points, "collapsed_class", "warning", members, numbers))
    return found


def _scales(k: int) -> list[int]:
    """Numbers of neighbors from 8 to k, in steps of a square root of two."""
    if k < _FEWEST:
        return [k]
    steps = range(math.floor(2 * math.log2(k / _FEWEST)) + 1)
    return sorted({round(k / 2 ** (step / 2)) for step in steps})


def _pair(
    own: int, other: int, sizes: NDArray[np.float64], scales: Sequence[int], mean: NDArray[np.float64]
) -> float | None:
    """Log of the ratio of two classes' LID, each from the same share of its points; None where that is too few."""
    wanted = [scales[-1] * min(1.0, sizes[a] / sizes[b]) for a, b in ((own, other), (other, own))]
    if min(wanted) < scales[0] / 2**0.25 or min(sizes[own], sizes[other]) <= scales[-1]:
        return None
    first, second = (int(np.argmin([abs(math.log(scale / value)) for scale in scales])) for value in wanted)
    difference = float(mean[first, own] - mean[second, other])
    return difference if math.isfinite(difference) else None


def _duplicates(points: Points) -> list[Finding]:
    """Groups of equal rows, and of rows much nearer to each other than k neighbors of this dimension are by chance."""
    found = []
    exact, groups = _linked(points, torch.zeros(len(points.rows)))
    if exact.double().mean() >= _DUPLICATES:
        found.append(_copies_of(points, "duplicates", exact, groups))
    dimension = local_dimension(points.distances).nanmedian().item()
    if math.isnan(dimension):
        return found
    # The nearest of k neighbors is nearer than this share of the k-th with a chance of k share^dimension. In small
    # clusters the k-th is far away, so the typical distance to the nearest neighbor counts too.
    share = min(_NEAR, (_BY_CHANCE / points.k) ** (1 / dimension))
    nearest = points.distances[:, 0]
    typical = nearest[nearest > 0].median()
    near, groups = _linked(points, share * points.distances[:, -1].clamp_max(typical))
    if (near & ~exact).double().mean() >= _DUPLICATES:
        found.append(_copies_of(points, "near_duplicates", near, groups))
    return found


def _linked(points: Points, within: Tensor) -> tuple[Tensor, NDArray[np.int64]]:
    """Which points have a neighbor within so much (n,) of them, and the number of the group of each row (N,)."""
    close = points.distances <= within[:, None].to(points.distances.device)
    start = points.rows[:, None].expand_as(close)[close].cpu().numpy()
    end = points.indices[close].cpu().numpy()
    graph = csr_matrix((np.ones(len(start), bool), (start, end)), shape=(points.total, points.total))
    return close[:, 0].cpu(), connected_components(graph, directed=False)[1]


def _copies_of(points: Points, kind: Kind, having: Tensor, groups: NDArray[np.int64]) -> Finding:
    """One finding, whose examples are a row of each of the largest groups."""
    rows = points.rows.cpu()[having].numpy()
    _, first, counts = np.unique(groups[rows], return_index=True, return_counts=True)
    largest = np.argsort(-counts, kind="stable")[:_EXAMPLES]
    severity: Severity = "warning" if having.double().mean() >= _MANY_DUPLICATES else "note"
    numbers = {"groups": float(len(counts)), "largest": float(counts.max())}
    return _of(points, kind, severity, having, numbers, examples=tuple(rows[first[largest]].tolist()))


def _jumps(points: Points) -> list[Finding]:
    """Neighbor distances that jump: after few neighbors where points are copies, else where k is beyond clusters."""
    ranks = torch.arange(1, points.k, dtype=torch.float64, device=points.distances.device)
    jumping, before = [], []
    for block in torch.split(points.distances, max(1, _BLOCK // points.k)):
        spacings = (ranks * block.double().log().diff(dim=1)).nan_to_num(nan=0.0, posinf=0.0)
        largest, place = spacings.max(1)
        jumping.append((spacings.median(1).values > 0) & (largest > _JUMP * spacings.median(1).values))
        before.append(place + 1)
    which, neighbors = torch.cat(jumping).cpu(), torch.cat(before).cpu()
    if which.double().mean() < _JUMPING:
        return []
    middle = neighbors[which].double().median().item()
    kind: Kind = "copies" if middle < _COPIES else "small_clusters"
    return [_of(points, kind, "note", which, {"before": middle})]


def _low_rank(points: Points) -> list[Finding]:
    most = min(points.total - 1, points.dimensions)
    if most < _FEWEST or not points.effective_rank < max(_LINE, _FEW * most):
        return []
    severity: Severity = "warning" if points.effective_rank < _LINE else "note"
    return [Finding("low_rank", severity, 1.0, {"effective_rank": points.effective_rank, "most": float(most)})]


def _hubs(points: Points) -> list[Finding]:
    """Few points that are neighbors of very many, seen where all points were measured."""
    if len(points.rows) < points.total:
        return []
    counts = torch.bincount(points.indices.flatten().cpu(), minlength=points.total)
    top = max(1, round(_TOP * points.total))
    most = counts.topk(top)
    taken = most.values.sum().item() / counts.sum().item()
    if taken < _HUBS:
        return []
    which = torch.zeros(points.total, dtype=torch.bool)
    which[most.indices] = True
    numbers = {"taken": taken, "never": (counts == 0).double().mean().item(), "largest": float(counts.max())}
    return [_of(points, "hubs", "note", which, numbers, examples=tuple(most.indices[:_EXAMPLES].tolist()))]


def compare(own: Points, other: Points, found: Sequence[Finding], others: Sequence[Finding]) -> Finding:
    """How a set compares with another, by its lower tail, degenerate points, rank and findings, not by its mean.

    A set with serious findings that the other has not is collapsed beside it, whatever its LID. LID depends on the
    number of points, so sets of unlike size are compared by the rest.
    """
    a, b = _described(own), _described(other)
    both = {**a, **{f"other_{name}": value for name, value in b.items()}}
    numbers = {name: value for name, value in both.items() if math.isfinite(value)}
    alike = abs(math.log(own.total / other.total)) < math.log(1.1)
    ratios = [a[name] / b[name] if b[name] > 0 else math.nan for name in a if name.startswith("lid_")] if alike else []
    more, copied = (a[name] - b[name] for name in ("degenerate", "duplicates"))
    more = more if abs(more) > abs(copied) else copied
    comparable = own.dimensions == other.dimensions and other.effective_rank > 0
    rank = own.effective_rank / other.effective_rank if comparable else 1.0
    worse, better = (
        {f.kind for f in serious(one)} - {f.kind for f in serious(two)}
        for one, two in ((found, others), (others, found))
    )
    low = [ratio for ratio in ratios if ratio < _LOWER]
    high = [ratio for ratio in ratios if ratio > 1 / _LOWER]
    if more > _MORE_DEGENERATE or worse & _COLLAPSES or ((low or rank < _LOWER_RANK) and not better & _COLLAPSES):
        return Finding("collapsed_beside", "critical", 1.0, numbers)
    if -more > _MORE_DEGENERATE or better & _COLLAPSES or high[:1] == ratios[:1] != [] or rank > 1 / _LOWER_RANK:
        kind: Kind = "comparison_collapsed" if -more > _MORE_DEGENERATE or better & _COLLAPSES else "higher_beside"
        return Finding("similar_beside" if kind == "higher_beside" and serious(found) else kind, "note", 1.0, numbers)
    if not alike:
        return Finding("not_compared", "note", 1.0, numbers)
    higher = all(ratio > _HIGHER for ratio in ratios) and not serious(found)
    return Finding("higher_beside" if higher else "similar_beside", "note", 1.0, numbers)


_COLLAPSES = {"complete_collapse", "degenerate", "collapsed_group", "collapsed_class", "low_rank", "duplicates"}


def _described(points: Points) -> dict[str, float]:
    """Quantiles of LID, with points that coincide at 0, the shares of degenerate and duplicate points, and the rank."""
    lid = points.lid.double().cpu()
    lid = torch.where(lid.isinf(), math.nan, lid)
    quantiles = np.nanquantile(lid.numpy(), _BESIDE).tolist() if not lid.isnan().all() else [math.nan] * len(_BESIDE)
    named = {f"lid_{round(100 * q)}": value for q, value in zip(_BESIDE, quantiles, strict=True)}
    degenerate = (~regular(points.lid)).double().mean().item()
    duplicates = (points.distances[:, 0] == 0).double().mean().item()
    return {**named, "degenerate": degenerate, "duplicates": duplicates, "effective_rank": points.effective_rank}


def _of(
    points: Points,
    kind: Kind,
    severity: Severity,
    members: Tensor,
    numbers: Mapping[str, float],
    *,
    share: float | None = None,
    examples: tuple[int, ...] = (),
) -> Finding:
    """A finding of some of the measured points, with their rows and labels."""
    members = members.cpu()
    rows = tuple(points.rows.cpu()[members].tolist())
    names = [] if points.labels is None else [points.labels[i] for i in members.nonzero().flatten().tolist()]
    share = len(rows) / len(points.rows) if share is None else share
    return Finding(
        kind, severity, share, numbers, rows, examples or rows[:_EXAMPLES], tuple(Counter(names).most_common())
    )
