"""Disks that fill up, losses that go NaN, machines of SLURM that are taken away: what is said, and what stays."""

import math
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.options import as_words, changed
from tests.train.processes import ended, finish, start, state, wait_for

from ldreg.cli import main
from ldreg.train.checkpoints import LAST, PREVIOUS, CheckpointFiles, FiniteGuard, NotFiniteError, latest
from ldreg.train.folder import RunFolder, held, say
from ldreg.train.observers import ProgressBar

QUICK = {
    "recipe": "digits/byol_ldreg",
    "schedule.epochs": "3",
    "schedule.warmup_epochs": "0",
    "monitor.every_epochs": "50",
    "trainer.device": "cpu",
    "trainer.threads": "1",
}


def words(**options: str) -> list[str]:
    return as_words(changed(QUICK, **options))


def the_error(said: str) -> str:
    """The one line that says what was wrong."""
    assert "Traceback" not in said
    assert "Logging error" not in said
    [line] = [line for line in said.splitlines() if line.startswith("ldreg pretrain: error: ")]
    return line.removeprefix("ldreg pretrain: error: ")


def assert_goes_on(run: RunFolder, said: str, reason: str) -> None:
    """The error has this reason and tells the step that the newest checkpoint, which is whole, stands at."""
    error = the_error(said)
    newest = latest(run.checkpoints)
    assert newest is not None
    assert newest.path == run.checkpoints / LAST
    assert f": {reason}; --resume run goes on from step {newest.step}" in error
    assert error.startswith("cannot write ")
    assert not (run.checkpoints / "writing.ckpt").exists()
    assert list(run.path.rglob(".*")) == []


def newest_step(run: RunFolder) -> int:
    newest = latest(run.checkpoints)
    return 0 if newest is None else newest.step


@pytest.mark.slow
@pytest.mark.parametrize("limit", [100_000, 20_000, 10])
def test_a_file_that_may_not_grow_is_one_line_and_the_checkpoints_before_it_stay(limit: int, tmp_path: Path) -> None:
    process = start(*words(schedule__epochs="400"), "--out", "run", folder=tmp_path)
    run = RunFolder(tmp_path / "run")
    assert wait_for((run.checkpoints / PREVIOUS).exists, process)
    before = (run.checkpoints / LAST).stat().st_size
    assert before > 100_000
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, limit))
    status, said = ended(process)
    assert status == 2, said
    assert_goes_on(run, said, "File too large")
    assert not run.encoder.exists()
    resumed = start("--resume", "run", folder=tmp_path)
    step = state(run.checkpoints / LAST)["global_step"]
    assert wait_for(lambda: newest_step(run) > step, resumed)
    resumed.kill()
    resumed.communicate()


def can_mount() -> bool:
    """Whether a file system of its own can be had without being the superuser."""
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True)
    return tried.returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="needs a file system of a few megabytes")
def test_a_full_disk_is_one_line_and_the_run_goes_on_elsewhere_to_the_same_weights(tmp_path: Path) -> None:
    finish(start(*words(schedule__epochs="6"), "--out", "whole", folder=tmp_path))
    whole = RunFolder(tmp_path / "whole")
    size = (whole.checkpoints / LAST).stat().st_size
    # Room for two checkpoints and a half: the third, for which two are kept, finds the disk full.
    command = shlex.join([sys.executable, "-m", "ldreg", "pretrain", *words(schedule__epochs="6"), "--out", "run"])
    script = f"""
        mkdir small && mount -t tmpfs -o size={size * 5 // 2 // 1024}k tmpfs small && cd small && {command}
        status=$?; cp -r run ..; exit $status
    """
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    run = RunFolder(tmp_path / "run")
    assert_goes_on(run, done.stderr, "No space left on device")
    assert [state(run.checkpoints / name)["global_step"] for name in (LAST, PREVIOUS)] == [10, 5]
    finish(start("--resume", "run", folder=tmp_path))
    assert run.encoder.read_bytes() == whole.encoder.read_bytes()


def test_losses_on_a_gpu_are_checked_together_and_the_step_is_named() -> None:
    guard = FiniteGuard(every_steps=20)
    guard._unchecked = [(step, {"loss": torch.tensor(math.inf if step == 7 else 1.0)}) for step in range(5, 9)]
    with pytest.raises(NotFiniteError, match="at step 7: loss = inf"):
        guard.check()


def test_the_error_behind_a_state_that_came_out_too_short_is_named(tmp_path: Path) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as caught:
        CheckpointFiles().save_checkpoint({"weights": torch.zeros(100_000)}, tmp_path / "full")
    assert caught.value.filename == str(tmp_path / "full")
    assert not (tmp_path / "full").is_symlink()
    with pytest.raises(TypeError, match="cannot pickle"):  # what is no fault of the disk stays as it is
        CheckpointFiles().save_checkpoint({"weights": (value for value in [1.0])}, tmp_path / "state")
    assert list(tmp_path.iterdir()) == []


def test_a_state_is_written_beside_and_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.mkstemp", lambda *_, **__: pytest.fail("made a temporary file"))
    CheckpointFiles().save_checkpoint({"weights": torch.arange(5)}, tmp_path / "state")
    assert torch.equal(state(tmp_path / "state")["weights"], torch.arange(5))


def test_a_log_on_a_full_disk_is_an_error_and_no_traceback_beside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunFolder(tmp_path).log.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"), held(RunFolder(tmp_path)):
        say("pretraining")
    assert capsys.readouterr().err == ""


def test_a_loss_gone_infinite_stops_the_run_with_its_cause_and_the_last_good_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # The regularizer comes in after two epochs of five steps, and is too large for float32 at once.
    options = {"recipe": "digits/simclr_ldreg", "regularizer_start": "2", "ldreg__beta": "3e38"}
    assert main(["pretrain", *words(**options), "--out", "run"]) == 1
    error = the_error(capsys.readouterr().err)
    assert error.startswith("the loss is not finite at step 11: loss = -inf, ssl_loss = ")
    assert "regularizer = -inf" in error
    assert error.endswith("; the last good state, of step 10, is run/checkpoints/last.ckpt")
    run = RunFolder(tmp_path / "run")
    assert error in run.log.read_text()
    good = state(run.checkpoints / LAST)
    assert good["global_step"] == 10
    assert all(bool(weight.isfinite().all()) for weight in good["state_dict"].values() if weight.is_floating_point())
    assert not run.encoder.exists()
    assert not run.card.exists()


def test_a_loss_not_finite_before_anything_was_saved_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"recipe": "digits/simclr_ldreg", "ldreg__beta": "3e38"}
    assert main(["pretrain", *words(**options), "--out", "run"]) == 1
    error = the_error(capsys.readouterr().err)
    assert error.startswith("the loss is not finite at step 1: ")
    assert error.endswith("; nothing was saved yet")


class _Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_ends_before_an_interruption_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)

    def interrupt(self: ProgressBar, trainer: Any, *rest: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ProgressBar, "on_train_epoch_end", interrupt)
    assert main(["pretrain", *words(), "--out", str(tmp_path / "run")]) == 130
    bar, _, message = terminal.getvalue().partition("ldreg pretrain: interrupted at step 5")
    assert "epoch 1/3" in bar
    assert message == f"; --resume {tmp_path / 'run'} goes on from step 5\n"


SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "train", "SLURM_NODELIST": "localhost"}
SLURM |= dict.fromkeys(("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_NNODES"), "1")
SLURM |= dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"), "0")


@pytest.mark.slow
def test_a_job_of_slurm_that_is_signaled_and_queued_again_goes_on_by_the_same_command(tmp_path: Path) -> None:
    # Lightning would save into the working directory at SIGUSR1, queue the job again by itself, and take what it finds
    # there for the state of any run that begins later.
    (tmp_path / "hpc_ckpt_1.ckpt").write_bytes(b"another run's")
    asked = [*words(schedule__epochs="60"), "--out"]
    process = start(*asked, "run", folder=tmp_path, **SLURM)
    run = RunFolder(tmp_path / "run")
    assert wait_for((run.checkpoints / PREVIOUS).exists, process)
    process.send_signal(signal.SIGUSR1)
    status, said = ended(process)
    assert status == 128 + signal.SIGUSR1, said
    stopped = state(run.checkpoints / LAST)["global_step"]
    assert f"interrupted at step {stopped}; --resume run goes on from step {stopped}" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hpc_ckpt_1.ckpt", "run"]
    again = {**SLURM, "SLURM_RESTART_COUNT": "1"}
    status, said = ended(start(*asked, "run", "--seed", "1", folder=tmp_path, **again))
    assert status == 2, said
    assert "out: expected the settings of the run in 'run' to go on with it, got others" in the_error(said)
    assert "going on from run/checkpoints/last.ckpt" in finish(start(*asked, "run", folder=tmp_path, **again))
    finish(start(*asked, "whole", folder=tmp_path))
    assert run.encoder.read_bytes() == RunFolder(tmp_path / "whole").encoder.read_bytes()
    assert state(run.checkpoints / LAST)["global_step"] == 300
