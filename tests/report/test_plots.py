"""Figures of studies: what they draw lies where the numbers say, and their files are the same each time."""

import math
from pathlib import Path

import numpy
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from PIL import Image

from ldreg.report.plots import Series, bars, line_panels, lines, scatter_panels
from ldreg.report.style import COLORS, save_figure, svg

NAN = math.nan


def names(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def written(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_lines_lie_at_their_values_in_the_color_of_their_group() -> None:
    figure = lines(
        [Series("a", [(2, 0.5), (1, 0.25)], dashed=True, color_group=3), Series("b", [(1, 1.0)], color_group=3)],
        xlabel="epoch",
        ylabel="LID",
    )
    first, second = figure.axes[0].get_lines()
    assert numpy.asarray(first.get_xydata()).tolist() == [[1, 0.25], [2, 0.5]]
    assert first.get_color() == second.get_color() == COLORS[3]
    assert (first.is_dashed(), second.is_dashed()) == (True, False)
    assert names(figure) == ["a", "b"]
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("epoch", "LID")


def test_undefined_values_are_gaps_with_a_mark() -> None:
    figure = lines([Series("a", [(1, 1.0), (2, NAN), (3, math.inf), (4, 2.0)])], xlabel="x", ylabel="y")
    line, marks = figure.axes[0].get_lines()
    assert numpy.isnan(numpy.asarray(line.get_ydata(), dtype=float)).tolist() == [False, True, True, False]
    assert numpy.asarray(marks.get_xdata()).tolist() == [2, 3]
    assert marks.get_marker() == "x"
    assert names(figure) == ["a", "collapsed"]
    assert names(lines([Series("a", [(1, 1.0)])], xlabel="x", ylabel="y")) == ["a"]


def test_marks_of_several_series_are_apart() -> None:
    figure = lines([Series("a", [(1, NAN)]), Series("b", [(1, NAN)])], xlabel="x", ylabel="y")
    heights = [line.get_ydata()[0] for line in figure.axes[0].get_lines() if line.get_marker() == "x"]  # type: ignore[index]
    assert len(set(heights)) == len(heights) == 2


def test_bands_are_bars_of_few_and_areas_of_many_points() -> None:
    few = lines([Series("a", [(1, 2.0), (2, 3.0)], [(2, 2.5, 3.5), (1, 1.5, 2.5)])], xlabel="x", ylabel="y").axes[0]
    segments = few.collections[0].get_segments()  # type: ignore[attr-defined]
    assert [segment.tolist() for segment in segments] == [[[1, 1.5], [1, 2.5]], [[2, 2.5], [2, 3.5]]]
    many = [(float(x), 2.0) for x in range(20)]
    dense = lines([Series("a", many, [(x, y - 1, y + 1) for x, y in many])], xlabel="x", ylabel="y").axes[0]
    area = dense.collections[0].get_paths()[0].get_extents()
    assert (area.x0, area.x1, area.y0, area.y1) == (0, 19, 1, 3)
    level = lines([Series("a", [(1, 2.0)], [(1, 1.0, 3.0), (2, 1.0, 3.0)], area=True)], xlabel="x", ylabel="y").axes[0]
    area = level.collections[0].get_paths()[0].get_extents()
    assert (area.x0, area.x1, area.y0, area.y1) == (1, 2, 1, 3)


def test_a_logarithmic_axis_has_its_ticks_at_the_values() -> None:
    axes = lines([Series("a", [(16, 1.0), (64, 2.0), (256, 3.0)])], xlabel="k", ylabel="y", logx=True).axes[0]
    assert axes.get_xscale() == "log"
    assert numpy.asarray(axes.get_xticks()).tolist() == [16, 64, 256]


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


def test_panels_have_ticks_at_whole_epochs_and_at_values_alone() -> None:
    valued, empty = (
        line_panels([("a", [Series("x", [(0, y), (10, y)])])], xlabel="epoch", ylabel="LID").axes[0] for y in (3.0, NAN)
    )
    for axes in (valued, empty):
        assert all(tick == round(tick) for tick in axes.get_xticks())
    assert (len(valued.get_yticks()) > 1, len(empty.get_yticks())) == (True, 0)


def test_shares_are_in_percent() -> None:
    axes = lines([Series("a", [(1, 0.5), (2, 1.0)])], xlabel="x", ylabel="y", share=True).axes[0]
    assert axes.yaxis.get_major_formatter()(0.5, 0) == "50 %"


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


def test_bars_below_zero_have_their_values_below() -> None:
    axes = bars(["a"], [("x", [-0.25])], ylabel="y", share=True).axes[0]
    assert written(axes) == ["-25.0"]
    assert axes.texts[0].get_verticalalignment() == "top"


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


def test_panels_of_many_classes_gray_out_the_rest() -> None:
    points = [(float(i), 0.0) for i in range(15)]
    figure = scatter_panels([("a", points, [str(i) for i in range(15)])], columns=1)
    assert names(figure) == [*map(str, range(9)), "6 others"]
    assert not scatter_panels([("a", points, None)], columns=3).legends


def figure_of_everything() -> Figure:
    long = "a name that goes on and on $x^2$ \x1b[31m for ever and ever and ever"
    return bars([long, "b"], [(long, [1.0, NAN]), ("b", [None, 2.0])], ylabel=long)


def test_names_are_text_and_never_formulas() -> None:
    for figure in (
        figure_of_everything(),
        lines([Series("$x^2$ \\frac", [(1, 1.0)])], xlabel="$x_", ylabel="$"),
        line_panels([("$x^{", [Series("$x^2$ \\frac", [(1, 1.0)])])], xlabel="$x_", ylabel="$"),
        scatter_panels([("$x^{", [(0, 0)], ["$_"])], columns=1),
    ):
        text = svg(figure, "f")
        assert "$" in text
        assert "\x1b" not in text


def test_files_are_the_same_each_time(tmp_path: Path) -> None:
    first = save_figure(figure_of_everything(), tmp_path / "new" / "figure.v1")
    again = save_figure(figure_of_everything(), tmp_path / "again")
    assert [path.name for path in first] == ["figure.v1.png", "figure.v1.pdf"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.pdf", "again.png", "new"]


def test_files_are_on_white_with_embedded_fonts(tmp_path: Path) -> None:
    png, pdf = save_figure(figure_of_everything(), tmp_path / "figure")
    with Image.open(png) as image:
        assert image.convert("RGBA").getpixel((0, 0)) == (255, 255, 255, 255)
        assert round(image.info["dpi"][0]) == 150
    content = pdf.read_bytes()
    assert b"/FontFile2" in content
    assert b"CreationDate" not in content
