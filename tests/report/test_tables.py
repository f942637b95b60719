"""Tables as text and Markdown, and an inspection as text."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.report.snapshot import check_snapshot

from ldreg.inspection.report import DimensionReport, Expected
from ldreg.report.tables import Cell, Table, quantity_tables, table_markdown, table_text
from ldreg.report.words import inspection_text
from ldreg.text import markdown_text

MakeReport = Callable[..., DimensionReport]

EVIL = "<script>alert('x')</script>&\"q\" | `a` *b* [c](d) \x1b[31m"
KNOWN = Expected(gaussian_lid=16.0)
STUDY = Table(
    ["Method", "Regularizer", "Linear probe", "LID"],
    [
        [Cell("SimCLR"), Cell("–"), Cell("98.3", "64.3"), Cell("6.2", "18.8")],
        [Cell("SimCLR"), Cell("LDReg"), Cell("8.6", "64.8", "noise"), Cell("6.4", "20.0", "agrees")],
        [Cell("BYOL"), Cell("LDReg"), Cell("97.0", "", "disagrees"), Cell("collapsed ± 0.1")],
    ],
    keys=2,
)


def test_a_study_as_text_and_markdown() -> None:
    check_snapshot("study.txt", table_text(STUDY) + "\n")
    check_snapshot("study.md", table_markdown(STUDY) + "\n")


def test_wide_tables_are_broken_and_repeat_the_names() -> None:
    values = [Cell(f"{i}0.0 ± 0.1", "50.0", "agrees") for i in range(9)]
    wide = Table(["Method", *(f"Set {i}" for i in range(9))], [[Cell("SimCLR + LDReg"), *values]])
    text = table_text(wide)
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("SimCLR + LDReg") == 5
    assert [f"{i}0.0 ± 0.1 ✓ (50.0)" in text for i in range(9)] == [True] * 9
    assert table_text(wide, width=400).count("SimCLR") == 1


def test_names_of_rows_are_broken_before_the_table_is() -> None:
    names = ["a_name_of_many_words_that_is_long", "another_name_of_many_words_that_is_long"]
    cells = [Cell(f"{value}.0", "50.0") for value in range(3)]
    table = Table(["Run", "Base", "LID, geometric mean", "Rank", "kNN"], [[*map(Cell, names), *cells]], keys=2)
    head, _, row = table_text(table, width=140).splitlines()[:3]
    assert "LID, geometric mean" in head
    assert row.split()[:2] == names
    lines = table_text(table, width=100).splitlines()
    assert max(map(len, lines)) <= 100
    assert names[1] not in "".join(lines)
    assert len([line for line in lines if "0.0 (50.0)" in line and "2.0 (50.0)" in line]) == 1


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_text_keeps_to_its_width(make_report: MakeReport, width: int) -> None:
    table = Table(["n" * 100, "m" * 100], [[Cell("a" * 300), Cell("b" * 300, "c" * 90, "agrees")]])
    assert max(map(len, table_text(table, width=width).splitlines())) <= width
    report = make_report(names=("n" * 300, "two"), comparison="c" * 200, title="t" * 300)
    if width >= 60:
        assert max(map(len, inspection_text(report, width=width).splitlines())) <= width


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("# Title", r"\# Title"),
        ("<img src=x>", r"\<img src=x\>"),
        ("a\n\n# b\r\n- c", "a # b - c"),
        ("- item", r"\- item"),
        ("1. item", r"1\. item"),
        ("---", r"\---"),
        ("&lt;b&gt; $x$", r"\&lt;b\&gt; \$x\$"),
        ("-0.5", "-0.5"),
        ("6.2", "6.2"),
        ("\x1b[31m", r"\\x1b\[31m"),
        ("| `a` *b* [c](d)", r"\| \`a\` \*b\* \[c\](d)"),
    ],
)
def test_markdown_says_just_the_text(text: str, markdown: str) -> None:
    assert markdown_text(text) == markdown
    assert f"| {markdown} |" in table_markdown(Table(["a", text], [[Cell("b"), Cell(text)]]))


def test_empty_tables_are_drawn() -> None:
    empty = Table(["a", "b"], [])
    assert "a" in table_text(empty)
    assert table_markdown(empty).splitlines() == ["| a | b |", "|---|---:|"]


def test_inspections_as_text(make_report: MakeReport) -> None:
    one = make_report(names=("cat", "dog"), zero=6, points=100, measured=60, k=20)
    two = make_report(names=("cat", "dog"), comparison="other.npy", expected=KNOWN)
    check_snapshot("inspection.txt", inspection_text(one) + "\n")
    check_snapshot("two_sets.txt", inspection_text(two) + "\n")


def test_quantities_that_only_one_set_has_are_shown(make_report: MakeReport) -> None:
    report = make_report(comparison="other.npy", expected=Expected(gaussian_dimension=7.0))
    assert report.comparison is not None
    found = replace(report.comparison, other=replace(report.comparison.other, expected=KNOWN))
    local, _ = quantity_tables(replace(report, comparison=found))
    rows = {row[0].text: [cell.text for cell in row[1:3]] for row in local.rows}
    assert rows["LID of a Gaussian"] == ["–", "16.00"]
    assert rows["Gaussian dimension"] == ["7.00", "–"]
    assert rows["LID, geometric mean"] == ["5.50", "4.00"]
    assert rows["Fisher-Rao distance"] == ["–", "0.318"]


def test_user_text_cannot_drive_the_terminal_and_colors_are_there_where_wanted(make_report: MakeReport) -> None:
    report = make_report(names=("\x1b[31mred", "[bold]b[/bold]", "a\nb"), title="x\x07\x1b]0;owned\x07.npy")
    for text in (str(report), table_text(Table([EVIL], [[Cell(EVIL)]]))):
        assert "\x1b" not in text
        assert "\x07" not in text
    assert all(name in str(report) for name in (r"\x1b[31mred", "[bold]b[/bold]", r"a\nb"))
    assert "\x1b[1m" in inspection_text(report, color=True)
    assert "32m" in table_text(STUDY, color=True)


def test_many_classes_are_cut_to_the_ends(make_report: MakeReport) -> None:
    text = str(make_report(names=tuple(f"c{i:03}" for i in range(50)))).split("LID per class")[1]
    assert [name in text for name in ("c009", "c010", "c039", "c040", "(30 more)")] == [True, False, False, True, True]
