"""Launches ask Triton once for each kind of call; here a stand-in counts how often it is asked."""

from typing import Any

import pytest
import torch
from torch import Tensor

from ldreg.dimension import cuda as launching
from ldreg.dimension.cuda import launch


class Kernel:
    """A kernel of two arguments and two constants; every compiled variant notes what it is called with."""

    arg_names = ("x", "size", "BLOCK", "SAME")

    def __init__(self, *, interpreted: bool = False) -> None:
        self.asked: list[dict[str, Any]] = []
        self.calls: list[list[tuple[Any, ...]]] = []  # of each variant: the grid and the words
        self.interpreted = interpreted

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self.compile

    def compile(self, x: Tensor, size: float, **options: Any) -> Any:
        calls: list[tuple[Any, ...]] = []
        self.asked.append(options)
        self.calls.append(calls)

        class Variant:
            def __getitem__(self, grid: tuple[int, ...]) -> Any:
                return lambda *words: calls.append((grid, *words))

        return None if self.interpreted else Variant()


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
    [(grid, *words)] = kernel.calls[0]
    assert grid[:3] == (7, 2, 1)
    assert words == [other.data_ptr(), 5, 8, True]  # constants in the order of the kernel's, options left out
    launch(kernel, (1,), x, 5, num_warps=4, SAME=True, BLOCK=8)
    assert kernel.calls[0][1][1:] == (x.data_ptr(), 5, 8, True)
    run(kernel, x, 0.5)
    run(kernel, x, 0.25)  # another float is the same kind of call
    assert len(kernel.asked) == 2
    assert kernel.calls[1][0][2] == 0.25


@pytest.mark.parametrize(
    "change",
    [
        *({"x": torch.zeros(64, dtype=torch.float16)}, {"x": torch.zeros(64)[1:]}),
        *({"size": 16}, {"size": 5.0}, {"size": None}),
        *({"BLOCK": 16}, {"SAME": False}, {"SAME": 1}, {"num_warps": 8}, {"BLOCK": 4, "num_warps": 8}),
    ],
    ids=str,
)
def test_another_kind_of_call_is_compiled_anew(change: dict[str, Any]) -> None:
    kernel, before = Kernel(), torch.zeros(64)
    run(kernel, before)
    run(kernel, **({"x": before} | change))
    assert len(kernel.asked) == 2
    assert not kernel.calls[0]


def test_a_kind_that_the_caller_names_is_taken_at_its_word() -> None:
    kernel, x = Kernel(), torch.zeros(64)
    for kind, size in (("small", 5), ("large", 5), ("small", 6)):
        launch(kernel, (1,), x, size, BLOCK=8, SAME=True, kind=kind)
    assert len(kernel.asked) == 2
    assert kernel.asked[0] == {"BLOCK": 8, "SAME": True, "enable_fp_fusion": True}
    assert kernel.calls[0] == [((1, 1, 1), x.data_ptr(), 6, 8, True)]


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
