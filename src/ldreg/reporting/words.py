"""What the numbers of a report mean, in sentences."""

import math
from collections.abc import Callable, Sequence

from ldreg.reporting.record import ClassLID, DimensionReport, Doubt, Guidance
from ldreg.reporting.text import count, number, percent, printable

_BIASED = 15.0  # from here on a finite set reads LID low by a tenth and more
_SHAPED = 1.1  # times all coordinates: more directions than these cannot be, whatever chance does
_NAMED = 3  # classes
_DUPLICATES = 0.05  # of the points: as many may explain a low LID
# Of all directions that there can be: a lower effective rank is worth a word. Of encoders of digits sound ones have
# 0.12 and more, collapsed ones 0.01 to 0.08; on other images some sound ones have less (docs/guidance.md), so it is
# told as a number, not as a fault.
_UNFILLED = 0.1
_NEAR = 0.25  # of the points: more neighbors are no longer near
_CLUSTER = 9  # neighbors: where fewer lie before a jump they are called copies
_TIED = 0.1  # of the points

_VERDICTS = {
    "lower": (
        "LID is lower than usual: {lid}, where Gaussian points with the same covariance read {usual}. Near a point the "
        "embeddings vary in fewer directions than as a whole. Curved surfaces, clusters, skewed values and sound "
        "encoders read like this, and so does local collapse."
    ),
    "usual": (
        "LID is as usual: {lid}, where Gaussian points with the same covariance read {usual}. Near a point the "
        "embeddings vary in as many directions as their covariance has."
    ),
    "higher": (
        "LID is higher than usual: {lid}, where Gaussian points with the same covariance read {usual}. Distant "
        "clusters, a few wide directions or outliers rule the covariance, and would hide a local collapse: measure "
        "without them, or class by class."
    ),
}


_COMPARE = "To tell which it is, compare with embeddings of the same data that you trust."
_BESIDE = {
    "collapse": "Local collapse beside {title}: LID {lid}, where that reads {other}.",
    "lower": "LID is lower than that of {title}: {lid}, where that reads {other}.",
    "similar": "LID is much like that of {title}: {lid}, where that reads {other}.",
    "higher": "LID is higher than that of {title}: {lid}, where that reads {other}.",
}


_REASSURING = ("usual", "similar", "higher")


def sentences(report: DimensionReport) -> list[str]:
    """All of them, the verdict first."""
    return [part for part in (headline(report), *details(report)) if part]


def headline(report: DimensionReport) -> str:
    """What a comparison tells, else whether LID is what is usual, or why that is left open; empty where unknown.

    Where that reassures and classes are collapsed, they are named, as a mean over all points hardly shows them.
    """
    told = _beside(report) if _judged(report) else _alone(report)
    other = report.comparison
    verdict = other.verdict if other is not None and _judged(report) else report.guidance.verdict
    names = _collapsed_classes(report) if verdict in _REASSURING else []
    if not names:
        return told
    return f"{told} But {'class' if len(names) == 1 else 'classes'} {_several(names)} {_is(names)} collapsed."


def _collapsed_classes(report: DimensionReport) -> list[str]:
    """The classes that details call collapsed, in their order."""
    beside = () if report.comparison is None else report.comparison.collapsed_classes
    low = {row.label for row in (*report.guidance.collapsed_classes, *beside)}
    return [printable(row.label) for row in report.classes if row.label in low or _coincides(row)]


def _coincides(row: ClassLID) -> bool:
    """Whether most of a class's points have at least k exact duplicates."""
    return 2 * row.coinciding > row.count


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _judged(report: DimensionReport) -> bool:
    """Whether there is a verdict by a comparison, which tells more than one by the covariance."""
    other = report.comparison
    return other is not None and other.verdict is not None and not math.isnan(report.mean.value)


def _alone(report: DimensionReport) -> str:
    """Whether LID is what is usual, or why that is left open; empty where it is not known."""
    found = report.guidance
    if _coincide(report):
        return f"Complete collapse: all {count(report.points)} representations coincide, so none has a defined LID."
    if math.isnan(report.mean.value):
        return ""
    if found.doubt:
        return _DOUBTS[found.doubt](report)
    if found.verdict is None:
        return ""
    told = _VERDICTS[found.verdict].format(lid=number(report.mean.value), usual=number(found.usual))
    alone = found.verdict == "lower" and report.comparison is None
    return f"{told} {_COMPARE}" if alone else told


def details(report: DimensionReport) -> list[str]:
    """How many directions that is, which classes are collapsed, and what to be careful about."""
    directions = [] if report.guidance.doubt and not math.isnan(report.mean.value) else [_directions(report)]
    second = _alone(report) if _judged(report) else _beside(report)
    classes = (
        *_coinciding(report), *_classes(report.guidance), *_classes_beside(report), *_classes_apart(report)
    )  # fmt: skip
    unjudged = (*_unjudged(report), *_unjudged_beside(report))
    parts = (second, *_unfilled(report), *directions, *classes, *unjudged, *_caveats(report))
    return [part for part in parts if part]


def _beside(report: DimensionReport) -> str:
    """What the comparison tells; empty without one."""
    found = report.comparison
    if found is None:
        return ""
    title = printable(found.other.title)
    if _coincide(report):
        return _not_so(title, found.other)
    if math.isnan(report.mean.value):
        return ""
    if _coincide(found.other):
        return f"{title} is a complete collapse: all {count(found.other.points)} representations there coincide."
    if found.verdict is None:
        return f"LID cannot be judged by that of {title}: {found.doubt}." if found.doubt else ""
    lid, other = number(report.mean.value), number(found.other.mean.value)
    return _BESIDE[found.verdict].format(title=title, lid=lid, other=other)


def _coincide(report: DimensionReport) -> bool:
    """Whether all rows are the same."""
    return report.guidance.distinct == 1


def _not_so(title: str, other: DimensionReport) -> str:
    """Whether the other set is a complete collapse, too."""
    if _coincide(other):
        return f"So it is in {title}."
    lid = "no point has a defined LID either" if math.isnan(other.mean.value) else f"LID {number(other.mean.value)}"
    return f"In {title} they do not: {lid}, effective rank {number(other.effective_rank)}."


def _duplicates(report: DimensionReport) -> str:
    usual = "" if report.guidance.usual is None else f" where {number(report.guidance.usual)} is usual"
    return (
        f"{_points(report.duplicated)} an exact duplicate, of {count(report.measured)} measured: LID reads low there, "
        "without any geometry. Measure again without duplicates before you judge LID "
        f"{number(report.mean.value)}{usual}."
    )


def _jump(report: DimensionReport) -> str:
    found, before = report.guidance, report.guidance.jump or 0
    cause = "copies" if before < _CLUSTER else "small clusters"
    smaller = next((k for k in (32, 16, 8) if k < min(before, report.k)), None)
    advice = "with one of each" if smaller is None else f"with a smaller k, such as {smaller}"
    parts = [
        f"LID {number(report.mean.value)} where {number(found.usual)} is usual, but that may be no collapse: around "
        f"many points the distances to neighbors jump, mostly after {before} of the {report.k}. k = {report.k} reaches "
        f"beyond {cause}, or scales differ; measure again {advice}."
    ]
    if (nearest := report.twonn.value) and nearest > 2 * (found.gaussian_dimension or report.mean.value):
        parts.append(f"The nearest neighbors alone (TwoNN {number(nearest)}) speak for far more directions.")
    sizes = sorted(row.count for row in report.classes)
    if sizes and report.measured == report.points and sizes[len(sizes) // 2] <= report.k:
        parts.append(f"The median class has {count(sizes[len(sizes) // 2])} points, no more than k.")
    return " ".join(parts)


_DOUBTS: dict[Doubt, Callable[[DimensionReport], str]] = {"duplicates": _duplicates, "jump": _jump}


def _unfilled(report: DimensionReport) -> list[str]:
    """That the set as a whole is in few directions, which LID beside its own covariance cannot show."""
    most = min(report.points - 1, report.dimensions)
    if report.guidance.verdict is None or report.effective_rank > _UNFILLED * most:
        return []
    rank = number(report.effective_rank)
    return [f"As a whole they fill few directions: the effective rank of their covariance is {rank} of {count(most)}."]


def _directions(report: DimensionReport) -> str:
    if math.isnan(report.mean.value):
        return "" if _coincide(report) else _undefined(report)
    dimension, most = report.guidance.gaussian_dimension, report.dimensions
    if dimension is None:
        return _directions_uncorrected(report)
    lid, filled = number(report.mean.value), number(report.guidance.filled)
    among = f"with k = {report.k} among {count(report.points)} points"
    quarter = f"A quarter of the points read below {number(report.quartiles[0])}."
    if dimension > _SHAPED * most:
        return (
            f"LID {lid} is more than the {filled} that a Gaussian of {_all(most)} reads {among}: it tells of a shell "
            f"or of scales that differ, not of more directions. {quarter}"
        )
    if dimension >= most or _rounded(dimension) == _rounded(most):
        vary = "varies" if most == 1 else "vary"
        return (
            f"Around a typical point {_all(most)} {vary}: a Gaussian of as many dimensions reads LID {filled} {among}. "
            f"{quarter}"
        )
    whole = "" if report.guidance.filled is None else f", one of {count(most)} dimensions {filled}"
    return (
        f"Around a typical point there are about {_rounded(dimension)} independent directions, of {count(most)} "
        f"coordinates: {among}, a Gaussian of {_rounded(dimension)} dimensions reads LID {lid}{whole}. {quarter}"
    )


def _undefined(report: DimensionReport) -> str:
    """Why no point has a LID."""
    reason = f"{count(report.zero)} have too many exact duplicates, {count(report.infinite)} neighbors equally far"
    if report.infinite == 0:
        alone = report.estimator == "mle" and not (report.kth_distance == 0).all()
        enough = "an exact duplicate, and for mle one is enough" if alone else "k or more exact duplicates"
        reason = f"every point has {enough} (k = {report.k})"
    elif report.zero == 0:
        reason = f"the {report.k} neighbors of every point are equally far"
    distinct = report.guidance.distinct
    rows = "" if distinct is None else f"; of {count(report.points)} rows {count(distinct)} are distinct"
    return f"None of the {count(report.measured)} measured points has a defined LID: {reason}{rows}."


def _directions_uncorrected(report: DimensionReport) -> str:
    if report.guidance.usual is not None:  # the caveats say why there is no dimension
        return ""
    if report.k > _NEAR * report.points:
        return (
            f"LID reads {number(report.mean.value)}, which tells of no directions: {report.k} neighbors of "
            f"{count(report.points)} points are not near."
        )
    if report.mean.value > report.dimensions:
        return (
            f"LID reads {number(report.mean.value)}, more than the {_coordinates(report.dimensions)} that there "
            f"{'is' if report.dimensions == 1 else 'are'}: k or the number of points is too small to tell."
        )
    low, median, _ = report.quartiles
    return (
        f"Around a typical point these embeddings vary in about {number(median)} independent directions (median LID), "
        f"of {_coordinates(report.dimensions)}; a quarter of the points read below {number(low)}."
    )


def _classes_beside(report: DimensionReport) -> list[str]:
    """Which classes are collapsed beside themselves in the set compared with."""
    found = report.comparison
    if found is None or not found.collapsed_classes:
        return []
    title, rows = printable(found.other.title), found.collapsed_classes
    named = [f"{printable(row.label)} (LID {number(row.mean.value)}, there {number(row.others)})" for row in rows]
    if len(rows) == 1:
        return [f"Class {named[0]} is collapsed beside the same class of {title}."]
    return [f"Classes {_several(named)} are collapsed beside the same classes of {title}."]


def _classes_apart(report: DimensionReport) -> list[str]:
    """Which classes have no other to be compared with, where both sets have labels."""
    if report.comparison is None or not (report.classes and report.comparison.other.classes):
        return []
    own, other = ([row.label for row in one.classes] for one in (report, report.comparison.other))
    common = {*own} & {*other}
    mine, theirs = ([printable(name) for name in names if name not in common] for names in (own, other))
    if not common:
        return [f"No class is compared, as none is in both sets: {_several(mine)} here, {_several(theirs)} there."]
    alone = mine + theirs
    if not alone:
        return []
    told = "Class {} is" if len(alone) == 1 else "Classes {} are"
    return [f"{told.format(_several(alone))} measured in one set alone and not compared."]


def _several(names: Sequence[str]) -> str:
    """A few names, and how many more there are.

    >>> _several("a"), _several("ab"), _several("abc"), _several("abcde")
    ('a', 'a and b', 'a, b and c', 'a, b, c and 2 more')
    """
    first = list(names[:_NAMED])
    last = f"{count(len(names) - _NAMED)} more" if len(names) > _NAMED else first.pop()
    return f"{', '.join(first)} and {last}" if first else last


def _coinciding(report: DimensionReport) -> list[str]:
    """Which classes have coinciding points for the most part, where not all points of the set have."""
    rows = [row for row in report.classes if _coincides(row)]
    if not rows or math.isnan(report.mean.value):
        return []
    named = _several([f"{printable(row.label)} ({count(row.coinciding)} of {count(row.count)} points)" for row in rows])
    told = f"Class {named} is" if len(rows) == 1 else f"Classes {named} are"
    return [f"{told} collapsed completely: there points have {report.k} or more exact duplicates, and no LID."]


def _classes(found: Guidance) -> list[str]:
    rows = found.collapsed_classes
    if not rows:
        return []
    others = number(rows[0].others)
    if len(rows) == 1:
        lid = number(rows[0].mean.value)
        label = printable(rows[0].label)
        return [f"Class {label} is collapsed beside the others: LID {lid} where {others} is their median."]
    named = _several([f"{printable(row.label)} ({number(row.mean.value)})" for row in rows])
    return [f"Classes {named} are collapsed beside the others, whose median LID is {others}."]


def _unjudged(report: DimensionReport) -> list[str]:
    """Which classes are not judged beside the others."""
    if len(report.classes) < 2 or math.isnan(report.mean.value):
        return []
    if report.guidance.doubt == "jump":  # of which it is said what k to take
        return [f"For the same reason none of the {count(len(report.classes))} classes is judged beside the others."]
    return _too_small(report, [row.points for row in report.guidance.small_classes], "not judged")


def _unjudged_beside(report: DimensionReport) -> list[str]:
    """Which classes are not judged beside themselves, as they are too small in the other set alone."""
    found = report.comparison
    if found is None or found.verdict is None:
        return []
    judged = {row.label for row in report.classes} - {row.label for row in report.guidance.small_classes}
    small = [row.points for row in found.other.guidance.small_classes if row.label in judged]
    same = f"the same {'class' if len(small) == 1 else 'classes'} of {printable(found.other.title)}"
    return _too_small(report, small, f"not judged beside {same}", "there ")


def _too_small(report: DimensionReport, sizes: Sequence[int], what: str, where: str = "") -> list[str]:
    """That classes of these sizes, where there are any, have no more than k points."""
    if not sizes:
        return []
    some = f"{count(len(sizes))} of {count(len(report.classes))} classes"
    told = f"{some} is {what}: {where}it has" if len(sizes) == 1 else f"{some} are {what}: {where}they have"
    least, most = min(sizes), max(sizes)
    points = "1 point" if most == 1 else f"{'' if least == most else f'{count(least)} to '}{count(most)} points"
    return [f"{told} {points}, and k = {report.k} reaches beyond; k has to be below that to judge."]


def _caveats(report: DimensionReport) -> list[str]:
    found, parts = report.guidance, []
    if found.gaussian_dimension is None and report.quartiles[1] > _BIASED:
        parts.append("Dimensions this high read low; compare only sets of as many points at the same k.")
    if found.note and not math.isnan(report.mean.value):
        unknown = "What LID is usual cannot be told" if found.usual is None else "No Gaussian dimension is given"
        parts.append(f"{unknown}: {found.note}.")
    if 0 < report.degenerate < report.measured:
        share = percent(report.degenerate_share)
        parts.append(f"{_points(report.degenerate)} no defined LID and are left out ({share}).")
    if found.tied > _TIED:
        parts.append(
            f"Of {percent(found.tied)} of the points most neighbors tie in distance, as on a grid or with few bits: "
            "LID tells of the steps there."
        )
    if report.duplicated and not math.isnan(report.mean.value) and found.doubt != "duplicates":
        many = found.verdict == "lower" and report.duplicated > _DUPLICATES * report.measured
        advice = "; measure again without duplicates before you judge" if many else ""
        parts.append(f"{_points(report.duplicated)} an exact duplicate, where LID reads low{advice}.")
    return parts


def _rounded(dimension: float) -> str:
    return f"{dimension:.1f}" if dimension < 9.95 else f"{dimension:.0f}"


def _coordinates(number_of: int) -> str:
    return "1 coordinate" if number_of == 1 else f"{count(number_of)} coordinates"


def _all(number_of: int) -> str:
    return "the one coordinate" if number_of == 1 else f"all {count(number_of)} coordinates"


def _points(number_of: int) -> str:
    return f"{count(number_of)} {'point has' if number_of == 1 else 'points have'}"
