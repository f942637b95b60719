"""Findings in sentences: one for each kind, made from its fields."""

from collections.abc import Callable

from ldreg.inspection.report import DimensionReport
from ldreg.record import Finding
from ldreg.text import count, number, percent, printable

# Which number to use for what: once in every report.
USES = (
    "Higher LID is not better in itself: noise raises it. Compare sets of as many points at the same k. Use the 5 % "
    "quantile of LID to see a part collapse, its geometric mean for neighborhoods as a whole, effective rank for how "
    "many directions the whole set uses, RankMe where papers report it, TwoNN for a global dimension below 20 and "
    "DANCo above."
)

_NAMED = 5  # classes
_MENTIONED = 0.01  # of the rows of both sets
_DOMINANT = 0.5  # of a group's points: the label of so many describes it


def sentence(finding: Finding, report: DimensionReport) -> str:
    """A finding with its numbers, as a sentence."""
    return _SENTENCES[finding.kind](finding, report)


def _complete_collapse(found: Finding, report: DimensionReport) -> str:
    if found.numbers["equal"] > 0.5:
        return f"Complete collapse: {percent(found.numbers['equal'])} of the points have {report.k} equal rows."
    spread = number(found.numbers["spread"])
    return f"Complete collapse: all rows are one constant plus noise. They spread by {spread} of their norm."


def _degenerate(found: Finding, report: DimensionReport) -> str:
    zero, infinite, dead, noise = (round(found.numbers[name]) for name in ("zero", "infinite", "dead", "noise"))
    reasons = [
        f"{count(zero)} coincide with their neighbors" if zero else "",
        f"{count(dead)} are all zeros" if dead else "",
        f"{count(noise)} differ from their neighbors by noise only" if noise else "",
        f"{count(infinite)} have {report.k} neighbors at one distance" if infinite else "",
    ]
    rest = percent(1 - found.share)
    limit = f"All other numbers are of the remaining {rest}" + (
        ", and say nothing of the whole set." if found.severity == "critical" else "."
    )
    return f"{percent(found.share)} of the points are degenerate: {', '.join(filter(None, reasons))}. {limit}"


def _group(found: Finding, report: DimensionReport) -> str:
    lid, bulk = number(found.numbers["lid"]), number(found.numbers["bulk"])
    size = f"{count(len(found.rows))} points ({percent(found.share)})"
    return f"A group of {size} is collapsed: LID {lid}, the other points read {bulk}.{_named(found)}"


def _class(found: Finding, report: DimensionReport) -> str:
    name = printable(found.labels[0][0])
    ratio = f"{found.numbers['ratio']:.1f}"
    return (
        f"Class {name} ({percent(found.share)} of the points) is collapsed: LID {number(found.numbers['lid'])}, "
        f"{ratio} times lower than that of other classes when each is read at the same share of its points."
    )


def _duplicates(found: Finding, report: DimensionReport) -> str:
    what = "an exact duplicate" if found.kind == "duplicates" else "a near-copy"
    groups, largest = (count(round(found.numbers[name])) for name in ("groups", "largest"))
    return (
        f"{percent(found.share)} of the points have {what}, in {groups} groups of up to {largest} "
        f"({_rows(found)}). LID reads low there; measure again with one of each."
    )


def _jump(found: Finding, report: DimensionReport) -> str:
    before = round(found.numbers["before"])
    text = f"Around {percent(found.share)} of the points the distances jump after {before} of the {report.k} neighbors"
    if found.kind == "copies":
        return f"{text}: the rows hold copies or views of the same things. Measure with one of each."
    smaller = next((k for k in (64, 32, 16, 8) if k < before), 8)
    return f"{text}: clusters have fewer than {report.k} points. Measure with a smaller k, such as {smaller}."


def _low_rank(found: Finding, report: DimensionReport) -> str:
    rank, most = number(found.numbers["effective_rank"]), count(round(found.numbers["most"]))
    return f"The set as a whole uses few directions: effective rank {rank} of {most}."


def _hubs(found: Finding, report: DimensionReport) -> str:
    taken, never = percent(found.numbers["taken"]), percent(found.numbers["never"])
    return (
        f"{count(len(found.rows))} hubs take {taken} of all neighbor places ({_rows(found)}); "
        f"{never} of the points are nobody's neighbor."
    )


def _beside(found: Finding, report: DimensionReport) -> str:
    title = "the other set" if report.comparison is None else printable(report.comparison.other.title)
    if found.kind == "not_compared":
        points = "another number of" if report.comparison is None else count(report.comparison.other.points)
        return f"Not compared with {title}: it has {points} points, and LID depends on their number."
    lead = {
        "collapsed_beside": f"Collapsed beside {title}",
        "comparison_collapsed": f"The other set, {title}, is collapsed beside this one",
        "higher_beside": f"LID is higher than in {title}",
        "similar_beside": f"Similar to {title}",
    }[found.kind]
    names = {"lid_5": "5 % quantile of LID", "lid_50": "median LID", "effective_rank": "effective rank"}
    pairs = [
        f"{shown} {number(found.numbers[name])} (there {number(found.numbers[f'other_{name}'])})"
        for name, shown in names.items()
    ]
    shares = [percent(found.numbers[name]) for name in ("degenerate", "other_degenerate")]
    if any(found.numbers[name] > 0 for name in ("degenerate", "other_degenerate")):
        pairs.append(f"degenerate points {shares[0]} (there {shares[1]})")
    text = f"{lead}: {', '.join(pairs)}."
    if found.kind == "collapsed_beside" and found.numbers.get("fell", 0.0) >= _MENTIONED:
        text += (
            f" The LID of {percent(found.numbers['fell'])} of the rows, net of those that rose, is at least 30 % lower."
        )
    if not found.labels:
        return text
    named = ", ".join(printable(label) for label, _ in found.labels[:_NAMED])
    more = f" and {count(len(found.labels) - _NAMED)} more" if len(found.labels) > _NAMED else ""
    return f"{text} Classes that read far less than there: {named}{more}."


def _nothing(found: Finding, report: DimensionReport) -> str:
    return "Nothing unusual found. A single set cannot tell more: compare with one that you trust."


_SENTENCES: dict[str, Callable[[Finding, DimensionReport], str]] = {
    "complete_collapse": _complete_collapse,
    "degenerate": _degenerate,
    "collapsed_group": _group,
    "collapsed_class": _class,
    "duplicates": _duplicates,
    "near_duplicates": _duplicates,
    "copies": _jump,
    "small_clusters": _jump,
    "low_rank": _low_rank,
    "hubs": _hubs,
    "collapsed_beside": _beside,
    "comparison_collapsed": _beside,
    "higher_beside": _beside,
    "similar_beside": _beside,
    "not_compared": _beside,
    "nothing_unusual": _nothing,
}


def _named(found: Finding) -> str:
    """The rows in the middle of a group, and the labels that it is made of."""
    text = f" In its middle: {_rows(found)}."
    if not found.labels:
        return text
    label, points = found.labels[0]
    if points >= _DOMINANT * len(found.rows):
        return f"{text} {percent(points / len(found.rows))} of it is class {printable(label)}."
    return f"{text} It has points of {count(len(found.labels))} classes."


def _rows(found: Finding) -> str:
    rows = ", ".join(str(row) for row in found.examples)
    return f"{'row' if len(found.examples) == 1 else 'rows'} {rows}"
