"""The words come out right on sets whose shape is known."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits, make_swiss_roll
from torch import Tensor

from ldreg.inspection import inspect, measure
from ldreg.inspection.gaps import Gaps
from ldreg.inspection.guidance import beside, collapsed_classes, guidance, unfit, verdict
from ldreg.lid.calibration import gaussian_lid
from ldreg.lid.estimators import Estimator, LIDEstimate
from ldreg.lid.search import Neighbors
from ldreg.lid.synthetic import ball, cube, local_collapse, sphere
from ldreg.reporting.record import Beside, ClassLID, DimensionReport, Guidance, MeanLID, SmallClass, Verdict

NAN = math.nan
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("quick_danco")


def gaussian(n: int, d: int, *, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def flattened_patches(n: int = 4000, d: int = 32, kept: int = 4) -> Tensor:
    """A Gaussian cut into 40 patches, each of which keeps a few directions of its own."""
    x, centers = gaussian(n, d), gaussian(40, d, seed=1)
    cell = torch.cdist(x, centers).argmin(1)
    basis = torch.linalg.qr(gaussian(40, d * kept, seed=2).view(40, d, kept)).Q[cell]
    inside = (x - centers[cell]).unsqueeze(2)
    flat: Tensor = centers[cell] + (basis @ (basis.transpose(1, 2) @ inside)).squeeze(2)
    return flat


def curved(n: int = 3000) -> Tensor:
    """Three coordinates, bent into many."""
    hidden = torch.tanh(2 * gaussian(n, 3) @ gaussian(3, 200, seed=1) + gaussian(1, 200, seed=2))
    return hidden @ gaussian(200, 128, seed=3)


def clusters(apart: float, n: int = 3000, d: int = 64) -> Tensor:
    cluster = torch.randint(10, (n,), generator=torch.Generator().manual_seed(4))
    return apart * gaussian(10, d, seed=1)[cluster] + gaussian(n, d)


SETS: dict[str, tuple[Callable[[], Tensor], Verdict]] = {
    "isotropic Gaussian": (lambda: gaussian(2000, 30), "usual"),
    "hyperbolic spectrum": (lambda: gaussian(2000, 100) * torch.arange(1, 101) ** -0.5, "usual"),
    "steep spectrum": (lambda: gaussian(2000, 100) * torch.arange(1, 101) ** -1.0, "usual"),
    "plane in 64 coordinates": (lambda: gaussian(2000, 2) @ gaussian(2, 64, seed=1), "usual"),
    "more coordinates than points": (lambda: gaussian(500, 600), "usual"),
    "cube": (lambda: cube(2000, 20), "usual"),
    "square": (lambda: cube(2000, 2), "usual"),
    "ball": (lambda: ball(2000, 10), "usual"),
    "sphere": (lambda: sphere(2000, 50), "usual"),
    "near clusters": (lambda: clusters(1.0), "usual"),
    "distant clusters": (lambda: clusters(3.0), "higher"),
    "outlier": (lambda: torch.cat([gaussian(2000, 32), torch.full((1, 32), 1000.0)]), "higher"),
    "collapsed patches of a square": (lambda: local_collapse(2000, 1.0), "lower"),
    "collapsed patches of 32 dimensions": (flattened_patches, "lower"),
    "swiss roll": (lambda: torch.from_numpy(make_swiss_roll(2000, random_state=0)[0]), "lower"),
    "curved surface in 128 coordinates": (curved, "lower"),
    "digits": (lambda: torch.from_numpy(load_digits().data), "lower"),
}


@pytest.mark.parametrize("name", SETS)
def test_shapes_are_told_by_their_words(name: str) -> None:
    draw, expected = SETS[name]
    report = inspect(draw(), k=64, sample=800)
    found = report.guidance
    assert found.verdict == expected
    assert found.note == ""
    assert found.usual is not None
    assert found.fisher_rao == pytest.approx(abs(math.log(report.mean.value / found.usual)))
    assert "Local collapse" not in report.in_words()  # which is not for the points alone to tell
    told = documented(name)
    assert told["verdict"] == expected
    assert told["N × D"] == f"{report.points:,} × {report.dimensions}"
    measured = {"LID": report.mean.value, "usual": found.usual, "Gaussian dimension": found.gaussian_dimension}
    for column, value in measured.items():
        assert float(told[column]) == pytest.approx(value, rel=0.02, abs=0.06)


def documented(name: str) -> dict[str, str]:
    """The row of a set in docs/guidance.md, by column."""
    lines = (ROOT / "docs" / "guidance.md").read_text(encoding="utf-8").splitlines()
    head, row = (next(line for line in lines if line.startswith(f"| {start} |")) for start in ("set", name))
    return dict(zip(*([cell.strip() for cell in line.split("|")] for line in (head, row)), strict=True))


@pytest.mark.parametrize("document", ["docs/index.md", "docs/guidance.md"])
def test_documents_quote_the_words_as_they_are(document: str) -> None:
    words = inspect(torch.from_numpy(load_digits().data).float(), k=64).in_words()
    assert words in (ROOT / document).read_text(encoding="utf-8").replace("\n", " ")


@pytest.mark.parametrize(("d", "dimensions"), [(5, 64), (20, 128), (50, 50)])
def test_the_dimension_is_freed_of_the_bias(d: int, dimensions: int) -> None:
    report = inspect(gaussian(3000, d) @ torch.eye(d, dimensions), k=64, sample=800)
    assert report.guidance.gaussian_dimension == pytest.approx(d, rel=0.05)
    assert report.guidance.filled == pytest.approx(gaussian_lid(dimensions, 64, 3000))
    assert d == 5 or report.mean.value < 0.8 * d


@pytest.mark.parametrize("estimator", ["mom", "mle"])
def test_the_verdict_does_not_hang_on_the_estimator(estimator: Estimator) -> None:
    whole, flat = (
        inspect(x, k=32, estimator=estimator, convention="pseudocode").guidance.verdict
        for x in (gaussian(1500, 20), flattened_patches(1500))
    )
    assert (whole, flat) == ("usual", "lower")


def told(report: DimensionReport) -> tuple[Verdict | None, str]:
    return report.guidance.verdict, report.guidance.note


def test_nothing_is_said_where_nothing_is_known() -> None:
    assert told(inspect(gaussian(100, 5), k=20)) == (
        None,
        "there are readings for 128 to 2,097,152 points, not for 100",
    )
    assert told(inspect(gaussian(200, 5), k=64)) == (None, "k = 64 is more than a quarter of the 200 points")
    assert told(inspect(gaussian(200, 5), k=20, estimator="tle"))[1].endswith("not by tle")
    assert told(inspect(torch.ones(300, 4), k=20)) == (None, "most points have no defined LID")
    assert told(inspect(gaussian(300, 5), k=20, sample=1)) == (None, "")  # no interval, so no verdict
    mostly = gaussian(400, 5)
    mostly[:250] = 0
    assert told(inspect(mostly, k=20)) == (None, "most points have no defined LID")
    assert inspect(mostly, k=20).guidance.distinct is None  # which is counted only where no point has a LID
    assert told(inspect(mostly_equally_far(), k=16)) == (None, "most points have no defined LID")


def mostly_equally_far() -> Tensor:
    x: Tensor = torch.block_diag(torch.eye(300), 9 + gaussian(200, 3))
    return x


def test_a_covariance_that_no_number_holds_is_said_to_be_unknown() -> None:
    found = guidance(
        MeanLID(5.0, 4.9, 5.1), (), torch.tensor([math.inf, 1.0]), sizes={}, degenerate=0.0, k=64, shape=(1000, 2),
        estimator="mom", convention="paper",
    )  # fmt: skip
    assert (found.verdict, found.usual, found.note) == (None, None, "the covariance is zero, or too large for a number")
    assert found.gaussian_dimension == pytest.approx(5.16, abs=0.1)


def test_duplicates_are_named_as_a_cause() -> None:
    x = gaussian(1000, 32)
    report = inspect(torch.cat([x, x]), k=64)
    assert (report.guidance.verdict, report.guidance.doubt) == (None, "duplicates")
    words = report.in_words()
    assert words.startswith("2,000 points have an exact duplicate, of 2,000 measured: LID reads low there")
    assert "Measure again without duplicates" in words
    assert "directions" not in words
    assert words.count("duplicate,") == 1
    assert inspect(torch.cat([x, x]), k=64, sample=500).guidance.doubt == "duplicates"  # most of those measured


def small_clusters() -> Tensor:
    return 3 * gaussian(60, 64, seed=1).repeat_interleave(50, 0) + gaussian(3000, 64)


def noisy_copies() -> Tensor:
    return gaussian(600, 64, seed=1).repeat_interleave(5, 0) + 0.1 * gaussian(3000, 64)


def topics() -> Tensor:
    x = gaussian(50, 384, seed=1).repeat_interleave(50, 0) + 0.5 * gaussian(2500, 384)
    unit: Tensor = x / x.norm(dim=1, keepdim=True)
    return unit


@pytest.mark.parametrize(
    ("draw", "jump", "advice"),
    [
        (
            small_clusters,
            49,
            "k = 64 reaches beyond small clusters, or scales differ; measure again with a smaller k, such",
        ),
        (
            topics,
            49,
            "k = 64 reaches beyond small clusters, or scales differ; measure again with a smaller k, such as 32",
        ),
        (noisy_copies, 4, "k = 64 reaches beyond copies, or scales differ; measure again with one of each"),
    ],
)
def test_neighbors_beyond_a_small_cluster_are_no_collapse(draw: Callable[[], Tensor], jump: int, advice: str) -> None:
    report = inspect(draw(), k=64, sample=800)
    assert (report.guidance.verdict, report.guidance.doubt, report.guidance.jump) == (None, "jump", jump)
    words = report.in_words()
    assert advice in words
    assert "independent directions" not in words
    assert "lower than usual" not in words
    assert ("speak for far more directions" in words) == (draw is not noisy_copies)


def test_classes_no_larger_than_k_are_named_where_distances_jump() -> None:
    report = inspect(small_clusters(), [row // 50 for row in range(3000)], k=64)
    assert "The median class has 50 points, no more than k." in report.in_words()
    assert inspect(small_clusters(), k=16, sample=800).mean.value > 15


def test_points_around_which_nothing_is_defined_say_why() -> None:
    few = gaussian(3, 4).repeat(100, 1)
    assert inspect(few, k=20).in_words().startswith(
        "None of the 300 measured points has a defined LID: every point has k or more exact duplicates (k = 20); of "
        "300 rows 3 are distinct."
    )  # fmt: skip
    twice = inspect(gaussian(150, 4).repeat(2, 1), k=20, estimator="mle").in_words()
    assert "every point has an exact duplicate, and for mle one is enough (k = 20); of 300 rows 150 are dist" in twice
    assert "the 20 neighbors of every point are equally far." in inspect(torch.eye(150), k=20).in_words()


def test_rows_that_are_all_the_same_are_a_complete_collapse(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "Complete collapse: all 300 representations coincide, so none has a defined LID."
    assert inspect(torch.full((300, 4), 0.3), k=20).in_words() == told
    monkeypatch.setattr(measure, "_SORTED", 0)  # as where there are too many rows to sort
    monkeypatch.setattr(measure, "_COMPARED", 128)
    assert inspect(torch.full((300, 4), 0.3), k=20).in_words() == told
    two = torch.ones(300, 4)
    two[150:] = 2
    assert inspect(two, k=20).guidance.distinct is None


def test_a_few_wide_directions_are_still_gaussian() -> None:
    x = gaussian(256, 1000)
    x[:, 0] *= math.sqrt(116)
    assert inspect(x, k=64).guidance.verdict == "usual"


def test_more_coordinates_than_the_table_has_get_no_verdict() -> None:
    assert told(inspect(gaussian(300, 9000), k=64)) == (
        None,
        "there are readings for at most 8,192 dimensions, not for 9,000",
    )


@pytest.mark.parametrize("scale", [1e-165, 1e180])
def test_scales_that_float64_cannot_square_are_measured_alike(scale: float) -> None:
    x = gaussian(300, 5).double()
    plain, scaled = inspect(x, k=20), inspect(x * scale, k=20)
    assert scaled.effective_rank == pytest.approx(plain.effective_rank, rel=1e-9)
    assert scaled.guidance.usual == pytest.approx(plain.guidance.usual, rel=1e-9)


def test_more_coordinates_than_points_can_fill_are_not_missed() -> None:
    assert "fill few directions" not in inspect(gaussian(300, 2000), k=64).in_words()


def test_neighbors_that_are_most_of_the_points_tell_of_no_directions() -> None:
    words = inspect(gaussian(65, 5), k=64).in_words()
    assert "which tells of no directions: 64 neighbors of 65 points are not near." in words
    assert "independent" not in words


def test_ties_are_named() -> None:
    grid = torch.cartesian_prod(*[torch.arange(13.0)] * 3)
    assert (
        "of the points most neighbors tie in distance, as on a grid or with few bits" in inspect(grid, k=64).in_words()
    )
    assert "tie in distance" not in inspect(gaussian(2000, 3), k=64, sample=300).in_words()


def test_a_line_of_one_coordinate_has_words_in_the_singular() -> None:
    for x in (cube(600, 1), gaussian(600, 1), 3 * gaussian(600, 1) ** 3):
        words = inspect(x, k=64).in_words()
        assert "1 coordinates" not in words
        told = ("the one coordinate varies", "the one coordinate reads", "lower than a Gaussian of one dimension reads")
        assert any(sentence in words for sentence in told)


@pytest.mark.parametrize(
    ("mean", "expected"),
    [
        (MeanLID(1.0, 0.9, 1.1), "lower"),
        (MeanLID(7.0, 6.0, 7.9), "lower"),
        (MeanLID(7.0, 6.0, 8.1), "usual"),
        (MeanLID(12.9, 12.0, 14.0), "usual"),
        (MeanLID(13.0, 12.6, 14.0), "higher"),
        (MeanLID(5.0, NAN, NAN), None),
    ],
)
def test_the_whole_interval_has_to_agree(mean: MeanLID, expected: Verdict | None) -> None:
    assert verdict(mean, 10.0) == expected


@pytest.mark.parametrize(
    ("mean", "other", "expected"),
    [
        (MeanLID(5.0, 4.0, 5.3), MeanLID(10.0, 9.0, 11.0), "collapse"),
        (MeanLID(5.0, 4.0, 5.5), MeanLID(10.0, 9.0, 11.0), "lower"),
        (MeanLID(6.5, 6.0, 7.1), MeanLID(10.0, 9.0, 11.0), "lower"),
        (MeanLID(6.5, 6.0, 7.3), MeanLID(10.0, 9.0, 11.0), "similar"),
        (MeanLID(14.5, 13.5, 15.0), MeanLID(10.0, 9.0, 11.0), "similar"),
        (MeanLID(14.5, 13.9, 15.0), MeanLID(10.0, 9.0, 11.0), "higher"),
        (MeanLID(5.0, NAN, NAN), MeanLID(10.0, 9.0, 11.0), None),
        (MeanLID(5.0, 4.0, 5.5), MeanLID(10.0, NAN, NAN), None),
    ],
)
def test_both_intervals_have_to_agree(mean: MeanLID, other: MeanLID, expected: Beside | None) -> None:
    assert beside(mean, other) == expected


def compared(x: Tensor, other: Tensor) -> str | None:
    """The verdict, or why there is none."""
    found = inspect(x, k=16, compare=other).comparison
    assert found is not None
    assert (found.verdict is None) == bool(found.doubt)
    return found.verdict or found.doubt


def test_a_comparison_tells_a_collapse_that_the_covariance_hides() -> None:
    whole = gaussian(500, 32)
    flat = whole[:, :3] @ gaussian(3, 32, seed=1)
    report = inspect(flat, k=16, compare=whole)
    assert report.guidance.verdict == "usual"
    assert "Local collapse beside comparison: LID 3." in report.in_words()
    assert compared(whole, flat) == "higher"
    assert compared(whole, gaussian(500, 32, seed=2)) == "similar"
    assert compared(whole[:, :14], whole) == "lower"


def test_a_class_is_compared_with_itself() -> None:
    whole = gaussian(600, 16) + 100 * torch.eye(16)[torch.arange(600) % 3]
    flat, names = whole.clone(), ["a", "b", "c"] * 200
    flat[1::3, 2:] = 0
    report = inspect(flat, names, k=16, compare=whole, compare_labels=names)
    assert report.comparison is not None
    (found,) = report.comparison.collapsed_classes
    own, other = ({row.label: row.mean for row in one.classes}["b"] for one in (report, report.comparison.other))
    assert (found.label, found.mean, found.others) == ("b", own, other.value)
    assert found.fisher_rao == pytest.approx(math.log(other.value / own.value))
    assert f"Class b (LID {own.value:.2f}, there {other.value:.2f}) is collapsed beside the same" in report.in_words()
    assert report.to_dict()["comparison"]["collapsed_classes"][0]["label"] == "b"
    back = inspect(whole, names, k=16, compare=flat, compare_labels=names).comparison
    fewer = inspect(flat[:599], names[:599], k=16, compare=whole, compare_labels=names).comparison
    assert [one and one.collapsed_classes for one in (back, fewer)] == [(), ()]


def test_classes_of_no_more_than_k_points_are_not_compared() -> None:
    whole = gaussian(600, 16) + 100 * torch.eye(16)[torch.arange(600) % 3]
    flat, names = whole.clone(), ["a", "b", "c"] * 5 + ["a", "d", "c"] * 195
    flat[1::3, 2:] = 0
    for k, judged in ((4, ["b", "d"]), (5, ["d"])):
        found = inspect(flat, names, k=k, compare=whole, compare_labels=names).comparison
        assert found is not None
        assert sorted(row.label for row in found.collapsed_classes) == judged


def test_classes_that_are_too_small_in_the_other_set_alone_are_told() -> None:
    whole = gaussian(600, 16)
    own, other = ["a", "b", "c"] * 200, ["a", "b", "c"] * 8 + ["a"] * 576
    report = inspect(whole, own, k=16, compare=whole, compare_labels=other)
    told = "2 of 3 classes are not judged beside the same classes of comparison: there they have 8 points, and k = 16"
    assert told in report.in_words()
    back = inspect(whole, other, k=16, compare=whole, compare_labels=own).in_words()
    assert "2 of 3 classes are not judged: they have 8 points" in back
    assert "beside the same" not in back
    assert "not judged" not in inspect(whole, own, k=7, compare=whole, compare_labels=other).in_words()
    fewer = inspect(whole[:599], own[:599], k=16, compare=whole, compare_labels=other).in_words()
    assert "not judged" not in fewer, "no class is, and it is said why"


def test_a_comparison_in_doubt_is_not_judged() -> None:
    whole, flat = gaussian(500, 32), gaussian(500, 3)
    twice, far = whole[:250].repeat(2, 1), mostly_equally_far()
    clusters = 50 * whole[:50].repeat_interleave(10, 0) + gaussian(500, 32, seed=3)
    assert compared(flat, whole) == "collapse"
    assert compared(flat[:499], whole) == "it has 500 points, and LID depends on their number"
    for odd, why in (
        (twice, "most of {} points have an exact duplicate"),
        (far, "most of {} points have no defined LID"),  # 300 are equally far
        (torch.cat([gaussian(200, 32), torch.zeros(300, 32)]), "most of {} points have no defined LID"),
        (clusters, "around many of {} points the distances to neighbors jump, as where k is larger than clusters"),
    ):
        assert compared(odd, whole) == why.format("these")
        assert compared(flat, odd) == why.format("its")
    assert compared(far, twice) == "most of these points have no defined LID"  # the own points are named first
    assert compared(twice[:499], whole) == "it has 500 points, and LID depends on their number"
    alone = inspect(whole, k=16, compare=flat, sample=1).comparison
    assert alone is not None
    assert (alone.verdict, alone.doubt) == (None, "there are too few points for an interval")


def unfitted(*, undefined: int = 0, duplicated: int = 0, jumping: float = 0.0) -> str:
    """Why ten points, so many of which are odd, do not compare."""
    lid, nearest = torch.full((10,), 5.0), torch.ones(10, 1)
    lid[:undefined], nearest[:duplicated] = math.inf, 0.0
    found = LIDEstimate(lid, lid / 10, Neighbors(nearest, torch.zeros(10, 1, dtype=torch.int64)))
    return unfit(found, Gaps(jumping), "its")


def test_half_of_the_points_are_not_most_of_them() -> None:
    assert unfitted(undefined=5, duplicated=5, jumping=0.27) == ""
    assert unfitted(undefined=6, duplicated=6, jumping=0.33) == "most of its points have no defined LID"
    assert unfitted(duplicated=6, jumping=0.33) == "most of its points have an exact duplicate"
    assert unfitted(jumping=0.33).startswith("around many of its points the distances to neighbors jump")
    half = guided(degenerate=0.5, duplicated=0.5)
    assert (half.verdict, half.doubt, half.note) == ("lower", "", "")


def guided(
    *,
    lid: float = 5.0,
    degenerate: float = 0.0,
    duplicated: float = 0.0,
    gaps: Gaps | None = None,
    size: int = 5000,
) -> Guidance:
    """Of 10,000 points with the covariance of a Gaussian of 32 dimensions, for which LID 22 is usual.

    `size` is that of the second of two classes, which reads lower than the first.
    """
    classes = rows(MeanLID(10.0, 9.0, 11.0), MeanLID(3.0, 2.8, 3.2))
    return guidance(
        MeanLID(lid, lid - 0.1, lid + 0.1), classes, torch.ones(32), sizes={"0": 5000, "1": size},
        degenerate=degenerate, duplicated=duplicated, gaps=Gaps() if gaps is None else gaps, distinct=7, k=64,
        shape=(10_000, 32), estimator="mom", convention="paper",
    )  # fmt: skip


def test_doubt_begins_where_too_many_points_are_odd() -> None:
    assert (guided(duplicated=0.45).verdict, guided(duplicated=0.45).doubt) == ("lower", "")
    both = guided(duplicated=0.55, gaps=Gaps(0.33, 49.0, 0.0))
    assert (both.verdict, both.doubt, both.jump) == (None, "duplicates", None)
    few, many = (guided(gaps=Gaps(share, 49.0, 0.25)) for share in (0.27, 0.33))
    assert (few.verdict, few.doubt, few.jump, few.tied) == ("lower", "", None, 0.25)
    assert (many.verdict, many.doubt, many.jump, many.tied) == (None, "jump", 49, 0.25)
    assert (
        guided(lid=22.0, gaps=Gaps(0.33, 49.0, 0.0)).verdict == "usual"
    )  # it is not low, so there is nothing to doubt
    assert guided(duplicated=0.55, gaps=Gaps(0.1, NAN, 0.0)).doubt == "duplicates"


def test_most_points_without_a_lid_leave_nothing_to_judge() -> None:
    assert guided(degenerate=0.45).verdict == "lower"
    found = guided(degenerate=0.55, duplicated=0.55, gaps=Gaps(tied=0.25))
    assert (found.verdict, found.usual, found.note) == (None, None, "most points have no defined LID")
    assert (found.doubt, found.tied, found.distinct) == ("duplicates", 0.25, 7)
    assert [row.label for row in found.collapsed_classes] == ["1"]


def test_a_lid_off_the_table_is_said_to_be() -> None:
    assert guided(lid=0.8).note == "LID is lower than a Gaussian of one dimension reads"
    assert guided(lid=1000.0).note == "LID is higher than a Gaussian of 8,192 dimensions reads"
    assert guided().note == ""


def rows(*means: MeanLID) -> list[ClassLID]:
    return [ClassLID(str(place), 50, 50, mean) for place, mean in enumerate(means)]


def test_collapsed_classes_are_those_surely_below_the_others() -> None:
    usual = MeanLID(10.0, 9.0, 11.0)
    found = collapsed_classes(
        rows(usual, MeanLID(4.0, 3.5, 5.9), MeanLID(4.0, 3.0, 6.1), MeanLID(3.0, 2.8, 3.2), usual, usual, usual)
    )
    assert [row.label for row in found] == ["3", "1"]
    assert found[0].others == 10.0
    assert found[0].fisher_rao == pytest.approx(math.log(10 / 3))


def test_one_class_has_no_others() -> None:
    assert collapsed_classes(rows(MeanLID(1.0, 0.9, 1.1))) == ()
    assert collapsed_classes(rows(MeanLID(1.0, 0.9, 1.1), MeanLID(NAN, NAN, NAN))) == ()
    assert collapsed_classes(rows(MeanLID(1.0, NAN, NAN), MeanLID(9.0, 8.0, 10.0))) == ()


def test_a_class_is_not_among_the_others_that_it_is_beside() -> None:
    [found] = collapsed_classes(rows(MeanLID(10.0, 9.0, 11.0), MeanLID(5.0, 4.8, 5.5)))
    assert (found.label, found.others) == ("1", 10.0)


def test_a_class_without_a_lid_has_no_say() -> None:
    undefined = MeanLID(NAN, NAN, NAN)
    found = collapsed_classes(rows(undefined, MeanLID(10.0, 9.0, 11.0), MeanLID(3.0, 2.8, 3.2), undefined))
    assert [(row.label, row.others) for row in found] == [("2", 10.0)]


def labeled_clusters(*sizes: int) -> tuple[Tensor, list[int]]:
    """Clusters of so many points, far apart, each a Gaussian of all 64 dimensions."""
    labels = [label for label, size in enumerate(sizes) for _ in range(size)]
    return 8 * gaussian(len(sizes), 64, seed=1)[labels] + gaussian(len(labels), 64), labels


@pytest.mark.parametrize("estimator", ["mom", "mle"])
def test_a_class_of_coinciding_points_is_called_collapsed(estimator: Estimator) -> None:
    x = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
    labels = ["a", "b", "c"] * 100
    x[1::3] = x[1]
    x[2:42:6] = x[2]  # 7 of the class c, fewer than k
    report = inspect(x, labels, 10, estimator=estimator)
    assert [row.coinciding for row in report.classes] == [0, 100, 0]
    assert "Class b (100 of 100 points) is collapsed completely" in report.in_words()
    x[:] = x[1]
    assert "Class" not in inspect(x, labels, 10, estimator=estimator).in_words()  # said of the whole set


def test_a_class_that_cannot_hold_k_neighbors_is_not_judged() -> None:
    assert [row.label for row in guided(size=65).collapsed_classes] == ["1"]
    assert guided(size=65).small_classes == ()
    assert guided(size=64).collapsed_classes == ()
    assert guided(size=64).small_classes == (SmallClass("1", 64),)
    report = inspect(*labeled_clusters(300, 64, 300, 300, 20), k=64)
    assert report.guidance.doubt == ""
    assert report.guidance.collapsed_classes == ()
    assert (
        "2 of 5 classes are not judged: they have 20 to 64 points, and k = 64 reaches beyond; k has to be below that"
    ) in report.in_words()


def test_classes_of_which_few_points_are_measured_are_judged_by_all_their_neighbors() -> None:
    x, labels = labeled_clusters(300, 300, 300, 300)
    x[:300, 4:] = x[0, 4:]
    report = inspect(x, labels, k=64, sample=160)
    assert max(row.count for row in report.classes) < 64
    assert report.guidance.small_classes == ()
    assert [row.label for row in report.guidance.collapsed_classes] == ["0"]


def test_small_classes_are_not_among_the_others() -> None:
    x, labels = labeled_clusters(300, 300, 30, 30, 30, 30)
    x[:300, 4:] = x[0, 4:]
    [found] = inspect(x, labels, k=64).guidance.collapsed_classes
    assert (found.label, found.others > 15) == ("0", True)


def test_where_distances_jump_no_class_is_judged() -> None:
    assert guided(gaps=Gaps(0.33, 49.0)).collapsed_classes == ()
    report = inspect(*labeled_clusters(75, 75, 75, 75, 75, 75, 64, 62, 60, 59), k=64)
    assert report.guidance.doubt == "jump"
    words = report.in_words()
    assert "are collapsed" not in words
    assert "such as 32." in words
    assert "For the same reason none of the 10 classes is judged beside the others." in words


def test_a_flattened_class_is_named() -> None:
    x = gaussian(1200, 16) + 20 * gaussian(4, 16, seed=1).repeat(300, 1)
    x[2::4, 3:] = x[2, 3:]
    labels = ["owl", "fox", "eel", "elk"] * 300
    report = inspect(x, labels, k=40)
    assert [row.label for row in report.guidance.collapsed_classes] == ["eel"]
    assert "Class eel is collapsed beside the others: LID 3." in report.in_words()
    assert inspect(gaussian(1200, 16), labels, k=40).guidance.collapsed_classes == ()


def test_guidance_is_kept_with_the_numbers() -> None:
    report = inspect(gaussian(300, 5), ["a", "b"] * 150, k=20)
    kept = report.to_dict()
    assert kept["guidance"]["verdict"] == "usual"
    assert kept["guidance"]["usual"] == pytest.approx(report.guidance.usual)
    assert kept["guidance"]["collapsed_classes"] == []
    assert kept["in_words"] == report.in_words()
    assert replace(report, title="other").guidance == report.guidance
