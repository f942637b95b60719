"""What is said of trends, and of who is highest, follows from the records."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ldreg.record import Record
from ldreg.reproduce.claims import Claim, claims
from ldreg.reproduce.statistics import Section
from ldreg.reproduce.studies import SCALES, STUDIES, Arm, Row

DIGITS = SCALES["digits"]


def rows_of(study: str) -> Sequence[Row]:
    return STUDIES[study].rows(DIGITS)


def of(rows: Sequence[Row], metric: str, values: Sequence[float]) -> dict[Arm, list[Record]]:
    """A record of each row's arm with a value of one metric."""
    found = {}
    for row, value in zip(rows, values, strict=True):
        curves = {"lid": [(0.0, 1.0), (1.0, value)]} if metric == "lid" else {}
        origin: dict[str, str | float | int | None] = {"seed": 0, "held_out": 1000}
        found[row.arm] = [Record("a", {}, {metric: value}, curves=curves, origin=origin)]
    return found


def claimed(study: str, records: dict[Arm, list[Record]]) -> tuple[str, list[str]]:
    found: Sequence[Claim] = claims(Section(STUDIES[study], DIGITS, records))
    return " ".join(claim.words for claim in found), [mark for claim in found for mark in claim.marks]


BETAS = [row for row in rows_of("ablation") if row.group == "beta"]


@pytest.mark.parametrize(
    ("metric", "values", "words", "mark"),
    [
        ("effective_rank", [10.0, 20.0, 30.0, 60.0], "(+50.00, noise 6.00)", "disagrees"),
        ("effective_rank", [60.0, 1.0, 1.0, 50.0], "(-10.00, noise 6.00)", "agrees"),
        ("linear", [0.9, 0.5, 0.5, 0.899], "within noise (-0.10, noise 2.69)", "agrees"),
        ("linear", [0.9, 0.5, 0.5, 0.8], "(-10.00, noise 3.16)", "disagrees"),
    ],
)
def test_a_trend_is_from_the_least_to_the_largest(metric: str, values: list[float], words: str, mark: str) -> None:
    found, marks = claimed("ablation", of(BETAS[::-1], metric, values[::-1]))
    assert found.startswith("From beta 0.01 to 1 ")
    assert words in found
    assert marks == [mark]
    assert claimed("ablation", of(BETAS[:1], metric, values[:1])) == ("", [])


@pytest.mark.parametrize(("last", "mark"), [(4.0, "disagrees"), (8.1, "noise"), (9.0, "agrees")])
def test_lid_over_color_jitter(last: float, mark: str) -> None:
    found, marks = claimed("figure2b", of(rows_of("figure2b"), "lid", [8.0, 6.0, 5.0, last]))
    assert found.startswith("From strength 0 to 1 LID of training images ")
    assert marks == [mark]
    assert claimed("figure2b", {}) == ("", [])


def test_who_is_highest_is_compared_with_the_paper() -> None:
    plain = [row for row in rows_of("figure2cd") if row.baseline is None]
    three = [row for row in plain if row.group in ("simclr", "byol", "mae")]
    found, marks = claimed("figure2cd", of(three, "effective_rank", [30.0, 20.0, 10.0]))
    assert "highest effective rank: SimCLR (in the paper BYOL); lowest effective rank: MAE (ViT) (as in" in found
    assert marks == ["disagrees", "agrees"]
    found, marks = claimed("figure2cd", of(three, "lid", [6.0, 5.0, 1.0]))
    assert "BYOL (as in the paper)" in found
    assert marks == ["agrees"]
    assert claimed("figure2cd", of(three[:1], "lid", [6.0])) == ("", [])


def test_batch_sizes_of_the_paper_are_named_where_they_differ() -> None:
    words, marks = claimed("batches", {})
    assert words == "The paper's values, in this order, are for batches of 512, 1024 and 2048."
    assert marks == []
    assert not claims(Section(STUDIES["batches"], SCALES["imagenet"], {}))


def test_lid_of_training_images_with_ldreg_and_late_in_training() -> None:
    rows = [row for row in rows_of("figure2a") if row.group in ("simclr", "byol", "moco")]
    values = [6.0, 8.0, 6.0, 5.0, 6.0, 6.1]
    words, marks = claimed("figure2a", of(rows, "lid", values))
    assert words.startswith(
        "At the end, with LDReg beside without it: higher for SimCLR; lower for BYOL; within noise for MoCo."
    )
    assert marks[:3] == ["agrees", "disagrees", "noise"]
    assert marks[3:] == ["noise", "noise"], "SimCLR and BYOL do not fall late"
    plain = [row for row in rows if row.baseline is None][:2]
    records = of(plain, "lid", [6.0, 6.0])
    for row, highest in zip(plain, (7.0, 6.1), strict=True):
        (record,) = records[row.arm]
        records[row.arm] = [replace(record, curves={"lid": [(0, 4.0), (1, highest), (2, 6.0)]})]
    assert claimed("figure2a", records) == (
        "Without LDReg it ends below its highest value by this much: SimCLR 1.00 (a fall); BYOL 0.10 (within noise).",
        ["agrees", "noise"],
    )


def test_l2_is_compared_with_l1_at_the_same_k() -> None:
    words, marks = claimed("norms", of(rows_of("norms")[1:5], "linear", [0.9, 0.9, 0.9, 0.8]))
    assert words == "Linear accuracy with L2 beside L1: within noise at k = 32, lower at k = 64."
    assert marks == ["agrees", "disagrees"]
    assert claimed("norms", {}) == ("", [])


def test_covariance_is_to_change_neither_lid_nor_accuracy() -> None:
    rows = rows_of("regularizers")
    own = [rows[0], *rows[2:6]]
    words, marks = claimed("regularizers", of(own, "lid", [6.0, 6.0, 7.0, 7.0, 5.0]))
    assert words == (
        "Of 4 settings of Cov and Cov+Var, by more than noise LID is higher in 2 and lower in 1; in the paper they "
        "change neither by much."
    )
    assert marks == ["disagrees"]
    assert claimed("regularizers", of(own, "linear", [0.9] * 5))[1] == ["agrees"]
    assert claimed("regularizers", of(own[:1], "lid", [6.0])) == ("", [])
