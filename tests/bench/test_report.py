from dataclasses import replace
from typing import Any

import pytest

from ldreg.bench import tables
from ldreg.bench.benchmark import Points
from ldreg.bench.record import Result, Run, from_json, to_json


def lines_of(run: Run, width: int = 100) -> list[str]:
    return [" ".join(line.split()) for line in tables.as_text([run], width=width).splitlines()]


def test_text_holds_every_number_and_reason(lid_run: Run) -> None:
    assert max(map(len, tables.as_text([lid_run]).splitlines())) <= 80
    lines = lines_of(lid_run)
    assert "LID of a set among itself, on the CPU" in lines
    assert "scikit-learn 3.00 s 20 1.50 × 1e-06" in lines
    assert "best other: scikit-learn, 1.50 × the time of ldreg" in lines
    assert "faiss: not installed (pip install ldreg[bench])" in lines
    assert "for reference: cdist + topk" in lines
    goals = [line for line in lines if "≥" in line or "≤" in line]
    assert goals[0] == "10k×2048: speed ≥ 1.3 × best other 1.50× met (scikit-learn)"
    assert goals[3] == "20k×2048: extra memory ≤ 150 MB 160 MB missed"
    assert goals[1].startswith("20k×2048: speed ≥ 1.3 × best other 1.20× missed")
    assert "in doubt" not in " ".join(lines)
    assert "Off by: LID." in " ".join(lines)


def test_columns_without_a_value_are_left_out(lid_run: Run) -> None:
    assert tables.rows(lid_run, Points(10_000, 128))[0] == ("", "time", "time vs ldreg", "off by")


def test_estimates_are_marked(fabricate: Any) -> None:
    size = Points(1_281_167, 2048)
    rival = Result("pseudocode", size, skipped="would take some 258 s, by its time at 50k×2048", estimate=258.0)
    run = fabricate.run(fabricate.result("ldreg", size, 30.0, 900), rival, device="cuda")
    lines = lines_of(run)
    assert "pseudocode ≈ 258.0 s – ≈ 8.60 × –" in lines
    assert "pseudocode: would take some 258 s, by its time at 50k×2048" in lines
    assert "1281167×2048: time ≤ 40.00 s 30.00 s met" in lines
    assert "Colossus" in " ".join(lines)


def test_a_study_is_one_table_for_each_axis(study_run: Run) -> None:
    lines = lines_of(study_run)
    place = lines.index("time over points, at 128 dimensions")
    assert lines[place + 3 : place + 6] == ["1,000 128 ms 256 ms", "5,000 3.20 s 6.40 s", "50,000 320.0 s 640.0 s"]
    assert "8,192 204.8 s 409.6 s" in lines
    assert not [line for line in lines if line == "1,000 × 128"]


def test_views_are_told_in_images_and_views(views_run: Run) -> None:
    lines = lines_of(views_run)
    assert "lightly 1,000 2,000 512.00 ×" in lines
    assert "128 × 224 px from files: views/s ≥ 4,900 4,000/s missed" in lines
    assert not [line for line in lines if line.startswith("k = ")]


def test_a_step_is_told_in_parts(step_run: Run) -> None:
    assert max(map(len, tables.as_text([step_run]).splitlines())) <= 80
    lines = lines_of(step_run)
    assert "ldreg 50,196 10.2 ms 2.0 % 5000 1.00 ×" in lines
    assert "authors' LDReg 46,545 11.0 ms 10.0 % 5000 1.08 ×" in lines
    assert "ms views encoder LDReg backward" in lines
    assert "ldreg 0.80 3.00 0.20 6.00" in lines
    assert not [line for line in lines if line.startswith("lightly –")]


def test_missing_contenders_are_named_beside_the_verdict(lid_run: Run) -> None:
    row = tables.goal_row(lid_run.verdicts[1])
    assert row[2] == "missed (scikit-learn, without scikit-dimension, faiss, pseudocode)"


def test_kept_runs_may_have_contenders_that_are_no_more(fabricate: Any) -> None:
    size = Points(500, 3)
    run = fabricate.run(fabricate.result("ldreg", size, 2.0), fabricate.result("abacus", size, 1.0))
    lines = lines_of(run)
    assert "abacus 1.00 s 0.50 × 1e-06" in lines
    assert "for reference: abacus" in lines


def test_a_busy_machine_is_told(lid_run: Run) -> None:
    busy = replace(lid_run, environment={**lid_run.environment, "others": 1.2})
    assert "in doubt" in " ".join(lines_of(busy))


@pytest.mark.parametrize("name", ["lid_run", "study_run", "views_run", "step_run"])
def test_json_round_trip(name: str, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(name)
    assert from_json(to_json([run])) == [run]
    assert '"median"' in to_json([run])
