"""What is said of trends, and of who is highest, is what the records say."""

from collections.abc import Sequence
from dataclasses import replace

from ldreg.record import Record
from ldreg.reproduce import trends
from ldreg.reproduce.jobs import Arm
from ldreg.reproduce.rows import Row, ablation, all_methods, jitter, norms, regularizers, table1
from ldreg.reproduce.scales import SCALES

DIGITS = SCALES["digits"]


def words(found: Sequence[trends.Claim]) -> str:
    return " ".join(claim.words for claim in found)


def marks(found: Sequence[trends.Claim]) -> list[str]:
    return [mark for claim in found for mark in claim.marks]


def of(rows: Sequence[Row], metric: str, values: Sequence[float]) -> dict[Arm, list[Record]]:
    """A record of each row's arm with a value of one metric."""
    found = {}
    for row, value in zip(rows, values, strict=True):
        origin: dict[str, str | float | int | None] = {"seed": 0, "held_out": 1000}
        curves = {"lid": [(0.0, 1.0), (1.0, value)]} if metric == "lid" else {}
        found[row.arm] = [Record("a", {}, {metric: value}, curves=curves, origin=origin)]
    return found


def test_a_trend_is_from_the_least_to_the_largest_that_was_measured() -> None:
    rows = [row for row in ablation(DIGITS) if row.group == "beta"]
    found = trends.of_ablation(DIGITS, of(rows[:3][::-1], "effective_rank", [60.0, 10.0, 20.0]))
    assert words(found) == "From beta 0.01 to 0.5 effective rank rises (+40.00, noise 6.00); in the paper it falls."
    assert marks(found) == ["disagrees"]
    found = trends.of_ablation(DIGITS, of(rows, "linear", [0.9, 0.5, 0.5, 0.899]))
    assert words(found).startswith("From beta 0.01 to 1 linear accuracy changes within noise (-0.10, noise ")
    assert words(found).endswith("); in the paper it is stable.")
    assert marks(found) == ["agrees"]
    assert marks(trends.of_ablation(DIGITS, of(rows, "linear", [0.9, 0.5, 0.5, 0.8]))) == ["disagrees"]
    assert marks(trends.of_ablation(DIGITS, of(rows, "effective_rank", [60.0, 1.0, 1.0, 50.0]))) == ["agrees"]
    assert trends.of_ablation(DIGITS, of(rows[:1], "linear", [0.9])) == []


def test_lid_over_color_jitter() -> None:
    rows = jitter(DIGITS)
    found = trends.of_jitter(DIGITS, of(rows, "lid", [8.0, 6.0, 5.0, 4.0]))
    told = "From strength 0 to 1 LID of training images falls (-4.00, noise 0.40); in the paper it rises."
    assert words(found) == told
    assert marks(found) == ["disagrees"]
    assert marks(trends.of_jitter(DIGITS, of(rows, "lid", [8.0, 6.0, 5.0, 8.1]))) == ["noise"]
    assert marks(trends.of_jitter(DIGITS, of(rows, "lid", [8.0, 6.0, 5.0, 9.0]))) == ["agrees"]
    assert trends.of_jitter(DIGITS, {}) == []


def test_who_is_highest_is_compared_with_the_paper() -> None:
    rows = [row for row in table1(DIGITS) if row.group in ("simclr", "byol", "mae") and row.baseline is None]
    ranks = of(rows, "effective_rank", [30.0, 20.0, 10.0])
    assert marks(trends.of_methods(DIGITS, ranks)) == ["disagrees", "agrees"]
    assert words(trends.of_methods(DIGITS, ranks)) == (
        "Without LDReg, highest effective rank: SimCLR (in the paper BYOL); lowest effective rank: MAE (ViT) (as in "
        "the paper)."
    )
    lids = of(rows, "lid", [6.0, 5.0, 1.0])
    told = words(trends.of_methods(DIGITS, lids))
    assert told == "Without LDReg, lowest LID of those with a ResNet: BYOL (as in the paper)."
    assert trends.of_methods(DIGITS, {}) == []


def test_batch_sizes_that_are_not_the_paper_s_are_told() -> None:
    assert trends.of_batches(SCALES["imagenet"], {}) == []
    (told,) = trends.of_batches(DIGITS, {})
    assert told == trends.Claim("The paper's values, in this order, are for batches of 512, 1024 and 2048.")


def test_lid_at_the_end_is_judged_method_by_method() -> None:
    rows = [row for row in all_methods(DIGITS) if row.group in ("simclr", "byol", "moco")]
    found = trends.of_training(DIGITS, of(rows, "lid", [6.0, 7.0, 6.0, 5.0, 6.0, 6.1]))
    assert found[0].words == (
        "At the end, with LDReg beside without it: higher for SimCLR; lower for BYOL; within noise for MoCo."
    )
    assert found[0].marks == ("agrees", "disagrees", "noise")
    assert trends.of_training(DIGITS, {}) == []


def test_a_late_fall_is_told_from_noise() -> None:
    rows = [row for row in all_methods(DIGITS) if row.group in ("simclr", "byol") and row.baseline is None]
    found = of(rows, "lid", [6.0, 6.0])
    found[rows[0].arm] = [
        replace(found[rows[0].arm][0], curves={"lid": [(0.0, 5.0), (1.0, peak), (2.0, 6.0)]}) for peak in (6.9, 6.5)
    ]
    assert words(trends.of_training(DIGITS, found)) == (
        "Without LDReg it ends below its highest value by this much: SimCLR 0.50 to 0.90 (a fall); "
        "BYOL 0.00 (within noise)."
    )
    assert marks(trends.of_training(DIGITS, found)) == ["agrees", "noise"]
    stopped = replace(found[rows[0].arm][0], origin={"seed": 2, "failed": "loss is nan"})
    assert trends.of_training(DIGITS, {rows[0].arm: [stopped]}) == [], "its curve does not reach the end"


def test_l2_is_compared_with_l1() -> None:
    rows = norms(DIGITS)
    found = trends.of_norms(DIGITS, of(rows[1:5], "linear", [0.9, 0.9, 0.9, 0.8]))
    told = "Linear accuracy with L2 beside L1: within noise at k = 32, lower at k = 64."
    assert found == [trends.Claim(told, ("agrees", "disagrees"))]
    assert trends.of_norms(DIGITS, {}) == []


def test_what_covariances_change_is_counted() -> None:
    rows = regularizers(DIGITS)
    own = [rows[0], *(row for row in rows if row.names[0] in ("Cov", "Cov+Var"))]
    lids = of(own, "lid", [6.0, 6.1, 7.0, 5.0, 8.0])
    assert words(trends.of_regularizers(DIGITS, lids)) == (
        "Of 4 settings of Cov and Cov+Var, by more than noise LID is higher in 2 and lower in 1; in the paper they "
        "change neither by much."
    )
    assert marks(trends.of_regularizers(DIGITS, lids)) == ["disagrees"]
    assert marks(trends.of_regularizers(DIGITS, of(own, "linear", [0.9] * 5))) == ["agrees"]
    assert trends.of_regularizers(DIGITS, of(own[:1], "lid", [6.0])) == []
