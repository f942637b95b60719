"""Neighbors against float64 brute force: every offset, scale, shape, dtype and setting.

What odd and wrong input gets is in tests/properties.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.points import normal
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ldreg.dimension import search as details
from ldreg.dimension.neighbors import neighbor_distances, neighbors


def brute_force(x: Tensor, k: int) -> Tensor:
    distances = (x.double().unsqueeze(1) - x.double()).square().sum(2).sqrt().fill_diagonal_(torch.inf)
    return distances.sort(dim=1).values[:, :k]


def outlier() -> Tensor:
    x = normal(300, 12)
    x[7] = 1e6
    return x


def tiny_cluster() -> Tensor:
    x = normal(300, 12)
    x[:100] *= 1e-25
    return x


DATA: dict[str, Callable[[], Tensor]] = {
    "gaussian": lambda: normal(700, 30),
    "offset": lambda: normal(300, 200) * 0.02 + 30,
    "unit mean": lambda: normal(300, 64) * 1e-3 + 64**-0.5,
    "1e-30": lambda: normal(300, 12) * 1e-30,
    "1e30": lambda: normal(300, 12) * 1e30,
    "two clusters": lambda: normal(300, 12) * 1e-3 + torch.where(torch.arange(300) < 150, 100.0, -100.0)[:, None],
    "outlier": outlier,
    "tiny cluster": tiny_cluster,
    "one-hot": lambda: torch.eye(5)[torch.arange(300) % 5],
    "duplicates": lambda: normal(30, 12).repeat(10, 1),
    "constant": lambda: torch.full((40, 3), 0.1),
    "line": lambda: torch.arange(300.0).unsqueeze(1),
    "whole numbers": lambda: torch.arange(2**24, 2**24 + 300).unsqueeze(1),  # which float32 does not hold
    "grid": lambda: torch.cartesian_prod(torch.arange(17.0), torch.arange(17.0)),
    "wide": lambda: normal(60, 5000),
    "sorted": lambda: normal(2500, 1).sort(dim=0).values,
    "approaching": lambda: torch.logspace(0, -6, 2500).unsqueeze(1),
}


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("k", [1, 20])
def test_distances_are_right_to_rounding(name: str, k: int) -> None:
    x = DATA[name]()
    torch.testing.assert_close(neighbor_distances(x, k).double(), brute_force(x, k), rtol=5e-7, atol=0)


def test_duplicates_and_outliers_do_not_need_the_slow_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many duplicates of few rows, and one row far off: both must be settled by products."""

    def slow(*_: object, **__: object) -> None:
        raise AssertionError("searched by differences")

    monkeypatch.setattr(details, "by_differences", slow)
    repeated = normal(10, 32)[torch.arange(600) % 10]
    assert not neighbor_distances(repeated, 20).any()
    outlier = normal(600, 32)
    outlier[5] = 1e9
    torch.testing.assert_close(neighbor_distances(outlier, 20).double(), brute_force(outlier, 20), rtol=5e-7, atol=0)


def test_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(14, 3, dtype=torch.float64).requires_grad_()
    reference = normal(20, 3, seed=5, dtype=torch.float64).requires_grad_()
    for memory in (details._PAIR_BYTES["cpu"], 500):  # in one part and in several
        monkeypatch.setitem(details._PAIR_BYTES, "cpu", memory)
        assert torch.autograd.gradcheck(lambda q: neighbor_distances(q, 4, reference.detach()), (x,))
        assert torch.autograd.gradcheck(lambda q, r: neighbors(q, 4, r, reference_grad=True).distances, (x, reference))
        assert torch.autograd.gradcheck(lambda q: neighbors(q, 4, reference_grad=True).distances, (x,))
    total = neighbor_distances(x, 4, reference).sum()
    assert list(torch.autograd.grad(total, [reference], allow_unused=True)) == [None]


def test_compiles_without_graph_breaks() -> None:
    x = normal(64, 8).requires_grad_()

    def total(q: Tensor) -> Tensor:
        return neighbor_distances(q, 3).sum()

    (eager,) = torch.autograd.grad(total(x), x)
    compiled = torch.compile(total, fullgraph=True, backend="aot_eager")
    (gradient,) = torch.autograd.grad(compiled(x), x)
    torch.testing.assert_close(gradient, eager)


def test_progress_rises_to_one() -> None:
    seen: list[float] = []
    x = normal(2500, 4)
    found = neighbors(x, 3, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1
    assert len(seen) == 6
    assert torch.equal(found.distances, neighbor_distances(x, 3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (torch.ones(5, 2, 7, 7), 1),
            r"x: expected .* \(5, 2, 7, 7\); pool or flatten all axes but the first",
        ),
        ((torch.ones(5, 2), 4, torch.ones(3, 2)), r"k: expected .* to 3, .* in the reference, got 4"),
        ((torch.ones(5, 2), 1, torch.ones(3)), r"reference: expected a non-empty matrix .* got shape \(3,\)"),
        ((torch.tensor([[1.0], [torch.inf], [torch.nan]]), 1), r"x: expected .* in 2 of 3 rows"),
        ((torch.ones(2, 1), 1, torch.tensor([[torch.inf], [1.0]])), r"reference: expected finite .* in 1 of 2 rows"),
        ((torch.eye(3), 1, torch.eye(3), torch.arange(2)), r"self_index: expected 3 integers, .* got shape \(2,\)"),
    ],
)
def test_bad_input_is_named(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        neighbors(*arguments[:3], self_index=arguments[3] if len(arguments) > 3 else None)


@pytest.mark.gpu
@pytest.mark.parametrize("name", DATA)
def test_cuda_with_tf32_on(name: str) -> None:
    x = DATA[name]()
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        found = neighbor_distances(x.cuda(), 20)
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    torch.testing.assert_close(found.cpu().double(), brute_force(x, 20), rtol=1e-6, atol=0)


class Products(TorchDispatchMode):
    """The setting under which each product of matrices is taken."""

    def __init__(self, setting: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.setting = setting
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ("mm", "addmm", "bmm", "baddbmm"):
            self.seen.append(self.setting.fp32_precision)
        return func(*args, **(kwargs or {}))


def test_products_in_low_precision_are_shut_out_on_the_cpu_too() -> None:
    """Whether the processor has any or not: what they would lose is mostly found again, and takes its time."""
    everywhere: Any = torch.backends
    setting, x = everywhere.mkldnn.matmul, normal(400, 300) + 5
    before = setting.fp32_precision, everywhere.fp32_precision
    try:
        setting.fp32_precision = "bf16"
        with Products(setting) as products:
            found = neighbor_distances(x, 9)
        torch.testing.assert_close(found.double(), brute_force(x, 9), rtol=5e-7, atol=0)
        assert set(products.seen) == {"ieee"}
        assert setting.fp32_precision == "bf16"
        setting.fp32_precision = "none"
        for precision in ("tf32", "bf16", "ieee"):  # set for all products, which still changes this setting
            everywhere.fp32_precision = precision
            assert setting.fp32_precision == precision
            neighbor_distances(x[:20], 3)
    finally:
        setting.fp32_precision, everywhere.fp32_precision = before
