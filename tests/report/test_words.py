"""Sentences of findings: one for each kind, with its numbers; and reports as JSON."""

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from tests.report.conftest import MakeReport

import ldreg
from ldreg.inspection.report import DimensionReport
from ldreg.record import Finding, Kind
from ldreg.report.pages import inspection_page
from ldreg.report.words import USES, inspection_text, sentence

BESIDE = {"lid_5": 2.34, "lid_25": 5.0, "lid_50": 7.0, "degenerate": 0.25, "effective_rank": 9.5}
NUMBERS: dict[str, dict[str, float]] = {
    "complete_collapse": {"equal": 0.0, "spread": 2.34e-5},
    "degenerate": {"zero": 234, "infinite": 2, "dead": 200, "noise": 9},
    "collapsed_group": {"points": 6, "lid": 2.34, "bulk": 18.0},
    "collapsed_class": {"points": 6, "lid": 2.34, "ratio": 3.0},
    "duplicates": {"groups": 234, "largest": 4},
    "near_duplicates": {"groups": 234, "largest": 4},
    "copies": {"before": 2.34},
    "small_clusters": {"before": 12.0},
    "low_rank": {"effective_rank": 2.34, "most": 16},
    "hubs": {"taken": 0.234, "never": 0.5, "largest": 40},
    "leaked": {"usual": 0.25},
    "nothing_unusual": {},
}


def finding(kind: Kind, **changes: object) -> Finding:
    numbers = NUMBERS.get(kind) or {**BESIDE, **{f"other_{name}": value for name, value in BESIDE.items()}}
    found = Finding(kind, "warning", 0.1, numbers, (3, 5, 8), (5, 3), (("cat", 2), ("dog", 1)))
    return replace(found, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_kind_is_told_with_its_numbers(make_report: MakeReport, kind: Kind) -> None:
    report = make_report(comparison="other.npy", findings=(finding(kind),))
    told = sentence(report.findings[0], report)
    assert told == report.in_words()
    assert told.endswith(".")
    shown = {"complete_collapse": "2.34e-05", "hubs": "23.4 %", "copies": " 2 of", "small_clusters": "12"}
    shown |= dict.fromkeys(("leaked", "nearly_leaked", "out_of_distribution"), "3 points (10.0 %;")
    expected = "234" if kind in ("degenerate", "duplicates", "near_duplicates") else shown.get(kind, "2.34")
    assert kind in ("nothing_unusual", "not_compared", "fits_reference") or expected in told


def test_text_page_and_json_begin_with_the_same_finding(make_report: MakeReport) -> None:
    first, second = finding("degenerate", severity="critical"), finding("low_rank", severity="note")
    report = make_report(findings=(first, second))
    told = sentence(first, report)
    assert " ".join(inspection_text(report, width=500).splitlines()[0].split()) == f"[critical] {told}"
    assert inspection_page(report).index(told) < inspection_page(report).index(sentence(second, report))
    kept = report.to_dict()["findings"]
    assert [entry["kind"] for entry in kept] == ["degenerate", "low_rank"]
    assert kept[0]["text"] == told
    assert kept[0]["rows"] == [3, 5, 8]
    for text in (" ".join(inspection_text(report).split()), inspection_page(report)):
        assert USES in text


def test_many_findings_of_one_kind_are_summed_up(make_report: MakeReport) -> None:
    report = make_report(findings=tuple(finding("collapsed_group") for _ in range(9)))
    assert "6 more findings of the kind collapsed_group, 60.0 %" in inspection_text(report, width=200)
    assert inspection_page(report).count("is collapsed: LID") == 9


def test_emoji_in_a_label_is_drawn_without_a_warning() -> None:
    report = ldreg.inspect(torch.randn(60, 4), labels=["\N{PILE OF POO}", "b"] * 30, k=8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "\N{PILE OF POO}" in inspection_page(report)


def test_rows_that_fell_are_mentioned(make_report: MakeReport) -> None:
    found = finding("collapsed_beside")
    report = make_report(comparison="other.npy", findings=(found,))
    fallen = replace(found, numbers={**found.numbers, "fell": 0.123})
    assert "12.3 %" in sentence(fallen, report)
    assert "12.3 %" not in sentence(replace(fallen, kind="similar_beside"), report)


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
