"""Ranks that share the points: their parts make the whole, and the command says what one process says."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ldreg.dimension.estimators import LIDEstimate
from ldreg.inspection.arguments import as_device
from ldreg.inspection.measure import _part, _Set, _Settings
from ldreg.inspection.plane import draw
from ldreg.inspection.sharing import Sharing

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def gaussian(n: int, d: int) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(0))


def columns(found: LIDEstimate) -> list[Tensor]:
    return [found.lid, found.standard_error, *found.neighbors]


@pytest.mark.parametrize("world", [2, 3, 7])
@pytest.mark.parametrize("sample", [None, 100])
@pytest.mark.parametrize("estimator", ["mom", "mle", "tle"])
def test_the_parts_of_all_ranks_are_the_whole(world: int, sample: int | None, estimator: Any) -> None:
    points = _Set(gaussian(250, 24) + 9, "x", torch.device("cpu"))
    settings = _Settings(20, estimator, "paper", sample, 0)
    rows = draw(250, sample, 0)
    _, whole = _part(points, rows, settings, None)
    parts = [columns(_part(points, Sharing(rank, world).share(rows), settings, None)[1]) for rank in range(world)]
    for name, mine, expected in zip(
        ("lid", "error", "distances", "indices"), zip(*parts, strict=True), columns(whole), strict=True
    ):
        assert torch.equal(torch.cat(mine), expected), name


@pytest.mark.parametrize("count", [1, 2, 5, 64, 101])
@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_every_row_is_of_one_rank_and_no_rank_is_idle(count: int, world: int) -> None:
    rows = torch.arange(count) * 3
    shares = [Sharing(rank, world).share(rows) for rank in range(world)]
    assert min(map(len, shares)) >= 1
    if count >= world:
        assert torch.equal(torch.cat(shares), rows)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_alone_nothing_is_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    # Even within a group: a process that trains with others may inspect by itself.
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    alone = Sharing()
    assert alone.agreed(lambda: 3) == alone.from_first(lambda: 3) == 3
    found = _part(
        _Set(gaussian(30, 3), "x", torch.device("cpu")), torch.arange(30), _Settings(5, "mom", "paper", None, 0), None
    )
    assert alone.gathered(found[1], 30) is found[1]


def test_each_rank_takes_the_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    x = torch.ones(2, 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    for wanted in (None, "auto", "cuda"):
        assert as_device(x, wanted, shared=True) == torch.device("cuda:1")
        assert as_device(x, wanted, shared=False) == torch.device("cuda:0")
    assert as_device(x, "cuda:0", shared=True) == torch.device("cuda:0")
    assert as_device(x, "cpu", shared=True) == torch.device("cpu")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(
        ValueError, match="device: expected a GPU for each process of this machine, got 2 for 3 or more"
    ):
        as_device(x, "auto", shared=True)


def ldreg(folder: Path, *words: str, launcher: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *(launcher or []), "-m", "ldreg", "inspect", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("options", ["--compare y.npy --labels labels.npy --html r.html", "--sample 1 --estimator tle"])
def test_two_processes_report_what_one_does(options: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.normal(size=(1501, 48)).astype(np.float32) + 4)
    np.save(tmp_path / "y.npy", rng.normal(size=(301, 8)))
    np.save(tmp_path / "labels.npy", np.arange(1501) % 4)
    words = ["x.npy", "--k", "20", "--device", "cpu", "--json", "r.json", *options.split()]
    one = ldreg(tmp_path, *words)
    assert one.returncode == 0, one.stderr
    expected = (tmp_path / "r.json").read_bytes()
    (tmp_path / "r.json").unlink()
    two = ldreg(tmp_path, *words, launcher=TORCHRUN)
    assert two.returncode == 0, two.stderr
    assert (tmp_path / "r.json").read_bytes() == expected
    assert json.loads(expected)["measured"] == (1 if "--sample" in options else 1501)
    assert two.stdout == one.stdout
    assert two.stderr.count("wrote") == one.stderr.count("wrote") == words.count("--json") + words.count("--html")


def errors(process: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in process.stderr.splitlines() if line.startswith("ldreg")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("bad.npy --k 5", "bad.npy: expected finite numbers, got NaN or inf in 1 of 60 rows"),
        ("absent.npy", "absent.npy"),
        ("x.npy --k 5 --json absent/r.json", "no directory"),
    ],
)
def test_what_all_processes_find_wrong_is_said_once(words: str, message: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 4))
    np.save(tmp_path / "x.npy", x)
    x[50] = np.nan
    np.save(tmp_path / "bad.npy", x)
    process = ldreg(tmp_path, *words.split(), "--device", "cpu", launcher=TORCHRUN)
    assert process.returncode != 0
    assert len(lines := errors(process)) == 2, process.stderr  # ours, and torchrun's heading "ldreg FAILED"
    assert lines[0].startswith("ldreg inspect: error: ")
    assert message in lines[0]
    assert process.stderr.count("exitcode  : 2") + process.stderr.count("exitcode  : -15") >= 1
    assert "exitcode  : 1 " not in process.stderr
    assert process.stdout == ""


@pytest.mark.slow
def test_what_one_process_finds_wrong_ends_all(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(60, 4)))
    hook = tmp_path / "hook"
    hook.mkdir()
    # The second process finds no file, as on a machine that lacks it.
    (hook / "sitecustomize.py").write_text(
        "import os\nif os.environ.get('RANK') == '1':\n    os.chdir(os.path.dirname(__file__))\n"
    )
    before = os.environ.get("PYTHONPATH")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(hook), *([before] if before else [])]))
        process = ldreg(tmp_path, "x.npy", "--k", "5", "--device", "cpu", launcher=TORCHRUN)
    assert process.returncode != 0
    assert errors(process)[0].startswith("ldreg inspect: error: process 1: ")
    assert "x.npy" in errors(process)[0]
    assert len(errors(process)) == 2, process.stderr
