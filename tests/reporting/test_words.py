import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from ldreg.reporting.page import page
from ldreg.reporting.record import (
    Beside,
    ClassLID,
    CollapsedClass,
    Comparison,
    DimensionReport,
    Guidance,
    MeanLID,
    Reading,
    SmallClass,
    Verdict,
)
from ldreg.reporting.summary import Row, local_rows
from ldreg.reporting.words import details, headline, sentences

MakeReport = Callable[..., DimensionReport]

KNOWN = Guidance("lower", usual=16.0, fisher_rao=1.07, gaussian_dimension=5.72, filled=7.4)


def collapsed(*labels: str) -> tuple[CollapsedClass, ...]:
    return tuple(CollapsedClass(label, MeanLID(2.0, 1.9, 2.1), 8.0, math.log(4)) for label in labels)


def test_the_verdict_comes_first(make_report: MakeReport) -> None:
    report = make_report(guidance=KNOWN)
    assert headline(report).startswith("LID is lower than usual: 5.50, where Gaussian points with the same cov")
    assert sentences(report) == [headline(report), *details(report)]
    assert report.in_words() == " ".join(sentences(report))


def test_the_bias_is_shown(make_report: MakeReport) -> None:
    words = make_report(guidance=KNOWN, points=1234).in_words()
    assert (
        "about 5.7 independent directions, of 16 coordinates: with k = 20 among 1,234 points, a Gaussian of 5.7 "
        "dimensions reads LID 5.50, one of 16 dimensions 7.40. A quarter of the points read below 4.00."
    ) in words
    assert "Dimensions this high" not in words


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"verdict": "lower"}, "LID is lower than usual: 5.50, where Gaussian points with the same"),
        ({"verdict": "usual"}, "LID is as usual: 5.50, where Gaussian points with the same covariance read 16.00."),
        ({"verdict": "higher"}, "LID is higher than usual: 5.50, where Gaussian points with the same"),
        ({"gaussian_dimension": 16.4}, "all 16 coordinates vary: a Gaussian of as many dimensions reads LID 7.40"),
        ({"gaussian_dimension": 15.8}, "all 16 coordinates vary: a Gaussian of as many dimensions reads LID 7.40"),
        ({"gaussian_dimension": 18.0}, "LID 5.50 is more than the 7.40 that a Gaussian of all 16 coordinates reads"),
        ({"gaussian_dimension": 12.34}, "about 12 independent directions"),
        ({"gaussian_dimension": None, "note": "LID is lower"}, "No Gaussian dimension is given: LID is lower."),
        ({"filled": None}, "a Gaussian of 5.7 dimensions reads LID 5.50. A quarter"),
        ({"collapsed_classes": collapsed("a")}, "Class a is collapsed beside the others: LID 2.00 where 8.00 is"),
        ({"collapsed_classes": collapsed("a", "b")}, "Classes a (2.00) and b (2.00) are collapsed beside the others"),
        ({"collapsed_classes": collapsed(*"abcde")}, "Classes a (2.00), b (2.00), c (2.00) and 2 more are collapsed"),
    ],
)
def test_each_case_has_its_sentence(make_report: MakeReport, changes: dict[str, object], sentence: str) -> None:
    guidance = replace(KNOWN, **changes)  # type: ignore[arg-type]
    assert sentence in make_report(guidance=guidance).in_words()


def test_what_is_not_known_is_said_so(make_report: MakeReport) -> None:
    report = make_report(guidance=Guidance(note="k = 20 is more than a quarter of the 60 points"))
    assert headline(report) == ""
    assert "What LID is usual cannot be told: k = 20 is more than a quarter of the 60 points." in report.in_words()
    assert "usual" not in make_report().in_words()


def test_no_local_collapse_is_no_praise_of_a_set_that_is_collapsed_as_a_whole(make_report: MakeReport) -> None:
    usual = replace(KNOWN, verdict="usual")
    sentence = "As a whole they fill few directions: the effective rank of their covariance is 1.20 of 16."
    assert sentence in make_report(guidance=usual, effective_rank=1.2).in_words()
    assert sentence in make_report(guidance=KNOWN, effective_rank=1.2).in_words()
    assert "1.55 of 16" in make_report(guidance=usual, effective_rank=1.55).in_words()
    assert "fill few" not in make_report(guidance=usual, effective_rank=1.65).in_words()
    assert "1.10 of 12." in make_report(guidance=usual, effective_rank=1.1, points=13).in_words()
    assert "fill few" not in make_report(guidance=usual, effective_rank=1.3, points=13).in_words()
    assert "fill few" not in make_report(guidance=replace(KNOWN, verdict=None), effective_rank=1.2).in_words()


def test_duplicates_weigh_where_lid_is_low(make_report: MakeReport) -> None:
    advice = "measure again without duplicates"
    assert advice in make_report(guidance=KNOWN, points=100, duplicated=6).in_words()
    assert advice not in make_report(guidance=KNOWN, points=100, duplicated=5).in_words()
    assert advice not in make_report(guidance=replace(KNOWN, verdict="usual"), points=100, duplicated=6).in_words()


def test_rows_hold_what_is_known(make_report: MakeReport) -> None:
    names = [row.name for row in local_rows(make_report(guidance=KNOWN))]
    assert names[:3] == ["LID, geometric mean", "LID, usual", "Gaussian dimension"]
    assert not {"LID, usual", "Gaussian dimension"} & {row.name for row in local_rows(make_report())}


def test_the_page_opens_with_the_verdict(make_report: MakeReport) -> None:
    text = page(make_report(guidance=KNOWN))
    assert (
        "<strong>LID is lower than usual: 5.50, where Gaussian points with the same covariance read 16.00.</str" in text
    )
    assert "95 % confidence 5.10 to 5.90; usual: 16.00" in text
    assert "<strong>" not in page(make_report())


def test_class_names_are_only_text(make_report: MakeReport) -> None:
    guidance = replace(KNOWN, collapsed_classes=collapsed("<b>x</b>", "\x1b[31m"))
    report = make_report(guidance=guidance)
    assert "<b>x</b>" not in page(report)
    assert "\x1b" not in str(report)


def test_the_text_has_its_words_under_a_heading(make_report: MakeReport) -> None:
    lines = str(make_report(guidance=KNOWN)).splitlines()
    assert lines[lines.index("In words") + 1].startswith("LID is lower than usual: 5.50")


def beside(
    make_report: MakeReport, verdict: Beside | None, *, title: str = "trusted.npy", doubt: str = ""
) -> Comparison:
    return Comparison(make_report(title=title, mean=MeanLID(9.0, 8.5, 9.5)), 0.5, verdict, doubt)


def test_a_stop_in_the_name_of_a_file_ends_no_sentence(make_report: MakeReport) -> None:
    other = beside(make_report, "lower", title="v. 2 <b>. Final.npy")
    text = page(replace(make_report(guidance=KNOWN), comparison=other))
    name = "v. 2 &lt;b&gt;. Final.npy"
    assert f"<strong>LID is lower than that of {name}: 5.50, where that reads 9.00.</strong>" in text


@pytest.mark.parametrize(
    ("verdict", "sentence"),
    [
        ("collapse", "Local collapse beside trusted.npy: LID 5.50, where that reads 9.00."),
        ("lower", "LID is lower than that of trusted.npy: 5.50, where that reads 9.00."),
        ("similar", "LID is much like that of trusted.npy: 5.50, where that reads 9.00."),
        ("higher", "LID is higher than that of trusted.npy: 5.50, where that reads 9.00."),
    ],
)
def test_a_comparison_tells_what_covariance_cannot(make_report: MakeReport, verdict: Beside, sentence: str) -> None:
    report = replace(make_report(guidance=KNOWN), comparison=beside(make_report, verdict))
    assert headline(report) == sentence
    assert details(report)[0].startswith("LID is lower than usual: 5.50")
    assert "that you trust" not in report.in_words()
    assert headline(make_report(guidance=KNOWN)).endswith("compare with embeddings of the same data that you trust.")
    assert "that you trust" not in make_report(guidance=replace(KNOWN, verdict="usual")).in_words()


def test_a_comparison_that_tells_nothing_says_why(make_report: MakeReport) -> None:
    report = make_report(guidance=KNOWN)
    other = beside(make_report, None, doubt="it has 61 points, and LID depends on their number")
    lead, second, *_ = sentences(replace(report, comparison=other))
    assert lead.startswith("LID is lower than usual")  # what is not judged does not lead
    assert second == "LID cannot be judged by that of trusted.npy: it has 61 points, and LID depends on their number."
    assert "trusted.npy" not in replace(report, comparison=beside(make_report, None)).in_words()
    assert "\x1b" not in replace(report, comparison=beside(make_report, "lower", title="\x1b[31m")).in_words()


def test_verdicts_come_before_directions_and_classes_before_caveats(make_report: MakeReport) -> None:
    known = replace(KNOWN, collapsed_classes=collapsed("a"))
    other = beside(make_report, "similar")
    report = replace(make_report(guidance=known, effective_rank=1.2, duplicated=1), comparison=other)
    starts = (
        "LID is much like that of trusted.npy", "LID is lower than usual", "As a whole they fill few directions",
        "Around a typical point", "Class a is collapsed", "1 point has an exact duplicate",
    )  # fmt: skip
    assert [part[: len(start)] for part, start in zip(sentences(report), starts, strict=True)] == list(starts)


def test_nothing_is_compared_with_what_is_not_defined(
    make_report: MakeReport, collapsed_report: DimensionReport
) -> None:
    other = beside(make_report, None, doubt="why")
    assert "trusted.npy" not in replace(collapsed_report, comparison=other).in_words()


JUMP = replace(KNOWN, verdict=None, doubt="jump", jump=40)


@pytest.mark.parametrize(
    ("k", "jump", "told"),
    [
        (64, 8, "beyond copies, or scales differ; measure again with one of each."),
        (64, 9, "beyond small clusters, or scales differ; measure again with a smaller k, such as 8."),
        (64, 16, "measure again with a smaller k, such as 8."),
        (64, 40, "measure again with a smaller k, such as 32."),
        (20, 40, "measure again with a smaller k, such as 16."),
    ],
)
def test_k_is_advised_below_the_jump(make_report: MakeReport, k: int, jump: int, told: str) -> None:
    assert told in headline(make_report(guidance=replace(JUMP, jump=jump), k=k))


@pytest.mark.parametrize(
    ("dimension", "nearest", "told"), [(5.72, 11.3, False), (5.72, 11.6, True), (None, 11.1, True)]
)
def test_nearest_neighbors_are_named_where_they_speak_for_twice_as_many_directions(
    make_report: MakeReport, dimension: float | None, nearest: float, *, told: bool
) -> None:
    report = make_report(guidance=replace(JUMP, gaussian_dimension=dimension), twonn=Reading(nearest))
    assert ("The nearest neighbors alone" in headline(report)) == told


@pytest.mark.parametrize(
    ("sizes", "part", "told"), [((5, 20, 35), 0, True), ((5, 21, 34), 0, False), ((5, 20, 35), 1, False)]
)
def test_small_classes_are_named_where_all_points_were_measured(
    make_report: MakeReport, sizes: tuple[int, ...], part: int, *, told: bool
) -> None:
    classes = tuple(ClassLID(str(size), size, size, MeanLID(5.0, 4.0, 6.0)) for size in sizes)
    report = make_report(guidance=JUMP, k=20, classes=classes, measured=60 - part)
    assert ("The median class has 20 points, no more than k." in headline(report)) == told


@pytest.mark.parametrize("verdict", ["usual", "higher", "lower"])
def test_a_verdict_that_reassures_names_collapsed_classes(make_report: MakeReport, verdict: Verdict) -> None:
    mean, low = MeanLID(5.0, 4.5, 5.5), MeanLID(1.0, 0.9, 1.1)
    nan = float("nan")
    classes = (ClassLID("a", 9, 9, mean), ClassLID("b", 9, 9, low), ClassLID("c", 9, 0, MeanLID(nan, nan, nan), 9))
    found = replace(KNOWN, verdict=verdict, collapsed_classes=(CollapsedClass("b", low, 5.0, 1.6),))
    told = headline(make_report(guidance=found, classes=classes))
    assert told.endswith("But classes b and c are collapsed.") == (verdict != "lower")
    one = headline(make_report(guidance=replace(found, verdict="usual"), classes=classes[:2]))
    assert one.endswith("But class b is collapsed.")
    assert "collapsed" not in headline(make_report(guidance=replace(KNOWN, verdict="usual"), classes=classes[:1]))


def test_duplicates_in_doubt_say_what_is_usual_where_it_is_known(make_report: MakeReport) -> None:
    doubt = Guidance(doubt="duplicates", usual=16.0)
    assert headline(make_report(guidance=doubt)).endswith("before you judge LID 5.50 where 16.00 is usual.")
    assert headline(make_report(guidance=replace(doubt, usual=None))).endswith("before you judge LID 5.50.")
    one = make_report(guidance=doubt, duplicated=1).in_words()
    assert one.startswith("1 point has an exact duplicate")
    assert one.count("duplicate,") == 1
    assert "independent directions" not in one


@pytest.mark.parametrize(("dimension", "told"), [(17.5, "all 16 coordinates vary"), (17.7, "it tells of a shell")])
def test_more_directions_than_coordinates_are_chance_only_by_a_tenth(
    make_report: MakeReport, dimension: float, told: str
) -> None:
    assert told in make_report(guidance=replace(KNOWN, gaussian_dimension=dimension)).in_words()


def test_no_directions_are_named_where_the_table_has_none(make_report: MakeReport) -> None:
    known = replace(KNOWN, gaussian_dimension=None, note="LID is lower than a Gaussian of one dimension reads")
    assert "independent directions" not in make_report(guidance=known, points=100).in_words()


def test_directions_are_rounded_from_ten_on(make_report: MakeReport) -> None:
    assert "about 9.9 independent" in make_report(guidance=replace(KNOWN, gaussian_dimension=9.94)).in_words()
    assert "about 10 independent" in make_report(guidance=replace(KNOWN, gaussian_dimension=9.96)).in_words()


@pytest.mark.parametrize(("median", "told"), [(14.9, False), (15.1, True)])
def test_high_dimensions_are_said_to_read_low_where_nothing_corrects_them(
    make_report: MakeReport, median: float, *, told: bool
) -> None:
    report = make_report(quartiles=(4.0, median, 20.0))
    assert ("Dimensions this high read low" in report.in_words()) == told
    assert "Dimensions this high" not in replace(report, guidance=KNOWN).in_words()


def test_neighbors_are_near_up_to_a_quarter(make_report: MakeReport) -> None:
    assert "26 neighbors of 100 points are not near." in make_report(k=26, points=100).in_words()
    assert "about 5.50 independent directions (median LID)" in make_report(k=25, points=100).in_words()
    few = make_report(dimensions=5, points=100).in_words()
    assert "LID reads 5.50, more than the 5 coordinates that there are: k or the number of points" in few
    assert "more than the 1 coordinate that there is:" in make_report(dimensions=1, points=100).in_words()


@pytest.mark.parametrize(("tied", "told"), [(0.09, False), (0.11, True)])
def test_ties_are_named_from_a_tenth_on(make_report: MakeReport, tied: float, *, told: bool) -> None:
    assert ("tie in distance" in make_report(guidance=replace(KNOWN, tied=tied)).in_words()) == told


def test_a_complete_collapse_comes_first_and_is_told_of_either_set(
    make_report: MakeReport, collapsed_report: DimensionReport
) -> None:
    same = replace(collapsed_report, guidance=Guidance(doubt="duplicates", note="why", distinct=1), title="same.npy")
    other = beside(make_report, None, doubt="why")
    lead = "Complete collapse: all 60 representations coincide, so none has a defined LID."
    assert headline(same) == lead
    assert sentences(replace(same, comparison=other)) == [
        lead,
        "In trusted.npy they do not: LID 9.00, effective rank 9.50.",
    ]
    undefined = replace(other, other=replace(collapsed_report, title="few.npy"))
    told = "In few.npy they do not: no point has a defined LID either, effective rank 0."
    assert sentences(replace(same, comparison=undefined)) == [lead, told]
    assert sentences(replace(same, comparison=replace(other, other=same))) == [lead, "So it is in same.npy."]
    words = replace(make_report(guidance=KNOWN), comparison=replace(other, other=same)).in_words()
    assert "same.npy is a complete collapse: all 60 representations there coincide." in words
    assert "cannot be judged" not in words


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ((), None),
        ((1,), "1 of 3 classes is not judged: it has 1 point, and k = 20 reaches beyond; k has to be below that to"),
        ((7, 7), "2 of 3 classes are not judged: they have 7 points, and k = 20"),
        ((19, 7), "2 of 3 classes are not judged: they have 7 to 19 points, and k = 20"),
    ],
)
def test_classes_that_are_not_judged_are_counted(
    make_report: MakeReport, sizes: tuple[int, ...], told: str | None
) -> None:
    small = tuple(SmallClass(str(place), size) for place, size in enumerate(sizes))
    words = make_report(guidance=replace(KNOWN, small_classes=small), names=("0", "1", "2")).in_words()
    assert "judged" not in words if told is None else told in words
    assert "judged" not in make_report(guidance=replace(KNOWN, small_classes=small), names=("0",)).in_words()


def test_a_distance_that_is_not_defined_is_a_dash_alone(
    make_report: MakeReport, collapsed_report: DimensionReport
) -> None:
    other = Comparison(make_report(title="trusted.npy"), math.nan)
    assert local_rows(replace(collapsed_report, comparison=other))[-1] == Row("Fisher-Rao distance", "–", "")
    assert "|ln(5.50 / 4.00)|" in local_rows(make_report(comparison="trusted.npy"))[-1].remark


def test_points_that_are_left_out_are_counted(make_report: MakeReport) -> None:
    assert "1 point has no defined LID and are left out" not in make_report(guidance=KNOWN).in_words()
    assert "3 points have no defined LID and are left out (5.0 %)." in make_report(guidance=KNOWN, zero=3).in_words()
    assert "left out" not in make_report(guidance=KNOWN).in_words()


def test_where_nothing_is_defined_that_alone_is_said(collapsed_report: DimensionReport) -> None:
    doubtful = Guidance(doubt="duplicates", note="most points have no defined LID", distinct=2)
    words = replace(collapsed_report, guidance=doubtful).in_words()
    assert words == (
        "None of the 60 measured points has a defined LID: every point has k or more exact duplicates (k = 20); of 60 "
        "rows 2 are distinct."
    )
    both = replace(collapsed_report, zero=50, infinite=10).in_words()
    assert both.endswith("50 have too many exact duplicates, 10 neighbors equally far.")
    assert "for mle one is enough" not in replace(collapsed_report, estimator="mle").in_words()
