"""Half the memory after running out of it, and how much there is."""

import os
import weakref

import pytest
import torch
from torch import Tensor

from ldreg.dimension import memory
from ldreg.dimension.memory import free_bytes, within_memory

MiB = 1 << 20


@pytest.fixture(autouse=True)
def _nothing_said_yet() -> None:
    memory._warn_once.cache_clear()


class Hungry:
    """Runs out of memory unless it gets at most `enough` bytes."""

    def __init__(self, enough: int) -> None:
        self.enough = enough
        self.budgets: list[int] = []
        self.errors: list[torch.OutOfMemoryError] = []

    def __call__(self, budget: int) -> str:
        self.budgets.append(budget)
        if budget > self.enough:
            self.errors.append(torch.OutOfMemoryError(f"no {budget} bytes"))
            raise self.errors[-1]
        return "done"


def test_what_fits_is_run_once_and_nothing_is_said() -> None:
    run = Hungry(64 * MiB)
    assert within_memory(run, 64 * MiB) == "done"
    assert run.budgets == [64 * MiB]


def test_the_budget_is_halved_until_it_fits() -> None:
    run = Hungry(20 * MiB)
    with pytest.warns(UserWarning, match="out of memory: continuing with half as much at a time") as said:
        assert within_memory(run, 128 * MiB) == "done"
    assert run.budgets == [128 * MiB, 64 * MiB, 32 * MiB, 16 * MiB]
    assert len(said) == 1
    assert "\n" not in str(said[0].message)


def test_it_is_said_once_per_process() -> None:
    with pytest.warns(UserWarning, match="out of memory"):
        within_memory(Hungry(32 * MiB), 64 * MiB)
    assert within_memory(Hungry(32 * MiB), 64 * MiB) == "done"  # a second warning would be an error


@pytest.mark.filterwarnings("ignore:out of memory")
def test_under_the_floor_the_error_is_raised_as_it_came() -> None:
    run = Hungry(0)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        within_memory(run, 100, floor=20)
    assert run.budgets == [100, 50, 25]
    assert raised.value is run.errors[-1]


def test_other_errors_are_not_tried_again() -> None:
    calls = []

    def run(budget: int) -> None:
        calls.append(budget)
        raise RuntimeError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        within_memory(run, 64 * MiB)
    assert len(calls) == 1


@pytest.mark.filterwarnings("ignore:out of memory")
@pytest.mark.parametrize("cycle", [False, True])
def test_nothing_of_the_failed_attempt_is_held_while_the_next_runs(cycle: bool) -> None:
    held: list[weakref.ref[Tensor]] = []

    def run(budget: int) -> list[bool]:
        if held:
            return [ref() is None for ref in held]
        large = torch.zeros(1000)
        held.append(weakref.ref(large))
        try:
            raise torch.OutOfMemoryError
        except torch.OutOfMemoryError as error:
            kept = [error, large] if cycle else []  # the error knows this frame, which then knows the error
            kept.append(kept)
            raise

    assert within_memory(run, 64 * MiB) == [True]


@pytest.mark.filterwarnings("ignore:out of memory")
def test_the_cache_of_a_device_in_use_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(1))
    within_memory(Hungry(16 * MiB), 64 * MiB)
    assert emptied == [1, 1]


def test_free_memory_of_the_machine_is_part_of_it() -> None:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < free_bytes(torch.device("cpu")) <= total


@pytest.mark.parametrize(
    ("free", "held", "used", "fraction", "expected"),
    [
        (60, 30, 10, 1.0, 80),  # 60 of the driver's, and 20 that torch holds unused
        (60, 30, 10, 0.5, 40),  # torch may hold 20 more, and has 20 unused
        (60, 30, 30, 0.2, 0),  # its share is used up
        (0, 30, 10, 1.0, 20),
    ],
)
def test_free_memory_of_a_gpu(
    free: int, held: int, used: int, fraction: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = {
        "mem_get_info": (free, 100),
        "memory_reserved": held,
        "memory_allocated": used,
        "get_per_process_memory_fraction": fraction,
    }
    for name, value in figures.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert free_bytes(torch.device("cuda")) == expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_is_allocated_is_no_longer_free() -> None:
    device = torch.device("cuda", 0)
    before = free_bytes(device)
    held = torch.empty(64 * MiB, dtype=torch.uint8, device=device)
    assert before - free_bytes(device) >= held.nbytes
    del held
    assert free_bytes(device) >= before - MiB
