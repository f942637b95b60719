"""How recipes are chosen: by short runs on nine tenths of the training images, judged by the other tenth.

The test images have no say, and the rules were set before the runs they judge. First come the recipes without LDReg,
by `choose`, and learning rates, by linear accuracy. Then beta, at the scale's k: the one of highest LID among those
whose linear accuracy is within one standard error of the best (Breiman et al., Classification and Regression Trees,
1984, have this rule for the size of a tree). Last k, at the recipe's beta: the scale's where its linear accuracy is
within one standard error of the best, else the best. LID has no say in it: beta was raised as far as accuracy allows,
and a smaller k is a stronger LDReg once more. Runs longer than the scale's search vary beta alone, and what they choose
counts: a strength that helps a short run may be too much for a long one.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean, mean
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ldreg.record import Record
from ldreg.reproduce.statistics import collapses, sample
from ldreg.reproduce.studies import (
    BASELINES,
    METHODS,
    SEARCH,
    STUDIES,
    Arm,
    Records,
    Row,
    Scale,
    recipe_settings,
    with_options,
)

# Taguchi's orthogonal array L18. Each run has a value for each of up to eight settings: two values of the first
# setting, three of the others. Every two values of two settings meet equally often.
L18 = (
    "00000000", "00111111", "00222222", "01001122", "01112200", "01220011", "02010212", "02121020", "02202101",
    "10022110", "10100221", "10211002", "11012021", "11120102", "11201210", "12021201", "12102012", "12210120",
)  # fmt: skip


def neighborhood_rows(scale: Scale) -> Iterator[Row]:
    """Methods without LDReg and with several k: the usual one and the recipe's where they differ; MoCo with more.

    At the scale of imagenet no k was chosen; its k are those of the paper.
    """
    count = 0
    for method in scale.methods if scale.name != "imagenet" else ():
        own, recipe = scale.arm(f"{method}_ldreg"), recipe_settings(f"{scale.name}/{method}_ldreg").regularizer
        others = (scale.k // 4, 2 * scale.k) if method == "moco" else ()
        tried = sorted({scale.k, recipe["k"], *others})
        if len(tried) > 1:
            baseline, count = count, count + 1 + len(tried)
            yield Row((METHODS[method], "-", "-"), scale.arm(method))
            for k in tried:
                names = (METHODS[method], f"LDReg, β {recipe['beta']:g}", str(k))
                yield Row(names, with_options(own, {"ldreg.k": k}), baseline=baseline)


def search_rows(scale: Scale) -> Iterator[Row]:
    """Every method without LDReg, some with several learning rates; with several strengths; with several k.

    All options are in the names of the runs, since recipes change by what the search finds.
    """
    count = 0
    for method in scale.methods:
        title, rates = METHODS[method], scale.search_rates.get(method, ())
        own = recipe_settings(f"{scale.name}/{method}").optimizer.lr if rates else None
        tried = rates if rates and not _longer(scale) else (own,)
        for rate in tried:
            name = title if rate is None else f"{title}, learning rate {rate:g}"
            yield Row((name, "-", "-"), _search_arm(scale, method, rate), group=method)
        pairs = _beta_and_k_tried(scale, method)
        for beta, k in pairs:
            arm = _search_arm(scale, f"{method}_ldreg", own).but(ldreg__beta=beta, ldreg__k=k)
            yield Row((title, beta, str(k)), arm, baseline=count + list(tried).index(own), group=method)
        count += len(tried) + len(pairs)


def _longer(scale: Scale) -> bool:
    return scale.epochs is not None and scale.epochs > scale.search_epochs


def _beta_and_k_tried(scale: Scale, method: str) -> list[tuple[str, int]]:
    """Each pair once: strengths at the scale's k, then k at the recipe's beta."""
    of_paper = recipe_settings(f"imagenet/{'moco' if method == 'moco_v3' else method}_ldreg").regularizer["beta"]
    factors = SEARCH["betas_of"].get(method, SEARCH["betas"])
    pairs = [(f"{factor * float(f'{of_paper:g}'):g}", scale.k) for factor in factors]
    if not _longer(scale):
        beta = _recipe_beta(scale, method)
        pairs += [(f"{beta:g}", round(factor * scale.k)) for factor in SEARCH["neighbors"]]
    return list(dict.fromkeys(pairs))


def _recipe_beta(scale: Scale, method: str) -> float:
    return float(recipe_settings(f"{scale.name}/{method}_ldreg").regularizer["beta"])


def _search_arm(scale: Scale, recipe: str, rate: float | None) -> Arm:
    arm = scale.arm(recipe).but(data__validation=SEARCH["validation"])
    arm = arm if rate is None else arm.but(optimizer__lr=f"{rate:g}")
    return arm if scale.epochs is not None else arm.but(schedule__epochs=scale.search_epochs)


def baseline_rows(scale: Scale) -> Iterator[Row]:
    """The runs that choose the recipes without LDReg; all settings are in their names, since recipes change by them."""
    for method, settings in BASELINES["settings"].items():
        values = list(settings.values())
        runs = [[int(digit) for digit in digits[: len(values)]] for digits in L18]
        runs += [BASELINES["chosen"][method]] if method in BASELINES["chosen"] else []
        for number, places in enumerate(runs, start=1):
            options: dict[str, Any] = {}
            for choices_of_one, place in zip(values, places, strict=True):
                options |= choices_of_one[place]
            arm = Arm(f"{scale.name}/{method}").but(data__validation=SEARCH["validation"])
            arm = arm.but(schedule__epochs=scale.epochs or BASELINES["epochs"]).but(**options)
            text = ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in options.items())
            yield Row((METHODS[method], "chosen" if number > len(L18) else str(number), text), arm, group=method)


def accuracy(results: Mapping[str, float]) -> float:
    """The linear accuracy of a run; NaN if it collapsed, to an effective rank below 2."""
    return results["linear"] if results["effective_rank"] >= 2 else math.nan


def choose(accuracies: ArrayLike, counts: Sequence[int], confirmation: float = math.nan) -> list[int]:
    """The value of each setting of a recipe without LDReg, by 18 runs that vary all settings at once.

    1. Runs that collapsed are left out; so is a value that two of them have.
    2. Linear accuracy is fitted by a sum of one term for each setting (least squares).
    3. A setting takes the value of highest accuracy. It keeps the first value, the paper's where that carries over to
       this scale, if that one is within a standard error of the highest.
    4. One more run has the chosen combination. If the best of the 18 is more accurate by over the deviation of a run
       from the fit, the sum did not hold, and the combination of that run is taken.

    Args:
        accuracies: of the 18 runs, in the order of `L18`; NaN for a run that collapsed.
        counts: number of values of each setting.
        confirmation: accuracy of the run of step 4; NaN before it is run.
    """
    array = np.array([[int(digit) for digit in digits[: len(counts)]] for digits in L18])
    accuracies = np.asarray(accuracies, dtype=float)
    known = np.isfinite(accuracies)
    columns = [np.ones(len(L18))]
    columns += [array[:, place] == value for place, count in enumerate(counts) for value in range(1, count)]
    design, measured = np.stack(columns, axis=1)[known].astype(float), accuracies[known]
    terms, *_ = np.linalg.lstsq(design, measured, rcond=None)
    freedom = len(measured) - np.linalg.matrix_rank(design)
    deviation = math.sqrt(float(np.sum((measured - design @ terms) ** 2)) / freedom) if freedom > 0 else 0.0
    chosen, place = [], 1
    for setting, count in enumerate(counts):
        means = np.array([0.0, *terms[place : place + count - 1]])
        collapsed = [int((~known & (array[:, setting] == value)).sum()) for value in range(count)]
        means[[number > 1 for number in collapsed]] = -math.inf
        error = deviation * math.sqrt(2 * count / len(L18))
        best = int(np.argmax(means))
        chosen.append(0 if means[0] >= means[best] - error else best)
        place += count - 1
    winner = int(np.nanargmax(accuracies))
    return array[winner].tolist() if accuracies[winner] > confirmation + deviation else chosen


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
        arms = {_beta_and_k(row.arm): row.arm for row in _rows(scale, method) if row.baseline is not None}
        tried = _comparable([arm for (_, k), arm in arms.items() if k == scale.k], records)
        if len(tried) < 2:
            continue
        near = _near_the_best(tried)
        lids = {arm: lid for arm in near if math.isfinite(lid := sample(tried[arm], "lid").mean)}
        beta, _ = _beta_and_k(max(lids, key=lambda arm: lids[arm]) if lids else near[0])
        choice, own = Choice(method, beta, scale.k, len(tried)), _recipe_beta(scale, method)
        tried = _comparable([arm for (beta, _), arm in arms.items() if beta == own], records)
        usual = arms.get((own, scale.k))
        others = len(tried.keys() - {usual})
        if others and usual is not None and (usual in tried or collapses(records.get(usual, ()))):
            ks = [_beta_and_k(arm)[1] for arm in _near_the_best(tried)]
            choice = replace(choice, k=scale.k if scale.k in ks else ks[0], ks=others + 1, k_at=own)
        found.append(choice)
    return found


def rates(scale: Scale, records: Records) -> dict[str, float]:
    """The learning rate of the best linear accuracy, by method, where at least two were tried."""
    found = {}
    for method in scale.search_rates:
        tried = _comparable([row.arm for row in _rows(scale, method) if row.baseline is None], records)
        if len(tried) > 1:
            best = max(tried, key=lambda arm: sample(tried[arm], "linear").mean)
            found[method] = float(dict(best.options)["optimizer.lr"])
    return found


def shared_strength(scale: Scale, records: Records) -> str:
    """The strength that the rule of `share_search` chooses, as its rows name it; empty before all runs are there."""
    tried: dict[str, list[Sequence[Record]]] = {}
    for row in STUDIES["share_search"].rows(scale):
        tried.setdefault(row.names[1], []).append(records.get(row.arm, ()))
    if not all(map(all, tried.values())):
        return ""
    known = {strength: runs for strength, runs in tried.items() if not any(map(collapses, runs))}
    if not known:
        return ""
    accuracies = {strength: mean(sample(run, "linear").mean for run in runs) for strength, runs in known.items()}
    best = max(accuracies, key=lambda strength: accuracies[strength])
    least = accuracies[best] - _standard_error(accuracies[best], sample(known[best][0], "linear").test_size)
    near = [strength for strength, value in accuracies.items() if value >= least]
    return max(near, key=lambda strength: geometric_mean(sample(run, "lid").mean for run in known[strength]))


def _beta_and_k(arm: Arm) -> tuple[float, int]:
    options = dict(arm.options)
    return float(options["ldreg.beta"]), int(options["ldreg.k"])


def _rows(scale: Scale, method: str) -> list[Row]:
    return [row for row in STUDIES["search"].rows(scale) if row.group == method]


def _comparable(arms: Sequence[Arm], records: Records) -> Records:
    """The records of the arms that collapsed with no seed, of the seeds that all of them have."""
    known = {arm: found for arm in arms if (found := records.get(arm)) and not collapses(found)}
    seeds = {arm: own for arm, found in known.items() if (own := set(sample(found, "linear").by_seed))}
    shared = set.intersection(*seeds.values()) if seeds else set()
    return {arm: [record for record in known[arm] if record.origin.get("seed") in shared] for arm in seeds if shared}


def _near_the_best(tried: Records) -> list[Arm]:
    """The arms whose linear accuracy is within one standard error of the best, best first."""
    accuracies = {arm: sample(records, "linear") for arm, records in tried.items()}
    best = max(accuracies.values(), key=lambda each: each.mean)
    error = _standard_error(best.mean, best.test_size)
    near = [arm for arm in tried if accuracies[arm].mean >= best.mean - error]
    return sorted(near, key=lambda arm: accuracies[arm].mean, reverse=True)


def _standard_error(accuracy: float, images: int | None) -> float:
    """Of an accuracy in percent, by the number of images that it is measured on."""
    return math.sqrt(accuracy * (100 - accuracy) / images) if images else 0.0


def in_words(scale: Scale, records: Records) -> str:
    """What was chosen, in a sentence; empty where nothing was."""
    found = rates(scale, records)
    parts = [f"{METHODS[method]} learning rate {rate:g}" for method, rate in found.items()]
    for choice in choices(scale, records):
        own = float(recipe_settings(f"{scale.name}/{choice.method}").optimizer.lr)
        at = f", at learning rate {own:g}" if found.get(choice.method, own) != own else ""
        at_beta = "" if math.isclose(choice.k_at, choice.beta) else f", at beta = {choice.k_at:g}"
        k = f" and k = {choice.k} (of {choice.ks} tried{at_beta})" if choice.ks > 1 else ""
        parts.append(f"{METHODS[choice.method]} beta = {choice.beta:g} (of {choice.betas} tried{at}){k}")
    return f"Chosen: {'; '.join(parts)}." if parts else ""
