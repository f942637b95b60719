"""Runs killed by SIGKILL, at any moment and in the midst of a write, go on to bitwise what they would have been."""

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ldreg.training.checkpoints import LAST, latest
from ldreg.training.folder import RunFolder
from ldreg.training.recipes import load_recipe
from ldreg.training.run import pretrain
from ldreg.training.settings import resolve

pytestmark = pytest.mark.slow

STATE = ("state_dict", "optimizer_states", "lr_schedulers", "epoch", "global_step")
KILLS = 2
PATIENCE = 120.0  # seconds that a process may take to show what is waited for
OPTIONS = {"schedule.warmup_epochs": "1", "trainer.threads": "1", "trainer.device": "cpu", "monitor.every_epochs": "5"}


def words(**options: str) -> list[str]:
    given = {**OPTIONS, **{key.replace("__", "."): value for key, value in options.items()}}
    return [word for key, value in given.items() for word in (f"--{key}", value)]


def heed_interrupts() -> None:
    """Undo what a shell does to the processes of a background job, for which SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    """The command itself, in a process of its own."""
    command = [sys.executable, "-m", "ldreg", "pretrain", *arguments]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=dict(os.environ, OMP_NUM_THREADS="1"),
        stderr=subprocess.PIPE,
        preexec_fn=heed_interrupts,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> None:
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said


def wait_for(shown: Callable[[], bool], ended: Callable[[], bool]) -> bool:
    """Whether it was shown before the process ended."""
    deadline = time.monotonic() + PATIENCE
    while not shown():
        assert time.monotonic() < deadline, "nothing to be seen"
        if ended():
            return shown()
        time.sleep(0.001)
    return True


def written(path: Path) -> tuple[int, int] | None:
    """What changes with every checkpoint."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    return state.st_ino, state.st_mtime_ns


def kill_after_checkpoints(process: subprocess.Popen[str], path: Path, *, count: int, delay: float) -> bool:
    """Whether the process was killed, so long after it wrote so many checkpoints, rather than done before."""
    for _ in range(count):
        before = written(path)
        wait_for(lambda: written(path) not in (None, before), lambda: process.poll() is not None)  # noqa: B023
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode in (0, -signal.SIGKILL), said
    return process.returncode != 0


def state_of(path: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return {name: state[name] for name in STATE}


def assert_same(a: Any, b: Any, where: str = "") -> None:
    """Bitwise the same, all the way down."""
    assert type(a) is type(b), where
    if isinstance(a, Tensor):
        assert a.dtype == b.dtype, where
        assert torch.equal(a.flatten().view(torch.uint8), b.flatten().view(torch.uint8)), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_same(a[key], b[key], f"{where}/{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for place, (left, right) in enumerate(zip(a, b, strict=True)):
            assert_same(left, right, f"{where}/{place}")
    else:
        assert a == b, where


@pytest.mark.parametrize(
    ("recipe", "holds", "seed"),
    [
        ("simclr_ldreg", "method.projector.0.weight", 1),
        ("byol_ldreg", "method.target.encoder.blocks.0.0.weight", 2),
        ("moco", "method.queue", 3),
    ],
)
def test_a_run_killed_several_times_ends_bitwise_as_the_unbroken_one(
    recipe: str, holds: str, seed: int, tmp_path: Path
) -> None:
    options = ["--recipe", f"digits/{recipe}", *words(schedule__epochs="12", trainer__checkpoint_steps="3")]
    finish(start(*options, "--out", "whole", folder=tmp_path))
    draws, kills = random.Random(seed), 0
    broken = RunFolder(tmp_path / "broken")
    checkpoint = broken.checkpoints / LAST
    process = start(*options, "--out", "broken", folder=tmp_path)
    for _ in range(KILLS):
        count, delay = draws.randint(1, 6), draws.uniform(0, 0.1)
        kills += kill_after_checkpoints(process, checkpoint, count=count, delay=delay)
        process = start("--resume", "broken", folder=tmp_path)
    finish(process)
    assert kills == KILLS, "the run was done before it was killed for the last time"
    whole = RunFolder(tmp_path / "whole")
    expected, found = (state_of(folder.checkpoints / LAST) for folder in (whole, broken))
    assert holds in expected["state_dict"]
    assert (expected["epoch"], expected["global_step"]) == (11, 60)
    assert_same(expected, found)
    assert whole.encoder.read_bytes() == broken.encoder.read_bytes()


def test_resuming_a_finished_run_ends_at_once_and_changes_nothing(tmp_path: Path) -> None:
    finish(start(*words(schedule__epochs="2"), "--out", "run", folder=tmp_path))
    run = RunFolder(tmp_path / "run")
    kept = [run.checkpoints / LAST, run.encoder, run.metrics, run.config]
    before = {path.name: path.read_bytes() for path in kept}
    card = json.loads(run.card.read_text())
    assert card["metrics"]["set/linear"] > 0.1
    finish(start("--resume", "run", folder=tmp_path))
    for path in kept:
        assert path.read_bytes() == before[path.name], path.name
    assert json.loads(run.card.read_text()) == card


def test_an_interrupt_is_said_and_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    process = start(*words(schedule__epochs="200"), "--out", "run", folder=tmp_path)
    checkpoint = tmp_path / "run" / "checkpoints" / LAST
    assert wait_for(checkpoint.exists, lambda: process.poll() is not None)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, said
    assert "ldreg pretrain: interrupted" in said
    assert "Traceback" not in said
    assert state_of(checkpoint)["global_step"] > 0


def test_a_kill_in_the_midst_of_a_write_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    options = {**OPTIONS, "schedule.epochs": "20", "trainer.checkpoint_steps": "1", "seed": "5"}
    settings = resolve(load_recipe("digits/byol_ldreg"), list(options.items()))
    # Processes that are forked from one that has imported everything already, so that many can be killed.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ldreg.training.run"])
    run = RunFolder(tmp_path / "run")
    writing = run.checkpoints / "writing.ckpt"
    draws, interrupted, steps = random.Random(7), 0, [0]
    for attempt in range(12):
        process = context.Process(
            target=pretrain, args=(settings, run.path), kwargs={"resume": run.config.exists()}, daemon=True
        )
        writing.unlink(missing_ok=True)
        process.start()
        first = written(run.checkpoints / LAST)
        if attempt % 4 == 3:  # at any moment, be it between the two renames
            wait_for(lambda: written(run.checkpoints / LAST) != first, lambda: not process.is_alive())  # noqa: B023
            time.sleep(draws.uniform(0, 0.1))
        else:
            wait_for(writing.exists, lambda: not process.is_alive())  # noqa: B023
            time.sleep(draws.uniform(0, 0.003))
        process.kill()
        process.join()
        interrupted += writing.exists()
        newest = latest(run.checkpoints)
        if newest is not None:
            steps.append(state_of(newest)["global_step"])  # loads: it is whole
    assert interrupted >= 3
    assert steps == sorted(steps)
    assert steps[-1] < 100, "the run was done before it was killed for the last time"
    process = context.Process(target=pretrain, args=(settings, run.path), kwargs={"resume": True}, daemon=True)
    process.start()
    process.join()
    assert process.exitcode == 0
    assert not writing.exists()
    pretrain(settings, tmp_path / "whole")
    assert_same(state_of(tmp_path / "whole" / "checkpoints" / LAST), state_of(run.checkpoints / LAST))
