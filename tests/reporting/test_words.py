import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from ldreg.reporting.page import page
from ldreg.reporting.record import CollapsedClass, DimensionReport, Guidance, MeanLID
from ldreg.reporting.summary import local_rows
from ldreg.reporting.words import details, headline, sentences

MakeReport = Callable[..., DimensionReport]

KNOWN = Guidance("collapse", usual=16.0, fisher_rao=1.07, gaussian_dimension=5.72, filled=7.4)


def collapsed(*labels: str) -> tuple[CollapsedClass, ...]:
    return tuple(CollapsedClass(label, MeanLID(2.0, 1.9, 2.1), 8.0, math.log(4)) for label in labels)


def test_the_verdict_comes_first(make_report: MakeReport) -> None:
    report = make_report(guidance=KNOWN)
    assert headline(report).startswith("Local collapse: LID 5.50 where 16.00 is usual (what Gaussian points")
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
        ({"verdict": "usual"}, "No sign of local collapse: LID 5.50, where Gaussian points"),
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
)  # fmt: skip
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
    sentence = "The covariance itself fills few directions: its effective rank is 1.20 of 16."
    assert sentence in make_report(guidance=usual, effective_rank=1.2).in_words()
    assert sentence not in make_report(guidance=KNOWN, effective_rank=1.2).in_words()
    assert "fills few" not in make_report(guidance=usual, effective_rank=9.5).in_words()


def test_duplicates_weigh_where_lid_is_low(make_report: MakeReport) -> None:
    advice = "measure again without duplicates"
    assert advice in make_report(guidance=KNOWN, duplicated=6).in_words()
    assert advice not in make_report(guidance=KNOWN, duplicated=2).in_words()
    assert advice not in make_report(guidance=replace(KNOWN, verdict="usual"), duplicated=6).in_words()


def test_rows_hold_what_is_known(make_report: MakeReport) -> None:
    names = [row.name for row in local_rows(make_report(guidance=KNOWN))]
    assert names[:3] == ["LID, geometric mean", "LID, usual", "Gaussian dimension"]
    assert not {"LID, usual", "Gaussian dimension"} & {row.name for row in local_rows(make_report())}


def test_the_page_opens_with_the_verdict(make_report: MakeReport) -> None:
    text = page(make_report(guidance=KNOWN))
    assert "<strong>Local collapse: LID 5.50 where 16.00 is usual (what Gaussian points with the same" in text
    assert "95 % confidence 5.10 to 5.90; usual: 16.00" in text
    assert "<strong>" not in page(make_report())


def test_class_names_are_only_text(make_report: MakeReport) -> None:
    guidance = replace(KNOWN, collapsed_classes=collapsed("<b>x</b>", "\x1b[31m"))
    report = make_report(guidance=guidance)
    assert "<b>x</b>" not in page(report)
    assert "\x1b" not in str(report)


def test_the_text_has_its_words_under_a_heading(make_report: MakeReport) -> None:
    lines = str(make_report(guidance=KNOWN)).splitlines()
    assert lines[lines.index("In words") + 1].startswith("Local collapse: LID 5.50")
