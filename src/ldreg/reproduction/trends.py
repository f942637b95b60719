"""What came of studies whose claim is no single number of the paper's: a trend, or who is highest."""

import math
from collections.abc import Sequence

from ldreg.reproduction import paper
from ldreg.reproduction.effects import TRAIN_LID, difference, noise, sample
from ldreg.reproduction.findings import Gathered
from ldreg.reproduction.rows import METHODS, Row, ablation, jitter, table1
from ldreg.reproduction.scales import Scale

_RESNETS = ("simclr", "simclr_tuned", "byol")


def of_ablation(scale: Scale, gathered: Gathered) -> str:
    """Whether accuracy and rank change over beta and over k, and what they do in the paper."""
    rows = ablation(scale)
    told = []
    for group in ("beta", "k"):
        own = [row for row in rows if row.group == group]
        told.append(_trend(own, gathered, "linear", "linear accuracy", group, "is stable"))
        told.append(_trend(own, gathered, "effective_rank", "effective rank", group, "falls"))
    return " ".join(one for one in told if one)


def of_jitter(scale: Scale, gathered: Gathered) -> str:
    """Whether LID changes with the strength of color jitter."""
    return _trend(jitter(scale), gathered, TRAIN_LID, "LID of training images", "strength", "rises")


def _trend(rows: Sequence[Row], gathered: Gathered, metric: str, title: str, label: str, in_paper: str) -> str:
    """The change from the first to the last x that there are values of, beside its noise and the paper's."""
    found = [(row.x, one) for row in rows if (one := sample(gathered.get(row.arm, ()), metric)).values]
    if len(found) < 2:
        return ""
    (low, first), (high, last) = min(found, key=lambda pair: pair[0]), max(found, key=lambda pair: pair[0])
    change, chance = difference(last, first), noise(last, first)
    verb = "changes within noise" if abs(change) <= chance else "rises" if change > 0 else "falls"
    told = f"From {label} {low:g} to {high:g} {title} {verb} ({change:+.2f}, noise {chance:.2f})"
    return f"{told}; in the paper it {in_paper}."


def of_methods(scale: Scale, gathered: Gathered) -> str:
    """Which method has the highest rank and the lowest LID without LDReg, and which in the paper."""
    plain = [row for row in table1(scale) if row.baseline is None]
    told = []
    for metric, what, highest, among in (
        ("effective_rank", "highest effective rank", True, tuple(METHODS)),
        ("effective_rank", "lowest effective rank", False, tuple(METHODS)),
        ("lid", "lowest LID of those with a ResNet", False, _RESNETS),
    ):
        found = {row.group: sample(gathered.get(row.arm, ()), metric).mean for row in plain if row.group in among}
        found = {name: value for name, value in found.items() if not math.isnan(value)}
        if len(found) > 1:
            choose = max if highest else min
            here, there = choose(found, key=found.__getitem__), choose(found, key=lambda name: _in_paper(name, metric))
            same = "as in the paper" if here == there else f"in the paper {METHODS[there]}"
            told.append(f"{what}: {METHODS[here]} ({same})")
    return f"Without LDReg, {'; '.join(told)}." if told else ""


def _in_paper(method: str, metric: str) -> float:
    return paper.LINEAR[method][0][metric]


def of_batches(scale: Scale, gathered: Gathered) -> str:
    """For which batch sizes the paper's values are, where they are others."""
    sizes, own = [str(size) for size in paper.BATCHES], [str(size) for size, _ in scale.batches]
    if sizes == own:
        return ""
    return f"The paper's values, in this order, are for batches of {', '.join(sizes[:-1])} and {sizes[-1]}."
