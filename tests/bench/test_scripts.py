"""What the scripts in benchmarks/ measured and how: the alarm in whole trainings, and a too strong LDReg."""

import importlib
import json
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

from ldreg.dimension.quality import view_share

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def alarm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("alarm")


@pytest.fixture
def strain(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("strain")


def test_the_measures_are_those_of_their_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    measures = importlib.import_module("measures")
    found = measures.deviations()
    assert max(found.values()) < 1e-6
    assert set(found) == set(measures.REFERENCES)
    page = (BENCHMARKS.parent / "docs" / "measures.md").read_text()
    rows = re.findall(r"^(\| `\w+` \| [^|]* \|) \d", page, re.MULTILINE)
    assert rows == [f"| `{name}` | {text} |" for name, text in measures.REFERENCES.items()]


@pytest.mark.parametrize("name", ["calibrate_danco", "calibrate_lid"])
def test_calibrations_are_written_where_they_are_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    assert importlib.import_module(name).TABLE.is_file()


def test_the_kept_results_ring_where_they_should(alarm: ModuleType) -> None:
    found = json.loads((BENCHMARKS / "alarm.json").read_text())
    assert [result["name"] for result in found] == [case.name for case in alarm.cases(400)]
    healthy = [result for result in found if result["kind"] == "healthy"]
    assert (len(healthy), len(found)) == (20, 40)
    assert not any(result["alarms"] for result in healthy)
    assert [result["name"] for result in healthy if result["warnings"]] == ["healthy, mae_ldreg, seed 400"]
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
def test_the_alarm_rings_in_a_training_that_collapses(
    alarm: ModuleType, kind: str, recipe: str, tmp_path: Path
) -> None:
    case = next(case for case in alarm.cases(500) if (case.kind, case.recipe) == (kind, recipe))
    assert bool(alarm.train(case, tmp_path)["alarms"]) == (kind != "healthy")


def test_the_page_has_the_measured_table_and_commit(strain: ModuleType) -> None:
    found = json.loads((BENCHMARKS / "strain.json").read_text())
    page = (BENCHMARKS.parent / "docs" / "too-strong.md").read_text()
    assert strain.table(found) in page
    assert strain.votes_table(found) in page
    assert found["origin"]["commit"] in page
    assert [run["beta"] for run in found["runs"]] == [0.0, 0.05]


def test_variance_is_split_into_what_was_drawn(strain: ModuleType) -> None:
    source = torch.Generator().manual_seed(0)
    labels = torch.arange(20_000) % 10
    centers = 2 * torch.randn(10, 6, generator=source)
    images = centers[labels] + 3 * torch.randn(20_000, 6, generator=source)
    views = images + torch.randn(4, 20_000, 6, generator=source)
    classes, within, between = strain.variances(views, labels)
    assert classes.item() == pytest.approx(6 * centers.var(0, correction=0).mean().item(), rel=0.02)
    assert within.item() == pytest.approx(6 * 9, rel=0.02)
    assert between.item() == pytest.approx(6, rel=0.02)
    share = between / (classes + within + between)
    assert view_share(views).item() == pytest.approx(share.item(), rel=0.01)
