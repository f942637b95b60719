"""How the recipes without LDReg are chosen: all settings varied at once, judged by a part of the training images.

Each method is trained with 18 combinations of its settings, by Taguchi's orthogonal array L18: every two values of two
settings meet equally often, so the means over the values of a setting are comparable. The rule, set before the runs:

1. Runs that collapsed, to an effective rank below 2, are left out; so is a value that two of them have.
2. Linear accuracy on the validation images is fitted by a sum of one term for each setting (least squares).
3. A setting takes the value of highest accuracy. It keeps the first value, the paper's where that carries over to this
   scale, if that one is within a standard error of the highest.
4. One more run has the chosen combination. If the accuracy of the best of the 18 is higher by more than a standard
   error, the sum did not hold, and the combination of that run is taken.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

# The values of up to eight settings in each run: two of the first setting, three of the others.
L18 = (
    "00000000", "00111111", "00222222", "01001122", "01112200", "01220011", "02010212", "02121020", "02202101",
    "10022110", "10100221", "10211002", "11012021", "11120102", "11201210", "12021201", "12102012", "12210120",
)  # fmt: skip

Values = Sequence[Mapping[str, Any]]  # of one setting: options of `ldreg pretrain`, the first value first


def combinations(settings: Mapping[str, Values]) -> list[dict[str, Any]]:
    """The options of the 18 runs; the setting of two values comes first."""
    return [combined(settings, [int(digit) for digit in digits[: len(settings)]]) for digits in L18]


def combined(settings: Mapping[str, Values], chosen: Sequence[int]) -> dict[str, Any]:
    """The options of one value for each setting."""
    parts = zip(settings.values(), chosen, strict=True)
    return {key: value for values, place in parts for key, value in values[place].items()}


def accuracy(results: Mapping[str, float]) -> float:
    """The linear accuracy of a run; NaN if it collapsed."""
    return results["linear"] if results["effective_rank"] >= 2 else math.nan


def choose(accuracies: ArrayLike, counts: Sequence[int]) -> list[int]:
    """The value of each setting that the rule chooses.

    Args:
        accuracies: of the 18 runs, in the order of `L18`; NaN for a run that collapsed.
        counts: number of values of each setting.
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
    return chosen
