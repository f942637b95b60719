"""The command itself with two processes: one process's weights, one writer, and an end for all when one fails."""

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.train.options import as_words, changed
from tests.train.processes import PATIENCE, state, wait_for
from tests.train.states import assert_same
from torch import Tensor

from ldreg.monitor.log import read_metrics
from ldreg.train.checkpoints import LAST, PREVIOUS, latest
from ldreg.train.folder import RunFolder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes by their environment"),
]

TEARDOWN = 60.0  # seconds after which no process may be left when one has failed
IMAGES, BATCH = 48, 16
# Crops of files are drawn by (seed, epoch, index) alone. With no other draw, two processes see what one sees.
OPTIONS = {
    "data.name": "folder",
    "data.size": "16",
    "data.workers": "0",
    "batch_size": str(BATCH),
    "ldreg.k": "4",
    "optimizer.name": "sgd",
    "optimizer.lr": "0.01",
    "optimizer.lr_scaling": "none",
    "schedule.warmup_epochs": "0",
    "views.jitter": "0",
    "views.grayscale": "0",
    "monitor.k": "4",
    "monitor.knn_k": "4",
    "monitor.every_steps": "1",
    "monitor.every_epochs": "100",
    "trainer.device": "cpu",
    "trainer.threads": "1",
}
# What is said when a process is killed: by the other one, or by Lightning in the first, which watches those it started.
CAUSES = {
    "0": "ldreg( pretrain)?: error: another process of the run ended",
    "1": "ldreg( pretrain)?: error: another process of the run ended|Child process with PID .* terminated with code -9",
}
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images that differ in size."""
    root = tmp_path_factory.mktemp("images")
    write_images(root)
    return root


def write_images(root: Path) -> None:
    generator = np.random.default_rng(0)
    for number in range(IMAGES):
        path = root / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        height, width = generator.integers(20, 28, 2)
        shade = np.linspace(0, 200, width, dtype=np.uint8)[None, :, None] + generator.integers(0, 56, (height, 1, 3))
        Image.fromarray(shade.astype(np.uint8)).save(path)


@dataclass
class Command:
    """A process of the command, and all that it started: they are known by a mark in their environment."""

    words: list[str]
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mark = f"LDREG_TEST={uuid.uuid4()}"
        name, _, value = self.mark.partition("=")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **self.environment, name: value}
        self._said = self.folder / f"{value}.txt"
        with self._said.open("w") as said:
            self.process = subprocess.Popen(
                [sys.executable, *self.words], cwd=self.folder, env=environment, stdout=said, stderr=said
            )

    @property
    def said(self) -> str:
        return self._said.read_text(errors="replace")

    def environments(self) -> dict[int, list[str]]:
        """The environment variables of its processes that have not ended."""
        found = {}
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                variables = path.read_bytes().decode(errors="replace").split("\0")
                zombie = ") Z " in path.with_name("stat").read_text()
            except OSError:
                continue  # it ended meanwhile, or is another user's
            if self.mark in variables and not zombie:
                found[int(path.parent.name)] = variables
        return found

    def alive(self, restart: int | None = None) -> dict[int, str]:
        """Processes that have not ended, with their rank; with `restart` those of that attempt of torchrun, from 0."""
        attempt = self.mark if restart is None else f"TORCHELASTIC_RESTART_COUNT={restart}"
        found = {}
        for pid, variables in self.environments().items():
            if attempt in variables:
                found[pid] = next((one[11:] for one in variables if one.startswith("LOCAL_RANK=")), "0")
        return found

    def wait(self, seconds: float = PATIENCE) -> int:
        """The exit status, once no process is left."""
        deadline = time.monotonic() + seconds
        try:
            status = self.process.wait(timeout=seconds)
            wait_for(lambda: not self.alive(), seconds=max(1.0, deadline - time.monotonic()))
        except (subprocess.TimeoutExpired, AssertionError):
            raise AssertionError(f"still there after {seconds:.0f} s: {self.alive()}\n{self.said}") from None
        return status

    def stop(self) -> None:
        """End what is left of it."""
        for pid in self.alive():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


Start = Callable[..., Command]


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """Starts commands, none of which outlives the tests."""
    started: list[Command] = []

    def starter(*words: str, folder: Path, launcher: list[str] | None = None, **environment: str) -> Command:
        started.append(Command([*(launcher or []), "-m", "ldreg", "pretrain", *words], folder, environment))
        return started[-1]

    yield starter
    for command in started:
        command.stop()


def words(recipe: str, images: Path, *, devices: int, epochs: int = 2, **options: str) -> list[str]:
    own = {"recipe": f"digits/{recipe}", "data.path": str(images), "schedule.epochs": str(epochs)}
    own["trainer.devices"] = str(devices)
    return as_words(changed({**OPTIONS, **own}, **options))


def weights(run: RunFolder) -> dict[str, Tensor]:
    found: dict[str, Tensor] = state(run.checkpoints / LAST)["state_dict"]
    return found


@dataclass(frozen=True)
class Pair:
    """The same run by one process and by two, and what the latter said."""

    one: RunFolder
    two: RunFolder
    said: str


@pytest.fixture(scope="module", params=["simclr_ldreg", "byol_ldreg"])
def pair(request: pytest.FixtureRequest, images: Path, start: Start, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("pair")
    single = start(*words(request.param, images, devices=1), "--out", "one", folder=folder)
    assert single.wait() == 0, single.said
    double = start(*words(request.param, images, devices=2), "--out", "two", folder=folder)
    assert double.wait() == 0, double.said
    return Pair(RunFolder(folder / "one"), RunFolder(folder / "two"), double.said)


def test_two_processes_end_with_the_weights_of_one(pair: Pair) -> None:
    one, two = weights(pair.one), weights(pair.two)
    assert one.keys() == two.keys()
    assert state(pair.two.checkpoints / LAST)["global_step"] == 2 * IMAGES // BATCH
    furthest = distance(one, two)
    assert max(furthest.values()) < 5e-5, furthest
    # The second epoch alone moved them a hundred times as far as they may differ.
    moved = distance(two, state(pair.two.checkpoints / PREVIOUS)["state_dict"])
    assert max(value for name, value in moved.items() if name.endswith("weight")) > 5e-3


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> dict[str, float]:
    """How far the entries of each tensor lie apart at most."""
    return {name: float((a[name].double() - b[name].double()).abs().max()) for name in a if a[name].numel()}


def test_two_processes_log_the_losses_of_one_and_each_once(pair: Pair) -> None:
    one, two = read_metrics(pair.one.metrics), read_metrics(pair.two.metrics)
    assert one.keys() == two.keys()
    for name in ("batch/loss", "terms/ssl_loss", "terms/regularizer"):
        assert [step for step, _, _ in two[name]] == list(range(1, 7))
        np.testing.assert_allclose([row[2] for row in two[name]], [row[2] for row in one[name]], atol=1e-4)
    for name, rows in two.items():
        assert max(Counter(step for step, _, _ in rows).values()) == 1, name


def test_one_process_alone_speaks_and_says_nothing_else(pair: Pair) -> None:
    for line in ("pretraining into", "epoch 2/2", "done in"):
        assert pair.said.count(line) == 1, pair.said
    assert pair.two.log.read_text().count("pretraining into") == 1
    expected = (
        "pretraining into |before training: |epoch |LID, |effective rank |linear probe |kNN |nothing unus|done in "
    )
    assert [line for line in pair.said.splitlines() if not re.match(expected, line)] == []


@pytest.mark.parametrize("late", ["0", "1"])
def test_torchrun_does_the_same_whichever_process_comes_first(
    late: str, images: Path, start: Start, tmp_path: Path
) -> None:
    asked = words("byol_ldreg", images, devices=2)
    command = start(*asked, "--out", "run", folder=tmp_path, launcher=TORCHRUN, **delayed(late, tmp_path))
    assert command.wait() == 0, command.said
    own = start(*asked, "--out", "own", folder=tmp_path)
    assert own.wait() == 0, own.said
    assert_same(weights(RunFolder(tmp_path / "run")), weights(RunFolder(tmp_path / "own")))


def delayed(late: str, folder: Path) -> dict[str, str]:
    """An environment in which the process of this rank starts some seconds after the other."""
    hook = folder / "hook"
    hook.mkdir()
    text = "import os, time\nif os.environ.get('RANK') == os.environ['LDREG_TEST_LATE']:\n    time.sleep(5)\n"
    (hook / "sitecustomize.py").write_text(text)
    found = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(hook), *([found] if found else [])]), "LDREG_TEST_LATE": late}


@pytest.fixture(scope="module")
def unbroken(images: Path, start: Start, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The state that a run of two processes ends with when nothing happens to it."""
    folder = tmp_path_factory.mktemp("unbroken")
    command = start(*words("byol_ldreg", images, devices=2, epochs=20), "--out", "run", folder=folder)
    assert command.wait() == 0, command.said
    return state(folder / "run" / "checkpoints" / LAST)


@pytest.mark.parametrize("victim", ["0", "1"])
def test_when_one_process_is_killed_the_other_ends_and_the_run_resumes_bitwise(
    victim: str, unbroken: dict[str, Any], images: Path, start: Start, tmp_path: Path
) -> None:
    asked = words("byol_ldreg", images, devices=2, epochs=20, trainer__checkpoint_steps="2")
    broken = start(*asked, "--out", "run", folder=tmp_path)
    run = RunFolder(tmp_path / "run")
    wait_for(lambda: latest(run.checkpoints) is not None, broken.process)
    pids = [pid for pid, rank in broken.alive().items() if rank == victim]
    assert len(pids) == 1, broken.said
    os.kill(pids[0], signal.SIGKILL)
    assert broken.wait(TEARDOWN) != 0
    assert "Traceback" not in broken.said
    assert re.search(CAUSES[victim], broken.said), broken.said
    newest = latest(run.checkpoints)
    assert newest is not None
    assert newest.step < unbroken["global_step"]
    resumed = start("--resume", "run", folder=tmp_path)
    assert resumed.wait() == 0, resumed.said
    ended = state(run.checkpoints / LAST)
    assert ended["global_step"] == unbroken["global_step"]
    assert_same(ended["state_dict"], unbroken["state_dict"])


# A process that waits without noticing that the other is gone, as one does whose GPU waits.
STUCK = """
import os, sys, time
from pathlib import Path
from ldreg.cli import main
from ldreg.train.checkpoints import FiniteGuard

def check(self):
    if os.environ["LOCAL_RANK"] == os.environ["LDREG_TEST_STUCK"]:
        Path("stuck").touch()
        time.sleep(600)

FiniteGuard.check = check
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("victim", ["0", "1"])
def test_when_one_process_is_killed_another_that_notices_nothing_ends_with_the_cause(
    victim: str, images: Path, tmp_path: Path
) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    asked = ["stuck.py", "pretrain", *words("simclr_ldreg", images, devices=2), "--out", "run"]
    command = Command(asked, tmp_path, {"LDREG_TEST_STUCK": {"0": "1", "1": "0"}[victim]})
    try:
        wait_for((tmp_path / "stuck").exists, command.process)
        [pid] = [pid for pid, rank in command.alive().items() if rank == victim]
        os.kill(pid, signal.SIGKILL)
        assert command.wait(TEARDOWN) != 0
    finally:
        command.stop()
    assert re.search(CAUSES[victim], command.said), command.said


@pytest.mark.parametrize("victim", ["0", "1"])
def test_torchrun_brings_a_run_back_when_one_process_is_killed(
    victim: str, unbroken: dict[str, Any], images: Path, start: Start, tmp_path: Path
) -> None:
    asked = words("byol_ldreg", images, devices=2, epochs=20, trainer__checkpoint_steps="2")
    command = start(*asked, "--out", "run", folder=tmp_path, launcher=[*TORCHRUN, "--max-restarts", "2"])
    run = RunFolder(tmp_path / "run")
    for restart in range(2):  # once by --out, and once more where the run was brought back already
        step = reached(run)
        wait_for(lambda: reached(run) > step, command.process)  # noqa: B023
        [pid] = [pid for pid, rank in command.alive(restart).items() if rank == victim]
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{pid}").exists() or bool(command.alive(restart + 1)), seconds=TEARDOWN)  # noqa: B023
    assert command.wait() == 0, command.said
    assert command.said.count("pretraining into run") == 1
    assert command.said.count("going on from run/checkpoints/") == 2, command.said
    ended = state(run.checkpoints / LAST)
    assert ended["global_step"] == unbroken["global_step"]
    assert_same(ended["state_dict"], unbroken["state_dict"])


def reached(run: RunFolder) -> int:
    """The step of the newest checkpoint; 0 before there is one."""
    newest = latest(run.checkpoints)
    return 0 if newest is None else newest.step


@pytest.mark.parametrize("delay", [0.0, 0.07, 0.4, 0.9])
def test_when_the_run_is_terminated_all_stop_at_one_step_and_it_resumes_bitwise(
    delay: float, unbroken: dict[str, Any], images: Path, start: Start, tmp_path: Path
) -> None:
    asked = words("byol_ldreg", images, devices=2, epochs=20, trainer__checkpoint_steps="2")
    command = start(*asked, "--out", "run", folder=tmp_path)
    run = RunFolder(tmp_path / "run")
    wait_for(lambda: latest(run.checkpoints) is not None, command.process)
    time.sleep(delay)
    command.process.send_signal(signal.SIGTERM)
    status = command.wait(TEARDOWN)
    if status == 0:  # it was faster than the signal
        assert state(run.checkpoints / LAST)["global_step"] == unbroken["global_step"]
        return
    assert status == 143, command.said
    assert "interrupted at step" in command.said
    resumed = start("--resume", "run", folder=tmp_path)
    assert resumed.wait() == 0, resumed.said
    ended = state(run.checkpoints / LAST)
    assert ended["global_step"] == unbroken["global_step"]
    assert_same(ended["state_dict"], unbroken["state_dict"])


def test_an_error_in_one_process_ends_both_and_is_said_without_a_traceback(start: Start, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    write_images(tmp_path / "images")
    for path in sorted((tmp_path / "images" / "cat").iterdir())[:12]:
        path.write_bytes(b"no image")
    command = start(*words("simclr_ldreg", tmp_path / "images", devices=2), "--out", "run", folder=tmp_path)
    assert command.wait(TEARDOWN) == 2, command.said
    assert "Traceback" not in command.said
    errors = [line for line in command.said.splitlines() if line.startswith("ldreg pretrain: error: ")]
    assert len(errors) <= 2  # of each process one at most
    assert "max_unreadable: expected at most 1.00% unreadable images" in errors[0]
