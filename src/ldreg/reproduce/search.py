"""How beta and k of the recipes are chosen: short runs on a part of the training images, judged by the rest of them.

The test images have no say. The rules were set before the runs they judge. Learning rates come first, without LDReg, so
that it is not given credit for a rate that suits it: that of the best linear accuracy. Then beta, at the scale's k: the
one of highest LID among those whose linear accuracy is within one standard error of the best (Breiman et al.,
Classification and Regression Trees, 1984, have this rule for the size of a tree). Last k, at the recipe's beta: the
scale's where its linear accuracy is within one standard error of the best, else the best. It is not taken for its LID:
beta was raised as far as accuracy allows, and a smaller k is a stronger LDReg once more. Runs longer than the scale's
search ask for beta alone, and what they choose counts: a strength that helps a short run may be too much for a long
one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from ldreg.record import Record
from ldreg.reproduce.effects import collapses, sample
from ldreg.reproduce.jobs import Arm
from ldreg.reproduce.rows import METHODS, Row, beta_of, methods, own_settings
from ldreg.reproduce.scales import Scale

Gathered = Mapping[Arm, Sequence[Record]]

VALIDATION = 0.1  # share of the training images that judges

# Of the paper's beta for the method. Some losses are small or large here. MAE's beta at the paper's size does nothing
# on digits (LID 6.05 without, 6.06 with it), a hundred times as much a little (6.62), a thousand times much (8.65). On
# CIFAR-10 ten times the paper's beta is the best of four for VICReg, and raises LID by 0.2 for Barlow Twins, whose
# loss is 400.
_BETAS = (0.3, 1.0, 3.0, 10.0)
_WIDER: Mapping[str, tuple[float, ...]] = {
    "mae": (1.0, 10.0, 100.0, 1000.0),
    "vicreg": (*_BETAS, 30.0),
    "barlow_twins": (*_BETAS, 30.0, 100.0),
}
_PAPERS = {"moco_v3": "moco"}  # methods of which the paper knows one version
_NEIGHBORS = (1.0, 0.25, 2.0)  # of the scale's k
# Rates that are tried first, by scale and method; other methods keep their recipe's.
_RATES: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "cifar10": {"simclr": (0.06, 0.12, 0.24, 0.48), "byol": (0.06, 0.12, 0.24, 0.48)}
}


@dataclass(frozen=True)
class Choice:
    """What was chosen for a method: beta of so many that were tried, then k of so many, at the beta `k_at`."""

    method: str
    beta: float
    k: int
    betas: int
    ks: int = 1
    k_at: float = math.nan  # where k was the only one, and so not chosen


def rows(scale: Scale) -> list[Row]:
    """Every method without LDReg, some with several learning rates; with several strengths; with several k."""
    found: list[Row] = []
    for method in methods(scale):
        title = METHODS[method]
        rates = _RATES.get(scale.name, {}).get(method, ())
        own = _rate(scale.arm(method)) if rates else None
        plain = {rate: _aside(scale, method, rate) for rate in (rates if rates and not _long(scale) else (own,))}
        base = len(found) + list(plain).index(own)
        names = [title if rate is None else f"{title}, learning rate {rate:g}" for rate in plain]
        found += [Row((name, "-", "-"), arm, group=method) for name, arm in zip(names, plain.values(), strict=True)]
        for beta, k in _tried(scale, method):
            arm = _aside(scale, f"{method}_ldreg", own).but(ldreg__beta=beta, ldreg__k=k)
            found.append(Row((title, beta, str(k)), arm, baseline=base, group=method))
    return found


def _tried(scale: Scale, method: str) -> list[tuple[str, int]]:
    """The settings of LDReg that are tried, each once: strengths at the scale's k, then k at the recipe's strength."""
    usual = float(beta_of(Arm(f"imagenet/{_PAPERS.get(method, method)}_ldreg")))
    found = [(f"{factor * usual:g}", scale.k) for factor in _WIDER.get(method, _BETAS)]
    if not _long(scale):
        found += [(beta_of(scale.arm(f"{method}_ldreg")), round(factor * scale.k)) for factor in _NEIGHBORS]
    return list(dict.fromkeys(found))


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
    """What the rules choose for each method of which at least two strengths were tried."""
    found = []
    for method in methods(scale):
        strengths = _comparable(scale, gathered, method, k=scale.k)
        if len(strengths) > 1:
            beta, _ = _options(_of_highest_lid(strengths))
            found.append(_with_k(Choice(method, beta, scale.k, len(strengths)), scale, gathered))
    return found


def _with_k(choice: Choice, scale: Scale, gathered: Gathered) -> Choice:
    """The choice with the k that the rule takes, where the usual one and at least one other were tried."""
    own = float(beta_of(scale.arm(f"{choice.method}_ldreg")))
    tried = _comparable(scale, gathered, choice.method, beta=own)
    usual = [arm for arm in _arms(scale, choice.method, regularized=True) if _options(arm) == (own, scale.k)]
    others = len(tried.keys() - set(usual))
    if not others or not any(arm in tried or collapses(gathered.get(arm, ())) for arm in usual):
        return choice
    near = [_options(arm)[1] for arm in _near_the_best(tried)]
    return replace(choice, k=scale.k if scale.k in near else near[0], ks=others + 1, k_at=own)


def rates(scale: Scale, gathered: Gathered) -> dict[str, float]:
    """The learning rate of the best linear accuracy, by method, where at least two were tried."""
    found = {}
    for method in _RATES.get(scale.name, {}):
        tried = _comparable(scale, gathered, method)
        if len(tried) > 1:
            found[method] = _rate(max(tried, key=lambda arm: sample(tried[arm], "linear").mean))
    return found


def _options(arm: Arm) -> tuple[float, int]:
    """Beta and k of an arm with LDReg."""
    told = dict(arm.options)
    return float(told["ldreg.beta"]), int(told["ldreg.k"])


def _arms(scale: Scale, method: str, *, regularized: bool) -> list[Arm]:
    return [row.arm for row in rows(scale) if row.group == method and (row.baseline is not None) == regularized]


def _comparable(
    scale: Scale, gathered: Gathered, method: str, *, beta: float | None = None, k: int | None = None
) -> Gathered:
    """The records of a method's settings that collapsed with no seed, of the seeds that all of them have.

    Settings are those of LDReg with this beta or this k; without either, those without LDReg. One without any accuracy
    has nothing to be compared by, and does not keep the others from it.
    """
    plain = beta is None and k is None
    arms = _arms(scale, method, regularized=not plain)
    if not plain:
        arms = [arm for arm in arms if _options(arm)[0] == beta or _options(arm)[1] == k]
    known = {arm: found for arm in arms if (found := gathered.get(arm)) and not collapses(found)}
    seeds = {arm: told for arm, records in known.items() if (told := set(sample(records, "linear").by_seed))}
    shared = set.intersection(*seeds.values()) if seeds else set()
    return {arm: [record for record in known[arm] if record.origin.get("seed") in shared] for arm in seeds if shared}


def _near_the_best(tried: Gathered) -> list[Arm]:
    """Those whose linear accuracy is within one standard error of the best, from the best on."""
    accuracies = {arm: sample(records, "linear") for arm, records in tried.items()}
    best = max(accuracies.values(), key=lambda each: each.mean)
    share = best.mean / 100
    error = 100 * math.sqrt(share * (1 - share) / best.test_size) if best.test_size else 0.0
    near = [arm for arm in tried if accuracies[arm].mean >= best.mean - error]
    return sorted(near, key=lambda arm: accuracies[arm].mean, reverse=True)


def _of_highest_lid(tried: Gathered) -> Arm:
    lids = {arm: sample(tried[arm], "lid").mean for arm in _near_the_best(tried)}
    return max(lids, key=lambda arm: lids[arm] if math.isfinite(lids[arm]) else -math.inf)


def in_words(scale: Scale, gathered: Gathered) -> str:
    """What was chosen, in a sentence; empty where nothing was."""
    found = rates(scale, gathered)
    told = [f"{METHODS[method]} learning rate {rate:g}" for method, rate in found.items()]
    for choice in choices(scale, gathered):
        own = _rate(scale.arm(choice.method))
        at = f", at learning rate {own:g}" if found.get(choice.method, own) != own else ""
        told.append(
            f"{METHODS[choice.method]} beta = {choice.beta:g} (of {choice.betas} tried{at}){_k_in_words(choice)}"
        )
    return f"Chosen: {'; '.join(told)}." if told else ""


def _k_in_words(choice: Choice) -> str:
    """The k that was chosen; nothing of one that had no other beside it."""
    if choice.ks == 1:
        return ""
    at = "" if math.isclose(choice.k_at, choice.beta) else f", at beta = {choice.k_at:g}"
    return f" and k = {choice.k} (of {choice.ks} tried{at})"
