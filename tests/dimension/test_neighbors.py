"""Neighbors against float64 brute force: every offset, scale, shape, dtype and setting."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ldreg.dimension import search as details
from ldreg.dimension.neighbors import neighbor_distances, neighbors
from ldreg.dimension.search import _PAIR_BYTES, _SEARCH_BYTES


def brute_force(x: Tensor, k: int, reference: Tensor | None = None, self_index: Tensor | None = None) -> Tensor:
    rows = x.double() if reference is None else reference.double()
    distances = (x.double().unsqueeze(1) - rows).square().sum(2).sqrt()
    own = torch.arange(len(x)) if reference is None else self_index
    if own is not None:
        keep = own >= 0
        distances[torch.arange(len(x))[keep], own[keep]] = torch.inf
    return distances.sort(dim=1).values[:, :k]


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def two_clusters() -> Tensor:
    x = random(300, 12) * 1e-3
    return x + torch.where(torch.arange(300) < 150, 100.0, -100.0).unsqueeze(1)


def outlier() -> Tensor:
    x = random(300, 12)
    x[7] = 1e6
    return x


def tiny_cluster() -> Tensor:
    x = random(300, 12)
    x[:100] *= 1e-25
    return x


DATA: dict[str, Callable[[], Tensor]] = {
    "gaussian": lambda: random(700, 30),
    "offset": lambda: random(300, 200) * 0.02 + 30,
    "unit mean": lambda: random(300, 64) * 1e-3 + 64**-0.5,
    "1e-30": lambda: random(300, 12) * 1e-30,
    "1e30": lambda: random(300, 12) * 1e30,
    "two clusters": two_clusters,
    "outlier": outlier,
    "tiny cluster": tiny_cluster,
    "one-hot": lambda: torch.eye(5)[torch.arange(300) % 5],
    "duplicates": lambda: random(30, 12).repeat(10, 1),
    "constant": lambda: torch.full((40, 3), 0.1),
    "line": lambda: torch.arange(300.0).unsqueeze(1),
    "grid": lambda: torch.cartesian_prod(torch.arange(17.0), torch.arange(17.0)),
    "wide": lambda: random(60, 5000),
    "sorted": lambda: random(2500, 1).sort(dim=0).values,
    "approaching": lambda: torch.logspace(0, -6, 2500).unsqueeze(1),
}


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("k", [1, 20])
def test_distances_are_right_to_rounding(name: str, k: int) -> None:
    x = DATA[name]()
    torch.testing.assert_close(
        neighbor_distances(x, k).double(), brute_force(x, k), rtol=5e-7, atol=0, msg=lambda m: f"{name}: {m}"
    )


def test_all_of_the_reference_with_some_queries_in_it() -> None:
    reference, own = random(10, 3), torch.tensor([0, -1])
    found = neighbors(reference[:2], 9, reference, self_index=own)
    expected = brute_force(reference[:2], 9, reference, own)
    torch.testing.assert_close(found.distances.double(), expected, rtol=5e-7, atol=0)


def test_many_blocks_equal_one(monkeypatch: pytest.MonkeyPatch) -> None:
    x = random(500, 24)
    whole = neighbors(x, 10)
    monkeypatch.setitem(_SEARCH_BYTES, "cpu", 30_000)
    monkeypatch.setitem(_PAIR_BYTES, "cpu", 5_000)
    chunked = neighbors(x, 10)
    torch.testing.assert_close(chunked.distances, whole.distances, rtol=3e-7, atol=0)
    assert torch.equal(chunked.indices, whole.indices)
    against = neighbors(x[:77], 10, x, self_index=torch.arange(77))
    assert torch.equal(against.indices, whole.indices[:77])


def test_self_is_excluded_by_index_and_duplicates_are_not() -> None:
    x = torch.tensor([[10.0, 10.0], [10.0, 10.0], [13.0, 14.0]])
    found = neighbors(x, 2)
    assert found.distances.tolist() == [[0, 5], [0, 5], [5, 5]]
    assert found.indices[:2].tolist() == [[1, 2], [0, 2]]
    whole = torch.tensor([[16777216], [16777217], [16777219]])  # which float32 does not hold
    assert neighbor_distances(whole, np.int64(1)).tolist() == [[1], [1], [2]]  # type: ignore[arg-type]


def test_gradients() -> None:
    x = random(14, 3, dtype=torch.float64).requires_grad_()
    reference = random(20, 3, seed=5, dtype=torch.float64).requires_grad_()
    fixed = reference.detach()
    assert torch.autograd.gradcheck(lambda q: neighbor_distances(q, 4, fixed), (x,))
    assert torch.autograd.gradcheck(lambda q, r: neighbors(q, 4, r, reference_grad=True).distances, (x, reference))
    assert torch.autograd.gradcheck(lambda q: neighbors(q, 4, reference_grad=True).distances, (x,))


def test_reference_is_detached_unless_asked() -> None:
    x, reference = random(10, 3).requires_grad_(), random(20, 3, seed=1).requires_grad_()
    neighbor_distances(x, 3, reference).sum().backward()
    assert x.grad is not None
    assert reference.grad is None


def test_chunked_backward_equals_unchunked(monkeypatch: pytest.MonkeyPatch) -> None:
    x = random(60, 10).requires_grad_()
    weight = random(60, 6, seed=9)
    (whole,) = torch.autograd.grad((neighbors(x, 6, reference_grad=True).distances * weight).sum(), x)
    monkeypatch.setitem(_PAIR_BYTES, "cpu", 500)
    (chunked,) = torch.autograd.grad((neighbors(x, 6, reference_grad=True).distances * weight).sum(), x)
    torch.testing.assert_close(chunked, whole)


def test_zero_distance_has_zero_gradient() -> None:
    x = torch.zeros(5, 2, requires_grad=True)
    neighbor_distances(x, 2).sum().backward()
    assert x.grad is not None
    assert not x.grad.any()


def test_autocast_changes_nothing() -> None:
    x = random(300, 32) + 30
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = neighbor_distances(x, 5)
    assert torch.equal(inside, neighbor_distances(x, 5))


def test_compiles_without_graph_breaks() -> None:
    x = random(64, 8).requires_grad_()

    def total(q: Tensor) -> Tensor:
        return neighbor_distances(q, 3).sum()

    (eager,) = torch.autograd.grad(total(x), x)
    compiled = torch.compile(total, fullgraph=True, backend="aot_eager")
    (gradient,) = torch.autograd.grad(compiled(x), x)
    torch.testing.assert_close(gradient, eager)


def test_progress_rises_to_one() -> None:
    seen: list[float] = []
    x = random(2500, 4)
    found = neighbors(x, 3, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1
    assert len(seen) == 6
    assert torch.equal(found.distances, neighbor_distances(x, 3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.ones(5), 1), r"x: expected a non-empty matrix \(N, D\), got shape \(5,\)$"),
        ((torch.ones(5, 2, 7, 7), 1), r"got shape \(5, 2, 7, 7\); pool or flatten all axes but the first"),
        ((torch.ones(2, 2, 2), 1), r"x: expected .* got shape \(2, 2, 2\)"),
        ((torch.ones(0, 2), 1), r"x: expected .* got shape \(0, 2\)"),
        ((torch.ones(5, 2, dtype=torch.complex64), 1), r"x: expected real numbers, got torch.complex64"),
        ((torch.ones(5, 2), 5), r"k: expected an integer from 1 to 4, .* in x, got 5"),
        ((torch.ones(5, 2), 0), r"k: expected .* got 0"),
        ((torch.ones(5, 2), 1.5), r"k: expected .* got 1.5"),
        ((torch.ones(5, 2), True), r"k: expected .* got True"),
        ((torch.ones(5, 2), 4, torch.ones(3, 2)), r"k: expected .* to 3, .* in the reference, got 4"),
        ((torch.ones(5, 2), 1, torch.ones(3, 4)), r"reference: expected 2 columns .* got shape \(3, 4\)"),
        ((torch.ones(5, 2), 1, torch.ones(3)), r"reference: expected a non-empty matrix .* got shape \(3,\)"),
        ((torch.tensor([[1.0], [torch.nan], [2.0]]), 1), r"x: expected finite numbers, got NaN or inf in 1 of 3 rows"),
        ((torch.tensor([[1.0], [torch.inf], [torch.nan]]), 1), r"x: expected .* in 2 of 3 rows"),
        ((torch.ones(2, 1), 1, torch.tensor([[torch.inf], [1.0]])), r"reference: expected finite .* in 1 of 2 rows"),
        ((torch.eye(3), 1, None, torch.arange(3)), r"self_index: expected None without a reference"),
        ((torch.eye(3), 1, torch.eye(3), torch.arange(2)), r"self_index: expected 3 integers, .* got shape \(2,\)"),
        ((torch.eye(3), 1, torch.eye(3), torch.full((3,), 3)), r"self_index: expected rows .*, 0 to 2, or -1"),
        ((torch.eye(3), 1, torch.eye(3), torch.full((3,), -2)), r"self_index: expected rows .*, 0 to 2, or -1"),
    ],
)
def test_bad_input_is_named(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        neighbors(*arguments[:3], self_index=arguments[3] if len(arguments) > 3 else None)


@pytest.mark.slow
@pytest.mark.parametrize("offset", [1.0, 31.0])
def test_paper_scale_against_float64(offset: float) -> None:
    """N(1, 0.02²) and the same + 30 in 2048 dimensions, where cdist is off by up to 24 % or gives NaN."""
    x = random(8192, 2048) * 0.02 + offset
    rows = torch.arange(0, 8192, 64)
    expected = torch.cdist(x[rows].double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist")
    expected[torch.arange(len(rows)), rows] = torch.inf
    expected = expected.topk(64, largest=False).values
    torch.testing.assert_close(neighbor_distances(x, 64)[rows].double(), expected, rtol=1e-6, atol=0)


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
    setting = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = setting.fp32_precision
    setting.fp32_precision = "bf16"
    try:
        x = random(400, 300) + 5
        with Products(setting) as products:
            found = neighbor_distances(x, 9)
        torch.testing.assert_close(found.double(), brute_force(x, 9), rtol=5e-7, atol=0)
        assert set(products.seen) == {"ieee"}
        assert setting.fp32_precision == "bf16"
    finally:
        setting.fp32_precision = before


def test_a_precision_that_is_set_for_all_products_can_still_be_changed_for_all() -> None:
    everywhere: Any = torch.backends
    setting = everywhere.mkldnn.matmul
    before = setting.fp32_precision, everywhere.fp32_precision
    setting.fp32_precision = "none"
    try:
        for precision in ("tf32", "bf16", "ieee"):
            everywhere.fp32_precision = precision
            assert setting.fp32_precision == precision
            neighbor_distances(random(20, 4), 3)
    finally:
        setting.fp32_precision, everywhere.fp32_precision = before


@pytest.mark.parametrize("scale", [1e-44, 1e-40, 1e-38, 1e36])
def test_the_ends_of_the_float32_range(scale: float) -> None:
    x = (random(200, 6, dtype=torch.float64) * scale).float()
    torch.testing.assert_close(neighbor_distances(x, 5).double(), brute_force(x, 5), rtol=1e-6, atol=1e-45)


def test_distances_that_no_float32_can_hold_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^x: expected values whose distances fit float32"):
        neighbor_distances(random(200, 6).clamp(-3, 3) * 1e38, 5)
    wide = random(200, 6, dtype=torch.float64) * 1e38
    torch.testing.assert_close(neighbor_distances(wide, 5), brute_force(wide, 5), rtol=1e-13, atol=0)


def test_duplicates_and_outliers_do_not_need_the_slow_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many duplicates of few rows, and one row far off: both must be settled by products."""

    def slow(*_: object, **__: object) -> None:
        raise AssertionError("searched by differences")

    monkeypatch.setattr(details, "by_differences", slow)
    repeated = random(10, 32)[torch.arange(600) % 10]
    assert not neighbor_distances(repeated, 20).any()
    outlier = random(600, 32)
    outlier[5] = 1e9
    torch.testing.assert_close(neighbor_distances(outlier, 20).double(), brute_force(outlier, 20), rtol=5e-7, atol=0)


@pytest.mark.parametrize("dtype", [">f8", "<f8", ">f4", ">i4"])
def test_numpy_arrays_of_any_byte_order_and_direction(dtype: str) -> None:
    plain = (100 * np.random.default_rng(0).normal(size=(60, 4))).astype(dtype.replace(">", "<"))
    other = plain.astype(dtype)
    for x, y in ((other, plain), (other[::-1, ::-1], plain[::-1, ::-1].copy())):
        assert torch.equal(neighbor_distances(x, 5), neighbor_distances(y, 5))  # type: ignore[arg-type]
