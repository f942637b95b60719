"""Results that `ldreg evaluate` left become rows of a report; what is damaged or of other weights is named."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.evaluate.short import short_run

from ldreg.cli import main
from ldreg.evaluate import measure
from ldreg.evaluate.records import evaluated, record, rows_of
from ldreg.evaluate.source import Source, open_source
from ldreg.record import PRECISIONS


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return short_run("simclr", tmp_path_factory.mktemp("evaluated") / "run")


@pytest.fixture
def source(trained: Path, tmp_path: Path) -> Source:
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "run" / "evaluation").mkdir()
    return open_source(tmp_path / "run")


def keep(judged: Source, name: str, **told: Any) -> Path:
    path = judged.path / "evaluation" / name
    common = {"source": {"key": judged.encoder.key}, "data": {"name": "digits"}, "options": {}}
    path.write_text(json.dumps(common | told))
    return path


def rows(judged: Source) -> tuple[dict[str, float], list[str]]:
    found, notes = evaluated(judged)
    return rows_of(found, {}, None, judged), notes


def test_what_the_command_leaves_is_in_the_record(source: Source) -> None:
    assert main(["evaluate", "knn", str(source.path), "--k", "20"]) == 0
    assert main(["evaluate", "linear", str(source.path), "--strength", "100"]) == 0
    assert main(["evaluate", "dimension", str(source.path), "--k", "8"]) == 0
    made = record(source, thumbnails=0)
    (path,) = (source.path / "evaluation").glob("knn*.json")
    kept = json.loads(path.read_text())
    assert made.results["knn/k = 20"] == kept["results"]["knn"]
    assert 0 < made.results["linear/fast protocol"] <= 1
    assert made.results["linear/fast protocol"] != made.results["linear"]  # with another strength
    assert made.results["lid/test images, k = 8"] > 0
    assert made.notes == []


def test_what_the_record_measures_in_the_same_way_is_there_once(source: Source) -> None:
    for kind in ("knn", "linear"):
        assert main(["evaluate", kind, str(source.path)]) == 0
    made = record(source, thumbnails=0)
    assert [key for key in made.results if key.startswith(("linear", "knn"))] == ["linear", "knn"]
    keep(source, "knn-digits.json", kind="knn", results={"knn": 0.25, "k": made.voters})  # as by another temperature
    keep(source, "linear-fast-digits.json", kind="linear", results={"linear": 0.5}, options={"protocol": "fast"})
    again = record(source, thumbnails=0).results
    assert (again[f"knn/k = {made.voters}"], again["linear/fast protocol"]) == (0.25, 0.5)


def test_what_was_evaluated_is_not_measured_again(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = record(source, thumbnails=0).results
    for kind in ("knn", "linear"):
        assert main(["evaluate", kind, str(source.path)]) == 0
    monkeypatch.setattr(measure, "knn_accuracy", None)
    monkeypatch.setattr(measure, "linear_accuracy", None)
    found = record(source, thumbnails=0).results
    assert found == {name: pytest.approx(value, rel=1e-8, nan_ok=True) for name, value in measured.items()}
    other = open_source(source.path, data=[("data.limit", "150")])  # other images
    with pytest.raises(TypeError):
        record(other, thumbnails=0)


def test_every_kind_has_its_rows(source: Source) -> None:
    precisions = {f"{what}_ap{part}": 0.25 for what in ("box", "mask") for part in ("", "50", "75")}
    keep(source, "a.json", kind="linear", results={"linear": 0.5}, options={"protocol": "imagenet"})
    keep(source, "b.json", kind="finetune", results={"finetune": 0.6}, options={"fraction": 0.1})
    keep(source, "c.json", kind="finetune", results={"finetune": 0.7}, options={"fraction": 1.0})
    keep(source, "d.json", kind="transfer", results={"shapes": {"linear": 0.8}}, options={"protocol": "transfer"})
    keep(source, "e.json", kind="transfer", results={"shapes": {"linear": 0.9}}, options={"protocol": "fast"})
    keep(source, "f.json", kind="detection", data=None, results={**precisions, "iterations": 10})
    keep(source, "g.json", kind="knn", data={"name": "shapes"}, results={"knn": 0.4, "k": 20})
    results, notes = rows(source)
    assert notes == []
    assert results == {
        "linear/imagenet protocol": 0.5,
        "finetune/10 % of labels": 0.6,
        "finetune/all labels": 0.7,
        "transfer/shapes": 0.8,
        "transfer/shapes, fast protocol": 0.9,
        **precisions,
        "knn/k = 20 on shapes": 0.4,
    }


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"kind": "magic", "results": {}}, "kind: "),
        ({"kind": "knn", "results": {"knn": 0.5}}, "k: expected a finite number, got null"),
        ({"kind": "knn", "results": {"knn": 95, "k": 20}}, "expected knn/k = 20 as a share from 0 to 1, got 95"),
        ({"kind": "knn", "results": [1]}, "results: expected an object, got list"),
        ({"kind": "knn", "results": {"knn": 0.5, "k": 20}, "source": {"key": "0"}}, "other weights"),
    ],
)
def test_what_cannot_be_used_is_named_and_left_out(source: Source, told: dict[str, Any], reason: str) -> None:
    keep(source, "bad.json", **told)
    keep(source, "good.json", kind="knn", results={"knn": 0.5, "k": 5})
    results, (note,) = rows(source)
    assert results == {"knn/k = 5": 0.5}
    assert note.startswith("evaluation/bad.json is left out: ")
    assert reason in note


def test_what_is_said_of_a_file_is_short(source: Source) -> None:
    keep(source, "bad.json", kind="\x1b" * 1_000_000)
    _, (note,) = rows(source)
    assert note.startswith("evaluation/bad.json is left out: ")
    assert len(note) < 400
    assert note.isprintable()


def test_two_of_a_kind_are_told_apart_by_their_files(source: Source) -> None:
    keep(source, "knn-a.json", kind="knn", results={"knn": 0.5, "k": 5})
    keep(source, "knn-b.json", kind="knn", results={"knn": 0.25, "k": 5})
    keep(source, "detection-a.json", kind="detection", results=dict.fromkeys(PRECISIONS, 0.5))
    keep(source, "detection-b.json", kind="detection", results=dict.fromkeys(PRECISIONS, 0.25))
    results, notes = rows(source)
    assert notes == []
    assert (results["knn/k = 5"], results["knn/k = 5 (knn-b)"]) == (0.5, 0.25)
    assert (results["box_ap"], results["box_ap/detection-b"]) == (0.5, 0.25)


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\x80\x02", b""])
def test_damaged_files_are_left_out(source: Source, content: bytes) -> None:
    (source.path / "evaluation" / "half.json").write_bytes(content)
    results, (note,) = rows(source)
    assert results == {}
    assert note.startswith("evaluation/half.json is left out: ")


def test_a_checkpoint_has_none(source: Source) -> None:
    assert rows(open_source(source.folder.encoder if source.folder else source.path)) == ({}, [])
