"""Plots: what they draw and where, odd values are drawn too, names are text, files are the same each time."""

import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy
import pytest
import torch
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from tests.report.snapshot import check_snapshot, described

from ldreg.inspection.report import ClassLID, Layer, MeanLID
from ldreg.record import PointCloud
from ldreg.report.plots import (
    DRAWN_POINTS,
    Series,
    bars,
    class_bars,
    class_map,
    cloud_panels,
    curve,
    density,
    draw_cloud,
    histogram,
    lid_maps,
    line_panels,
    lines,
    over_depth,
    scatter_panels,
    spectrum,
)
from ldreg.report.style import INK, log_axis, save_figure, svg

Array = NDArray[Any]
NAN = math.nan
RANDOM = numpy.random.default_rng(0)
LID = RANDOM.uniform(2, 10, 60)
POINTS = RANDOM.normal(size=(60, 2))
ODD = "a name that goes on and on $x^2$ \\frac \x1b[31m for ever and ever and ever"


def drawings() -> dict[str, Figure]:
    """Every plot, with names that matplotlib would take for formulas, gaps, odd values, one set and several."""
    (lid_map,) = lid_maps([POINTS], [LID])
    square = [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)]
    low, high, *empty = lid_maps([square, square, [], square], [[1.0] * 4, [10.0] * 4, [], [0.0, NAN, math.inf, 0.0]])
    assert lid_map is not None
    assert low is not None
    assert high is not None
    assert empty == [None, None]
    rows = [ClassLID(name, 9, 8, MeanLID(4, 3.5, 4.5)) for name in ("$x^2", r"$\frac{1}{2}$", "<b>&amp;", "a\x00b")]
    rows += [ClassLID("none", 5, 0, MeanLID(NAN, NAN, NAN)), ClassLID("high", 9, 8, MeanLID(5, NAN, NAN))]
    others = {"high": ClassLID("high", 9, 8, MeanLID(7, 6, 8)), "c": ClassLID("c", 9, 8, MeanLID(1, 0.5, 1.5))}
    names = [row.label for row in rows[:4]]
    gaps = Series("$x^2$ \\frac", [(2, 0.5), (1, 0.25), (3, NAN), (4, math.inf)], dashed=True, color_group=3)
    few = Series("few", [(1, 2.0), (2, 3.0)], [(2, 2.5, 3.5), (1, 1.5, 2.5)])
    many = Series("many", [(float(x), 2.0) for x in range(20)], [(x, 1.0, 3.0) for x in range(20)], color_group=1)
    level = Series("level", [(1, 2.0)], [(1, 1.0, 3.0), (2, 1.0, 3.0)], area=True)
    shown = [("$x^{", [gaps, few]), *((name, [few]) for name in "bcde"), ("f", [Series("few", [(0, NAN)])])]
    colored = [str(i) for i in range(15)]
    panels = [("$x^{", square, ["$_", "y", "$_", "y"]), ("b", square, ["y"] * 4), ("c", [], []), ("d", square, None)]
    clouds = [PointCloud("a", torch.tensor(square), torch.tensor([1.0, 1.5, 2.0, 2.5]), 1.7, 0.16, 2.0, 1, 0.1)] * 2
    return {
        "histogram": histogram([[*LID, 0.0, math.inf]], [5.5], quartiles=(4.0, 5.5, 7.0)),
        "histograms": histogram([LID, numpy.linspace(3, 5, 40)], [5.5, 4.0]),
        "histograms-of-many": histogram([LID, LID[:40], [], LID], [NAN] * 4),
        "spectrum": spectrum([numpy.logspace(0, -4, 16)], [9.5]),
        "spectra": spectrum([numpy.logspace(0, -4, 16), numpy.linspace(1, 0.5, 8)], [9.5, 6.5]),
        "density": density([1 + LID], [LID], [5.5], k=20),
        "densities": density([1 + LID / 10, numpy.linspace(0.1, 0.2, 40)], [LID, LID[:40]], [5.5, 4.0], k=20),
        "map": lid_map,
        "low-map": low,
        "high-map": high,
        "classes": class_map(POINTS, names * 15, names, classes=4),
        "many-classes": class_map(POINTS, [f"c{i % 50}" for i in range(60)], [f"c{i}" for i in range(9)], classes=50),
        "class-bars": class_bars(rows, 5.5),
        "class-bars-beside": class_bars(rows, 5.5, others),
        "curve": curve([[(2, 0.5), (1, 0.25)], [], [(1, 1.0)]], share=True),
        "lines": lines([gaps, Series("b", [(1, 1.0), (3, NAN)], color_group=3)], xlabel="$x_", ylabel="$", share=True),
        "bands": lines([few, many, level], xlabel="x", ylabel="y"),
        "panels": line_panels(shown, xlabel="$x_", ylabel="$"),
        "gap": line_panels([("a", [Series("x", [(0, NAN), (10, NAN)])])], xlabel="epoch", ylabel="LID"),
        "bars": bars([ODD, "b"], [(ODD, [470.2, NAN]), ("b", [None, 529.6])], errors=[[10.0, None], None], ylabel=ODD),
        "bars-below": bars(["a"], [("x", [-0.25])], ylabel="y", share=True),
        "scatter": scatter_panels(panels, columns=2),
        "scatter-of-many": scatter_panels([("a", [(float(i), 0.0) for i in range(15)], colored)], columns=1),
        "cloud": draw_cloud(clouds[0]),
        "clouds": cloud_panels(clouds, columns=2, close=True),
    }


def test_every_plot_is_as_it_was() -> None:
    text = [line.rstrip() for name, figure in drawings().items() for line in (f"{name}:", *described(figure))]
    check_snapshot("plots.txt", "\n".join(text) + "\n")


def dots(figure: Figure) -> PathCollection:
    (found,) = (part for part in figure.axes[0].collections if isinstance(part, PathCollection))
    return found


def texts(drawing: str) -> set[str]:
    return {"".join(element.itertext()).strip() for element in ElementTree.fromstring(drawing).iter()} - {""}


def test_svg_takes_the_color_of_the_page_names_are_text_and_ids_resolve() -> None:
    made = {name: svg(figure, name) for name, figure in drawings().items() if name != "clouds"}  # which pages lack
    for name, drawing in made.items():
        assert "currentColor" in drawing
        assert INK not in drawing
        assert "#000000" not in drawing, name  # matplotlib's default black would vanish on a dark page
        assert 'width="' not in drawing[: drawing.index(">")]
        assert "\x1b" not in drawing
    for name in ("classes", "class-bars"):
        assert {"$x^2", r"$\frac{1}{2}$", "<b>&amp;", r"a\x00b"} <= texts(made[name])
    assert all("$" in made[name] for name in ("lines", "panels", "bars", "scatter"))
    ids = [name for drawing in made.values() for name in re.findall(r'\bid="([^"]+)"', drawing)]
    assert len(ids) == len(set(ids))
    used = {name for drawing in made.values() for name in re.findall(r'(?:url\(#|href="#)([^)"]+)', drawing)}
    assert used
    assert used <= set(ids)


def test_many_points_are_thinned_and_make_a_small_picture() -> None:
    many = RANDOM.uniform(1, 9, 50_000)
    figure = density([many], [many], [4.0], k=20)
    (lid_map,) = lid_maps([RANDOM.normal(size=(50_000, 2))], [many])
    assert lid_map is not None
    assert [len(numpy.asarray(dots(one).get_offsets())) for one in (figure, lid_map)] == [DRAWN_POINTS] * 2
    assert max(len(svg(one, "f")) for one in (figure, lid_map, histogram([many], [4.0]))) < 600_000


@pytest.mark.parametrize("values", [[3.0] * 5, [1e-3, 5.0, 1e6], [7.0]])
def test_odd_distributions_are_drawn(values: list[float]) -> None:
    for count in (1, 2, 5):
        for figure in (
            histogram([values] * count, [NAN] * count),
            spectrum([values] * count, [NAN] * count),
            density([numpy.array(values)] * count, [numpy.array(values)] * count, [1.0] * count, k=5),
        ):
            ElementTree.fromstring(svg(figure, "f"))


@pytest.mark.parametrize("high", [3.0, 50.0, 250.0, 1e3, 1e6, 1e9, 1e20, 1e40])
def test_a_logarithmic_axis_has_some_labels_and_not_too_many(high: float) -> None:
    figure = Figure(figsize=(6, 3))
    axes = figure.add_subplot()
    axes.plot([1.0, high], [0.0, 1.0])
    log_axis(axes, "x")
    low, end = axes.get_xlim()
    assert 3 <= len([tick for tick in axes.get_xticks() if low <= tick <= end]) <= 8
    axes = lines([Series("a", [(16, 1.0), (64, 2.0), (high, 3.0)])], xlabel="k", ylabel="y", logx=True).axes[0]
    assert numpy.asarray(axes.get_xticks()).tolist() == sorted([16, 64, high])


def test_files_are_the_same_each_time_on_white_with_embedded_fonts(tmp_path: Path) -> None:
    png, pdf = first = save_figure(drawings()["bars"], tmp_path / "new" / "figure.v1")
    again = save_figure(drawings()["bars"], tmp_path / "again")
    assert [path.name for path in first] == ["figure.v1.png", "figure.v1.pdf"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.pdf", "again.png", "new"]
    with Image.open(png) as image:
        assert image.convert("RGBA").getpixel((0, 0)) == (255, 255, 255, 255)
        assert round(image.info["dpi"][0]) == 150
    assert b"/FontFile2" in pdf.read_bytes()
    assert b"CreationDate" not in pdf.read_bytes()


def test_layers_are_drawn_over_the_depth() -> None:
    def layers(values: list[float], prefix: str = "") -> list[Layer]:
        return [
            Layer(f"{prefix}{place}", 8, MeanLID(value, value - 1, value + 1), 1.0, 2 * value)
            for place, value in enumerate(values)
        ]

    broken, whole = layers([4, NAN, 5]), layers([4, 6, 5, 7, 8], "$x_")
    axes = over_depth([broken], "lid").axes[0]
    numpy.testing.assert_array_equal(axes.lines[-1].get_ydata(), [4, NAN, 5])
    ends = axes.collections[0].get_segments()  # type: ignore[attr-defined]
    assert [segment.tolist() for segment in ends if len(segment) and not numpy.isnan(segment).any()] == [
        [[0, 3], [0, 5]],
        [[2, 4], [2, 6]],
    ]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "1", "2"]
    axes = over_depth([broken, whole], "effective_rank").axes[0]
    numpy.testing.assert_array_equal(axes.lines[1].get_xydata(), [[0, 8], [0.25, 12], [0.5, 10], [0.75, 14], [1, 16]])
    assert axes.get_xlabel() == "share of the depth"
    many = over_depth([layers([2.0] * 31, "$a long name_")], "lid").axes[0]
    named = many.get_xticks().tolist()
    assert len(named) <= 8
    assert named[-1] == 30
    assert svg(many.figure, "depth")  # type: ignore[arg-type]
