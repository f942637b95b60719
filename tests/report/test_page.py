import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import matplotlib
import pytest

from ldreg.inspection.report import DimensionReport
from ldreg.report.page import page

MakeReport = Callable[..., DimensionReport]

VOID = {"meta", "br", "link", "img", "hr", "input"}
EVIL = "<script>alert('x')</script>&\"quoted\" <img src=http://evil.example/x>"


class Structure(HTMLParser):
    """Collects tags, attributes and text, and fails where tags do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture
def full(make_report: MakeReport) -> DimensionReport:
    return make_report(names=(EVIL, "dog"), comparison=EVIL, title=EVIL, command=f"ldreg inspect {EVIL}")


def test_figures_do_not_follow_a_matplotlibrc(make_report: MakeReport, odd_style: dict[Any, Any]) -> None:
    report = make_report(names=("cat", "dog"))
    plain = page(report)
    with matplotlib.rc_context(odd_style):
        assert page(report) == plain


def test_is_well_formed_and_complete(full: DimensionReport) -> None:
    structure = Structure(page(full))
    assert structure.attributes.count(("role", "img")) == 7
    assert structure.tags.count("h1") == 1
    text = " ".join(structure.words)
    for word in ("5.50", "5.10 to 5.90", "Effective rank", "RankMe", "TwoNN", "Points of lowest LID", "LID per class"):
        assert word in text
    assert "ldreg 1.2.3" in text
    assert "ldreg inspect <script>" in text


def test_a_second_set_is_in_every_figure_and_table(make_report: MakeReport) -> None:
    text = page(make_report(names=("a", "b"), comparison="other.npy"))
    words = Structure(text).words
    for told in (
        "embeddings.npy: geometric mean 5.50", "other.npy: geometric mean 4.00", "other.npy: effective rank 6.50",
        "Where LID is low in embeddings.npy", "Where LID is low in other.npy", "other.npy: 4.00",
        "Points of lowest LID of other.npy", "95 % confidence 3.50 to 4.50", "quartiles 3.25 and 4.75",
    ):  # fmt: skip
        assert any(told in word for word in words), told
    assert "Compared with other.npy: 40 points in 8 dimensions." in text
    assert text.count('<ul class="keys">') == 3
    assert text.count("<li>") == 6
    cells = re.findall(r'<th scope="row">Effective rank</th><td class="n">([^<]*)</td><td class="n">([^<]*)</td>', text)
    assert cells == [("9.50", "6.50")]


def test_without_a_second_set_there_is_no_word_of_one(make_report: MakeReport) -> None:
    text = page(make_report(names=("a", "b")))
    for told in ('class="key', "Compared", ".both", " of embeddings.npy"):
        assert told not in text


def test_user_text_is_text(full: DimensionReport) -> None:
    structure = Structure(page(full))
    assert not {"script", "img", "link", "iframe", "object"} & set(structure.tags)
    assert EVIL in structure.words


def test_nothing_is_fetched(full: DimensionReport) -> None:
    structure = Structure(page(full))
    for name, value in structure.attributes:
        if name in ("src", "href", "xlink:href", "action", "data", "poster"):
            assert value.startswith(("#", "data:image/png;base64,"))
        if not name.startswith("xmlns"):
            assert not re.match(r"https?:|//", value)
        assert not name.startswith("on")
    style = page(full).split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    policy = [value for name, value in structure.attributes if name == "content" and "default-src" in value]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def test_suits_phones_and_dark_rooms(make_report: MakeReport) -> None:
    text = page(make_report())
    assert '<meta name="viewport" content="width=device-width' in text
    assert "prefers-color-scheme: dark" in text


def test_ids_are_unique(full: DimensionReport) -> None:
    ids = [value for name, value in Structure(page(full)).attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_without_labels_there_is_no_word_of_classes(make_report: MakeReport) -> None:
    structure = Structure(page(make_report()))
    assert structure.tags.count("svg") == 4
    assert "LID per class" not in structure.words


def test_many_classes_fold_away(make_report: MakeReport) -> None:
    structure = Structure(page(make_report(names=tuple(f"c{i}" for i in range(40)))))
    assert "All 40 classes" in structure.words
    assert any("Of 40 classes, the lowest and the highest." in words for words in structure.words)
    assert {f"c{i}" for i in range(40)} <= set(structure.words)


def test_collapsed_report_has_a_page(collapsed_report: DimensionReport) -> None:
    structure = Structure(page(collapsed_report))
    assert "100 %" in structure.words
    assert "nan" not in " ".join(structure.words)
