"""Tables and figures of studies, by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from ldreg.record import Record
from ldreg.reproduce.document import as_text, study_reports
from ldreg.reproduce.drawings import Figures, drawings
from ldreg.reproduce.statistics import Sample, Section
from ldreg.reproduce.studies import SCALES, STUDIES, Arm, Records, Study
from ldreg.reproduce.tables import effects_sentence, study_table, value_text

DIGITS = SCALES["digits"]
FAILED = Record("run", {"method": "simclr"}, {}, origin={"seed": 1, "failed": "the loss is not finite: loss = nan"})


def drawings_of(study: Study, records: Records) -> Figures:
    return drawings(Section(study, DIGITS, records))


def record(**results: float) -> Record:
    curves = {"lid": [(0.0, 4.0), (5.0, results.get("lid", 6.0))]}
    origin: dict[str, str | float | int | None] = {"held_out": 400, "epochs": 40, "seed": 0}
    return Record("run", {"method": "simclr"}, results, curves=curves, origin=origin)


def of(study: str, values: Mapping[int, Sequence[Record]]) -> dict[Arm, Sequence[Record]]:
    """Records of rows by their position."""
    rows = STUDIES[study].rows(DIGITS)
    return {rows[place].arm: found for place, found in values.items()}


@pytest.mark.parametrize(
    ("metric", "values", "text"),
    [
        ("linear", [90.0, 92.0], "91.0 ± 1.41"),
        ("lid", [6.0], "6.00"),
        ("lid", [], "–"),
        ("images_per_second", [40000.0, 40500.0], "40,250 ± 354"),
        ("effective_rank", [400.0, 540.9], "470.4 ± 99.6"),
    ],
)
def test_values_as_text(metric: str, values: list[float], text: str) -> None:
    assert value_text(metric, Sample(dict(enumerate(values)))) == text


def test_a_table_has_the_papers_values_and_a_mark_for_each_effect() -> None:
    better = record(linear=0.99, effective_rank=30.0, lid=7.0, knn=0.9)
    worse = record(linear=0.60, effective_rank=20.0, lid=7.01, knn=0.9)
    table = study_table(Section(STUDIES["table1"], DIGITS, of("table1", {0: [worse], 1: [better]})))
    assert table.columns[:4] == ["Method", "Regularization", "Linear probe, %", "Effective rank"]
    first, second = table.rows[0], table.rows[1]
    assert [cell.text for cell in first[:3]] == ["SimCLR", "-", "60.0"]
    assert [cell.paper for cell in first[2:]] == ["64.3", "470.2", "18.8", ""]
    assert [cell.mark for cell in first[2:]] == ["", "", "", ""]
    assert [cell.mark for cell in second[2:]] == ["agrees", "agrees", "noise", ""]
    assert [cell.text for cell in table.rows[2][2:]] == ["–"] * 4
    assert effects_sentence(table).startswith("Of 3 effects, 2 with the paper's direction, 0 with the opposite one, 1 ")


def test_collapses_are_named_and_judged() -> None:
    minlid = STUDIES["minlid"]
    some = study_table(Section(minlid, DIGITS, of("minlid", {0: [record(lid=6.0)], 4: [record(lid=3.0), FAILED]})))
    assert some.rows[4][4].text == "3.00 (1 of 2 collapsed)"
    whole = record(linear=0.9, lid=6.0, effective_rank=20.0)
    last = study_table(Section(minlid, DIGITS, of("minlid", {0: [whole], 5: [FAILED]}))).rows[5]
    assert [(cell.text, cell.paper, cell.mark) for cell in last[2:]] == [("collapsed", "collapsed", "agrees")] * 3
    here = study_table(Section(STUDIES["table1"], DIGITS, of("table1", {0: [record(lid=6.0)], 1: [FAILED]})))
    assert (here.rows[1][4].text, here.rows[1][4].mark) == ("collapsed", "disagrees")
    assert (
        effects_sentence(here) == "Of 1 effect, 0 with the paper's direction, 1 with the opposite one, 0 within noise."
    )


@pytest.mark.parametrize("name", [study.name for study in STUDIES.values() if study.rows(DIGITS)])
def test_every_study_can_be_shown_with_nothing_with_some_and_with_everything(name: str) -> None:
    study = STUDIES[name]
    full = {"linear": 0.9, "knn": 0.8, "lid": 6.0, "effective_rank": 20.0, "minutes": 1.0, "images_per_second": 100.0}
    full |= {f"transfer/{data}": 0.5 for data in DIGITS.datasets} | {"box_ap": 0.3, "mask_ap": 0.2}
    everything = {row.arm: [record(**full), record(**full)] for row in study.rows(DIGITS)}
    for records in ({}, dict(list(everything.items())[:1]), everything):
        text = as_text(study_reports([study], DIGITS, records), width=80, color=False)
        assert study.title in text
        assert max(map(len, text.splitlines())) <= 80
    drawn = drawings_of(study, everything)
    assert bool(drawn) == (name in {"figure2a", "figure2b", "figure2cd", "ablation", "minlid"})


def test_a_study_that_the_scale_does_not_have_is_not_shown() -> None:
    assert study_reports([STUDIES["neighborhoods"], STUDIES["anchor"]], SCALES["imagenet"], {}) == []


def test_what_was_not_measured_is_not_drawn_as_a_collapse() -> None:
    rows = STUDIES["minlid"].rows(DIGITS)
    some = {row.arm: [record(linear=0.9)] for row in rows}
    assert list(drawings_of(STUDIES["minlid"], some)) == ["Linear accuracy and β of Min LID"]
    without = {row.arm: [record(linear=0.9)] for row in STUDIES["figure2cd"].rows(DIGITS)}
    bars = drawings_of(STUDIES["figure2cd"], without)
    words = {text.get_text() for figure in bars.values() for text in figure.axes[0].texts}
    assert words == {"not measured"}
    assert len(drawings_of(STUDIES["minlid"], {row.arm: [FAILED] for row in rows})) == 3


def test_accuracy_over_training_is_drawn_in_percent_beside_lid() -> None:
    curves = [{"lid": [(0.0, 4.0), (5.0, lid)], "knn": [(0.0, 0.2), (5.0, 0.8)]} for lid in (5.0, 7.0)]
    seeds = [replace(record(lid=6.0), curves=each) for each in curves]
    drawn = drawings_of(STUDIES["figure2a"], of("figure2a", {0: seeds}))
    found = {
        caption.partition("\n")[0]: np.asarray(figure.axes[0].lines[0].get_ydata()).tolist()
        for caption, figure in drawn.items()
    }
    assert found == {"LID over training": [4.0, 6.0], "kNN accuracy over training": [20.0, 80.0]}


@pytest.mark.parametrize(("name", "base"), [("ablation", "SimCLR"), ("minlid", "SimCLR"), ("figure2b", "strength 0")])
def test_what_is_within_noise_of_the_baseline_is_an_area(name: str, base: str) -> None:
    values = record(lid=6.0, effective_rank=20.0, linear=0.9)
    drawn = drawings_of(STUDIES[name], {row.arm: [values] for row in STUDIES[name].rows(DIGITS)})
    figure = next(
        figure for caption, figure in drawn.items() if caption.startswith(("LID and", "At the end of training"))
    )
    area = figure.axes[0].collections[0].get_paths()[0].get_extents()
    assert (area.y0, area.y1) == pytest.approx((5.7, 6.3))  # a twentieth of 6 to both sides
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert f"{base}, ± noise of a difference" in names


def test_a_baseline_without_others_has_no_noise() -> None:
    drawn = drawings_of(STUDIES["figure2b"], of("figure2b", {0: [record(lid=6.0)]}))
    assert not drawn["At the end of training"].axes[0].collections
