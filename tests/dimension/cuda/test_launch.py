"""Launches ask Triton once for each kind of call; here a stand-in counts how often it is asked."""

from typing import Any

import pytest
import torch
from torch import Tensor

from ldreg.dimension import cuda as launching
from ldreg.dimension.cuda import launch


class Compiled:
    """What a kernel is compiled to: keeps what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *words: self.calls.append((grid, *words))


class Kernel:
    """A kernel of two arguments and two constants, each call of which compiles anew."""

    arg_names = ("x", "size", "BLOCK", "SAME")

    def __init__(self, *, interpreted: bool = False) -> None:
        self.asked: list[dict[str, Any]] = []
        self.compiled: list[Compiled] = []
        self.interpreted = interpreted

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self.run

    def run(self, x: Tensor, size: float, **options: Any) -> Compiled | None:
        self.asked.append(options)
        self.compiled.append(Compiled())
        return None if self.interpreted else self.compiled[-1]


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "_known", {})


def run(kernel: Kernel, x: Tensor, size: float | None = 5, **constants: Any) -> None:
    launch(kernel, (7, 2), x, size, **{"BLOCK": 8, "SAME": True, "num_warps": 4, **constants})


def test_the_second_call_goes_to_what_the_first_compiled() -> None:
    kernel, x, other = Kernel(), torch.zeros(64), torch.ones(64)
    run(kernel, x)
    run(kernel, other)
    assert kernel.asked == [{"BLOCK": 8, "SAME": True, "num_warps": 4, "enable_fp_fusion": True}]
    [(grid, *words)] = kernel.compiled[0].calls
    assert grid[:3] == (7, 2, 1)
    assert words == [other.data_ptr(), 5, 8, True]  # constants in the order of the kernel's, options left out
    launch(kernel, (1,), x, 5, num_warps=4, SAME=True, BLOCK=8)
    assert kernel.compiled[0].calls[1][1:] == (x.data_ptr(), 5, 8, True)
    run(kernel, x, 0.5)
    run(kernel, x, 0.25)  # another float is the same kind of call
    assert len(kernel.asked) == 2
    assert kernel.compiled[1].calls[0][2] == 0.25


@pytest.mark.parametrize(
    "change",
    [
        {"x": torch.zeros(64, dtype=torch.float16)},
        {"x": torch.zeros(64)[1:]},
        {"size": 16},
        {"size": 5.0},
        {"size": None},
        {"BLOCK": 16},
        {"SAME": False},
        {"SAME": 1},
        {"num_warps": 8},
        {"BLOCK": 4, "num_warps": 8},
    ],
    ids=["dtype", "address", "whole", "float", "none", "constant", "choice", "1 for true", "option", "exchanged"],
)
def test_another_kind_of_call_is_compiled_anew(change: dict[str, Any]) -> None:
    kernel, before = Kernel(), torch.zeros(64)
    run(kernel, before)
    run(kernel, **({"x": before} | change))
    assert len(kernel.asked) == 2
    assert not kernel.compiled[0].calls


def test_a_kind_that_the_caller_names_is_taken_at_its_word() -> None:
    kernel, x = Kernel(), torch.zeros(64)
    for kind, size in (("small", 5), ("large", 5), ("small", 6)):
        launch(kernel, (1,), x, size, BLOCK=8, SAME=True, kind=kind)
    assert len(kernel.asked) == 2
    assert kernel.asked[0] == {"BLOCK": 8, "SAME": True, "enable_fp_fusion": True}
    assert kernel.compiled[0].calls == [((1, 1, 1), x.data_ptr(), 6, 8, True)]


def test_kernels_are_told_apart_and_few_calls_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "_MOST_KNOWN", 3)
    first, second, interpreted, x = Kernel(), Kernel(), Kernel(interpreted=True), torch.zeros(64)
    for _ in range(3):
        for kernel in (first, second, interpreted):
            run(kernel, x)
    assert [len(kernel.asked) for kernel in (first, second, interpreted)] == [1, 1, 3]
    for size in range(10):
        run(first, x, size)
        assert len(launching._known) <= 3
