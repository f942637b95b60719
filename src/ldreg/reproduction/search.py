"""How beta and k of the recipes are chosen: short runs on a part of the training images, judged by the rest of them.

The test images have no say. The rule was set before the runs: of all that was tried for a method, the setting of
highest LID among those whose linear accuracy is within one standard error of the best (Breiman et al., Classification
and Regression Trees, 1984, have this rule for the size of a tree).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ldreg.reporting.run_record import RunRecord
from ldreg.reproduction.effects import sample
from ldreg.reproduction.jobs import Arm, Job
from ldreg.reproduction.rows import METHODS, Row, beta_of
from ldreg.reproduction.scales import Scale

VALIDATION = 0.1  # share of the training images that judges

# Of the paper's beta for the method, and of the scale's k; k varies at the paper's beta for the methods that tables
# have with several seeds.
_BETAS = (0.3, 1.0, 3.0, 10.0)
_NEIGHBORS = (0.25, 0.5, 2.0)
_WITH_K = ("simclr", "byol")


@dataclass(frozen=True)
class Choice:
    """What was chosen for a method, of how many settings that were tried."""

    method: str
    beta: float
    k: int
    tried: int


def rows(scale: Scale) -> list[Row]:
    """Every method without LDReg, with several strengths, and some with several neighborhood sizes."""
    found: list[Row] = []
    for method, title in METHODS.items():
        base = len(found)
        found.append(Row((title, "-", "-"), _aside(scale, method), group=method))
        usual = float(beta_of(Arm(f"imagenet/{method}_ldreg")))
        tried = [(factor * usual, scale.k) for factor in _BETAS]
        tried += [(usual, round(factor * scale.k)) for factor in _NEIGHBORS if method in _WITH_K]
        for beta, k in tried:
            arm = _aside(scale, f"{method}_ldreg").but(ldreg__beta=f"{beta:g}", ldreg__k=k)
            found.append(Row((title, f"{beta:g}", str(k)), arm, baseline=base, group=method))
    return found


def _aside(scale: Scale, recipe: str) -> Arm:
    arm = scale.arm(recipe).but(data__validation=VALIDATION)
    return arm if scale.epochs is not None else arm.but(schedule__epochs=scale.search_epochs)


def choices(scale: Scale, gathered: Mapping[Arm, Sequence[RunRecord]]) -> list[Choice]:
    """What the rule chooses for each method of which at least two settings were tried."""
    found = []
    for method in METHODS:
        tried = [row for row in rows(scale) if row.group == method and row.baseline is not None]
        known = [row for row in tried if sample(gathered.get(row.arm, ()), "linear").values]
        if len(known) > 1:
            best = _chosen([(row.arm, gathered[row.arm]) for row in known])
            options = Job(best, 0).settings.regularizer
            found.append(Choice(method, float(options["beta"]), int(options["k"]), len(known)))
    return found


def _chosen(tried: Sequence[tuple[Arm, Sequence[RunRecord]]]) -> Arm:
    accuracies = {arm: sample(records, "linear") for arm, records in tried}
    best = max(accuracies.values(), key=lambda each: each.mean)
    share = best.mean / 100
    error = 100 * math.sqrt(share * (1 - share) / best.test_size) if best.test_size else 0.0
    near = [(arm, records) for arm, records in tried if accuracies[arm].mean >= best.mean - error]
    return max(near, key=lambda pair: sample(pair[1], "lid").mean)[0]


def in_words(scale: Scale, gathered: Mapping[Arm, Sequence[RunRecord]]) -> str:
    """What was chosen, in a sentence; empty where nothing was."""
    told = [
        f"{METHODS[choice.method]} beta = {choice.beta:g} and k = {choice.k} (of {choice.tried} tried)"
        for choice in choices(scale, gathered)
    ]
    return f"Chosen: {'; '.join(told)}." if told else ""
