"""Tables of studies as text, Markdown and HTML, and the page around them."""

from xml.etree import ElementTree

import pytest

from ldreg.report.plots import Series, bars, lines
from ldreg.report.study import (
    StudyCell,
    StudyTable,
    markdown_text,
    study_page,
    study_section,
    table_html,
    table_markdown,
    table_text,
)

EVIL = "<script>alert('x')</script>&\"q\" | `a` *b* [c](d) \x1b[31m"
TABLE = StudyTable(
    ["Method", "Regularizer", "Linear probe", "LID"],
    [
        [StudyCell("SimCLR"), StudyCell("–"), StudyCell("98.3", "64.3"), StudyCell("6.2", "18.8")],
        [
            StudyCell("SimCLR"),
            StudyCell("LDReg"),
            StudyCell("8.6", "64.8", "noise"),
            StudyCell("6.4", "20.0", "agrees"),
        ],
        [StudyCell("BYOL"), StudyCell("LDReg"), StudyCell("97.0", "", "disagrees"), StudyCell("collapsed")],
    ],
    keys=2,
)


def parsed(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<body>{html}</body>")


def test_text_aligns_values_marks_and_the_papers() -> None:
    rows = table_text(TABLE).splitlines()
    assert rows[2:5] == [
        " SimCLR   –             98.3   (64.3)         6.2   (18.8)",
        " SimCLR   LDReg          8.6 ≈ (64.8)         6.4 ✓ (20.0)",
        " BYOL     LDReg         97.0 ✗          collapsed",
    ]
    told = " ".join(" ".join(rows[5:]).split())
    assert told == (
        "✓ same direction as in the paper; ✗ opposite direction; ≈ within noise. In parentheses: the paper's values."
    )


def test_wide_tables_are_broken_and_repeat_the_names() -> None:
    wide = StudyTable(
        ["Method", *(f"Set {i}" for i in range(9))],
        [[StudyCell("SimCLR + LDReg"), *(StudyCell(f"{i}0.0 ± 0.1", "50.0", "agrees") for i in range(9))]],
    )
    text = table_text(wide)
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("SimCLR + LDReg") == 5
    assert [f"{i}0.0 ± 0.1 ✓ (50.0)" in text for i in range(9)] == [True] * 9
    assert table_text(wide, width=400).count("SimCLR") == 1


@pytest.mark.parametrize("width", [40, 60, 80])
def test_text_keeps_to_its_width(width: int) -> None:
    table = StudyTable(["n" * 100, "m" * 100], [[StudyCell("a" * 300), StudyCell("b" * 300, "c" * 90, "agrees")]])
    assert max(map(len, table_text(table, width=width).splitlines())) <= width


def test_text_has_colors_only_where_wanted_and_never_the_users() -> None:
    table = StudyTable([EVIL], [[StudyCell(EVIL)]])
    assert "\x1b" not in table_text(table)
    assert "\x1b[32m" in table_text(TABLE, color=True) or "\x1b[1;32m" in table_text(TABLE, color=True)


def test_markdown() -> None:
    assert table_markdown(TABLE).splitlines() == [
        "| Method | Regularizer | Linear probe | LID |",
        "|---|---|---:|---:|",
        "| SimCLR | – | 98.3 (paper: 64.3) | 6.2 (paper: 18.8) |",
        "| SimCLR | LDReg | 8.6 ≈ (paper: 64.8) | 6.4 ✓ (paper: 20.0) |",
        "| BYOL | LDReg | 97.0 ✗ | collapsed |",
        "",
        "✓ same direction as in the paper; ✗ opposite direction; ≈ within noise.",
    ]
    assert r"\| \`a\` \*b\* \[c\](d)" in table_markdown(StudyTable([EVIL], [[StudyCell(EVIL)]]))


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
    ],
)
def test_markdown_says_just_the_text(text: str, markdown: str) -> None:
    assert markdown_text(text) == markdown
    assert f"| {markdown} |" in table_markdown(StudyTable(["a", text], [[StudyCell("b"), StudyCell(text)]]))


def test_spread_is_explained_where_it_is_shown() -> None:
    table = StudyTable(["a", "b"], [[StudyCell("c"), StudyCell("6.1 ± 0.2")]])
    for shown in (table_text(table), table_markdown(table), table_html(table)):
        assert "±: standard deviation over seeds." in shown
    assert "standard deviation" not in table_text(TABLE)


def test_footer_says_once_who_made_it() -> None:
    page = study_page("t", "", [], footer="Made by: ldreg reproduce all")
    assert page.count("Made by") == 1


def test_names_of_rows_are_broken_where_they_may_be() -> None:
    name = "a_name_of_many_words_that_is_long"
    table = StudyTable(["Name", "LID"], [[StudyCell(name), StudyCell("1.0")]])
    lines = table_text(table, width=40).splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["a_name_of_many_words_that_is_", "long"]


def test_names_are_whole_where_the_width_allows_it() -> None:
    names = ["a_name_of_many_words_that_is_long", "another_name_of_many_words_that_is_long"]
    cells = [StudyCell(f"{value}.0", "50.0") for value in range(3)]
    titles = ["Run", "Base", "LID, geometric mean", "Rank", "kNN"]
    table = StudyTable(titles, [[*map(StudyCell, names), *cells]], keys=2)
    head, _, row = table_text(table, width=140).splitlines()[:3]
    assert "LID, geometric mean" in head
    assert row.split()[:2] == names
    lines = table_text(table, width=100).splitlines()
    assert max(map(len, lines)) <= 100
    assert names[1] not in "".join(lines)
    together = [line for line in lines if "0.0 (50.0)" in line and "2.0 (50.0)" in line]
    assert len(together) == 1, "names give way before the table is broken"


def test_html_says_in_words_what_a_mark_means() -> None:
    root = parsed(table_html(TABLE, title="All"))
    cells = [["".join(cell.itertext()) for cell in row] for row in root.iter("tr")]
    assert cells[2] == ["SimCLR", "LDReg", "8.6≈paper: 64.8", "6.4✓paper: 20.0"]
    marks = {mark.text: mark.get("aria-label") for mark in root.iter("span") if mark.get("role") == "img"}
    assert marks == {"≈": "within noise", "✓": "same direction as in the paper", "✗": "opposite direction"}
    assert root.findtext(".//caption") == "All"
    assert [head.get("scope") for head in root.iter("th")] == ["col"] * 4 + ["row"] * 3


def test_user_text_is_text() -> None:
    cell = StudyCell(EVIL, EVIL)
    page = study_page(EVIL, EVIL, [study_section(EVIL, EVIL, StudyTable([EVIL], [[cell]]), {})], footer=EVIL)
    root = parsed(page[page.index("<body>") + 6 : page.index("</body>")])
    assert "script" not in {element.tag for element in root.iter()}
    assert page.count("&lt;script&gt;") == 9
    assert "\x1b" not in page


def test_a_section_has_text_table_and_figures() -> None:
    figures = {
        "Over training\nSolid: with LDReg.": lines([Series("a", [(1, 1.0)])], xlabel="epoch", ylabel="LID"),
        "Wide": bars([str(i) for i in range(9)], [("a", [1.0] * 9), ("b", [1.0] * 9)], ylabel="y"),
    }
    root = parsed(study_section("Table 1: all", "First.\n\nSecond\nline.", TABLE, figures))
    section = root.find("section")
    assert section is not None
    assert section.get("id") == "table-1-all"
    assert [paragraph.text for paragraph in section.findall("p")] == ["First.", "Second line."]
    assert [caption.text for caption in section.iter("figcaption")] == ["Over training", "Wide"]
    assert [caption.findtext("span") for caption in section.iter("figcaption")] == ["Solid: with LDReg.", ""]
    assert [figure.get("class") for figure in section.iter("figure")] == [None, "wide"]
    ids = [element.get("id") for element in section.iter() if element.get("id")]
    assert len(ids) == len(set(ids)) > 2


def test_many_sections_are_listed() -> None:
    sections = [study_section(f"Study {i}", "", None, {}) for i in range(4)]
    assert '<li><a href="#study-3">Study 3</a></li>' in study_page("t", "", sections)
    assert "<nav" not in study_page("t", "", sections[:3])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="rows: expected 2 cells in row 0, got 1"):
        StudyTable(["a", "b"], [[StudyCell("x")]])
    with pytest.raises(ValueError, match="keys: expected from 1 to 1, the number of columns, got 2"):
        StudyTable(["a"], [], keys=2)
    with pytest.raises(ValueError, match="mark: expected one of '', 'agrees', 'disagrees', 'noise', got 'good'"):
        StudyCell("x", mark="good")  # type: ignore[arg-type]


def test_empty_tables_are_drawn() -> None:
    empty = StudyTable(["a", "b"], [])
    assert "a" in table_text(empty)
    assert table_markdown(empty).splitlines() == ["| a | b |", "|---|---:|"]
    assert parsed(table_html(empty)).find(".//tbody") is not None
