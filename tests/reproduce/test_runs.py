"""Runs are trained and measured once, continue where they stopped, and what came of them is shown."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import matplotlib
import pytest
import yaml
from tests.reproduce.words import request

from ldreg.cli import main
from ldreg.data import DataConfig
from ldreg.io.files import exclusive
from ldreg.record import Record
from ldreg.reproduce import measure, runs
from ldreg.reproduce.jobs import Job, Workspace
from ldreg.reproduce.reproduction import Reproduction
from ldreg.reproduce.runs import one
from ldreg.reproduce.studies import SCALES, Arm
from ldreg.train.recipes import flattened

CIFAR10_RECORDS = Path(__file__).parents[2] / "results" / "cifar10"
SMALL = [*("--epochs", "1", "--schedule.warmup_epochs", "0"), "--data.limit", "600", "--monitor.k", "8"]
SMALL += ["--monitor.points", "200"]


def place(out: Path) -> Workspace:
    return Workspace(scale=SCALES["digits"], out=out, results=out / "results")


def job(*options: tuple[str, str], measures: frozenset[str] = frozenset()) -> Job:
    small = {"schedule.epochs": "1", "batch_size": "64", "monitor.k": "8", "monitor.points": "200"}
    return Job(Arm("digits/simclr", tuple(sorted({**small, **dict(options)}.items()))), 0, measures)


def settings_of(asked: Job) -> dict[str, Any]:
    return flattened(asked.settings.tree)


def put(asked: Reproduction, jobs: Sequence[Job], **results: float) -> None:
    """Records of these jobs."""
    asked.workspace.results.mkdir(parents=True, exist_ok=True)
    for run in jobs:
        made = Record(run.name, settings_of(run), results, origin={"seed": 0})
        made.to_json(asked.workspace.record_path(run))


def test_a_run_is_trained_and_measured_once_and_more_measured_of_it_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where, asked = replace(place(tmp_path), at_once=3), job()
    assert where.state(asked) == "missing"
    where.results.mkdir()
    one(asked, where)
    assert where.state(asked) == "done"
    timed = rf"\d\d:\d\d:\d\d {re.escape(asked.name)}: trained in \d+ s, measured in \d+ s"
    assert re.fullmatch(timed, capsys.readouterr().err.splitlines()[-1])
    first = Record.from_json(where.record_path(asked))
    assert first.origin["at_once"] == 3
    assert {"lid", "effective_rank", "linear", "knn", "minutes"} <= first.results.keys()
    assert first.origin["held_out"] == 360
    written = where.folder(asked).encoder.stat().st_mtime_ns

    more = job(measures=frozenset({"tsne", "transfer"}))
    assert where.state(more) == "to measure"
    one(more, where)
    second = Record.from_json(where.record_path(more))
    assert where.state(more) == "done"
    assert {key: second.results[key] for key in first.results} == dict(first.results)
    assert {f"transfer/{name}" for name in ("digits", "shapes", "textures")} <= second.results.keys()
    assert second.results["transfer/digits"] == pytest.approx(first.results["linear"])
    assert len(second.tsne) == 360
    assert where.folder(asked).encoder.stat().st_mtime_ns == written, "trained again"


def test_transfer_to_the_set_of_the_pretraining_is_its_linear_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: dict[str, str] = {}

    def linear_on(source: object, data: DataConfig, *, protocol: str, **compute: object) -> float:
        taken[data.name] = protocol
        return 0.5

    monkeypatch.setattr(measure, "linear_on", linear_on)
    monkeypatch.setattr(measure, "load_images", lambda data, split: [data])
    where = replace(place(tmp_path), scale=SCALES["imagenet"])
    source = SimpleNamespace(images=DataConfig(name="imagenet", path="images"))
    found, tested = measure._transfer(source, where)  # type: ignore[arg-type]
    assert taken.pop("imagenet") == "imagenet"
    assert taken == dict.fromkeys(("food101", "cifar10", "cifar100", "birdsnap", "cars", "dtd"), "transfer")
    assert (len(found), len(tested)) == (7, 7)


def test_a_run_whose_loss_is_not_finite_is_recorded_as_failed(tmp_path: Path) -> None:
    where, asked = place(tmp_path), job(("optimizer.lr", "1e30"), ("optimizer.name", "sgd"))
    where.results.mkdir()
    one(asked, where)
    assert "not finite" in str(Record.from_json(where.record_path(asked)).origin["failed"])
    assert where.state(asked) == "done"


def test_two_at_once_in_one_folder_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".lock").touch()
    with exclusive(tmp_path, tmp_path / ".lock"):
        assert main(["reproduce", "wallclock", "--out", str(tmp_path)]) == 2
    assert f"{tmp_path}: expected " in capsys.readouterr().err


def test_records_are_shown_with_all_their_seeds_unless_some_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["reproduce", "table1", "--scale", "cifar10", "--results", str(CIFAR10_RECORDS), "--show"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    assert "78.5 ± 0.55" in capsys.readouterr().out
    assert main([*words, "--out", str(tmp_path), "--seeds", "1"]) == 0
    assert "±" not in capsys.readouterr().out


def test_what_is_shown_is_of_the_settings_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["wallclock", "--scale", "digits", "--out", str(tmp_path)]
    asked = request(words)
    put(asked, asked.jobs, minutes=2.0)
    assert main(["reproduce", *words, "--show"]) == 0
    told = capsys.readouterr().out
    assert "27.8 h" in told
    assert "figures" not in told
    assert (tmp_path / "wallclock.html").exists()
    first = asked.jobs[0]
    other = Record(first.name, {**settings_of(first), "batch_size": 99}, {"minutes": 2.0}, origin={"seed": 0})
    other.to_json(asked.workspace.record_path(first))
    assert main(["reproduce", *words, "--show"]) == 2
    assert "expected batch_size = 256" in capsys.readouterr().err


def test_rows_of_methods_that_were_not_asked_for_are_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["table1,methods,figure1", "--batch_size", "128", "--out", str(tmp_path)]
    asked = request([*words, "--methods", "byol"])
    put(asked, asked.jobs, lid=4.0)
    assert main(["reproduce", *words, "--methods", "byol", "--show"]) == 0
    told = capsys.readouterr().out
    row = re.compile(r"^ *(SimCLR|BYOL|MAE|MoCo|VICReg|Barlow)(?!, )[^\n]*  ", flags=re.MULTILINE)
    assert row.findall(told) == ["BYOL", "BYOL"]
    assert "MoCo, VICReg and Barlow Twins\n\nNo row of it is of these methods.\n" in told
    assert re.search(r"^ *Cloud ", told, flags=re.MULTILINE)
    assert main(["reproduce", *words, "--show"]) == 0
    assert set(row.findall(capsys.readouterr().out)) == {"SimCLR", "BYOL", "MAE", "MoCo", "VICReg", "Barlow"}


def test_a_report_does_not_follow_a_matplotlibrc(tmp_path: Path, odd_style: dict[Any, Any]) -> None:
    asked = request(["figure2cd,figure1", "--out", str(tmp_path)])
    put(asked, asked.jobs, lid=4.0, effective_rank=9.0)

    def shown() -> dict[str, bytes]:
        assert main(["reproduce", "figure2cd,figure1", "--out", str(tmp_path), "--show"]) == 0
        return {
            path.name: path.read_bytes() for path in tmp_path.rglob("*.*") if path.suffix in (".html", ".png", ".pdf")
        }

    plain = shown()
    assert len(plain) == 7
    with matplotlib.rc_context(odd_style):
        assert shown() == plain


def test_ctrl_c_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*waited: object, **limits: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "wait", interrupted)
    words = ["reproduce", "table1", "--scale", "digits", "--methods", "simclr", "--jobs", "1", "--out", str(tmp_path)]
    assert main(words) == 130
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"2 runs to do, 0 done before; 1 at a time, into {tmp_path}"
    assert str(tmp_path / "workers.log") in lines[1]
    assert lines[2:] == ["ldreg reproduce: interrupted; the same command goes on where this one stood"]


@pytest.mark.parametrize(("done", "begun"), [(0, 0), (0, 1), (1, 1), (1, 2)])
def test_out_of_time_has_a_status_of_its_own_unless_nothing_could_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], done: int, begun: int
) -> None:
    given = []
    words = ["wallclock", "--scale", "digits", "--out", str(tmp_path)]
    asked = request(words)

    def train_missing(jobs: list[Job], workspace: Workspace, *, seconds: float, **rest: object) -> tuple[int, None]:
        given.append(seconds)
        put(asked, jobs[:done], minutes=2.0)
        for job in jobs[done:begun]:
            folder = workspace.folder(job)
            folder.path.mkdir(parents=True)
            folder.config.write_text(yaml.safe_dump(job.settings.tree))
        return len(jobs) - done, None

    monkeypatch.setattr(runs, "train_missing", train_missing)
    of = len(asked.jobs)
    status = main(["reproduce", *words, "--minutes", "1.5"])
    shown = capsys.readouterr()
    if begun:
        assert status == 75
        assert f"ldreg reproduce: the time is over with {of - done} of {of} runs left; the same command" in shown.err
    else:
        assert status == 2
        assert "--minutes: expected enough to begin a run, got 1.5" in shown.err
    assert ("Table 4" in shown.out) == bool(done)
    assert 60 < given[0] <= 90


class PoolHere:
    """A pool of one process that is this one."""

    _processes: ClassVar[dict[int, object]] = {}

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def submit(self, run: Callable[..., None], *arguments: object) -> Future[None]:
        future: Future[None] = Future()
        try:
            run(*arguments)
            future.set_result(None)
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, **_: object) -> None:
        pass


def test_runs_that_do_not_end_in_time_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted: list[Future[None]] = []

    class Endless(PoolHere):
        def submit(self, run: Callable[..., None], *arguments: object) -> Future[None]:
            submitted.append(Future())
            return submitted[-1]

    monkeypatch.setattr(runs, "ProcessPoolExecutor", Endless)
    monkeypatch.setattr(runs, "wait", lambda given, **limits: SimpleNamespace(done=set()))
    asked = request(["wallclock", "--out", str(tmp_path)])
    for seconds, begun in ((60.0, 2), (0.0, 0)):
        submitted.clear()
        assert runs.train_missing(asked.jobs, asked.workspace, processes=3, seconds=seconds) == (2, None)
        assert len(submitted) == begun


def runs_where(monkeypatch: pytest.MonkeyPatch, wrong: Mapping[str, Exception]) -> list[str]:
    """Have runs of digits by these recipes fail and others end at once; which were begun."""
    begun: list[str] = []

    def run(job: Job, workspace: Workspace) -> None:
        begun.append(job.arm.recipe.removeprefix("digits/"))
        if begun[-1] in wrong:
            raise wrong[begun[-1]]
        made = Record(job.name, settings_of(job), {"lid": 4.0}, origin={"seed": 0})
        made.to_json(workspace.record_path(job))

    monkeypatch.setattr(runs, "ProcessPoolExecutor", PoolHere)
    monkeypatch.setattr(runs, "one", run)
    return begun


def test_a_run_that_fails_does_not_keep_the_others_from_being_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["reproduce", "methods", "--jobs", "1", "--out", str(tmp_path)]
    broken = {"moco_ldreg": RuntimeError("CUDA out of memory"), "vicreg_ldreg": ValueError("no such thing")}
    begun = runs_where(monkeypatch, broken)
    assert main(words) == 1
    assert begun == ["moco", "moco_ldreg", "vicreg", "vicreg_ldreg", "barlow_twins", "barlow_twins_ldreg"]
    said = capsys.readouterr()
    assert "2 of 6 runs failed (moco_ldreg-epochs40-seed0: CUDA out of memory, and vicreg_ldreg-" in said.err
    assert "Traceback (most recent call last)" in said.err  # which goes to the log where the run has its own process
    assert "Table 15" in said.out
    begun.clear()
    broken.clear()
    assert main(words) == 0
    assert begun == ["moco_ldreg", "vicreg_ldreg"], "the same command tries these again"


@pytest.mark.parametrize(
    ("wrong", "error", "begun"),
    [
        pytest.param("moco", ValueError("no such thing"), ["moco"], id="where the first fails, all may"),
        pytest.param("vicreg", OSError(28, "No space left"), ["moco", "moco_ldreg", "vicreg"], id="a full disk"),
    ],
)
def test_what_all_runs_would_fail_by_ends_the_work(
    wrong: str, error: Exception, begun: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = runs_where(monkeypatch, {wrong: error})
    assert main(["reproduce", "methods", "--jobs", "1", "--out", str(tmp_path)]) == 2
    assert found == begun


def test_what_cannot_be_written_is_found_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def begun(*given: object, **more: object) -> None:
        raise AssertionError("work was begun")

    monkeypatch.setattr(runs, "ProcessPoolExecutor", begun)
    words = ["reproduce", "wallclock", "--scale", "digits", "--out"]
    for name in ("workers.log", f"results/{request(['wallclock']).jobs[0].name}.json"):
        out = tmp_path / name.partition("/")[0]
        (out / name).mkdir(parents=True)
        assert main([*words, str(out)]) == 2
        assert f"{out / name}: Is a directory" in capsys.readouterr().err
    nowhere = Path("/proc/self/fdinfo")  # where nobody can write
    if nowhere.is_dir():
        assert main([*words, str(tmp_path / "out"), "--results", str(nowhere)]) == 2
        assert f"cannot write '{nowhere}/simclr" in capsys.readouterr().err


def reproduce(out: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "ldreg", "reproduce", *words, "--scale", "digits", "--out", str(out)]


@pytest.mark.slow
def test_a_study_that_was_killed_half_way_goes_on_and_does_no_run_twice(tmp_path: Path) -> None:
    command = reproduce(tmp_path, "table1,figure2cd", *SMALL, "--jobs", "2")
    started = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    results = tmp_path / "results"
    while len(list(results.glob("*.json")) if results.exists() else []) < 4:
        assert started.poll() is None, "ended too early"
        time.sleep(0.05)
    os.kill(started.pid, signal.SIGTERM)
    assert started.wait(60) == 143
    begun = re.findall(r"^\d\d:\d\d:\d\d \S+$", (tmp_path / "workers.log").read_text(), flags=re.MULTILINE)
    assert len(begun) <= len(list(results.glob("*.json"))) + 2, "a run was begun after the end was asked for"
    before = {path.name: path.stat().st_mtime_ns for path in results.glob("*.json")}
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"{10 - len(before)} runs to do, {len(before)} done before" in done.stderr
    assert {name: (results / name).stat().st_mtime_ns for name in before} == before
    assert len(list(results.glob("*.json"))) == 10
    timed = r"^\d\d:\d\d:\d\d (\S+): trained in \d+ s, measured in \d+ s$"
    named = re.findall(timed, (tmp_path / "workers.log").read_text(), flags=re.MULTILINE)
    assert sorted(named) == sorted(path.stem for path in results.glob("*.json"))
    page = (tmp_path / "table1-figure2cd.html").read_text()
    assert "Table 1: linear evaluation" in page
    assert "–</td>" not in page
    for name in ("effective-rank", "lid-geometric-mean"):
        for kind in ("png", "pdf"):
            assert (tmp_path / "figures" / f"figure2cd-{name}.{kind}").stat().st_size > 5000
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "0 runs to do, 10 done before" in again.stderr
    assert again.stdout == done.stdout


@pytest.mark.slow
def test_a_worker_that_is_killed_is_named_in_one_line(tmp_path: Path) -> None:
    command = reproduce(tmp_path, "wallclock", "--jobs", "1")
    started = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    while not list((tmp_path / "runs").glob("*/checkpoints/*.ckpt")):
        assert started.poll() is None
        time.sleep(0.1)
    children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
    for child in children:
        if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
            os.kill(int(child), signal.SIGKILL)
    _, error = started.communicate(timeout=60)
    assert started.returncode == 2
    assert "the process of a run was killed" in error
    assert "Traceback" not in error


@pytest.mark.slow
def test_everything_at_the_smallest_scale(tmp_path: Path) -> None:
    subprocess.run(reproduce(tmp_path, "all", *SMALL), check=True, capture_output=True)
    records = [json.loads(path.read_text()) for path in (tmp_path / "results").glob("*.json")]
    assert len(records) == 64  # with one epoch LDReg has no later start
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {"tsne-t-sne-of-held-out-images.pdf", "figure1-points-of-the-plane-colored-by-lid.png"} <= names
    assert (tmp_path / "report.md").read_text().count("## ") == 20
