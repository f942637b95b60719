"""How beta and k of the recipes are chosen: short runs on a part of the training images, judged by the rest of them.

The test images have no say. The rule was set before the runs: of all that was tried for a method, the setting of
highest LID among those whose linear accuracy is within one standard error of the best (Breiman et al., Classification
and Regression Trees, 1984, have this rule for the size of a tree). Learning rates come first, without LDReg, so that it
is not given credit for a rate that suits it: that of the best linear accuracy.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from ldreg.reporting.run_record import RunRecord
from ldreg.reproduction.effects import sample
from ldreg.reproduction.jobs import Arm, Job
from ldreg.reproduction.rows import METHODS, Row, beta_of
from ldreg.reproduction.scales import Scale

Gathered = Mapping[Arm, Sequence[RunRecord]]

VALIDATION = 0.1  # share of the training images that judges

# Of the paper's beta for the method, and of the scale's k; k varies at the paper's beta for the methods that tables
# have with several seeds.
_BETAS = (0.3, 1.0, 3.0, 10.0)
_NEIGHBORS = (0.25, 0.5, 2.0)
_WITH_K = ("simclr", "byol")
# Rates that are tried first, by scale and method; other methods keep their recipe's.
_RATES: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "cifar10": {"simclr": (0.06, 0.12, 0.24), "byol": (0.06, 0.12, 0.24)}
}


@dataclass(frozen=True)
class Choice:
    """What was chosen for a method, of how many settings that were tried."""

    method: str
    beta: float
    k: int
    tried: int


def rows(scale: Scale) -> list[Row]:
    """Every method without LDReg, some with several learning rates; with several strengths, some with several k."""
    found: list[Row] = []
    for method, title in METHODS.items():
        rates = _RATES.get(scale.name, {}).get(method, ())
        plain = {rate: _aside(scale, method, rate) for rate in rates or (None,)}
        own = _rate(scale.arm(method)) if rates else None
        base = len(found) + list(plain).index(own)
        names = [title if rate is None else f"{title}, learning rate {rate:g}" for rate in plain]
        found += [Row((name, "-", "-"), arm, group=method) for name, arm in zip(names, plain.values(), strict=True)]
        usual = float(beta_of(Arm(f"imagenet/{method}_ldreg")))
        tried = [(factor * usual, scale.k) for factor in _BETAS]
        tried += [(usual, round(factor * scale.k)) for factor in _NEIGHBORS if method in _WITH_K]
        for beta, k in tried:
            arm = _aside(scale, f"{method}_ldreg", own).but(ldreg__beta=f"{beta:g}", ldreg__k=k)
            found.append(Row((title, f"{beta:g}", str(k)), arm, baseline=base, group=method))
    return found


@cache
def _rate(arm: Arm) -> float:
    return float(Job(arm, 0).settings.optimizer.lr)


def _aside(scale: Scale, recipe: str, rate: float | None) -> Arm:
    arm = scale.arm(recipe).but(data__validation=VALIDATION)
    arm = arm if rate is None else arm.but(optimizer__lr=f"{rate:g}")
    return arm if scale.epochs is not None else arm.but(schedule__epochs=scale.search_epochs)


def choices(scale: Scale, gathered: Gathered) -> list[Choice]:
    """What the rule chooses for each method of which at least two settings were tried."""
    found = []
    for method in METHODS:
        known = [row.arm for row in _known(scale, gathered, method) if row.baseline is not None]
        if len(known) > 1:
            options = Job(_chosen([(arm, gathered[arm]) for arm in known]), 0).settings.regularizer
            found.append(Choice(method, float(options["beta"]), int(options["k"]), len(known)))
    return found


def rates(scale: Scale, gathered: Gathered) -> dict[str, float]:
    """The learning rate of the best linear accuracy, by method, where at least two were tried."""
    found = {}
    for method in _RATES.get(scale.name, {}):
        known = [row.arm for row in _known(scale, gathered, method) if row.baseline is None]
        if len(known) > 1:
            found[method] = _rate(max(known, key=lambda arm: sample(gathered[arm], "linear").mean))
    return found


def _known(scale: Scale, gathered: Gathered, method: str) -> list[Row]:
    """The rows of a method that have results."""
    return [row for row in rows(scale) if row.group == method and sample(gathered.get(row.arm, ()), "linear").values]


def _chosen(tried: Sequence[tuple[Arm, Sequence[RunRecord]]]) -> Arm:
    accuracies = {arm: sample(records, "linear") for arm, records in tried}
    best = max(accuracies.values(), key=lambda each: each.mean)
    share = best.mean / 100
    error = 100 * math.sqrt(share * (1 - share) / best.test_size) if best.test_size else 0.0
    near = [(arm, records) for arm, records in tried if accuracies[arm].mean >= best.mean - error]
    return max(near, key=lambda pair: sample(pair[1], "lid").mean)[0]


def in_words(scale: Scale, gathered: Gathered) -> str:
    """What was chosen, in a sentence; empty where nothing was."""
    told = [f"{METHODS[method]} learning rate {rate:g}" for method, rate in rates(scale, gathered).items()]
    told += [
        f"{METHODS[choice.method]} beta = {choice.beta:g} and k = {choice.k} (of {choice.tried} tried)"
        for choice in choices(scale, gathered)
    ]
    return f"Chosen: {'; '.join(told)}." if told else ""
