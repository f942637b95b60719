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

from ldreg import distributed
from ldreg.inspection.inputs import as_device
from ldreg.inspection.measure import _measured, _Set, _Settings, _Steps, inspect
from ldreg.inspection.streamed import Ranks

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def gaussian(n: int, d: int) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("world", [2, 3, 7])
@pytest.mark.parametrize("sample", [None, 100, 2])
@pytest.mark.parametrize("estimator", ["mom", "mle", "tle"])
def test_the_parts_of_all_ranks_are_the_whole(
    world: int, sample: int | None, estimator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = _Set(gaussian(250, 24) + 9, "x", torch.device("cpu"))
    settings, steps = _Settings(20, estimator, sample=sample), _Steps(None, 1)
    parts: list[list[Tensor]] = []

    def kept(column: Tensor) -> Tensor:
        parts[-1].append(column)
        return column

    monkeypatch.setattr(distributed, "gather_parts", kept)
    whole = _measured(points, settings, steps)
    for rank in range(world):
        parts.append([])
        _measured(points, settings, steps, Ranks(rank, world))
    near = whole.found.neighbors
    expected = [whole.found.lid, whole.found.standard_error, torch.cat([near.distances, whole.beyond], 1)]
    for mine, column in zip(zip(*parts, strict=True), expected, strict=False):
        assert torch.equal(torch.cat(mine), column)
    assert torch.equal(torch.cat([part[3] for part in parts])[:, :20], near.indices)


def test_alone_nothing_is_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    # Even within a group: a process that trains with others may inspect by itself.
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    assert inspect(gaussian(30, 3), k=5).measured == 30


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
@pytest.mark.parametrize(
    "options",
    [
        "--compare y.npy --labels labels.npy --html r.html",
        "--sample 1 --estimator tle",
        "--sample 300 --compare parts --labels labels.npy --skip-nonfinite",
    ],
)
def test_two_processes_report_what_one_does(options: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.normal(size=(1501, 48)).astype(np.float32) + 4)
    np.save(tmp_path / "y.npy", rng.normal(size=(301, 8)))
    np.save(tmp_path / "labels.npy", np.arange(1501) % 4)
    (tmp_path / "parts").mkdir()
    for i, part in enumerate(np.split(rng.normal(size=(1501, 48)), [1, 700, 710])):
        part[5:7, 3] = np.nan
        np.save(tmp_path / "parts" / f"{i}.npy", part)
    file = "parts" if "parts" in options else "x.npy"
    words = [file, "--k", "20", "--device", "cpu", "--json", "r.json", *options.split()]
    one = ldreg(tmp_path, *words)
    assert one.returncode == 0, one.stderr
    expected = (tmp_path / "r.json").read_bytes()
    (tmp_path / "r.json").unlink()
    two = ldreg(tmp_path, *words, launcher=TORCHRUN)
    assert two.returncode == 0, two.stderr
    assert (tmp_path / "r.json").read_bytes() == expected
    found = json.loads(expected)
    assert (found["points"], found["left_out"]) == ((1495, 6) if file == "parts" else (1501, 0))
    assert found["measured"] == (1 if "--sample 1 " in options else 300 if file == "parts" else 1501)
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
