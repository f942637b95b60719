"""`ldreg report`: runs and records to a page, and one line for what cannot be reported on."""

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from ldreg.cli import main
from ldreg.record import Record


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def report(*words: object) -> int:
    return main(["report", *map(str, words)])


def headings(page: Path) -> list[str]:
    return re.findall(r"<h[12]>(.*?)</h[12]>", page.read_text(encoding="utf-8"))


def one_error(capsys: pytest.CaptureFixture[str]) -> str:
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    assert error.startswith("ldreg report: error: ")
    return error


def test_records_travel_as_json(runs: Path) -> None:
    assert report(runs / "simclr", "--json", "records", "--names", "SimCLR / here", "--thumbnails", 2) == 0
    path = Path("records/SimCLR_here.json")
    assert Record.from_json(path).name == "SimCLR / here"
    assert path.stat().st_size < 60_000
    assert report(path, runs / "simclr_ldreg", "--title", "A <b>title</b>", "--out", "both.html") == 0
    assert headings(Path("both.html"))[0] == "A &lt;b&gt;title&lt;/b&gt;"
    assert "SimCLR / here" in Path("both.html").read_text(encoding="utf-8")


def test_json_files_have_the_names_of_the_runs() -> None:
    Record("a", {}, {"lid": 5.0}).to_json("good.json")
    assert report("good.json", "good.json", "--names", "x,../y", "--json", "named") == 0
    assert sorted(file.name for file in Path("named").iterdir()) == ["x.json", "y.json"]
    assert report("good.json", "good.json", "--json", "same") == 0
    assert sorted(file.name for file in Path("same").iterdir()) == ["a_1.json", "a_2.json"]


def test_replacing_a_page_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    Record("a", {}, {"lid": 5.0}).to_json("good.json")
    for title, replaced in (("first", 0), ("second", 2)):
        assert report("good.json", "--json", "named", "--title", title) == 0
        lines = capsys.readouterr().err.splitlines()
        assert [line.split(",")[0] for line in lines] == ["wrote comparison.html", "wrote named/a.json"]
        assert sum("in place of an earlier one" in line for line in lines) == replaced
        assert headings(Path("comparison.html"))[0] == title
    Path("empty.html").touch()
    for path in ("empty.html", os.devnull):
        assert report("good.json", "--out", path) == 0
        assert capsys.readouterr().err == f"wrote {path}\n"


def test_a_file_that_is_no_record_is_not_replaced_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    Record("a", {}, {"lid": 5.0}).to_json("good.json")
    Path("named").mkdir()
    for content in ("mine", "{}", '{"name": "a"}'):
        Path("named", "a.json").write_text(content)
        assert report("good.json", "--json", "named") == 2
        assert "cannot write 'named/a.json': " in one_error(capsys)
        assert Path("named", "a.json").read_text() == content
    assert not Path("comparison.html").exists()


def test_a_page_of_somebody_else_stays(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for content in (b"<!DOCTYPE html>\n<html>by hand</html>", b"\xff" * 1000, b"x"):
        Path("comparison.html").write_bytes(content)
        assert report(runs / "simclr") == 2
        assert "cannot write 'comparison.html': " in one_error(capsys)  # before the run was measured
        assert Path("comparison.html").read_bytes() == content


def moved(runs: Path) -> None:
    """A run in the folder "moved" whose images are gone."""
    shutil.copytree(runs / "simclr", "moved")
    config = Path("moved/config.yaml")
    config.write_text(config.read_text().replace("name: digits", "name: folder").replace("path: null", "path: /x", 1))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["empty"], "empty: expected a run folder or the JSON record of a run, got neither"),
        (["half"], "half: expected a finished run, got one without encoder.safetensors; ldreg pretrain --resume half"),
        (["text.json"], "text.json: expected the record of a run, got "),
        (["good.json", "--names", "a,b"], "--names: expected one for each of the 1 run(s), got 2"),
        (["good.json", "--thumbnails", "-1"], "--thumbnails: expected at least 0, got -1"),
        (["good.json", "--points", "0"], "--points: expected at least 1, got 0"),
        (["good.json", "--out", "good.json"], "cannot write 'good.json': it is an input"),
        (["good.json", "--json", "."], "cannot write 'good.json': it is an input"),
        (["good.json", "--out", "half/config.yaml"], "cannot write 'half/config.yaml': it is a file of the run 'half'"),
        (["good.json", "--k", "1"], "--k: expected at least 2, got 1"),
        (
            ["mine.pth"],
            "mine.pth: expected a run folder or the JSON record of a run, got a checkpoint; --data.name says",
        ),
        (["binary"], "binary: expected the record of a run, got a file that is not text"),
        (["good.json", "--json", "text.json"], "--json: expected a folder, got the file 'text.json'"),
    ],
)
def test_what_is_wrong_is_one_line(words: Sequence[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    Path("half").mkdir()
    Path("half/config.yaml").write_text("method: simclr\n")
    Path("half/evaluation").mkdir()
    Path("text.json").write_text("hello")
    for name in ("mine.pth", "binary"):
        Path(name).write_bytes(b"\x80\x02weights")
    Record("good", {}, {"lid": 5.0}).to_json("good.json")
    before = Path("good.json").read_bytes()
    assert report(*words) == 2
    assert reason in one_error(capsys)
    assert not Path("comparison.html").exists()
    assert Path("good.json").read_bytes() == before
    assert Path("half/config.yaml").read_text() == "method: simclr\n"


def test_no_file_of_a_run_is_written_over(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("encoder.safetensors", "config.yaml", "card.json", "metrics.csv"):
        for other in ("simclr", "simclr_ldreg"):  # the run that is reported on, and another
            before = (runs / other / name).read_bytes()
            assert report(runs / "simclr", "--out", runs / other / name) == 2
            assert "cannot write" in one_error(capsys)
            assert (runs / other / name).read_bytes() == before


def test_measuring_other_images_is_reported(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        report(runs / "simclr", "--data.name", "shapes", "--data.limit", "120", "--thumbnails", 0, "--json", ".") == 0
    )
    assert "simclr: measured on shapes; trained on digits" in capsys.readouterr().err
    record = Record.from_json("simclr.json")
    assert (record.settings["data.name"], record.settings["data.limit"]) == ("shapes", 120)
    assert (record.images, record.points) == (120, 120)


@pytest.mark.parametrize("option", [["--data.path", "gone"], ["--data.name", "cifar10", "--data.path", "gone"]])
def test_images_that_were_asked_for_must_be_there(
    runs: Path, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    moved(runs)
    assert report("moved", *option) == 2
    assert re.search(r"\nldreg report: error: .*gone", capsys.readouterr().err)
    assert not Path("comparison.html").exists()


def test_small_sets_need_a_smaller_k(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(runs / "simclr", "--data.limit", 12) == 2
    assert "k: expected fewer than the 12 training images, got 16; --k N asks for fewer" in capsys.readouterr().err
    assert report(runs / "simclr", "--data.limit", 12, "--k", 5, "--thumbnails", 0) == 0
    assert "12 training images, k = 5" in Path("comparison.html").read_text(encoding="utf-8")
