"""Every benchmark quickly on a GPU, by the command that users give."""

import json
from pathlib import Path

import pytest
import torch

from ldreg.bench import BENCHMARKS
from ldreg.bench.measure import measure
from ldreg.cli import main

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_quick_run_of_a_benchmark(name: str, tmp_path: Path) -> None:
    # Each contender of each size is a process that starts in some ten seconds; those of others run on any CPU too.
    ours = ",".join(each for each in BENCHMARKS[name].contenders if "ldreg" in each.lower())
    words = ["--device", "cuda", "--sizes", "quick", "--threads", "2", "--contenders", ours, "--out", str(tmp_path)]
    assert main(["bench", name, *words]) == 0
    content = json.loads((tmp_path / f"{name}-cuda.json").read_text())[0]
    assert content["device"] == "cuda"
    assert content["environment"]["gpu"]
    for entry in content["results"]:
        reasons = ("not installed", "runs only on the CPU")
        assert entry["skipped"] == "" or entry["skipped"].startswith(reasons), entry["contender"]
        if entry["measured"] is not None and entry["deviation"] is not None:
            assert entry["deviation"] < 1e-3, entry["contender"]


def test_time_and_memory_of_known_work() -> None:
    x = torch.ones(4096, 4096, device="cuda")

    def work() -> torch.Tensor:
        (x + 1).sum()  # 67 MB for a moment
        return torch.ones(1, device="cuda")

    measured, result = measure(work, repeats=2, device="cuda")
    assert result.item() == 1
    assert measured.extra_mb is not None
    assert 67 <= measured.extra_mb < 75
    assert measured.host is not None
    assert 1e-6 < measured.median < 0.1
    assert measured.host < 0.1
