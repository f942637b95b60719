"""One process speaks to nobody: no port is opened, no address looked up, nothing fetched."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def spoken(work: str, folder: Path) -> list[str]:
    """What a process said to the network at this work, with nothing in its environment that would forbid it."""
    script = Path(__file__).with_name("network.py")
    forbidding = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "WANDB_MODE"}
    own = {name: value for name, value in os.environ.items() if name not in forbidding}
    done = subprocess.run(
        [sys.executable, str(script), work, str(folder)],
        capture_output=True,
        text=True,
        env=own | {"OMP_NUM_THREADS": "1", "HOME": str(folder), "XDG_CACHE_HOME": str(folder / "xdg")},
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@pytest.mark.slow
def test_importing_building_and_measuring_open_no_connection(tmp_path: Path) -> None:
    assert spoken("everything", tmp_path) == []


@pytest.mark.slow
def test_a_run_from_start_to_report_opens_no_connection(tmp_path: Path) -> None:
    assert spoken("commands", tmp_path) == []
    assert (tmp_path / "report.html").exists()
    assert (tmp_path / "demo" / "report.html").exists()


def test_a_port_would_be_detected(tmp_path: Path) -> None:
    found = spoken("loud", tmp_path)
    assert any(entry.startswith("socket.bind") for entry in found)
    assert any(entry.startswith("open: 0100007F:") for entry in found)
