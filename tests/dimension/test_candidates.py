"""Candidates: lifted rows against float64, reservoirs against a sort, selection against its contract."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ldreg.dimension import candidates
from ldreg.dimension.candidates import (
    Candidates,
    Frame,
    Kept,
    LiftedRows,
    Query,
    Reservoir,
    SiftingReservoir,
    _under,
    by_differences,
    by_products,
)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def select(
    x: Tensor, reference: Tensor | None = None, own: Tensor | None = None, *, k: int = 12, memory: int = 60_000
) -> Candidates:
    """Candidates by products, 20 of them by default."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    return by_products(Query(x, reference, own, k, frame(x), dtype, memory), dtype)


def frame(x: Tensor) -> Frame:
    return Frame(x.double().mean(0), 0.25)


def half_squares(x: Tensor, reference: Tensor, scale: float) -> Tensor:
    return (
        scale * torch.cdist(x.double(), reference.double(), compute_mode="donot_use_mm_for_euclid_dist")
    ).square() / 2


def assert_contract(found: Candidates, x: Tensor, reference: Tensor, own: Tensor | None, scale: float) -> None:
    """Candidates are distinct and not the query itself, and every other row is no nearer than the bound."""
    truth = half_squares(x, reference, scale)
    mine = torch.zeros_like(truth, dtype=torch.bool).scatter_(1, found.indices, True)
    assert (mine.sum(1) == found.indices.shape[1]).all()
    if own is not None:
        some = own >= 0
        assert not mine[some, own[some]].any()
        truth[some, own[some]] = torch.inf
    assert (truth.masked_fill(mine, torch.inf).amin(1) >= found.bound.double()).all()


def nearest_are_inside(found: Candidates, x: Tensor, reference: Tensor, own: Tensor | None, k: int) -> bool:
    truth = half_squares(x, reference, 1.0)
    if own is not None:
        truth[own >= 0, own[own >= 0]] = torch.inf
    nearest = truth.sort(dim=1).values[:, k - 1 : k]
    return bool((truth.gather(1, found.indices).sort(dim=1).values[:, k - 1 : k] <= nearest * (1 + 1e-12)).all())


DATA: dict[str, Callable[[], Tensor]] = {
    "gaussian": lambda: random(700, 12),
    "float64": lambda: random(500, 12, dtype=torch.float64),
    "half": lambda: random(500, 12, dtype=torch.float16),
    "sorted by class": lambda: random(600, 12) + (torch.arange(600) // 60).unsqueeze(1),
    "classes in turn": lambda: random(600, 12) + (torch.arange(600) % 10).unsqueeze(1),
    "duplicates": lambda: random(30, 12).repeat(20, 1),
    "grid": lambda: torch.cartesian_prod(*[torch.arange(9.0)] * 3),
    "one cluster in a cloud": lambda: torch.cat((random(40, 12) * 1e-3, random(560, 12, seed=1))),
}


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("memory", [1 << 26, 60_000])
def test_against_itself(name: str, memory: int) -> None:
    """In one block and in blocks of 64 rows, the last of an odd length."""
    x = DATA[name]()
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    found = select(x, memory=memory)
    assert found.indices.shape == (len(x), 20)
    own = torch.arange(len(x))
    assert found.bound.dtype == dtype
    assert_contract(found, x, x, own, frame(x).scale)
    if name not in ("duplicates", "one cluster in a cloud"):  # there ties and rounding may choose others as well
        assert nearest_are_inside(found, x, x, own, 16)


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("memory", [1 << 26, 60_000])
def test_against_a_reference(name: str, memory: int) -> None:
    reference = DATA[name]()
    own = torch.tensor([5, -1, 17, 480, 0] * 15)
    x = reference[own.clamp_min(0)]
    found = select(x, reference, own, memory=memory)
    assert_contract(found, x, reference, own, frame(x).scale)
    without = select(x, reference, memory=memory)
    assert_contract(without, x, reference, None, frame(x).scale)


def test_a_guess_that_fails_is_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken class by class, the first block is no sample: its own rows expect far too many neighbors."""
    x = random(600, 12) + 3 * (torch.arange(600) // 60).unsqueeze(1)
    fair, fair_to = select(x), select(x[:70], x)
    again = []
    completed = candidates._completed

    def count_short(kept: Kept, *rest: Any, **options: Any) -> Candidates:
        again.append(len(kept.short))
        return completed(kept, *rest, **options)

    monkeypatch.setattr(candidates, "_order", lambda blocks, device: None)
    monkeypatch.setattr(candidates, "_completed", count_short)
    unfair, unfair_to = select(x), select(x[:70], x)
    assert min(again) > 30
    torch.testing.assert_close(unfair.bound, fair.bound, rtol=1e-5, atol=0)
    torch.testing.assert_close(unfair_to.bound, fair_to.bound, rtol=1e-5, atol=1e-7)
    assert_contract(unfair, x, x, torch.arange(600), frame(x).scale)
    assert_contract(unfair_to, x[:70], x, None, frame(x).scale)


def test_few_or_nearly_all_and_the_same_whatever_the_global_seed() -> None:
    x = random(300, 5)
    for k in (1, 262, 299):
        found = select(x, k=k, memory=30_000)
        assert_contract(found, x, x, torch.arange(300), frame(x).scale)
    torch.manual_seed(1)
    first = select(x, k=1)
    state = torch.manual_seed(2).get_state()
    second = select(x, k=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.indices, second.indices)
    assert torch.equal(first.bound, second.bound)


def test_by_differences() -> None:
    x = random(200, 3) * 1e-9 + 1
    own = torch.arange(200)
    found = by_differences(Query(x, x, own, 4, Frame(x.mean(0), 2.0), torch.float32, 10_000))
    assert nearest_are_inside(found, x, x, own, 12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [1, 30, 3000])
def test_products_are_close_lower_bounds(dtype: torch.dtype, dim: int) -> None:
    x = random(60, dim, dtype=dtype) + 5
    x[7] = x[3]
    frame = Frame(x.double().mean(0), 0.5)
    rows = LiftedRows(x, frame, order=None, dtype=dtype, cache_bytes=0)
    products = (rows.left(slice(0, 60)) @ rows.right(slice(0, 60)).T).double()
    moved = (x.double() - frame.center) * frame.scale
    truth = torch.cdist(moved, moved, compute_mode="donot_use_mm_for_euclid_dist").square() / 2
    squares = moved.square().sum(1)
    assert (products <= truth).all()
    slack = 4 * (2 * dim + 16) * torch.finfo(dtype).eps * (squares.unsqueeze(1) + squares)
    assert (products >= truth - slack).all()


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_rows_come_in_the_order_given(cache_bytes: int) -> None:
    """Blocks of an order, of chosen places in it, and again from the cache."""
    x = random(50, 7, dtype=torch.float16)
    frame = Frame(x.double().mean(0), 2.0)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(1))
    natural = LiftedRows(x, frame, order=None, dtype=torch.float32, cache_bytes=0)
    ordered = LiftedRows(x, frame, order=order, dtype=torch.float32, cache_bytes=cache_bytes)
    whole = natural.right(slice(0, 50))
    for _ in range(2):
        for block in (slice(0, 16), slice(16, 50)):
            assert torch.equal(ordered.right(block), whole[order[block]])
    places = torch.tensor([40, 3, 3])
    assert torch.equal(ordered.left(places), natural.left(slice(0, 50))[order[places]])
    assert torch.equal(natural.left(places), natural.left(slice(0, 50))[places])


def test_long_rows_are_moved_a_few_at_a_time() -> None:
    """Rows of which few fit the cache give what one step gives."""
    x = random(9, 70_000)
    frame = Frame(x.double().mean(0), 1.0)
    order = torch.arange(9).flip(0)
    lifted = LiftedRows(x, frame, order=order, dtype=torch.float32, cache_bytes=0).right(slice(0, 9))
    torch.testing.assert_close(lifted[:, :-2], (x - x.mean(0)).flip(0))
    torch.testing.assert_close(lifted[:, -1], (x - x.mean(0)).square().sum(1).flip(0) / 2, rtol=0.02, atol=0)


def uniform(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


RESERVOIRS: list[Callable[[int, int, torch.dtype], Reservoir]] = [
    lambda rows, count, dtype: Reservoir(rows, count, dtype=dtype, device=torch.device("cpu")),
    lambda rows, count, dtype: SiftingReservoir(rows, count, total=None, dtype=dtype),
]


def offered(reservoir: Reservoir, scores: Tensor, width: int, *, transposed: bool = False) -> Kept:
    """Everything offered, block after block of `width` columns."""
    for start in range(0, scores.shape[1], width):
        block = scores[:, start : start + width].contiguous()
        reservoir.offer(slice(0, len(scores)), block.T.contiguous().T if transposed else block, start)
    return reservoir.result()


def assert_smallest(kept: Kept, scores: Tensor, count: int, rows: Tensor | None = None) -> None:
    """Columns are distinct, their scores the smallest, and the bound is the largest of them."""
    rows = torch.arange(len(scores)) if rows is None else rows
    expected = scores.sort(dim=1).values[rows, :count]
    columns = kept.columns[rows]
    assert torch.equal(scores[rows].gather(1, columns).sort(dim=1).values, expected)
    assert all(len(set(row.tolist())) == count for row in columns)
    assert torch.equal(kept.bound[rows], expected[:, -1])


@pytest.mark.parametrize("make", RESERVOIRS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(1, 7), (3, 33), (13, 21), (40, 100)])
def test_the_smallest_are_kept(
    make: Callable[[int, int, torch.dtype], Reservoir], dtype: torch.dtype, transposed: bool, rows: int, width: int
) -> None:
    scores = uniform(rows, 431, dtype=dtype) - 0.01
    kept = offered(make(rows, 6, dtype), scores, width, transposed=transposed)
    assert_smallest(kept, scores, 6)
    assert len(kept.short) == 0


@pytest.mark.parametrize("make", RESERVOIRS)
def test_awkward_scores(make: Callable[[int, int, torch.dtype], Reservoir]) -> None:
    scores = torch.linspace(1, 0, 400).repeat(3, 1) + torch.arange(3).unsqueeze(1)
    falling = offered(make(3, 7, torch.float32), scores, 25)  # which overflows the room for appending again and again
    assert all(set(row.tolist()) == set(range(393, 400)) for row in falling.columns)
    torch.testing.assert_close(falling.bound, scores[:, 393])
    scores = uniform(5, 50)
    assert_smallest(offered(make(5, 20, torch.float32), scores, 3), scores, 20)  # blocks narrower than what is kept
    scores = uniform(9, 9).fill_diagonal_(torch.inf)
    everything = offered(make(9, 8, torch.float32), scores, 4)
    assert all(set(row.tolist()) == set(range(9)) - {i} for i, row in enumerate(everything.columns))
    assert everything.bound.isfinite().all()


def test_a_fair_sample_makes_no_row_short() -> None:
    scores = uniform(300, 8000)
    kept = offered(SiftingReservoir(300, 20, total=8000, dtype=torch.float32), scores, 500, transposed=True)
    assert_smallest(kept, scores, 20)
    assert len(kept.short) == 0


def test_thresholds_close_in_on_what_is_kept_in_the_end() -> None:
    """Of uniform scores 20 / 8000 will be kept; a threshold is the share of scores that it lets through."""
    scores = uniform(300, 8000)
    reservoir = SiftingReservoir(300, 20, total=8000, dtype=torch.float32)
    offered(reservoir, scores[:, :500], 500)
    first = reservoir._threshold.clone()
    reservoir = SiftingReservoir(300, 20, total=8000, dtype=torch.float32)
    offered(reservoir, scores[:, :3000], 500)
    assert 20 / 8000 < reservoir._threshold.mean() < 0.7 * first.mean()
    assert first.mean() < 8 * 20 / 8000


def test_rows_in_blocks_have_thresholds_of_their_own() -> None:
    scores = uniform(50, 1200) * torch.logspace(-3, 3, 50).unsqueeze(1)
    reservoir = SiftingReservoir(50, 9, total=1200, dtype=torch.float32)
    for first in range(0, 1200, 100):
        for rows in (slice(0, 17), slice(17, 50)):
            reservoir.offer(rows, scores[rows, first : first + 100].contiguous(), first)
    assert_smallest(reservoir.result(), scores, 9)


def test_ties_are_not_dropped() -> None:
    """Whole numbers: the guess equals many scores, which then run over."""
    scores = (uniform(40, 900) * 3).floor()
    kept = offered(SiftingReservoir(40, 30, total=900, dtype=torch.float32), scores, 90)
    assert len(kept.short) == 0
    assert_smallest(kept, scores, 30)


def test_rows_of_an_unfair_sample_are_short_or_right() -> None:
    """In some rows the first columns are by far the smallest, in others the largest."""
    scores = uniform(60, 1000)
    scores[:20, :100] *= 1e-3
    scores[20:40, :100] += 1
    kept = offered(SiftingReservoir(60, 40, total=1000, dtype=torch.float32), scores, 100)
    assert set(range(20)) <= set(kept.short.tolist())
    assert not set(range(20, 40)) & set(kept.short.tolist())
    right = torch.tensor([i for i in range(60) if i not in kept.short.tolist()])
    assert_smallest(kept, scores, 40, right)


def test_a_threshold_lowered_later_makes_short_what_it_dropped() -> None:
    """The first sample is fair, what follows is not: enough is held, but not all of the smallest."""
    scores = uniform(30, 4000)
    scores[:15, 200:800] *= 0.05
    kept = offered(SiftingReservoir(30, 40, total=4000, dtype=torch.float32), scores, 200)
    right = torch.tensor([i for i in range(30) if i not in kept.short.tolist()])
    assert len(right) >= 15
    assert_smallest(kept, scores, 40, right)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (8, 8), (17, 63)])
@pytest.mark.parametrize("level", [-math.inf, 0.0, 0.1, 0.5, 2.0])
@pytest.mark.parametrize("transposed", [False, True])
def test_what_lies_under_a_threshold(shape: tuple[int, int], level: float, transposed: bool) -> None:
    scores = uniform(*shape)
    scores[0, 0] = torch.inf
    threshold = torch.full((shape[0],), level) * (0.5 + uniform(shape[0], seed=1))
    found = _under(scores.T.contiguous().T if transposed else scores, threshold)
    row, column = (scores < threshold.unsqueeze(1)).nonzero(as_tuple=True)
    for ours, theirs in zip(found, (row, column, scores[row, column]), strict=True):
        assert torch.equal(ours, theirs)
