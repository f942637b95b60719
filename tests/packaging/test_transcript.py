"""docs/transcript.md is what happens: fresh environment, wheel, first number, first report."""

from pathlib import Path

import pytest
from tests.packaging import transcript
from tests.packaging.transcript import COMMANDS, PAGE, REPORT


@pytest.mark.slow
def test_first_minutes_are_as_the_page_says(tmp_path: Path) -> None:
    wheel = transcript.build(tmp_path / "dist")
    found = transcript.steps(transcript.borrowing(wheel, seconds=0.0), tmp_path)
    assert [step.status for step in found] == [0] * len(COMMANDS) + [2], found
    assert transcript.lasting(transcript.as_page(found)) == transcript.lasting(PAGE.read_text())
    first = [step.command for step in found].index(REPORT)
    assert sum(step.seconds for step in found[1 : first + 1]) < 120
    assert float(found[2].output.removeprefix("tensor(").split(")")[0].split(",")[0]) == pytest.approx(6.3, abs=0.1)
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert (tmp_path / "ldreg-demo" / "report.html").is_file()


def test_page_promises_what_it_measured() -> None:
    text = PAGE.read_text()
    assert all(f"\n$ {command}\n" in text for command in COMMANDS)
    first = float(text.partition("it took ")[2].partition(" s")[0])
    assert first < 120
