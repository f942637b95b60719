"""The main job, end to end with few steps."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ldreg.cli import main
from ldreg.demo import demo


class Headings(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.pictures, self.text = 0, ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.pictures += tag == "svg"

    def handle_data(self, data: str) -> None:
        self.text += data


def test_demo_writes_its_report(tmp_path: Path) -> None:
    said: list[float] = []
    report, reached, path = demo(tmp_path / "new" / "folder", steps=2, progress=lambda name, done: said.append(done))
    assert said == sorted(said)
    page = Headings()
    page.feed(path.read_text())
    assert page.pictures == 6 + 5 + 6
    assert "target 1.8" in page.text
    assert "Local collapse that global dimension does not see" in page.text
    assert json.loads((path.parent / "digits.json").read_text())["points"] == report.points == 1797
    for name in ("local_collapse.png", "target_lid.png"):
        assert (path.parent / name).read_bytes().startswith(b"\x89PNG")
    assert len(reached) == 6


def test_command_says_where_the_report_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "__kwdefaults__", (demo.__kwdefaults__ or {}) | {"steps": 2})
    assert main(["demo", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert f"The report is {tmp_path / 'report.html'}" in out
    assert "target 1.4: reached LID" in out


def test_folder_that_cannot_be_made_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["demo", "--out", str(tmp_path / "file")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("ldreg demo: error: ")
