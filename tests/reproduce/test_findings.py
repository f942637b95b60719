import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ttest_ind

from ldreg.record import Record
from ldreg.reproduce.drawings import drawings
from ldreg.reproduce.effects import TRAIN_LID, Sample, collapses, difference, direction, noise, sample, student
from ldreg.reproduce.findings import in_words, study_table, value_text
from ldreg.reproduce.jobs import Arm
from ldreg.reproduce.rendering import as_text, rendered
from ldreg.reproduce.scales import SCALES
from ldreg.reproduce.studies import STUDIES

DIGITS = SCALES["digits"]


def record(**results: float) -> Record:
    curves = {"lid": [(1.0, 5.0), (2.0, results.get("lid", 6.0))]}
    return Record(
        "run", {"method": "simclr"}, results, curves=curves, origin={"held_out": 400, "epochs": 40, "seed": 0}
    )


def failed() -> Record:
    told: dict[str, str | float | int | None] = {
        "seed": 1,
        "failed": "the loss is not finite at step 3: loss = nan",
    }
    return Record("run", {"method": "simclr"}, {}, origin=told)


def gathered_for(study: str, values: Mapping[int, Sequence[Mapping[str, float]]]) -> dict[Arm, list[Record]]:
    rows = STUDIES[study].rows(DIGITS)
    return {rows[place].arm: [record(**one) for one in found] for place, found in values.items()}


def seeds(*values: float, test_size: int = 0) -> Sample:
    return Sample(dict(enumerate(values)), test_size)


def test_accuracies_are_in_percent_and_spread_is_over_seeds() -> None:
    found = sample([record(linear=0.9), replace(record(linear=0.92), origin={"seed": 1, "held_out": 300})], "linear")
    assert found.values == pytest.approx((90, 92))
    assert found.test_size == 300
    assert value_text("linear", found) == "91.0 ± 1.41"
    assert value_text("lid", seeds(6.0)) == "6.00"
    assert value_text("lid", seeds()) == "–"
    assert value_text("images_per_second", seeds(40000, 40500)) == "40,250 ± 354"
    assert value_text("effective_rank", seeds(400.0, 540.9)) == "470.4 ± 99.6"


def test_times_are_of_runs_that_had_the_machine_to_themselves() -> None:
    alone, beside, older = (
        replace(record(minutes=minutes, linear=0.9), origin={"seed": seed, **told})
        for seed, minutes, told in ((0, 2.0, {"at_once": 1}), (1, 3.6, {"at_once": 2}), (2, 2.2, {}))
    )
    assert sample([alone, beside, older], "minutes").by_seed == {0: 2.0, 2: 2.2}
    assert sample([beside], "minutes").by_seed == {1: 3.6}, "better than none"
    assert len(sample([alone, beside, older], "linear").values) == 3


def test_noise_of_seeds_is_that_of_their_differences() -> None:
    base = (10.0, 20.0, 30.0)
    steady = noise(seeds(11.0, 21.1, 30.9), seeds(*base))
    assert steady == pytest.approx(4.30 * 0.1 / math.sqrt(3), rel=1e-6)
    assert noise(seeds(11.0, 21.0), seeds(10.0, 20.0)) == 0
    assert noise(seeds(91.0, 92.0, test_size=300), seeds(90.0, 91.0, test_size=300)) == pytest.approx(100 / 300)
    assert noise(Sample({0: 1.0, 5: 2.0}), Sample({0: 1.0, 6: 2.0})) == pytest.approx(0.05 * 1.5), "one seed in common"


def test_seeds_of_two_trainers_have_nothing_in_common() -> None:
    """By scipy.stats.ttest_ind: the 95 % interval of the difference of means with pooled variance."""
    theirs = Sample({0: 66.72, 1: 67.11, 2: 67.22}, test_size=10_000, by="lightly")
    ours = Sample({0: 65.98, 1: 66.47}, test_size=10_000)
    assert difference(ours, theirs) == pytest.approx(66.225 - 67.01667, abs=1e-4)
    interval = ttest_ind(ours.values, theirs.values).confidence_interval(0.95)
    assert noise(ours, theirs) == pytest.approx((interval.high - interval.low) / 2, rel=2e-3)
    paired = noise(ours, replace(theirs, by="ldreg"))
    assert paired < noise(ours, theirs)
    alone = Sample({0: 66.0}, test_size=10_000)
    assert noise(alone, theirs) == pytest.approx(
        4.30 * statistics.stdev(theirs.values) * math.sqrt(1 + 1 / 3), rel=1e-3
    )
    assert noise(alone, Sample({0: 66.0}, test_size=10_000, by="lightly")) == noise(alone, alone), "by the test images"
    assert sample([replace(record(knn=0.6), settings={"by": "lightly"})], "knn").by == "lightly"


def test_many_seeds_are_judged_by_student_too() -> None:
    for degrees, expected in ((1, 12.706), (10, 2.228), (11, 2.201), (20, 2.086), (60, 2.000), (999, 1.962)):
        assert student(degrees) == pytest.approx(expected, abs=0.006)


def test_noise_of_one_seed_is_that_of_the_test_images_or_a_share() -> None:
    one = noise(seeds(90.0, test_size=400), seeds(90.0, test_size=400))
    assert one == pytest.approx(2 * 100 * math.sqrt(2 * 0.09 / 400))
    assert noise(seeds(100.0, test_size=400), seeds(100.0, test_size=400)) > 0.2
    assert noise(seeds(50.0), seeds(40.0)) == pytest.approx(2.5)


def test_each_transfer_set_has_its_own_number_of_test_images() -> None:
    one = replace(record(**{"transfer/dtd": 0.5, "box_ap": 0.3}), origin={"held_out": 50_000, "tested/dtd": 1880})
    assert sample([one], "transfer/dtd").test_size == 1880
    assert sample([one], "box_ap").test_size == 0, "an average precision is no share of images"
    assert (
        direction(sample([record(box_ap=0.006)], "box_ap"), sample([record(box_ap=0.004)], "box_ap"), 36, 35) == "noise"
    )


def test_directions_are_judged_against_the_paper_s() -> None:
    up, down, same = seeds(8.0), seeds(4.0), seeds(6.1)
    base = seeds(6.0)
    assert direction(up, base, 20.0, 18.8) == "agrees"
    assert direction(down, base, 20.0, 18.8) == "disagrees"
    assert direction(down, base, 16.0, 18.8) == "agrees"
    assert direction(same, base, 20.0, 18.8) == "noise"
    assert direction(up, base, None, 18.8) == ""
    assert direction(up, base, math.nan, 18.8) == "disagrees", "the paper saw a collapse"
    assert direction(up, base, 18.8, 18.8) == "", "the paper saw no effect"
    assert direction(up, base, 583.5, 583.8) == "", "nor here"
    assert direction(down, base, 64.2, 64.3) == "", "its last digit"
    assert direction(down, base, 64.1, 64.3) == "agrees"
    assert direction(Sample({0: 30.0}, floor=0.5), Sample({0: 40.0}, floor=0.5), 36.30, 36.38) == "agrees", "of AP"
    assert direction(seeds(), base, 20.0, 18.8) == ""
    gone = Sample(collapsed=True)
    assert direction(gone, base, 20.0, 18.8) == "disagrees", "a collapse here is lower too"
    assert direction(gone, base, 16.0, 18.8) == direction(base, gone, 20.0, 18.8) == "agrees"
    assert direction(gone, gone, 20.0, 18.8) == direction(gone, seeds(), 20.0, 18.8) == ""


def test_differences_are_of_the_seeds_that_both_have() -> None:
    own, base = Sample({0: 7.0, 1: 7.0, 2: 1.0}), Sample({0: 6.0, 1: 6.01})
    assert difference(own, base) == pytest.approx(0.995), "by all seeds it would be negative"
    assert direction(own, base, 20.0, 18.8) == "agrees"
    assert difference(Sample({0: 7.0, 1: 8.0}), Sample({0: 6.0})) == pytest.approx(1.5), "one seed in common"
    assert math.isnan(difference(own, seeds()))


def test_a_seed_that_collapsed_is_told() -> None:
    rows = STUDIES["minlid"].rows(DIGITS)
    gathered = {rows[0].arm: [record(lid=6.0)], rows[4].arm: [record(lid=3.0), failed()]}
    cell = study_table(STUDIES["minlid"], DIGITS, gathered).rows[4][4]
    assert cell.text == "3.00 (1 of 2 collapsed)"


def test_a_table_has_the_paper_s_values_and_a_mark_for_each_effect() -> None:
    better = {"linear": 0.99, "effective_rank": 30.0, "lid": 7.0, "knn": 0.9}
    worse = {"linear": 0.60, "effective_rank": 20.0, "lid": 7.01, "knn": 0.9}
    table = study_table(STUDIES["table1"], DIGITS, gathered_for("table1", {0: [worse], 1: [better]}))
    assert table.columns[:4] == ["Method", "Regularization", "Linear probe, %", "Effective rank"]
    first, second = table.rows[0], table.rows[1]
    assert [cell.text for cell in first[:3]] == ["SimCLR", "-", "60.0"]
    assert [cell.paper for cell in first[2:]] == ["64.3", "470.2", "18.8", ""]
    assert [cell.mark for cell in first[2:]] == ["", "", "", ""]
    assert [cell.mark for cell in second[2:]] == ["agrees", "agrees", "noise", ""]
    assert [cell.text for cell in table.rows[2][2:]] == ["–"] * 4
    assert in_words(table).startswith("Of 3 effects, 2 with the paper's direction, 0 with the opposite one, 1 ")


def test_a_run_without_numbers_is_a_collapse_as_in_the_paper() -> None:
    rows = STUDIES["minlid"].rows(DIGITS)
    gathered = {
        rows[0].arm: [record(linear=0.9, lid=6.0, effective_rank=20.0)],
        rows[5].arm: [failed()],
    }
    assert collapses(gathered[rows[5].arm]) == 1
    last = study_table(STUDIES["minlid"], DIGITS, gathered).rows[5]
    assert [(cell.text, cell.paper, cell.mark) for cell in last[2:]] == [("collapsed", "collapsed", "agrees")] * 3


def test_a_collapse_here_alone_is_counted_against_the_paper_s_direction() -> None:
    rows = STUDIES["table1"].rows(DIGITS)
    table = study_table(STUDIES["table1"], DIGITS, {rows[0].arm: [record(lid=6.0)], rows[1].arm: [failed()]})
    assert (table.rows[1][4].text, table.rows[1][4].mark) == ("collapsed", "disagrees")
    assert in_words(table) == "Of 1 effect, 0 with the paper's direction, 1 with the opposite one, 0 within noise."


def test_a_run_that_failed_has_no_lid_at_the_end_of_its_curve() -> None:
    broken = replace(failed(), curves={"lid": [(1.0, 3.0)]})
    assert sample([broken], TRAIN_LID) == Sample(collapsed=True)
    assert sample([broken, record(lid=6.0)], TRAIN_LID).by_seed == {0: 6.0}


def test_what_was_not_measured_is_not_drawn_as_a_collapse() -> None:
    rows = STUDIES["minlid"].rows(DIGITS)
    some = {row.arm: [record(linear=0.9)] for row in rows}
    assert list(drawings(STUDIES["minlid"], DIGITS, some)) == ["Linear accuracy and β of Min LID"]
    bars = drawings(STUDIES["figure2cd"], DIGITS, {row.arm: [record(linear=0.9)] for row in rows})
    words = {text.get_text() for figure in bars.values() for text in figure.axes[0].texts}
    assert words == {"not measured"}
    lost = drawings(STUDIES["minlid"], DIGITS, {row.arm: [failed()] for row in rows})
    assert len(lost) == 3


@pytest.mark.parametrize("name", sorted(STUDIES.keys() - {"figure1", "targets"}))
def test_every_study_can_be_shown_with_nothing_with_some_and_with_everything(name: str) -> None:
    study = STUDIES[name]
    rows = study.rows(DIGITS)
    full = {"linear": 0.9, "knn": 0.8, "lid": 6.0, "effective_rank": 20.0, "minutes": 1.0, "images_per_second": 100.0}
    full |= {f"transfer/{data}": 0.5 for data in DIGITS.datasets} | {"box_ap": 0.3, "mask_ap": 0.2}
    everything = {row.arm: [record(**full), record(**full)] for row in rows}
    some = dict(list(everything.items())[:1])
    for gathered in ({}, some, everything):
        text = as_text(rendered([study], DIGITS, gathered), width=80, color=False)
        assert study.title in text
        assert max(map(len, text.splitlines())) <= 80
    drawn = drawings(study, DIGITS, everything)
    assert bool(drawn) == (name in {"figure2a", "figure2b", "figure2cd", "ablation", "minlid"})


def test_accuracy_over_training_is_drawn_in_percent_beside_lid() -> None:
    rows = STUDIES["figure2a"].rows(DIGITS)
    seeds = [
        replace(record(lid=6.0), curves={"lid": [(0, 4.0), (5, lid)], "knn": [(0, 0.2), (5, 0.8)]}) for lid in (5, 7)
    ]
    drawn = drawings(STUDIES["figure2a"], DIGITS, {rows[0].arm: seeds})
    found = {
        caption.partition("\n")[0]: np.asarray(figure.axes[0].lines[0].get_ydata()).tolist()
        for caption, figure in drawn.items()
    }
    assert found == {
        "LID over training": [4.0, 6.0],
        "kNN accuracy over training": [20.0, 80.0],
    }


@pytest.mark.parametrize(("name", "base"), [("ablation", "SimCLR"), ("minlid", "SimCLR"), ("figure2b", "strength 0")])
def test_what_is_within_noise_of_the_baseline_is_an_area(name: str, base: str) -> None:
    rows = STUDIES[name].rows(DIGITS)
    values = replace(record(lid=6.0, effective_rank=20.0, linear=0.9), curves={"lid": [(0, 4.0), (5, 6.0)]})
    drawn = drawings(STUDIES[name], DIGITS, {row.arm: [values] for row in rows})
    figure = next(
        figure for caption, figure in drawn.items() if caption.startswith(("LID and", "At the end of training"))
    )
    area = figure.axes[0].collections[0].get_paths()[0].get_extents()
    assert (area.y0, area.y1) == pytest.approx((5.7, 6.3))  # a twentieth of 6 to both sides
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert f"{base}, ± noise of a difference" in names


def test_a_baseline_without_others_has_no_noise() -> None:
    first = STUDIES["figure2b"].rows(DIGITS)[0]
    values = replace(record(lid=6.0), curves={"lid": [(0, 4.0), (5, 6.0)]})
    drawn = drawings(STUDIES["figure2b"], DIGITS, {first.arm: [values]})
    assert not drawn["At the end of training"].axes[0].collections
