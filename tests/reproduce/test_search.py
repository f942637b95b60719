"""The search of beta and k: what is tried, what is chosen, and that recipes carry it."""

import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from tests.reproduce.words import request

from ldreg.record import Record
from ldreg.reproduce import search
from ldreg.reproduce.document import document
from ldreg.reproduce.jobs import Job, read_records, record_paths
from ldreg.reproduce.studies import BASELINES, SCALES, STUDIES, Arm, Scale, recipe_settings
from ldreg.train.settings import record_settings

CIFAR10 = SCALES["cifar10"]
RESULTS = Path(__file__).parents[2] / "results" / "cifar10"


def beta_of(recipe: str) -> str:
    return f"{recipe_settings(recipe).regularizer['beta']:g}"


def record(arm: Arm, *, linear: float, lid: float) -> Record:
    job = Job(arm, 0)
    results = {"linear": linear, "lid": lid, "effective_rank": 40.0, "knn": 0.6}
    return Record(job.name, record_settings(job.settings), results, origin={"seed": 0, "held_out": 5000, "epochs": 20})


def of_simclr(**found: tuple[float, float]) -> dict[Arm, list[Record]]:
    """Records by the beta in the name, with _ for the point and k = 64, or by k at the recipe's beta: (linear, lid)."""
    rows = {row.names: row.arm for row in STUDIES["search"].rows(CIFAR10)}
    own = beta_of("cifar10/simclr_ldreg")
    names = {name: (own, name[1:]) if name.startswith("k") else (name.replace("_", "."), "64") for name in found}
    arms = {name: rows["SimCLR", *names[name]] for name in found}
    return {arms[name]: [record(arms[name], linear=linear, lid=lid)] for name, (linear, lid) in found.items()}


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_every_method_is_tried_with_strengths_and_k_on_a_part_of_the_training_images(scale: Scale) -> None:
    rows = STUDIES["search"].rows(scale)
    assert len({row.arm.slug for row in rows}) == len(rows)
    assert {(dict(row.arm.options)["data.validation"], row.arm.recipe.partition("/")[0]) for row in rows} == {
        ("0.1", scale.name)
    }
    last = {row.group: Job(row.arm, 0).settings for row in rows if row.baseline is not None}
    assert list(last) == list(scale.methods)
    assert all(settings.data.validation == 0.1 for settings in last.values()), "its settings are valid"
    assert len({settings.schedule.epochs for settings in last.values()}) == 1
    for method in scale.methods:
        tried = [row for row in rows if row.group == method and row.baseline is not None]
        own, paper = (
            beta_of(f"{place}_ldreg")
            for place in (f"{scale.name}/{method}", f"imagenet/{'moco' if method == 'moco_v3' else method}")
        )
        assert (paper, str(scale.k)) in [row.names[1:] for row in tried]
        assert {row.names[2] for row in tried if row.names[1] == own} == {
            str(scale.k), str(scale.k // 4), str(2 * scale.k)
        }  # fmt: skip
        if scale is CIFAR10:
            times = {"mae": 1000, "vicreg": 30, "barlow_twins": 100}.get(method, 10)  # by the size of its loss
            assert max(float(row.names[1]) for row in tried) == pytest.approx(times * float(paper))
        if method in scale.search_rates:
            rate = str(Job(scale.arm(method), 0).settings.optimizer.lr)
            compared = [*tried, *(rows[row.baseline or 0] for row in tried)]
            assert {dict(row.arm.options)["optimizer.lr"] for row in compared} == {rate}


SHORT = {"0_003": (0.70, 13.0), "0_01": (0.70, 15.0)}
BOTH_K = {"0_003": (0.70, 13.0), "0_03": (0.70, 19.0), "k16": (0.706, 30.0), "k128": (0.69, 40.0)}


@pytest.mark.parametrize(
    ("found", "beta", "k", "ks"),
    [
        # Of 5000 images at 70 % the standard error is 0.648 points.
        ({"0_003": (0.70, 13.0), "0_01": (0.6940, 15.0), "0_03": (0.6930, 19.0)}, 0.01, 64, 1),
        ({"0_003": (0.70, 13.0), "0_01": (0.6940, 15.0), "0_03": (0.6936, 19.0)}, 0.03, 64, 1),
        pytest.param({**SHORT, "0_1": (0.70, math.nan)}, 0.01, 64, 1, id="an unknown LID is not the highest"),
        pytest.param({**SHORT, "0_1": (math.nan, 30.0)}, 0.01, 64, 1, id="a setting without accuracy"),
        # The usual k unless another is better by a standard error, whatever LID it has.
        (BOTH_K, 0.03, 64, 3),
        ({**BOTH_K, "k16": (0.7066, 10.0)}, 0.03, 16, 3),
        ({**BOTH_K, "k16": (0.7066, 10.0), "k128": (0.71, 9.0)}, 0.03, 128, 3),
        pytest.param({**SHORT, "k16": (0.75, 16.0), "k128": (0.72, 12.0)}, 0.01, 64, 1, id="no usual k"),
        pytest.param({**SHORT, "0_03": (math.nan, 14.0), "k16": (0.75, 16.0)}, 0.01, 64, 1, id="usual k not known"),
    ],
)
def test_the_rule_chooses(found: dict[str, tuple[float, float]], beta: float, k: int, ks: int) -> None:
    [choice] = search.choices(CIFAR10, of_simclr(**found))
    assert (choice.beta, choice.k, choice.ks) == (beta, k, ks)
    betas = sum(name.startswith("0") and not math.isnan(accuracy) for name, (accuracy, _) in found.items())
    assert choice.betas == betas
    assert choice.k_at == pytest.approx(0.03 if ks > 1 else math.nan, nan_ok=True)


def test_what_collapsed_with_any_seed_is_out() -> None:
    found = of_simclr(**SHORT, **{"0_1": (0.70, 30.0)})
    assert search.choices(CIFAR10, found)[0].beta == 0.1
    strong = next(arm for arm in found if "beta0.1-" in arm.slug)
    lost = Record(Job(strong, 1).name, {}, {}, origin={"seed": 1, "failed": "loss is nan"})
    assert search.choices(CIFAR10, found | {strong: [*found[strong], lost]}) == [search.Choice("simclr", 0.01, 64, 2)]
    known = of_simclr(**SHORT, k16=(0.75, 16.0), k128=(0.72, 12.0))
    (usual,) = of_simclr(**{"0_03": (0.70, 14.0)})
    assert search.choices(CIFAR10, known | {usual: [lost]}) == [search.Choice("simclr", 0.01, 16, 2, ks=3, k_at=0.03)]


def test_seeds_that_not_all_settings_have_do_not_count() -> None:
    found = of_simclr(**SHORT)
    weak = next(arm for arm in found if "beta0.003-" in arm.slug)
    lucky = replace(record(weak, linear=0.95, lid=90.0), origin={"seed": 1, "held_out": 5000})
    assert search.choices(CIFAR10, found | {weak: [*found[weak], lucky]})[0].beta == 0.01


def test_longer_runs_choose_beta_where_the_recipes_is_not_among_them() -> None:
    longer = SCALES["digits"].with_epochs(80)
    arms = [row.arm for row in STUDIES["search"].rows(longer) if row.group == "mae" and row.baseline is not None]
    assert "0.01" == beta_of("digits/mae_ldreg") not in {dict(arm.options)["ldreg.beta"] for arm in arms}
    found = {arm: [record(arm, linear=0.7, lid=lid)] for arm, lid in zip(arms, (6.0, 7.0, 9.0, 8.0), strict=True)}
    assert search.choices(longer, found) == [search.Choice("mae", 0.0005, 32, 4)]


def test_the_learning_rate_is_that_of_the_best_accuracy_without_ldreg() -> None:
    rows = STUDIES["search"].rows(CIFAR10)
    arms = {row.names[0]: row.arm for row in rows if row.group == "byol" and row.baseline is None}
    found = {}
    for name, linear, lid in (("0.06", 0.60, 20.0), ("0.12", 0.61, 10.0)):
        arm = arms[f"BYOL, learning rate {name}"]
        found[arm] = [record(arm, linear=linear, lid=lid)]
    assert search.rates(CIFAR10, found) == {"byol": 0.12}
    assert search.choices(CIFAR10, found) == []
    assert search.in_words(CIFAR10, found) == "Chosen: BYOL learning rate 0.12."


def test_the_choice_in_words(tmp_path: Path) -> None:
    baseline = STUDIES["search"].rows(CIFAR10)[0].arm
    alone = {baseline: [record(baseline, linear=0.9, lid=50.0)]}
    for found, words in (
        ({}, ""),
        ({"0_01": (0.7, 15.0)}, ""),
        (SHORT, "Chosen: SimCLR beta = 0.01 (of 2 tried)."),
        (
            {"0_03": (0.70, 16.0), "0_1": (0.70, 20.0), "k16": (0.71, 15.0)},
            "Chosen: SimCLR beta = 0.1 (of 2 tried) and k = 16 (of 2 tried, at beta = 0.03).",
        ),
    ):
        records = {**alone, **of_simclr(**found)}
        assert search.in_words(CIFAR10, records) == words
    for some in records.values():
        some[0].to_json(tmp_path / f"{some[0].name}.json")
    assert words in document([STUDIES["search"]], CIFAR10, tmp_path, what="search", folder="images").text


def test_runs_of_some_methods(tmp_path: Path) -> None:
    asked = request(["search", "--scale", "cifar10", "--methods", "byol, simclr_tuned", "--out", str(tmp_path)])
    assert {job.settings.run.method for job in asked.jobs} == {"byol", "simclr_tuned"}
    assert len(asked.jobs) == 4 + 4 + 2 + 1 + 4 + 2
    with pytest.raises(ValueError, match=r"--methods: expected names among simclr, .*, got 'resnet'"):
        request(["search", "--methods", "resnet", "--out", str(tmp_path)])


def test_recipes_carry_what_was_found() -> None:
    paths = record_paths(RESULTS)
    short, long = (
        (scale, read_records([row.arm for row in STUDIES["search"].rows(scale)], paths, ()))
        for scale in (CIFAR10, CIFAR10.with_epochs(100))
    )
    for method, rate in search.rates(*short).items():
        assert Job(Arm(f"cifar10/{method}"), 0).settings.optimizer.lr == rate, method
    by_longer = {choice.method: choice for choice in search.choices(*long)}  # which counts
    chosen = {choice.method: choice for choice in search.choices(*short)}
    assert {"simclr", "byol"} <= chosen.keys()
    for method, choice in chosen.items():
        options = recipe_settings(f"cifar10/{method}_ldreg").regularizer
        assert (options["beta"], options["k"]) == (by_longer.get(method, choice).beta, choice.k), method


ARRAY = np.array([[int(digit) for digit in digits] for digits in search.L18])
COUNTS = [2, 3, 3, 3, 3, 3, 3, 3]


def test_every_two_values_of_two_settings_meet_equally_often() -> None:
    for first, second in combinations(range(8), 2):
        meetings = np.zeros((COUNTS[first], COUNTS[second]))
        np.add.at(meetings, (ARRAY[:, first], ARRAY[:, second]), 1)
        assert (meetings == meetings[0, 0]).all()


def accuracies_of_18(*, seed: int = 0, noise: float = 0.2) -> tuple[np.ndarray, list[int]]:
    """Accuracies of 18 runs by a sum of terms of seven settings, and the best value of each."""
    rng = np.random.default_rng(seed)
    terms = [rng.permutation([0.0, 2.0, 4.0][:count]) for count in COUNTS[:7]]
    values = 70 + sum(term[ARRAY[:, place]] for place, term in enumerate(terms))
    return values + noise * rng.standard_normal(18), [int(term.argmax()) for term in terms]


@pytest.mark.parametrize("seed", range(5))
def test_the_best_value_of_each_setting_is_chosen(seed: int) -> None:
    measured, best = accuracies_of_18(seed=seed)
    assert search.choose(measured, COUNTS[:7]) == best


def test_without_a_difference_beyond_noise_the_first_value_stays() -> None:
    rng = np.random.default_rng(1)
    chosen = [search.choose(70 + rng.standard_normal(18), COUNTS[:7]) for _ in range(200)]
    assert np.mean(np.array(chosen) == 0) > 0.5  # by chance alone a third of them, and half of the first setting


def test_runs_that_collapsed_are_left_out() -> None:
    measured, best = accuracies_of_18()
    measured[3] = np.nan
    assert search.choose(measured, COUNTS[:7]) == best
    worst = ARRAY[:, 3] == best[3]
    measured[worst] = np.nan
    assert search.choose(measured, COUNTS[:7])[3] != best[3]


def test_a_run_that_confirms_the_choice_keeps_it_and_one_that_does_not_gives_it_up() -> None:
    measured, best = accuracies_of_18()
    assert search.choose(measured, COUNTS[:7], confirmation=measured.max()) == best
    winner = ARRAY[measured.argmax()][:7].tolist()
    assert search.choose(measured, COUNTS[:7], confirmation=measured.max() - 2) == winner != best


@pytest.mark.parametrize(
    ("linear", "lid", "chosen"),
    [
        # Of 5000 images at 70 % the standard error is 0.648 points.
        ((0.70, 0.699, 0.696, 0.692), (10.0, 12.0, 14.0, 20.0), "LDReg, share 0.1"),
        ((0.70, 0.69, 0.68, 0.67), (10.0, 12.0, 14.0, 20.0), "-"),
        ((0.60, 0.69, 0.68, 0.70), (10.0, 12.0, 14.0, 20.0), "LDReg, share 0.3"),
    ],
)
def test_one_share_for_all_methods_is_that_of_highest_lid_near_the_best_accuracy(
    linear: tuple[float, ...], lid: tuple[float, ...], chosen: str
) -> None:
    rows = STUDIES["share_search"].rows(CIFAR10)
    assert len(rows) == 4 * len(CIFAR10.methods)
    assert {dict(row.arm.options)["data.validation"] for row in rows} == {"0.1"}
    records = {
        row.arm: [record(row.arm, linear=linear[place % 4], lid=lid[place % 4])] for place, row in enumerate(rows)
    }
    assert search.shared_strength(CIFAR10, records) == chosen
    assert search.shared_strength(CIFAR10, dict(list(records.items())[1:])) == "", "a run is missing"
    collapsed = replace(record(rows[3].arm, linear=0.7, lid=99.0), origin={"seed": 0, "failed": "loss nan"})
    assert search.shared_strength(CIFAR10, {**records, rows[3].arm: [collapsed]}) != "LDReg, share 0.3"


@pytest.mark.parametrize("method", BASELINES["settings"])
def test_each_method_has_18_runs_of_their_own(method: str) -> None:
    settings = BASELINES["settings"][method]
    assert [len(values) for values in settings.values()] == COUNTS[: len(settings)]
    rows = [row for row in STUDIES["baselines"].rows(CIFAR10) if row.group == method]
    assert len({row.arm for row in rows[:18]}) == 18
    assert all(("data.validation", "0.1") in row.arm.options for row in rows)


@pytest.mark.parametrize("method", BASELINES["chosen"])
def test_what_was_chosen_follows_from_the_records(method: str) -> None:
    rows = [row for row in STUDIES["baselines"].rows(CIFAR10) if row.group == method]
    records = [Record.from_json(RESULTS / f"{row.arm.slug}-seed0.json") for row in rows[: len(search.L18)]]
    measured = [search.accuracy(record.results) for record in records]
    counts = [len(values) for values in BASELINES["settings"][method].values()]
    assert search.choose(measured, counts) == BASELINES["chosen"][method]
