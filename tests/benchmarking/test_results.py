import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from ldreg.benchmarking.record import Run, from_json
from ldreg.benchmarking.results import RESULTS, as_markdown, write_folder
from ldreg.benchmarking.sizes import Points
from ldreg.benchmarking.suite import BENCHMARKS

KEPT = Path(__file__).parents[2] / "benchmarks"


def test_folder_keeps_the_last_run_of_each_benchmark_and_device(tmp_path: Path, lid_run: Run, fabricate: Any) -> None:
    size = Points(1024, 512)
    write_folder(tmp_path, [fabricate.run(fabricate.result("ldreg", size, 0.1, 5), benchmark="regularizer")])
    write_folder(tmp_path, [fabricate.run(fabricate.result("ldreg", size, 0.02, 5), device="cuda")])
    write_folder(tmp_path, [lid_run])
    written = write_folder(tmp_path, [replace(lid_run, command="ldreg bench lid --seed 1")])
    assert [path.name for path in written] == ["lid-cpu.json", "lid-cpu.svg", "lid-cpu.png", RESULTS]
    assert written[2].read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / RESULTS).read_text()
    titles = [line for line in page.splitlines() if line.startswith("## ")]
    lid, regularizer = BENCHMARKS["lid"].title, BENCHMARKS["regularizer"].title
    assert titles == [f"## {lid}, on the CPU", f"## {lid}, on CUDA", f"## {regularizer}, on the CPU"]
    assert "| scikit-learn | 3.00 s | 20 | 1.50 × | 1e-06 |" in page
    assert "commit abc" in page
    assert "`ldreg bench lid --seed 1`" in page
    assert page.count("![") == 3
    for name in ("lid-cpu.svg", "lid-cuda.svg", "regularizer-cpu.svg"):
        assert f"]({name})" in page
        assert (tmp_path / name).exists()


def test_parts_and_series_are_on_the_page(step_run: Run, study_run: Run) -> None:
    page = as_markdown([step_run, study_run])
    assert "| ms | views | encoder | LDReg | backward |" in page
    assert "### Time over points, at 128 dimensions" in page
    assert "| 50,000 | 320.0 s | 640.0 s |" in page


def test_the_runs_that_are_kept_are_those_on_the_page() -> None:
    """What lies in benchmarks/ can be read, so a further run writes its sections again."""
    paths = [path for name in BENCHMARKS for path in (KEPT / f"{name}-cpu.json", KEPT / f"{name}-cuda.json")]
    runs = [run for path in paths if path.exists() for run in from_json(path.read_text())]
    assert {(run.benchmark, run.device) for run in runs} >= {("lid", "cpu"), ("regularizer", "cpu")}
    page = (KEPT / RESULTS).read_text()
    assert [line for line in as_markdown(runs).splitlines() if line.startswith("## ")] == [
        line for line in page.splitlines() if line.startswith("## ")
    ]
    for run in runs:
        assert f"commit {run.environment['commit']}" in page


def test_json_is_a_list_of_runs(tmp_path: Path, lid_run: Run) -> None:
    write_folder(tmp_path, [lid_run])
    [content] = json.loads((tmp_path / "lid-cpu.json").read_text())
    assert content["device"] == "cpu"
    assert content["results"][0]["size"] == [10_000, 2048]
