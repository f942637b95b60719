"""Candidates: lifted rows against float64, reservoirs against a sort, selection against its contract."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.points import normal
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


def select(x: Tensor, reference: Tensor | None = None, own: Tensor | None = None, *, memory: int) -> Candidates:
    """20 candidates by products."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    return by_products(Query(x, reference, own, 12, frame(x), dtype, memory), dtype)


def frame(x: Tensor) -> Frame:
    return Frame(x.double().mean(0), 0.25)


def assert_contract(
    found: Candidates, x: Tensor, reference: Tensor, own: Tensor | None = None, *, scale: float = 0.25
) -> None:
    """Candidates are distinct and not the query itself, and every other row is no nearer than the bound."""
    distances = torch.cdist(x.double(), reference.double(), compute_mode="donot_use_mm_for_euclid_dist")
    truth = (scale * distances).square() / 2
    mine = torch.zeros_like(truth, dtype=torch.bool).scatter_(1, found.indices, True)
    assert (mine.sum(1) == found.indices.shape[1]).all()
    if own is not None:
        some = own >= 0
        assert not mine[some, own[some]].any()
        truth[some, own[some]] = torch.inf
    assert (truth.masked_fill(mine, torch.inf).amin(1) >= found.bound.double() * (1 - 1e-15)).all()


DATA: dict[str, Callable[[], Tensor]] = {
    "gaussian": lambda: normal(700, 12),
    "float64": lambda: normal(500, 12, dtype=torch.float64),
    "half": lambda: normal(500, 12, dtype=torch.float16),
    "sorted by class": lambda: normal(600, 12) + (torch.arange(600) // 60).unsqueeze(1),
    "classes in turn": lambda: normal(600, 12) + (torch.arange(600) % 10).unsqueeze(1),
    "duplicates": lambda: normal(30, 12).repeat(20, 1),
    "grid": lambda: torch.cartesian_prod(*[torch.arange(9.0)] * 3),
    "one cluster in a cloud": lambda: torch.cat((normal(40, 12) * 1e-3, normal(560, 12, seed=1))),
}


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("memory", [1 << 26, 60_000])
def test_no_other_row_is_nearer_than_the_bound(name: str, memory: int) -> None:
    """In one block and in blocks of 64 rows, the last of an odd length."""
    x, state = DATA[name](), torch.get_rng_state()
    found = select(x, memory=memory)
    assert found.indices.shape == (len(x), 20)
    assert_contract(found, x, x, torch.arange(len(x)))
    own = torch.tensor([5, -1, 17, 480, 0] * 15)
    queries = x[own.clamp_min(0)]
    assert_contract(select(queries, x, own, memory=memory), queries, x, own)
    assert_contract(select(queries, x, memory=memory), queries, x)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_guess_that_fails_is_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken class by class, the first block is no sample: its own rows expect far too many neighbors."""
    x = normal(600, 12) + 3 * (torch.arange(600) // 60).unsqueeze(1)
    fair, fair_to = select(x, memory=60_000), select(x[:70], x, memory=60_000)
    again = []
    completed = candidates._completed

    def count_short(kept: Kept, *rest: Any, **options: Any) -> Candidates:
        again.append(len(kept.short))
        return completed(kept, *rest, **options)

    monkeypatch.setattr(candidates, "_order", lambda blocks, device: None)
    monkeypatch.setattr(candidates, "_completed", count_short)
    unfair, unfair_to = select(x, memory=60_000), select(x[:70], x, memory=60_000)
    assert min(again) > 30
    torch.testing.assert_close(unfair.bound, fair.bound, rtol=1e-5, atol=0)
    torch.testing.assert_close(unfair_to.bound, fair_to.bound, rtol=1e-5, atol=1e-7)
    assert_contract(unfair, x, x, torch.arange(600))
    assert_contract(unfair_to, x[:70], x)


def test_differences_separate_what_products_cannot() -> None:
    x, own = normal(200, 3) * 1e-9 + 1, torch.arange(200)
    found = by_differences(Query(x, x, own, 4, Frame(x.mean(0), 2.0), torch.float32, 10_000))
    assert_contract(found, x, x, own, scale=2.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [1, 30, 3000])
def test_products_are_close_lower_bounds(dtype: torch.dtype, dim: int) -> None:
    x = normal(60, dim, dtype=dtype) + 5
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


def uniform(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def offered(reservoir: Reservoir, scores: Tensor, width: int, *, transposed: bool = False) -> Kept:
    """Everything offered, block after block of `width` columns."""
    for start in range(0, scores.shape[1], width):
        block = scores[:, start : start + width].contiguous()
        reservoir.offer(slice(0, len(scores)), block.T.contiguous().T if transposed else block, start)
    return reservoir.result()


def assert_smallest(kept: Kept, scores: Tensor, count: int, *, short: bool = False) -> None:
    """Columns are distinct, their scores the smallest, and the bound is the largest of them, unless a row is short."""
    assert short or len(kept.short) == 0
    rows = torch.tensor([row for row in range(len(scores)) if row not in kept.short.tolist()])
    expected = scores.sort(dim=1).values[rows, :count]
    columns = kept.columns[rows]
    assert torch.equal(scores[rows].gather(1, columns).sort(dim=1).values, expected)
    assert all(len(set(row.tolist())) == count for row in columns)
    assert torch.equal(kept.bound[rows], expected[:, -1])


# Scores, the width of blocks, and how many are kept.
SCORES: dict[str, tuple[Tensor, int, int]] = {
    "one row": (uniform(1, 431) - 0.01, 7, 6),
    "odd blocks": (uniform(13, 431) - 0.01, 21, 6),
    "float64": (uniform(40, 431, dtype=torch.float64), 100, 6),
    "falling, which overflows the room": (torch.linspace(1, 0, 400).repeat(3, 1) + torch.arange(3)[:, None], 25, 7),
    "blocks narrower than what is kept": (uniform(5, 50), 3, 20),
    "all but its own": (uniform(9, 9).fill_diagonal_(torch.inf), 4, 8),
}


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("sifting", [False, True])
def test_the_smallest_are_kept(name: str, transposed: bool, sifting: bool) -> None:
    scores, width, count = SCORES[name]
    if sifting:
        reservoir: Reservoir = SiftingReservoir(len(scores), count, total=None, dtype=scores.dtype)
    else:
        reservoir = Reservoir(len(scores), count, dtype=scores.dtype, device=torch.device("cpu"))
    assert_smallest(offered(reservoir, scores, width, transposed=transposed), scores, count)


def sifted(scores: Tensor, count: int, width: int) -> tuple[SiftingReservoir, Kept]:
    """A reservoir that takes blocks for fair samples of all columns, and its result."""
    reservoir = SiftingReservoir(len(scores), count, total=scores.shape[1], dtype=torch.float32)
    return reservoir, offered(reservoir, scores, width)


def test_of_fair_samples_no_row_is_short_and_little_is_let_through() -> None:
    """Of uniform scores 20 / 8000 are kept; a threshold is the share of scores that it lets through."""
    scores = uniform(300, 8000)
    reservoir, kept = sifted(scores, 20, 500)
    assert_smallest(kept, scores, 20)
    assert 20 / 8000 < reservoir._threshold.mean() < 3 * 20 / 8000
    whole = (uniform(40, 900) * 3).floor()  # the guess equals many scores, which then run over
    assert_smallest(sifted(whole, 30, 90)[1], whole, 30)


def test_rows_of_an_unfair_sample_are_short_or_right() -> None:
    """In some rows the first columns are by far the smallest, in others the largest; later ones may be smaller yet."""
    scores = uniform(60, 1000)
    scores[:20, :100] *= 1e-3
    scores[20:40, :100] += 1
    _, kept = sifted(scores, 40, 100)
    assert set(range(20)) <= set(kept.short.tolist()) <= {*range(20), *range(40, 60)}
    assert_smallest(kept, scores, 40, short=True)
    scores = uniform(30, 4000)
    scores[:15, 200:800] *= 0.05
    _, kept = sifted(scores, 40, 200)
    assert len(kept.short) <= 15
    assert_smallest(kept, scores, 40, short=True)


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
