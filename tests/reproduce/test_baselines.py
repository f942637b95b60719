from itertools import combinations as pairs
from pathlib import Path

import numpy as np
import pytest

from ldreg.record import Record
from ldreg.reproduce.baselines import L18, accuracy, choose, combinations
from ldreg.reproduce.studies import BASELINES, SCALES, STUDIES

RESULTS = Path(__file__).parents[2] / "results" / "cifar10"
ARRAY = np.array([[int(digit) for digit in digits] for digits in L18])
COUNTS = [2, 3, 3, 3, 3, 3, 3, 3]


def test_every_two_values_of_two_settings_meet_equally_often() -> None:
    for first, second in pairs(range(8), 2):
        meetings = np.zeros((COUNTS[first], COUNTS[second]))
        np.add.at(meetings, (ARRAY[:, first], ARRAY[:, second]), 1)
        assert (meetings == meetings[0, 0]).all()


def accuracies(*, seed: int = 0, noise: float = 0.2) -> tuple[np.ndarray, list[int]]:
    """Accuracies of 18 runs by a sum of terms of seven settings, and the best value of each."""
    rng = np.random.default_rng(seed)
    terms = [rng.permutation([0.0, 2.0, 4.0][:count]) for count in COUNTS[:7]]
    values = 70 + sum(term[ARRAY[:, place]] for place, term in enumerate(terms))
    return values + noise * rng.standard_normal(18), [int(term.argmax()) for term in terms]


@pytest.mark.parametrize("seed", range(5))
def test_the_best_value_of_each_setting_is_chosen(seed: int) -> None:
    measured, best = accuracies(seed=seed)
    assert choose(measured, COUNTS[:7]) == best


def test_without_a_difference_beyond_noise_the_first_value_stays() -> None:
    rng = np.random.default_rng(1)
    chosen = [choose(70 + rng.standard_normal(18), COUNTS[:7]) for _ in range(200)]
    assert np.mean(np.array(chosen) == 0) > 0.5  # by chance alone a third of them, and half of the first setting


def test_runs_that_collapsed_are_left_out() -> None:
    measured, best = accuracies()
    measured[3] = np.nan
    assert choose(measured, COUNTS[:7]) == best
    worst = ARRAY[:, 3] == best[3]
    measured[worst] = np.nan
    assert choose(measured, COUNTS[:7])[3] != best[3]


@pytest.mark.parametrize("method", BASELINES["settings"])
def test_each_method_has_18_runs_of_their_own(method: str) -> None:
    settings = BASELINES["settings"][method]
    assert [len(values) for values in settings.values()] == COUNTS[: len(settings)]
    assert len({str(options) for options in combinations(settings)}) == 18
    rows = [row for row in STUDIES["baselines"].rows(SCALES["cifar10"]) if row.group == method]
    assert all(("data.validation", "0.1") in row.arm.options for row in rows)


@pytest.mark.parametrize("method", BASELINES["chosen"])
def test_what_was_chosen_follows_from_the_records(method: str) -> None:
    rows = [row for row in STUDIES["baselines"].rows(SCALES["cifar10"]) if row.group == method]
    records = [Record.from_json(RESULTS / f"{row.arm.slug}-seed0.json") for row in rows[: len(L18)]]
    measured = [accuracy(record.results) for record in records]
    counts = [len(values) for values in BASELINES["settings"][method].values()]
    assert choose(measured, counts) == BASELINES["chosen"][method]
