"""Count the modules of ldreg that commands import, and the switches between them.

    PYTHONPATH=src OMP_NUM_THREADS=1 python benchmarks/switches.py [SCRATCH]

A switch is a Python call of a function in one ldreg module after that of a function in another: how often someone who
follows the command call by call comes to another file. To measure another version, put its `src` on PYTHONPATH.
"""

import contextlib
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType

TINY = ("--schedule.epochs", "1", "--schedule.warmup_epochs", "0", "--trainer.device", "cpu")
COMMANDS = {
    "inspect FILE --html": ("inspect", "x.npy", "--html", "page.html"),
    "pretrain (digits)": ("pretrain", "--out", "run", *TINY),
    "evaluate linear": ("evaluate", "linear", "run"),
    "report": ("report", "run"),
    "reproduce table1 --plan": ("reproduce", "table1", "--plan"),
}


def count(words: list[str]) -> dict[str, int]:
    """Run one command in this process, and count."""
    switches, before = 0, ""

    def watch(frame: FrameType, event: str, _: object) -> None:
        nonlocal switches, before
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith("ldreg") and frame.f_code.co_name != "<module>":
            switches += module != before
            before = module

    from ldreg.cli import main

    sys.setprofile(watch)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
            code = main(words)
    finally:
        sys.setprofile(None)
    if code != 0:
        raise SystemExit(said.getvalue())
    modules = sum(name == "ldreg" or name.startswith("ldreg.") for name in sys.modules)
    return {"modules": modules, "switches": switches}


def compare(folder: Path) -> None:
    """Count for every command, each in a process of its own, and print a table."""
    import numpy

    numpy.save(folder / "x.npy", numpy.random.default_rng(0).normal(size=(500, 16)).astype("float32"))
    print(f"{'command':26}{'modules':>8}{'switches':>10}")
    for name, words in COMMANDS.items():
        command = [sys.executable, str(Path(__file__).resolve()), "--count", *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{name}: {done.stderr}")
        found = json.loads(done.stdout.splitlines()[-1])
        print(f"{name:26}{found['modules']:8}{found['switches']:10}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--count"]:
        print(json.dumps(count(sys.argv[2:])))
    elif sys.argv[1:]:
        Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
        compare(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            compare(Path(scratch))
