"""A short turn of benchmarks/fuzz_loaders.py, and that it sees what it looks for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fuzz_loaders.py"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

BAD = """
import json, os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import fuzz_loaders as fuzz

def lines(path):
    raise ValueError("two\\nlines")

readers = {
    "fine": lambda path: None,
    "refusal": lambda path: (path / "gone").read_bytes(),
    "error": lambda path: {}["gone"],
    "lines": lines,
    "program": lambda path: os.system("true"),
    "death": lambda path: os.abort(),
    "memory": lambda path: b"x" * (2 << 30),
    "hang": lambda path: time.sleep(100),
}

found = {}
for name, read in readers.items():
    fuzz.SECONDS = 3 if name == "hang" else 30
    found[name] = [kind for _, _, kind, _ in fuzz.round_of(range(1), 0, {name: fuzz.Reader({"x": b"x"}, read)})]
print(json.dumps(found))
"""


def test_damaged_files_are_loaded_or_refused() -> None:
    words = [sys.executable, str(SCRIPT), "--inputs", "200", "--seed", "0"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    _, name, inputs, loaded, refused, findings, _ = done.stdout.split("\n\n")[0].splitlines()[-1].split("|")
    assert (name.strip(), int(inputs), int(findings)) == ("all", 200, 0)
    assert int(loaded) > 20  # mutations leave some files valid, and break most
    assert int(refused) > 80


@pytest.mark.slow
def test_findings_are_found() -> None:
    done = subprocess.run([sys.executable, "-c", BAD, str(SCRIPT.parent)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "fine": ["loaded"],
        "refusal": ["refused"],
        "error": ["KeyError"],
        "lines": ["several lines"],
        "program": ["SystemExit"],
        "death": ["died of signal 6"],
        "memory": ["memory"],
        "hang": ["no end"],
    }
