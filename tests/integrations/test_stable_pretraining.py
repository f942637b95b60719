"""The Lightning monitor in stable-pretraining, in a process of its own: it sets up logging and signals as it likes."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
MEASURES = {"lid", "lid_low", "frechet_variance", "effective_rank", "spread", "degenerate"}


@pytest.mark.slow
@pytest.mark.skipif(find_spec("stable_pretraining") is None, reason="needs stable-pretraining")
def test_the_example_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "with_stable_pretraining.py")],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(": ") for line in done.stdout.splitlines() if line.startswith("ldreg/"))
    assert lines.keys() == {f"ldreg/{stage}/{name}" for stage in ("train", "val") for name in MEASURES}
    for stage in ("train", "val"):
        assert 3 < float(lines[f"ldreg/{stage}/lid"]) < 10
        assert 5 < float(lines[f"ldreg/{stage}/effective_rank"]) < 20
    assert "ldreg/val/lid" in done.stderr + done.stdout.partition("\nldreg/")[0]  # in its own table of metrics
