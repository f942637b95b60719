"""Work that processes share, and how a process of several ends."""

import os
import socket
import subprocess
import sys

import pytest
import torch

from ldreg import distributed

ENDING = """
import atexit, threading
from ldreg.distributed import leave
atexit.register(print, "saved", end="")
threading.Thread(target=threading.Event().wait).start()  # Python would wait for it
print("done", end=" ")
leave(3)
"""
COMMAND = """
import sys
import torch.distributed as dist
from ldreg import cli
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
sys.argv[1:] = ["inspect", "no such file.npy"]
class Taken:
    def __del__(self): print("taken down")
taken = Taken()
cli.run()
"""


SHARED = """
import sys
import torch
from ldreg.distributed import agreed, from_first, gather_parts, joined, launched, rank, world

assert launched()
with joined():
    assert world() == 3
    for counts in ((2, 5, 1), (0, 3, 0), (4, 0, 2)):
        parts = [torch.arange(3.0 * n).view(n, 3) + 100 * i for i, n in enumerate(counts)]
        whole = gather_parts(parts[rank()])
        assert torch.equal(whole, torch.cat(parts) if rank() == 0 else parts[rank()]), (rank(), counts)
    numbers = gather_parts(torch.arange(rank() + 1))
    assert numbers.tolist() == ([0, 0, 1, 0, 1, 2] if rank() == 0 else [*range(rank() + 1)])
    assert agreed(lambda: rank() * 10) == rank() * 10
    assert from_first(lambda: ("of", rank())) == ("of", 0)

    def fail_on(*ranks):
        def work():
            if rank() in ranks:
                raise OSError(f"no file on {rank()}")
        return work

    for work, told in (
        (lambda: agreed(fail_on(2)), ["ValueError: process 2: no file on 2"] * 2 + ["OSError: no file on 2"]),
        (lambda: agreed(fail_on(0, 1, 2)), [f"OSError: no file on {i}" for i in range(3)]),
        (lambda: from_first(fail_on(0)), ["OSError: no file on 0"] + ["ValueError: process 0: no file on 0"] * 2),
    ):
        try:
            work()
        except Exception as error:
            assert f"{type(error).__name__}: {error}" == told[rank()], error
        else:
            raise AssertionError("nothing was raised")
    from_first(fail_on(1, 2))  # which are not asked
print("as expected")
"""


def ended(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_leaving_runs_exit_functions_flushes_and_waits_for_no_thread() -> None:
    process = ended(ENDING)
    assert (process.returncode, process.stdout) == (3, "done saved")


def test_a_command_of_several_processes_leaves_with_its_status(tmp_path: object) -> None:
    process = ended(COMMAND, f"{tmp_path}/store")
    assert process.returncode == 2, process.stderr
    assert "no such file.npy" in process.stderr
    assert "taken down" not in process.stdout


@pytest.mark.slow
def test_three_processes_share_results_and_failures() -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    where = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": "3", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SHARED],
            env={**os.environ, **where, "RANK": str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    try:
        for process in processes:
            out, err = process.communicate(timeout=120)
            assert (process.returncode, out) == (0, "as expected\n"), err
    finally:
        for process in processes:
            process.kill()


def test_without_others_everything_stays_here() -> None:
    x = torch.ones(3, 2)
    assert distributed.gather_parts(x) is x
    assert distributed.agreed(lambda: 5) == distributed.from_first(lambda: 5) == 5
    assert distributed.world() == 1
    with pytest.raises(KeyError):
        distributed.agreed(lambda: {"here": 1}["absent"])


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"WORLD_SIZE": "2"}, False),
        ({"RANK": "0", "WORLD_SIZE": "1"}, False),
        ({"RANK": "1", "WORLD_SIZE": "2"}, True),
    ],
)
def test_processes_know_that_they_were_launched_together(
    environment: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert distributed.launched() == expected
