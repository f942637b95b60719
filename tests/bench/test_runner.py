import json
import shlex
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from ldreg.bench import runner
from ldreg.bench.benchmark import Contender, Outcome, Points, Setting
from ldreg.bench.measure import Measurement
from ldreg.bench.record import Result, Run
from ldreg.bench.runner import Others, Plan, commit, run
from ldreg.bench.suite import BENCHMARKS
from ldreg.cli import main

Capture = pytest.CaptureFixture[str]


def test_command_runs_end_to_end(tmp_path: Path, capsys: Capture) -> None:
    arguments = ["--sizes", "300x16", "--k", "10", "--repeats", "2", "--contenders", "cdist + topk"]
    target = tmp_path / "lid.json"
    assert main(["bench", "lid", "--device", "cpu", *arguments, "--json", str(target)]) == 0
    out, err = capsys.readouterr()
    assert "300 × 16" in out
    assert err == f"wrote {target}\n"
    content = json.loads(target.read_text())[0]
    [entry] = content["results"]
    assert entry["contender"] == "cdist + topk"
    assert len(entry["measured"]["seconds"]) == 2
    assert entry["deviation"] < 1e-3
    assert shlex.split(content["command"])[:-1] == ["ldreg", "bench", "lid", "--device", "cpu", *arguments, "--json"]
    assert content["environment"]["threads"] >= 1
    assert content["device"] == "cpu"


@pytest.mark.slow
def test_quick_run_of_everything(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "bench"
    options = ["--device", "cpu", "--sizes", "quick", "--repeats", "1", "--threads", "1"]
    assert main(["bench", "all", *options, "--out", str(folder)]) == 0
    names = {f"{name}-cpu{suffix}" for name in BENCHMARKS for suffix in (".json", ".svg", ".png")}
    assert {path.name for path in folder.iterdir()} == {"RESULTS.md", *names}
    for name, benchmark in BENCHMARKS.items():
        content = json.loads((folder / f"{name}-cpu.json").read_text())[0]
        seen = {(entry["contender"], *entry["size"]) for entry in content["results"]}
        assert seen == {(key, *size) for key in benchmark.contenders for size in benchmark.quick_sizes}
        for entry in content["results"]:
            assert entry["skipped"] == "" or entry["skipped"].startswith(("not installed", "runs on CUDA"))
            assert entry["skipped"] or (entry["deviation"] or 0) < 1e-3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("nothing", "what: expected one of lid, regularizer, views, step, all, got 'nothing'"),
        ("lid --sizes 10by3", "sizes: expected full, quick or POINTSxDIMENSIONS such as 10kx128, got '10by3'"),
        ("lid --sizes 0x3", "got '0x3'"),
        ("lid --sizes 200x3,", "got ''"),
        ("views --sizes 512by32", "sizes: expected full, quick or [files:]IMAGESxPIXELS such as 512x32, got '512by32'"),
        ("all --sizes 512x32", "sizes: expected full or quick for benchmarks of several kinds, got '512x32'"),
        ("lid --contenders ldreg,nobody", "contenders: expected some of ldreg, scikit-learn"),
        ("all --contenders ldreg,nobody", "; regularizer: ldreg, ldreg (compiled), ldreg (captured), pseudocode"),
        ("all --contenders ,", "got ''"),
        ("step --sizes 4x32:nosuchnet", "sizes: encoder name: expected small_cnn, resnet18"),
        (
            "regularizer --contenders faiss",
            "contenders: expected some of ldreg, ldreg (compiled), ldreg (captured), pseudocode",
        ),
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
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert Plan(("lid",), device="auto").place == "cpu"
    assert main(["bench", "lid", "--device", "cuda"]) == 2
    assert "device: expected a CUDA device for 'cuda', got none" in capsys.readouterr().err
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert Plan(("lid",), device="auto").place == "cuda"


def idle(setting: Setting) -> Outcome:
    return Outcome(Measurement((1.0,), None))


def skipped(monkeypatch: pytest.MonkeyPatch, contender: Contender) -> str:
    """Why a contender is skipped that takes the place of faiss."""
    monkeypatch.setitem(BENCHMARKS["lid"].contenders, "faiss", contender)
    record = run(Plan(("lid",), sizes="100x3", contenders=("faiss",)))[0]
    assert record.results[0].measured is None
    return record.results[0].skipped


def test_what_is_not_installed_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    contender = Contender(idle, package="no_such_package")
    assert skipped(monkeypatch, contender) == "not installed (pip install ldreg[bench])"


def test_what_does_not_fit_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "available_bytes", lambda device: 3_000_000_000)
    contender = Contender(idle, bytes_needed=lambda size, device: size.points * 10**8)
    assert skipped(monkeypatch, contender) == "would need 10.0 GB, 3.0 GB are available"


@pytest.mark.parametrize(
    ("status", "stderr", "reason"),
    [
        (1, "Traceback\nValueError: no\n", "failed: ValueError: no"),
        (3, "", "failed: status 3"),
        (-9, "", "killed by signal 9, most likely out of memory"),
    ],
)
def test_what_fails_is_told(monkeypatch: pytest.MonkeyPatch, status: int, stderr: str, reason: str) -> None:
    def fail(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], status, "", stderr)

    monkeypatch.setattr(runner, "_spawn", fail)
    assert skipped(monkeypatch, Contender(idle)) == reason


def test_every_process_gets_the_same_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str]] = []

    def note(command: object, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        seen.append(env)
        return subprocess.CompletedProcess([], 1, "", "")

    monkeypatch.setattr(runner, "output_of", note)
    monkeypatch.setattr(runner, "environment", lambda threads, device: {})
    run(Plan(("lid",), sizes="100x3", contenders=("ldreg", "cdist + topk"), threads=7))
    assert [env["OMP_NUM_THREADS"] for env in seen] == ["7", "7"]


def test_who_runs_elsewhere_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert skipped(monkeypatch, Contender(idle, devices=("cuda",))) == "runs on CUDA alone"


def test_who_would_take_too_long_is_skipped_with_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def measured(plan: Plan, name: str, result: Result) -> Result:
        asked.append(f"{result.contender} {result.size}")
        return replace(result, measured=Measurement((1e-6 * result.size.points**2,), None))

    monkeypatch.setattr(runner, "_measure", measured)
    sizes = "1000x8,2000x4,10kx8"
    results = run(Plan(("lid",), sizes=sizes, contenders=("ldreg", "cdist + topk")))[0].results
    assert asked == ["ldreg 1k×8", "cdist + topk 1k×8", "ldreg 2k×4", "cdist + topk 2k×4", "ldreg 10k×8"]
    last = results[-1]
    assert last.size == Points(10_000, 8)
    assert last.estimate == pytest.approx(100)  # by the size that differs in points alone, not by the larger one
    assert last.skipped == "would take some 100 s, by its time at 1k×8"


def test_progress_goes_from_nothing_to_nearly_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_spawn", lambda *_: subprocess.CompletedProcess([], 1, "", ""))
    seen: list[tuple[str, float]] = []
    run(
        Plan(("lid",), sizes="100x3,200x3", contenders=("ldreg", "cdist + topk")),
        lambda step, fraction: seen.append((step, fraction)),
    )
    assert [fraction for _, fraction in seen] == [0, 0.25, 0.5, 0.75]
    assert seen[0][0] == "ldreg at 100×3"


def test_each_benchmark_is_handed_over_when_it_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_spawn", lambda *_: subprocess.CompletedProcess([], 1, "", ""))
    seen: list[str] = []
    plan = Plan(("lid", "regularizer"), sizes="quick", contenders=("ldreg",))
    records = run(plan, lambda step, fraction: seen.append(step), lambda record: seen.append(record.benchmark))
    assert seen == ["ldreg at 300×16", "lid", "ldreg at 200×16", "regularizer"]
    assert [record.benchmark for record in records] == ["lid", "regularizer"]


def test_benchmarks_without_any_of_the_contenders_are_left_out() -> None:
    plan = Plan(tuple(BENCHMARKS), sizes="100x3", contenders=("faiss",))  # sizes of points are for those that stay
    assert (plan.taken, plan.left_out) == (("lid",), ("regularizer", "views", "step"))
    assert Plan(tuple(BENCHMARKS), contenders=("pseudocode", "faiss"), k=10).taken == ("lid", "regularizer")
    with pytest.raises(ValueError, match="benchmarks: expected at least one"):
        Plan(())


def test_an_interruption_hands_over_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(plan: Plan, name: str, result: Result) -> Result:
        if result.size.points == 300:
            raise KeyboardInterrupt
        return replace(result, measured=Measurement((1.0,), None))

    monkeypatch.setattr(runner, "_measure", measured)
    seen: list[Run] = []
    with pytest.raises(KeyboardInterrupt):
        run(Plan(("lid",), sizes="100x3,200x3,300x3", contenders=("ldreg",)), finished=seen.append)
    [partial] = seen
    assert not partial.complete
    assert partial.sizes == (Points(100, 3), Points(200, 3))
    assert partial.environment.keys() >= {"others", "date"}
    with pytest.raises(KeyboardInterrupt):  # before anything was measured
        run(Plan(("lid",), sizes="300x3", contenders=("ldreg",)), finished=seen.append)
    assert len(seen) == 1


def test_a_worker_prints_its_outcome_last(capsys: Capture) -> None:
    setting = Setting(Points(120, 4), k=10, repeats=1)
    runner.main(json.dumps(asdict(runner.Job("regularizer", "pseudocode", setting))))
    content = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(content["measured"]["seconds"]) == 1
    assert content["deviation"] < 1e-3


def test_commit_outside_of_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert commit(tmp_path) is None
    monkeypatch.setenv("LDREG_COMMIT", "abc1234")  # a copy on another machine
    assert commit(tmp_path) == "abc1234"


def test_commit_says_whether_the_folder_differs(tmp_path: Path) -> None:
    inner = tmp_path / "package" / "module"
    inner.mkdir(parents=True)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (inner / "file").write_text("1")
    for step in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *step], check=True)
    clean = commit(inner)
    assert clean is not None
    assert len(clean) == 10
    (tmp_path / "elsewhere").write_text("not ours")
    assert commit(inner) == clean
    (inner / "file").write_text("2")
    assert commit(inner) == f"{clean} with local changes"


def test_own_work_is_not_that_of_others() -> None:
    others = Others()
    total = sum(number * number for number in range(1_000_000))
    cores = others.cores()
    assert total > 0
    assert cores is None or cores >= 0
