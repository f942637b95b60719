import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ldreg.bench.benchmark import Points
from ldreg.bench.record import Run, from_json, to_json
from ldreg.bench.results import RESULTS, as_markdown, read_folder, write_folder
from ldreg.bench.suite import BENCHMARKS

KEPT = Path(__file__).parents[2] / "benchmarks"


def test_folder_keeps_the_last_run_of_each_benchmark_and_device(tmp_path: Path, lid_run: Run, fabricate: Any) -> None:
    size = Points(1024, 512)
    write_folder(tmp_path, fabricate.run(fabricate.result("ldreg", size, 0.1, 5), benchmark="regularizer"))
    write_folder(tmp_path, fabricate.run(fabricate.result("ldreg", size, 0.02, 5), device="cuda"))
    write_folder(tmp_path, lid_run)
    written = write_folder(tmp_path, replace(lid_run, command="ldreg bench lid --seed 1"))
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
    write_folder(tmp_path, lid_run)
    [content] = json.loads((tmp_path / "lid-cpu.json").read_text())
    assert content["device"] == "cpu"
    assert content["results"][0]["size"] == [10_000, 2048]


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
def test_a_record_that_cannot_be_read_is_named_and_left(
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
    (tmp_path / "lid-cpu.json").write_text(to_json([lid_run]))
    found = read_folder(tmp_path)
    assert [run.benchmark for run in found.runs] == ["lid"]
    assert list(found.unreadable) == [path]
    assert reason in found.unreadable[path]
    assert path.read_text() == broken


def test_records_of_before_are_complete(lid_run: Run) -> None:
    assert from_json(without("complete", to_json([lid_run]))) == [lid_run]


def test_an_incomplete_run_says_so(tmp_path: Path, lid_run: Run) -> None:
    write_folder(tmp_path, replace(lid_run, complete=False))
    assert "on the CPU (interrupted: incomplete)" in (tmp_path / RESULTS).read_text()
    assert "interrupted" in (tmp_path / "lid-cpu.svg").read_text()
    assert not read_folder(tmp_path).runs[0].complete


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, lid_run: Run) -> None:
    (tmp_path / "lid-cpu.svg").mkdir()
    with pytest.raises(IsADirectoryError, match=r"cannot write '.*lid-cpu\.svg': Is a directory"):
        write_folder(tmp_path, lid_run)
