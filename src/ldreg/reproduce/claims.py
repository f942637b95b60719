"""What came of the paper's claims that no table cell shows: trends, who is highest, that something has no effect."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ldreg.record import Record
from ldreg.report.tables import Mark
from ldreg.reproduce import search
from ldreg.reproduce.statistics import TRAIN_LID, Records, Sample, difference, noise, sample, value_of
from ldreg.reproduce.studies import METHODS, Row, Scale, Study, paper_values
from ldreg.text import count

_RESNETS = ("simclr", "simclr_tuned", "byol")
_STABLE = "is stable"
_FALL_LATE = ("simclr", "byol")  # whose LID falls late in training in the paper
_COVARIANCES = ("Cov", "Cov+Var")
_HIGHER: Mapping[str, Mark] = {"higher": "agrees", "lower": "disagrees", "within noise": "noise"}


@dataclass(frozen=True)
class Claim:
    """What came of a claim of the paper: a sentence, and a mark for each part of it that is judged."""

    words: str
    marks: tuple[Mark, ...] = ()


def claims(study: Study, scale: Scale, records: Records) -> Sequence[Claim]:
    """What came of the claims of a study; empty where it has none beyond its table."""
    return _CLAIMS[study.name](study.rows(scale), scale, records) if study.name in _CLAIMS else ()


def _ablation(rows: Sequence[Row], scale: Scale, records: Records) -> list[Claim]:
    """Whether accuracy and rank change over beta and over k."""
    found: list[Claim] = []
    for group in ("beta", "k"):
        own = [row for row in rows if row.group == group]
        found += _trend(own, records, "linear", "linear accuracy", group, _STABLE)
        found += _trend(own, records, "effective_rank", "effective rank", group, "falls")
    return found


def _jitter(rows: Sequence[Row], scale: Scale, records: Records) -> list[Claim]:
    """Whether LID changes with the strength of color jitter."""
    return _trend(rows, records, TRAIN_LID, "LID of training images", "strength", "rises")


def _trend(rows: Sequence[Row], records: Records, metric: str, title: str, label: str, in_paper: str) -> list[Claim]:
    """The change from the smallest to the largest x that has values."""
    found = [(row.x, own) for row in rows if (own := _sample(row, records, metric)).values]
    if len(found) < 2:
        return []
    (low, first), (high, last) = min(found, key=lambda pair: pair[0]), max(found, key=lambda pair: pair[0])
    change, chance = difference(last, first), noise(last, first)
    within = abs(change) <= chance
    verb = "changes within noise" if within else "rises" if change > 0 else "falls"
    as_claimed = within if in_paper == _STABLE else verb == in_paper
    mark: Mark = "agrees" if as_claimed else "noise" if within else "disagrees"
    words = f"From {label} {low:g} to {high:g} {title} {verb} ({change:+.2f}, noise {chance:.2f})"
    return [Claim(f"{words}; in the paper it {in_paper}.", (mark,))]


def _methods(rows: Sequence[Row], scale: Scale, records: Records) -> list[Claim]:
    """Which method has the highest rank and the lowest LID without LDReg."""
    parts: list[tuple[str, Mark]] = []
    for metric, what, choose, among in (
        ("effective_rank", "highest effective rank", max, tuple(METHODS)),
        ("effective_rank", "lowest effective rank", min, tuple(METHODS)),
        ("lid", "lowest LID of those with a ResNet", min, _RESNETS),
    ):
        plain = [row for row in rows if row.baseline is None and row.group in among]
        found = {row.group: mean for row in plain if math.isfinite(mean := _sample(row, records, metric).mean)}
        if len(found) > 1:
            here = choose(found, key=lambda name: found[name])
            there = choose(found, key=lambda name: paper_values(name)[metric])
            same = "as in the paper" if here == there else f"in the paper {METHODS[there]}"
            parts.append((f"{what}: {METHODS[here]} ({same})", "agrees" if here == there else "disagrees"))
    if not parts:
        return []
    words, marks = zip(*parts, strict=True)
    return [Claim(f"Without LDReg, {'; '.join(words)}.", marks)]


def _batches(rows: Sequence[Row], scale: Scale, records: Records) -> list[Claim]:
    """The paper's batch sizes, where they differ from the scale's."""
    if all(batch["size"] == batch["paper"] for batch in scale.batches):
        return []
    *first, last = [str(batch["paper"]) for batch in scale.batches]
    return [Claim(f"The paper's values, in this order, are for batches of {', '.join(first)} and {last}.")]


def _training(rows: Sequence[Row], scale: Scale, records: Records) -> list[Claim]:
    """For which methods LID of training images ends higher with LDReg, and whether it falls late without."""
    methods: dict[str, list[str]] = {verdict: [] for verdict in _HIGHER}
    for row in rows:
        verdict = _compared(row, rows, records, TRAIN_LID)
        if verdict:
            methods[verdict].append(METHODS[row.group])
    found = {verdict: names for verdict, names in methods.items() if names}
    marks = tuple(_HIGHER[verdict] for verdict, names in found.items() for _ in names)
    words = "; ".join(f"{verdict} for {', '.join(names)}" for verdict, names in found.items())
    higher = [Claim(f"At the end, with LDReg beside without it: {words}.", marks)] if found else []
    return higher + _late_fall([row for row in rows if row.baseline is None and row.group in _FALL_LATE], records)


def _late_fall(rows: Sequence[Row], records: Records) -> list[Claim]:
    """How far LID without LDReg ends below its highest value, seed by seed."""
    words, marks = [], list[Mark]()
    for row in rows:
        whole = [record for record in records.get(row.arm, ()) if math.isfinite(value_of(record, TRAIN_LID))]
        curves = [[value for _, value in record.curves["lid"] if math.isfinite(value)] for record in whole]
        falls = [max(curve) - curve[-1] for curve in curves]
        if falls:
            end = Sample({0: _sample(row, records, TRAIN_LID).mean})
            within = max(falls) <= noise(end, end)
            marks.append("noise" if within else "agrees")
            several = " to ".join(dict.fromkeys(f"{value:.2f}" for value in (min(falls), max(falls))))
            words.append(f"{METHODS[row.group]} {several} ({'within noise' if within else 'a fall'})")
    text = f"Without LDReg it ends below its highest value by this much: {'; '.join(words)}."
    return [Claim(text, tuple(marks))] if words else []


def _norms(rows: Sequence[Row], scale: Scale, records: Records) -> list[Claim]:
    """Whether L2 differs from L1, which it does not in the paper."""
    pairs = [(row.names[1], _compared(row, rows, records, "linear")) for row in rows if row.names[0] == "L2"]
    found = {k: verdict for k, verdict in pairs if verdict}
    marks: tuple[Mark, ...] = tuple(
        "agrees" if verdict == "within noise" else "disagrees" for verdict in found.values()
    )
    words = ", ".join(f"{verdict} at k = {k}" for k, verdict in found.items())
    return [Claim(f"Linear accuracy with L2 beside L1: {words}.", marks)] if found else []


def _regularizers(rows: Sequence[Row], scale: Scale, records: Records) -> list[Claim]:
    """Whether covariance and variance leave LID and accuracy as they are, which they do in the paper."""
    words, marks, settings = [], list[Mark](), 0
    for metric, title in (("lid", "LID"), ("linear", "linear accuracy")):
        verdicts = [_compared(row, rows, records, metric) for row in rows if row.names[0] in _COVARIANCES]
        found = [verdict for verdict in verdicts if verdict]
        if found:
            words.append(f"{title} is higher in {found.count('higher')} and lower in {found.count('lower')}")
            marks.append("agrees" if set(found) == {"within noise"} else "disagrees")
            settings = len(found)
    if not words:
        return []
    start = f"Of {settings} settings of {' and '.join(_COVARIANCES)}, by more than noise {', '.join(words)}"
    return [Claim(f"{start}; in the paper they change neither by much.", tuple(marks))]


def _search(rows: Sequence[Row], scale: Scale, records: Records) -> list[Claim]:
    words = search.in_words(scale, records)
    return [Claim(words)] if words else []


def _anchor(rows: Sequence[Row], scale: Scale, records: Records) -> list[Claim]:
    """How ldreg's kNN accuracy and speed compare with lightly's, in a sentence for each recipe."""
    found = []
    for row in rows:
        if row.baseline is None:
            continue
        own, others = (records.get(arm, ()) for arm in (row.arm, rows[row.baseline].arm))
        recipe, trainer = row.names
        variant = len(row.arm.options) > 1  # in more than the epochs; it is as fast as the recipe that it varies
        parts = [part for part in (_accuracy(own, others), "" if variant else _speed(own, others)) if part]
        if parts:
            found.append(Claim(f"Beside lightly, {recipe}{',' * variant} {trainer}: {'; '.join(parts)}."))
    return found


def _accuracy(records: Sequence[Record], others: Sequence[Record]) -> str:
    own, base = sample(records, "knn"), sample(others, "knn")
    if not own.values or not base.values:
        return ""
    found, chance = difference(own, base), noise(own, base)
    verdict = "within noise" if abs(found) <= chance else f"{'better' if found > 0 else 'worse'} by more than noise"
    return f"kNN accuracy {round(found, 2) + 0.0:+.2f} points (noise {chance:.2f}), {verdict}"


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


def _compared(row: Row, rows: Sequence[Row], records: Records, metric: str) -> str:
    """Whether a row is higher or lower than its baseline by more than noise; empty where one has no values."""
    if row.baseline is None:
        return ""
    own, base = _sample(row, records, metric), _sample(rows[row.baseline], records, metric)
    if not own.values or not base.values:
        return ""
    found = difference(own, base)
    return "within noise" if abs(found) <= noise(own, base) else "higher" if found > 0 else "lower"


def _sample(row: Row, records: Records, metric: str) -> Sample:
    return sample(records.get(row.arm, ()), metric)


_CLAIMS: Mapping[str, Callable[[Sequence[Row], Scale, Records], Sequence[Claim]]] = {
    "ablation": _ablation,
    "anchor": _anchor,
    "batches": _batches,
    "figure2a": _training,
    "figure2b": _jitter,
    "figure2cd": _methods,
    "norms": _norms,
    "regularizers": _regularizers,
    "search": _search,
}
