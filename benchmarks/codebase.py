"""Measure how large the code of ldreg is, and how many of its files a reader of a command has to open.

    python benchmarks/codebase.py sizes [SRC]
    PYTHONPATH=src OMP_NUM_THREADS=1 python benchmarks/codebase.py switches [SCRATCH]

`sizes` counts per folder: modules, lines, median lines of a module, public top-level functions and classes. `switches`
counts per command the modules of ldreg that are imported, and the switches between them: Python calls of a function in
one module right after a call of a function in another. To measure another version, put its `src` on PYTHONPATH.
"""

import ast
import contextlib
import io
import json
import statistics
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


def sizes(source: Path) -> None:
    """Print the size of each folder of a package, and of all."""
    folders: dict[str, list[Path]] = {}
    for file in sorted((source / "ldreg").rglob("*.py")):
        parts = file.relative_to(source / "ldreg").parts
        folders.setdefault(parts[0] if len(parts) > 1 else "(top level)", []).append(file)
    print(f"{'folder':16}{'modules':>8}{'lines':>8}{'median':>8}{'public':>8}")
    everything = [file for files in folders.values() for file in files]
    for name, files in [*sorted(folders.items()), ("all", everything)]:
        lines = [len(file.read_text(encoding="utf-8").splitlines()) for file in files]
        public = sum(len(public_names(file)) for file in files)
        print(f"{name:16}{len(files):8}{sum(lines):8}{statistics.median(lines):8.0f}{public:8}")


def public_names(file: Path) -> list[str]:
    """Top-level functions and classes of a module whose names do not begin with an underscore."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [node.name for node in body if isinstance(node, kinds) and not node.name.startswith("_")]


def switches(folder: Path) -> None:
    """Count for every command, each in a process of its own, and print a table."""
    import numpy

    folder.mkdir(parents=True, exist_ok=True)
    numpy.save(folder / "x.npy", numpy.random.default_rng(0).normal(size=(500, 16)).astype("float32"))
    print(f"{'command':26}{'modules':>8}{'switches':>10}")
    for name, words in COMMANDS.items():
        command = [sys.executable, str(Path(__file__).resolve()), "count", *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{name}: {done.stderr}")
        found = json.loads(done.stdout.splitlines()[-1])
        print(f"{name:26}{found['modules']:8}{found['switches']:10}", flush=True)


def count(words: list[str]) -> dict[str, int]:
    """Run one command in this process, and count."""
    found, before = 0, ""

    def watch(frame: FrameType, event: str, _: object) -> None:
        nonlocal found, before
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith("ldreg") and frame.f_code.co_name != "<module>":
            found += module != before
            before = module

    from ldreg.cli import main

    sys.setprofile(watch)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as stderr:
            code = main(words)
    finally:
        sys.setprofile(None)
    if code != 0:
        raise SystemExit(stderr.getvalue())
    modules = sum(name == "ldreg" or name.startswith("ldreg.") for name in sys.modules)
    return {"modules": modules, "switches": found}


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["count", *words]:
            print(json.dumps(count(words)))
        case ["sizes"]:
            sizes(Path(__file__).parents[1] / "src")
        case ["sizes", source] if not source.startswith("-"):
            sizes(Path(source))
        case ["switches"]:
            with tempfile.TemporaryDirectory() as scratch:
                switches(Path(scratch))
        case ["switches", scratch] if not scratch.startswith("-"):
            switches(Path(scratch))
        case _:
            raise SystemExit(__doc__)
