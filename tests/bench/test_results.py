"""What is said about runs: verdicts, tables, plots, JSON and the page of a folder."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from tests.report.snapshot import check_snapshot, described

from ldreg.bench import BENCHMARKS
from ldreg.bench.measure import Batches, Device, Measurement, Pictures, Points, Size, parse_sizes
from ldreg.bench.plots import draw
from ldreg.bench.results import (
    Result,
    Run,
    as_markdown,
    as_text,
    from_json,
    headline,
    series,
    to_json,
)
from ldreg.bench.runner import RESULTS, read_folder, save_run
from ldreg.report.style import picture

KEPT = Path(__file__).parents[2] / "benchmarks"
WIDE, LARGE, FLAT, BATCH = Points(10_000, 2048), Points(20_000, 2048), Points(10_000, 128), Points(1024, 512)
SMALL, FILES, STEP = Pictures(512, 32), Pictures(128, 224, files=True), Batches(512, 32, "resnet18")
WHERE = {
    "date": "2026-01-01 00:00 UTC", "commit": "abc", "processor": "Abacus", "cores": 2, "threads": 2, "gpu": None,
    "memory_gb": 8.0, "load": 0.1, "others": 0.01, "system": "Linux", "python": "3.11", "packages": {"torch": "2.11"},
}  # fmt: skip


def result(contender: str, size: Any, seconds: float, extra: float | None = None, **more: Any) -> Result:
    return Result(contender, size, Measurement((seconds,), extra, **more), deviation=1e-6)


def fabricate(*results: Result, benchmark: str = "lid", k: int = 64, device: Device = "cpu") -> Run:
    where = {**WHERE, "gpu": "Colossus" if device == "cuda" else None}
    return Run(benchmark, device, f"ldreg bench {benchmark}", k, 0, 3, where, results)


LID_RUN = fabricate(
    result("ldreg", WIDE, 2.0, 100), result("scikit-learn", WIDE, 3.0, 20), result("faiss", WIDE, 5.0, 100),
    result("scikit-dimension", WIDE, 3.1, 20), result("pseudocode", WIDE, 9.0, 1500),
    result("cdist + topk", WIDE, 1.0, 200),
    result("ldreg", LARGE, 10.0, 160), result("scikit-learn", LARGE, 12.0, 20),
    Result("faiss", LARGE, skipped="not installed (pip install ldreg[bench])"),
    result("ldreg", FLAT, 1.0, None), result("scikit-learn", FLAT, 0.9, None),
    result("ldreg", Points(20_000, 512), 2.0, 100),
)  # fmt: skip
STUDY_RUN = fabricate(*(
    result(key, size, rate * size.work, 10.0)
    for size in (*(Points(1000 * n, 128) for n in (1, 5, 50)), *(Points(5000, d) for d in (2, 8192)))
    for key, rate in {"ldreg": 1e-9, "faiss": 2e-9}.items()
))  # fmt: skip
VIEWS_RUN = fabricate(
    result("ldreg", SMALL, 0.001), result("lightly", SMALL, 0.512),
    result("ldreg", FILES, 0.064), result("lightly", FILES, 0.128),
    benchmark="views", device="cuda",
)  # fmt: skip
PARTS = {"views": 0.0008, "encoder": 0.003, "LDReg": 0.0002, "backward": 0.006}
STEP_RUN = fabricate(
    result("ldreg", STEP, 0.0102, 5000, without=0.01, parts=PARTS),
    result("authors' LDReg", STEP, 0.011, 5000, without=0.01, parts=PARTS),
    result("lightly", STEP, 0.1, 5000),
    benchmark="step", device="cuda",
)  # fmt: skip


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


@pytest.mark.parametrize("name", BENCHMARKS)
def test_goals_are_of_sizes_and_contenders_that_are_run(name: str) -> None:
    benchmark = BENCHMARKS[name]
    for device in benchmark.sizes:
        sizes = benchmark.full_sizes(device)
        assert len({str(size) for size in sizes}) == len(sizes)
        assert [size.work for size in sizes] == sorted(size.work for size in sizes)
        assert {goal.size for goal in benchmark.goals if goal.device == device} <= set(sizes)
    assert {goal.of for goal in benchmark.goals} <= set(benchmark.contenders)
    assert not [key for key in benchmark.contenders if "," in key]  # contenders are named in a list


@pytest.mark.parametrize(("extra", "share", "met"), [(220, 0.55, False), (100, 0.25, True), (None, None, None)])
def test_verdicts_of_the_regularizer(extra: float | None, share: float | None, met: bool | None) -> None:
    size = Points(4096, 2048)
    rivals = [result("pseudocode", size, 3.0, 400), result("cdist + topk", size, 0.1, 1)]
    run = fabricate(result("ldreg", size, 2.0, extra), *rivals, benchmark="regularizer")
    assert [(verdict.value, verdict.met) for verdict in run.verdicts] == [(1.5, True), (share, met)]


def test_an_estimate_is_no_measurement_to_beat() -> None:
    size = Points(50_000, 2048)
    rival = Result("pseudocode", size, skipped="would take some 300 s", estimate=300.0)
    run = fabricate(result("ldreg", size, 1.0), rival, device="cuda")
    speed, deviation = run.verdicts
    assert (speed.value, speed.met, speed.missing) == (None, None, ("pseudocode",))
    assert (deviation.value, deviation.met) == (1e-6, True)
    assert run.ratio(rival) == 300
    assert "| pseudocode | ≈ 300.0 s | ≈ 300.00 × | – |" in as_markdown([run])


def test_no_verdict_without_the_measurements() -> None:
    own, rival = result("ldreg", FLAT, 1.0, 10), result("faiss", FLAT, 1.0, 10)
    assert [(verdict.value, verdict.met) for verdict in fabricate(own).verdicts] == [(None, None)]
    assert [(verdict.value, verdict.met) for verdict in fabricate(rival).verdicts] == [(None, None)]
    assert fabricate(own, rival, k=32).verdicts == fabricate(own, rival, device="cuda").verdicts == []


def test_series_are_the_longest_along_each_axis() -> None:
    def run_of(*sizes: Any, benchmark: str = "lid") -> Run:
        return fabricate(*(result("ldreg", size, 1.0) for size in sizes), benchmark=benchmark)

    points = [Points(n, 128) for n in (50_000, 1000, 5000)]
    run = run_of(*points, *(Points(5000, d) for d in (2, 8192, 128)), Points(7, 7))
    assert series(run) == {
        "points": [Points(1000, 128), Points(5000, 128), Points(50_000, 128)],
        "dimensions": [Points(5000, 2), Points(5000, 128), Points(5000, 8192)],
    }
    assert headline(run) == [Points(7, 7)]
    assert series(run_of(*points[:2])) == {}
    assert series(run_of(Pictures(4, 32), Pictures(8, 32), Pictures(16, 32), benchmark="views")) == {}
    own = [Points(n, 50) for n in (100, 200, 300)]  # a series, but not of the study
    assert headline(run_of(*own)) == own


GRAPHS_RUN = fabricate(
    result("ldreg", BATCH, 0.25e-3, 1, host=0.31e-3),
    result("ldreg (compiled)", BATCH, 0.2e-3, 1, host=0.1e-3),
    result("ldreg (captured)", BATCH, 0.32e-3, 1, host=0.1e-3),
    result("pseudocode", BATCH, 1.25e-3, 26, host=1e-3),
    result("pseudocode (captured)", BATCH, 1.2e-3, 26, host=1e-4),
    benchmark="regularizer", device="cuda",
)  # fmt: skip
BUSY_RUN = replace(LID_RUN, results=LID_RUN.results[:2], environment={**LID_RUN.environment, "others": 1.2})
RUNS = {
    "lid": LID_RUN,
    "study": STUDY_RUN,
    "views": VIEWS_RUN,
    "step": STEP_RUN,
    "graphs": GRAPHS_RUN,
    "busy": BUSY_RUN,
}


@pytest.mark.parametrize("name", RUNS)
def test_json_page_text_and_plot_of_a_run(name: str) -> None:
    run = RUNS[name]
    assert from_json(to_json([run])) == [run]
    assert '"median"' in to_json([run])
    page, text = as_markdown([run]), as_text([run])
    assert max(map(len, text.splitlines())) <= 80
    for cell in (part.strip() for line in page.splitlines() if "× |" in line for part in line.split("|")):
        assert cell in text
    check_snapshot(f"bench_{name}.txt", "\n".join([page, *map(str.rstrip, described(draw(run)))]) + "\n")


def test_old_runs_may_have_contenders_that_are_no_more() -> None:
    size = Points(500, 3)
    run = fabricate(result("ldreg", size, 2.0), result("abacus", size, 1.0))
    page = as_markdown([run])
    assert "| abacus | 1.00 s | 0.50 × | 1e-06 |" in page
    assert "for reference: abacus" in page


def test_plots_do_not_follow_a_matplotlibrc(odd_style: dict[Any, Any]) -> None:
    expected = picture(draw(LID_RUN), "png")
    with matplotlib.rc_context(odd_style):
        assert picture(draw(LID_RUN), "png") == expected


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_plot_of_nothing_measured(benchmark: str) -> None:
    size = BENCHMARKS[benchmark].quick_sizes[0]
    figure = draw(fabricate(Result("ldreg", size, skipped="failed"), benchmark=benchmark))
    assert b"<svg" in picture(figure, "svg")
    assert picture(figure, "png").startswith(b"\x89PNG")


def test_folder_has_the_last_run_of_each_benchmark_and_device(tmp_path: Path) -> None:
    save_run(tmp_path, fabricate(result("ldreg", BATCH, 0.1, 5), benchmark="regularizer"))
    save_run(tmp_path, fabricate(result("ldreg", BATCH, 0.02, 5), device="cuda"))
    save_run(tmp_path, LID_RUN)
    written = save_run(tmp_path, replace(LID_RUN, command="ldreg bench lid --seed 1", complete=False))
    assert [path.name for path in written] == ["lid-cpu.json", "lid-cpu.svg", "lid-cpu.png", RESULTS]
    assert "interrupted" in written[1].read_text()
    page = (tmp_path / RESULTS).read_text()
    titles = [BENCHMARKS[name].title for name in ("lid", "lid", "regularizer")]
    places = ["on the CPU (interrupted: incomplete)", "on CUDA", "on the CPU"]
    assert [line for line in page.splitlines() if line.startswith("## ")] == [
        f"## {title}, {place}" for title, place in zip(titles, places, strict=True)
    ]
    assert "`ldreg bench lid --seed 1`" in page
    for name in ("lid-cpu.svg", "lid-cuda.svg", "regularizer-cpu.svg"):
        assert f"]({name})" in page
        assert (tmp_path / name).exists()


def test_the_page_in_the_repository_is_of_its_runs() -> None:
    runs, unreadable = read_folder(KEPT)
    assert not unreadable
    assert len(runs) == 2 * len(BENCHMARKS)
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
        ("no results", "KeyError: 'results'"),
        ("one field more", "TypeError"),
        ("no processor", "KeyError: 'processor'"),
        ("[" * 100_000, "RecursionError"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_left(tmp_path: Path, content: str, reason: str) -> None:
    good = to_json([fabricate(result("ldreg", Points(9, 3), 1.0), benchmark="regularizer")])
    broken = {
        "regularizer on cuda": good.replace('"device": "cpu"', '"device": "cuda"'),
        "another benchmark": good.replace('"regularizer"', '"abacus"'),
        "no results": without("results", good),
        "one field more": good.replace('"k": 64', '"k": 64, "beads": 10'),
        "no processor": good.replace('"processor"', '"beads"'),
    }.get(content, content)
    path = tmp_path / "regularizer-cpu.json"
    path.write_text(broken)
    (tmp_path / "lid-cpu.json").write_text(without("complete", to_json([LID_RUN])))  # as of older versions
    runs, unreadable = read_folder(tmp_path)
    assert runs == [LID_RUN]
    assert list(unreadable) == [path]
    assert reason in unreadable[path]
