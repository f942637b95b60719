"""Plots of dimensionality: what they draw lies at the numbers, and odd values are drawn too."""

import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy
import pytest
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from numpy.typing import NDArray

from ldreg.inspection.report import ClassLID, MeanLID
from ldreg.report.plots import DRAWN_POINTS, class_bars, class_map, curve, density, histogram, lid_maps, spectrum
from ldreg.report.style import COLORS, INK, ORANGE, line_style, log_axis, svg

Array = NDArray[Any]
NAN = math.nan
RANDOM = numpy.random.default_rng(0)
LID = RANDOM.uniform(2, 10, 60)
POINTS = RANDOM.normal(size=(60, 2))
TWO = COLORS[:2]


def drawings() -> dict[str, Figure]:
    """One of each plot."""
    (lid_map,) = lid_maps([POINTS], [LID])
    assert lid_map is not None
    return {
        "histogram": histogram([LID], [5.5], quartiles=(4.0, 5.5, 7.0)),
        "histograms": histogram([LID, LID[:40]], [5.5, 4.0]),
        "spectrum": spectrum([numpy.logspace(0, -4, 16)], [9.5]),
        "density": density([1 + LID], [LID], [5.5], k=20),
        "map": lid_map,
        "classes": class_map(POINTS, ["a", "b"] * 30, ["a", "b"], classes=2),
        "bars": class_bars([ClassLID(name, 9, 8, MeanLID(4, 3.5, 4.5)) for name in "ab"], 5.5),
        "curve": curve([[(0, 1.0), (1, 2.0)]], share=False),
    }


def lines(figure: Figure) -> list[tuple[str, bool, float]]:
    """Color, whether it is solid, and first x of every line."""
    return [
        (to_hex(line.get_color()), line.get_linestyle() == "-", float(numpy.asarray(line.get_xdata())[0]))
        for line in figure.axes[0].get_lines()
    ]


def dots(figure: Figure) -> PathCollection:
    (found,) = (part for part in figure.axes[0].collections if isinstance(part, PathCollection))
    return found


def places(figure: Figure) -> Array:
    return numpy.asarray(dots(figure).get_offsets())


def texts(drawing: str) -> set[str]:
    return {"".join(element.itertext()).strip() for element in ElementTree.fromstring(drawing).iter()} - {""}


def test_svg_takes_the_color_of_the_page() -> None:
    for name, figure in drawings().items():
        drawing = svg(figure, name)
        assert "currentColor" in drawing
        assert INK not in drawing
        assert "#000000" not in drawing  # matplotlib's default black would vanish on a dark page
        assert 'width="' not in drawing[: drawing.index(">")]


def test_ids_are_unique_over_all_figures_and_resolve() -> None:
    made = [svg(figure, name) for name, figure in drawings().items()]
    ids = [name for drawing in made for name in re.findall(r'\bid="([^"]+)"', drawing)]
    assert len(ids) == len(set(ids))
    used = {name for drawing in made for name in re.findall(r'(?:url\(#|href="#)([^)"]+)', drawing)}
    assert used <= set(ids)
    assert used


@pytest.mark.parametrize("suffix", ["png", "pdf"])
def test_figures_are_saved_in_other_formats(tmp_path: Path, suffix: str) -> None:
    for name, figure in drawings().items():
        figure.savefig(tmp_path / f"{name}.{suffix}")
        assert (tmp_path / f"{name}.{suffix}").stat().st_size > 1000


def test_a_histogram_of_one_set_has_its_mean_and_quartiles() -> None:
    figure = histogram([[*LID, 0.0, math.inf]], [5.5], quartiles=(4.0, 5.5, 7.0))
    (steps,) = (part for part in figure.axes[0].patches if isinstance(part, StepPatch))
    assert steps.get_data()[0].sum() == pytest.approx(1)
    shaded = figure.axes[0].patches[0].get_x(), figure.axes[0].patches[0].get_width()  # type: ignore[attr-defined]
    assert shaded == (4.0, 3.0)
    assert lines(figure) == [(ORANGE, True, 5.5)]
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
    assert lines(figure) == [(TWO[0], True, 5.5), (TWO[1], False, 4.0)]


def test_spectra_have_their_own_lengths_and_ranks() -> None:
    figure = spectrum([numpy.logspace(0, -4, 16), numpy.linspace(1, 0.5, 8)], [9.5, 6.5])
    assert [len(numpy.asarray(line.get_xdata())) for line in figure.axes[0].get_lines()] == [16, 2, 8, 2]
    assert lines(figure) == [(TWO[0], True, 1.0), (TWO[0], True, 9.5), (TWO[1], False, 1.0), (TWO[1], False, 6.5)]
    assert numpy.asarray(figure.axes[0].get_lines()[2].get_ydata())[-1] == pytest.approx(0.5)
    assert "effective rank 9.50" in texts(svg(spectrum([[1.0, 0.5]], [9.5]), "s"))


def test_density_mixes_the_dots_of_both_sets() -> None:
    far, near = 1 + LID / 10, numpy.linspace(0.1, 0.2, 40)
    figure = density([far, near], [LID, numpy.linspace(3, 5, 40)], [5.5, 4.0], k=20)
    colors = [to_hex(color) for color in dots(figure).get_facecolors()]  # type: ignore[attr-defined]
    assert [colors.count(color) for color in TWO] == [60, 40]
    assert len(re.findall("ab", "".join("ab"[TWO.index(color)] for color in colors))) > 5
    own = places(figure)[[color == TWO[0] for color in colors]]
    assert sorted(own[:, 1].tolist()) == pytest.approx(sorted(LID.tolist()))
    assert own[:, 0].min() > 1
    assert [color for color, *_ in lines(figure)] == list(TWO)
    assert [color for color, *_ in lines(density([far], [LID], [5.5], k=20))] == [ORANGE]


def test_many_points_are_thinned_and_make_a_small_picture() -> None:
    many = RANDOM.uniform(1, 9, 50_000)
    figure = density([many], [many], [4.0], k=20)
    assert len(places(figure)) == DRAWN_POINTS
    (lid_map,) = lid_maps([RANDOM.normal(size=(50_000, 2))], [many])
    assert lid_map is not None
    assert len(places(lid_map)) == DRAWN_POINTS
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
    (marks,) = (line for line in both.axes[0].get_lines() if line.get_marker() == "D")
    at = numpy.asarray(marks.get_xdata()), numpy.asarray(marks.get_ydata())
    assert (at[0].tolist(), at[1].tolist()) == ([7.0], [1])
    assert to_hex(marks.get_color()) == ORANGE
    for figure, color in ((alone, ORANGE), (both, INK)):  # beside another set, orange is that set's
        (mean,) = (line for line in figure.axes[0].get_lines() if numpy.array_equal(line.get_xdata(), [5.5, 5.5]))
        assert to_hex(mean.get_color()) == color


def test_class_names_are_drawn_literally() -> None:
    names = ["$x^2", r"$\frac{1}{2}$", "<b>&amp;", "a\x00b"]
    rows = [ClassLID(name, 9, 8, MeanLID(4, 3.5, 4.5)) for name in names]
    for figure in (class_bars(rows, 4.0), class_map(POINTS, names * 15, names, classes=4)):
        assert {"$x^2", r"$\frac{1}{2}$", "<b>&amp;", r"a\x00b"} <= texts(svg(figure, "f"))


def test_many_classes_leave_the_named_in_color() -> None:
    labels = [f"c{i % 50}" for i in range(60)]
    shown = texts(svg(class_map(POINTS, labels, labels[:9], classes=50), "map"))
    assert {"c0", "c8", "41 others"} <= shown
    assert "c9" not in shown


def test_curves_lie_at_their_values() -> None:
    axes = curve([[(2, 0.5), (1, 0.25)], [], [(1, 1.0)]], share=True).axes[0]
    first, empty, last = axes.get_lines()
    assert numpy.asarray(first.get_xydata()).tolist() == [[1, 0.25], [2, 0.5]]
    assert len(numpy.asarray(empty.get_xdata())) == 0
    assert last.get_color() == line_style(2)["color"]


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
    shown = [tick for tick in axes.get_xticks() if low <= tick <= end]
    assert 3 <= len(shown) <= 8
