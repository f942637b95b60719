"""What is said about runs: verdicts, tables, plots, JSON and the page of a folder."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from matplotlib.axes import Axes
from tests.bench.conftest import FLAT, LARGE, WIDE

from ldreg.bench import BENCHMARKS
from ldreg.bench.benchmark import Pictures, Points, Size, parse_sizes
from ldreg.bench.plots import draw, picture
from ldreg.bench.results import Result, Run, as_markdown, as_text, from_json, headline, quantity, series, to_json
from ldreg.bench.runner import RESULTS, read_folder, save_run

KEPT = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(
    ("benchmark", "text", "size", "shown"),
    [
        ("lid", "2000x512", (2000, 512), "2k×512"),
        ("lid", "10K×128", (10_000, 128), "10k×128"),
        ("lid", "1281167x2048", (1_281_167, 2048), "1281167×2048"),
        ("views", "512x32", (512, 32, False), "512 × 32 px"),
        ("views", "files:64x224", (64, 224, True), "64 × 224 px from files"),
        ("step", "64x16:small_cnn", (64, 16, "small_cnn"), "64 × 16 px, small_cnn"),
        ("step", "512x32", (512, 32, "resnet18"), "512 × 32 px, resnet18"),
    ],
)
def test_sizes_are_read_and_shown(benchmark: str, text: str, size: Size, shown: str) -> None:
    found = parse_sizes(f"{text}, {text}", BENCHMARKS[benchmark].size)
    assert found == (size, size)
    assert str(found[0]) == shown


@pytest.mark.parametrize(
    ("benchmark", "text"), [("lid", "10by3"), ("lid", "0x3"), ("lid", ""), ("views", "4x0"), ("step", "4x8:")]
)
def test_other_sizes_are_refused(benchmark: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"sizes: expected .*, got '"):
        parse_sizes(text, BENCHMARKS[benchmark].size)


def test_pictures_have_the_size_of_photographs_if_views_are_large() -> None:
    assert Pictures(1, 32).shape == (32, 32)
    assert Pictures(1, 224).shape == (350, 400)
    assert Pictures(2, 224).input_bytes == 2 * 3 * 350 * 400


@pytest.mark.parametrize("name", BENCHMARKS)
def test_goals_are_of_sizes_and_contenders_that_are_run(name: str) -> None:
    benchmark = BENCHMARKS[name]
    for device in benchmark.sizes:
        sizes = benchmark.full_sizes(device)
        assert len({str(size) for size in sizes}) == len(sizes)
        assert {goal.size for goal in benchmark.goals if goal.device == device} <= set(sizes)
    assert {goal.of for goal in benchmark.goals} <= set(benchmark.contenders)
    assert not [key for key in benchmark.contenders if "," in key]  # contenders are named in a list


def test_the_study_goes_from_1k_to_50k_points_and_over_dimensions() -> None:
    sizes = BENCHMARKS["lid"].full_sizes("cpu")
    assert {1000, 50_000} <= {size.points for size in sizes if size.dimensions == 128}
    assert {2, 8192} <= {size.dimensions for size in sizes if size.points == 5000}
    assert [size.work for size in sizes] == sorted(size.work for size in sizes)


def test_verdicts_by_hand(lid_run: Run) -> None:
    found = {(verdict.goal.size, verdict.goal.quantity): verdict for verdict in lid_run.verdicts}
    speed, large = found[WIDE, "speed"], found[LARGE, "speed"]
    assert (speed.value, speed.met, speed.rival, speed.missing) == (1.5, True, "scikit-learn", ())
    assert (large.value, large.met, large.missing) == (1.2, False, ("scikit-dimension", "faiss", "pseudocode"))
    assert (found[WIDE, "extra memory"].value, found[WIDE, "extra memory"].met) == (100, True)
    assert (found[LARGE, "extra memory"].value, found[LARGE, "extra memory"].met) == (160, False)
    assert (found[FLAT, "speed"].value, found[FLAT, "speed"].met) == (0.9, False)
    assert len(found) == 5


def test_verdicts_of_the_regularizer(fabricate: Any) -> None:
    size = Points(4096, 2048)
    rivals = [fabricate.result("pseudocode", size, 3.0, 400), fabricate.result("cdist + topk", size, 0.1, 1)]
    run = fabricate.run(fabricate.result("ldreg", size, 2.0, 220), *rivals, benchmark="regularizer")
    assert [(verdict.value, verdict.met) for verdict in run.verdicts] == [(1.5, True), (0.55, False)]
    unknown = fabricate.run(fabricate.result("ldreg", size, 2.0, None), *rivals, benchmark="regularizer").verdicts[1]
    assert (unknown.value, unknown.met) == (None, None)


def test_verdicts_of_several_of_our_own_on_a_gpu(fabricate: Any) -> None:
    size = Points(1024, 512)
    results = (
        fabricate.result("ldreg", size, 0.25e-3, 1, host=0.31e-3),
        fabricate.result("ldreg (compiled)", size, 0.2e-3, 1, host=0.1e-3),
        fabricate.result("ldreg (captured)", size, 0.32e-3, 1, host=0.1e-3),
        fabricate.result("pseudocode", size, 1.25e-3, 26, host=1e-3),
        fabricate.result("pseudocode (captured)", size, 1.2e-3, 26, host=1e-4),
    )
    run = fabricate.run(*results, benchmark="regularizer", device="cuda")
    met: dict[str, list[str]] = {"ldreg": [], "ldreg (compiled)": [], "ldreg (captured)": []}
    for verdict in run.verdicts:
        met[verdict.goal.of] += [verdict.goal.quantity] if verdict.met else []
    assert met == {
        "ldreg": ["speed", "time", "deviation"],
        "ldreg (compiled)": ["time", "host time"],
        "ldreg (captured)": ["host time"],
    }


def test_an_estimate_is_no_measurement_to_beat(fabricate: Any) -> None:
    size = Points(50_000, 2048)
    rival = Result("pseudocode", size, skipped="would take some 300 s", estimate=300.0)
    run = fabricate.run(fabricate.result("ldreg", size, 1.0), rival, device="cuda")
    speed, deviation = run.verdicts
    assert (speed.value, speed.met, speed.missing) == (None, None, ("pseudocode",))
    assert (deviation.value, deviation.met) == (1e-6, True)
    assert run.ratio(rival) == 300
    assert "| pseudocode | ≈ 300.0 s | ≈ 300.00 × | – |" in as_markdown([run])


def test_numbers_of_views_and_steps(views_run: Run, step_run: Run) -> None:
    [verdict] = views_run.verdicts
    assert verdict.value == pytest.approx(4000)  # two views of 128 images in 64 ms
    assert verdict.met is False
    own = step_run.results[0]
    assert quantity(own, "img/s") == pytest.approx(512 / 0.0102)
    assert quantity(own, "LDReg") == pytest.approx(0.02)
    assert quantity(own, "views") == pytest.approx(0.0008 / 0.0102)


def test_no_verdict_without_the_measurements(fabricate: Any) -> None:
    alone = fabricate.run(fabricate.result("ldreg", FLAT, 1.0, 10)).verdicts
    assert [(verdict.value, verdict.met) for verdict in alone] == [(None, None)]
    pair = fabricate.result("ldreg", FLAT, 1.0, 10), fabricate.result("faiss", FLAT, 1.0, 10)
    assert fabricate.run(*pair, k=32).verdicts == ()
    assert fabricate.run(*pair, device="cuda").verdicts == ()


def test_series_are_the_longest_along_each_axis(fabricate: Any) -> None:
    def run_of(*sizes: Any, benchmark: str = "lid") -> Run:
        results = [fabricate.result("ldreg", size, 1.0) for size in sizes]
        run: Run = fabricate.run(*results, benchmark=benchmark)
        return run

    points = [Points(n, 128) for n in (50_000, 1000, 5000)]
    run = run_of(*points, *(Points(5000, d) for d in (2, 8192, 128)), Points(7, 7))
    over_points, over_dimensions = series(run)
    assert over_points.sizes == (Points(1000, 128), Points(5000, 128), Points(50_000, 128))
    assert over_dimensions.sizes == (Points(5000, 2), Points(5000, 128), Points(5000, 8192))
    assert headline(run) == [Points(7, 7)]
    assert series(run_of(*points[:2])) == []
    assert series(run_of(Pictures(4, 32), Pictures(8, 32), Pictures(16, 32), benchmark="views")) == []
    own = [Points(n, 50) for n in (100, 200, 300)]  # a series, but not of the study
    assert headline(run_of(*own)) == own


def test_page_holds_every_number_and_reason(lid_run: Run, study_run: Run, views_run: Run, step_run: Run) -> None:
    page = as_markdown([lid_run, study_run, views_run, step_run])
    for line in (
        "| scikit-learn | 3.00 s | 20 MB | 1.50 × | 1e-06 |",
        "best other: scikit-learn, 1.50 × the time of ldreg",
        "faiss: not installed (pip install ldreg[bench])",
        "for reference: cdist + topk",
        "- met: speed at 10k×2048 ≥ 1.3 × best other; reached 1.50 (scikit-learn)",
        "- missed: extra memory at 20k×2048 ≤ 150 MB; reached 160 MB",
        "|  | time | time vs ldreg | deviation |",  # columns without a value are left out
        "### Time over points, at 128 dimensions",
        "| 50,000 | 320.0 s | 640.0 s |",
        "| lightly | 1,000 | 2,000 | 512.00 × |",
        "- missed: views/s at 128 × 224 px from files ≥ 4,900; reached 4,000",
        "| ldreg | 50,196 | 10.2 ms | 2.0% | 5000 MB | 1.00 × |",
        "| ms | views | encoder | LDReg | backward |",
        "| ldreg | 0.80 | 3.00 | 0.20 | 6.00 |",
        "`ldreg bench lid`",
    ):
        assert line in page.replace("| |", "|  |").splitlines(), line
    assert "in doubt" not in page
    assert "### 1k×128" not in page  # only in the series
    busy = replace(lid_run, environment={**lid_run.environment, "others": 1.2})
    assert "in doubt" in as_markdown([busy])


@pytest.mark.parametrize("name", ["lid_run", "study_run", "views_run", "step_run"])
def test_text_has_the_numbers_of_the_page_and_json_returns(name: str, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(name)
    text = as_text([run])
    assert max(map(len, text.splitlines())) <= 80
    for cell in (part.strip() for line in as_markdown([run]).splitlines() if "× |" in line for part in line.split("|")):
        assert cell in text
    assert from_json(to_json([run])) == [run]
    assert '"median"' in to_json([run])


def test_old_runs_may_have_contenders_that_are_no_more(fabricate: Any) -> None:
    size = Points(500, 3)
    run = fabricate.run(fabricate.result("ldreg", size, 2.0), fabricate.result("abacus", size, 1.0))
    page = as_markdown([run])
    assert "| abacus | 1.00 s | 0.50 × | 1e-06 |" in page
    assert "for reference: abacus" in page


def test_plot_has_logarithmic_axes_and_a_line_per_contender(lid_run: Run) -> None:
    figure = draw(lid_run)
    left, right = figure.axes
    assert {left.get_xscale(), left.get_yscale(), right.get_yscale()} == {"log"}
    names = left.get_legend_handles_labels()[1]
    assert names == ["ldreg", "scikit-learn", "scikit-dimension", "faiss", "pseudocode", "cdist + topk", "proportional"]
    assert [label.get_text() for label in left.get_xticklabels()] == ["10k×128", "10k×2048", "20k×2048"]


def test_plots_do_not_follow_a_matplotlibrc(lid_run: Run, odd_style: dict[Any, Any]) -> None:
    plain = draw(lid_run)
    with matplotlib.rc_context(odd_style):
        drawn = draw(lid_run)
        assert picture(drawn, "svg") == picture(plain, "svg")
        inside = picture(drawn, "png")
    assert inside == picture(plain, "png")


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


def test_rates_are_bars_and_goals_a_line(views_run: Run) -> None:
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
    assert b"<svg" in picture(figure, "svg")
    assert picture(figure, "png").startswith(b"\x89PNG")


def test_sizes_of_the_same_work_share_a_tick(fabricate: Any) -> None:
    sizes = Points(100, 40), Points(200, 10), Points(1000, 40)
    left = draw(fabricate.run(*(fabricate.result("ldreg", size, 1.0, 1.0) for size in sizes))).axes[0]
    assert [label.get_text() for label in left.get_xticklabels()] == ["100×40\n200×10", "1k×40"]


def test_folder_has_the_last_run_of_each_benchmark_and_device(tmp_path: Path, lid_run: Run, fabricate: Any) -> None:
    size = Points(1024, 512)
    save_run(tmp_path, [fabricate.run(fabricate.result("ldreg", size, 0.1, 5), benchmark="regularizer")])
    save_run(tmp_path, [fabricate.run(fabricate.result("ldreg", size, 0.02, 5), device="cuda")])
    save_run(tmp_path, [lid_run])
    written = save_run(tmp_path, [replace(lid_run, command="ldreg bench lid --seed 1", complete=False)])
    assert [path.name for path in written] == ["lid-cpu.json", "lid-cpu.svg", "lid-cpu.png", RESULTS]
    assert "interrupted" in written[1].read_text()
    page = (tmp_path / RESULTS).read_text()
    lid, regularizer = BENCHMARKS["lid"].title, BENCHMARKS["regularizer"].title
    assert [line for line in page.splitlines() if line.startswith("## ")] == [
        f"## {lid}, on the CPU (interrupted: incomplete)",
        f"## {lid}, on CUDA",
        f"## {regularizer}, on the CPU",
    ]
    assert "`ldreg bench lid --seed 1`" in page
    for name in ("lid-cpu.svg", "lid-cuda.svg", "regularizer-cpu.svg"):
        assert f"]({name})" in page
        assert (tmp_path / name).exists()
    [content] = json.loads((tmp_path / "lid-cpu.json").read_text())
    assert (content["device"], content["results"][0]["size"]) == ("cpu", [10_000, 2048])


def test_the_page_in_the_repository_is_of_its_runs() -> None:
    runs, unreadable = read_folder(KEPT)
    assert not unreadable
    assert len(runs) == 8
    assert (KEPT / RESULTS).read_text() == as_markdown(runs)


def without(key: str, text: str) -> str:
    [content] = json.loads(text)
    del content[key]
    return json.dumps([content])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[{", "Expecting property name"),
        ("3", "TypeError"),
        ('{"lid": 1}', "TypeError"),
        ("[]", "expected one run of regularizer on cpu, got something else"),
        ("regularizer on cuda", "expected one run of regularizer on cpu, got something else"),
        ("another benchmark", "benchmark: expected one of lid, regularizer, views, step, got 'abacus'"),
        ("no verdicts", "KeyError: 'verdicts'"),
        ("one field more", "TypeError"),
        ("no processor", "KeyError: 'processor'"),
        ("[" * 100_000, "RecursionError"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_left(
    tmp_path: Path, lid_run: Run, fabricate: Any, content: str, reason: str
) -> None:
    good = to_json([fabricate.run(fabricate.result("ldreg", Points(9, 3), 1.0), benchmark="regularizer")])
    broken = {
        "regularizer on cuda": good.replace('"device": "cpu"', '"device": "cuda"'),
        "another benchmark": good.replace('"regularizer"', '"abacus"'),
        "no verdicts": without("verdicts", good),
        "one field more": good.replace('"k": 64', '"k": 64, "beads": 10'),
        "no processor": good.replace('"processor"', '"beads"'),
    }.get(content, content)
    path = tmp_path / "regularizer-cpu.json"
    path.write_text(broken)
    (tmp_path / "lid-cpu.json").write_text(without("complete", to_json([lid_run])))  # as of older versions
    runs, unreadable = read_folder(tmp_path)
    assert runs == [lid_run]
    assert list(unreadable) == [path]
    assert reason in unreadable[path]
