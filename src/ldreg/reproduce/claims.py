"""What came of the paper's claims that no table cell shows: trends, who is highest, that something has no effect."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ldreg.record import Record
from ldreg.report.tables import Mark
from ldreg.reproduce import search
from ldreg.reproduce.statistics import TRAIN_LID, Sample, Section, difference, noise, sample, value_of
from ldreg.reproduce.studies import METHODS, PAPER, Row
from ldreg.text import count

_RESNETS = ("simclr", "simclr_tuned", "byol")
_FALL_LATE = ("simclr", "byol")  # whose LID falls late in training in the paper
_COVARIANCES = ("Cov", "Cov+Var")
_STABLE = "is stable"
_HIGHER: Mapping[str, Mark] = {"higher": "agrees", "lower": "disagrees", "within noise": "noise"}
_BETTER = {"higher": "better by more than noise", "lower": "worse by more than noise", "within noise": "within noise"}
_UNCHANGED: tuple[Mark, Mark] = ("disagrees", "agrees")  # where the paper sees no change: a change, and none


@dataclass(frozen=True)
class Claim:
    """What came of a claim of the paper: a sentence, and a mark for each part of it that is judged."""

    words: str
    marks: tuple[Mark, ...] = ()


def claims(section: Section) -> list[Claim]:
    """What came of the claims of a study; empty where it has none beyond its table."""
    return list(_CLAIMS[section.study.name](section)) if section.study.name in _CLAIMS else []


def _ablation(section: Section) -> Iterator[Claim]:
    """Whether accuracy and rank change over beta and over k."""
    for group in ("beta", "k"):
        own = [row for row in section.rows if row.group == group]
        yield from _trend(section, own, "linear", "linear accuracy", group, _STABLE)
        yield from _trend(section, own, "effective_rank", "effective rank", group, "falls")


def _jitter(section: Section) -> Iterator[Claim]:
    """Whether LID changes with the strength of color jitter."""
    return _trend(section, section.rows, TRAIN_LID, "LID of training images", "strength", "rises")


def _trend(
    section: Section, rows: Sequence[Row], metric: str, title: str, label: str, in_paper: str
) -> Iterator[Claim]:
    """The change from the smallest to the largest x that has values."""
    found = {row.x: own for row in rows if (own := section.sample(row, metric)).values}
    if len(found) < 2:
        return
    low, high = min(found), max(found)
    change, chance = difference(found[high], found[low]), noise(found[high], found[low])
    within = abs(change) <= chance
    verb = "changes within noise" if within else "rises" if change > 0 else "falls"
    as_claimed = within if in_paper == _STABLE else verb == in_paper
    words = f"From {label} {low:g} to {high:g} {title} {verb} ({change:+.2f}, noise {chance:.2f})"
    mark: Mark = "agrees" if as_claimed else "noise" if within else "disagrees"
    yield Claim(f"{words}; in the paper it {in_paper}.", (mark,))


def _methods(section: Section) -> Iterator[Claim]:
    """Which method has the highest rank and the lowest LID without LDReg."""
    words, marks = [], list[Mark]()
    for metric, what, choose, among in (
        ("effective_rank", "highest effective rank", max, tuple(METHODS)),
        ("effective_rank", "lowest effective rank", min, tuple(METHODS)),
        ("lid", "lowest LID of those with a ResNet", min, _RESNETS),
    ):
        plain = [row for row in section.rows if row.baseline is None and row.group in among]
        found = {row.group: mean for row in plain if math.isfinite(mean := section.sample(row, metric).mean)}
        if len(found) > 1:
            here = choose(found, key=lambda name: found[name])
            there = choose(found, key=lambda name: PAPER[name][metric])
            same = "as in the paper" if here == there else f"in the paper {METHODS[there]}"
            words.append(f"{what}: {METHODS[here]} ({same})")
            marks.append("agrees" if here == there else "disagrees")
    return _joined("Without LDReg, ", words, ".", marks)


def _joined(start: str, words: Sequence[str], end: str, marks: Iterable[Mark], between: str = "; ") -> Iterator[Claim]:
    """A claim of several parts, if there are any."""
    return iter([Claim(f"{start}{between.join(words)}{end}", tuple(marks))] if words else [])


def _batches(section: Section) -> Iterator[Claim]:
    """The paper's batch sizes, where they differ from the scale's."""
    if any(batch["size"] != batch["paper"] for batch in section.scale.batches):
        *first, last = [str(batch["paper"]) for batch in section.scale.batches]
        yield Claim(f"The paper's values, in this order, are for batches of {', '.join(first)} and {last}.")


def _training(section: Section) -> Iterator[Claim]:
    """For which methods LID of training images ends higher with LDReg, and how far below its highest without."""
    verdicts = [(METHODS[row.group], section.compared(row, TRAIN_LID).verdict) for row in section.rows]
    words, marks = [], list[Mark]()
    for verdict, mark in _HIGHER.items():
        methods = [method for method, each in verdicts if each == verdict]
        words += [f"{verdict} for {', '.join(methods)}"] if methods else []
        marks += [mark] * len(methods)
    yield from _joined("At the end, with LDReg beside without it: ", words, ".", marks)
    words, marks = [], []
    for row in section.rows:
        whole = [record for record in section.of(row) if math.isfinite(value_of(record, TRAIN_LID))]
        if row.baseline is None and row.group in _FALL_LATE and whole:
            curves = [[value for _, value in record.curves["lid"] if math.isfinite(value)] for record in whole]
            falls = [max(curve) - curve[-1] for curve in curves]
            end = Sample({0: section.sample(row, TRAIN_LID).mean})
            within = max(falls) <= noise(end, end)
            marks.append("noise" if within else "agrees")
            several = " to ".join(dict.fromkeys(f"{value:.2f}" for value in (min(falls), max(falls))))
            words.append(f"{METHODS[row.group]} {several} ({'within noise' if within else 'a fall'})")
    yield from _joined("Without LDReg it ends below its highest value by this much: ", words, ".", marks)


def _norms(section: Section) -> Iterator[Claim]:
    """Whether L2 differs from L1, which it does not in the paper."""
    pairs = [(row.names[1], section.compared(row, "linear").verdict) for row in section.rows if row.names[0] == "L2"]
    words = [f"{verdict} at k = {k}" for k, verdict in pairs if verdict]
    marks = [_UNCHANGED[verdict == "within noise"] for _, verdict in pairs if verdict]
    return _joined("Linear accuracy with L2 beside L1: ", words, ".", marks, ", ")


def _regularizers(section: Section) -> Iterator[Claim]:
    """Whether covariance and variance leave LID and accuracy as they are, which they do in the paper."""
    words, marks, settings = [], list[Mark](), 0
    for metric, title in (("lid", "LID"), ("linear", "linear accuracy")):
        verdicts = [section.compared(row, metric).verdict for row in section.rows if row.names[0] in _COVARIANCES]
        if found := [verdict for verdict in verdicts if verdict]:
            words.append(f"{title} is higher in {found.count('higher')} and lower in {found.count('lower')}")
            marks.append(_UNCHANGED[set(found) == {"within noise"}])
            settings = len(found)
    start = f"Of {settings} settings of {' and '.join(_COVARIANCES)}, by more than noise "
    return _joined(start, words, "; in the paper they change neither by much.", marks, ", ")


def _search(section: Section) -> Iterator[Claim]:
    if words := search.in_words(section.scale, section.records):
        yield Claim(words)


def _share_search(section: Section) -> Iterator[Claim]:
    if strength := search.shared_strength(section.scale, section.records):
        yield Claim(f"Chosen for all methods: {'no LDReg' if strength == '-' else strength}.")


def _anchor(section: Section) -> Iterator[Claim]:
    """How ldreg's kNN accuracy and speed compare with lightly's, in a sentence for each recipe."""
    for row in section.rows:
        if row.baseline is None:
            continue
        (recipe, trainer), parts, found = row.names, [], section.compared(row, "knn")
        if found.verdict:
            points = f"kNN accuracy {found.difference:+z.2f} points (noise {found.noise:.2f})"
            parts.append(f"{points}, {_BETTER[found.verdict]}")
        variant = len(row.arm.options) > 1  # in more than the epochs; it is as fast as the recipe that it varies
        if not variant and (speed := _speed(section.of(row), section.of(section.rows[row.baseline]))):
            parts.append(speed)
        if parts:
            yield Claim(f"Beside lightly, {recipe}{',' * variant} {trainer}: {'; '.join(parts)}.")


def _speed(records: Sequence[Record], others: Sequence[Record]) -> str:
    """The ratio of median speeds over seeds; speeds on different hardware are not compared."""
    speeds = [sample(some, "images_per_second").values for some in (records, others)]
    if not all(speeds) or not min(map(min, speeds)) > 0:
        return ""
    if len({record.origin.get("hardware") for record in (*records, *others)}) > 1:
        return "speeds cannot be compared, as they are of different hardware"
    own, base = (statistics.median(values) for values in speeds)
    workers = sorted({int(number) for record in others if (number := record.origin.get("workers")) is not None})
    loader = f", whose loader has {' or '.join(map(str, workers))} workers" if workers else ""
    medians = f"{count(round(own))} images per second to {count(round(base))} of lightly"
    return f"{own / base:.1f} times as fast (median {medians}{loader})"


_CLAIMS: Mapping[str, Callable[[Section], Iterator[Claim]]] = {
    "ablation": _ablation,
    "anchor": _anchor,
    "batches": _batches,
    "figure2a": _training,
    "figure2b": _jitter,
    "figure2cd": _methods,
    "norms": _norms,
    "regularizers": _regularizers,
    "search": _search,
    "share_search": _share_search,
}
