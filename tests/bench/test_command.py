"""What `ldreg bench` keeps and says where something goes wrong; measurements are made up."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from ldreg.bench import runner
from ldreg.bench.measure import Measurement
from ldreg.bench.record import Result, from_json
from ldreg.bench.runner import Plan
from ldreg.cli import main

Capture = pytest.CaptureFixture[str]
LID = ("bench", "lid", "--device", "cpu", "--sizes", "100x3,200x3", "--contenders", "ldreg")


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Measurements that were asked for, each of which takes a second, but for points of 7 dimensions, which fail."""
    asked: list[str] = []

    def measured(plan: Plan, name: str, result: Result) -> Result:
        asked.append(f"{name}: {result.contender} at {result.size}")
        if result.size[1] == 7:
            return replace(result, skipped="failed: it cannot")
        return replace(result, measured=Measurement((1.0,), 5.0))

    monkeypatch.setattr(runner, "_measure", measured)
    monkeypatch.setattr(runner, "find_spec", lambda name: name)
    return asked


def test_bad_neighbors_are_named_before_anything_is_measured(tmp_path: Path, capsys: Capture, asked: list[str]) -> None:
    neighbor, own = tmp_path / "views-cpu.json", tmp_path / "lid-cpu.json"
    neighbor.write_text("[{")
    own.write_text("[]")
    target = tmp_path / "all.json"
    assert main([*LID, "--out", str(tmp_path), "--json", str(target)]) == 0
    out, err = capsys.readouterr()
    first, second = [line for line in err.splitlines() if "warning" in line]
    assert first.startswith(f"ldreg bench: warning: {own} cannot be read and will be replaced: expected one run")
    assert second.startswith(f"ldreg bench: warning: {neighbor} cannot be read and is left out of RESULTS.md: ")
    assert neighbor.read_text() == "[{"
    assert from_json(own.read_text()) == from_json(target.read_text())
    assert "100 × 3" in out
    assert "views" not in (tmp_path / "RESULTS.md").read_text()


def test_a_folder_that_cannot_be_written_costs_neither_table_nor_numbers(tmp_path: Path, capsys: Capture) -> None:
    folder, target = tmp_path / "out", tmp_path / "all.json"
    (folder / "lid-cpu.png").mkdir(parents=True)
    assert main([*LID, "--out", str(folder), "--json", str(target)]) == 2
    out, err = capsys.readouterr()
    assert "100 × 3" in out
    assert err.splitlines() == [
        f"wrote {target}",
        f"ldreg bench: error: cannot write '{folder / 'lid-cpu.png'}': Is a directory",
    ]
    assert len(from_json(target.read_text())) == 1


def test_numbers_that_cannot_be_written_cost_neither_table_nor_folder(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "all.json"
    monkeypatch.setattr("ldreg.io.files.check_writable", lambda path: None)
    target.mkdir()  # as if it had come in between
    assert main([*LID, "--out", str(tmp_path / "out"), "--json", str(target)]) == 2
    out, err = capsys.readouterr()
    assert "100 × 3" in out
    assert f"error: cannot write '{target}'" in err
    assert (tmp_path / "out" / "RESULTS.md").exists()


def test_benchmarks_that_nobody_takes_part_in_are_left_out(tmp_path: Path, capsys: Capture, asked: list[str]) -> None:
    options = ["--device", "cpu", "--sizes", "quick", "--contenders", "faiss", "--out", str(tmp_path)]
    assert main(["bench", "all", *options]) == 0
    assert {entry.partition(" at")[0] for entry in asked} == {"lid: faiss"}
    warning = "ldreg bench: warning: left out, as none of the contenders takes part: regularizer, views, step"
    assert capsys.readouterr().err.splitlines()[0] == warning
    assert {path.name for path in tmp_path.iterdir()} == {"RESULTS.md", "lid-cpu.json", "lid-cpu.svg", "lid-cpu.png"}


def test_nothing_measured_is_an_error_and_leaves_the_folder_as_it_was(tmp_path: Path, capsys: Capture) -> None:
    folder, target = tmp_path / "out", tmp_path / "all.json"
    options = ["--device", "cpu", "--sizes", "100x7", "--out", str(folder), "--json", str(target)]
    assert main(["bench", "lid", *options, "--contenders", "ldreg"]) == 2
    out, err = capsys.readouterr()
    assert "ldreg: failed: it cannot" in out
    assert err.splitlines()[-1].startswith("ldreg bench: error: nothing was measured of lid; ")
    assert list(folder.iterdir()) == []
    assert json.loads(target.read_text())[0]["results"][0]["skipped"] == "failed: it cannot"


def test_a_size_that_cannot_fit_is_an_error(capsys: Capture) -> None:
    assert main(["bench", "lid", "--device", "cpu", "--sizes", "99999999x99999", "--contenders", "ldreg"]) == 2
    out, err = capsys.readouterr()
    assert "ldreg: would need 39999.6 GB" in out
    assert "nothing was measured of lid" in err


@pytest.mark.parametrize(
    ("number", "status", "word"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_signal_keeps_what_is_finished(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, number: int, status: int, word: str
) -> None:
    def measured(plan: Plan, name: str, result: Result) -> Result:
        if result.size.points == 200:
            os.kill(os.getpid(), number)
        return replace(result, measured=Measurement((1.0,), 5.0))

    monkeypatch.setattr(runner, "_measure", measured)
    before = signal.getsignal(signal.SIGTERM)
    folder, target = tmp_path / "out", tmp_path / "all.json"
    assert main([*LID, "--out", str(folder), "--json", str(target)]) == status
    out, err = capsys.readouterr()
    assert "(interrupted: incomplete)" in out
    assert err.splitlines()[-1] == f"ldreg bench: {word}"
    [record] = from_json(target.read_text())
    assert not record.complete
    assert [result.size.points for result in record.results] == [100]
    assert "(interrupted: incomplete)" in (folder / "RESULTS.md").read_text()
    assert from_json((folder / "lid-cpu.json").read_text()) == [record]
    assert signal.getsignal(signal.SIGTERM) == before
