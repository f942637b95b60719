"""A folder in which golden cases run the command, and what came of it."""

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ldreg.cli import main

TINY = (
    *("--schedule.epochs", "2", "--schedule.warmup_epochs", "0", "--trainer.device", "cpu"),
    *("--monitor.every_steps", "5"),
)
PATIENCE = 300.0  # seconds until a process counts as stuck


@dataclass(frozen=True)
class Answer:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


class Place:
    """A folder for one case; the runs that cases share lie beside it."""

    def __init__(self, folder: Path, shared: Path) -> None:
        self.folder, self.shared = folder, shared
        folder.mkdir(parents=True, exist_ok=True)
        shared.mkdir(parents=True, exist_ok=True)

    def ldreg(self, *words: str | Path) -> Answer:
        """Run a command that succeeds."""
        answer = self.answer(*words)
        assert answer.code == 0, answer.err
        return answer

    def answer(self, *words: str | Path) -> Answer:
        """Run the command in this process, in the folder of the case."""
        out, err = io.StringIO(), io.StringIO()
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        os.environ["COLUMNS"] = "200"  # tables do not break names
        try:
            with contextlib.chdir(self.folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = main([str(word) for word in words])
        finally:
            torch.set_num_threads(threads)
            del os.environ["COLUMNS"]
        return Answer(code, out.getvalue(), err.getvalue())

    def process(self, *words: str | Path, stop: signal.Signals, when: Callable[[], bool]) -> Answer:
        """Run the command in another process, and send it a signal once `when` is true."""
        process = subprocess.Popen(
            [sys.executable, "-m", "ldreg", *map(str, words)],
            cwd=self.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            deadline = time.monotonic() + PATIENCE
            while not when() and process.poll() is None:
                assert time.monotonic() < deadline, "the moment to send the signal never came"
                time.sleep(0.02)
            process.send_signal(stop)
            out, err = process.communicate(timeout=PATIENCE)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        return Answer(process.returncode, out, err)

    def run(self) -> Path:
        """A run of two epochs on digits, trained once; cases must not change it."""
        run = self.shared / "run"
        if not (run / "card.json").exists():
            Place(self.shared, self.shared).ldreg("pretrain", "--out", run, *TINY)
        return run

    def copy(self, name: str = "run") -> Path:
        """A copy of that run, in the folder of the case."""
        return Path(shutil.copytree(self.run(), self.folder / name))

    def tree(self, folder: str | Path = ".") -> list[str]:
        """Every file below a folder, but caches and what an evaluation keeps for itself; hashes are replaced."""
        root = self.folder / folder
        files = [file.relative_to(root).as_posix() for file in root.rglob("*") if file.is_file()]
        files = [re.sub(r"-[0-9a-f]{8}\.json$", "-HASH.json", file) for file in files]
        return sorted(file for file in files if "evaluation/work/" not in file and "cache/" not in file)

    def json(self, name: str | Path) -> Any:
        return json.loads((self.folder / name).read_text(encoding="utf-8"))
