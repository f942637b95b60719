"""What is said of trends, and of who is highest, is what the records say."""

from collections.abc import Sequence

from ldreg.reporting.run_record import RunRecord
from ldreg.reproduction import trends
from ldreg.reproduction.jobs import Arm
from ldreg.reproduction.rows import Row, ablation, jitter, table1
from ldreg.reproduction.scales import SCALES

DIGITS = SCALES["digits"]


def of(rows: Sequence[Row], metric: str, values: Sequence[float]) -> dict[Arm, list[RunRecord]]:
    """A record of each row's arm with a value of one metric."""
    found = {}
    for row, value in zip(rows, values, strict=True):
        origin: dict[str, str | float | int | None] = {"seed": 0, "held_out": 1000}
        curves = {"lid": [(0.0, 1.0), (1.0, value)]} if metric == "lid" else {}
        found[row.arm] = [RunRecord("a", {}, {metric: value}, curves=curves, origin=origin)]
    return found


def test_a_trend_is_from_the_least_to_the_largest_that_was_measured() -> None:
    rows = [row for row in ablation(DIGITS) if row.group == "beta"]
    told = trends.of_ablation(DIGITS, of(rows[:3][::-1], "effective_rank", [60.0, 10.0, 20.0]))
    assert told == "From beta 0.01 to 0.5 effective rank rises (+40.00, noise 3.00); in the paper it falls."
    told = trends.of_ablation(DIGITS, of(rows, "linear", [0.9, 0.5, 0.5, 0.899]))
    assert told.startswith("From beta 0.01 to 1 linear accuracy changes within noise (-0.10, noise ")
    assert told.endswith("); in the paper it is stable.")
    assert trends.of_ablation(DIGITS, of(rows[:1], "linear", [0.9])) == ""


def test_lid_over_color_jitter() -> None:
    rows = jitter(DIGITS)
    told = trends.of_jitter(DIGITS, of(rows, "lid", [8.0, 6.0, 5.0, 4.0]))
    assert told == "From strength 0 to 1 LID of training images falls (-4.00, noise 0.40); in the paper it rises."
    assert trends.of_jitter(DIGITS, {}) == ""


def test_who_is_highest_is_compared_with_the_paper() -> None:
    rows = [row for row in table1(DIGITS) if row.group in ("simclr", "byol", "mae") and row.baseline is None]
    ranks = of(rows, "effective_rank", [30.0, 20.0, 10.0])
    assert trends.of_methods(DIGITS, ranks) == (
        "Without LDReg, highest effective rank: SimCLR (in the paper BYOL); lowest effective rank: MAE (ViT) (as in "
        "the paper)."
    )
    lids = of(rows, "lid", [6.0, 5.0, 1.0])
    told = trends.of_methods(DIGITS, lids)
    assert told == "Without LDReg, lowest LID of those with a ResNet: BYOL (as in the paper)."
    assert trends.of_methods(DIGITS, {}) == ""


def test_batch_sizes_that_are_not_the_paper_s_are_told() -> None:
    assert trends.of_batches(SCALES["imagenet"], {}) == ""
    told = trends.of_batches(DIGITS, {})
    assert told == "The paper's values, in this order, are for batches of 512, 1024 and 2048."
