"""How beta and k of the recipes are chosen: short runs on a part of the training images, judged by the rest of them.

The test images have no say. The rule was set before the runs: of all with LDReg that was tried for a method, the
setting of highest LID among those whose linear accuracy is within one standard error of the best (Breiman et al.,
Classification and Regression Trees, 1984, have this rule for the size of a tree). Learning rates come first, without
LDReg, so that it is not given credit for a rate that suits it: that of the best linear accuracy. Runs longer than the
scale's search ask for beta alone, and what they choose counts: a strength that helps a short run may be too much for a
long one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from ldreg.reporting.run_record import RunRecord
from ldreg.reproduction.effects import collapses, sample
from ldreg.reproduction.jobs import Arm, Job
from ldreg.reproduction.rows import METHODS, Row, beta_of, methods, own_settings
from ldreg.reproduction.scales import Scale

Gathered = Mapping[Arm, Sequence[RunRecord]]

VALIDATION = 0.1  # share of the training images that judges

# Of the paper's beta for the method, and of the scale's k; k varies at the paper's beta for the methods that tables
# have with several seeds. Some losses are small or large here. MAE's beta at the paper's size does nothing on digits
# (LID 6.05 without, 6.06 with it), a hundred times as much a little (6.62), a thousand times much (8.65). On CIFAR-10
# ten times the paper's beta is the best of four for VICReg, and raises LID by 0.2 for Barlow Twins, whose loss is 400.
_BETAS = (0.3, 1.0, 3.0, 10.0)
_WIDER: Mapping[str, tuple[float, ...]] = {
    "mae": (1.0, 10.0, 100.0, 1000.0),
    "vicreg": (*_BETAS, 30.0),
    "barlow_twins": (*_BETAS, 30.0, 100.0),
}
_PAPERS = {"moco_v3": "moco"}  # methods of which the paper knows one version
_NEIGHBORS = (0.25, 0.5, 2.0)
_WITH_K = ("simclr", "byol")
# Rates that are tried first, by scale and method; other methods keep their recipe's.
_RATES: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "cifar10": {"simclr": (0.06, 0.12, 0.24, 0.48), "byol": (0.06, 0.12, 0.24, 0.48)}
}


@dataclass(frozen=True)
class Choice:
    """What was chosen for a method, of how many settings that were tried, with how many values of k."""

    method: str
    beta: float
    k: int
    tried: int
    ks: int


def rows(scale: Scale) -> list[Row]:
    """Every method without LDReg, some with several learning rates; with several strengths, some with several k."""
    found: list[Row] = []
    for method in methods(scale):
        title = METHODS[method]
        rates = _RATES.get(scale.name, {}).get(method, ())
        own = _rate(scale.arm(method)) if rates else None
        plain = {rate: _aside(scale, method, rate) for rate in (rates if rates and not _long(scale) else (own,))}
        base = len(found) + list(plain).index(own)
        names = [title if rate is None else f"{title}, learning rate {rate:g}" for rate in plain]
        found += [Row((name, "-", "-"), arm, group=method) for name, arm in zip(names, plain.values(), strict=True)]
        usual = float(beta_of(Arm(f"imagenet/{_PAPERS.get(method, method)}_ldreg")))
        tried = [(factor * usual, scale.k) for factor in _WIDER.get(method, _BETAS)]
        tried += [(usual, round(factor * scale.k)) for factor in _NEIGHBORS if method in _WITH_K and not _long(scale)]
        for beta, k in tried:
            arm = _aside(scale, f"{method}_ldreg", own).but(ldreg__beta=f"{beta:g}", ldreg__k=k)
            found.append(Row((title, f"{beta:g}", str(k)), arm, baseline=base, group=method))
    return found


def _long(scale: Scale) -> bool:
    """Whether runs are longer than those of the scale's search."""
    return scale.epochs is not None and scale.epochs > scale.search_epochs


@cache
def _rate(arm: Arm) -> float:
    return float(own_settings(arm).optimizer.lr)


def _aside(scale: Scale, recipe: str, rate: float | None) -> Arm:
    arm = scale.arm(recipe).but(data__validation=VALIDATION)
    arm = arm if rate is None else arm.but(optimizer__lr=f"{rate:g}")
    return arm if scale.epochs is not None else arm.but(schedule__epochs=scale.search_epochs)


def choices(scale: Scale, gathered: Gathered) -> list[Choice]:
    """What the rule chooses for each method of which at least two settings were tried."""
    found = []
    for method in methods(scale):
        tried = _comparable(scale, gathered, method, regularized=True)
        if len(tried) > 1:
            options = Job(_chosen(tried), 0).settings.regularizer
            ks = {int(Job(arm, 0).settings.regularizer["k"]) for arm in tried}
            found.append(Choice(method, float(options["beta"]), int(options["k"]), len(tried), len(ks)))
    return found


def rates(scale: Scale, gathered: Gathered) -> dict[str, float]:
    """The learning rate of the best linear accuracy, by method, where at least two were tried."""
    found = {}
    for method in _RATES.get(scale.name, {}):
        tried = _comparable(scale, gathered, method, regularized=False)
        if len(tried) > 1:
            found[method] = _rate(max(tried, key=lambda arm: sample(tried[arm], "linear").mean))
    return found


def _comparable(scale: Scale, gathered: Gathered, method: str, *, regularized: bool) -> Gathered:
    """The records of a method's settings that collapsed with no seed, of the seeds that all of them have.

    A setting without any accuracy has nothing to be compared by, and does not keep the others from it.
    """
    arms = [row.arm for row in rows(scale) if row.group == method and (row.baseline is not None) == regularized]
    known = {arm: found for arm in arms if (found := gathered.get(arm)) and not collapses(found)}
    seeds = {arm: told for arm, records in known.items() if (told := set(sample(records, "linear").by_seed))}
    shared = set.intersection(*seeds.values()) if seeds else set()
    return {arm: [record for record in known[arm] if record.origin.get("seed") in shared] for arm in seeds if shared}


def _chosen(tried: Gathered) -> Arm:
    accuracies = {arm: sample(records, "linear") for arm, records in tried.items()}
    best = max(accuracies.values(), key=lambda each: each.mean)
    share = best.mean / 100
    error = 100 * math.sqrt(share * (1 - share) / best.test_size) if best.test_size else 0.0
    near = [arm for arm in tried if accuracies[arm].mean >= best.mean - error]
    return max(near, key=lambda arm: sample(tried[arm], "lid").mean)


def in_words(scale: Scale, gathered: Gathered) -> str:
    """What was chosen, in a sentence; empty where nothing was."""
    found = rates(scale, gathered)
    told = [f"{METHODS[method]} learning rate {rate:g}" for method, rate in found.items()]
    for choice in choices(scale, gathered):
        own = _rate(scale.arm(choice.method))
        at = f", at learning rate {own:g}" if found.get(choice.method, own) != own else ""
        and_k = f" and k = {choice.k}" if choice.ks > 1 else ""  # a k that had no other beside it was not chosen
        told.append(f"{METHODS[choice.method]} beta = {choice.beta:g}{and_k} (of {choice.tried} tried{at})")
    return f"Chosen: {'; '.join(told)}." if told else ""
