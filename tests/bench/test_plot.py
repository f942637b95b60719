from typing import Any

import matplotlib
import pytest
from matplotlib.axes import Axes

from ldreg.bench.benchmark import Points
from ldreg.bench.plots import draw, png, svg
from ldreg.bench.record import Result, Run
from ldreg.bench.suite import BENCHMARKS


def test_plot_has_logarithmic_axes_and_a_line_per_contender(lid_run: Run) -> None:
    figure = draw(lid_run)
    left, right = figure.axes
    assert {left.get_xscale(), left.get_yscale(), right.get_yscale()} == {"log"}
    names = left.get_legend_handles_labels()[1]
    assert names == ["ldreg", "scikit-learn", "scikit-dimension", "faiss", "pseudocode", "cdist + topk", "proportional"]
    assert [label.get_text() for label in left.get_xticklabels()] == ["10k×128", "10k×2048", "20k×2048"]
    assert svg(figure) == svg(draw(lid_run))
    assert "scikit-dimension" in svg(figure)


def test_plots_do_not_follow_a_matplotlibrc(lid_run: Run, odd_style: dict[Any, Any]) -> None:
    plain = draw(lid_run)
    with matplotlib.rc_context(odd_style):
        drawn = draw(lid_run)
        assert svg(drawn) == svg(plain)
        assert png(plain) == png(drawn)
        inside = png(plain)
    assert inside == png(plain)


def dashed(axes: Axes) -> tuple[Any, Any]:
    [line] = [line for line in axes.lines if line.get_linestyle() == "--"]
    return line.get_xdata(), line.get_ydata()


def test_a_study_has_a_panel_for_each_axis_with_the_slope_of_the_work(study_run: Run) -> None:
    over_points, over_dimensions = draw(study_run).axes[2:]
    x, y = dashed(over_points)
    assert list(x) == [1000, 50_000]
    assert y[1] / y[0] == pytest.approx(50**2)
    x, y = dashed(over_dimensions)
    assert list(x) == [2, 8192]
    assert y[1] / y[0] == pytest.approx(4096)
    assert [label.get_text() for label in over_points.get_xticklabels()] == ["1,000", "5,000", "50,000"]


def test_rates_are_bars_and_what_is_asked_for_a_line(views_run: Run) -> None:
    memory, files = draw(views_run).axes
    bars: list[Any] = list(memory.patches)
    assert [bar.get_width() for bar in bars] == pytest.approx([1_024_000, 2000])
    assert [label.get_text() for label in memory.get_yticklabels()] == ["ldreg", "lightly"]
    assert list(dashed(files)[0]) == [4900, 4900]
    assert not memory.lines


def test_parts_are_stacked_and_a_slow_rival_does_not_squeeze_them(step_run: Run) -> None:
    [axes] = draw(step_run).axes
    bars: list[Any] = list(axes.patches)
    ours = [bar for bar in bars if bar.get_y() + bar.get_height() / 2 == pytest.approx(0)]
    assert sum(bar.get_width() for bar in ours) == pytest.approx(10.2)
    assert axes.get_xlim() == pytest.approx((0, 1.4 * 11))
    assert "5,120 img/s, 100 ms → " in [text.get_text() for text in axes.texts]


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_plot_of_nothing_measured(benchmark: str, fabricate: Any) -> None:
    size = BENCHMARKS[benchmark].quick_sizes[0]
    figure = draw(fabricate.run(Result("ldreg", size, skipped="failed"), benchmark=benchmark))
    assert "<svg" in svg(figure)
    assert png(figure).startswith(b"\x89PNG")


def test_sizes_of_the_same_work_share_a_tick(fabricate: Any) -> None:
    sizes = Points(100, 40), Points(200, 10), Points(1000, 40)
    left = draw(fabricate.run(*(fabricate.result("ldreg", size, 1.0, 1.0) for size in sizes))).axes[0]
    assert [label.get_text() for label in left.get_xticklabels()] == ["100×40\n200×10", "1k×40"]
