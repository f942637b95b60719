from collections.abc import Callable
from dataclasses import replace

import pytest

from ldreg.inspection.report import DimensionReport, Expected
from ldreg.report.summary import local_rows
from ldreg.report.table import as_text

MakeReport = Callable[..., DimensionReport]

KNOWN = Expected(gaussian_lid=16.0)


def line(text: str, start: str) -> str:
    return next(row for row in text.splitlines() if row.strip().startswith(start))


def test_prints_every_quantity(make_report: MakeReport) -> None:
    text = str(make_report(names=("cat", "dog"), comparison="other.npy", zero=6, measured=60, points=100))
    assert "100 points × 16 dimensions, 60 measured" in text
    assert " ".join(line(text, "LID, geometric mean").split()).endswith("mean 5.50 95 % confidence 5.10 to 5.90")
    assert "quartiles 4.00 and 7.00" in line(text, "LID, median")
    assert "0.200" in line(text, "Fréchet variance")
    assert "10.0 %" in line(text, "Degenerate points")
    assert "LID 0: 6; infinite: 0" in line(text, "Degenerate points")
    assert "9.50" in line(text, "Effective rank")
    assert "10.50" in line(text, "RankMe")
    assert "6.25" in line(text, "TwoNN")
    assert "not available" in line(text, "DANCo")
    assert line(text, "Fisher-Rao distance").split()[2:5] == ["0.318", "to", "other.npy:"]
    assert line(text, "cat").split()[:3] == ["cat", "4.00", "9"]
    assert "compared with other.npy, 40 points × 8 dimensions" in text
    assert text.count("\n row ") == 10


def test_a_second_set_stands_under_the_first(make_report: MakeReport) -> None:
    lines = [" ".join(row.split()) for row in str(make_report(comparison="other.npy", expected=KNOWN)).splitlines()]

    def below(start: str) -> str:
        return lines[next(place for place, row in enumerate(lines) if row.startswith(start)) + 1]

    assert below("LID, geometric mean") == "other.npy 4.00 95 % confidence 3.50 to 4.50"
    assert below("LID of a Gaussian") == "other.npy –"  # which only the first has
    assert below("LID, median") == "other.npy 3.75 quartiles 3.25 and 4.75"
    assert below("Effective rank") == "other.npy 6.50"  # the remark is the same
    assert below("TwoNN") == "other.npy 3.12"
    assert "other.npy" not in below("Fisher-Rao distance")
    assert "other.npy" not in str(make_report())


def test_what_only_the_second_set_has_is_shown(make_report: MakeReport) -> None:
    report = make_report(comparison="other.npy")
    assert report.comparison is not None
    found = replace(report.comparison, other=replace(report.comparison.other, expected=KNOWN))
    row = next(row for row in local_rows(replace(report, comparison=found)) if row.name == "LID of a Gaussian")
    assert row.value == "–"
    assert row.beside is not None
    assert row.beside.value == "16.00"


@pytest.mark.parametrize("width", [60, 80, 100])
def test_keeps_to_its_width(make_report: MakeReport, width: int) -> None:
    report = make_report(names=("n" * 300, "two"), comparison="c" * 200, title="t" * 300)
    assert max(map(len, as_text(report, width=width).splitlines())) <= width


def test_user_text_cannot_drive_the_terminal(make_report: MakeReport) -> None:
    report = make_report(names=("\x1b[31mred", "[bold]b[/bold]", "a\nb"), title="x\x07\x1b]0;owned\x07.npy")
    text = str(report)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert r"\x1b[31mred" in text
    assert "[bold]b[/bold]" in text
    assert r"a\nb" in text


def test_many_classes_are_cut_to_the_ends(make_report: MakeReport) -> None:
    text = str(make_report(names=tuple(f"c{i:03}" for i in range(50))))
    assert "(30 more)" in text
    assert "c009" in text
    assert "c040" in text
    assert "c010" not in text.split("LID per class")[1]
    assert "c039" not in text.split("LID per class")[1]


def test_color_only_where_wanted(make_report: MakeReport) -> None:
    assert "\x1b[1m" in as_text(make_report(), color=True)
    assert "\x1b" not in as_text(make_report())


def test_collapsed_report_prints(collapsed_report: DimensionReport) -> None:
    assert "100 %" in line(str(collapsed_report), "Degenerate points")
