"""Records of runs: written and read back the same, and other files refused with the name of the field."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.report.conftest import _run as make

from ldreg.record import Finding, Record, Severity

NAN = float("nan")
FINDING = '{"of": "images", "kind": "hubs", "severity": "%s", "share": %s, "numbers": {}, "text": "x"}'
WITH = '{"name": "a", "settings": {}, "results": {}, %s}'


def found(kind: str, severity: Severity, *, of: str = "representations") -> Finding:
    return Finding(kind, severity, 0.5, {"points": 20.0}, of=of, text=f"text of {kind}")


def test_json_round_trip(tmp_path: Path) -> None:
    record = make(results={"lid": 7.25, "linear": 0.5}, lid=[1.5] * 40, map=[(0.5, -1.25)] * 40)
    findings = [found("collapsed_group", "critical"), found("duplicates", "warning", of="images")]
    record = replace(record, eigenvalues=[1.0, 0.125], findings=findings, classes={"a": 2.5})
    record.to_json(tmp_path / "run.json")
    assert Record.from_json(tmp_path / "run.json") == record
    again = Record.from_json(tmp_path / "run.json")
    again.to_json(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "run.json").read_bytes()


def test_json_has_null_for_what_it_cannot_hold(tmp_path: Path) -> None:
    make(results={"lid": NAN}, lid=[math.inf, 1.0], map=[], labels=None).to_json(tmp_path / "run.json")
    content = json.loads((tmp_path / "run.json").read_text(), parse_constant=pytest.fail)
    assert (content["results"], content["lid"]) == ({"lid": None}, [None, 1.0])
    record = Record.from_json(tmp_path / "run.json")
    assert math.isnan(record.results["lid"])
    assert record.lid == [math.inf, 1.0]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[1]", "list in place of dict"),
        ("{", "Expecting property name"),
        ('{"name": "a", "settings": {}}', "no key 'results'"),
        ('{"name": "a", "settings": {}, "results": {}, "colour": 1}', "the unknown key 'colour'"),
        ('{"name": "a", "settings": {}, "results": {"lid": "7"}}', "results: lid: str in place of a number"),
        ('{"name": "a", "settings": {}, "results": {}, "map": [[1, 2, 3]]}', "map: too many values"),
        ('{"name": "a", "settings": {"b": {}}, "results": {}}', "settings: b: dict in place of a plain value"),
        ('{"name": "a", "settings": {}, "results": {"knn": 95}}', "results: expected knn as a share from 0 to 1"),
        (WITH % '"origin": {"hardware": {}}', "origin: hardware: dict in place of a plain value"),
        (WITH % '"origin": {"hardware": [1]}', "origin: hardware: list in place of a plain value"),
        (WITH % '"origin": {"speed": NaN}', "NaN in place of a number"),
        (WITH % '"origin": {"speed": 1e999}', "origin: speed: a number too large"),
        (WITH % '"origin": {"held_out": -1}', "origin: held_out: -1 in place of a count"),
        (WITH % '"origin": {"held_out": 1.5}', "origin: held_out: float in place of int"),
        (WITH % '"origin": {"tested/digits": "x"}', "origin: tested/digits: str in place of a number"),
        (WITH % '"origin": {"seed": "zero"}', "origin: seed: str in place of a number"),
        (WITH % '"origin": {"at_once": "two"}', "origin: at_once: str in place of a number"),
        (WITH % '"origin": {"epochs": "ten"}', "origin: epochs: str in place of a number"),
        (WITH % '"origin": {"minutes": true}', "origin: minutes: bool in place of a number"),
        (WITH % '"curves": {"lid": [[null, 1]]}', "curves: lid: null in place of a number"),
        (WITH % '"curves": {"lid": [[1e300, 1]]}', "curves: lid: a number too large"),
        (WITH % '"curves": {"lid": [[1, 1e300]]}', "curves: lid: a number too large"),
        (WITH % '"map": [[1e31, 0]]', "map: a number too large, expected at most 1e+30"),
        (WITH % '"tsne": [[0, -1e31]]', "tsne: a number too large, expected at most 1e+30"),
        (WITH % '"lid": [1e-320]', "lid: a number too small"),
        (WITH % '"k": -2', "k: -2 in place of a count"),
        (WITH % '"classes": {"a": "x"}', "classes: a: str in place of a number"),
        (WITH % '"findings": [{"of": "images"}]', "findings: a finding with ['of']"),
        (WITH % f'"findings": [{FINDING % ("bad", 1)}]', "findings: 'bad' in place of a severity"),
        (WITH % f'"findings": [{FINDING % ("note", [])}]', "findings: list in place of a number"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(ValueError, match=re.escape(reason)) as error:
        Record.from_json(tmp_path / "run.json")
    assert str(error.value).startswith(f"{tmp_path / 'run.json'}: expected the record of a run, got ")


def test_a_file_that_is_no_text_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(b"\x80\x02weights")
    with pytest.raises(ValueError, match=r"run\.json: expected the record of a run, got a file that is not text"):
        Record.from_json(tmp_path / "run.json")


def test_precisions_and_detailed_accuracies_are_shares() -> None:
    for name in ("box_ap", "box_ap/detection-b", "linear/imagenet protocol", "transfer/shapes"):
        with pytest.raises(ValueError, match="as a share from 0 to 1, got 35"):
            make(results={name: 35.0})
    make(results={"lid/test images, k = 20": 35.0})


def test_records_are_checked() -> None:
    with pytest.raises(ValueError, match="labels: expected 40 values, one for each point of map, got 3"):
        make(labels=["a"] * 3)
    with pytest.raises(ValueError, match="results: expected linear as a share from 0 to 1, got 96"):
        make(results={"linear": 96.0})
