"""A short turn of benchmarks/fuzz_loaders.py."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fuzz_loaders.py"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def test_damaged_files_are_loaded_or_refused() -> None:
    words = [sys.executable, str(SCRIPT), "--inputs", "200", "--seed", "0"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    _, name, inputs, loaded, refused, findings, _ = done.stdout.split("\n\n")[0].splitlines()[-1].split("|")
    assert (name.strip(), int(inputs), int(findings)) == ("all", 200, 0)
    assert int(loaded) > 20  # mutations leave some files valid, and break most
    assert int(refused) > 80
