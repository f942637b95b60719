import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy
import pytest
import torch

from ldreg.record import Finding, Severity
from ldreg.report.comparison import Record, comparison_page, comparison_text
from ldreg.report.curves import curve, histograms, lid_maps, spectra, style
from ldreg.report.differences import (
    chances,
    change,
    class_rows,
    finding_lines,
    in_words,
    result_rows,
    sampling_noise,
    setting_rows,
    what_was_measured,
)
from ldreg.thumbnails import Thumbnail, data_uri

NAN = float("nan")
EVIL = "<script>alert('x')</script>&\"quoted\" <img src=http://evil.example/x> $x^2"


FINDING = '{"of": "images", "kind": "hubs", "severity": "%s", "share": %s, "numbers": {}, "text": "x"}'
WITH = '{"name": "a", "settings": {}, "results": {}, %s}'


def make(name: str = "SimCLR", *, points: int = 40, **changes: Any) -> Record:
    """A record with made-up but coherent numbers."""
    generator = numpy.random.default_rng(0)
    epochs = (0.0, 5.0, 10.0)
    values: dict[str, Any] = {
        "settings": {"method": "simclr", "regularizer": "none", "epochs": 10, "lr": 0.3, "scale": [0.5, 1.0]},
        "results": {"minutes": 1.5, "lid": 8.0, "effective_rank": 30.0, "linear": 0.96, "knn": 0.95},
        "curves": {
            "lid": [(epoch, 4 + epoch / 5) for epoch in epochs],
            "loss": [(epoch, 5 - epoch / 5) for epoch in epochs],
            "linear": [(epoch, 0.5 + epoch / 40) for epoch in epochs],
        },
        "lid": generator.uniform(4, 12, points).tolist(),
        "eigenvalues": numpy.logspace(0, -4, 16).tolist(),
        "map": [(float(x), float(y)) for x, y in generator.normal(size=(points, 2))],
        "labels": [str(place % 3) for place in range(points)],
        "origin": {"command": "ldreg pretrain --seed 0", "commit": "abc1234", "hardware": "2 cores", "minutes": 1.5},
    }
    return Record(name, **{**values, **changes})


def regularized(name: str = "SimCLR + LDReg", **results: float) -> Record:
    record = make(name)
    settings = {**record.settings, "regularizer": "ldreg", "ldreg.beta": 0.01}
    return replace(
        record, settings=settings, results={**record.results, "lid": 10.0, "linear": 0.953, "knn": 0.95, **results}
    )


def body(page: str) -> ElementTree.Element:
    """The page's body, parsed as strictly as XML."""
    text = page[page.index("<body>") : page.index("</body>") + len("</body>")]
    return ElementTree.fromstring(text.replace("<br>", "<br/>"))


def tags(root: ElementTree.Element) -> list[str]:
    return [element.tag.rpartition("}")[2] for element in root.iter()]


def words(root: ElementTree.Element) -> str:
    return " ".join("".join(root.itertext()).split())


def pictures(root: ElementTree.Element) -> list[str]:
    """Titles of the figures."""
    return [(caption.text or "") for caption in root.iter("figcaption")]


def table(root: ElementTree.Element, title: str) -> dict[str, list[str]]:
    """The cells of a table by the names of its rows."""
    found = next(table for table in root.iter("table") if table.findtext("caption") == title)
    rows = found.findall("tbody/tr")
    return {row.findtext("th") or "": [" ".join(cell.itertext()) for cell in row.findall("td")] for row in rows}


@pytest.fixture(scope="module")
def two() -> ElementTree.Element:
    return body(comparison_page([make(), regularized()], title="With & without"))


@pytest.fixture(scope="module")
def hostile() -> str:
    evil = make(
        EVIL,
        settings={EVIL: EVIL, "list": [EVIL]},
        results={EVIL: 1.0, "lid": 2.0},
        curves={EVIL: [(0, 1.0), (1, 2.0)], "lid": [(0, 1.0)]},
        labels=[EVIL] * 40,
        origin={EVIL: EVIL, "command": EVIL},
        findings=[Finding(EVIL, "note", 1.0, {EVIL: 1.0}, of=EVIL, text=EVIL)],
        classes={EVIL: 1.0},
    )
    return comparison_page([make(), evil], title=EVIL)


def test_figures_do_not_follow_a_matplotlibrc(odd_style: dict[Any, Any]) -> None:
    plain = comparison_page([make()], title="t")
    with matplotlib.rc_context(odd_style):
        assert comparison_page([make()], title="t") == plain


def test_page_has_every_section(two: ElementTree.Element) -> None:
    assert two.findtext(".//h1") == "With & without"
    assert pictures(two) == [
        "LID, geometric mean",
        "Linear probe",
        "Loss",
        "How LID is spread",
        "Global spectrum",
        "SimCLR: classes",
        "SimCLR: LID",
        "SimCLR + LDReg: classes",
        "SimCLR + LDReg: LID",
    ]
    assert [heading.text for heading in two.iter("h2")] == ["Over training", "After training", "Maps"]
    footer = next(two.iter("footer"))
    assert [code.text for code in footer.iter("code")] == ["ldreg pretrain --seed 0"] * 2
    assert "commit abc1234; hardware 2 cores; minutes 1.50" in words(footer)


def test_tables_hold_results_and_settings(two: ElementTree.Element) -> None:
    results = table(two, "Results")
    assert list(results) == [
        "LID, geometric mean", "Fisher-Rao distance of LID", "Effective rank", "Linear probe", "kNN accuracy",
        "Training time",
    ]  # fmt: skip
    assert results["LID, geometric mean"] == ["8.00", "10.00 +25 %"]
    assert results["Fisher-Rao distance of LID"] == ["–", "0.223"]  # ln 1.25
    assert results["Training time"] == ["90 s", "90 s"]
    assert results["Linear probe"] == ["96.0 %", "95.3 % −0.7 points"]
    assert results["kNN accuracy"] == ["95.0 %", "95.0 % ±0"]
    assert table(two, "Settings that differ") == {"regularizer": ["none", "ldreg"], "ldreg.beta": ["–", "0.01"]}
    assert table(two, "All settings")["scale"] == ["0.5, 1"] * 2


def test_tiles_show_each_run(two: ElementTree.Element) -> None:
    tiles = [words(tile) for tile in two.iter("div") if tile.get("class") == "tile"]
    assert len(tiles) == 4
    assert tiles[0] == "LID, geometric meanSimCLR8.00SimCLR + LDReg10.00 +25 %"


def test_every_figure_of_several_runs_has_a_legend(two: ElementTree.Element) -> None:
    legends = [[entry[0].tail for entry in keys] for keys in two.iter("ul") if keys.get("class") == "keys"]
    assert legends == [["SimCLR", "SimCLR + LDReg"]] * 5
    lines = next(keys for keys in two.iter("ul") if keys.get("class") == "keys").findall("li/svg/line")
    assert len({line.get("stroke") for line in lines}) == 2
    assert [line.get("stroke-dasharray") is None for line in lines] == [True, False]


def test_user_text_is_text(hostile: str) -> None:
    root = body(hostile)
    assert not {"script", "img", "link", "iframe", "object"} & set(tags(root))
    assert root.findtext(".//h1") == EVIL
    assert words(root).count(EVIL) >= 8
    assert "<script" not in hostile
    assert f"<title>{EVIL}" not in hostile


def test_nothing_is_fetched_and_ids_are_unique(hostile: str) -> None:
    attributes = [(name, value) for element in body(hostile).iter() for name, value in element.attrib.items()]
    for name, value in attributes:
        if name.rpartition("}")[2] in ("src", "href"):
            assert value.startswith(("#", "data:image/png;base64,"))
        assert not name.startswith("on")
    ids = [value for name, value in attributes if name == "id"]
    assert len(ids) == len(set(ids)) > 0
    assert "default-src 'none'" in hostile
    assert "prefers-color-scheme: dark" in hostile


@pytest.mark.parametrize("count", [1, 5, 8])
def test_any_number_of_runs(count: int) -> None:
    few: dict[str, Any] = {"lid": [], "map": [], "eigenvalues": [], "labels": None}
    records = [make(f"run {place}", **few, results={"lid": 5.0 + place}) for place in range(count)]
    root = body(comparison_page(records, title="runs"))
    assert table(root, "Results")["LID, geometric mean"][0] == "5.00"
    assert len(table(root, "Results")["LID, geometric mean"]) == count
    tiles = sum(tile.get("class") == "tile" for tile in root.iter("div"))
    assert tiles == (count <= 4)
    assert pictures(root) == ["LID, geometric mean", "Linear probe", "Loss"]


def test_what_is_missing_is_left_out() -> None:
    bare = Record("bare", {}, {})
    root = body(comparison_page([bare], title="nothing"))
    assert not {"figure", "table", "h2"} & set(tags(root))
    root = body(comparison_page([bare, make(curves={}, labels=None)], title="partly"))
    assert pictures(root) == ["How LID is spread", "Global spectrum", "SimCLR: LID"]
    assert table(root, "Results")["Linear probe"] == ["–", "96.0 %"]


def test_undefined_values_are_dashes_and_gaps() -> None:
    odd = make(
        results={"lid": NAN, "linear": NAN},
        curves={"lid": [(0, 3.0), (1, NAN), (2, math.inf), (3, 4.0)], "loss": [(0, NAN)]},
        lid=[0.0, math.inf] * 10 + [5.0] * 20,
        map=[(NAN, 0.0)] + [(1.0, 2.0)] * 39,
        eigenvalues=[0.0, 0.0],
    )
    page = comparison_page([odd, make()], title="odd")
    root = body(page)
    assert table(root, "Results")["LID, geometric mean"] == ["–", "8.00"]
    assert "left out: 20 of SimCLR (1)" in words(root)
    assert not re.search(r"\bnan\b", words(root), re.IGNORECASE)
    assert "How LID is spread" in pictures(root)


def thumbnails(*lids: float, **fields: str) -> list[Thumbnail]:
    picture = data_uri(torch.zeros(1, 8, 8, dtype=torch.uint8))
    return [Thumbnail(picture, place + 10, lid, **fields) for place, lid in enumerate(lids)]


def test_collapsed_images_are_shown_with_lid_class_and_place() -> None:
    shown = make(most_collapsed=thumbnails(1.25, 2.5, label="3"), least_collapsed=thumbnails(20.0, file="b.png"))
    root = body(comparison_page([shown, make("none")], title="t"))
    cards = [card for card in root.iter("div") if card.get("class") == "card gallery"]
    assert [card.findtext("h3") for card in cards] == ["SimCLR"]
    entries = [words(entry) for entry in cards[0].iter("li")]
    assert entries == ["LID 1.25class 3no. 10", "LID 2.50class 3no. 11", "LID 20.00b.png"]
    assert [image.get("alt") for image in root.iter("img")] == [
        "image no. 10, class 3",
        "image no. 11, class 3",
        "image b.png",
    ]
    assert all(image.get("class") == "pixels" for image in root.iter("img"))
    assert "Most collapsed images" in [heading.text for heading in root.iter("h2")]


def test_text_beside_images_is_text() -> None:
    evil = make(most_collapsed=thumbnails(1.0, label=EVIL, file=EVIL), notes=[EVIL], tsne=[(0, 1)], tsne_labels=[EVIL])
    page = comparison_page([evil], title="t")
    root = body(page)
    assert not {"script", "link", "iframe", "object"} & set(tags(root))
    assert [image.get("src", "")[:22] for image in root.iter("img")] == ["data:image/png;base64,"]
    assert words(root).count(EVIL) >= 3
    assert not any(name.startswith("on") for element in root.iter() for name in element.attrib)


def test_tsne_is_drawn_without_names_of_axes() -> None:
    root = body(comparison_page([make(map=[], tsne=[(0.0, 1.0), (1.0, 0.0)], tsne_labels=["a", "b"])], title="t"))
    assert pictures(root)[-1] == "SimCLR: classes, t-SNE"
    assert "principal axis" not in words(next(iter(list(root.iter("figure"))[-1:])))


def test_a_choice_of_many_points_is_said_and_the_mean_is_that_of_all() -> None:
    large = make(points=40)
    large = replace(large, points=60_000, results={**large.results, "lid": 6.5})
    text = words(body(comparison_page([large], title="t")))
    assert "From an even choice of 40 points." in text
    assert "An even choice of 40 points is drawn." in text
    axes = histograms([large.lid], [6.5]).axes[0]
    assert numpy.asarray(axes.get_lines()[0].get_xdata())[0] == 6.5


def test_what_must_not_be_compared_is_said() -> None:
    first = replace(make(), points=1000, k=64, settings={"data.name": "digits"})
    same = in_words([first, first])
    assert not any("LID was" in sentence or "different images" in sentence for sentence in same)
    other = replace(first, points=5000, k=20, settings={"data.name": "cifar10"})
    assert in_words([first, other])[-3:] == [
        "The runs were measured on different images (cifar10 and digits): do not compare their LID.",
        "LID was measured on sets of between 1,000 and 5,000 points, which alone changes it.",
        "LID was estimated from k = 20 and 64 neighbors, which alone changes it.",
    ]
    unmeasured = Record("bare", {"data.name": "stl10"}, {})
    assert not any("different images" in sentence for sentence in in_words([first, unmeasured]))


def test_notes_are_on_the_page_and_in_the_text() -> None:
    noted = make(notes=["dimensions could not be measured: no images"])
    assert "SimCLR: dimensions could not be measured: no images" in words(body(comparison_page([noted], title="t")))
    assert "could not be measured: no images" in " ".join(comparison_text([noted]).split())


def test_further_sections_are_kept() -> None:
    root = body(comparison_page([Record("a", {}, {})], title="t", further=["<section>more</section>"]))
    assert root.findtext(".//section") == "more"


def test_no_run_is_an_error() -> None:
    with pytest.raises(ValueError, match="records: expected at least one run"):
        comparison_page([], title="t")
    with pytest.raises(ValueError, match="records: expected at least one run"):
        comparison_text([])


def test_words_say_what_changed_and_in_which_direction() -> None:
    assert in_words([make(), regularized()]) == [
        "The runs differ in regularizer and ldreg.beta.",
        "With SimCLR + LDReg (regularizer = ldreg, β = 0.01), LID is 10.00 instead of 8.00 (+25 %), effective rank is "
        "the same (30.00), linear-probe accuracy is 95.3 % instead of 96.0 % (−0.7 points) and kNN accuracy is the "
        "same (95.0 %).",
        "One run each: differences of a point or so in accuracy and of some percent in LID and effective rank are "
        "within chance.",
    ]
    assert "LID is 6.00 instead of 8.00 (−25 %)" in in_words([make(), regularized(lid=6.0)])[1]
    assert in_words([make()])[0].startswith("SimCLR: LID is 8.00, effective rank is 30.00")


def test_words_of_many_runs_give_the_range() -> None:
    records = [make(name, results={"lid": value}) for name, value in zip("abcde", (5, 3, NAN, 9, 4), strict=True)]
    assert "LID goes from 3.00 (b) to 9.00 (d)." in in_words(records)


def test_words_know_what_may_be_chance() -> None:
    seeds = [replace(make(), settings={"method": "simclr", "seed": seed}) for seed in (0, 1)]
    assert in_words(seeds)[-1] == "Runs that differ in nothing but their seed show how large chance is."
    plain = [make(results={"lid": 1.0, "degenerate": 0.0}), replace(regularized(), results={"lid": 2.0})]
    assert in_words(plain)[-1].startswith("One run each: how much of a difference is chance is not known; LID and")
    sizes = in_words([make(), replace(regularized(), lid=[1.0] * 2000, map=[], labels=None)])
    assert sizes[-1] == "LID was measured on sets of between 40 and 2,000 points, which alone changes it."


def test_the_fewer_test_images_the_more_is_chance() -> None:
    few, many = (
        [replace(record, tested=tested) for record in (make(), regularized(linear=0.7))] for tested in (60, 50_000)
    )
    linear, knn = (200 * ((0.96 * 0.04 + 0.7 * 0.3) / 60) ** 0.5, 200 * (2 * 0.95 * 0.05 / 60) ** 0.5)
    assert chances(few) == pytest.approx({"linear": linear, "knn": knn})  # each accuracy has its own
    assert f"up to {linear:.0f} points in linear" in in_words(few)[-1]
    assert f"up to {knn:.1f} points in kNN" in in_words(few)[-1]
    assert max(chances(many).values()) < 1
    assert "differences of a point or so in accuracy" in in_words(many)[-1]
    assert chances([make(), regularized()]) == {}  # how many test images there are is not known
    assert [sampling_noise((share, 1.0), 1) for share in (0.0, 0.5, 1.0)] == [100.0] * 3


@pytest.mark.parametrize(("low", "moved"), [(5.0, "rose"), (3.0, "fell"), (4.0, "stayed")])
def test_whether_the_lowest_points_rose_is_said(low: float, moved: str) -> None:
    base = make(results={"lid": 8.0, "lid_low": 4.0})
    (told,) = [told for told in in_words([base, regularized(lid_low=low)]) if "5 % quantile" in told]
    assert moved in told
    rows = dict(result_rows([base, regularized(lid_low=low)]))
    assert [cell.value for cell in rows["LID, 5 % quantile"]] == ["4.00", f"{low:.2f}"]
    assert not [told for told in in_words([make(), regularized(lid_low=low)]) if "5 % quantile" in told]


def found(kind: str, severity: Severity, *, of: str = "representations", text: str = "") -> Finding:
    return Finding(kind, severity, 0.5, {"points": 20.0}, of=of, text=text or f"told of {kind}")


def test_findings_come_first_on_the_page_and_in_the_text() -> None:
    bad = make("bad", findings=[found("low_rank", "note"), found("degenerate", "critical", of="images")])
    fine = make("fine", findings=[found("nothing_unusual", "note")])
    old = make("old")  # has not been looked at
    lines = finding_lines([bad, fine, old])
    assert [severity for severity, _ in lines] == ["critical", "note", "note"]
    assert [told.partition(":")[0] for _, told in lines] == ["bad, images", "bad", "fine"]
    text = comparison_text([bad, fine, old])
    assert text.startswith("[critical] bad, images: told of degenerate")
    root = body(comparison_page([bad, fine, old], title="t"))
    assert [item.get("class") for item in root.findall(".//ul[@class='findings']/li")] == ["critical", "note", "note"]
    order = [element.get("class") for element in root.iter() if element.get("class") in ("findings", "words", "tiles")]
    assert order == ["findings", "words", "tiles"]
    many = make("many", findings=[found("collapsed_class", "warning")] * 5)
    assert len(finding_lines([many])) == 4
    assert "2 more" in finding_lines([many])[-1][1]


def test_lid_per_class_stands_beside_that_of_the_first_run() -> None:
    records = [make(classes={"a": 6.0, "b": 3.0, "c": NAN}), regularized()]
    records[1] = replace(records[1], classes={"a": 6.6, "b": 6.0, "d": 2.0})
    assert [label for label, _ in class_rows(records)] == ["d", "b", "a", "c"]
    cells = dict(class_rows(records))["b"]
    assert [tuple(cell) for cell in cells] == [("3.00", ""), ("6.00", "+100 %")]
    assert table(body(comparison_page(records, title="t")), "LID per class")["b"] == ["3.00", "6.00 +100 %"]
    assert "LID per class" in comparison_text(records)
    assert "LID per class" not in comparison_text([make()])


def test_one_setting_too_many_is_named_and_more_are_counted() -> None:
    def spoken(count: int) -> str:
        further = {f"further{place}": place for place in range(count)}
        return in_words([make(), replace(regularized(), settings={**make().settings, **further})])[1]

    assert "(further0 = 0, further1 = 1, further2 = 2, further3 = 3)" in spoken(4)
    assert "(further0 = 0, further1 = 1, further2 = 2, and 2 more settings)" in spoken(5)


def test_runs_of_the_same_name_are_told_apart() -> None:
    assert "With SimCLR (2), LID is the same" in in_words([make(), make()])[1]
    assert in_words([make(), make()])[0] == "The runs have the same settings."


def test_relative_change_needs_a_positive_first_value() -> None:
    records = [make(results={"loss": -1.0, "other_loss": 0.0}), make(results={"loss": -1.5, "other_loss": 2.0})]
    assert [(title, cells[1].change) for title, cells in result_rows(records)] == [
        ("Loss", "−0.500"),
        ("other loss", "+2.00"),
    ]


def test_settings_compare_by_value() -> None:
    records = [
        make(settings={"a": (1, 2), "b": None, "c": True, "d": 1e-6}),
        make(settings={"a": [1, 2], "c": False, "d": 1e-6}),
    ]
    assert setting_rows(records, differing=True) == [("b", ["none", "–"]), ("c", ["yes", "no"])]


def test_json_round_trip(tmp_path: Path) -> None:
    record = make(results={"lid": 7.25, "linear": 0.5}, lid=[1.5] * 40, map=[(0.5, -1.25)] * 40)
    findings = [found("collapsed_group", "critical"), found("duplicates", "warning", of="images")]
    record = replace(record, eigenvalues=[1.0, 0.125], findings=findings, classes={"a": 2.5})
    record.to_json(tmp_path / "run.json")
    assert Record.from_json(tmp_path / "run.json") == record
    again = Record.from_json(tmp_path / "run.json")
    again.to_json(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "run.json").read_bytes()


def test_json_has_null_for_what_it_cannot_hold(tmp_path: Path) -> None:
    make(results={"lid": NAN}, lid=[math.inf, 1.0], map=[], labels=None).to_json(tmp_path / "run.json")
    content = json.loads((tmp_path / "run.json").read_text(), parse_constant=pytest.fail)
    assert (content["results"], content["lid"]) == ({"lid": None}, [None, 1.0])
    record = Record.from_json(tmp_path / "run.json")
    assert math.isnan(record.results["lid"])
    assert record.lid == [math.inf, 1.0]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[1]", "list in place of dict"),
        ("{", "Expecting property name"),
        ('{"name": "a", "settings": {}}', "no key 'results'"),
        ('{"name": "a", "settings": {}, "results": {}, "colour": 1}', "the unknown key 'colour'"),
        ('{"name": "a", "settings": {}, "results": {"lid": "7"}}', "results: lid: str in place of a number"),
        ('{"name": "a", "settings": {}, "results": {}, "map": [[1, 2, 3]]}', "map: too many values"),
        ('{"name": "a", "settings": {"b": {}}, "results": {}}', "settings: b: dict in place of a plain value"),
        ('{"name": "a", "settings": {}, "results": {"knn": 95}}', "results: expected knn as a share from 0 to 1"),
        (WITH % '"origin": {"hardware": {}}', "origin: hardware: dict in place of a plain value"),
        (WITH % '"origin": {"hardware": [1]}', "origin: hardware: list in place of a plain value"),
        (WITH % '"origin": {"speed": NaN}', "NaN in place of a number"),
        (WITH % '"origin": {"speed": 1e999}', "origin: speed: a number too large"),
        (WITH % '"origin": {"held_out": -1}', "origin: held_out: -1 in place of a count"),
        (WITH % '"origin": {"held_out": 1.5}', "origin: held_out: float in place of int"),
        (WITH % '"origin": {"tested/digits": "x"}', "origin: tested/digits: str in place of a number"),
        (WITH % '"origin": {"seed": "zero"}', "origin: seed: str in place of a number"),
        (WITH % '"origin": {"at_once": "two"}', "origin: at_once: str in place of a number"),
        (WITH % '"origin": {"epochs": "ten"}', "origin: epochs: str in place of a number"),
        (WITH % '"origin": {"minutes": true}', "origin: minutes: bool in place of a number"),
        (WITH % '"curves": {"lid": [[null, 1]]}', "curves: lid: null in place of a number"),
        (WITH % '"curves": {"lid": [[1e300, 1]]}', "curves: lid: a number too large"),
        (WITH % '"curves": {"lid": [[1, 1e300]]}', "curves: lid: a number too large"),
        (WITH % '"map": [[1e31, 0]]', "map: a number too large, expected at most 1e+30"),
        (WITH % '"tsne": [[0, -1e31]]', "tsne: a number too large, expected at most 1e+30"),
        (WITH % '"lid": [1e-320]', "lid: a number too small"),
        (WITH % '"k": -2', "k: -2 in place of a count"),
        (WITH % '"classes": {"a": "x"}', "classes: a: str in place of a number"),
        (WITH % '"findings": [{"of": "images"}]', "findings: a finding with ['of']"),
        (WITH % f'"findings": [{FINDING % ("bad", 1)}]', "findings: 'bad' in place of a severity"),
        (WITH % f'"findings": [{FINDING % ("note", [])}]', "findings: list in place of a number"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(ValueError, match=re.escape(reason)) as error:
        Record.from_json(tmp_path / "run.json")
    assert str(error.value).startswith(f"{tmp_path / 'run.json'}: expected the record of a run, got ")


def test_a_file_that_is_no_text_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(b"\x80\x02weights")
    with pytest.raises(ValueError, match=r"run\.json: expected the record of a run, got a file that is not text"):
        Record.from_json(tmp_path / "run.json")


@pytest.mark.parametrize(
    "fields",
    [
        {"map": [(1e30, -1e30), (0.0, 1e-320), (1.0, 1.0)], "lid": [1e60, 1e-59, 1.0], "labels": ["a", "b", "c"]},
        {"tsne": [(1e30, -1e30), (0.0, 1.0)], "tsne_labels": ["a", "b"], "eigenvalues": [1e60, 1e-320]},
        {"curves": {"lid": [(1e9, 1e60), (0.0, 1e-320)], "loss": [(0.0, -1e60), (1.0, 1e60)]}},
    ],
)
def test_whatever_is_read_can_be_drawn(tmp_path: Path, fields: dict[str, Any]) -> None:
    """Warnings are errors here."""
    record = make(**{"map": [], "lid": [], "labels": None, "results": {"lid": 1e60, "minutes": 1e60}} | fields)
    record.to_json(tmp_path / "run.json")
    read = Record.from_json(tmp_path / "run.json")
    body(comparison_page([read, make()], title="t"))
    comparison_text([make(), read])


def test_precisions_and_detailed_accuracies_are_shares() -> None:
    for name in ("box_ap", "box_ap/detection-b", "linear/imagenet protocol", "transfer/shapes"):
        with pytest.raises(ValueError, match="as a share from 0 to 1, got 35"):
            make(results={name: 35.0})
    make(results={"lid/test images, k = 20": 35.0})


def test_evaluations_have_titles_and_places() -> None:
    results = {
        "minutes": 12.3, "knn/k = 20": 0.5, "transfer/shapes": 0.25, "mask_ap": 0.3, "knn": 0.5, "own_result": 1.0,
        "linear/imagenet protocol": 0.5, "finetune/10 % of labels": 0.5, "box_ap": 0.35, "box_ap/second": 0.2,
        "effective_rank/test images": 9.0,
    }  # fmt: skip
    assert [(title, cells[0].value) for title, cells in result_rows([make(results=results)])] == [
        ("Effective rank, test images", "9.00"),
        ("Linear, imagenet protocol", "50.0 %"),
        ("kNN, k = 20", "50.0 %"),
        ("kNN accuracy", "50.0 %"),
        ("Fine-tuned, 10 % of labels", "50.0 %"),
        ("Transfer to shapes", "25.0 %"),
        ("AP box", "35.0 %"),
        ("AP box, second", "20.0 %"),
        ("AP mask", "30.0 %"),
        ("Training time", "12 min"),
        ("own result", "1.00"),
    ]


@pytest.mark.parametrize(
    ("minutes", "first", "shown"),
    [
        (0.08, 0.09, ""),
        (0.08, 0.16, "−50 %"),
        (1.5, 1.505, ""),
        (12.3, 11.6, ""),
        (24.0, 12.0, "+100 %"),
        (200, 197, ""),
    ],
)
def test_times_differ_by_more_than_their_rounding(minutes: float, first: float, shown: str) -> None:
    assert change("minutes", minutes, first) == shown


def test_distance_of_lids_needs_two() -> None:
    titles = [title for title, _ in result_rows([make(), make(results={"lid": NAN})])]
    assert "Fisher-Rao distance of LID" not in titles
    assert "Fisher-Rao distance of LID" not in [title for title, _ in result_rows([make()])]


def test_what_was_measured_is_said_once_or_for_each_run() -> None:
    record = replace(make(), points=1437, images=1437, k=32, tested=360, voters=200)
    line = (
        "LID and effective rank: 1,437 training images, k = 32; linear probe (logistic regression) and kNN (k = 200): "
        "360 test images."
    )
    assert what_was_measured([record, record]) == [line]
    assert line in words(body(comparison_page([record], title="t")))
    assert line in " ".join(comparison_text([record]).split())
    part = replace(record, points=200, tested=None)
    assert what_was_measured([record, part, Record("bare", {}, {})]) == [
        f"SimCLR (1): {line}",
        "SimCLR (2): LID: 200 of 1,437 training images, k = 32; effective rank: all of them.",
    ]
    assert what_was_measured([make()]) == []


def test_captions_name_the_untrained_encoder() -> None:
    root = body(comparison_page([make(), make(curves={"lid": [(1.0, 3.0)]})], title="t"))
    captions = {caption.text: caption.findtext("span") or "" for caption in root.iter("figcaption")}
    assert captions["LID, geometric mean"].endswith("local collapse. Epoch 0 is the untrained encoder: 4.00.")
    assert captions["Linear probe"].endswith("Epoch 0 is the untrained encoder: 50.0 %.")
    assert "A fall is" not in captions["LID, geometric mean"]
    assert "untrained" not in captions["Loss"]
    for word in ("Degenerate points are", "Fréchet variance of LID is", "Fisher-Rao distance of"):
        assert word in words(root)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_names_are_broken_where_they_may_be(count: int) -> None:
    text = comparison_text([make(f"simclr_ldreg-digits_long_name_{place}") for place in range(count)])
    parts = {"simclr", "ldreg", "digits", "long", "name", *map(str, range(count))}
    table = text[: text.index("kNN accuracy")] if count <= 3 else text[: text.index("The runs")]
    found = {part for word in re.findall(r"[\w-]+", table) for part in re.split(r"[-_]", word) if part}
    assert parts <= found
    assert not {part for part in found if part.startswith(("sim", "dig", "ldr")) and part not in parts}


def test_records_are_checked() -> None:
    with pytest.raises(ValueError, match="labels: expected 40 values, one for each point of map, got 3"):
        make(labels=["a"] * 3)
    with pytest.raises(ValueError, match="results: expected linear as a share from 0 to 1, got 96"):
        make(results={"linear": 96.0})


def test_text_has_results_and_differences() -> None:
    text = comparison_text([make(), regularized()])
    rows = {" ".join(line.split()) for line in text.splitlines()}
    assert {
        "Results SimCLR SimCLR + LDReg",
        "LID, geometric mean 8.00 10.00 +25 %",
        "Linear probe 96.0 % 95.3 % −0.7 points",
    } <= rows
    assert "LID is 10.00 instead of 8.00 (+25 %)" in " ".join(text.split())


def test_text_of_many_runs_has_one_row_for_each() -> None:
    text = comparison_text([make(f"run {place}", results={"lid": 5.0 + place}) for place in range(8)])
    rows = [line.split() for line in text.splitlines() if line.strip().startswith("run ")]
    assert [row[:3] for row in rows] == [["run", str(place), f"{5 + place:.2f}"] for place in range(8)]


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("width", [60, 80])
def test_text_keeps_to_its_width(count: int, width: int) -> None:
    text = comparison_text([make("n" * 200 + str(place)) for place in range(count)], width=width)
    assert max(map(len, text.splitlines())) <= width


def test_text_cannot_drive_the_terminal() -> None:
    evil = "\x1b[31m[bold]red"
    text = comparison_text([make(), make(evil, results={evil: 1.0, "lid": 1.0})], width=200)
    assert "\x1b" not in text
    assert r"\x1b[31m[bold]red" in text
    assert "\x1b[1m" in comparison_text([make()], color=True)


def test_curves_lie_at_their_values() -> None:
    axes = curve([[(2, 0.5), (1, 0.25)], [], [(1, 1.0)]], share=True).axes[0]
    first, empty, last = axes.get_lines()
    assert numpy.asarray(first.get_xydata()).tolist() == [[1, 0.25], [2, 0.5]]
    assert len(numpy.asarray(empty.get_xydata())) == 0
    assert last.get_color() == style(2).color


def test_histograms_are_shares_with_the_geometric_mean() -> None:
    axes = histograms([[2.0, 8.0, 0.0, math.inf], [3.0] * 9]).axes[0]
    outline = axes.patches[0]
    assert sum(outline.get_data().values) == pytest.approx(1)  # type: ignore[attr-defined]
    assert numpy.asarray(axes.get_lines()[0].get_xdata())[0] == pytest.approx(4)


@pytest.mark.parametrize("values", [[3.0] * 5, [1e-3, 5.0, 1e6], [7.0]])
def test_odd_distributions_are_drawn(values: list[float]) -> None:
    for runs in ([values], [values] * 5):
        histograms(runs).draw_without_rendering()
        spectra(runs, [NAN] * len(runs)).draw_without_rendering()


def test_maps_share_one_scale() -> None:
    square = [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)]
    drawn = lid_maps([square, square, []], [[1.0] * 4, [10.0] * 4, []])
    scales = {figure.axes[0].collections[0].get_clim() for figure in drawn if figure is not None}
    assert scales == {(1.0, 10.0)}
    assert drawn[2] is None
