import json
import subprocess
from pathlib import Path

import pytest

from ldreg.benchmarking import runner
from ldreg.benchmarking.contest import Contender, Size
from ldreg.benchmarking.environment import Others, commit
from ldreg.benchmarking.runner import Plan, run
from ldreg.benchmarking.suite import BENCHMARKS
from ldreg.cli import main

Capture = pytest.CaptureFixture[str]


def test_command_runs_end_to_end(tmp_path: Path, capsys: Capture) -> None:
    arguments = ["--sizes", "300x16", "--k", "10", "--repeats", "2", "--contenders", "ldreg,torch chunks"]
    target = tmp_path / "lid.json"
    assert main(["bench", "lid", *arguments, "--json", str(target)]) == 0
    out, err = capsys.readouterr()
    assert "300 × 16" in out
    assert err == f"wrote {target}\n"
    content = json.loads(target.read_text())[0]
    assert [entry["contender"] for entry in content["results"]] == ["ldreg", "torch chunks"]
    for entry in content["results"]:
        assert len(entry["measured"]["seconds"]) == 2
        assert entry["deviation"] < 1e-3
    assert content["command"].startswith("ldreg bench lid --sizes 300x16 --contenders 'ldreg,torch chunks' --k 10")
    assert content["environment"]["threads"] >= 1


@pytest.mark.slow
def test_quick_run_of_everything(tmp_path: Path, capsys: Capture) -> None:
    assert main(["bench", "all", "--sizes", "quick", "--repeats", "1", "--out", str(tmp_path / "new" / "bench")]) == 0
    written = {path.name for path in (tmp_path / "new" / "bench").iterdir()}
    assert written == {"RESULTS.md", "lid.json", "lid.svg", "regularizer.json", "regularizer.svg"}
    for name, benchmark in BENCHMARKS.items():
        content = json.loads((tmp_path / "new" / "bench" / f"{name}.json").read_text())[0]
        seen = {(entry["contender"], *entry["size"]) for entry in content["results"]}
        assert seen == {(key, *size) for key in benchmark.contenders for size in benchmark.quick_sizes}
        for entry in content["results"]:
            assert entry["skipped"] in ("", "not installed (pip install ldreg[bench])")
            assert entry["skipped"] or entry["deviation"] < 1e-3
    assert capsys.readouterr().out.count("best other") == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("nothing", "expected one of 'lid', 'regularizer', 'all', got nothing"),
        ("lid --sizes 10by3", "sizes: expected full, quick or POINTSxDIMENSIONS such as 10kx128, got '10by3'"),
        ("lid --sizes 0x3", "got '0x3'"),
        ("lid --sizes 200x3,", "got ''"),
        ("lid --contenders ldreg,nobody", "contenders: expected some of ldreg, scikit-learn"),
        ("regularizer --contenders faiss", "contenders: expected some of ldreg, pseudocode, cdist + topk, got 'faiss'"),
        ("lid --sizes 60x3", "k: expected less than 60, the smallest number of points, got 64"),
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


def skipped(monkeypatch: pytest.MonkeyPatch, contender: Contender) -> str:
    """Why a contender is skipped that takes the place of faiss."""
    monkeypatch.setitem(BENCHMARKS["lid"].contenders, "faiss", contender)
    record = run(Plan(("lid",), sizes="100x3", contenders=("faiss",)))[0]
    assert record.results[0].measured is None
    return record.results[0].skipped


def test_what_is_not_installed_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    contender = Contender(lambda x, k: x, package="no_such_package")
    assert skipped(monkeypatch, contender) == "not installed (pip install ldreg[bench])"


def test_what_does_not_fit_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "available_bytes", lambda: 3_000_000_000)
    contender = Contender(lambda x, k: x, bytes_needed=lambda size: size.points * 10**8)
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
    assert skipped(monkeypatch, Contender(lambda x, k: x)) == reason


def test_every_process_gets_the_same_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str]] = []

    def note(*_: object, env: dict[str, str], **__: object) -> subprocess.CompletedProcess[str]:
        seen.append(env)
        return subprocess.CompletedProcess([], 1, "", "")

    monkeypatch.setattr(subprocess, "run", note)
    monkeypatch.setattr(runner, "environment", lambda threads: {})
    run(Plan(("lid",), sizes="100x3", contenders=("ldreg", "torch chunks"), threads=7))
    assert [env["OMP_NUM_THREADS"] for env in seen] == ["7", "7"]


def test_full_sizes_are_the_issue_of_the_goals() -> None:
    for benchmark in BENCHMARKS.values():
        assert {goal.size for goal in benchmark.goals} <= set(benchmark.sizes)
    assert Plan(("lid",)).sizes_of("lid")[1] == Size(10_000, 128)


def test_progress_goes_from_nothing_to_nearly_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_spawn", lambda *_: subprocess.CompletedProcess([], 1, "", ""))
    seen: list[tuple[str, float]] = []
    run(
        Plan(("lid",), sizes="100x3,200x3", contenders=("ldreg", "torch chunks")),
        lambda step, fraction: seen.append((step, fraction)),
    )
    assert [fraction for _, fraction in seen] == [0, 0.25, 0.5, 0.75]
    assert seen[0][0] == "ldreg at 100×3"


def test_commit_outside_of_git(tmp_path: Path) -> None:
    assert commit(tmp_path) is None


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
