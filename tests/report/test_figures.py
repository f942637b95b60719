import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ldreg.inspection.report import DimensionReport
from ldreg.report.figures import INK, figures, plain_log, svg

MakeReport = Callable[..., DimensionReport]


def texts(drawing: str) -> set[str]:
    return {"".join(element.itertext()).strip() for element in ElementTree.fromstring(drawing).iter()} - {""}


def test_every_panel_is_drawn(make_report: MakeReport) -> None:
    plain = ["histogram", "map", "density", "spectrum"]
    assert list(figures(make_report())) == plain
    assert set(figures(make_report(names=("a", "b")))) == {*plain, "classes", "map-classes"}


def test_only_what_has_data_is_drawn(collapsed_report: DimensionReport) -> None:
    assert list(figures(collapsed_report)) == ["map-classes"]


def test_svg_takes_the_color_of_the_page(make_report: MakeReport) -> None:
    for name, figure in figures(make_report(names=("a", "b"))).items():
        drawing = svg(figure, name)
        assert "currentColor" in drawing
        assert INK not in drawing
        # Nothing is left in matplotlib's default black, which would vanish on a dark page.
        assert "#000000" not in drawing
        assert 'width="' not in drawing[: drawing.index(">")]


def test_ids_are_unique_over_all_figures_and_resolve(make_report: MakeReport) -> None:
    drawings = [svg(figure, name) for name, figure in figures(make_report(names=("a", "b"))).items()]
    ids = [name for drawing in drawings for name in re.findall(r'\bid="([^"]+)"', drawing)]
    assert len(ids) == len(set(ids))
    used = {name for drawing in drawings for name in re.findall(r'(?:url\(#|href="#)([^)"]+)', drawing)}
    assert used <= set(ids)
    assert used


def test_marks_are_at_the_numbers(make_report: MakeReport) -> None:
    drawn = figures(make_report(names=("a", "b")))
    assert "geometric mean 5.50" in texts(svg(drawn["histogram"], "h"))
    assert "effective rank 9.50" in texts(svg(drawn["spectrum"], "s"))
    bars, columns = (
        [patch for patch in drawn[name].axes[0].patches if isinstance(patch, Rectangle)]
        for name in ("classes", "histogram")
    )
    assert [bar.get_width() for bar in bars] == [4.0, 5.0]
    # The last rectangle of the histogram shades the quartiles.
    assert sum(column.get_height() for column in columns[:-1]) == 60
    assert (columns[-1].get_x(), columns[-1].get_width()) == (4.0, 3.0)


def test_class_names_are_drawn_literally(make_report: MakeReport) -> None:
    names = ("$x^2", r"$\frac{1}{2}$", "<b>&amp;", "a\x00b")
    drawn = figures(make_report(names=names))
    for name in ("classes", "map-classes"):
        assert {"$x^2", r"$\frac{1}{2}$", "<b>&amp;", r"a\x00b"} <= texts(svg(drawn[name], name))


def test_many_classes_leave_the_lowest_in_color(make_report: MakeReport) -> None:
    drawn = figures(make_report(points=200, names=tuple(f"c{i}" for i in range(50))))
    shown = texts(svg(drawn["map-classes"], "map"))
    assert {"c0", "c8", "41 others"} <= shown
    assert "c9" not in shown
    assert len(drawn["classes"].axes[0].patches) == 16


def test_a_class_without_a_regular_point_has_no_bar(make_report: MakeReport) -> None:
    report = make_report(names=("a", "b"))
    empty = make_report(names=("a", "b"), classes=(report.classes[0], type(report.classes[1])("b", 5, 0, report.mean)))
    assert len(figures(empty)["classes"].axes[0].patches) == 1


@pytest.mark.parametrize(
    "values", [[3.0] * 60, [1e-3] + [5.0] * 58 + [1e6], [0.0] * 20 + [4.0] * 20 + [float("inf")] * 20]
)
def test_odd_distributions_are_drawn(make_report: MakeReport, values: list[float]) -> None:
    for name, figure in figures(make_report(lid=torch.tensor(values))).items():
        ElementTree.fromstring(svg(figure, name))


def test_many_points_make_a_picture_of_bounded_size(make_report: MakeReport) -> None:
    drawn = figures(make_report(points=50_000))
    assert max(len(svg(figure, name)) for name, figure in drawn.items()) < 600_000


@pytest.mark.parametrize("suffix", ["png", "pdf"])
def test_figures_are_saved_in_other_formats(make_report: MakeReport, tmp_path: Path, suffix: str) -> None:
    for name, figure in figures(make_report()).items():
        figure.savefig(tmp_path / f"{name}.{suffix}")
        assert (tmp_path / f"{name}.{suffix}").stat().st_size > 1000


@pytest.mark.parametrize("high", [3.0, 50.0, 250.0, 1e3, 1e6, 1e9, 1e20, 1e40])
def test_a_logarithmic_axis_has_some_labels_and_not_too_many(high: float) -> None:
    figure = Figure(figsize=(6, 3))
    axes = figure.add_subplot()
    axes.plot([1.0, high], [0.0, 1.0])
    plain_log(axes, "x")
    low, end = axes.get_xlim()
    shown = [tick for tick in axes.get_xticks() if low <= tick <= end]
    assert 3 <= len(shown) <= 8
