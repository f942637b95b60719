"""Runs killed by SIGKILL, at any moment and in the midst of a write, go on to bitwise what they would have been."""

import itertools
import multiprocessing
import os
import pkgutil
import random
import re
import signal
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.train.options import as_words, changed
from tests.train.processes import ended, finish, start, state, wait_for
from tests.train.states import STATE, assert_same

from ldreg.train.checkpoints import LAST, PREVIOUS, latest
from ldreg.train.folder import RunFolder
from ldreg.train.recipes import load_recipe
from ldreg.train.run import pretrain
from ldreg.train.settings import Settings, resolve

pytestmark = pytest.mark.slow

OPTIONS = {"schedule.warmup_epochs": "1", "trainer.threads": "1", "trainer.device": "cpu", "monitor.every_epochs": "5"}


def words(**options: str) -> list[str]:
    return as_words(changed(OPTIONS, **options))


def written(path: Path) -> tuple[int, int] | None:
    """What changes with every checkpoint."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def state_of(path: Path) -> dict[str, Any]:
    found = state(path)
    return {name: found[name] for name in STATE}


def test_an_interrupt_is_said_and_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    process = start(*words(schedule__epochs="200"), "--out", "run", folder=tmp_path)
    checkpoint = tmp_path / "run" / "checkpoints" / LAST
    assert wait_for(checkpoint.exists, process)
    process.send_signal(signal.SIGINT)
    status, said = ended(process)
    assert status == 130, said
    assert "ldreg pretrain: interrupted" in said
    assert "Traceback" not in said
    assert state_of(checkpoint)["global_step"] > 0


def forked() -> ForkServerContext:
    """Processes that are forked from one that has imported everything already, so that many can be killed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ldreg.train.run"])
    return context


def whole_checkpoints(run: RunFolder) -> list[int]:
    """The steps of the checkpoints in a run folder, newest first, all of which must be whole."""
    there = [path for path in (run.checkpoints / LAST, run.checkpoints / PREVIOUS) if path.exists()]
    steps = [state_of(path)["global_step"] for path in there]  # loads: it is whole
    newest = latest(run.checkpoints)
    assert (newest and newest.path) == (there[0] if there else None)
    return steps


Moment = Literal["start", "step", "write"]
UP_TO: dict[Moment, float] = {"start": 1.0, "step": 0.3, "write": 0.003}  # seconds after it, drawn evenly


class Killer:
    """Runs that are killed again and again, and go on: while they start, between two steps, in the midst of a write."""

    def __init__(self, settings: Settings, run: RunFolder, seed: int) -> None:
        self.settings, self.run = settings, run
        self.draws, self.context = random.Random(seed), forked()
        self.writing = run.checkpoints / "writing.ckpt"
        self.torn, self.steps = 0, [0]

    def start(self) -> ForkServerProcess:
        resume = self.run.config.exists()
        process = self.context.Process(target=pretrain, args=(self.settings, self.run.path), kwargs={"resume": resume})
        process.start()
        return process

    def kill(self, moment: Moment) -> None:
        """Start the run, kill it, and see that every checkpoint is whole and none is older than before."""
        self.writing.unlink(missing_ok=True)
        last = self.run.checkpoints / LAST
        first = written(last)
        process = self.start()
        shown: dict[Moment, Callable[[], bool]] = {
            "start": lambda: True,
            "step": lambda: written(last) != first,
            "write": self.writing.exists,
        }
        wait_for(lambda: shown[moment]() or not process.is_alive())
        time.sleep(self.draws.uniform(0, UP_TO[moment]))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "the run was done before it was killed"
        self.torn += self.writing.exists()
        self.steps += whole_checkpoints(self.run)[:1]

    def finish(self) -> None:
        process = self.start()
        process.join()
        assert process.exitcode == 0
        assert not self.writing.exists()
        assert self.steps == sorted(self.steps)


# Steps as quick as they can be: there are many.
SMALL = {"data.limit": "320", "batch_size": "64", "monitor.every_epochs": "20"}


def settings_of(recipe: str, **options: str) -> Settings:
    return resolve(load_recipe(f"digits/{recipe}"), list(changed({**OPTIONS, **SMALL}, **options).items()))


RECIPES = ("simclr_ldreg", "simclr_tuned", "byol_ldreg", "moco_ldreg", "vicreg", "barlow_twins_ldreg", "mae_ldreg")


@pytest.mark.parametrize(("seed", "recipe"), list(enumerate(RECIPES)))
def test_every_method_killed_at_random_moments_ends_bitwise_as_the_unbroken_run(
    seed: int, recipe: str, tmp_path: Path
) -> None:
    settings = settings_of(recipe, schedule__epochs="40", trainer__checkpoint_steps="1", seed=str(seed))
    broken = Killer(settings, RunFolder(tmp_path / "broken"), seed)
    moments: tuple[Moment, ...] = ("start", "step", "write", "start", "step", "write")
    for moment in moments:
        broken.kill(moment)
    broken.finish()
    whole = Killer(settings, RunFolder(tmp_path / "whole"), seed)
    whole.finish()
    expected, found = (state_of(killer.run.checkpoints / LAST) for killer in (whole, broken))
    assert expected["global_step"] == 200
    assert_same(expected, found)
    assert whole.run.encoder.read_bytes() == broken.run.encoder.read_bytes()


def test_a_kill_in_the_midst_of_a_write_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    settings = settings_of("byol_ldreg", schedule__epochs="40", trainer__checkpoint_steps="1", seed="5")
    broken = Killer(settings, RunFolder(tmp_path / "run"), seed=7)
    for attempt in range(12):
        broken.kill("write" if attempt % 4 != 3 else "step")
    assert broken.torn >= 3
    broken.finish()
    pretrain(settings, tmp_path / "whole")
    assert_same(state_of(tmp_path / "whole" / "checkpoints" / LAST), state_of(broken.run.checkpoints / LAST))


def pretrain_until(place: str, file: str, times: int, settings: Settings, path: Path) -> None:
    """A run that is killed when it is about to call this function for that file for so many times."""
    module, _, name = place.rpartition(".")
    owner = pkgutil.resolve_name(module)
    original, seen = getattr(owner, name), itertools.count(1)

    def killed(subject: Path, *arguments: Any, **options: Any) -> Any:
        if subject.name == file and next(seen) == times:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(subject, *arguments, **options)

    setattr(owner, name, killed)
    pretrain(settings, path)


@pytest.fixture(scope="module")
def short() -> Settings:
    return settings_of("byol_ldreg", schedule__epochs="3", trainer__checkpoint_steps="2")


@pytest.fixture(scope="module")
def short_whole(short: Settings, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The short run that nothing happens to."""
    path = tmp_path_factory.mktemp("short") / "run"
    pretrain(short, path)
    return RunFolder(path)


@pytest.mark.parametrize(
    ("place", "file", "times", "there"),
    [
        ("ldreg.train.folder.write_atomically", "environment.json", 1, []),
        ("ldreg.train.folder.write_atomically", "config.yaml", 1, []),
        ("ldreg.train.checkpoints.Path.replace", "writing.ckpt", 1, []),
        ("ldreg.train.checkpoints._flush", "checkpoints", 1, [LAST]),
        ("ldreg.train.checkpoints.Path.replace", "writing.ckpt", 2, [PREVIOUS]),  # between the renames of a save
        ("ldreg.train.folder.write_atomically", "encoder.safetensors", 1, [LAST, PREVIOUS]),  # after the last step
        ("ldreg.train.folder.write_atomically", "card.json", 1, [LAST, PREVIOUS]),
    ],
)
def test_a_run_killed_between_two_of_its_files_ends_bitwise_as_the_unbroken_one(
    place: str, file: str, times: int, there: list[str], short: Settings, short_whole: RunFolder, tmp_path: Path
) -> None:
    run = RunFolder(tmp_path / "run")
    process = forked().Process(target=pretrain_until, args=(place, file, times, short, run.path))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert [name for name in (LAST, PREVIOUS) if (run.checkpoints / name).exists()] == there
    newest = latest(run.checkpoints)
    assert (newest and newest.path) == (run.checkpoints / there[0] if there else None)
    pretrain(short, run.path, resume=run.config.exists())
    assert (f"going on from {newest and newest.path}" in run.log.read_text()) == bool(there)
    assert_same(state_of(short_whole.checkpoints / LAST), state_of(run.checkpoints / LAST))
    assert run.encoder.read_bytes() == short_whole.encoder.read_bytes()
    assert run.card.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_run_that_is_asked_to_end_saves_says_so_and_resumes_bitwise(
    number: signal.Signals, whole: RunFolder, tmp_path: Path
) -> None:
    process = start(*TERMINATED, "--out", "run", folder=tmp_path)
    run = RunFolder(tmp_path / "run")
    assert wait_for((run.checkpoints / LAST).exists, process)
    time.sleep(random.Random(number).uniform(0.1, 0.6))
    process.send_signal(number)
    status, said = ended(process)
    assert status == 128 + number, said
    [step] = re.findall(r"ldreg pretrain: interrupted at step (\d+); --resume run goes on from step \1$", said, re.M)
    # What was done since the last checkpoint of its own is not lost, and no step is cut in two.
    assert state_of(run.checkpoints / LAST)["global_step"] == int(step)
    finish(start("--resume", "run", folder=tmp_path))
    assert_same(state_of(whole.checkpoints / LAST), state_of(run.checkpoints / LAST))
    assert run.encoder.read_bytes() == whole.encoder.read_bytes()


# Two parts to a step, between which nothing can be saved; a checkpoint of its own every twentieth epoch alone.
TERMINATED = [
    "--recipe",
    "digits/moco_ldreg",
    *words(schedule__epochs="100", trainer__accumulate="2", trainer__checkpoint_epochs="20"),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run that nothing happens to."""
    folder = tmp_path_factory.mktemp("whole")
    finish(start(*TERMINATED, "--out", "run", folder=folder))
    return RunFolder(folder / "run")
