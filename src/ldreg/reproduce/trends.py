"""What came of the paper's claims that are no single number: a trend, who is highest, that something does nothing."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ldreg.report.tables import Mark
from ldreg.reproduce import paper
from ldreg.reproduce.effects import TRAIN_LID, Sample, difference, noise, sample, value_of
from ldreg.reproduce.findings import Gathered
from ldreg.reproduce.rows import METHODS, Row, ablation, all_methods, jitter, norms, regularizers, table1
from ldreg.reproduce.scales import Scale

_RESNETS = ("simclr", "simclr_tuned", "byol")
_STABLE = "is stable"
_FALLING = ("simclr", "byol")  # whose LID falls late in training in the paper
_COVARIANCES = ("Cov", "Cov+Var")


@dataclass(frozen=True)
class Claim:
    """What came of something that the paper says.

    Args:
        words: a sentence
        marks: how each part of it is judged; none where it only explains a table
    """

    words: str
    marks: tuple[Mark, ...] = ()


def of_ablation(scale: Scale, gathered: Gathered) -> list[Claim]:
    """Whether accuracy and rank change over beta and over k, and what they do in the paper."""
    rows = ablation(scale)
    found: list[Claim] = []
    for group in ("beta", "k"):
        own = [row for row in rows if row.group == group]
        found += _trend(own, gathered, "linear", "linear accuracy", group, _STABLE)
        found += _trend(own, gathered, "effective_rank", "effective rank", group, "falls")
    return found


def of_jitter(scale: Scale, gathered: Gathered) -> list[Claim]:
    """Whether LID changes with the strength of color jitter."""
    return _trend(jitter(scale), gathered, TRAIN_LID, "LID of training images", "strength", "rises")


def _trend(rows: Sequence[Row], gathered: Gathered, metric: str, title: str, label: str, in_paper: str) -> list[Claim]:
    """The change from the first to the last x that there are values of, beside its noise and the paper's."""
    found = [(row.x, one) for row in rows if (one := _of(row, gathered, metric)).values]
    if len(found) < 2:
        return []
    (low, first), (high, last) = min(found, key=lambda pair: pair[0]), max(found, key=lambda pair: pair[0])
    change, chance = difference(last, first), noise(last, first)
    within = abs(change) <= chance
    verb = "changes within noise" if within else "rises" if change > 0 else "falls"
    told = f"From {label} {low:g} to {high:g} {title} {verb} ({change:+.2f}, noise {chance:.2f})"
    as_claimed = within if in_paper == _STABLE else verb == in_paper
    mark: Mark = "agrees" if as_claimed else "noise" if within else "disagrees"
    return [Claim(f"{told}; in the paper it {in_paper}.", (mark,))]


def of_methods(scale: Scale, gathered: Gathered) -> list[Claim]:
    """Which method has the highest rank and the lowest LID without LDReg, and which in the paper."""
    plain = [row for row in table1(scale) if row.baseline is None]
    told: list[tuple[str, Mark]] = []
    for metric, what, highest, among in (
        ("effective_rank", "highest effective rank", True, tuple(METHODS)),
        ("effective_rank", "lowest effective rank", False, tuple(METHODS)),
        ("lid", "lowest LID of those with a ResNet", False, _RESNETS),
    ):
        found = {row.group: _of(row, gathered, metric).mean for row in plain if row.group in among}
        found = {name: value for name, value in found.items() if not math.isnan(value)}
        if len(found) > 1:
            choose = max if highest else min
            here, there = choose(found, key=found.__getitem__), choose(found, key=lambda name: _in_paper(name, metric))
            same = "as in the paper" if here == there else f"in the paper {METHODS[there]}"
            told.append((f"{what}: {METHODS[here]} ({same})", "agrees" if here == there else "disagrees"))
    if not told:
        return []
    words, marks = zip(*told, strict=True)
    return [Claim(f"Without LDReg, {'; '.join(words)}.", marks)]


def _in_paper(method: str, metric: str) -> float:
    return paper.LINEAR[method][0][metric]


def of_batches(scale: Scale, gathered: Gathered) -> list[Claim]:
    """For which batch sizes the paper's values are, where they are others."""
    sizes, own = [str(size) for size in paper.BATCHES], [str(size) for size, _ in scale.batches]
    if sizes == own:
        return []
    return [Claim(f"The paper's values, in this order, are for batches of {', '.join(sizes[:-1])} and {sizes[-1]}.")]


def of_training(scale: Scale, gathered: Gathered) -> list[Claim]:
    """For which methods LID of training images ends higher with LDReg, and whether it falls late without."""
    rows = all_methods(scale)
    verdicts: dict[str, list[str]] = {}
    for row in rows:
        if row.baseline is not None:
            verdict = _verdict(_of(row, gathered, TRAIN_LID), _of(rows[row.baseline], gathered, TRAIN_LID))
            verdicts.setdefault(verdict, []).append(METHODS[row.group])
    verdicts.pop("", None)
    marks: list[Mark] = []
    for verdict, mark in _HIGHER.items():
        marks += [mark] * len(verdicts.get(verdict, ()))
    told = "; ".join(f"{verdict} for {', '.join(verdicts[verdict])}" for verdict in _HIGHER if verdict in verdicts)
    higher = [Claim(f"At the end, with LDReg beside without it: {told}.", tuple(marks))] if told else []
    return higher + _late_fall([row for row in rows if row.baseline is None and row.group in _FALLING], gathered)


_HIGHER: Mapping[str, Mark] = {"higher": "agrees", "lower": "disagrees", "within noise": "noise"}


def _verdict(own: Sample, base: Sample) -> str:
    """Whether one lies above another by more than noise; empty where one of them has no values."""
    if not own.values or not base.values:
        return ""
    found = difference(own, base)
    return "within noise" if abs(found) <= noise(own, base) else "higher" if found > 0 else "lower"


def _late_fall(rows: Sequence[Row], gathered: Gathered) -> list[Claim]:
    """How far LID without LDReg lies below its highest value in the end, seed by seed."""
    told, marks = [], list[Mark]()
    for row in rows:
        whole = [record for record in gathered.get(row.arm, ()) if math.isfinite(value_of(record, TRAIN_LID))]
        curves = [[value for _, value in record.curves["lid"] if math.isfinite(value)] for record in whole]
        falls = [max(curve) - curve[-1] for curve in curves]
        if falls:
            end = _of(row, gathered, TRAIN_LID)
            within = max(falls) <= noise(Sample({0: end.mean}), Sample({0: end.mean}))
            marks.append("noise" if within else "agrees")
            several = " to ".join(dict.fromkeys(f"{value:.2f}" for value in (min(falls), max(falls))))
            told.append(f"{METHODS[row.group]} {several} ({'within noise' if within else 'a fall'})")
    words = f"Without LDReg it ends below its highest value by this much: {'; '.join(told)}."
    return [Claim(words, tuple(marks))] if told else []


def of_norms(scale: Scale, gathered: Gathered) -> list[Claim]:
    """Whether L2 differs from L1, which it does not in the paper."""
    rows = norms(scale)
    found = {}
    for row in rows:
        if row.names[0] == "L2" and row.baseline is not None:
            own, base = (_of(each, gathered, "linear") for each in (row, rows[row.baseline]))
            found[row.names[1]] = _verdict(own, base)
    found = {k: verdict for k, verdict in found.items() if verdict}
    marks: list[Mark] = ["agrees" if verdict == "within noise" else "disagrees" for verdict in found.values()]
    told = ", ".join(f"{verdict} at k = {k}" for k, verdict in found.items())
    return [Claim(f"Linear accuracy with L2 beside L1: {told}.", tuple(marks))] if told else []


def of_regularizers(scale: Scale, gathered: Gathered) -> list[Claim]:
    """Whether covariance and variance leave LID and accuracy as they are, which they do in the paper."""
    rows = regularizers(scale)
    own = [row for row in rows if row.names[0] in _COVARIANCES]
    told, marks = [], list[Mark]()
    for metric, title in (("lid", "LID"), ("linear", "linear accuracy")):
        base = _of(rows[0], gathered, metric)
        found = [verdict for row in own if (verdict := _verdict(_of(row, gathered, metric), base))]
        if found:
            told.append(f"{title} is higher in {found.count('higher')} and lower in {found.count('lower')}")
            marks.append("agrees" if set(found) == {"within noise"} else "disagrees")
            count = len(found)
    if not told:
        return []
    words = f"Of {count} settings of {' and '.join(_COVARIANCES)}, by more than noise {', '.join(told)}"
    return [Claim(f"{words}; in the paper they change neither by much.", tuple(marks))]


def _of(row: Row, gathered: Gathered, metric: str) -> Sample:
    return sample(gathered.get(row.arm, ()), metric)


CLAIMS: Mapping[str, Callable[[Scale, Gathered], Sequence[Claim]]] = {
    "ablation": of_ablation,
    "batches": of_batches,
    "figure2a": of_training,
    "figure2b": of_jitter,
    "figure2cd": of_methods,
    "norms": of_norms,
    "regularizers": of_regularizers,
}


def claims(study: str, scale: Scale, gathered: Gathered) -> Sequence[Claim]:
    """What came of the claims of a study; none where it has none beyond its table."""
    return CLAIMS[study](scale, gathered) if study in CLAIMS else ()
