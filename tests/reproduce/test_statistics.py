"""Noise and directions of differences, by hand and by SciPy."""

import math
import statistics
from dataclasses import replace
from typing import Any

import pytest
from scipy.stats import ttest_ind, ttest_rel

from ldreg.record import Record
from ldreg.reproduce.statistics import TRAIN_LID, Sample, Section, collapses, difference, direction, noise, sample
from ldreg.reproduce.statistics import student as students_t
from ldreg.reproduce.studies import SCALES, Study


def record(**results: float) -> Record:
    curves = {"lid": [(1.0, 5.0), (2.0, results.get("lid", 6.0))]}
    return Record(
        "run",
        {"method": "simclr"},
        results,
        curves=curves,
        origin={"held_out": 400, "seed": int(results.pop("seed", 0))},
    )


FAILED = Record("run", {}, {}, curves={"lid": [(1.0, 3.0)]}, origin={"seed": 1, "failed": "loss = nan"})


def seeds(*values: float, test_size: int = 0) -> Sample:
    return Sample(dict(enumerate(values)), test_size)


def test_a_sample_has_percentages_and_the_least_number_of_test_images() -> None:
    found = sample([record(linear=0.9), replace(record(linear=0.92), origin={"seed": 1, "held_out": 300})], "linear")
    assert found.values == pytest.approx((90, 92))
    assert (found.test_size, sample([record(lid=6.0)], "lid").test_size) == (300, 0)
    one = replace(record(**{"transfer/dtd": 0.5, "box_ap": 0.3}), origin={"held_out": 50_000, "tested/dtd": 1880})
    assert sample([one], "transfer/dtd").test_size == 1880
    assert sample([one], "box_ap").test_size == 0, "an average precision is no share of images"
    assert sample([replace(record(knn=0.6), settings={"by": "lightly"})], "knn").by == "lightly"


def test_times_are_of_runs_that_had_the_machine_to_themselves() -> None:
    alone, shared, older = (
        replace(record(minutes=minutes, linear=0.9), origin={"seed": seed, **more})
        for seed, minutes, more in ((0, 2.0, {"at_once": 1}), (1, 3.6, {"at_once": 2}), (2, 2.2, {}))
    )
    assert sample([alone, shared, older], "minutes").by_seed == {0: 2.0, 2: 2.2}
    assert sample([shared], "minutes").by_seed == {1: 3.6}, "better than none"
    assert len(sample([alone, shared, older], "linear").values) == 3


def test_a_failed_run_is_a_collapse_and_has_no_lid_at_the_end_of_its_curve() -> None:
    assert sample([FAILED], TRAIN_LID) == Sample(collapsed=True)
    assert sample([FAILED, record(lid=6.0)], TRAIN_LID).by_seed == {0: 6.0}
    assert collapses([FAILED, record(lid=6.0), record(degenerate=0.6), record(degenerate=0.4)]) == 2


def test_noise_of_several_seeds_is_that_of_their_differences() -> None:
    own, base = seeds(11.0, 21.1, 30.9), seeds(10.0, 20.0, 30.0)
    interval = ttest_rel(own.values, base.values).confidence_interval(0.95)
    assert noise(own, base) == pytest.approx((interval.high - interval.low) / 2, rel=2e-3)
    assert noise(seeds(11.0, 21.0), seeds(10.0, 20.0)) == 0
    assert noise(seeds(91.0, 92.0, test_size=300), seeds(90.0, 91.0, test_size=300)) == pytest.approx(100 / 300)
    assert noise(Sample({0: 1.0, 5: 2.0}), Sample({0: 1.0, 6: 2.0})) == pytest.approx(0.05 * 1.5), "one seed in common"


def test_seeds_of_two_trainers_have_nothing_in_common() -> None:
    theirs = Sample({0: 66.72, 1: 67.11, 2: 67.22}, test_size=10_000, by="lightly")
    ours = Sample({0: 65.98, 1: 66.47}, test_size=10_000)
    assert difference(ours, theirs) == pytest.approx(66.225 - 67.01667, abs=1e-4)
    interval = ttest_ind(ours.values, theirs.values).confidence_interval(0.95)
    assert noise(ours, theirs) == pytest.approx((interval.high - interval.low) / 2, rel=2e-3)
    alone = Sample({0: 66.0}, test_size=10_000)
    by_hand = 4.30 * statistics.stdev(theirs.values) * math.sqrt(1 + 1 / 3)
    assert noise(alone, theirs) == pytest.approx(by_hand, rel=1e-3)
    assert noise(alone, Sample({0: 66.0}, test_size=10_000, by="lightly")) == noise(alone, alone), "by the test images"


@pytest.mark.parametrize(("degrees", "expected"), [(1, 12.706), (10, 2.228), (11, 2.201), (60, 2.0), (999, 1.962)])
def test_students_t_is_that_of_printed_tables(degrees: int, expected: float) -> None:
    assert students_t(degrees) == pytest.approx(expected, abs=0.006)


def test_noise_of_one_seed_is_that_of_the_test_images_or_a_share() -> None:
    one = noise(seeds(90.0, test_size=400), seeds(90.0, test_size=400))
    assert one == pytest.approx(2 * 100 * math.sqrt(2 * 0.09 / 400))
    assert noise(seeds(100.0, test_size=400), seeds(100.0, test_size=400)) > 0.2
    assert noise(seeds(50.0), seeds(40.0)) == pytest.approx(2.5)
    ranks = [sample([record(effective_rank=value)], "effective_rank") for value in (50.0, 40.0)]
    assert noise(*ranks) == pytest.approx(5.0)


def test_differences_are_of_the_seeds_that_both_have() -> None:
    own, base = Sample({0: 7.0, 1: 7.0, 2: 1.0}), Sample({0: 6.0, 1: 6.01})
    assert difference(own, base) == pytest.approx(0.995), "by all seeds it would be negative"
    assert direction(own, base, 20.0, 18.8) == "agrees"
    assert difference(Sample({0: 7.0, 1: 8.0}), Sample({0: 6.0})) == pytest.approx(1.5), "one seed in common"
    assert math.isnan(difference(own, seeds()))


BASE, COLLAPSED = seeds(6.0), Sample(collapsed=True)


def ap(value: float) -> Sample:
    return Sample({0: value}, floor=0.5)


@pytest.mark.parametrize(
    ("own", "base", "paper", "paper_base", "mark"),
    [
        (seeds(8.0), BASE, 20.0, 18.8, "agrees"),
        (seeds(4.0), BASE, 20.0, 18.8, "disagrees"),
        (seeds(4.0), BASE, 16.0, 18.8, "agrees"),
        (seeds(6.1), BASE, 20.0, 18.8, "noise"),
        (seeds(8.0), BASE, None, 18.8, ""),
        (seeds(), BASE, 20.0, 18.8, ""),
        pytest.param(seeds(8.0), BASE, math.nan, 18.8, "disagrees", id="the paper saw a collapse"),
        pytest.param(seeds(8.0), BASE, 583.5, 583.8, "", id="a thousandth"),
        pytest.param(seeds(4.0), BASE, 64.2, 64.3, "", id="the last digit"),
        pytest.param(seeds(4.0), BASE, 64.1, 64.3, "agrees", id="more than the last digit"),
        pytest.param(ap(30.0), ap(40.0), 36.30, 36.38, "agrees", id="AP has two digits"),
        pytest.param(ap(0.6), ap(0.4), 36.0, 35.0, "noise", id="half a point of AP"),
        pytest.param(COLLAPSED, BASE, 20.0, 18.8, "disagrees", id="a collapse is lower"),
        pytest.param(COLLAPSED, BASE, 16.0, 18.8, "agrees", id="lower as in the paper"),
        pytest.param(BASE, COLLAPSED, 20.0, 18.8, "agrees", id="higher than a collapse"),
        pytest.param(COLLAPSED, COLLAPSED, 20.0, 18.8, "", id="both collapsed"),
        pytest.param(COLLAPSED, seeds(), 20.0, 18.8, "", id="nothing to compare with"),
    ],
)
def test_directions_are_judged_against_the_papers(
    own: Sample, base: Sample, paper: float | None, paper_base: float, mark: str
) -> None:
    assert direction(own, base, paper, paper_base) == mark


def test_a_row_is_compared_with_its_baseline() -> None:
    entries: list[dict[str, Any]] = [
        {"names": ["-"], "recipe": "simclr", "paper": {"lid": 18.8}},
        {"names": ["a"], "recipe": "simclr_ldreg", "paper": {"lid": 20.0}, "against": "first"},
        {"names": ["b"], "recipe": "byol", "paper": {"lid": 20.0}, "against": "first", "judged": False},
    ]
    study = Study("mine", "", "", ("name",), entries)
    plain, strong, other = study.rows(SCALES["digits"])
    lids = {plain.arm: (6.0, 6.5), strong.arm: (7.0, 7.6), other.arm: (9.0,)}
    records = {arm: [record(seed=seed, lid=lid) for seed, lid in enumerate(some)] for arm, some in lids.items()}
    section = Section(study, SCALES["digits"], records)
    found = section.compared(strong, "lid")
    assert found.difference == pytest.approx(1.05)
    assert found.noise == pytest.approx(12.71 * 0.05)
    assert (found.verdict, found.mark) == ("higher", "agrees")
    assert (section.compared(other, "lid").verdict, section.compared(other, "lid").mark) == ("higher", "")
    for row, metric in ((strong, "knn"), (plain, "lid")):
        nothing = section.compared(row, metric)
        assert math.isnan(nothing.difference) and math.isnan(nothing.noise)  # noqa: PT018
        assert nothing.verdict == nothing.mark == ""
