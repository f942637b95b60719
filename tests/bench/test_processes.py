import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ldreg.bench import runner
from ldreg.bench.runner import TerminatedError, output_of, stoppable

# A process with a child, both of which sleep for long; the first keeps or refuses the wish that it end.
SLEEPER = """
import pathlib, signal, subprocess, sys, time
if {deaf}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
target = pathlib.Path({path!r})
target.with_suffix(".new").write_text(str(child.pid))
target.with_suffix(".new").rename(target)
time.sleep(100)
"""


def running(pid: int) -> bool:
    """Whether a process is there and not merely waiting for somebody to take note of its end."""
    done = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return done.stdout.strip()[:1] not in ("", "Z")


def children() -> set[int]:
    """The processes that this one started and has not taken note of the end of."""
    command = ["ps", "-o", "pid=,comm=", "--ppid", str(os.getpid())]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    return {int(line.split()[0]) for line in listed.stdout.splitlines() if line.split()[1] != "ps"}


def gone(pid: int) -> bool:
    until = time.monotonic() + 5
    while running(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not running(pid)


def kill_when(path: Path, number: int) -> subprocess.Popen[bytes]:
    """Send this process a signal as soon as the file is there."""
    code = "import os, pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.01)\n"
    code += "os.kill(int(sys.argv[2]), int(sys.argv[3]))"
    return subprocess.Popen([sys.executable, "-c", code, str(path), str(os.getpid()), str(int(number))])


@pytest.mark.parametrize("deaf", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_and_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, deaf: bool
) -> None:
    monkeypatch.setattr(runner, "_ENDING", 0.2)
    before, started = children(), tmp_path / "child"  # other tests may keep processes of their own
    helper = kill_when(started, number)
    code = SLEEPER.format(deaf=deaf, path=str(started))
    with stoppable(), pytest.raises(KeyboardInterrupt) as caught:
        output_of([sys.executable, "-c", code], dict(os.environ))
    helper.wait()
    assert isinstance(caught.value, TerminatedError) == (number == signal.SIGTERM)
    assert gone(int(started.read_text()))
    assert children() == before  # nobody is left, not even to be taken note of


def test_what_a_process_prints_and_ends_with() -> None:
    code = "import os, sys; print(os.environ['WORD']); print('b', file=sys.stderr); sys.exit(3)"
    done = output_of([sys.executable, "-c", code], {**os.environ, "WORD": "a"})
    assert (done.returncode, done.stdout, done.stderr) == (3, "a\n", "b\n")


def test_signals_that_are_ignored_stay_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stoppable():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            with pytest.raises(TerminatedError) as caught:
                os.kill(os.getpid(), signal.SIGTERM)
            assert caught.value.status == 143
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
