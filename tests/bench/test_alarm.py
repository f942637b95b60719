"""The alarm in whole trainings: one of each kind that collapses, two healthy ones, and the table of all forty."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def load() -> Any:
    spec = importlib.util.spec_from_file_location("alarm_benchmark", ROOT / "benchmarks" / "alarm.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look
    spec.loader.exec_module(module)
    return module


def test_the_kept_results_ring_where_they_should() -> None:
    found = json.loads((ROOT / "benchmarks" / "alarm.json").read_text())
    assert [result["name"] for result in found] == [case.name for case in load().cases(400)]
    healthy = [result for result in found if result["kind"] == "healthy"]
    assert (len(healthy), len(found)) == (20, 40)
    assert not any(result["alarms"] or result["warnings"] for result in healthy)
    assert sum(bool(result["alarms"]) for result in found) >= 19


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "recipe"),
    [
        ("healthy", "byol_ldreg"),
        ("healthy", "mae"),
        ("dying", "simclr"),
        ("minlid", "simclr"),
        ("copies", "vicreg_ldreg"),
        ("diverging", "byol"),
    ],
)
def test_the_alarm_rings_in_a_training_that_collapses(kind: str, recipe: str, tmp_path: Path) -> None:
    benchmark = load()
    case = next(case for case in benchmark.cases(500) if (case.kind, case.recipe) == (kind, recipe))
    assert bool(benchmark.train(case, tmp_path)["alarms"]) == (kind != "healthy")
