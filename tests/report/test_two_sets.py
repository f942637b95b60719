"""Figures of two sets: both are drawn, apart in color and in dashes, and each from its own numbers."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy
import pytest
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from numpy.typing import NDArray

from ldreg.inspection.report import ClassLID, DimensionReport, MeanLID
from ldreg.report.curves import style
from ldreg.report.figures import DRAWN_POINTS, INK, class_figures, svg
from ldreg.report.page import page
from ldreg.report.two_sets import Drawn, figures_of_both

Array = NDArray[Any]
MakeReport = Callable[..., DimensionReport]

COLORS = [style(place).color for place in range(2)]


def drawn(report: DimensionReport) -> dict[str, Drawn]:
    assert report.comparison is not None
    return {one.name: one for one in figures_of_both(report, report.comparison.other)}


def lines(figure: Figure) -> list[tuple[str, bool, float]]:
    """Color, whether it is solid, and first x of every line."""
    return [
        (to_hex(line.get_color()), line.get_linestyle() == "-", float(numpy.asarray(line.get_xdata())[0]))
        for line in figure.axes[0].get_lines()
    ]


def places(figure: Figure) -> Array:
    """Where the dots are."""
    return numpy.asarray(dots(figure).get_offsets())


def dots(figure: Figure) -> PathCollection:
    (found,) = (part for part in figure.axes[0].collections if isinstance(part, PathCollection))
    return found


def test_what_is_drawn(make_report: MakeReport) -> None:
    found = drawn(make_report(comparison="other.npy"))
    assert list(found) == ["histogram", "spectrum", "map-0", "map-1", "density"]
    for one in found.values():
        text = svg(one.figure, one.name)
        assert "currentColor" in text
        assert INK not in text
        assert "#000000" not in text


def test_histograms_are_shares_of_each_set_in_the_same_bins(make_report: MakeReport) -> None:
    figure = drawn(make_report(comparison="other.npy"))["histogram"].figure
    steps = [part for part in figure.axes[0].patches if isinstance(part, StepPatch) and not part.get_fill()]
    assert [to_hex(part.get_edgecolor()) for part in steps] == COLORS
    (shares, bins, _), (values, edges, _) = (part.get_data() for part in steps)
    assert [shares.sum(), values.sum()] == pytest.approx([1, 1])
    assert numpy.array_equal(bins, edges)
    assert edges[:-1][values > 0].min() <= 3 <= edges[1:][values > 0].min()
    assert edges[1:][values > 0].max() >= 5
    assert lines(figure) == [(COLORS[0], True, 5.5), (COLORS[1], False, 4.0)]


def test_spectra_have_their_own_lengths_and_ranks(make_report: MakeReport) -> None:
    figure = drawn(make_report(comparison="other.npy"))["spectrum"].figure
    assert [len(numpy.asarray(line.get_xdata())) for line in figure.axes[0].get_lines()] == [16, 2, 8, 2]
    assert lines(figure) == [
        (COLORS[0], True, 1.0), (COLORS[0], True, 9.5), (COLORS[1], False, 1.0), (COLORS[1], False, 6.5),
    ]  # fmt: skip


def test_maps_share_their_colors(make_report: MakeReport) -> None:
    found = drawn(make_report(comparison="other.npy"))
    first, second = (found[name].figure for name in ("map-0", "map-1"))
    assert (len(places(first)), len(places(second))) == (60, 40)
    assert dots(first).get_clim() == dots(second).get_clim()


def test_dots_of_both_sets_are_mixed(make_report: MakeReport) -> None:
    report = make_report(comparison="other.npy")
    figure = drawn(report)["density"].figure
    colors = [to_hex(color) for color in dots(figure).get_facecolors()]  # type: ignore[attr-defined]
    assert [colors.count(color) for color in COLORS] == [60, 40]
    assert len(re.findall("ab", "".join("ab"[COLORS.index(color)] for color in colors))) > 5
    own = places(figure)[[color == COLORS[0] for color in colors]]
    assert sorted(own[:, 1].tolist()) == pytest.approx(sorted(report.lid.tolist()))
    assert own[:, 0].min() > 1
    assert [color for color, *_ in lines(figure)] == COLORS


def test_a_set_without_a_dimension_leaves_the_other(make_report: MakeReport, collapsed_report: DimensionReport) -> None:
    report = make_report(comparison="other.npy")
    assert report.comparison is not None
    own = replace(collapsed_report, comparison=report.comparison)
    assert list(drawn(own)) == ["histogram", "spectrum", "map-0", "density"]
    assert drawn(own)["map-0"].title == "Where LID is low in other.npy"
    assert "left out" in drawn(own)["histogram"].caption
    assert "embeddings.npy has no map: no point has a defined LID." in drawn(own)["map-0"].caption
    assert drawn(own)["histogram"].legend == (
        "embeddings.npy: no point has a defined LID",
        "other.npy: geometric mean 4.00",
    )
    assert drawn(own)["spectrum"].legend == (
        "embeddings.npy: no eigenvalue above 0",
        "other.npy: effective rank 6.50",
    )
    assert drawn(own)["density"].legend == ("embeddings.npy: no point has a defined LID", "other.npy")
    assert "has no map" not in drawn(report)["map-0"].caption
    assert lines(drawn(own)["density"].figure)[0][0] == COLORS[1]
    neither = replace(own, comparison=replace(report.comparison, other=collapsed_report))
    assert drawn(neither) == {}


def test_many_points_are_thinned_and_said_to_be(make_report: MakeReport) -> None:
    report = make_report(points=DRAWN_POINTS + 1, comparison="other.npy")
    found = drawn(report)
    assert len(places(found["density"].figure)) == DRAWN_POINTS + 40
    assert "At most 20,000 points of each set are drawn." in found["density"].caption
    assert "20,000 of 20,001 points are drawn." in found["map-0"].caption
    assert "are drawn" not in found["map-1"].caption
    assert "are drawn" not in drawn(make_report(comparison="other.npy"))["density"].caption


def test_only_points_with_a_lid_are_said_to_be_drawn(make_report: MakeReport) -> None:
    report = make_report(points=DRAWN_POINTS + 1, comparison="other.npy")
    lid = report.lid.clone()
    lid[:-1000] = 0
    found = drawn(replace(report, lid=lid))
    assert len(places(found["density"].figure)) == 1000 + 40
    assert "are drawn" not in found["map-0"].caption + found["density"].caption + page(replace(report, lid=lid))


def test_classes_of_the_other_set_are_marked_beside_the_bars(make_report: MakeReport) -> None:
    report = make_report(names=("a", "b"), comparison="other.npy")
    assert report.comparison is not None
    labeled = (ClassLID("b", 9, 8, MeanLID(7.0, 6.0, 8.0)), ClassLID("c", 9, 8, MeanLID(1.0, 0.5, 1.5)))
    other = replace(report.comparison.other, classes=labeled)
    figure = class_figures(replace(report, comparison=replace(report.comparison, other=other)))["classes"]
    (marks,) = (line for line in figure.axes[0].get_lines() if line.get_marker() == "D")
    at = numpy.asarray(marks.get_xdata()), numpy.asarray(marks.get_ydata())
    assert (at[0].tolist(), at[1].tolist()) == ([7.0], [1])
    assert to_hex(marks.get_color()) == COLORS[1]


def test_the_mean_of_all_classes_has_not_the_color_of_the_other_set(make_report: MakeReport) -> None:
    for title, color in ((None, COLORS[1]), ("other.npy", INK)):
        figure = class_figures(make_report(names=("a", "b"), comparison=title))["classes"]
        (mean,) = (line for line in figure.axes[0].get_lines() if numpy.array_equal(line.get_xdata(), [5.5, 5.5]))
        assert to_hex(mean.get_color()) == color
