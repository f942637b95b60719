"""`ldreg bench`: plans, processes, signals, and what is saved if something goes wrong."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from ldreg.bench import BENCHMARKS, runner
from ldreg.bench.measure import Contender, Measurement, Points, Setting
from ldreg.bench.results import Result, from_json
from ldreg.bench.runner import TerminatedError, measured_runs, output_of, plan, stoppable
from ldreg.cli import main

Capture = pytest.CaptureFixture[str]
LID = ("bench", "lid", "--device", "cpu", "--contenders", "ldreg", "--sizes")


def test_command_runs_end_to_end(tmp_path: Path, capsys: Capture) -> None:
    arguments = ["--sizes", "300x16", "--k", "10", "--repeats", "2", "--contenders", "cdist + topk"]
    target = tmp_path / "lid.json"
    assert main(["bench", "lid", "--device", "cpu", *arguments, "--json", str(target)]) == 0
    out, err = capsys.readouterr()
    assert "300×16" in out
    assert err == f"wrote {target}\n"
    content = json.loads(target.read_text())[0]
    [entry] = content["results"]
    assert entry["contender"] == "cdist + topk"
    assert len(entry["measured"]["seconds"]) == 2
    assert entry["deviation"] < 1e-3
    assert shlex.split(content["command"])[:-1] == ["ldreg", "bench", "lid", "--device", "cpu", *arguments, "--json"]
    assert content["environment"]["threads"] >= 1
    assert content["environment"]["others"] is None or content["environment"]["others"] >= 0
    assert content["device"] == "cpu"


@pytest.mark.parametrize("name", BENCHMARKS)
@pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu)]
)
def test_quick_run_of_a_benchmark(name: str, device: str, tmp_path: Path) -> None:
    folder, benchmark = tmp_path / "new" / "bench", BENCHMARKS[name]
    # On a GPU each contender is a process that compiles for up to a minute; those of others run on any CPU too.
    taking_part = [key for key in benchmark.contenders if device == "cpu" or key.startswith("ldreg")]
    words = ["--device", device, "--sizes", "quick", "--repeats", "1", "--contenders", ",".join(taking_part)]
    assert main(["bench", name, *words, "--out", str(folder)]) == 0
    assert {path.name for path in folder.iterdir()} == {
        "RESULTS.md", *(f"{name}-{device}.{kind}" for kind in ("json", "svg", "png"))
    }  # fmt: skip
    content = json.loads((folder / f"{name}-{device}.json").read_text())[0]
    assert bool(content["environment"]["gpu"]) == (device == "cuda")
    seen = {(entry["contender"], *entry["size"]) for entry in content["results"]}
    assert seen == {(key, *size) for key in taking_part for size in benchmark.quick_sizes}
    for entry in content["results"]:
        assert entry["skipped"] == "" or entry["skipped"].startswith(("not installed", "runs only on"))
        assert entry["skipped"] or (entry["deviation"] or 0) < 1e-3, entry["contender"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("nothing", "what: expected one of lid, regularizer, views, step, all, got 'nothing'"),
        ("lid --sizes 200x3,", "sizes: expected full, quick or POINTSxDIMENSIONS such as 10kx128"),
        ("all --sizes 512x32", "sizes: expected full or quick for benchmarks of several kinds, got '512x32'"),
        ("all --contenders ldreg,nobody", "contenders: expected some of lid: ldreg, scikit-learn"),
        ("all --contenders ,", "got ''"),
        ("step --sizes 4x32:nosuchnet", "sizes: encoder name: expected small_cnn, resnet18"),
        ("regularizer --contenders faiss", "contenders: expected some of regularizer: ldreg, ldreg (compiled)"),
        ("lid --sizes 60x3", "k: expected less than 60, the smallest number of points, got 64"),
        ("step --sizes 32x16:small_cnn", "k: expected less than 64, the smallest number of points, got 64"),
        ("lid --k 1", "k: expected at least 2, got 1"),
        ("lid --repeats 0", "repeats: expected at least 1, got 0"),
        ("lid --threads 0", "threads: expected at least 1, got 0"),
        ("lid --seed -1", "seed: expected at least 0, got -1"),
        ("lid --json no/such/file.json", "no directory"),
    ],
)
def test_bad_arguments_are_one_line(capsys: Capture, arguments: str, message: str) -> None:
    assert main(["bench", *arguments.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ldreg bench: error: ")
    assert err.count("\n") == 1
    assert message in err


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def device(name: Any) -> str:
        return plan(["lid"], device=name)["lid"][0][1].device

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device("auto") == "cpu"
    assert main(["bench", "lid", "--device", "cuda"]) == 2
    assert "device: expected a CUDA device for 'cuda', got none" in capsys.readouterr().err
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert (device("auto"), device("cpu")) == ("cuda", "cpu")


def idle(setting: Setting) -> tuple[Measurement, None]:
    return Measurement((1.0,), None), None


def skipped(monkeypatch: pytest.MonkeyPatch, contender: Contender) -> Any:
    """Why a contender is skipped that takes the place of faiss."""
    monkeypatch.setitem(BENCHMARKS["lid"].contenders, "faiss", contender)
    [run] = measured_runs(plan(["lid"], sizes="100x3", contenders=["faiss"]))
    assert run.results[0].measured is None
    return run.results[0].skipped


def test_who_cannot_do_the_work_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert skipped(monkeypatch, Contender(idle, package="no_such")) == "not installed (pip install ldreg[bench])"
    assert skipped(monkeypatch, Contender(idle, devices=("cuda",))) == "runs only on CUDA"


@pytest.mark.parametrize(
    ("status", "stderr", "reason"),
    [
        (1, "Traceback\nValueError: no\n", "failed: ValueError: no"),
        (3, "", "failed: status 3"),
        (-9, "", "killed by signal 9, most likely out of memory"),
    ],
)
def test_failures_are_reasons(monkeypatch: pytest.MonkeyPatch, status: int, stderr: str, reason: str) -> None:
    seen: list[str] = []

    def note(command: object, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        seen.append(env["OMP_NUM_THREADS"])
        return subprocess.CompletedProcess([], status, "", stderr)

    monkeypatch.setattr(runner, "output_of", note)
    assert skipped(monkeypatch, Contender(idle)) == reason
    assert seen == [str(os.cpu_count())]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Measurements that were asked for, which take 1 µs for each pair of points.

    In 7 dimensions they fail; in 5 or 6 this process gets SIGTERM or SIGINT.
    """
    asked: list[str] = []

    def measured(name: str, key: str, setting: Setting) -> Result:
        asked.append(f"{name}: {key} at {setting.size}")
        if number := {5: signal.SIGTERM, 6: signal.SIGINT}.get(setting.size[1]):
            os.kill(os.getpid(), number)
        if setting.size[1] == 7:
            return Result(key, setting.size, skipped="failed: it cannot")
        return Result(key, setting.size, Measurement((1e-6 * setting.size[0] ** 2,), 5.0))

    monkeypatch.setattr(runner, "_measure", measured)
    monkeypatch.setattr(runner, "find_spec", lambda name: name)
    return asked


def test_who_would_take_too_long_is_skipped_with_an_estimate(asked: list[str]) -> None:
    [run] = measured_runs(plan(["lid"], sizes="1000x8,2000x4,10kx8", contenders=["ldreg", "cdist + topk"]))
    ours, theirs = (f"lid: {key} at " for key in ("ldreg", "cdist + topk"))
    assert asked == [ours + "1k×8", theirs + "1k×8", ours + "2k×4", theirs + "2k×4", ours + "10k×8"]
    last = run.results[-1]
    assert last.size == Points(10_000, 8)
    assert last.estimate == pytest.approx(100)  # by the size with as many dimensions, not by the larger one
    assert last.skipped == "would take some 100 s, by its time at 1k×8"


@pytest.mark.usefixtures("asked")
def test_progress_and_each_complete_benchmark_are_reported() -> None:
    seen: list[object] = []
    jobs = plan(["lid", "regularizer"], sizes="100x3,400x3", contenders=["ldreg"])
    for run in measured_runs(jobs, progress=lambda *step: seen.append(step)):
        seen.append(run.benchmark)
    assert seen == [
        ("ldreg at 100×3", 0), ("ldreg at 400×3", 0.25), "lid",
        ("ldreg at 100×3", 0.5), ("ldreg at 400×3", 0.75), "regularizer",
    ]  # fmt: skip


@pytest.mark.usefixtures("asked")
def test_bad_files_are_named_before_anything_is_measured(tmp_path: Path, capsys: Capture) -> None:
    neighbor, own = tmp_path / "views-cpu.json", tmp_path / "lid-cpu.json"
    neighbor.write_text("[{")
    own.write_text("[]")
    target = tmp_path / "all.json"
    assert main([*LID, "100x3", "--out", str(tmp_path), "--json", str(target)]) == 0
    first, second = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert first.startswith(f"ldreg bench: warning: {own} cannot be read and will be replaced: expected one run")
    assert second.startswith(f"ldreg bench: warning: {neighbor} cannot be read and is left out of RESULTS.md: ")
    assert neighbor.read_text() == "[{"
    assert from_json(own.read_text()) == from_json(target.read_text())
    assert "views" not in (tmp_path / "RESULTS.md").read_text()


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("broken", ["out/lid-cpu.png", "all.json"])
def test_what_cannot_be_written_costs_nothing_else(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    monkeypatch.setattr("ldreg.io.files.check_writable", lambda path: None)
    (tmp_path / broken).mkdir(parents=True)  # as if it had come in between
    assert main([*LID, "100x3", "--out", str(tmp_path / "out"), "--json", str(tmp_path / "all.json")]) == 2
    out, err = capsys.readouterr()
    assert "100×3" in out
    assert err.splitlines()[-1] == f"ldreg bench: error: cannot write '{tmp_path / broken}': Is a directory"
    kept = tmp_path / ("all.json" if broken.startswith("out") else "out/lid-cpu.json")
    assert len(from_json(kept.read_text())) == 1


def test_benchmarks_that_nobody_takes_part_in_are_left_out(tmp_path: Path, capsys: Capture, asked: list[str]) -> None:
    options = ["--device", "cpu", "--sizes", "quick", "--contenders", "faiss", "--out", str(tmp_path)]
    assert main(["bench", "all", *options]) == 0
    assert {entry.partition(" at")[0] for entry in asked} == {"lid: faiss"}
    assert capsys.readouterr().err.splitlines()[0].endswith("takes part: regularizer, views, step")


@pytest.mark.usefixtures("asked")
def test_nothing_measured_is_an_error_and_leaves_the_folder_as_it_was(tmp_path: Path, capsys: Capture) -> None:
    folder, target = tmp_path / "out", tmp_path / "all.json"
    assert main([*LID, "100x7", "--out", str(folder), "--json", str(target)]) == 2
    out, err = capsys.readouterr()
    assert "ldreg: failed: it cannot" in out
    assert err.splitlines()[-1].startswith("ldreg bench: error: nothing was measured of lid; ")
    assert list(folder.iterdir()) == []
    assert json.loads(target.read_text())[0]["results"][0]["skipped"] == "failed: it cannot"


def test_a_size_that_cannot_fit_is_an_error(capsys: Capture) -> None:
    assert main(["bench", "regularizer", "--device", "cpu", "--sizes", "99999999x9", "--contenders", "pseudocode"]) == 2
    out, err = capsys.readouterr()
    assert "pseudocode: would need 239999998.8 GB" in out
    assert "nothing was measured of regularizer" in err


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(("size", "status", "word"), [("100x5", 143, "terminated"), ("100x6", 130, "interrupted")])
def test_a_signal_saves_what_is_finished(tmp_path: Path, capsys: Capture, size: str, status: int, word: str) -> None:
    before = signal.getsignal(signal.SIGTERM)
    folder, target = tmp_path / "out", tmp_path / "all.json"
    assert main([*LID, f"100x3,{size}", "--out", str(folder), "--json", str(target)]) == status
    out, err = capsys.readouterr()
    assert "(interrupted: incomplete)" in out
    assert err.splitlines()[-1] == f"ldreg bench: {word}"
    [run] = from_json(target.read_text())
    assert not run.complete
    assert run.sizes == (Points(100, 3),)
    assert run.environment.keys() >= {"others", "date"}
    assert "(interrupted: incomplete)" in (folder / "RESULTS.md").read_text()
    assert from_json((folder / "lid-cpu.json").read_text()) == [run]
    assert signal.getsignal(signal.SIGTERM) == before


# A process with a child, both of which sleep for long; `deaf`: the first ignores SIGTERM.
SLEEPER = """
import pathlib, signal, subprocess, sys, time
if {deaf}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
target = pathlib.Path({path!r})
target.with_suffix(".new").write_text(str(child.pid))
target.with_suffix(".new").rename(target)
time.sleep(100)
"""


def processes(*options: str) -> dict[int, str]:
    """Processes that `ps` lists with these options, and their states."""
    done = subprocess.run(["ps", "-o", "pid=,stat=,comm=", *options], capture_output=True, text=True, check=False)
    fields = [line.split() for line in done.stdout.splitlines()]
    return {int(pid): state for pid, state, command, *_ in fields if command != "ps"}


@pytest.mark.parametrize("deaf", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_and_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, deaf: bool
) -> None:
    monkeypatch.setattr(runner, "_ENDING", 0.2)
    own = ("--ppid", str(os.getpid()))
    before, started = processes(*own).keys(), tmp_path / "child"  # other tests may have processes of their own
    wait = "import os, pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.01)\n"
    kill = wait + "os.kill(int(sys.argv[2]), int(sys.argv[3]))"
    helper = subprocess.Popen([sys.executable, "-c", kill, str(started), str(os.getpid()), str(int(number))])
    with stoppable(), pytest.raises(KeyboardInterrupt) as caught:
        output_of([sys.executable, "-c", SLEEPER.format(deaf=deaf, path=str(started))], dict(os.environ))
    helper.wait()
    assert isinstance(caught.value, TerminatedError) == (number == signal.SIGTERM)
    deadline = time.monotonic() + 5
    while any(not state.startswith("Z") for state in processes("-p", started.read_text()).values()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert processes(*own).keys() == before  # nobody is left, not even a zombie


def test_ignored_signals_stay_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stoppable():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            with pytest.raises(TerminatedError) as caught:
                os.kill(os.getpid(), signal.SIGTERM)
            assert caught.value.status == 143
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
