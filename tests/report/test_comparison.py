"""What differs between runs: tables, the sentences beside them, and both as text."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from tests.report.conftest import MakeRun
from tests.report.snapshot import check_snapshot

from ldreg.record import Finding, Record, Severity
from ldreg.report.tables import Table, result_table, run_class_table, run_names, setting_table
from ldreg.report.words import (
    accuracy_noise,
    comparison_text,
    finding_lines,
    in_words,
    sampling_noise,
    what_was_measured,
)

NAN = float("nan")


def rows(table: Table) -> dict[str, list[str]]:
    """The cells of a table as text, by the name of the row."""
    return {row[0].text: [f"{cell.text} {cell.remark}".strip() for cell in row[1:]] for row in table.rows}


def found(kind: str, severity: Severity, *, of: str = "representations") -> Finding:
    return Finding(kind, severity, 0.5, {"points": 20.0}, of=of, text=f"text of {kind}")


def test_evaluations_have_titles_and_places(make_run: MakeRun) -> None:
    results = {
        "minutes": 12.3, "knn/k = 20": 0.5, "transfer/shapes": 0.25, "mask_ap": 0.3, "knn": 0.5, "own_result": 1.0,
        "linear/imagenet protocol": 0.5, "finetune/10 % of labels": 0.5, "box_ap": 0.35, "box_ap/second": 0.2,
        "effective_rank/test images": 9.0,
    }  # fmt: skip
    assert list(rows(result_table([make_run(results=results)])).items()) == [
        ("Effective rank, test images", ["9.00"]),
        ("Linear, imagenet protocol", ["50.0 %"]),
        ("kNN, k = 20", ["50.0 %"]),
        ("kNN accuracy", ["50.0 %"]),
        ("Fine-tuned, 10 % of labels", ["50.0 %"]),
        ("Transfer to shapes", ["25.0 %"]),
        ("AP box", ["35.0 %"]),
        ("AP box, second", ["20.0 %"]),
        ("AP mask", ["30.0 %"]),
        ("Training time", ["12 min"]),
        ("own result", ["1.00"]),
    ]


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        (({"loss": -1.0}, {"loss": -1.5}), {"Loss": ["-1.00", "-1.50 −0.500"]}),
        (({"other_loss": 0.0}, {"other_loss": 2.0}), {"other loss": ["0", "2.00 +2.00"]}),
        (({"lid": 8.0},), {"LID, geometric mean": ["8.00"]}),
        (({"lid": 8.0}, {"lid": NAN}), {"LID, geometric mean": ["8.00", "–"]}),
        (
            ({"lid": NAN, "linear": NAN}, {"lid": math.inf}),
            {"LID, geometric mean": ["–", "∞"], "Linear probe": ["–", "–"]},
        ),
    ],
)
def test_change_needs_two_values_and_a_relative_one_a_positive_first(
    make_run: MakeRun, results: tuple[dict[str, float], ...], expected: dict[str, list[str]]
) -> None:
    assert rows(result_table([make_run(results=own) for own in results])) == expected


def test_settings_compare_by_value(make_run: MakeRun) -> None:
    first: dict[str, Any] = {"a": (1, 2), "b": None, "c": True, "d": 1e-6}
    settings = (first, {"a": [1, 2], "c": False, "d": 1e-6})
    table = setting_table([make_run(settings=own) for own in settings], differing=True)
    assert rows(table) == {"b": ["none", "–"], "c": ["yes", "no"]}


def test_classes_are_in_the_order_of_their_lid(two_runs: list[Record]) -> None:
    classes = ({"a": 6.0, "b": 3.0, "c": NAN}, {"a": 6.6, "b": 6.0, "d": 2.0})
    records = [replace(record, classes=own) for record, own in zip(two_runs, classes, strict=True)]
    table = rows(run_class_table(records))
    assert list(table) == ["d", "b", "a", "c"]
    assert table["b"] == ["3.00", "6.00 +100 %"]
    assert "LID per class" in comparison_text(records)
    assert "LID per class" not in comparison_text(two_runs)


def test_runs_of_the_same_name_are_numbered(make_run: MakeRun) -> None:
    assert run_names([make_run(), make_run("a"), make_run()]) == ["SimCLR (1)", "a", "SimCLR (2)"]


def test_findings_are_ordered_and_cut(make_run: MakeRun) -> None:
    bad = make_run("bad", findings=[found("low_rank", "note"), found("degenerate", "critical", of="images")])
    fine = make_run("fine", findings=[found("nothing_unusual", "note")])
    lines = finding_lines([bad, fine, make_run("old")])
    assert [(severity, text.partition(":")[0]) for severity, text in lines] == [
        ("critical", "bad, images"),
        ("note", "bad"),
        ("note", "fine"),
    ]
    assert comparison_text([bad, fine]).startswith("[critical] bad, images: text of degenerate")
    many = finding_lines([make_run("many", findings=[found("collapsed_class", "warning")] * 5)])
    assert len(many) == 4
    assert "2 more" in many[-1][1]


def test_words_name_the_settings_that_differ(make_run: MakeRun, two_runs: list[Record]) -> None:
    assert "regularizer and ldreg.beta" in in_words(two_runs)[0]
    many = {**make_run().settings, **{f"further{place}": place for place in range(7)}}
    assert "7 settings" in in_words([make_run(), make_run(settings=many)])[0]
    assert in_words([make_run()]) == []


def test_words_know_what_may_be_chance(two_runs: list[Record]) -> None:
    base, other = two_runs
    other = replace(other, results={**other.results, "linear": 0.7})
    few, many = ([replace(record, tested=tested) for record in (base, other)] for tested in (60, 50_000))
    noise = 200 * ((0.96 * 0.04 + 0.7 * 0.3) / 60) ** 0.5  # the linear probe's, which is larger than kNN's
    assert accuracy_noise(few) == pytest.approx(noise)
    assert f"up to {noise:.0f} points" in in_words(few)[1]
    assert 0 < accuracy_noise(many) < 1
    assert "up to 1 point " in in_words(many)[1]
    assert accuracy_noise(two_runs) == 0  # the number of test images is not known
    assert [sampling_noise((share, 1.0), 1) for share in (0.0, 0.5, 1.0)] == [100.0] * 3


def test_words_warn_of_what_must_not_be_compared(make_run: MakeRun) -> None:
    first = make_run(points=40, k=64, settings={"data.name": "digits"})
    assert len(in_words([first, first])) == 2
    other = replace(first, points=5000, k=20, settings={"data.name": "cifar10"})
    images, sizes, neighbors = in_words([replace(first, points=1000), other])[2:]
    assert "cifar10 and digits" in images
    assert "1,000 and 5,000" in sizes
    assert "k = 20 and 64" in neighbors
    assert len(in_words([first, Record("bare", {"data.name": "stl10"}, {})])) == 2


def test_what_was_measured_is_said_once_or_for_each_run(make_run: MakeRun) -> None:
    record = make_run(points=1437, images=1437, k=32, tested=360, voters=200)
    line = (
        "LID and effective rank: 1,437 training images, k = 32; linear probe (logistic regression) and kNN (k = 200): "
        "360 test images."
    )
    assert what_was_measured([record, record]) == [line]
    assert line in " ".join(comparison_text([record]).split())
    part = replace(record, points=200, tested=None)
    assert what_was_measured([record, part, Record("bare", {}, {})]) == [
        f"SimCLR (1): {line}",
        "SimCLR (2): LID: 200 of 1,437 training images, k = 32; effective rank: all of them.",
    ]
    assert what_was_measured([make_run()]) == []


def test_comparisons_as_text(make_run: MakeRun, two_runs: list[Record]) -> None:
    noted = [replace(record, notes=["a note"], classes={"a": 5.0, "b": 4.0}) for record in two_runs]
    check_snapshot("runs.txt", comparison_text(noted) + "\n")
    many = [make_run(f"run {place}", results={**make_run().results, "lid": 5.0 + place}) for place in range(8)]
    check_snapshot("many_runs.txt", comparison_text(many) + "\n")
    with pytest.raises(ValueError, match="records: expected at least one run"):
        comparison_text([])


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("width", [60, 80])
def test_text_keeps_to_its_width_and_breaks_names_between_words(make_run: MakeRun, count: int, width: int) -> None:
    text = comparison_text([make_run("n" * 200 + str(place)) for place in range(count)], width=width)
    assert max(map(len, text.splitlines())) <= width
    text = comparison_text([make_run(f"simclr_ldreg-digits_long_name_{place}") for place in range(count)], width=width)
    parts = {"simclr", "ldreg", "digits", "long", "name"}
    words = {part for word in re.findall(r"[\w-]+", text) for part in re.split(r"[-_]", word)}
    assert parts <= words
    assert not {
        word for word in words if word.startswith(("sim", "dig", "ldr")) and word not in {*parts, "differences"}
    }


def test_text_cannot_drive_the_terminal(make_run: MakeRun) -> None:
    evil = "\x1b[31m[bold]red"
    text = comparison_text([make_run(), make_run(evil, results={evil: 1.0, "lid": 1.0})], width=200)
    assert "\x1b" not in text
    assert r"\x1b[31m[bold]red" in text
    assert "\x1b[1m" in comparison_text([make_run()], color=True)
