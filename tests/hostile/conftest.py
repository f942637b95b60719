import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Guarded = Callable[..., dict[str, Any]]
Refused = Callable[..., str]


@pytest.fixture(scope="session")
def guarded() -> Iterator[Guarded]:
    """Runs `ldreg` with these words in a process with bounded memory and time; returns status, stderr and use."""
    if sys.platform != "linux":
        pytest.skip("measures by /proc")
    words = [sys.executable, str(Path(__file__).with_name("guard.py"))]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        output, commands = process.stdout, process.stdin
        assert output.readline() == "ready\n"

        def run(*words: object) -> dict[str, Any]:
            commands.write(json.dumps(list(map(str, words))) + "\n")
            commands.flush()
            return dict(json.loads(output.readline()))

        yield run
        commands.close()


@pytest.fixture
def refused(guarded: Guarded) -> Refused:
    """The one error line of `ldreg` with these words; checks exit status 2, time and memory."""

    def run(*words: object, seconds: float = 15, memory: int = 400) -> str:
        took = guarded(*words)
        assert took["status"] == 2, took
        lines = took["stderr"].strip().split("\n")
        assert len(lines) == 1, took["stderr"][:2000]
        assert lines[0].startswith(f"ldreg {words[0]}: error: ")
        assert len(lines[0]) < 2000
        assert took["seconds"] < seconds, took
        assert took["grown"] < memory, took  # MiB
        return str(lines[0])

    return run
