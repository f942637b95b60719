"""The search of beta and k: what is tried, what is chosen, and that recipes carry it."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from tests.reproduce.words import request

from ldreg.record import Record
from ldreg.reproduce import search
from ldreg.reproduce.document import document
from ldreg.reproduce.jobs import Arm, Job
from ldreg.reproduce.reproduction import check_data
from ldreg.reproduce.studies import SCALES, STUDIES, Scale, recipe_settings
from ldreg.reproduce.workspace import read_records, record_paths
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


def test_no_run_sees_the_test_images() -> None:
    for scale in SCALES.values():
        options = [dict(row.arm.options) for row in STUDIES["search"].rows(scale)]
        assert {each["data.validation"] for each in options} == {"0.1"}
        assert {row.arm.recipe.partition("/")[0] for row in STUDIES["search"].rows(scale)} == {scale.name}


@pytest.mark.parametrize("scale", SCALES.values(), ids=lambda scale: scale.name)
def test_the_last_of_every_method_can_be_run(scale: Scale) -> None:
    last = {row.group: Job(row.arm, 0).settings for row in STUDIES["search"].rows(scale) if row.baseline is not None}
    assert list(last) == list(scale.methods)
    assert all(settings.data.validation == 0.1 for settings in last.values())
    assert len({settings.schedule.epochs for settings in last.values()}) == 1


def test_names_differ_and_every_method_is_tried_at_the_papers_strength() -> None:
    rows = STUDIES["search"].rows(CIFAR10)
    assert len({row.arm.slug for row in rows}) == len(rows)
    for method in CIFAR10.methods:
        paper = beta_of(f"imagenet/{'moco' if method == 'moco_v3' else method}_ldreg")
        tried = [row.names[1:] for row in rows if row.group == method and row.baseline is not None]
        assert (paper, "64") in tried
        times = {"mae": 1000, "vicreg": 30, "barlow_twins": 100}.get(method, 10)  # by the size of its loss
        assert float(max(tried, key=lambda names: float(names[0]))[0]) == pytest.approx(times * float(paper))


def test_the_highest_lid_within_one_standard_error_is_chosen() -> None:
    # Of 5000 images at 70 % the standard error is 0.648 points.
    found = of_simclr(**{"0_003": (0.70, 13.0), "0_01": (0.6940, 15.0), "0_03": (0.6930, 19.0)})
    assert search.choices(CIFAR10, found) == [search.Choice("simclr", 0.01, 64, 3)]
    found |= of_simclr(**{"0_03": (0.6936, 19.0)})
    assert search.choices(CIFAR10, found) == [search.Choice("simclr", 0.03, 64, 3)]


def test_k_is_the_usual_one_unless_another_is_better_by_a_standard_error() -> None:
    """Whatever LID it has; beta is chosen at the usual k alone."""
    found = of_simclr(**{"0_003": (0.70, 13.0), "0_03": (0.70, 19.0), "k16": (0.706, 30.0), "k128": (0.69, 40.0)})
    assert search.choices(CIFAR10, found) == [search.Choice("simclr", 0.03, 64, 2, ks=3, k_at=0.03)]
    found |= of_simclr(k16=(0.7066, 10.0))  # of 5000 images at 70.66 % the standard error is 0.644 points
    assert search.choices(CIFAR10, found) == [search.Choice("simclr", 0.03, 16, 2, ks=3, k_at=0.03)]
    found |= of_simclr(k128=(0.71, 9.0))
    assert search.choices(CIFAR10, found) == [search.Choice("simclr", 0.03, 128, 2, ks=3, k_at=0.03)]


def test_no_k_is_chosen_where_the_usual_one_is_not_known() -> None:
    found = of_simclr(**{"0_003": (0.70, 13.0), "0_01": (0.70, 15.0), "k16": (0.75, 16.0), "k128": (0.72, 12.0)})
    assert search.choices(CIFAR10, found) == [search.Choice("simclr", 0.01, 64, 2)]
    unknown = of_simclr(**{"0_03": (math.nan, 14.0)})
    assert search.choices(CIFAR10, found | unknown) == [search.Choice("simclr", 0.01, 64, 2)]
    (usual,) = unknown
    lost = Record(Job(usual, 0).name, {}, {}, origin={"seed": 0, "failed": "loss is nan"})
    assert search.choices(CIFAR10, found | {usual: [lost]}) == [search.Choice("simclr", 0.01, 16, 2, ks=3, k_at=0.03)]


def test_longer_runs_choose_beta_where_the_recipes_is_not_among_them() -> None:
    longer = SCALES["digits"].with_epochs(80)
    arms = [row.arm for row in STUDIES["search"].rows(longer) if row.group == "mae" and row.baseline is not None]
    assert "0.01" == beta_of("digits/mae_ldreg") not in {dict(arm.options)["ldreg.beta"] for arm in arms}
    found = {arm: [record(arm, linear=0.7, lid=lid)] for arm, lid in zip(arms, (6.0, 7.0, 9.0, 8.0), strict=True)}
    assert search.choices(longer, found) == [search.Choice("mae", 0.0005, 32, 4)]


def test_an_unknown_lid_is_not_the_highest() -> None:
    found = of_simclr(**{"0_003": (0.70, math.nan), "0_01": (0.70, 15.0), "0_1": (0.70, 14.0)})
    assert search.choices(CIFAR10, found)[0].beta == 0.01


def test_every_method_is_tried_with_a_smaller_and_a_larger_k_at_its_recipes_strength() -> None:
    for scale in SCALES.values():
        for method in scale.methods:
            own = beta_of(f"{scale.name}/{method}_ldreg")
            tried = {
                row.names[2] for row in STUDIES["search"].rows(scale) if row.group == method and row.names[1] == own
            }
            assert tried == {str(scale.k), str(scale.k // 4), str(2 * scale.k)}, (scale.name, method)


def test_the_learning_rate_is_that_of_the_best_accuracy_without_ldreg() -> None:
    arms = {
        row.names[0]: row.arm for row in STUDIES["search"].rows(CIFAR10) if row.group == "byol" and row.baseline is None
    }
    found = {
        arms["BYOL, learning rate 0.06"]: [record(arms["BYOL, learning rate 0.06"], linear=0.60, lid=20.0)],
        arms["BYOL, learning rate 0.12"]: [record(arms["BYOL, learning rate 0.12"], linear=0.61, lid=10.0)],
    }
    assert search.rates(CIFAR10, found) == {"byol": 0.12}
    assert search.choices(CIFAR10, found) == []
    assert search.in_words(CIFAR10, found) == "Chosen: BYOL learning rate 0.12."


def test_strengths_are_tried_at_the_recipes_learning_rate() -> None:
    rows = STUDIES["search"].rows(CIFAR10)
    for method in ("simclr", "byol"):
        own = str(Job(CIFAR10.arm(method), 0).settings.optimizer.lr)
        tried = [row for row in rows if row.group == method and row.baseline is not None]
        assert {dict(row.arm.options)["optimizer.lr"] for row in tried} == {own}
        assert {dict(rows[row.baseline or 0].arm.options)["optimizer.lr"] for row in tried} == {own}


def test_longer_runs_ask_for_the_strength_alone() -> None:
    short, long = (STUDIES["search"].rows(scale) for scale in (CIFAR10, CIFAR10.with_epochs(100)))
    plain = [row for row in long if row.baseline is None]
    assert [row.group for row in plain] == list(CIFAR10.methods)
    assert {row.names[2] for row in long if row.baseline is not None} == {str(CIFAR10.k)}
    for method in CIFAR10.methods:
        strengths = {row.names[1] for row in short if row.group == method}
        assert {row.names[1] for row in long if row.group == method} == strengths  # the recipe's is among them
    for row in long:
        assert Job(row.arm, 0).settings.optimizer.lr == Job(CIFAR10.arm(row.group), 0).settings.optimizer.lr


def test_a_k_is_called_chosen_only_where_there_were_others() -> None:
    alone = of_simclr(**{"0_003": (0.70, 13.0), "0_01": (0.70, 15.0)})
    assert search.in_words(CIFAR10, alone) == "Chosen: SimCLR beta = 0.01 (of 2 tried)."
    found = of_simclr(**{"0_03": (0.70, 16.0), "0_1": (0.60, 20.0), "k16": (0.71, 15.0)})
    assert search.in_words(CIFAR10, found) == "Chosen: SimCLR beta = 0.03 (of 2 tried) and k = 16 (of 2 tried)."
    found |= of_simclr(**{"0_1": (0.70, 20.0)})
    assert search.in_words(CIFAR10, found) == (
        "Chosen: SimCLR beta = 0.1 (of 2 tried) and k = 16 (of 2 tried, at beta = 0.03)."
    )


def test_what_collapsed_with_any_seed_is_out() -> None:
    found = of_simclr(**{"0_003": (0.70, 13.0), "0_01": (0.70, 15.0), "0_1": (0.70, 30.0)})
    assert search.choices(CIFAR10, found)[0].beta == 0.1
    strong = next(arm for arm in found if "beta0.1-" in arm.slug)
    lost = Record(Job(strong, 1).name, {}, {}, origin={"seed": 1, "failed": "loss is nan"})
    assert search.choices(CIFAR10, found | {strong: [*found[strong], lost]}) == [search.Choice("simclr", 0.01, 64, 2)]


def test_seeds_that_not_all_settings_have_do_not_count() -> None:
    found = of_simclr(**{"0_003": (0.70, 13.0), "0_01": (0.70, 15.0)})
    weak = next(arm for arm in found if "beta0.003-" in arm.slug)
    lucky = replace(record(weak, linear=0.95, lid=90.0), origin={"seed": 1, "held_out": 5000})
    assert search.choices(CIFAR10, found | {weak: [*found[weak], lucky]})[0].beta == 0.01


def test_a_setting_without_accuracy_does_not_keep_others_from_being_chosen() -> None:
    found = of_simclr(**{"0_003": (0.70, 13.0), "0_01": (0.70, 15.0), "0_1": (math.nan, 30.0)})
    assert search.choices(CIFAR10, found) == [search.Choice("simclr", 0.01, 64, 2)]


def test_one_setting_or_the_baseline_alone_is_no_choice() -> None:
    baseline = STUDIES["search"].rows(CIFAR10)[0].arm
    found = {baseline: [record(baseline, linear=0.9, lid=50.0)]}
    assert search.choices(CIFAR10, found) == []
    assert search.choices(CIFAR10, found | of_simclr(**{"0_01": (0.7, 15.0)})) == []
    assert search.in_words(CIFAR10, found) == ""
    both = found | of_simclr(**{"0_01": (0.7, 15.0), "0_1": (0.7, 14.0)})
    assert search.in_words(CIFAR10, both) == "Chosen: SimCLR beta = 0.01 (of 2 tried)."


def test_the_document_tells_the_choice(tmp_path: Path) -> None:
    for some in of_simclr(**{"0_01": (0.7, 15.0), "0_1": (0.701, 14.0)}).values():
        some[0].to_json(tmp_path / f"{some[0].name}.json")
    text = document([STUDIES["search"]], CIFAR10, tmp_path, what="search", folder="images").text
    assert "Chosen: SimCLR beta = 0.01 (of 2 tried)." in text
    assert "| SimCLR | 0.1 | 64 | 1 | 70.1 |" in text


def test_all_runs_it_and_the_anchor_only_where_they_are_named(tmp_path: Path) -> None:
    apart = {"search", "anchor"}
    assert not apart & {study.name for study in request(["all", "--out", str(tmp_path)]).studies}
    written = request(["all", "--out", str(tmp_path), "--write", str(tmp_path / "a.md")])
    assert apart <= {study.name for study in written.studies}


def test_runs_of_some_methods(tmp_path: Path) -> None:
    asked = request(["search", "--scale", "cifar10", "--methods", "byol, simclr_tuned", "--out", str(tmp_path)])
    assert {job.settings.run.method for job in asked.jobs} == {"byol", "simclr_tuned"}
    assert len(asked.jobs) == 4 + 4 + 2 + 1 + 4 + 2
    with pytest.raises(ValueError, match=r"--methods: expected names among simclr, .*, got 'resnet'"):
        request(["search", "--methods", "resnet", "--out", str(tmp_path)])
    with pytest.raises(ValueError, match="--methods: expected to be left out, as --write"):
        request(["search", "--methods", "byol", "--write", str(tmp_path / "a.md")])


def chosen(scale: Scale) -> dict[str, search.Choice]:
    found = read_records([row.arm for row in STUDIES["search"].rows(scale)], record_paths(RESULTS), ())
    return {choice.method: choice for choice in search.choices(scale, found)}


def test_recipes_carry_what_was_found() -> None:
    found = read_records([row.arm for row in STUDIES["search"].rows(CIFAR10)], record_paths(RESULTS), ())
    for method, rate in search.rates(CIFAR10, found).items():
        assert Job(Arm(f"cifar10/{method}"), 0).settings.optimizer.lr == rate, method
    short, long = chosen(CIFAR10), chosen(CIFAR10.with_epochs(100))
    assert {"simclr", "byol"} <= short.keys()
    for method, choice in short.items():
        options = Job(Arm(f"cifar10/{method}_ldreg"), 0).settings.regularizer
        beta = long.get(method, choice).beta  # what longer runs choose counts
        assert (options["beta"], options["k"]) == (beta, choice.k), method


def test_too_few_held_out_images_are_refused_before_any_run(tmp_path: Path) -> None:
    words = ["table1", "--methods", "simclr", "--data.validation", "0.01", "--epochs", "1", "--out", str(tmp_path)]
    with pytest.raises(ValueError, match=r"simclr-.*: data: expected more than the k = 32 .*, got 14 images"):
        check_data(request(words))


def test_every_run_is_checked_with_the_images_that_it_has(tmp_path: Path) -> None:
    words = ["table1,search", "--methods", "simclr", "--batch_size", "1400", "--out", str(tmp_path)]
    with pytest.raises(ValueError, match=r"simclr-.*validation0\.1.*: batch_size: expected at most 1294"):
        check_data(request(words))


def test_a_study_that_a_scale_does_not_have_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="anchor: expected --scale cifar10, got digits"):
        request(["anchor", "--out", str(tmp_path)])
    assert request(["all", "--out", str(tmp_path), "--write", str(tmp_path / "a.md")]).studies
    assert request(["figure1", "--out", str(tmp_path)]).studies
