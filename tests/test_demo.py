"""The main job, end to end with few steps."""

from html.parser import HTMLParser
from pathlib import Path

import pytest

from ldreg.cli import main
from ldreg.demo import Demo, demo
from ldreg.reporting.comparison import RunRecord


class Headings(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.pictures, self.text = 0, ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.pictures += tag == "svg"

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Demo, list[float]]:
    said: list[float] = []
    out = tmp_path_factory.mktemp("demo") / "new" / "folder"
    return demo(out, epochs=3, steps=2, progress=lambda name, done: said.append(done)), said


def test_demo_writes_its_report(made: tuple[Demo, list[float]]) -> None:
    found, said = made
    assert said == sorted(said)
    page = Headings()
    page.feed(found.report.read_text())
    assert page.pictures >= 5 + 6 + 4
    assert "target 1.8" in page.text
    assert "Local collapse that global dimension does not see" in page.text
    assert "Most collapsed images" in page.text
    for name in ("local_collapse.png", "target_lid.png"):
        assert (found.report.parent / name).read_bytes().startswith(b"\x89PNG")
    assert len(found.reached) == 6


def test_demo_trains_without_and_with_ldreg(made: tuple[Demo, list[float]]) -> None:
    plain, regularized = made[0].runs
    assert (plain.settings["regularizer"], regularized.settings["regularizer"]) == ("none", "ldreg")
    for run in (plain, regularized):
        assert run.results["linear"] > 0.8
        assert run.results["knn"] > 0.6
        assert len(run.lid) == len(run.map) == 1437
        assert {"lid", "effective_rank", "loss"} <= set(run.curves)
        assert [image.lid for image in run.most_collapsed] == pytest.approx(sorted(run.lid)[:12])
    assert RunRecord.from_json(made[0].report.parent / "simclr_ldreg.json").name == "SimCLR + LDReg"


def test_a_second_demo_takes_new_folders(made: tuple[Demo, list[float]]) -> None:
    out = made[0].report.parent
    again = demo(out, epochs=3, steps=2)
    assert (out / "runs" / "simclr-2" / "encoder.safetensors").is_file()
    assert again.runs[0].results["lid"] == made[0].runs[0].results["lid"]  # the same seed


def test_command_says_where_the_report_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "__kwdefaults__", (demo.__kwdefaults__ or {}) | {"steps": 2})
    assert main(["demo", "--out", str(tmp_path), "--epochs", "3"]) == 0
    out = capsys.readouterr().out
    assert f"The report is {tmp_path / 'report.html'}" in out
    assert "target 1.4: reached LID" in out
    assert "SimCLR + LDReg" in out


def test_folder_that_cannot_be_made_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["demo", "--out", str(tmp_path / "file")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("ldreg demo: error: ")
