import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ldreg.inspection.report import DimensionReport

MakeReport = Callable[..., DimensionReport]


def test_json_holds_every_number_and_lid_per_point(make_report: MakeReport, tmp_path: Path) -> None:
    report = make_report(names=("cat", "dög"), comparison="other.npy")
    report.to_json(tmp_path / "report.json")
    content = json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)
    assert content == report.to_dict()
    torch.testing.assert_close(torch.tensor(content["lid"]), report.lid, rtol=0, atol=0)
    assert content["mean"] == {"value": 5.5, "low": 5.1, "high": 5.9}
    assert "coordinates" not in content["comparison"]
    compared = {"title": "other.npy", "points": 40, "dimensions": 8, "fisher_rao": 0.318, "effective_rank": 6.5}
    assert {name: content["comparison"][name] for name in compared} == compared
    assert content["comparison"]["lid"] == pytest.approx(torch.linspace(3, 5, 40).tolist())
    assert content["comparison"]["eigenvalues"][-1] == 0.5
    assert content["comparison"]["mean"] == {"value": 4.0, "low": 3.5, "high": 4.5}
    assert content["classes"][1]["label"] == "dög"
    assert len(content["most_collapsed"]) == 10
    assert content["danco"]["value"] is None
    assert content["index"] == list(range(60))
    assert "coordinates" not in content


def test_json_has_null_for_what_it_cannot_hold(collapsed_report: DimensionReport, tmp_path: Path) -> None:
    lid = torch.tensor([0.0, math.inf, 3.0])
    report = replace(collapsed_report, measured=3, lid=lid, standard_error=lid * math.nan, zero=1, infinite=1)
    report.to_json(tmp_path / "report.json")
    content = json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)
    assert (content["lid"], content["standard_error"]) == ([0, None, 3], [None] * 3)
    assert content["mean"] == {"value": None, "low": None, "high": None}
    assert (content["degenerate"], content["degenerate_share"]) == (2, pytest.approx(2 / 3))


@pytest.mark.parametrize("write", ["to_json", "to_html"])
def test_the_same_report_gives_the_same_bytes(make_report: MakeReport, tmp_path: Path, write: str) -> None:
    for name in ("first", "second"):
        getattr(make_report(names=("a", "b")), write)(tmp_path / name)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
