"""Plots: what they draw lies at the numbers, odd values are drawn too, names are text, files are the same each time."""

import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from numpy.typing import NDArray
from PIL import Image

from ldreg.inspection.report import ClassLID, MeanLID
from ldreg.report.plots import (
    DRAWN_POINTS,
    Series,
    bars,
    class_bars,
    class_map,
    curve,
    density,
    histogram,
    lid_maps,
    line_panels,
    lines,
    scatter_panels,
    spectrum,
)
from ldreg.report.style import COLORS, INK, ORANGE, line_style, log_axis, save_figure, svg

Array = NDArray[Any]
NAN = math.nan
RANDOM = numpy.random.default_rng(0)
LID = RANDOM.uniform(2, 10, 60)
POINTS = RANDOM.normal(size=(60, 2))
TWO = COLORS[:2]
ODD = "a name that goes on and on $x^2$ \\frac \x1b[31m for ever and ever and ever"


def drawings() -> dict[str, Figure]:
    """One of each plot, with names that matplotlib would take for formulas."""
    (lid_map,) = lid_maps([POINTS], [LID])
    assert lid_map is not None
    rows = [ClassLID(name, 9, 8, MeanLID(4, 3.5, 4.5)) for name in ("$x^2", r"$\frac{1}{2}$", "<b>&amp;", "a\x00b")]
    names = [row.label for row in rows]
    return {
        "histogram": histogram([LID], [5.5], quartiles=(4.0, 5.5, 7.0)),
        "histograms": histogram([LID, LID[:40]], [5.5, 4.0]),
        "spectrum": spectrum([numpy.logspace(0, -4, 16)], [9.5]),
        "density": density([1 + LID], [LID], [5.5], k=20),
        "map": lid_map,
        "classes": class_map(POINTS, names * 15, names, classes=4),
        "class-bars": class_bars(rows, 5.5),
        "curve": curve([[(0, 1.0), (1, 2.0)]], share=False),
        "lines": lines([Series("$x^2$ \\frac", [(1, 1.0)])], xlabel="$x_", ylabel="$"),
        "panels": line_panels([("$x^{", [Series("$x^2$ \\frac", [(1, 1.0)])])], xlabel="$x_", ylabel="$"),
        "bars": bars([ODD, "b"], [(ODD, [1.0, NAN]), ("b", [None, 2.0])], ylabel=ODD),
        "scatter": scatter_panels([("$x^{", [(0, 0)], ["$_"])], columns=1),
    }


def marks(figure: Figure) -> list[tuple[str, bool, float]]:
    """Color, whether it is solid, and first x of every line."""
    return [
        (to_hex(line.get_color()), line.get_linestyle() == "-", float(numpy.asarray(line.get_xdata())[0]))
        for line in figure.axes[0].get_lines()
    ]


def dots(figure: Figure) -> PathCollection:
    (found,) = (part for part in figure.axes[0].collections if isinstance(part, PathCollection))
    return found


def texts(drawing: str) -> set[str]:
    return {"".join(element.itertext()).strip() for element in ElementTree.fromstring(drawing).iter()} - {""}


def names(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def written(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_svg_takes_the_color_of_the_page_names_are_text_and_ids_resolve() -> None:
    made = {name: svg(figure, name) for name, figure in drawings().items()}
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


def test_a_histogram_of_one_set_has_its_mean_and_quartiles() -> None:
    figure = histogram([[*LID, 0.0, math.inf]], [5.5], quartiles=(4.0, 5.5, 7.0))
    (steps,) = (part for part in figure.axes[0].patches if isinstance(part, StepPatch))
    assert steps.get_data()[0].sum() == pytest.approx(1)
    shaded = figure.axes[0].patches[0].get_x(), figure.axes[0].patches[0].get_width()  # type: ignore[attr-defined]
    assert shaded == (4.0, 3.0)
    assert marks(figure) == [(ORANGE, True, 5.5)]
    assert "geometric mean 5.50" in texts(svg(figure, "h"))


def test_histograms_of_two_sets_are_shares_in_the_same_bins() -> None:
    figure = histogram([LID, numpy.linspace(3, 5, 40)], [5.5, 4.0])
    steps = [part for part in figure.axes[0].patches if isinstance(part, StepPatch) and not part.get_fill()]
    assert [to_hex(part.get_edgecolor()) for part in steps] == list(TWO)
    (shares, bins, _), (values, edges, _) = (part.get_data() for part in steps)
    assert [shares.sum(), values.sum()] == pytest.approx([1, 1])
    assert numpy.array_equal(bins, edges)
    assert edges[:-1][values > 0].min() <= 3 <= edges[1:][values > 0].min()
    assert edges[1:][values > 0].max() >= 5
    assert marks(figure) == [(TWO[0], True, 5.5), (TWO[1], False, 4.0)]


def test_spectra_have_their_own_lengths_and_ranks() -> None:
    figure = spectrum([numpy.logspace(0, -4, 16), numpy.linspace(1, 0.5, 8)], [9.5, 6.5])
    assert [len(numpy.asarray(line.get_xdata())) for line in figure.axes[0].get_lines()] == [16, 2, 8, 2]
    assert marks(figure) == [(TWO[0], True, 1.0), (TWO[0], True, 9.5), (TWO[1], False, 1.0), (TWO[1], False, 6.5)]
    assert numpy.asarray(figure.axes[0].get_lines()[2].get_ydata())[-1] == pytest.approx(0.5)
    assert "effective rank 9.50" in texts(svg(spectrum([[1.0, 0.5]], [9.5]), "s"))


def test_density_mixes_the_dots_of_both_sets() -> None:
    far, near = 1 + LID / 10, numpy.linspace(0.1, 0.2, 40)
    figure = density([far, near], [LID, numpy.linspace(3, 5, 40)], [5.5, 4.0], k=20)
    colors = [to_hex(color) for color in dots(figure).get_facecolors()]  # type: ignore[attr-defined]
    assert [colors.count(color) for color in TWO] == [60, 40]
    assert len(re.findall("ab", "".join("ab"[TWO.index(color)] for color in colors))) > 5
    own = numpy.asarray(dots(figure).get_offsets())[[color == TWO[0] for color in colors]]
    assert sorted(own[:, 1].tolist()) == pytest.approx(sorted(LID.tolist()))
    assert own[:, 0].min() > 1
    assert [color for color, *_ in marks(figure)] == list(TWO)
    assert [color for color, *_ in marks(density([far], [LID], [5.5], k=20))] == [ORANGE]


def test_many_points_are_thinned_and_make_a_small_picture() -> None:
    many = RANDOM.uniform(1, 9, 50_000)
    figure = density([many], [many], [4.0], k=20)
    (lid_map,) = lid_maps([RANDOM.normal(size=(50_000, 2))], [many])
    assert lid_map is not None
    assert [len(numpy.asarray(dots(one).get_offsets())) for one in (figure, lid_map)] == [DRAWN_POINTS] * 2
    assert max(len(svg(one, "f")) for one in (figure, lid_map, histogram([many], [4.0]))) < 600_000


def test_maps_share_one_color_scale() -> None:
    square = [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)]
    made = lid_maps([square, square, [], square], [[1.0] * 4, [10.0] * 4, [], [0.0, NAN, math.inf, 0.0]])
    assert {dots(figure).get_clim() for figure in made if figure is not None} == {(1.0, 10.0)}
    assert [figure is None for figure in made] == [False, False, True, True]


def test_class_bars_have_their_intervals_and_the_other_set_as_diamonds() -> None:
    rows = [ClassLID("b", 9, 8, MeanLID(5, 4.5, 5.5)), ClassLID("a", 9, 8, MeanLID(4, 3.5, 4.5))]
    empty = ClassLID("none", 5, 0, MeanLID(NAN, NAN, NAN))
    alone = class_bars([*rows, empty], 5.5)
    assert [bar.get_width() for bar in alone.axes[0].patches] == [4.0, 5.0]  # type: ignore[attr-defined]
    others = {"b": ClassLID("b", 9, 8, MeanLID(7.0, 6.0, 8.0)), "c": ClassLID("c", 9, 8, MeanLID(1.0, 0.5, 1.5))}
    both = class_bars(rows, 5.5, others)
    (diamonds,) = (line for line in both.axes[0].get_lines() if line.get_marker() == "D")
    assert numpy.asarray(diamonds.get_xydata()).tolist() == [[7.0, 1.0]]
    assert to_hex(diamonds.get_color()) == ORANGE
    for figure, color in ((alone, ORANGE), (both, INK)):  # beside another set, orange is that set's
        (mean,) = (line for line in figure.axes[0].get_lines() if numpy.array_equal(line.get_xdata(), [5.5, 5.5]))
        assert to_hex(mean.get_color()) == color


def test_many_classes_leave_the_named_in_color() -> None:
    labels = [f"c{i % 50}" for i in range(60)]
    shown = texts(svg(class_map(POINTS, labels, labels[:9], classes=50), "map"))
    assert {"c0", "c8", "41 others"} <= shown
    assert "c9" not in shown
    points = [(float(i), 0.0) for i in range(15)]
    assert names(scatter_panels([("a", points, [str(i) for i in range(15)])], columns=1)) == [
        *map(str, range(9)),
        "6 others",
    ]
    assert not scatter_panels([("a", points, None)], columns=3).legends


def test_curves_lie_at_their_values() -> None:
    axes = curve([[(2, 0.5), (1, 0.25)], [], [(1, 1.0)]], share=True).axes[0]
    shown = [numpy.asarray(line.get_xydata()).tolist() for line in axes.get_lines()]
    assert shown == [[[1, 0.25], [2, 0.5]], [], [[1, 1.0]]]
    assert axes.get_lines()[2].get_color() == line_style(2)["color"]
    assert axes.yaxis.get_major_formatter()(0.5, 0) == "50 %"


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


# Plots of studies


def test_lines_lie_at_their_values_in_the_color_of_their_group_with_gaps() -> None:
    first = Series("a", [(2, 0.5), (1, 0.25), (3, NAN), (4, math.inf)], dashed=True, color_group=3)
    figure = lines([first, Series("b", [(1, 1.0), (3, NAN)], color_group=3)], xlabel="epoch", ylabel="LID", share=True)
    line, gaps, other, others = figure.axes[0].get_lines()
    numpy.testing.assert_equal(numpy.asarray(line.get_ydata()), [0.25, 0.5, NAN, NAN])
    assert numpy.asarray(gaps.get_xdata()).tolist() == [3, 4]
    assert gaps.get_marker() == others.get_marker() == "x"
    assert numpy.asarray(gaps.get_ydata())[0] != numpy.asarray(others.get_ydata())[0]
    assert line.get_color() == other.get_color() == COLORS[3]
    assert (line.is_dashed(), other.is_dashed()) == (True, False)
    assert names(figure) == ["a", "b", "collapsed"]
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("epoch", "LID")
    assert figure.axes[0].yaxis.get_major_formatter()(0.5, 0) == "50 %"


def test_bands_are_bars_of_few_and_areas_of_many_points() -> None:
    few = lines([Series("a", [(1, 2.0), (2, 3.0)], [(2, 2.5, 3.5), (1, 1.5, 2.5)])], xlabel="x", ylabel="y").axes[0]
    segments = few.collections[0].get_segments()  # type: ignore[attr-defined]
    assert [segment.tolist() for segment in segments] == [[[1, 1.5], [1, 2.5]], [[2, 2.5], [2, 3.5]]]
    many = [(float(x), 2.0) for x in range(20)]
    dense = lines([Series("a", many, [(x, y - 1, y + 1) for x, y in many])], xlabel="x", ylabel="y").axes[0]
    level = lines([Series("a", [(1, 2.0)], [(1, 1.0, 3.0), (2, 1.0, 3.0)], area=True)], xlabel="x", ylabel="y").axes[0]
    for axes, expected in ((dense, (0, 19, 1, 3)), (level, (1, 2, 1, 3))):
        area = axes.collections[0].get_paths()[0].get_extents()
        assert (area.x0, area.x1, area.y0, area.y1) == expected


def test_panels_of_lines_share_their_axes_and_one_legend() -> None:
    without, with_it = Series("without", [(0, 1.0), (100, 2.0)], dashed=True), Series("with", [(0, 1.0), (100, 9.0)])
    shown = [("a", [without, with_it]), *((name, [without]) for name in "bcde"), ("f", [Series("with", [(0, NAN)])])]
    figure = line_panels(shown, xlabel="epoch", ylabel="LID")
    assert [axes.get_title() for axes in figure.axes] == list("abcdef")
    assert {axes.get_ylim() for axes in figure.axes} == {figure.axes[0].get_ylim()}
    assert figure.axes[0].get_ylim()[1] > 9
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "", "epoch", "epoch", "epoch", "epoch"]
    assert [axes.get_ylabel() for axes in figure.axes] == ["LID", "", "", "", "LID", ""]
    assert names(figure) == ["without", "with", "collapsed"]
    assert numpy.asarray(figure.axes[0].lines[1].get_ydata()).tolist() == [1.0, 9.0]
    assert all(tick == round(tick) for tick in figure.axes[0].get_xticks())
    empty = line_panels([("a", [Series("x", [(0, NAN), (10, NAN)])])], xlabel="epoch", ylabel="LID").axes[0]
    assert len(empty.get_yticks()) == 0


def test_bars_have_their_heights_and_values() -> None:
    figure = bars(
        ["SimCLR", "BYOL"], [("without", [470.2, NAN]), ("with", [529.6, None])], errors=[[10.0, None], None],
        ylabel="rank",
    )  # fmt: skip
    axes = figure.axes[0]
    assert [bar.get_height() for bar in axes.patches] == [470.2, 529.6]  # type: ignore[attr-defined]
    assert [bar.get_alpha() for bar in axes.patches] == [0.4, 1.0]
    assert axes.patches[0].get_facecolor()[:3] == axes.patches[1].get_facecolor()[:3]
    assert written(axes) == ["470.2", "collapsed", "529.6", "not measured"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["SimCLR", "BYOL"]
    error = axes.collections[0].get_segments()[0]  # type: ignore[attr-defined]
    assert error[:, 1].tolist() == [460.2, 480.2]
    assert names(figure) == ["without", "with"]
    below = bars(["a"], [("x", [-0.25])], ylabel="y", share=True).axes[0]
    assert (written(below), below.texts[0].get_verticalalignment()) == (["-25.0"], "top")


def test_panels_share_the_colors_of_classes() -> None:
    square = [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0)]
    figure = scatter_panels([("a", square, ["x", "y", "x"]), ("b", square, ["y", "y", "y"]), ("c", [], [])], columns=2)
    first, second = (axes.collections[0] for axes in figure.axes[:2])
    assert isinstance(first, PathCollection)
    assert isinstance(second, PathCollection)
    assert numpy.asarray(first.get_offsets()).tolist() == [list(point) for point in square]
    assert (numpy.asarray(first.get_facecolor())[1] == numpy.asarray(second.get_facecolor())[0]).all()
    assert (numpy.asarray(first.get_facecolor())[1] != numpy.asarray(first.get_facecolor())[0]).any()
    assert written(figure.axes[2]) == ["collapsed"]
    assert names(figure) == ["x", "y"]


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
