"""A long run stays flat: memory, open files, threads and the time of a step."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from tests.train.options import as_words

from ldreg.monitor.log import read_metrics
from ldreg.train.folder import RunFolder

STEPS = 5_000
TENTH = STEPS // 10
EPOCH = 5  # steps of an epoch of digits
OPTIONS = {
    "recipe": "digits/simclr_ldreg",
    "schedule.epochs": str(STEPS // EPOCH),
    "monitor.every_steps": "25",
    "monitor.every_epochs": "10",
    "trainer.device": "cpu",
    "trainer.threads": "1",
}

Notes = list[dict[str, float]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, Notes]:
    """Five thousand steps with the monitor on, and what the process noted at each."""
    folder = tmp_path_factory.mktemp("long")
    script = Path(__file__).with_name("long_run.py")
    done = subprocess.run(
        [sys.executable, str(script), str(folder / "run"), str(folder / "notes.json"), *as_words(OPTIONS)],
        env=dict(os.environ, OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return RunFolder(folder / "run"), json.loads((folder / "notes.json").read_text())


def tenth(notes: Notes, number: int) -> Notes:
    """The notes of one tenth of the run, counted from 1."""
    return notes[(number - 1) * TENTH : number * TENTH]


def middle(notes: Notes, name: str) -> float:
    return statistics.median(note[name] for note in notes)


def total(notes: Notes, name: str) -> float:
    return sum(note[name] for note in notes)


def pace(notes: Notes) -> float:
    """Time of steps by the processor's clock, with all that the monitor does, against work that stays the same.

    Other processes slow both, by the memory and the cores that they share.
    """
    return total(notes, "cpu") / total(notes, "yardstick")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads what the system knows of a process")
class TestFiveThousandSteps:
    def test_the_monitor_was_on_to_the_end(self, run: tuple[RunFolder, Notes]) -> None:
        folder, notes = run
        assert [note["step"] for note in notes] == list(range(1, STEPS + 1))
        metrics = read_metrics(folder.metrics)
        assert len(metrics["batch/lid"]) == STEPS // 25 + 1
        assert len(metrics["set/linear"]) == STEPS // EPOCH // 10 + 1

    def test_memory_grows_by_less_than_a_hundredth(self, run: tuple[RunFolder, Notes]) -> None:
        early, late = (middle(tenth(run[1], number), "bytes") for number in (2, 10))
        print(f"memory: {early / 1e6:.1f} MB in the second tenth, {late / 1e6:.1f} MB in the last")
        assert late < 1.01 * early

    def test_no_file_and_no_thread_is_left_open(self, run: tuple[RunFolder, Notes]) -> None:
        for name in ("files", "threads", "python_threads"):
            early, late = ({note[name] for note in tenth(run[1], number)} for number in (2, 10))
            print(f"{name}: {sorted(early)} in the second tenth, {sorted(late)} in the last")
            assert max(late) <= max(early), name

    def test_the_last_steps_take_no_longer(self, run: tuple[RunFolder, Notes]) -> None:
        notes = run[1]
        for clock in ("seconds", "cpu", "yardstick"):
            told = ", ".join(f"{total(tenth(notes, number), clock) / TENTH * 1000:.2f}" for number in range(1, 11))
            print(f"ms a step by {clock}, tenth by tenth: {told}")
        print("against the yardstick: " + ", ".join(f"{pace(tenth(notes, number)):.1f}" for number in range(1, 11)))
        assert pace(tenth(notes, 10)) < 1.1 * pace(tenth(notes, 2))
