"""What LDReg costs is told from records of `ldreg bench step`, below the paper's wall-clock time."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.reproduce.words import put

from ldreg.bench.measure import Batches, Measurement
from ldreg.bench.results import Result, Run, to_json
from ldreg.cli import main
from ldreg.reproduce.jobs import record_paths
from ldreg.reproduce.studies import SCALES
from ldreg.reproduce.tables import step_cost

ROOT = Path(__file__).parents[2]
SIZE = Batches(500, 32, "resnet18")
WHERE = {
    "date": "2026-01-01 00:00 UTC", "commit": "abc1234", "processor": "Abacus", "cores": 2, "threads": 2,
    "gpu": "Colossus", "memory_gb": 8.0, "load": 0.1, "others": 0.01, "system": "Linux", "python": "3.11",
    "packages": {"torch": "2.11"},
}  # fmt: skip


def measured(contender: str, *seconds: float, without: float | None = None) -> Result:
    return Result(contender, SIZE, Measurement(seconds, None, without=without))


RUN = Run(
    "step", "cuda", "ldreg bench step", 64, 0, 3, WHERE,
    (
        measured("ldreg", 0.0099, 0.0101, 0.0102, without=0.01),
        measured("authors' LDReg", 0.0125, without=0.01),
        measured("lightly", 0.1, 0.2, 0.25),
        Result("ldreg (eager)", SIZE, skipped="runs only on CUDA"),
    ),
)  # fmt: skip


def texts(folder: Path, *runs: Run) -> str:
    (folder / "step-cuda.json").write_text(to_json(list(runs)), encoding="utf-8")
    return "\n\n".join(step_cost(sorted(folder.glob("step-*.json"))))


def wall_clock(folder: Path) -> str:
    """The text of Table 4 and what follows, of runs of SimCLR with and without LDReg in the folder."""
    for recipe in ("simclr", "simclr_ldreg"):
        results = {"minutes": 1.0, "images_per_second": 100.0, "linear": 0.9}
        put(folder, SCALES["digits"].arm(recipe), [results])
    target = folder / "text.md"
    assert main(["reproduce", "table1,wallclock", "--results", str(folder), "--write", str(target)]) == 0
    return target.read_text(encoding="utf-8").partition("\n## Table 4")[2]


def test_a_table_has_rates_what_ldreg_adds_and_its_origin(tmp_path: Path) -> None:
    told = texts(tmp_path, RUN)
    # 500 / 0.0101 = 49,505; 0.0101 is 1 % more than 0.01, 0.0099 1 % less: these blocks do not tell which it is.
    assert "| ldreg | 500 × 32 px, resnet18 | 49,505 | 50,000 | 1.0 (-1.0 to 2.0) ≈ |" in told
    assert "| authors' LDReg | 500 × 32 px, resnet18 | 40,000 | 50,000 | 25.0 |" in told
    assert "| lightly | 500 × 32 px, resnet18 | – | 2,500 | – |" in told
    for part in ("ldreg (eager) (runs only on CUDA)", "\n`ldreg bench step`\n", "commit abc1234. Colossus; Abacus"):
        assert part in told
    assert "(interrupted: incomplete)" in texts(tmp_path, replace(RUN, complete=False))
    results = (measured("ldreg", 0.0105, 0.011, 0.012, without=0.01), measured("x", 0.0099999, without=0.01))
    told = texts(tmp_path, replace(RUN, results=results))
    assert "| 10.0 (5.0 to 20.0) |" in told
    assert "| 50,000 | 0.0 |" in told
    assert "≈" not in told


def test_the_results_file_has_the_table_or_says_that_it_is_missing(tmp_path: Path) -> None:
    without = wall_clock(tmp_path)
    assert "One training step" not in without
    missing = without.partition("## What is missing")[2]
    assert "- Images per second with and without LDReg in the same process (step-\\*.json by ldreg bench" in missing
    texts(tmp_path, RUN)
    told = wall_clock(tmp_path)
    assert told.index("2 runs of 40 epochs.") < told.index("| ldreg | 500 × 32 px, resnet18 |") < told.index("\n## ")
    assert "What is missing" not in told
    assert "no table here shows" not in told


def test_the_record_that_is_kept_is_no_run() -> None:
    kept = ROOT / "results" / "cifar10" / "step-cuda.json"
    assert kept not in [path for seeds in record_paths(kept.parent).values() for path in seeds.values()]


GOOD = to_json([RUN])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[{", "got JSONDecodeError: Expecting property name"),
        ("3", "TypeError"),
        ("[]", "got ValueError: runs of nothing\n"),
        (b"\xff\xfe", "can't decode byte"),
        pytest.param("[" * 100_000, "RecursionError", id="deep"),
        (to_json([RUN, RUN]), "got ValueError: runs of step, step\n"),
        (to_json([replace(RUN, results=(RUN.results[3],))]), "got ValueError: runs of nothing\n"),
        (GOOD.replace('"commit"', '"beads"'), "KeyError: 'commit'"),
        (GOOD.replace('"without": 0.01', '"without": 0'), "ZeroDivisionError"),
        (GOOD.replace("0.0125\n", "NaN\n"), "cannot convert float NaN to integer"),
        (GOOD.replace('"contender": "lightly"', '"contender": 3'), "AttributeError"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_such_record_is_refused_in_one_line(
    tmp_path: Path, content: str | bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert content != GOOD
    wall_clock(tmp_path)
    path = tmp_path / "step-cuda.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    capsys.readouterr()
    assert main(["reproduce", "wallclock", "--results", str(tmp_path), "--write", str(tmp_path / "text.md")]) == 2
    error = capsys.readouterr().err
    assert f"{path}: expected a run of ldreg bench step as its --json has it, got " in error
    assert said in error
    assert error.count("\n") == 1
