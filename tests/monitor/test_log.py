"""The metrics file: exact numbers, and after any interruption the file of an unbroken run."""

import math
from pathlib import Path

import pytest

from ldreg.monitor.log import MetricsLog, read_metrics


def log_steps(log: MetricsLog, steps: range) -> None:
    for step in steps:
        log.write({"batch/loss": 1 / step, "set/lid": math.sqrt(step)}, step=step, epoch=step / 7)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.csv"


def test_numbers_come_back_exactly(path: Path) -> None:
    log = MetricsLog(path)
    log.resume(0)
    values = {"a": 0.1 + 0.2, "b": math.nan, "c": math.inf, 'odd, "name"': -1e-300}
    log.write(values, step=3, epoch=1 / 3)
    found = read_metrics(path)
    assert found["a"] == [(3, 1 / 3, 0.1 + 0.2)]
    assert math.isnan(found["b"][0][2])
    assert found["c"][0][2] == math.inf
    assert found['odd, "name"'] == [(3, 1 / 3, -1e-300)]


@pytest.mark.parametrize("row", ["1,2,3", "1,x,a,2", "1.0,2,loss,low", f'1,2,"{"a" * 200_000}",3', "1,2,a,3\r4"])
def test_a_row_that_is_none_is_refused_by_its_line(path: Path, row: str) -> None:
    path.write_bytes(f"epoch,step,name,value\n1,2,a,3\n{row}\n".encode())
    with pytest.raises(ValueError, match="expected epoch,step,name,value in line 3"):
        read_metrics(path)


@pytest.mark.parametrize("resumed_at", [1, 3, 5])
@pytest.mark.parametrize("torn", ["", "0.7142857142857143,5,set/l", "0.71"])
def test_a_resumed_log_equals_an_unbroken_one(path: Path, resumed_at: int, torn: str) -> None:
    log = MetricsLog(path)
    log.resume(0)
    log_steps(log, range(1, 9))
    unbroken = path.read_bytes()
    log.resume(0)
    log_steps(log, range(1, 6))
    with path.open("a") as file:
        file.write(torn)
    log = MetricsLog(path)
    log.resume(resumed_at)
    log_steps(log, range(resumed_at, 9))  # the step of the checkpoint itself may be logged again
    assert path.read_bytes() == unbroken


def test_a_run_that_begins_anew_or_without_a_file_begins_a_file(path: Path) -> None:
    MetricsLog(path).resume(7)
    assert path.read_text() == "epoch,step,name,value\n"
    log = MetricsLog(path)
    log.write({"set/lid": 1.0}, step=0, epoch=0.0)
    log.resume(0)
    assert read_metrics(path) == {}
    assert path.read_text() == "epoch,step,name,value\n"


def test_other_files_are_refused_and_left_alone(path: Path) -> None:
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="header epoch,step,name,value, got 'a,b'"):
        MetricsLog(path).resume(3)
    assert path.read_text() == "a,b\n1,2\n"


def test_a_failed_cut_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = MetricsLog(path)
    log.resume(0)
    log_steps(log, range(1, 6))
    before = path.read_bytes()

    def fail(*args: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no space left"):
        log.resume(2)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_log_too_large_to_be_shown_is_still_resumed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = MetricsLog(path)
    log.resume(0)
    log_steps(log, range(1, 40))
    whole = path.read_text()
    log_steps(log, range(40, 60))
    monkeypatch.setattr("ldreg.monitor.log._LARGEST", 100)
    with pytest.raises(ValueError, match="expected a metrics file, got a file of more than 100 bytes"):
        read_metrics(path)
    MetricsLog(path).resume(39)
    assert path.read_text() == whole
