"""Findings: what is wrong with a set of embeddings, from the LID and the neighbors of its points.

Every function is pure: it takes the results of one search and returns fields. `reporting.words` makes sentences of
them. The thresholds were set on half of the sources of `benchmarks/findings.py` and judged on the other half.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_matrix, csr_matrix
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree
from torch import Tensor

from ldreg.dimension.expected import gaussian_lid
from ldreg.dimension.geometry import regular
from ldreg.record import Finding, Kind, Severity

_ORDER: tuple[Severity, ...] = ("critical", "warning", "note")

_BLOCK = 2**22  # neighbor pairs handled at a time
_EXAMPLES = 5  # rows named for a finding, or groups of duplicates

_CONSTANT = 1e-3  # spread beside norm: less is rounding noise around a constant
_ALL = 0.95  # of the points: that many equal rows are all
_DEGENERATE, _MANY_DEGENERATE = 0.01, 0.1  # of the points
_TRIM = 8  # the largest eighth of the spacings is left out: a jump in the distances is among them
_TIED = 0.6  # of the distances of a point: where more tie, they tell of steps (half do where every row is doubled)
_LOW, _LOW_NEARER = 1.8, 1.5  # times: the bulk's LID beside a collapsed group's, from k and from fewer neighbors
_LOW_MAJORITY = 2.2  # the same from k where the group is most of the points, as outliers read high
_GAP = 1.5  # times: a collapsed group stays the same while the threshold on LID rises by this factor
_GROWTH = 0.5  # of the points of the group, or of the rest if fewer: with as many more it is still the same group
_GROWTH_OF_ALL = 0.1  # of all points: the most that a group may gain
_SLACK = 0.01  # of its points: extra growth allowed when a group replaces its subgroups
_LEAST_BULK = 0.08  # of the points: fewer that read high are outliers and no bulk
_STEP = math.log(1.08)  # between two thresholds
_LEAST_GROUP, _LARGE_GROUP = 0.01, 0.05  # of the points
_LEAST_OF_K = 1.5  # times k points: fewer do not hold the neighbors of their points
_CLASS = 0.6  # times the LID of the other classes
_LEAST_K = 16  # neighbors: from fewer, chance makes groups
_FEWEST = 8  # neighbors: fewer read LID with an error above a third
_DUPLICATES, _MANY_DUPLICATES = 0.01, 0.1  # of the points
_NEAR, _BY_CHANCE = 0.3, 1e-3  # of the distance to the k-th neighbor; less where more points are so near by chance
_JUMP = 14.0  # times the mean spacing
_JUMPING = 0.3  # of the points
_COPIES = 9  # neighbors: where fewer lie before the jump they are copies of one thing
_LINE, _FEW = 1.5, 0.05  # effective rank; share of all directions
_FEW_DIMENSIONS = 8  # in fewer, a low rank says little
_HUBS, _TOP = 0.2, 0.01  # of all neighbor places, taken by this share of the points
_ALIKE = 1.1  # times as many points
_BESIDE = {0.05: 0.6, 0.25: 0.75, 0.5: 0.75}  # quantiles of LID, and times the other set's that count as lower
_HIGHER = 1.25  # times the other set's quantiles
_LOWER_RANK = 0.6  # times the other set's effective rank, which differs more between sound encoders
_MORE_DEGENERATE = 0.02  # of the points: that many more without a LID, or with an exact duplicate


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
        scale: root-mean-square distance to the mean.
        dead: (n,) whether all entries of a measured point are 0; None: none is known.
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
    scale: float = 0.0
    dead: Tensor | None = None
    labels: Sequence[str] | None = None

    @property
    def k(self) -> int:
        """Neighbors of each point."""
        return self.distances.shape[1]


def find(points: Points) -> tuple[Finding, ...]:
    """All findings of a set, the most serious first, or one of the kind "nothing_unusual"."""
    collapse = _complete_collapse(points)
    if collapse is not None:
        return (collapse,)
    groups = _groups(points) if points.k >= _LEAST_K else []
    found = [*_degenerate(points), *groups, *_duplicates(points, groups)]
    if points.k >= _FEWEST:
        found += _classes(points)
        if not groups:  # from outside, a collapsed group is a jump in the distances too
            found += _jumps(points)
    return ranked([*found, *_low_rank(points), *_hubs(points)]) or (Finding("nothing_unusual", "note", 0.0, {}),)


def ranked(found: Sequence[Finding]) -> tuple[Finding, ...]:
    """The most serious first, and of equally serious ones that of the larger share.

    That nothing unusual was found is left out where there is something else to say.
    """
    found = [finding for finding in found if finding.kind != "nothing_unusual" or len(found) == 1]
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
    without = _without_lid(points)
    share = without.double().mean().item()
    if share < _DEGENERATE:
        return []
    severity: Severity = "critical" if share >= _MANY_DEGENERATE else "warning"
    counted = {"zero": points.lid == 0, "infinite": points.lid.isinf(), "dead": _dead(points), "noise": _noise(points)}
    numbers = {name: float(which.sum()) for name, which in counted.items()}
    return [_finding(points, "degenerate", severity, without, numbers)]


def _without_lid(points: Points) -> Tensor:
    """Which points (n,) have no LID, or none that means anything: dead ones, all zeros, and those in noise."""
    return (~regular(points.lid)).cpu() | _dead(points) | _noise(points)


def _noise(points: Points) -> Tensor:
    """Which points (n,) have k neighbors that differ by rounding noise only, though they have 3 dimensions or more.

    In one or two dimensions, the neighbors among very many points are as near by nature.
    """
    if points.k < _FEWEST:
        return torch.zeros(len(points.rows), dtype=torch.bool, device="cpu")
    last = points.distances[:, -1]
    return ((last > 0) & (last < _CONSTANT * points.scale) & (local_dimension(points.distances) >= 3)).cpu()


def _dead(points: Points) -> Tensor:
    return torch.zeros(len(points.rows), dtype=torch.bool, device="cpu") if points.dead is None else points.dead.cpu()


def local_dimension(distances: Tensor, k: int | None = None) -> Tensor:
    """A LID (n,) for each row of neighbor distances (n, K) that a jump among the first k does not lower; NaN: none.

    In a neighborhood of d dimensions j ln(r(j+1) / r(j)) is exponential with mean 1/d for every j (Rényi). Where a
    cluster ends before the k-th neighbor one of them is very large, and LID by any mean is low. The largest eighth is
    left out, and the mean of the rest is divided by what it is for an exponential. There is none where most distances
    tie, as on a grid or around dead rows.

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


def _groups(points: Points) -> list[Finding]:
    """Connected groups of points whose LID is far below the bulk's."""
    n, k = len(points.rows), points.k
    place = torch.full((points.total,), -1, dtype=torch.long, device="cpu")
    place[points.rows.cpu()] = torch.arange(n, device="cpu")
    indices = place[points.indices.cpu()]  # of measured points; -1: not measured
    scales = sorted({min(k, max(_FEWEST, scale)) for scale in (k // 4, k // 2, k)})
    readings = np.stack([local_dimension(points.distances, scale).log().cpu().numpy() for scale in scales])
    known = np.isfinite(readings).all(0)
    height = _height(torch.from_numpy(np.where(known, readings[-1], math.nan)), indices).numpy()
    least = math.ceil(max(_LEAST_OF_K * k * n / points.total, _LEAST_GROUP * n))
    if known.sum() < 2 * least:
        return []
    near = min(k, math.ceil(max(_FEWEST, k / 4) * points.total / n))  # of whom a sample measures a part
    tree = _tree(height, indices[:, :near].numpy())
    low = _low(_basins(height, tree, least), readings, known, math.log(_most(points)))
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
            _finding(
                points,
                "collapsed_group",
                "critical" if share >= _LARGE_GROUP else "warning",
                torch.from_numpy(group),
                {"points": float(group.sum()), "lid": lid, "bulk": others},
                examples=_middle(points, torch.from_numpy(group), indices),
            )
        )
    return found


def _most(points: Points) -> float:
    """The LID that a Gaussian of all dimensions reads. Outliers read more, and wrongly so."""
    most = min(points.dimensions, points.total - 1)
    return gaussian_lid(most, points.k, points.total) or float(most)


def _low(
    groups: Sequence[NDArray[np.bool_]], readings: NDArray[np.float64], known: NDArray[np.bool_], most: float
) -> NDArray[np.bool_] | None:
    """The points of those disjoint groups that are collapsed: the lowest, where all read far less than the rest.

    The rest counts with no more than `most`, the logarithm of a LID.
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
        bulk = np.minimum(np.median(readings[:, rest], axis=1), most)
        # From fewer neighbors too: a small group reads low only at the largest k.
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
    size = max(1, _BLOCK // indices.shape[1])
    for mine, block in zip(own.split(size), indices.split(size), strict=True):
        near = torch.where(block >= 0, own[block.clamp_min(0)], math.nan)
        parts.append(torch.cat([mine[:, None], near], 1).nanmean(1))
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


def _scales(k: int) -> list[int]:
    """Numbers of neighbors from 8 to k, in steps of a square root of two."""
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


def _duplicates(points: Points, groups: Sequence[Finding]) -> list[Finding]:
    """Sets of equal rows, and of rows much nearer to each other than k neighbors of this dimension are by chance.

    Dead rows and points in a collapsed group are reported by those findings.
    """
    found = []
    grouped = torch.tensor([row for group in groups for row in group.rows], dtype=torch.long, device="cpu")
    told = _dead(points) | torch.isin(points.rows.cpu(), grouped)
    equal, of = _linked(points, torch.zeros_like(points.distances[:, 0]))
    if (exact := equal & ~told).double().mean() >= _DUPLICATES:
        found.append(_duplicate_finding(points, "duplicates", exact, of))
    if points.k < _FEWEST:
        return found
    dimension = local_dimension(points.distances).nanmedian().item()
    if math.isnan(dimension):
        return found
    # The nearest of k neighbors is nearer than this share of the k-th with a chance of k share^dimension. In small
    # clusters the k-th is far away, so the typical distance to the nearest neighbor counts too: where there are no
    # copies, that is k^(-1 / dimension) times the distance to the k-th.
    share = min(_NEAR, (_BY_CHANCE / points.k) ** (1 / dimension))
    typical = points.distances[:, -1].median() * points.k ** (-1 / dimension)
    close, of = _linked(points, share * points.distances[:, -1].clamp_max(typical))
    if (near := close & ~equal & ~told).double().mean() >= _DUPLICATES:
        found.append(_duplicate_finding(points, "near_duplicates", near, of))
    return found


def _linked(points: Points, within: Tensor) -> tuple[Tensor, NDArray[np.int64]]:
    """Which points have a neighbor within so much (n,) of them, and the number of the group of each row (N,)."""
    close = points.distances <= within[:, None].to(points.distances.device)
    start = points.rows[:, None].expand_as(close)[close].cpu().numpy()
    end = points.indices[close].cpu().numpy()
    graph = csr_matrix((np.ones(len(start), bool), (start, end)), shape=(points.total, points.total))
    return close[:, 0].cpu(), connected_components(graph, directed=False)[1]


def _duplicate_finding(points: Points, kind: Kind, having: Tensor, groups: NDArray[np.int64]) -> Finding:
    """One finding, whose examples are a row of each of the largest groups."""
    rows = points.rows.cpu()[having].numpy()
    _, first, counts = np.unique(groups[rows], return_index=True, return_counts=True)
    largest = np.argsort(-counts, kind="stable")[:_EXAMPLES]
    severity: Severity = "warning" if having.double().mean() >= _MANY_DUPLICATES else "note"
    numbers = {"groups": float(len(counts)), "largest": float(counts.max())}
    return _finding(points, kind, severity, having, numbers, examples=tuple(rows[first[largest]].tolist()))


def _jumps(points: Points) -> list[Finding]:
    """Neighbor distances that jump: after few neighbors where points are copies, else where k is beyond clusters."""
    jumping, before = [], []
    for block in torch.split(points.distances, max(1, _BLOCK // points.k)):
        largest, place = _spacings(block).nan_to_num(posinf=0.0).max(1)  # from an exact duplicate on there is no jump
        jumping.append(largest * local_dimension(block) > _JUMP)
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
    """Few points that are neighbors of very many, seen where all points were measured."""
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


def compare(own: Points, other: Points, found: Sequence[Finding], others: Sequence[Finding]) -> Finding:
    """How a set compares with another, by its lower tail, degenerate points, rank and findings, not by its mean.

    A set with a collapse among its findings that the other has not is collapsed beside it, whatever its LID. LID
    depends on the number of points, so sets of unlike size are compared by the rest. `labels` are the classes that
    are collapsed beside themselves, where both sets have labels.
    """
    a, b = _numbers_of(own), _numbers_of(other)
    numbers = {**a, **{f"other_{name}": value for name, value in b.items()}}
    mine, theirs = ({finding.kind for finding in serious(one)} & _COLLAPSES for one in (found, others))
    if "complete_collapse" in mine ^ theirs:
        return _compared("collapsed_beside" if "complete_collapse" in mine else "comparison_collapsed", numbers)
    alike = abs(math.log(own.total / other.total)) < math.log(_ALIKE)
    pairs = [(a[name] / b[name], limit) for name, limit in zip(a, _BESIDE.values(), strict=False) if b[name] > 0]
    pairs = pairs if alike else []
    comparable = own.dimensions == other.dimensions and other.effective_rank > 0
    rank = own.effective_rank / other.effective_rank if comparable else 1.0
    classes = _classes_beside(own, other) if alike else ()
    more = max((a[name] - b[name] for name in ("degenerate", "duplicates")), key=abs)
    copies = sum(sign * f.share for sign, one in ((1, found), (-1, others)) for f in one if f.kind == "near_duplicates")
    worse = more > _MORE_DEGENERATE or copies > _MANY_DUPLICATES or bool(mine - theirs)
    better = -more > _MORE_DEGENERATE or -copies > _MANY_DUPLICATES or bool(theirs - mine)
    lower = rank < _LOWER_RANK or any(ratio < limit for ratio, limit in pairs) or bool(classes)
    if worse or (lower and not better):
        return _compared("collapsed_beside", numbers, classes)
    if better:
        return _compared("comparison_collapsed", numbers)
    if not alike:
        return _compared("not_compared", numbers)
    higher = bool(pairs) and min(ratio for ratio, _ in pairs) > _HIGHER and not serious(found)
    return _compared("higher_beside" if higher else "similar_beside", numbers)


def _compared(kind: Kind, numbers: Mapping[str, float], classes: tuple[tuple[str, int], ...] = ()) -> Finding:
    severity: Severity = "critical" if kind == "collapsed_beside" else "note"
    return Finding(kind, severity, 1.0, numbers, labels=classes)


_COLLAPSES = {"complete_collapse", "degenerate", "collapsed_group", "collapsed_class", "low_rank", "duplicates"}


def _classes_beside(own: Points, other: Points) -> tuple[tuple[str, int], ...]:
    """Classes of more than k points that read far less than the same class of the other set, lowest ratio first."""
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
    """Quantiles of LID over all points, at 0 where rows coincide.

    >>> lid_quantiles(torch.tensor([0.0, 2.0, math.inf]), (0.5, 1.0))
    [2.0, inf]
    """
    # A value that is there: between two, inf would have no sum with a number.
    return [float(value) for value in np.quantile(lid.double().cpu().numpy(), shares, method="lower")]


def _numbers_of(points: Points) -> dict[str, float]:
    """Quantiles of LID, with points that coincide at 0, the shares of degenerate and duplicate points, and the rank."""
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
    rows = tuple(points.rows.cpu()[members].tolist())
    names = [] if points.labels is None else [points.labels[i] for i in members.nonzero().flatten().tolist()]
    share = len(rows) / len(points.rows)
    return Finding(
        kind, severity, share, numbers, rows, examples or rows[:_EXAMPLES], tuple(Counter(names).most_common())
    )
