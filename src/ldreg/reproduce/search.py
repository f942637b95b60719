"""How beta and k of the recipes are chosen: short runs on a part of the training images, judged by the rest of them.

The test images have no say. The rules were set before the runs they judge. Learning rates come first, without LDReg, so
that LDReg gets no credit for a rate that suits it: the one of the best linear accuracy. Then beta, at the scale's k:
the one of highest LID among those whose linear accuracy is within one standard error of the best (Breiman et al.,
Classification and Regression Trees, 1984, have this rule for the size of a tree). Last k, at the recipe's beta: the
scale's where its linear accuracy is within one standard error of the best, else the best. LID has no say in it: beta
was raised as far as accuracy allows, and a smaller k is a stronger LDReg once more. Runs longer than the scale's search
vary beta alone, and what they choose counts: a strength that helps a short run may be too much for a long one.
"""

import math
from dataclasses import dataclass, replace

from ldreg.reproduce.jobs import Arm
from ldreg.reproduce.statistics import Records, collapses, sample
from ldreg.reproduce.studies import METHODS, STUDIES, Scale, recipe_settings


@dataclass(frozen=True)
class Choice:
    """What was chosen for a method: beta of `betas` tried, then k of `ks` tried, at the beta `k_at`."""

    method: str
    beta: float
    k: int
    betas: int
    ks: int = 1
    k_at: float = math.nan  # where one k was tried, and so none chosen


def choices(scale: Scale, records: Records) -> list[Choice]:
    """What the rules choose for each method with at least two strengths tried."""
    found = []
    for method in scale.methods:
        tried = _comparable(scale, records, method, k=scale.k)
        if len(tried) > 1:
            near = _near_the_best(tried)
            lids = {arm: lid for arm in near if math.isfinite(lid := sample(tried[arm], "lid").mean)}
            beta, _ = _beta_and_k(max(lids, key=lambda arm: lids[arm]) if lids else near[0])
            found.append(_with_k(Choice(method, beta, scale.k, len(tried)), scale, records))
    return found


def _with_k(choice: Choice, scale: Scale, records: Records) -> Choice:
    """The choice with the k by the rule, where the usual k and at least one other were tried."""
    own = float(recipe_settings(f"{scale.name}/{choice.method}_ldreg").regularizer["beta"])
    tried = _comparable(scale, records, choice.method, beta=own)
    usual = [arm for arm in _arms(scale, choice.method, regularized=True) if _beta_and_k(arm) == (own, scale.k)]
    others = len(tried.keys() - set(usual))
    if not others or not any(arm in tried or collapses(records.get(arm, ())) for arm in usual):
        return choice
    near = [_beta_and_k(arm)[1] for arm in _near_the_best(tried)]
    return replace(choice, k=scale.k if scale.k in near else near[0], ks=others + 1, k_at=own)


def rates(scale: Scale, records: Records) -> dict[str, float]:
    """The learning rate of the best linear accuracy, by method, where at least two were tried."""
    found = {}
    for method in scale.search_rates:
        tried = _comparable(scale, records, method)
        if len(tried) > 1:
            best = max(tried, key=lambda arm: sample(tried[arm], "linear").mean)
            found[method] = float(dict(best.options)["optimizer.lr"])
    return found


def _beta_and_k(arm: Arm) -> tuple[float, int]:
    options = dict(arm.options)
    return float(options["ldreg.beta"]), int(options["ldreg.k"])


def _arms(scale: Scale, method: str, *, regularized: bool) -> list[Arm]:
    rows = STUDIES["search"].rows(scale)
    return [row.arm for row in rows if row.group == method and (row.baseline is not None) == regularized]


def _comparable(
    scale: Scale, records: Records, method: str, *, beta: float | None = None, k: int | None = None
) -> Records:
    """The records of a method's settings that collapsed with no seed, of the seeds that all of them have.

    Settings are those of LDReg with this beta or this k; without either, those without LDReg. A setting without any
    accuracy is left out.
    """
    plain = beta is None and k is None
    arms = _arms(scale, method, regularized=not plain)
    if not plain:
        arms = [arm for arm in arms if _beta_and_k(arm)[0] == beta or _beta_and_k(arm)[1] == k]
    known = {arm: found for arm in arms if (found := records.get(arm)) and not collapses(found)}
    seeds = {arm: own for arm, found in known.items() if (own := set(sample(found, "linear").by_seed))}
    shared = set.intersection(*seeds.values()) if seeds else set()
    return {arm: [record for record in known[arm] if record.origin.get("seed") in shared] for arm in seeds if shared}


def _near_the_best(tried: Records) -> list[Arm]:
    """The arms whose linear accuracy is within one standard error of the best, best first."""
    accuracies = {arm: sample(records, "linear") for arm, records in tried.items()}
    best = max(accuracies.values(), key=lambda each: each.mean)
    share = best.mean / 100
    error = 100 * math.sqrt(share * (1 - share) / best.test_size) if best.test_size else 0.0
    near = [arm for arm in tried if accuracies[arm].mean >= best.mean - error]
    return sorted(near, key=lambda arm: accuracies[arm].mean, reverse=True)


def in_words(scale: Scale, records: Records) -> str:
    """What was chosen, in a sentence; empty where nothing was."""
    found = rates(scale, records)
    parts = [f"{METHODS[method]} learning rate {rate:g}" for method, rate in found.items()]
    for choice in choices(scale, records):
        own = float(recipe_settings(f"{scale.name}/{choice.method}").optimizer.lr)
        at = f", at learning rate {own:g}" if found.get(choice.method, own) != own else ""
        parts.append(
            f"{METHODS[choice.method]} beta = {choice.beta:g} (of {choice.betas} tried{at}){_k_in_words(choice)}"
        )
    return f"Chosen: {'; '.join(parts)}." if parts else ""


def _k_in_words(choice: Choice) -> str:
    if choice.ks == 1:
        return ""
    at = "" if math.isclose(choice.k_at, choice.beta) else f", at beta = {choice.k_at:g}"
    return f" and k = {choice.k} (of {choice.ks} tried{at})"
