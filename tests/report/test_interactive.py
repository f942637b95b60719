"""The views of a page at work: hover, brush, click and filter in Chromium, and what the page holds."""

import base64
import json
import math
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from tests.report.conftest import PAYLOADS
from tests.report.conftest import _make as make_report
from tests.report.test_browser import CHROMIUM, Browser

from ldreg.dimension.search import Neighbors
from ldreg.inspection.report import DimensionReport
from ldreg.record import Finding, Record
from ldreg.report import interactive
from ldreg.report.pages import comparison_page, inspection_page

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium or Chrome is installed")


GAP = 3  # the row of the ring whose image is missing


@cache
def ring_page() -> str:
    return inspection_page(ring(), images=colors())


def colors() -> list[torch.Tensor | None]:
    """For each point of the ring an image of one color, which grows redder with the row."""
    images = [torch.tensor([4 * row, 250 - 4 * row, 128], dtype=torch.uint8)[:, None, None] for row in range(60)]
    return [None if row == GAP else image.expand(3, 20, 20) for row, image in enumerate(images)]


def ring(points: int = 60, **changes: Any) -> DimensionReport:
    """Points in a circle in order, each with those after it as its neighbors; the first three are a finding."""
    angles = torch.arange(points) * (2 * torch.pi / points)
    after = (torch.arange(points)[:, None] + 1 + torch.arange(12)) % points
    values: dict[str, Any] = {
        "coordinates": torch.stack([angles.cos(), angles.sin()], dim=1),
        "lid": torch.linspace(2, 12, points),
        "kth_distance": torch.linspace(1, 3, points),
        "neighbors": Neighbors(torch.ones(points, 12), after),
        "findings": (Finding("collapsed_group", "warning", 0.05, {"lid": 2.0, "bulk": 7.0}, (0, 1, 2), (0,)),),
        "names": ("cat", "dog", "eel"),
    }
    report = make_report(points=points, **{**values, **changes})
    return replace(report, names=tuple(f"name of {row}" for row in range(points)))


class Page:
    """A page in the browser, with its first views."""

    def __init__(self, browser: Browser, path: Path, text: str, width: int, scheme: str = "light"):
        path.write_text(text, encoding="utf-8")
        self.browser, self.path, self.width = browser, path, width
        browser.open(path, width=width, scheme=scheme)
        self.wait("document.documentElement.dataset.points === 'ready'")

    def ask(self, expression: str) -> Any:
        return self.browser.evaluate(f"(root => {expression})(document.querySelector('.explorer'))")

    def wait(self, condition: str) -> None:
        for _ in range(400):
            if self.ask(condition):
                return
            time.sleep(0.02)
        raise AssertionError(f"not within 8 seconds: {condition}; {self.browser.complaints()}")

    def place(self, view: str, x: float, y: float) -> tuple[float, float]:
        """Where a place of a view, in its data's units, is in the window; the view is scrolled to."""
        script = f"""(() => {{
            root.querySelector('.{view} .plot').scrollIntoView({{block: 'center'}});
            const drawn = Bokeh.index.get_by_id(root.points.{view}.id);
            const box = drawn.canvas_view.el.getBoundingClientRect();
            return [box.x + drawn.frame.x_scale.compute({x}), box.y + drawn.frame.y_scale.compute({y})];
        }})()"""
        found: tuple[float, float] = tuple(self.ask(script))
        return found

    def mouse(self, kind: str, at: tuple[float, float], down: bool = False, count: int = 1) -> None:
        button = "none" if kind == "mouseMoved" and not down else "left"
        clicks = 0 if kind == "mouseMoved" else count
        self.browser.ask(
            "Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button=button, buttons=int(down), clickCount=clicks
        )
        script = "new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)))"
        self.browser.ask("Runtime.evaluate", expression=script, awaitPromise=True)

    def hover(self, view: str, x: float, y: float) -> str:
        self.mouse("mouseMoved", self.place(view, x, y))
        return str(self.browser.evaluate("document.querySelector('.point-tip:not([hidden])')?.innerText ?? ''"))

    def colors(self, canvases: str) -> list[list[int]]:
        """The color in the middle of each canvas, red, green, blue and opacity."""
        pixel = "[...its.getContext('2d').getImageData(24, 24, 1, 1).data]"
        found: list[list[int]] = self.browser.evaluate(
            f"[...document.querySelectorAll({json.dumps(canvases)})].map(its => {pixel})"
        )
        return found

    def click(self, view: str, x: float, y: float) -> None:
        at = self.place(view, x, y)
        for kind, down in (("mouseMoved", False), ("mousePressed", True), ("mouseReleased", False)):
            self.mouse(kind, at, down)
        time.sleep(0.35)  # for a second click, which there is not

    def double_click(self, selector: str) -> None:
        element = f"root.querySelector({json.dumps(selector)})"
        x, y = self.ask(f"({element}.scrollIntoView(), (box => [box.x, box.y])({element}.getBoundingClientRect()))")
        for count in (1, 2):
            self.mouse("mousePressed", (x + 9, y + 9), True, count)
            self.mouse("mouseReleased", (x + 9, y + 9), False, count)

    def brush(self, view: str, start: tuple[float, float], end: tuple[float, float]) -> None:
        ends = [self.place(view, *start), self.place(view, *end)]
        middle = ((ends[0][0] + ends[1][0]) / 2, (ends[0][1] + ends[1][1]) / 2)
        self.mouse("mouseMoved", ends[0])
        self.mouse("mousePressed", ends[0], True)
        for at in (middle, ends[1]):
            self.mouse("mouseMoved", at, True)
        self.mouse("mouseReleased", ends[1])

    def press(self, selector: str) -> None:
        self.ask(f"root.querySelector({json.dumps(selector)}).click()")

    def color_by(self, name: str) -> None:
        self.ask(f"root.querySelector('select').value = '{name}'")
        self.ask("root.querySelector('select').dispatchEvent(new Event('change'))")

    @property
    def status(self) -> str:
        return str(self.ask("root.querySelector('.status').textContent"))

    @property
    def table(self) -> list[dict[str, str]]:
        """The listed rows."""
        names, *rows = self.ask("[...root.querySelectorAll('tr')].map(row => [...row.cells].map(its => its.innerText))")
        return [dict(zip(names, row, strict=True)) for row in rows]

    @property
    def rows(self) -> list[int]:
        return [int(row["row"]) for row in self.table]

    @property
    def selected(self) -> int:
        """How many points are selected; all views share them, and the histogram counts them."""
        chosen, counted = self.ask(
            "[root.points.source.selected.indices.length, root.points.histogram.renderers[1].data_source.data.top]"
        )
        assert chosen == sum(counted)
        return int(chosen)

    def check_quiet(self) -> None:
        assert self.browser.complaints() == []
        assert self.browser.requests() == [self.path.as_uri()]
        assert self.browser.evaluate("document.documentElement.scrollWidth") == self.width


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@needs_browser
@pytest.mark.parametrize("width", [1400, 400])
def test_hover_brush_click_and_filter(browser: Browser, tmp_path: Path, width: int) -> None:
    report = ring()
    page = Page(browser, tmp_path / "page.html", ring_page(), width)
    lid, error = report.lid[0].item(), report.standard_error[0].item()

    shown = ["row 0", "name of 0", "label cat", f"LID {lid:.2f} ± {error:.2f}", "collapsed group"]
    assert page.hover("map", 1, 0).splitlines() == shown
    assert page.colors(".point-tip canvas") == [pytest.approx([0, 250, 128, 255], abs=3)]
    assert page.hover("density", 1, 2).splitlines() == shown
    assert page.hover("map", 0, 0) == ""
    assert page.hover("histogram", 2.1, 1).splitlines()[0].startswith("LID 2.00 to ")

    page.brush("map", (0.6, 0.9), (1.1, -0.9))
    right = [row for row in range(60) if report.coordinates[row, 0] > 0.6]
    assert (page.rows, page.selected) == (right, len(right))
    assert {row["name"] for row in page.table} == {f"name of {row}" for row in right}

    page.brush("histogram", (1.9, 1), (4.0, 2))
    low = [row for row in range(60) if report.lid[row] <= 4.0]
    assert (page.rows, page.selected) == (low, len(low))

    page.color_by("label")
    page.press(".key button:nth-child(2)")
    assert page.rows == [row for row in low if row % 3 != 1]
    assert page.hover("map", *report.coordinates[1].tolist()) != "row 1"
    page.brush("density", (0.95, 1.7), (3.05, 12.3))
    assert page.selected == 40
    page.press(".all")
    page.double_click(".key button:nth-child(3)")
    assert page.ask("root.querySelector('.all').textContent") == "Show all (40 hidden)"
    page.press(".all")
    page.brush("density", (0.95, 1.7), (3.05, 12.3))
    assert page.selected == 60

    page.click("map", *report.coordinates[7].tolist())
    assert page.rows == [7, *range(8, 18)]
    assert [row["name"] for row in page.table] == [f"name of {row}" for row in range(7, 18)]
    expected = [[4 * row, 250 - 4 * row, 128, 255] for row in range(7, 18)]
    assert page.colors("tbody canvas") == [pytest.approx(color, abs=3) for color in expected]
    assert page.ask("root.points.rings.near.data.x.length") == 10
    page.press(".clear")
    assert (page.table, page.selected) == ([], 0)
    page.click("map", *report.coordinates[1].tolist())
    assert page.rows[GAP - 1] == GAP
    gaps = "[...root.querySelectorAll('tbody canvas')].map(its => its.classList.contains('gap'))"
    assert page.ask(gaps) == [row == GAP for row in page.rows]
    page.check_quiet()


@needs_browser
@pytest.mark.parametrize("width", [1400, 400])
def test_a_click_on_a_class_filters(browser: Browser, tmp_path: Path, width: int) -> None:
    page = Page(browser, tmp_path / "page.html", ring_page(), width)
    bars = "[...root.querySelectorAll('.classes button')].map(its => its.innerText.split(/\\s+/).join(' '))"
    assert page.ask(bars) == ["cat 4.00 20", "dog 5.00 20", "eel 6.00 20"]  # as the report has them
    page.press(".classes button:nth-child(2)")
    assert page.ask("root.querySelector('.all').textContent") == "Show all (40 hidden)"
    pressed = "[...root.querySelectorAll('.classes button')].map(its => its.getAttribute('aria-pressed'))"
    assert page.ask(pressed) == ["false", "true", "false"]
    page.brush("histogram", (1.9, 1), (4.0, 2))
    assert page.rows == [1, 4, 7, 10]
    assert page.ask(bars) == ["cat 4.00 0 of 20", "dog 5.00 4 of 20", "eel 6.00 0 of 20"]
    page.press(".classes button:nth-child(2)")
    assert page.ask(pressed) == ["true"] * 3
    page.check_quiet()


@needs_browser
def test_the_spectrum_names_its_shares(browser: Browser, tmp_path: Path) -> None:
    page = Page(browser, tmp_path / "page.html", ring_page(), 1400)
    shares = ring().eigenvalues / ring().eigenvalues.sum()
    tip = page.hover("spectrum", 2, shares[1].item()).splitlines()
    assert tip[0] == "axis 2"
    assert float(tip[1].split()[0]) == pytest.approx(100 * shares[1].item(), rel=1e-3)
    assert float(tip[2].split()[-2]) == pytest.approx(100 * shares[:2].sum().item(), rel=1e-3)


@needs_browser
@pytest.mark.parametrize("width", [1400, 400])
def test_runs_have_the_same_views(browser: Browser, tmp_path: Path, two_runs: list[Record], width: int) -> None:
    page = Page(browser, tmp_path / "page.html", comparison_page(two_runs, title="two"), width)
    hidden = "[...document.querySelectorAll('.explorer figure')].map(its => its.hidden)"
    assert page.ask(hidden) == 2 * [False, False, True, True, True]  # of runs only map and histogram are known
    lid = two_runs[0].lid
    lowest = min(range(40), key=lambda point: lid[point])
    shown = page.hover("map", *two_runs[0].map[lowest]).splitlines()
    assert shown == [f"point {lowest}", f"label {lowest % 3}", f"LID {lid[lowest]:.2f}"]
    page.brush("histogram", (3.9, 0.5), (6.0, 1))
    low = sorted((point for point in range(40) if lid[point] <= 6), key=lambda point: lid[point])
    assert [int(row["point"]) for row in page.table] == low
    ends = "[...document.querySelectorAll('.explorer .key')].map(its => its.innerText)"
    assert len(set(page.ask(ends))) == 1  # one scale of colors
    page.check_quiet()


@needs_browser
def test_rows_are_taken_along(browser: Browser, tmp_path: Path) -> None:
    report = replace(ring(), names=('a "quoted", name', "a\ttab", *(f"name of {row}" for row in range(2, 60))))
    page = Page(browser, tmp_path / "page.html", inspection_page(report), 1400)
    page.brush("histogram", (1.9, 1), (2.4, 2))
    browser.evaluate("navigator.clipboard.writeText = async text => { window.copied = text; }")
    browser.evaluate("URL.createObjectURL = blob => { blob.text().then(text => window.saved = text); return '#'; }")
    page.press(".copy")
    page.press(".save")
    page.wait("window.copied && window.saved")
    header, first, *rest = browser.evaluate("window.saved").splitlines()
    assert header == ",".join(report.to_frame().columns)
    assert first.startswith(f'0,"a ""quoted"", name",cat,2,{report.standard_error[0].item():.8g},1,')
    assert first.endswith("collapsed group,,8")
    assert len(rest) == 2
    assert [line.split("\t")[1] for line in browser.evaluate("window.copied").splitlines()[2:4]] == [
        "a tab",
        "name of 2",
    ]


@needs_browser
@pytest.mark.parametrize(("scheme", "ink"), [("light", "#1c2127"), ("dark", "#e6e9ed")])
def test_axes_have_the_colors_of_the_page(browser: Browser, tmp_path: Path, scheme: str, ink: str) -> None:
    page = Page(browser, tmp_path / "page.html", ring_page(), 400, scheme)
    colors = "Object.values(root.points).flatMap(its => its.axes ?? []).map(its => its.axis_label_text_color)"
    assert set(page.ask(colors)) == {ink}
    titles = page.ask("root.points.map.axes.map(its => its.axis_label)")
    assert all(re.fullmatch(r"principal axis [12] \(\d+\.\d % of the variance\)", title) for title in titles)
    page.check_quiet()


@needs_browser
def test_hostile_words_are_shown_as_they_are(browser: Browser, tmp_path: Path) -> None:
    """Also without the page's policy: nothing but our escaping is between them and the page."""
    words = tuple(PAYLOADS[:13])
    report = replace(ring(names=words, title=words[4]), names=tuple(words[row % 13] for row in range(60)))
    text = inspection_page(report)
    for policy in (True, False):
        page = Page(
            browser, tmp_path / "page.html", text if policy else re.sub("<meta http-equiv[^\n]*", "", text), 1400
        )
        page.color_by("label")
        shown = page.ask("[...root.querySelectorAll('.key button span')].map(its => its.textContent)")
        assert sorted(shown) == sorted(words)
        for row in (0, 4):
            tip = page.hover("map", *report.coordinates[row].tolist())
            assert tip.splitlines()[1:3] == [words[row], f"label {words[row]}"]
        page.brush("density", (0.95, 1.7), (3.05, 12.3))
        assert {row["name"] for row in page.table} == {" ".join(word.split()) for word in words}
        assert browser.evaluate("typeof window.hit") == "undefined"
        page.check_quiet()


@cache
def odd_page(kind: str) -> str:
    """A page of points that are degenerate, all at one place, of one LID, of one class, or of two sets."""
    report = ring(names=(), neighbors=None, findings=())
    odd = {
        "degenerate": replace(report, lid=torch.tensor([0.0, math.inf, 4.0, 5.0]).repeat(15)),
        "collapsed": replace(report, lid=torch.zeros(60), coordinates=torch.zeros(60, 2)),
        "equal": replace(report, lid=torch.full((60,), 3.0), kth_distance=torch.ones(60)),
        "one class": ring(names=("a class",)),
        "two sets": make_report(comparison="other.npy"),
    }
    return inspection_page(odd[kind])


@needs_browser
@pytest.mark.parametrize("width", [1400, pytest.param(400, marks=pytest.mark.slow)])
def test_odd_sets(browser: Browser, tmp_path: Path, width: int) -> None:
    heights = "root.points.histogram.renderers[0].data_source.data.top"
    page = Page(browser, tmp_path / "page.html", odd_page("degenerate"), width)
    assert page.ask("[...root.querySelectorAll('option')].map(its => its.value)") == ["lid"]
    assert sum(page.ask(heights)) == 30
    assert page.hover("map", 1, 0).splitlines() == ["row 0", "name of 0", "LID 0"]
    page.click("map", 1, 0)
    assert (page.rows, page.table[0]["LID"]) == ([0], "0")
    page.check_quiet()

    page = Page(browser, tmp_path / "page.html", odd_page("collapsed"), width)
    assert page.ask("[...root.querySelectorAll('figure')].map(its => its.hidden)") == [False, True, True, True, False]
    page.check_quiet()

    page = Page(browser, tmp_path / "page.html", odd_page("equal"), width)
    page.brush("density", (0.98, 2.9), (1.02, 3.1))
    assert page.selected == 60
    page.check_quiet()

    page = Page(browser, tmp_path / "page.html", odd_page("one class"), width)
    page.color_by("label")
    page.press(".key button")
    assert not any(page.ask(heights))
    page.check_quiet()

    page = Page(browser, tmp_path / "page.html", odd_page("two sets"), width)
    assert page.ask("[...document.querySelectorAll('.explorer')].map(its => its.hidden)") == [False, False]
    page.check_quiet()


@needs_browser
def test_without_script_the_still_figures_are_there(browser: Browser, tmp_path: Path) -> None:
    page = Page(browser, tmp_path / "page.html", ring_page(), 1400)
    captions = "[...document.querySelectorAll('figcaption')].filter(its => its.checkVisibility())"
    seen = f"{captions}.map(its => its.firstChild.data)"
    assert {"Map", "LID per class"} <= set(browser.evaluate(seen))
    assert "Where LID is low" not in browser.evaluate(seen)
    browser.ask("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(page.path, width=400)
        assert {"How LID is spread", "Where LID is low", "LID against density"} <= set(browser.evaluate(seen))
        assert "Map" not in browser.evaluate(seen)
    finally:
        browser.ask("Emulation.setScriptExecutionDisabled", value=False)


def unpacked(packed: list[str]) -> numpy.ndarray[Any, Any]:
    kind = {"Float32Array": "<f4", "Int32Array": "<i4", "Uint16Array": "<u2"}[packed[0]]
    return numpy.frombuffer(base64.b64decode(packed[1]), kind)


def held(report: DimensionReport, **options: Any) -> dict[str, Any]:
    """What the page's script reads, with its columns as arrays."""
    one = interactive.explorer(report, **options)
    assert not set("<>&") & set(one.data)
    data: dict[str, Any] = json.loads(one.data)
    data["columns"] = {name: unpacked(packed) for name, packed in data["columns"].items()}
    return data


def test_every_point_is_held_with_what_the_table_has() -> None:
    report = replace(ring(), lid=torch.tensor([0.0, float("inf"), 4.0, 5.0, 3.0]).repeat(12))
    data, frame = held(report), report.to_frame()
    columns = data["columns"]
    assert sorted(columns["row"]) == list(range(60))
    assert data["table"] == list(frame.columns)
    for name in ("lid", "standard_error", "kth_distance", "nearest", "nearest_distance", "neighbor_of"):
        assert columns[name].tolist() == frame[name].to_numpy()[columns["row"]].tolist()
    assert columns["lid"][-1] == 3.0  # low LID is drawn last, on top
    assert data["names"][5] == f"name of {columns['row'][5]}"


def test_many_classes_are_held_with_the_lowest_in_color() -> None:
    names = tuple(f"class {place}" for place in range(30))
    group = held(ring(names=names))["groups"]["label"]
    assert (group["colored"], sorted(group["names"])) == (9, sorted(names))
    assert group["names"][:9] == list(names[:9])


def test_large_sets_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interactive, "ALL_DRAWN", 50)
    monkeypatch.setattr(interactive, "SAMPLE", 20)
    one, other = interactive.explorer(ring()), interactive.explorer(ring())
    assert "20 of 60" in one.note
    assert one == other
    data = held(ring())
    assert len(set(data["columns"]["row"])) == 20
    row, places = data["columns"]["row"].astype(int), unpacked(data["neighbors"]["places"])
    assert all(place == 20 or 1 <= (row[place] - row[at // 10]) % 60 <= 10 for at, place in enumerate(places))


def test_many_points_have_fewer_neighbors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interactive, "MOST_WITH_NEIGHBORS", 50)
    data = held(ring())
    rows, places = data["columns"]["row"].astype(int), unpacked(data["neighbors"]["places"]).reshape(60, -1)
    assert ((rows[places] - rows[:, None]) % 60 == [1, 2, 3, 4]).all()
    monkeypatch.setattr(interactive, "ALL_DRAWN", 59)
    monkeypatch.setattr(interactive, "SAMPLE", 55)
    assert held(ring())["neighbors"] is None
    assert not interactive.explorer(ring()).neighbors


def test_neighbors_that_were_not_measured_are_left_out() -> None:
    report = ring()
    assert report.neighbors is not None
    half = Neighbors(report.neighbors.distances, 2 * report.neighbors.indices + 1)
    data = held(replace(report, points=240, index=2 * torch.arange(60), neighbors=half))
    assert set(unpacked(data["neighbors"]["places"])) == {60}
    assert held(replace(report, neighbors=None))["neighbors"] is None
    assert held(replace(report, in_reference=True))["neighbors"] is None


def test_large_sets_have_images_of_the_lowest_and_of_some_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interactive, "PICTURED", 20)
    one = interactive.explorer(ring(), images=colors())
    assert "20 points" in one.note
    data = held(ring(), images=colors())
    rows = data["columns"]["row"].astype(int)
    places = unpacked(data["images"]["places"])
    pictured = set(rows[places >= 0].tolist())
    assert set(range(10)) - {GAP} <= pictured  # LID grows with the row
    assert len(pictured) == 20 - (GAP in set(rows[-10:].tolist()))
    assert sorted(places[places >= 0]) == list(range(len(pictured)))


def test_images_are_counted() -> None:
    assert "Of 60 images 1 " in interactive.explorer(ring(), images=colors()).note
    with pytest.raises(ValueError, match=r"images: expected 60, .*got 59"):
        inspection_page(ring(), images=colors()[1:])


def test_points_without_a_place_on_the_map() -> None:
    coordinates = ring().coordinates.clone()
    coordinates[::2] = torch.nan
    report = ring(coordinates=coordinates, map="tsne")
    assert "30 of them" in interactive.explorer(report).note
    assert held(report)["axes"] == ["", ""]
    assert "t-SNE" in inspection_page(report)


def test_long_names_are_cut_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    report = replace(ring(), names=("é" * 500,) * 60)
    assert {len(name.encode()) for name in held(report)["names"]} <= {
        interactive.LONGEST_NAME,
        interactive.LONGEST_NAME - 1,
    }
    monkeypatch.setattr(interactive, "_NAME_BYTES", {20_000: 6000})
    assert 5500 < sum(len(name.encode()) for name in held(report)["names"]) <= 6000


def large(points: int, **changes: Any) -> DimensionReport:
    generator = torch.Generator().manual_seed(0)
    lid = 2 + 8 * torch.rand(points, generator=generator)
    report = make_report(points=points, names=tuple(f"class {place}" for place in range(10)), **changes)
    return replace(report, lid=lid, names=tuple(f"{'a text of some length ' * 4}{row}" for row in range(points)))


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize(("points", "megabytes"), [(20_000, 5), (100_000, 15), (150_000, 15)])
def test_large_pages_are_small_enough_and_work(browser: Browser, tmp_path: Path, points: int, megabytes: int) -> None:
    nearest = torch.randint(points, (points, 20), generator=torch.Generator().manual_seed(0))
    page = Page(
        browser,
        tmp_path / "page.html",
        inspection_page(large(points, neighbors=Neighbors(nearest / 1.0, nearest))),
        1400,
    )
    assert page.path.stat().st_size < megabytes * 1e6
    page.brush("density", (1.2, 4), (1.6, 6))
    drawn = points if points <= interactive.ALL_DRAWN else interactive.SAMPLE
    assert 0.08 * drawn < page.selected < 0.12 * drawn
    assert len(page.table) == 200
    page.check_quiet()
