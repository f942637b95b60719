"""Two processes that want the same folder or fill the same cache: one waits or is refused, and nothing is mixed."""

import errno
import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
import yaml
from tests.data.pictures import save
from tests.train.options import as_words, changed
from tests.train.processes import PATIENCE, ended, finish, start, wait_for

from ldreg.cli import main
from ldreg.train.folder import RunFolder, check_new, held, say

QUICK = {
    "recipe": "digits/simclr_ldreg",
    "schedule.warmup_epochs": "0",
    "trainer.device": "cpu",
    "trainer.threads": "1",
}

# Processes that are ready wait for a file, so that they begin at the same moment.
TOGETHER = """
import sys, time
from pathlib import Path
{prepare}
Path(sys.argv[1]).touch()
while not Path("go").exists():
    time.sleep(0.001)
{work}
"""


def together(count: int, folder: Path, *, prepare: str, work: str, **variables: str) -> list[tuple[int, str, str]]:
    """Exit status, output and errors of so many processes that do the work at once."""
    script = TOGETHER.format(prepare=prepare, work=work)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LDREG_CACHE": str(folder / "cache"), **variables}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script, f"ready{number}"],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    deadline = time.monotonic() + PATIENCE
    while not all((folder / f"ready{number}").exists() for number in range(count)):
        assert time.monotonic() < deadline
        assert [process.poll() for process in started] == [None] * count, [p.communicate() for p in started]
        time.sleep(0.01)
    (folder / "go").touch()
    ends = [process.communicate(timeout=PATIENCE) for process in started]
    return [(process.returncode, *end) for process, end in zip(started, ends, strict=True)]


def words(**options: str) -> list[str]:
    return as_words(changed(QUICK, **options))


@pytest.mark.slow
def test_of_two_runs_into_one_folder_one_is_refused_and_the_other_is_whole(tmp_path: Path) -> None:
    asked = words(schedule__epochs="12")
    # Between the look into the folder and the settings in it comes the question for the commit, which takes long here.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").write_text("#!/bin/sh\nsleep 3\n")
    (tmp_path / "bin" / "git").chmod(0o755)
    ends = together(
        3,
        tmp_path,
        PATH=f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        prepare="from ldreg.cli import main\nimport ldreg.train.run",
        work=f"sys.exit(main(['pretrain', *{asked!r}, '--seed', sys.argv[1][-1], '--out', 'run']))",
    )
    assert sorted(status for status, _, _ in ends) == [0, 2, 2], ends
    [winner] = [str(number) for number, end in enumerate(ends) if end[0] == 0]
    for status, _, said in ends:
        if status == 2:
            [line] = said.strip().splitlines()
            assert "expected a run that no other process works on" in line or "which holds something" in line
    run = RunFolder(tmp_path / "run")
    assert yaml.safe_load(run.config.read_text())["seed"] == int(winner)
    assert json.loads(run.card.read_text())["seed"] == int(winner)
    assert run.log.read_text().count("pretraining into") == 1
    finish(start(*asked, "--seed", winner, "--out", "alone", folder=tmp_path))
    assert run.encoder.read_bytes() == RunFolder(tmp_path / "alone").encoder.read_bytes()


@pytest.mark.slow
def test_a_run_that_goes_on_is_not_resumed_by_another_process(tmp_path: Path) -> None:
    first = start(*words(schedule__epochs="2000"), "--out", "run", folder=tmp_path)
    try:
        assert wait_for(RunFolder(tmp_path / "run").metrics.exists, first)
        for asked in (["--resume", "run"], [*words(), "--out", "run"]):
            status, said = ended(start(*asked, folder=tmp_path))
            assert status == 2
            assert "no other process works on" in said or "which holds something" in said
            assert "Traceback" not in said
        assert first.poll() is None
    finally:
        first.kill()
        first.communicate()


@pytest.mark.slow
def test_processes_that_fill_one_cache_do_the_work_once_and_have_the_same_images(tmp_path: Path) -> None:
    for number in range(400):
        save(tmp_path / "images" / ("cat", "dog")[number % 2] / f"{number:03}.png", number, 48, 48)
    with tarfile.open(tmp_path / "images.tar.xz", "w:xz") as tar:
        tar.add(tmp_path / "images", "images")
    ends = together(
        3,
        tmp_path,
        prepare="""
import hashlib
from ldreg.data import DataConfig, archives, images as sets, load_images
done = []
for module, name in ((archives, "_extract"), (sets, "decode_into_memory")):
    def counted(*args, name=name, work=getattr(module, name), **kwargs):
        done.append(name)
        return work(*args, **kwargs)
    setattr(module, name, counted)
""",
        work="""
images = load_images(DataConfig("folder", path="images.tar.xz", resident="yes"), "train")
print(hashlib.sha256(images.images.numpy().tobytes() + images.labels.numpy().tobytes()).hexdigest(), *done)
""",
    )
    assert [status for status, _, _ in ends] == [0, 0, 0], ends
    digests = {said.split()[0] for _, said, _ in ends}
    assert len(digests) == 1
    assert sorted(word for _, said, _ in ends for word in said.split()[1:]) == ["_extract", "decode_into_memory"]
    kept = sorted(path.name for kind in ("archives", "decoded") for path in (tmp_path / "cache" / kind).iterdir())
    assert len(kept) == 2
    assert not [name for name in kept if name.startswith(".")]


@pytest.mark.slow
def test_processes_that_fill_one_cache_of_representations_have_the_same(tmp_path: Path) -> None:
    assert main(["pretrain", *words(schedule__epochs="1"), "--out", str(tmp_path / "run")]) == 0
    ends = together(
        3,
        tmp_path,
        prepare="""
import hashlib
from ldreg.data import DataConfig
from ldreg.encoders.checkpoints import load_encoder
from ldreg.evaluate.features import features
encoder = load_encoder("run/encoder.safetensors")
""",
        work="""
found = features(encoder, DataConfig(), "train", device="cpu")
print(hashlib.sha256(found.representations.numpy().tobytes()).hexdigest(), found.reused)
""",
    )
    assert [status for status, _, _ in ends] == [0, 0, 0], ends
    assert len({said.split()[0] for _, said, _ in ends}) == 1
    assert sorted(said.split()[1] for _, said, _ in ends) == ["False", "True", "True"]
    assert len(list((tmp_path / "cache" / "representations").iterdir())) == 1


def test_a_folder_without_locks_is_worked_in_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(handle: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", flock)
    before = len(list(Path("/dev/fd").iterdir()))
    with held(RunFolder(tmp_path)):
        say("pretraining")
    warning, said = RunFolder(tmp_path).log.read_text().splitlines()
    assert warning.endswith(f"WARNING {tmp_path} cannot be kept from other processes (Function not implemented)")
    assert said.endswith("INFO pretraining")
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_a_folder_that_a_killed_run_had_not_begun_in_is_new(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.checkpoints.mkdir(parents=True)
    run.log.touch()
    run.environment.write_text("{}")
    (run.path / ".config.yaml.x1y2").touch()
    check_new(run.path)
    (run.checkpoints / "last.ckpt").touch()
    with pytest.raises(ValueError, match=r"which holds something$"):
        check_new(run.path)
    (run.checkpoints / "last.ckpt").unlink()
    (run.path / "thesis.tex").touch()
    (tmp_path / "other" / "checkpoints").mkdir(parents=True)
    for path in (run.path, tmp_path / "other"):
        with pytest.raises(ValueError, match=r"which holds something$"):
            check_new(path)


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is locked there")
def test_a_run_whose_log_is_moved_away_is_still_its_own(tmp_path: Path) -> None:
    with held(RunFolder(tmp_path)):
        RunFolder(tmp_path).log.rename(tmp_path / "log.1")
        with pytest.raises(ValueError, match="no other process works on"), held(RunFolder(tmp_path)):
            pass
    with held(RunFolder(tmp_path)):
        pass
