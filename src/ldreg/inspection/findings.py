"""Findings: what is wrong with a set of embeddings, from the LID and the neighbors of its points.

All functions are pure: they take the results of one search and return fields. `report.words` turns them into
sentences. Collapsed groups are found as valleys: the height of a point is its smoothed ln LID, a basin is a connected
set of points below a level, and the bulk is the rest. The thresholds were set and judged with `benchmarks/findings.py`.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_matrix, csr_matrix
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree
from torch import Tensor

from ldreg.dimension.expected import gaussian_lid
from ldreg.dimension.geometry import regular
from ldreg.record import Finding, Kind, Severity, most_serious_first

Numbers = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

_BLOCK = 2**22  # neighbor pairs handled at a time
_EXAMPLES = 5  # rows named for a finding, or groups of duplicates

_CONSTANT = 1e-3  # spread divided by norm: less is rounding noise around a constant
_ALL = 0.95  # of the points: if so many rows are equal, all are
_DEGENERATE, _MANY_DEGENERATE = 0.01, 0.1  # of the points
_TRIM = 8  # the largest eighth of the spacings is left out, because a jump in the distances is among them
_TIED = 0.6  # of a point's distances: more ties than this come from a grid or from copies

_LEAST_K = 16  # neighbors: with fewer, chance makes groups
_LEAST_GROUP, _LARGE_GROUP = 0.01, 0.05  # of the points
_LEAST_OF_K = 1.5  # times k points: smaller groups do not hold the neighbors of their points
_LEAST_BULK = 0.08  # of the points: fewer high points are outliers
_LOW, _LOW_NEARER = 1.8, 1.5  # times: LID of the bulk over that of a group, from k and from fewer neighbors
_CUT, _CUT_NEARER = 1.7, 1.3  # times: LID between group and bulk that few points have, less if it shows at small k
_LOW_CUT = 2.0  # times: the ratio that such a group needs
_MOST, _LOW_MOST = 0.8, 4.0  # of the points; a larger group needs a larger ratio, because outliers read high
_GAP, _GAP_ALL = 1.5, 1.35  # times: one group, or all groups, stay the same while the threshold on LID rises so much
_GROWTH = 0.5  # of the points of the group, or of the rest if fewer: a group that gains more is another group
_GROWTH_OF_ALL = 0.1  # of all points: the most that a group may gain
_SLACK = 0.01  # of its points: extra gain allowed when a group replaces the groups inside it
_STEP = math.log(1.08)  # between two thresholds

_CLASS = 0.6  # times the LID of the other classes
_FEWEST = 8  # neighbors: LID from fewer has an error above a third
_DUPLICATES, _MANY_DUPLICATES = 0.01, 0.1  # of the points
_NEAR, _BY_CHANCE = 0.3, 1e-3  # of the distance to the k-th neighbor; less where chance puts more points so near
_DENSE = 0.1  # times nearer: copies in groups as large as a dense cluster
_RARE = 1e-3  # of the rows of a reference: so few have a k-th neighbor as far as a point that is far
_RARELY = 7.0  # rows: points beyond the furthest of n rows are rarely more than this share of n
_JUMP = 14.0  # times the mean spacing
_JUMPING = 0.3  # of the points
_COPIES = 9  # neighbors: if fewer come before the jump, they are copies of one thing
_LINE, _FEW = 1.5, 0.05  # effective rank; share of all directions
_FEW_DIMENSIONS = 8  # with fewer, a low rank says little
_HUBS, _TOP = 0.2, 0.01  # of all neighbor places, taken by this share of the points

_ALIKE = 1.1  # times as many points
_BESIDE = {0.05: 0.6, 0.25: 0.75, 0.5: 0.75}  # quantiles of LID, and the ratios to the other set's that are lower
_ERRORS = 2.0  # standard errors of a quantile
_FALL, _FELL = 0.7, 0.04  # times the LID of the same row in the other set; share of the rows
_SHARED = 0.1  # of the neighbors beyond chance: rows of two sets with so many in common are of the same things
_HIGHER = 1.25  # times the other set's quantiles
_LOWER_RANK = 0.6  # times the other set's effective rank, which differs more between sound encoders
_COLLAPSES = {"complete_collapse", "degenerate", "collapsed_group", "collapsed_class", "low_rank", "duplicates"}
_MORE_DEGENERATE = 0.02  # of the points: so many more without a LID, or with an exact duplicate

# Findings of `compare`, about two sets.
COMPARISONS = frozenset(("collapsed_beside", "comparison_collapsed", "higher_beside", "similar_beside", "not_compared"))


@dataclass(frozen=True)
class Points:
    """Results of one search and the spectrum of a set (N, D).

    Args:
        lid: (n,) of the measured points.
        distances: (n, k) to their neighbors, ascending.
        indices: (n, k) rows of these neighbors.
        rows: (n,) rows of the measured points, ascending; on the CPU.
        total: N.
        dimensions: D.
        effective_rank: of the covariance.
        spread: root-mean-square distance to the mean, divided by the root-mean-square norm.
        scale: root-mean-square distance to the mean.
        dead: (n,) whether all entries of a measured point are 0; on the CPU.
        labels: (n,) of the measured points, or None.
        left_out: rows that were left out before all others were numbered; of sets with the same rows, the same.
    """

    lid: Tensor
    distances: Tensor
    indices: Tensor
    rows: Tensor
    total: int
    dimensions: int
    effective_rank: float
    spread: float
    scale: float
    dead: Tensor
    labels: Sequence[str] | None = None
    left_out: Tensor | None = None

    @property
    def k(self) -> int:
        """Neighbors of each point."""
        return self.distances.shape[1]

    @cached_property
    def dimension(self) -> Tensor:
        """`local_dimension` (n,) of all k distances, which takes long and several findings need."""
        return local_dimension(self.distances)


def find(points: Points) -> tuple[Finding, ...]:
    """All findings of a set, the most serious first, or one of the kind "nothing_unusual"."""
    collapse = _complete_collapse(points)
    if collapse is not None:
        return (collapse,)
    groups = _groups(points) if points.k >= _LEAST_K else []
    found = [*_degenerate(points), *groups, *_duplicates(points, groups)]
    if points.k >= _FEWEST:
        found += _classes(points)
        if not groups:  # points near a collapsed group see it as a jump in the distances
            found += _jumps(points)
    return ranked([*found, *_low_rank(points), *_hubs(points)]) or (Finding("nothing_unusual", "note", 0.0, {}),)


def ranked(found: Sequence[Finding]) -> tuple[Finding, ...]:
    """Sort by severity, then by share. "nothing_unusual" is dropped if there is another finding."""
    return tuple(most_serious_first(sorted(found, key=lambda finding: -finding.share)))


def _complete_collapse(points: Points) -> Finding | None:
    equal = (points.distances[:, -1] == 0).double().mean().item()
    if not (equal > _ALL or points.spread < _CONSTANT):
        return None
    return Finding("complete_collapse", "critical", 1.0, {"equal": equal, "spread": points.spread})


def _degenerate(points: Points) -> list[Finding]:
    """Points without a LID."""
    without = _without_lid(points)
    share = without.double().mean().item()
    if share < _DEGENERATE:
        return []
    severity: Severity = "critical" if share >= _MANY_DEGENERATE else "warning"
    counted = {"zero": points.lid == 0, "infinite": points.lid.isinf(), "dead": points.dead, "noise": _noise(points)}
    numbers = {name: float(which.sum()) for name, which in counted.items()}
    return [_finding(points, "degenerate", severity, without, numbers)]


def _without_lid(points: Points) -> Tensor:
    """Which points (n,) have no LID, are all zeros, or have neighbors that differ by rounding noise."""
    return (~regular(points.lid)).cpu() | points.dead | _noise(points)


def _noise(points: Points) -> Tensor:
    """Which points (n,) have k neighbors that differ by rounding noise only.

    Neighbors of fewer than 3 dimensions are left out: among very many points they are as near by nature.
    """
    if points.k < _FEWEST:
        return torch.zeros(len(points.rows), dtype=torch.bool, device="cpu")
    last = points.distances[:, -1]
    return ((last > 0) & (last < _CONSTANT * points.scale) & (points.dimension >= 3)).cpu()


def local_dimension(distances: Tensor, k: int | None = None) -> Tensor:
    """LID (n,) from the first k of the neighbor distances (n, K) that a jump among them does not lower; NaN: none.

    In a neighborhood of d dimensions j ln(r(j+1) / r(j)) is exponential with mean 1/d for every j (Rényi). Where a
    cluster ends before the k-th neighbor, one of these spacings is very large and every mean LID is low. So the largest
    eighth is left out, and the mean of the rest is divided by its value for an exponential. Points whose distances
    mostly tie, as on a grid, have none.

    >>> within, beyond = torch.linspace(1, 2, 40), torch.linspace(50, 51, 8)
    >>> local_dimension(torch.cat([within, beyond])[None]).item() > 1
    True
    """
    k = distances.shape[1] if k is None else k
    kept = (k - 1) - (k - 1) // _TRIM
    usual = np.cumsum(1 / np.arange(k - 1, 0, -1))[:kept].mean()  # of the order statistics of k - 1 exponentials
    parts = []
    for block in torch.split(distances[:, :k], max(1, _BLOCK // k)):
        mean = _spacings(block).sort(dim=1).values[:, :kept].mean(1)
        tied = (block.diff(dim=1) == 0).double().mean(1)
        fit = (mean > 0) & mean.isfinite() & (block[:, k // 2] > 0) & (tied <= _TIED)
        parts.append(torch.where(fit, usual / mean, math.nan))
    return torch.cat(parts)


def _spacings(distances: Tensor) -> Tensor:
    """The spacings j ln(r(j+1) / r(j)) of distances (n, k), as (n, k - 1); 0 between exact duplicates."""
    ranks = torch.arange(1, distances.shape[1], dtype=torch.float64, device=distances.device)
    return (ranks * distances.double().log().diff(dim=1)).nan_to_num(nan=0.0, posinf=math.inf)


def _scaled(points: Points) -> list[Numbers]:
    """Log of `local_dimension` (n,) from k / 4, k / 2 and k neighbors, at least 8."""
    k = points.k
    scales = sorted({min(k, max(_FEWEST, scale)) for scale in (k // 4, k // 2, k)})
    found = [points.dimension if scale == k else local_dimension(points.distances, scale) for scale in scales]
    return [dimension.log().cpu().numpy() for dimension in found]


def _positions(points: Points) -> Tensor:
    """Each neighbor (n, k) as its position among the measured points; -1: not measured."""
    place = torch.full((points.total,), -1, dtype=torch.long, device="cpu")
    place[points.rows] = torch.arange(len(points.rows), device="cpu")
    return place[points.indices.cpu()]


def _smoothed(values: Numbers, points: Points, indices: Tensor) -> Numbers:
    """Mean of a value over each point and its mutual neighbors; NaN: none.

    It takes out the noise of single points. Points near a collapsed group have their neighbors in it, but are not among
    the neighbors of these, so the group does not lower them.
    """
    own, last = torch.from_numpy(values), points.distances[:, -1].cpu()
    size, parts = max(1, _BLOCK // points.k), []
    for mine, block, near in zip(own.split(size), indices.split(size), points.distances.split(size), strict=True):
        place = block.clamp_min(0)
        mutual = (block >= 0) & (near.cpu() <= last[place])
        around = torch.where(mutual, own[place], math.nan)
        parts.append(torch.where(mine.isnan(), math.nan, torch.cat([mine[:, None], around], 1).nanmean(1)))
    return torch.cat(parts).numpy()


def _groups(points: Points) -> list[Finding]:
    """Connected groups of points whose LID is far below that of the others."""
    n, k = len(points.rows), points.k
    indices, readings = _positions(points), np.stack(_scaled(points))
    known = np.logical_and.reduce(np.isfinite(readings))
    height = _smoothed(np.where(known, readings[-1], math.nan), points, indices)
    least = math.ceil(max(_LEAST_OF_K * k * n / points.total, _LEAST_GROUP * n))
    if known.sum() < 2 * least:
        return []
    near = min(k, math.ceil(max(_FEWEST, k / 4) * points.total / n))  # of a sample, only some are measured
    tree = _tree(height, indices[:, :near].numpy())
    most = min(points.dimensions, points.total - 1)
    highest = gaussian_lid(most, k, points.total) or float(most)  # of all dimensions; only outliers read more
    low = _low(_candidates(height, tree, least), height, readings, known, math.log(highest))
    if low is None:
        return []
    edge = _edge(height, low)
    part = _parts(tree, edge, height <= edge)
    bulk = known & (height > edge)
    found = []
    for label in np.flatnonzero(np.bincount(part[part >= 0], minlength=1) >= least):
        group = part == label
        lid, others = (float(np.exp(np.median(readings[-1][members]))) for members in (group & known, bulk))
        members = torch.from_numpy(group)
        severity: Severity = "critical" if group.sum() >= _LARGE_GROUP * n else "warning"
        numbers = {"points": float(group.sum()), "lid": lid, "bulk": others}
        examples = _middle(points, members, indices)
        found.append(_finding(points, "collapsed_group", severity, members, numbers, examples=examples))
    return found


def _candidates(height: Numbers, tree: coo_matrix, least: int) -> list[tuple[list[Mask], bool]]:
    """Groups that may be collapsed together, and whether they are all groups below a threshold.

    They are the lowest, the two lowest, ... of the separate groups, and for some thresholds all groups below it.
    """
    levels = np.arange(np.nanmin(height), np.nanquantile(height, 1 - _LEAST_BULK) + math.log(_GAP), _STEP)
    layers = [_parts(tree, level, height <= level) for level in levels]
    separate = sorted(_basins(height, layers, least), key=lambda group: float(np.median(height[group])))
    found = [(separate[:count], False) for count in range(1, len(separate) + 1)]
    for level, part in zip(levels, layers, strict=True):
        sizes = np.bincount(part[part >= 0], minlength=1)
        large = np.flatnonzero(sizes >= least)
        size = int(sizes[large].sum())
        if size and (height <= level + math.log(_GAP_ALL)).sum() - size <= _gain(size, len(height)):
            found.append(([part == label for label in large], True))
    return found


def _gain(size: int, n: int) -> float:
    """How many points a group of this size may gain and still count as the same group."""
    return min(_GROWTH * min(size, n - size), _GROWTH_OF_ALL * n)


def _low(
    candidates: Sequence[tuple[list[Mask], bool]],
    height: Numbers,
    readings: Numbers,
    known: Mask,
    highest: float,
) -> Mask | None:
    """The points of the candidate whose groups all read far less than the rest; None: there is none.

    Of several, the one with the most variance between group and rest is taken (Otsu). The rest counts with at most
    `highest`, the logarithm of a LID.
    """
    best, found = 0.0, None
    for groups, whole in candidates:
        union = np.any(groups, axis=0)
        rest, share = known & ~union, union.mean()
        if rest.sum() < _LEAST_BULK * known.sum():
            continue
        bulk = np.minimum(np.median(readings[:, rest], axis=1), highest)
        ratios = np.min([bulk - np.median(readings[:, group & known], axis=1) for group in groups], axis=0)
        # A small cluster of many dimensions reads low from k neighbors, but not from fewer.
        nearer = ratios.min() >= math.log(_LOW_NEARER if share <= 0.5 else _LOW)
        cut = math.exp(np.quantile(height[rest], 0.1) - max(np.quantile(height[g & known], 0.9) for g in groups))
        if share > _MOST:
            low = ratios[-1] >= math.log(_LOW_MOST) and cut >= _CUT
        elif whole:
            clear = cut >= _CUT or (cut >= _CUT_NEARER and ratios.min() >= math.log(_LOW))
            low = ratios[-1] >= math.log(_LOW_CUT) and ratios.min() >= math.log(_LOW_NEARER) and clear
        else:
            low = ratios[-1] >= math.log(_LOW) and nearer
        between = (bulk[-1] - np.median(readings[-1][union & known])) ** 2 * share * (1 - share)
        if low and between > best:
            best, found = between, union
    return found


def _edge(height: Numbers, among: Mask) -> float:
    """The height between a collapsed group and the rest that the fewest points have."""
    first, last = np.nanmedian(height[among]), np.nanmedian(height[~among])
    levels = np.arange(first + _STEP, max(last, first + 2 * _STEP), _STEP / 2)
    counts = [(np.abs(height - level) < _STEP).sum() for level in levels]
    return float(levels[int(np.argmin(counts))])


def _tree(height: Numbers, indices: Integers) -> coo_matrix:
    """Minimum spanning tree of the neighbor graph; an edge weighs as much as the higher of its two points."""
    n = len(height)
    start, end = np.repeat(np.arange(n), indices.shape[1]), indices.ravel()
    weight = np.maximum(height[start], np.where(end >= 0, height[end], math.nan))
    real = np.isfinite(weight)
    low = np.nanmin(height) - 1  # no weight may be 0, which is no edge
    graph = csr_matrix((weight[real] - low, (start[real], end[real])), shape=(n, n))
    tree = minimum_spanning_tree(graph).tocoo()
    return coo_matrix((tree.data + low, (tree.row, tree.col)), shape=(n, n))


class _Basin(NamedTuple):
    """The points of a group, their median height, and how many it gains as the threshold rises."""

    members: Mask
    height: float
    added: int


def _basins(height: Numbers, layers: Sequence[Integers], least: int) -> list[Mask]:
    """Separate groups, each connected below a threshold, that stay the same while it rises by a factor `_GAP`.

    A group replaces the groups inside it if it is about as low and has as clear an edge.
    """
    steps, found = math.ceil(math.log(_GAP) / _STEP), list[_Basin]()
    for part, later in zip(layers, layers[steps:], strict=False):
        sizes = np.bincount(part[part >= 0], minlength=1)
        for label in np.flatnonzero(sizes >= least):
            members = part == label
            added = int((later == later[np.argmax(members)]).sum() - sizes[label])
            if added > _gain(int(sizes[label]), len(height)):
                continue
            middle = float(np.median(height[members]))
            within = [other for other in found if (other.members & members).any()]
            before = sum(other.added for other in within)
            if not within or (
                middle <= min(other.height for other in within) + math.log(_GAP)
                and added <= before + _SLACK * sizes[label]
            ):
                found = [other for other in found if not (other.members & members).any()]
                found.append(_Basin(members, middle, min(added, before) if within else added))
    return [basin.members for basin in found]


def _parts(tree: coo_matrix, level: float, below: Mask) -> Integers:
    """The connected component of each point below the level, and -1 for the others."""
    kept = tree.data <= level
    graph = csr_matrix((np.ones(kept.sum()), (tree.row[kept], tree.col[kept])), shape=tree.shape)
    labels = connected_components(graph, directed=False)[1]
    return np.where(below, labels, -1)


def _middle(points: Points, members: Tensor, indices: Tensor) -> tuple[int, ...]:
    """Rows of the members that are neighbors of most others of the group."""
    inner = members.nonzero().flatten()
    near = indices[inner]
    counts = torch.bincount(near[near >= 0], minlength=len(points.rows))[inner]
    best = counts.sort(descending=True, stable=True).indices[:_EXAMPLES]
    return tuple(points.rows[inner[best]].tolist())


def _classes(points: Points) -> list[Finding]:
    """Classes whose LID is far below that of the others, each pair read at the same share of its points.

    k neighbors are a larger part of a small class, which lowers its LID. So of two classes of n < m points the smaller
    is read from k n / m neighbors.
    """
    if points.labels is None:
        return []
    names, of = np.unique(np.asarray(points.labels), return_inverse=True)
    sizes = np.bincount(of) * points.total / len(points.rows)
    steps = range(math.floor(2 * math.log2(points.k / _FEWEST)) + 1)  # of a square root of two
    scales = sorted({round(points.k / 2 ** (step / 2)) for step in steps})
    logs = np.stack([local_dimension(points.distances, scale).log().cpu().numpy() for scale in scales])
    fit = np.isfinite(logs)
    count = np.stack([np.bincount(of[row], minlength=len(names)) for row in fit])
    mean, error = np.full(count.shape, math.nan), np.full(count.shape, math.nan)
    for place, (row, some) in enumerate(zip(logs, fit, strict=True)):
        total = np.bincount(of[some], row[some], len(names))
        squares = np.bincount(of[some], row[some] ** 2, len(names))
        with np.errstate(invalid="ignore", divide="ignore"):
            mean[place] = total / count[place]
            # Points share neighbors: about one in scale / 2 of them is independent.
            error[place] = np.sqrt(
                np.maximum(squares / count[place] - mean[place] ** 2, 0) / count[place] * scales[place] / 2
            )
    found = []
    for c in range(len(names)):
        others = [_pair(c, other, sizes, scales, mean) for other in range(len(names)) if other != c]
        differences = np.array([pair for pair in others if pair is not None])
        if (
            count[-1, c] < _FEWEST
            or sizes[c] <= points.k
            or 2 * len(differences) < len(names) - 1
            or not len(differences)
        ):
            continue
        ratio = float(np.exp(np.median(differences)))
        if np.median(differences) + 2 * error[-1, c] < math.log(_CLASS):
            numbers = {"points": float(round(sizes[c])), "lid": float(np.exp(mean[-1, c])), "ratio": 1 / ratio}
            members = torch.from_numpy(of == c)
            found.append(_finding(points, "collapsed_class", "warning", members, numbers))
    return found


def _pair(own: int, other: int, sizes: Numbers, scales: Sequence[int], mean: Numbers) -> float | None:
    """Log ratio of the LID of two classes, each from the same share of its points; None: too few points."""
    wanted = [scales[-1] * min(1.0, sizes[a] / sizes[b]) for a, b in ((own, other), (other, own))]
    if min(wanted) < scales[0] / 2**0.25 or min(sizes[own], sizes[other]) <= scales[-1]:
        return None
    first, second = (int(np.argmin([abs(math.log(scale / value)) for scale in scales])) for value in wanted)
    difference = float(mean[first, own] - mean[second, other])
    return difference if math.isfinite(difference) else None


def _duplicates(points: Points, groups: Sequence[Finding]) -> list[Finding]:
    """Equal rows, and rows much nearer to each other than chance allows in this dimension.

    Dead rows and points of a collapsed group are left out, as other findings name them.
    """
    found = []
    grouped = torch.tensor([row for group in groups for row in group.rows], dtype=torch.long, device="cpu")
    reported = points.dead | torch.isin(points.rows, grouped)
    equal, of = _linked(points, torch.zeros_like(points.distances[:, 0]))
    if (exact := equal & ~reported).double().mean() >= _DUPLICATES:
        found.append(_duplicate_finding(points, "duplicates", exact, of))
    if points.k < _FEWEST:
        return found
    limit = _near_limit(points.distances, points)
    if limit is None:
        return found
    # Many neighbors that near are a dense cluster, unless they are nearer still.
    dense = (points.distances <= limit[:, None]).sum(1) >= _COPIES
    close, of = _linked(points, torch.where(dense, _DENSE * limit, limit))
    if (near := close & ~equal & ~reported).double().mean() >= _DUPLICATES:
        found.append(_duplicate_finding(points, "near_duplicates", near, of))
    return found


def _near_limit(distances: Tensor, usual: Points) -> Tensor | None:
    """For neighbor distances (n, k), the distance (n,) below which a row is a near-copy among the `usual` points.

    The nearest of k neighbors is nearer than a share of the k-th with a chance of k share^dimension. In small clusters
    the k-th is far away, so the typical distance to the nearest neighbor, k^(-1 / dimension) times that to the k-th,
    counts too. None where the dimension is not known.
    """
    dimension = usual.dimension.nanmedian().item()
    if math.isnan(dimension):
        return None
    share = min(_NEAR, (_BY_CHANCE / usual.k) ** (1 / dimension))
    typical = usual.distances[:, -1].median() * usual.k ** (-1 / dimension)
    limit: Tensor = share * distances[:, -1].clamp_max(typical)
    return limit


def find_in_reference(points: Points, reference: Points) -> tuple[Finding, ...]:
    """Findings of points whose neighbors are rows of a reference: copies of them, and points far from all of them.

    A point is far if its k-th neighbor is further than that of 99.9 % of the rows of the reference. If these are few,
    chance decides where that is: then more points have to be far.
    """
    if points.spread < _CONSTANT:
        return (Finding("complete_collapse", "critical", 1.0, {"equal": 0.0, "spread": points.spread}),)
    equal = (points.distances[:, 0] == 0).cpu()
    limit = _near_limit(points.distances, reference) if points.k >= _FEWEST else None
    near = (points.distances[:, 0] <= limit).cpu() & ~equal if limit is not None else torch.zeros_like(equal)
    edge = float(np.quantile(reference.distances[:, -1].double().cpu().numpy(), 1 - _RARE))
    far = (points.distances[:, -1].double() > edge).cpu()
    least = max(_DUPLICATES, _RARELY / len(reference.rows))
    least += _ERRORS * math.sqrt(least / len(points.rows))
    found = _degenerate(points)
    if equal.any():
        severity: Severity = "critical" if equal.double().mean() >= _DUPLICATES else "warning"
        usual = (reference.distances[:, 0] == 0).double().mean().item()
        found.append(_finding(points, "leaked", severity, equal, {"usual": usual}))
    if near.any():
        severity = "warning" if near.double().mean() >= _DUPLICATES else "note"
        found.append(_finding(points, "nearly_leaked", severity, near, {}))
    if (share := far.double().mean().item()) >= least:
        severity = "warning" if share >= _MANY_DUPLICATES else "note"
        found.append(_finding(points, "out_of_distribution", severity, far, {"edge": edge}))
    return ranked(found) or (Finding("fits_reference", "note", 0.0, {}),)


def duplicate_groups(points: Points) -> Tensor:
    """For each measured point (n,) a number that it shares with equal rows; -1: no other row is equal.

    Numbers count from 0 in the order of first rows.
    """
    equal, of = _linked(points, torch.zeros_like(points.distances[:, 0]))
    found = np.full(len(points.rows), -1)
    _, first, group = np.unique(of[points.rows[equal].numpy()], return_index=True, return_inverse=True)
    found[equal.numpy()] = np.argsort(np.argsort(first))[group]
    return torch.from_numpy(found)


def _linked(points: Points, within: Tensor) -> tuple[Tensor, Integers]:
    """Which points have a neighbor within their limit (n,), and the group of each row (N,) that such links make."""
    close = (points.distances <= within[:, None]).cpu()
    start, end = points.rows[:, None].expand_as(close)[close].numpy(), points.indices.cpu()[close].numpy()
    graph = csr_matrix((np.ones(len(start), bool), (start, end)), shape=(points.total, points.total))
    return close[:, 0], connected_components(graph, directed=False)[1]


def _duplicate_finding(points: Points, kind: Kind, having: Tensor, groups: Integers) -> Finding:
    """A finding with one row of each of the largest groups as examples."""
    rows = points.rows[having].numpy()
    _, first, counts = np.unique(groups[rows], return_index=True, return_counts=True)
    largest = np.argsort(-counts, kind="stable")[:_EXAMPLES]
    severity: Severity = "warning" if having.double().mean() >= _MANY_DUPLICATES else "note"
    numbers = {"groups": float(len(counts)), "largest": float(counts.max())}
    return _finding(points, kind, severity, having, numbers, examples=tuple(rows[first[largest]].tolist()))


def _jumps(points: Points) -> list[Finding]:
    """Neighbor distances that jump after few neighbors (copies), or later (clusters of fewer than k points)."""
    jumping, before = [], []
    rows = max(1, _BLOCK // points.k)
    for block, dimension in zip(points.distances.split(rows), points.dimension.split(rows), strict=True):
        largest, place = _spacings(block).nan_to_num(posinf=0.0).max(1)  # a jump from 0 is a duplicate
        jumping.append(largest * dimension > _JUMP)
        before.append(place + 1)
    which, neighbors = torch.cat(jumping).cpu(), torch.cat(before).cpu()
    if which.double().mean() < _JUMPING:
        return []
    middle = neighbors[which].double().median().item()
    kind: Kind = "copies" if middle < _COPIES else "small_clusters"
    return [_finding(points, kind, "note", which, {"before": middle})]


def _low_rank(points: Points) -> list[Finding]:
    most = min(points.total - 1, points.dimensions)
    if most < _FEW_DIMENSIONS or not points.effective_rank < max(_LINE, _FEW * most):
        return []
    severity: Severity = "warning" if points.effective_rank < _LINE else "note"
    return [Finding("low_rank", severity, 1.0, {"effective_rank": points.effective_rank, "most": float(most)})]


def _hubs(points: Points) -> list[Finding]:
    """Few points that are neighbors of very many; known only if all points were measured."""
    if len(points.rows) < points.total or points.total * _TOP < 1:
        return []
    counts = torch.bincount(points.indices.flatten().cpu(), minlength=points.total)
    top = max(1, round(_TOP * points.total))
    most = counts.topk(top)
    taken = most.values.sum().item() / counts.sum().item()
    if taken < _HUBS:
        return []
    which = torch.zeros(points.total, dtype=torch.bool, device="cpu")
    which[most.indices] = True
    numbers = {"taken": taken, "never": (counts == 0).double().mean().item(), "largest": float(counts.max())}
    return [_finding(points, "hubs", "note", which, numbers, examples=tuple(most.indices[:_EXAMPLES].tolist()))]


def compare(
    own: Points, other: Points, *, own_findings: Sequence[Finding], other_findings: Sequence[Finding]
) -> Finding:
    """Compare a set with another by its lower tail, rows, degenerate points, rank and findings, not by its mean.

    LID depends on the number of points, so it is compared only for sets of about as many. If both sets have the same
    rows, LID is also compared row by row. `labels` of the finding are the classes that are lower in this set.
    """
    a, b = _numbers_of(own), _numbers_of(other)
    alike = abs(math.log(own.total / other.total)) < math.log(_ALIKE)
    paired = _paired(own, other)
    fell = _fell(own, other) if paired else 0.0
    numbers = {**a, **{f"other_{name}": value for name, value in b.items()}, "fell": fell}
    mine, theirs = (
        {finding.kind for finding in one if finding.serious} & _COLLAPSES for one in (own_findings, other_findings)
    )
    if not paired:
        mine, theirs = _without_shared(mine, own_findings, other), _without_shared(theirs, other_findings, own)
    if "complete_collapse" in mine ^ theirs:
        return _compared("collapsed_beside" if "complete_collapse" in mine else "comparison_collapsed", numbers)
    comparable = own.dimensions == other.dimensions and other.effective_rank > 0
    rank = own.effective_rank / other.effective_rank if comparable else 1.0
    classes = _classes_beside(own, other) if alike else ()
    more = max((a[name] - b[name] for name in ("degenerate", "duplicates")), key=abs)
    copies, there = (sum(f.share for f in one if f.kind == "near_duplicates") for one in (own_findings, other_findings))
    by_chance = _MANY_DUPLICATES + _ERRORS * math.sqrt(max(copies, there) / min(_independent(own), _independent(other)))
    worse = more > _MORE_DEGENERATE or copies > there + by_chance or bool(mine - theirs)
    better = -more > _MORE_DEGENERATE or there > copies + by_chance or bool(theirs - mine)
    lower = rank < _LOWER_RANK or bool(classes) or fell > _FELL or (alike and _lower(own, other))
    if worse or (lower and not better):
        return _compared("collapsed_beside", numbers, classes)
    if better:
        return _compared("comparison_collapsed", numbers)
    if not alike:
        return _compared("not_compared", numbers)
    quantiles = [f"lid_{round(100 * share)}" for share in _BESIDE]
    ratios = [a[name] / b[name] for name in quantiles if b[name] > 0]
    higher = bool(ratios) and min(ratios) > _HIGHER and not any(finding.serious for finding in own_findings)
    return _compared("higher_beside" if higher else "similar_beside", numbers)


def _compared(kind: Kind, numbers: Mapping[str, float], classes: tuple[tuple[str, int], ...] = ()) -> Finding:
    severity: Severity = "critical" if kind == "collapsed_beside" else "note"
    return Finding(kind, severity, 1.0, numbers, labels=classes)


def _without_shared(kinds: set[str], found: Sequence[Finding], other: Points) -> set[str]:
    """Drop "collapsed_group" if the other set has half as many points that read as little."""
    groups = [finding for finding in found if finding.kind == "collapsed_group"]
    edge = max((math.sqrt(finding.numbers["lid"] * finding.numbers["bulk"]) for finding in groups), default=0.0)
    low = (other.dimension < edge).double().mean().item()
    shared = low > sum(finding.share for finding in groups) / 2
    return kinds - {"collapsed_group"} if shared else kinds


def _independent(points: Points) -> float:
    """How many of the points are as good as independent, as they share neighbors."""
    return 2 * len(points.rows) / points.k


def _lower(own: Points, other: Points) -> bool:
    """Whether a quantile of LID is lower than the other set's by more than chance, from every number of neighbors."""
    pairs = [(own.lid.double().cpu().numpy(), other.lid.double().cpu().numpy())]
    pairs += [(np.exp(a), np.exp(b)) for a, b in zip(_scaled(own), _scaled(other), strict=own.k == other.k)]
    pairs = [(np.nan_to_num(a, nan=0.0), np.nan_to_num(b, nan=0.0)) for a, b in pairs]
    for share, limit in _BESIDE.items():
        error = _ERRORS * math.sqrt(share * (1 - share) * (1 / _independent(own) + 1 / _independent(other)))
        if share + error < 1 and all(
            np.quantile(a, share + error, method="lower") < limit * np.quantile(b, share, method="lower")
            for a, b in pairs
        ):
            return True
    return False


def _paired(own: Points, other: Points) -> bool:
    """Whether the rows of two sets are of the same things: they share more neighbors than by chance."""
    if own.total != other.total or own.k != other.k or not torch.equal(own.rows, other.rows):
        return False
    if own.left_out is not None and other.left_out is not None and not torch.equal(own.left_out, other.left_out):
        return False
    count = min(len(own.rows), 1000)
    some = torch.arange(count, device="cpu") * len(own.rows) // count
    first, second = (some[:, None] * own.total + points.indices.cpu()[some] for points in (own, other))
    chance = own.k / own.total
    return bool(torch.isin(first, second).double().mean() >= chance + _SHARED * (1 - chance))


def _fell(own: Points, other: Points) -> float:
    """Share of the rows whose LID is lower than in the other set, less the share whose LID is higher."""
    changes = _scaled(own)[-1] - _scaled(other)[-1]
    change = _smoothed(np.where(np.isfinite(changes), changes, math.nan), own, _positions(own))
    limit = math.log(_FALL)
    return float((change < limit).mean() - (change > -limit).mean())


def _classes_beside(own: Points, other: Points) -> tuple[tuple[str, int], ...]:
    """Classes of more than k points that read far less than in the other set, lowest ratio first."""
    if own.labels is None or other.labels is None:
        return ()
    sides = [(np.asarray(points.labels), points.lid.double().cpu().numpy(), points) for points in (own, other)]
    found = []
    for label in np.intersect1d(sides[0][0], sides[1][0]):
        members = [lid[labels == label] for labels, lid, _ in sides]
        enough = all(
            len(part) * points.total > points.k * len(lid)
            for part, (_, lid, points) in zip(members, sides, strict=True)
        )
        first, second = (float(np.median(part)) for part in members)
        if enough and first < _CLASS * second:
            found.append((first / second, str(label), len(members[0])))
    return tuple((label, count) for _, label, count in sorted(found))


def lid_quantiles(lid: Tensor, shares: Sequence[float]) -> list[float]:
    """Quantiles of LID over all points; equal rows count as 0.

    >>> lid_quantiles(torch.tensor([0.0, 2.0, math.inf]), (0.5, 1.0))
    [2.0, inf]
    """
    # No interpolation, which has no result between a number and inf.
    return [float(value) for value in np.quantile(lid.double().cpu().numpy(), shares, method="lower")]


def _numbers_of(points: Points) -> dict[str, float]:
    """Quantiles of LID, shares of degenerate and duplicate points, and the effective rank."""
    quantiles = lid_quantiles(points.lid, tuple(_BESIDE))
    named = {f"lid_{round(100 * q)}": value for q, value in zip(_BESIDE, quantiles, strict=True)}
    degenerate = _without_lid(points).double().mean().item()
    duplicates = (points.distances[:, 0] == 0).double().mean().item()
    return {**named, "degenerate": degenerate, "duplicates": duplicates, "effective_rank": points.effective_rank}


def _finding(
    points: Points,
    kind: Kind,
    severity: Severity,
    members: Tensor,
    numbers: Mapping[str, float],
    *,
    examples: tuple[int, ...] = (),
) -> Finding:
    """A finding of some of the measured points, with their rows and labels."""
    members = members.cpu()
    rows = tuple(points.rows[members].tolist())
    names = [] if points.labels is None else [points.labels[i] for i in members.nonzero().flatten().tolist()]
    share = len(rows) / len(points.rows)
    return Finding(
        kind, severity, share, numbers, rows, examples or rows[:_EXAMPLES], tuple(Counter(names).most_common())
    )
