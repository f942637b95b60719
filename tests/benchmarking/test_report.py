from dataclasses import replace
from pathlib import Path

import pytest

from ldreg.benchmarking import report
from ldreg.benchmarking.contest import Size
from ldreg.benchmarking.measure import Measurement
from ldreg.benchmarking.plot import draw, svg
from ldreg.benchmarking.record import Result, Run, from_json, to_json
from ldreg.benchmarking.runner import verdicts
from ldreg.benchmarking.suite import BENCHMARKS

WIDE, LARGE, FLAT = Size(10_000, 2048), Size(20_000, 2048), Size(10_000, 128)
WHERE = {
    "date": "2026-01-01 00:00 UTC", "commit": "abc", "processor": "Abacus", "cores": 2, "threads": 2,
    "memory_gb": 8.0, "load": 0.1, "others": 0.01, "system": "Linux", "python": "3.11", "packages": {"torch": "2.11"},
}  # fmt: skip


def result(contender: str, size: Size, seconds: float, extra: float | None) -> Result:
    return Result(contender, size, Measurement((seconds,), extra), deviation=1e-6)


def make(*results: Result, benchmark: str = "lid", k: int = 64) -> Run:
    run = Run(benchmark, f"ldreg bench {benchmark}", k, 0, 3, WHERE, results)
    return replace(run, verdicts=verdicts(run, BENCHMARKS[benchmark]))


@pytest.fixture
def run() -> Run:
    return make(
        result("ldreg", WIDE, 2.0, 100), result("scikit-learn", WIDE, 3.0, 20), result("faiss", WIDE, 5.0, 100),
        result("scikit-dimension", WIDE, 3.1, 20), result("pseudocode", WIDE, 9.0, 1500),
        result("torch chunks", WIDE, 1.0, 200),
        result("ldreg", LARGE, 10.0, 160), result("scikit-learn", LARGE, 12.0, 20),
        Result("faiss", LARGE, skipped="not installed (pip install ldreg[bench])"),
        result("ldreg", FLAT, 1.0, None), result("scikit-learn", FLAT, 0.9, None),
    )  # fmt: skip


def test_verdicts_by_hand(run: Run) -> None:
    found = {(verdict.goal.size, verdict.goal.quantity): verdict for verdict in run.verdicts}
    speed = found[WIDE, "speed"]
    assert (speed.value, speed.met, speed.rival, speed.missing) == (1.5, True, "scikit-learn", ())
    large = found[LARGE, "speed"]
    assert (large.value, large.met, large.missing) == (1.2, False, ("scikit-dimension", "faiss", "pseudocode"))
    assert (found[WIDE, "extra memory"].value, found[WIDE, "extra memory"].met) == (100, True)
    assert (found[LARGE, "extra memory"].value, found[LARGE, "extra memory"].met) == (160, False)
    assert (found[FLAT, "speed"].value, found[FLAT, "speed"].met) == (0.9, False)
    assert len(found) == 5


def test_verdicts_of_the_regularizer() -> None:
    size = Size(4096, 2048)
    rivals = [result("pseudocode", size, 3.0, 400), result("cdist + topk", size, 0.1, 1)]
    speed, share = make(result("ldreg", size, 2.0, 220), *rivals, benchmark="regularizer").verdicts
    assert (speed.value, speed.met) == (1.5, True)
    assert (share.value, share.met) == (0.55, False)
    no_memory = make(result("ldreg", size, 2.0, None), *rivals, benchmark="regularizer").verdicts[1]
    assert (no_memory.value, no_memory.met) == (None, None)


def test_no_verdict_without_the_measurements() -> None:
    alone = make(result("ldreg", FLAT, 1.0, 10)).verdicts
    assert [(verdict.value, verdict.met) for verdict in alone] == [(None, None)]
    assert make(result("ldreg", FLAT, 1.0, 10), result("faiss", FLAT, 1.0, 10), k=32).verdicts == ()


def test_text_holds_every_number_and_reason(run: Run) -> None:
    text = report.as_text([run], width=120)
    assert max(map(len, report.as_text([run]).splitlines())) <= 80
    lines = {line.split("  ")[0].strip(): line for line in text.splitlines()}
    assert "1.50 ×" in text
    assert "best other: scikit-learn, 1.50 × the time of ldreg" in lines
    assert "not installed (pip install ldreg[bench])" in text
    assert "for reference" in lines["torch chunks"]
    goals = [" ".join(line.split()) for line in text.splitlines() if "≥" in line or "≤" in line]
    assert goals[0] == "10k×2048: speed ≥ 1.3 × best other 1.50× met (scikit-learn)"
    assert goals[3] == "20k×2048: extra memory ≤ 150 MB 160 MB missed"
    assert goals[1].startswith("20k×2048: speed ≥ 1.3 × best other 1.20× missed")
    assert "in doubt" not in text


def test_missing_contenders_are_named_beside_the_verdict(run: Run) -> None:
    assert report.goal_row(run.verdicts[1])[2] == "missed (scikit-learn, without scikit-dimension, faiss, pseudocode)"


def test_a_busy_machine_is_told(run: Run) -> None:
    busy = replace(run, environment={**WHERE, "others": 1.2})
    assert "in doubt" in " ".join(report.as_text([busy]).split())


def test_json_round_trip(run: Run) -> None:
    assert from_json(to_json([run])) == [run]
    assert '"median": 2.0' in to_json([run])


def test_folder_keeps_the_last_run_of_each_benchmark(tmp_path: Path, run: Run) -> None:
    other = make(result("ldreg", Size(1024, 512), 0.1, 5), benchmark="regularizer")
    report.write_folder(tmp_path, [other])
    report.write_folder(tmp_path, [run])
    written = report.write_folder(tmp_path, [replace(run, command="ldreg bench lid --seed 1")])
    assert sorted(path.name for path in written) == ["RESULTS.md", "lid.json", "lid.svg"]
    page = (tmp_path / "RESULTS.md").read_text()
    assert page.index(BENCHMARKS["lid"].title) < page.index(BENCHMARKS["regularizer"].title)
    assert "| scikit-learn | 3.00 | 20 | 1.50 × | 1e-06 |  |" in page
    assert "commit abc" in page
    assert "`ldreg bench lid`" not in page
    assert "`ldreg bench lid --seed 1`" in page


def test_plot_has_logarithmic_axes_and_a_line_per_contender(run: Run) -> None:
    figure = draw(run)
    left, right = figure.axes
    assert {left.get_xscale(), left.get_yscale(), right.get_yscale()} == {"log"}
    names = left.get_legend_handles_labels()[1]
    assert names == ["ldreg", "scikit-learn", "scikit-dimension", "faiss", "pseudocode", "torch chunks", "proportional"]
    assert [label.get_text() for label in left.get_xticklabels()] == ["10k×2048", "20k×2048", "10k×128"]
    assert svg(figure) == svg(draw(run))
    assert "scikit-dimension" in svg(figure)


def test_plot_of_nothing_measured() -> None:
    assert "<svg" in svg(draw(make(Result("ldreg", WIDE, skipped="failed"))))
