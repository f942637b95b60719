"""Work that processes share, and how a process of several ends."""

import os
import signal
import socket
import subprocess
import sys
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

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


LOSING = """
import os, signal, sys
from ldreg import cli, distributed

taken, gone = distributed.agreed, sys.argv[1]
def agreed(work):
    taken(lambda: None)  # all have joined
    if os.environ["RANK"] == gone:
        os.kill(os.getpid(), signal.SIGKILL)
    return taken(work)
distributed.agreed = agreed
sys.argv[1:] = ["inspect", "no such file.npy"]
cli.run()
"""
PLACE = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK")


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that says nothing of other processes, and little time to wait for them."""
    for name in PLACE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(distributed, "_MEETING", timedelta(seconds=0.3))
    return monkeypatch


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port: int = free.getsockname()[1]
        return port


def started(program: str, count: int, *arguments: str) -> list[subprocess.Popen[str]]:
    """So many processes that know of one another."""
    where = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)}
    return [
        subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            env={**os.environ, **where, "OMP_NUM_THREADS": "1", "RANK": str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]


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
    processes = started(SHARED, 3)
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
    [("", False), ("WORLD_SIZE=2", False), ("RANK=0 WORLD_SIZE=1", False), ("RANK=1 WORLD_SIZE=2", True)],
)
def test_processes_know_that_they_were_launched_together(
    environment: str, expected: bool, place: pytest.MonkeyPatch
) -> None:
    for variable in environment.split():
        place.setenv(*variable.split("="))
    assert distributed.launched() == expected
    assert distributed.local_rank() == 0


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ("RANK=x WORLD_SIZE=2", "RANK: expected an integer from 0 to 1 in the environment, got 'x'"),
        ("RANK=2 WORLD_SIZE=2", "RANK: expected an integer from 0 to 1 in the environment, got '2'"),
        ("RANK=-1 WORLD_SIZE=2", "RANK: expected an integer from 0 to 1 in the environment, got '-1'"),
        ("RANK=1 WORLD_SIZE=1", "RANK: expected an integer from 0 to 0 in the environment, got '1'"),
        ("RANK=0 WORLD_SIZE=two", "WORLD_SIZE: expected an integer of at least 1 in the environment, got 'two'"),
        ("RANK=0 WORLD_SIZE=0", "WORLD_SIZE: expected an integer of at least 1 in the environment, got '0'"),
        ("RANK=0 WORLD_SIZE=2", "MASTER_PORT: expected an integer from 1 to 65535 in the environment, got ''"),
        ("RANK=0 WORLD_SIZE=2 MASTER_PORT=70000", "MASTER_PORT: expected an integer from 1 to 65535 .*, got '70000'"),
        ("RANK=0 WORLD_SIZE=2 MASTER_PORT=5000", "MASTER_ADDR: expected the address of process 0 .*, got nothing"),
        ("RANK=0 WORLD_SIZE=2 LOCAL_RANK=first", "LOCAL_RANK: expected an integer of at least 0 .*, got 'first'"),
    ],
)
def test_an_environment_that_makes_no_sense_is_named(environment: str, message: str, place: pytest.MonkeyPatch) -> None:
    for variable in environment.split():
        place.setenv(*variable.split("="))
    with pytest.raises(ValueError, match=f"^{message}$"):
        join()


def join() -> None:
    distributed.local_rank()
    assert distributed.launched()
    with distributed.joined():
        pass


@pytest.mark.parametrize(
    ("number", "host", "reason"),
    [
        (0, "localhost", r"\w"),
        (1, "localhost", "Connection refused"),
        (0, "nowhere.invalid", r"\w"),
        (1, "nowhere.invalid", r"\w"),
    ],
)
def test_waiting_for_processes_that_do_not_come_has_an_end(
    number: int, host: str, reason: str, place: pytest.MonkeyPatch
) -> None:
    port = free_port()
    for name, value in {"RANK": number, "WORLD_SIZE": 2, "MASTER_ADDR": host, "MASTER_PORT": port}.items():
        place.setenv(name, str(value))
    message = rf"^expected 2 processes at {host}:{port} within 0.3 seconds: {reason}"
    with pytest.raises(ConnectionError, match=message), distributed.joined():
        pass
    assert not dist.is_initialized()


@pytest.mark.slow
@pytest.mark.parametrize("gone", [0, 1])
def test_a_process_that_dies_ends_the_others_with_one_line(gone: int) -> None:
    processes = started(LOSING, 2, str(gone))
    try:
        ends = [(*process.communicate(timeout=60), process.returncode) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert ends[gone][2] == -signal.SIGKILL
    out, err, status = ends[1 - gone]
    assert (out, status) == ("", 2), err
    assert err == "ldreg inspect: error: lost another process: it has ended, or does not answer; see what it says\n"


def test_an_exchange_that_breaks_down_is_a_lost_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer")

    monkeypatch.setattr(distributed, "active", lambda: True)
    monkeypatch.setattr(distributed, "world", lambda: 2)
    monkeypatch.setattr(dist, "all_gather_object", broken)
    for exchange in (
        lambda: distributed.agreed(lambda: 3),
        lambda: distributed.from_first(lambda: 3),
        lambda: distributed.gather_parts(torch.ones(2)),
    ):
        with pytest.raises(distributed.LostProcessError, match=r"^lost another process"):
            exchange()
