"""Records in files: every kind and version is read, and a newer one is named as that."""

import json
from pathlib import Path
from typing import Any

import pytest

from ldreg.record import SCHEMA, Finding, Record, brief

RESULTS = Path(__file__).parents[1] / "results"
EVALUATION = {
    "kind": "knn",
    "results": {"knn": 0.9, "k": 20, "classes": 10},
    "source": {"name": "first", "key": "abc"},
    "data": {"name": "digits", "path": None, "limit": None},
    "options": {"k": 20, "temperature": 0.1},
    "seed": None,
    "minutes": 0.5,
    "environment": {"command": "ldreg evaluate knn first", "ldreg": "0.2", "cores": 2, "processor": "x86", "gpu": None},
}
CARD = {
    "ldreg": "0.2",
    "encoder": {"name": "small_cnn"},
    "method": "simclr",
    "epochs": 3,
    "seed": 0,
    "minutes": 0.25,
    "stopped": None,
    "metrics": {"set/lid": 7.5, "set/knn": 0.9, "batch/loss": 3.0, "set/linear": None},
    "findings": [{"of": "images", "kind": "hubs", "severity": "note", "share": 1.0, "numbers": {}, "text": "x"}],
}


def read(tmp_path: Path, content: Any) -> Record:
    (tmp_path / "a.json").write_text(json.dumps(content))
    return Record.from_json(tmp_path / "a.json")


def test_every_kept_record_is_read() -> None:
    paths = [path for path in RESULTS.rglob("*.json") if not path.name.startswith("step-")]  # speeds, by `ldreg bench`
    assert len(paths) > 150
    for path in paths:
        content = json.loads(path.read_text())
        record = Record.from_json(path)
        assert record.name == content["name"]
        expected = {key: float("nan") if value is None else value for key, value in content["results"].items()}
        assert record.results == pytest.approx(expected, nan_ok=True)
        assert record.curves.keys() == content.get("curves", {}).keys()
        assert len(record.lid) == len(content.get("lid", []))


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    finding = Finding("hubs", "note", 0.5, {"points": 3.0}, of="images", text="Some images are hubs.")
    record = Record("a", {"seed": 0}, {"lid": 7.5}, curves={"lid": [(0.0, 1.5)]}, findings=[finding], k=5)
    record.to_json(tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text())["schema"] == SCHEMA
    assert Record.from_json(tmp_path / "a.json") == record


def test_missing_fields_have_their_defaults(tmp_path: Path) -> None:
    assert read(tmp_path, {"name": "a", "settings": {}, "results": {}}) == Record("a", {}, {})


@pytest.mark.parametrize("content", [{"name": "a", "settings": {}, "results": {}, "new": 1}, EVALUATION, CARD])
def test_a_newer_file_is_named_as_that(tmp_path: Path, content: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"a\.json: expected schema {SCHEMA} or earlier, got 9, .* newer ldreg"):
        read(tmp_path, content | {"schema": 9})


def test_an_evaluation_is_a_record(tmp_path: Path) -> None:
    record = read(tmp_path, EVALUATION)
    assert (record.name, record.results, record.voters) == ("first", {"knn/k = 20": 0.9}, 20)
    assert record.settings["data.name"] == "digits"
    assert record.origin == {
        "command": "ldreg evaluate knn first", "version": "0.2", "hardware": "x86, 2 cores", "minutes": 0.5,
        "weights": "abc", "data": "digits",
    }  # fmt: skip


def test_the_card_of_a_run_is_a_record(tmp_path: Path) -> None:
    record = read(tmp_path, CARD)
    assert record.results == pytest.approx(
        {"lid": 7.5, "knn": 0.9, "linear": float("nan"), "minutes": 0.25}, nan_ok=True
    )
    assert (record.settings["method"], record.origin["epochs"]) == ("simclr", 3)
    assert [found.kind for found in record.findings] == ["hubs"]


@pytest.mark.parametrize(
    ("change", "key"),
    [({"name": 1}, "name"), ({"schema": "x"}, "schema"), ({"results": [1]}, "results"), ({"more": 1}, "more")],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=rf"a\.json: expected the record of a run, got .*{key}"):
        read(tmp_path, {"name": "a", "settings": {}, "results": {}} | change)


def test_many_findings_of_a_kind_are_counted() -> None:
    several = [Finding("hubs", "note", 0.1, {}, of="images", text=str(place)) for place in range(5)]
    shown = brief([*several, Finding("degenerate", "critical", 1.0, {}, of="images", text="first")])
    assert [found.text for found in shown[:4]] == ["first", "0", "1", "2"]
    assert shown[4].share == pytest.approx(0.2)
