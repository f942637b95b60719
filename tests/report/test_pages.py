"""Pages: complete, well-formed, self-contained, and user text is only text."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import pytest
import torch
from tests.report.conftest import PAYLOADS, TESTED_IMAGE, MakeReport, MakeRun
from tests.report.snapshot import check_snapshot
from tests.report.test_tables import KNOWN, STUDY

from ldreg.inspection.report import ClassLID, DimensionReport, MeanLID
from ldreg.record import Finding, PointCloud, Record, Thumbnail
from ldreg.report.pages import Section, clouds_section, comparison_page, inspection_page, study_page
from ldreg.report.plots import DRAWN_POINTS, Series, bars, lines
from ldreg.report.style import plain_style

NAN = float("nan")
CLOUD = PointCloud("a cloud", torch.rand(40, 2), torch.full((40,), 2.0), 2.0, 0.0, 2.0, 0, 0.1)


def body(page: str) -> ElementTree.Element:
    """The page's body, parsed as strictly as XML."""
    text = page[page.index("<body>") : page.index("</body>") + len("</body>")]
    text = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    return ElementTree.fromstring(text.replace("<br>", "<br/>"))


def tags(root: ElementTree.Element) -> set[str]:
    return {element.tag.rpartition("}")[2] for element in root.iter()}


def words(root: ElementTree.Element) -> str:
    return " ".join("".join(root.itertext()).split())


def pictures(root: ElementTree.Element) -> dict[str, str]:
    """Titles and captions of the still figures."""
    still = [figure for figure in root.iter("figure") if figure.get("class") in (None, "wide")]
    captions = [caption for figure in still for caption in figure.iter("figcaption")]
    return {caption.text or "": caption.findtext("span") or "" for caption in captions}


def table(root: ElementTree.Element, title: str) -> dict[str, list[str]]:
    """The cells of a table by the names of its rows."""
    found = next(table for table in root.iter("table") if table.findtext("caption") == title)
    rows = found.findall("tbody/tr")
    return {
        row.findtext("th") or "": [" ".join(" ".join(cell.itertext()).split()) for cell in row.findall("td")]
        for row in rows
    }


def normalized(page: str) -> str:
    """The page without its style, scripts and drawings, one element per line."""
    text = re.sub(r"<style>.*?</style>", "<style/>", page, flags=re.DOTALL)
    text = re.sub(r"<script>.*?</script>", "<script/>", text, flags=re.DOTALL)
    text = re.sub(r'(<script type="application/json"[^>]*>).*?(?=</script>)', r"\1", text, flags=re.DOTALL)
    text = re.sub(r"'sha256-[^']*'", "HASH", text)
    text = re.sub(r'<svg (?!class="key").*?</svg>', "<svg/>", text, flags=re.DOTALL)
    text = re.sub(r"ldreg \d+\.\d+\.\d+\S*?(?=[.:<])", "ldreg VERSION", text)
    text = re.sub(r"(<(?:p|tr|li|td|th|figure|div|table|h\d)\b)", r"\n\1", text)
    return "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip()) + "\n"


@plain_style()
def study() -> str:
    figures = {
        "Over training\nSolid: with LDReg.": lines([Series("a", [(1, 1.0)])], xlabel="x", ylabel="y"),
        "Wide": bars([str(i) for i in range(9)], [("a", [1.0] * 9), ("b", [1.0] * 9)], ylabel="y"),
    }
    first = Section("Table 1: all", "First.\n\nSecond\nline.", STUDY, figures)
    others = [Section(f"Study {i}", "") for i in range(3)]
    return study_page("Studies", "", [first, *others], footer="From here.")


def test_snapshots(make_report: MakeReport, two_runs: list[Record]) -> None:
    one = make_report(names=("cat", "dog"), command="ldreg inspect embeddings.npy")
    other = make_report(names=("cat", "dog"), comparison="other.npy", expected=KNOWN)
    images = [Thumbnail(TESTED_IMAGE, 3, 1.25, "3", ""), Thumbnail(TESTED_IMAGE, 4, 2.5, "cat", "b.png")]
    finding = Finding("low_rank", "warning", 0.5, {}, of="images", text="A finding.")
    records = [
        replace(two_runs[0], most_collapsed=images, least_collapsed=images[:1], notes=["a note"]),
        replace(two_runs[1], findings=[finding], classes={"a": 5.0}, tsne=[(0, 1)], tsne_labels=["a"]),
    ]
    check_snapshot("inspection.html", normalized(inspection_page(one)))
    clouds = clouds_section("Clouds", "Text.", [CLOUD])
    check_snapshot("two_sets.html", normalized(inspection_page(other, further=[clouds])))
    check_snapshot("comparison.html", normalized(comparison_page(records, title="With & without")))
    check_snapshot("study.html", normalized(study()))


def test_figures_do_not_follow_a_matplotlibrc(
    make_report: MakeReport, make_run: MakeRun, odd_style: dict[Any, Any]
) -> None:
    def pages() -> list[str]:
        return [inspection_page(make_report(names=("a", "b"))), comparison_page([make_run()], title="t")]

    plain = pages()
    with matplotlib.rc_context(odd_style):
        assert pages() == plain


@pytest.mark.parametrize("kind", ["inspect", "report", "study"])
def test_user_text_is_text_and_nothing_is_fetched(hostile_pages: dict[str, str], kind: str) -> None:
    page = hostile_pages[kind]
    root = body(page)
    assert not {"script", "link", "iframe", "object", "base"} & tags(root)
    assert page.count("<script") == (0 if kind == "study" else 5)  # ours, and the points of two sets or runs
    assert "\x1b" not in page
    shown = "".join(root.itertext())
    assert [word for word in PAYLOADS[:-1] if shown.count(word) < 5] == []
    for element in root.iter():
        for name, value in element.attrib.items():
            name = name.rpartition("}")[2]
            assert not name.startswith("on")
            assert name not in ("src", "href", "action") or value.startswith(("#", "data:image/png;base64,"))
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    style = page.split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in page


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_notebook_shows_findings_and_tables(make_report: MakeReport, payload: str) -> None:
    finding = Finding("collapsed_class", "warning", 0.1, {"lid": 2.0, "ratio": 3.0}, labels=((payload, 3),))
    report = make_report(names=(payload, "dog"), title=payload, comparison=payload, findings=(finding,))
    page = report._repr_html_()
    root = ElementTree.fromstring(page)
    known = {"div", "p", "b", "ul", "li", "table", "caption", "thead", "tbody", "tr", "th", "td", "span"}
    assert tags(root) == known
    assert table(root, "Local dimensionality")["LID, geometric mean"][0] == "5.50"
    assert {"warning", "LID per class"} <= {element.text for element in root.iter()}
    assert {name for element in root.iter() for name in element.attrib} == {"class", "scope"}  # no colors of ours
    assert "\x1b" not in page


def test_classes_of_a_second_set_are_beside_the_first(make_report: MakeReport) -> None:
    report = make_report(names=("a", "b"), comparison="other.npy")
    assert report.comparison is not None
    other = replace(report.comparison.other, classes=(ClassLID("b", 7, 6, MeanLID(7.0, 6.0, 8.0)),))
    root = body(inspection_page(replace(report, comparison=replace(report.comparison, other=other))))
    assert table(root, "LID per class") == {"a": ["4.00", "–", "9"], "b": ["5.00", "7.00", "9; 7"]}
    assert "diamonds: the same classes of other.npy" in pictures(root)["LID per class"]


def test_a_set_without_a_dimension_leaves_the_other(make_report: MakeReport, collapsed_report: DimensionReport) -> None:
    report = make_report(comparison="other.npy")
    root = body(inspection_page(replace(collapsed_report, comparison=report.comparison)))
    assert "Where LID is low in embeddings.npy" not in pictures(root)
    assert "embeddings.npy has no map: no point has a defined LID." in pictures(root)["Where LID is low in other.npy"]
    assert "left out" in pictures(root)["How LID is spread"]
    legends = ["".join(keys[0].itertext()) for keys in root.iter("ul") if keys.get("class") == "keys"]
    assert [name.partition(": ")[2] for name in legends] == [
        "no point has a defined LID", "no eigenvalue above 0", "no point has a defined LID",
    ]  # fmt: skip
    alone = body(inspection_page(collapsed_report))
    assert list(pictures(alone)) == ["Where the classes are"]
    assert "100 %" in words(alone)
    assert "nan" not in words(alone)


def test_many_points_are_thinned_and_said_to_be(make_report: MakeReport) -> None:
    report = make_report(points=DRAWN_POINTS + 1, comparison="other.npy")
    captions = pictures(body(inspection_page(report)))
    assert "20,000 of 20,001 points are drawn." in captions["LID against density"]
    assert "20,000 of 20,001 points are drawn." in captions["Where LID is low in embeddings.npy"]
    assert "are drawn" not in captions["Where LID is low in other.npy"]
    lid = report.lid.clone()
    lid[:-1000] = 0  # points without LID are not drawn
    assert "are drawn" not in words(body(inspection_page(replace(report, lid=lid, comparison=None))))


def test_many_classes_fold_away(make_report: MakeReport) -> None:
    root = body(inspection_page(make_report(names=tuple(f"c{i}" for i in range(40)))))
    assert "All 40 classes" in words(root)
    assert "Of 40 classes, the lowest and the highest." in pictures(root)["LID per class"]
    assert {f"c{i}" for i in range(40)} <= set(table(root, "LID per class"))


def test_what_is_missing_is_left_out(make_run: MakeRun) -> None:
    bare = Record("bare", {}, {})
    assert not {"figure", "table", "h2"} & tags(body(comparison_page([bare], title="nothing")))
    root = body(comparison_page([bare, make_run(curves={}, labels=None)], title="partly"))
    assert list(pictures(root)) == ["How LID is spread", "Global spectrum", "SimCLR: LID"]
    assert table(root, "Results")["Linear probe"] == ["–", "96.0 %"]
    with pytest.raises(ValueError, match="records: expected at least one run"):
        comparison_page([], title="t")


def test_undefined_values_are_dashes_and_gaps(make_run: MakeRun) -> None:
    odd = make_run(
        results={"lid": NAN, "linear": NAN},
        curves={"lid": [(0, 3.0), (1, NAN), (2, float("inf")), (3, 4.0)], "loss": [(0, NAN)]},
        lid=[0.0, float("inf")] * 10 + [5.0] * 20,
        map=[(NAN, 0.0)] + [(1.0, 2.0)] * 39,
        eigenvalues=[0.0, 0.0],
    )
    root = body(comparison_page([odd, make_run()], title="odd"))
    assert table(root, "Results")["LID, geometric mean"] == ["–", "8.00"]
    assert "20 of SimCLR (1)" in pictures(root)["How LID is spread"]
    assert not re.search(r"\bnan\b", words(root), re.IGNORECASE)


def test_a_choice_of_many_points_is_said_and_the_mean_is_that_of_all(make_run: MakeRun) -> None:
    large = make_run(points=60_000, results={"lid": 6.5})
    root = body(comparison_page([large], title="t"))
    assert "From an even choice of 40 points." in pictures(root)["How LID is spread"]
    assert "An even choice of 40 points is drawn." in words(root)
    assert "geometric mean 6.50" in words(root)


@pytest.mark.parametrize(
    "fields",
    [
        {"map": [(1e30, -1e30), (0.0, 1e-320), (1.0, 1.0)], "lid": [1e60, 1e-59, 1.0], "labels": ["a", "b", "c"]},
        {"tsne": [(1e30, -1e30), (0.0, 1.0)], "tsne_labels": ["a", "b"], "eigenvalues": [1e60, 1e-320]},
        {"curves": {"lid": [(1e9, 1e60), (0.0, 1e-320)], "loss": [(0.0, -1e60), (1.0, 1e60)]}},
    ],
)
def test_whatever_a_record_may_hold_can_be_drawn(make_run: MakeRun, tmp_path: Path, fields: dict[str, Any]) -> None:
    """Warnings are errors here."""
    record = make_run(**{"map": [], "lid": [], "labels": None, "results": {"lid": 1e60, "minutes": 1e60}} | fields)
    record.to_json(tmp_path / "run.json")
    read = Record.from_json(tmp_path / "run.json")
    body(comparison_page([read, make_run()], title="t"))
    body(comparison_page([read], title="t"))
