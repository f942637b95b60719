"""Reservoirs against a plain sort of everything offered."""

import math

import pytest
import torch
from torch import Tensor

from ldreg.dimension.reservoir import Kept, Reservoir, SiftingReservoir, _minima, _under


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def plain(rows: int, count: int, dtype: torch.dtype) -> Reservoir:
    return Reservoir(rows, count, dtype=dtype, device=torch.device("cpu"))


def careful(rows: int, count: int, dtype: torch.dtype) -> Reservoir:
    return SiftingReservoir(rows, count, total=None, dtype=dtype)


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


@pytest.mark.parametrize("make", [plain, careful])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(1, 7), (3, 33), (13, 21), (40, 100)])
def test_the_smallest_are_kept(make: type, dtype: torch.dtype, transposed: bool, rows: int, width: int) -> None:
    scores = random(rows, 431, dtype=dtype) - 0.01
    kept = offered(make(rows, 6, dtype), scores, width, transposed=transposed)
    assert_smallest(kept, scores, 6)
    assert len(kept.short) == 0


@pytest.mark.parametrize("make", [plain, careful])
def test_scores_that_fall_from_block_to_block(make: type) -> None:
    """They overflow the room for appending again and again."""
    scores = torch.linspace(1, 0, 400).repeat(3, 1) + torch.arange(3).unsqueeze(1)
    kept = offered(make(3, 7, torch.float32), scores, 25)
    assert all(set(row.tolist()) == set(range(393, 400)) for row in kept.columns)
    torch.testing.assert_close(kept.bound, scores[:, 393])


@pytest.mark.parametrize("make", [plain, careful])
def test_blocks_narrower_than_what_is_kept(make: type) -> None:
    scores = random(5, 50)
    assert_smallest(offered(make(5, 20, torch.float32), scores, 3), scores, 20)


@pytest.mark.parametrize("make", [plain, careful])
def test_everything_may_be_kept(make: type) -> None:
    """As many as there are finite scores: all but one in each row."""
    scores = random(9, 9).fill_diagonal_(torch.inf)
    kept = offered(make(9, 8, torch.float32), scores, 4)
    assert all(set(row.tolist()) == set(range(9)) - {i} for i, row in enumerate(kept.columns))
    assert kept.bound.isfinite().all()


def test_a_fair_sample_makes_no_row_short() -> None:
    scores = random(300, 8000)
    kept = offered(SiftingReservoir(300, 20, total=8000, dtype=torch.float32), scores, 500, transposed=True)
    assert_smallest(kept, scores, 20)
    assert len(kept.short) == 0


def test_thresholds_close_in_on_what_is_kept_in_the_end() -> None:
    """Of uniform scores 20 / 8000 will be kept; a threshold is the share of scores that it lets through."""
    scores = random(300, 8000)
    reservoir = SiftingReservoir(300, 20, total=8000, dtype=torch.float32)
    offered(reservoir, scores[:, :500], 500)
    first = reservoir._threshold.clone()
    reservoir = SiftingReservoir(300, 20, total=8000, dtype=torch.float32)
    offered(reservoir, scores[:, :3000], 500)
    assert 20 / 8000 < reservoir._threshold.mean() < 0.7 * first.mean()
    assert first.mean() < 8 * 20 / 8000


def test_rows_in_blocks_have_thresholds_of_their_own() -> None:
    scores = random(50, 1200) * torch.logspace(-3, 3, 50).unsqueeze(1)
    reservoir = SiftingReservoir(50, 9, total=1200, dtype=torch.float32)
    for first in range(0, 1200, 100):
        for rows in (slice(0, 17), slice(17, 50)):
            reservoir.offer(rows, scores[rows, first : first + 100].contiguous(), first)
    assert_smallest(reservoir.result(), scores, 9)


def test_ties_are_not_dropped() -> None:
    """Whole numbers: the guess equals many scores, which then run over."""
    scores = (random(40, 900) * 3).floor()
    kept = offered(SiftingReservoir(40, 30, total=900, dtype=torch.float32), scores, 90)
    assert len(kept.short) == 0
    assert_smallest(kept, scores, 30)


def test_rows_of_an_unfair_sample_are_short_or_right() -> None:
    """In some rows the first columns are by far the smallest, in others the largest."""
    scores = random(60, 1000)
    scores[:20, :100] *= 1e-3
    scores[20:40, :100] += 1
    kept = offered(SiftingReservoir(60, 40, total=1000, dtype=torch.float32), scores, 100)
    assert set(range(20)) <= set(kept.short.tolist())
    assert not set(range(20, 40)) & set(kept.short.tolist())
    right = torch.tensor([i for i in range(60) if i not in kept.short.tolist()])
    assert_smallest(kept, scores, 40, right)


def test_a_threshold_lowered_later_makes_short_what_it_dropped() -> None:
    """The first sample is fair, what follows is not: enough is held, but not all of the smallest."""
    scores = random(30, 4000)
    scores[:15, 200:800] *= 0.05
    kept = offered(SiftingReservoir(30, 40, total=4000, dtype=torch.float32), scores, 200)
    right = torch.tensor([i for i in range(30) if i not in kept.short.tolist()])
    assert len(right) >= 15
    assert_smallest(kept, scores, 40, right)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (8, 8), (17, 63)])
@pytest.mark.parametrize("level", [-math.inf, 0.0, 0.1, 0.5, 2.0])
@pytest.mark.parametrize("transposed", [False, True])
def test_what_lies_under_a_threshold(shape: tuple[int, int], level: float, transposed: bool) -> None:
    scores = random(*shape)
    scores[0, 0] = torch.inf
    threshold = torch.full((shape[0],), level) * (0.5 + random(shape[0], seed=1))
    hits = _under(scores.T.contiguous().T if transposed else scores, threshold)
    row, column = (scores < threshold.unsqueeze(1)).nonzero(as_tuple=True)
    assert torch.equal(hits.row, row)
    assert torch.equal(hits.column, column)
    assert torch.equal(hits.score, scores[row, column])


def test_part_of_a_larger_block_is_read_in_place() -> None:
    scores = random(20, 30)
    for block in (scores[3:9, 4:15], scores[3:9, 4:15].T):
        threshold = torch.full((len(block),), 0.3)
        assert torch.equal(_under(block, threshold).score, block[block < 0.3])


@pytest.mark.parametrize(("columns", "groups"), [(100, 20), (101, 20), (15, 20), (40, 20)])
def test_minima_of_groups(columns: int, groups: int) -> None:
    scores = random(6, columns)
    minima = _minima(scores, groups)
    assert minima.shape[1] >= min(groups, columns)
    rank = 5
    assert (minima.sort(dim=1).values[:, rank - 1] >= scores.sort(dim=1).values[:, rank - 1]).all()
    assert torch.equal(
        minima.amin(1), scores[:, : columns // max(1, columns // groups) * max(1, columns // groups)].amin(1)
    )
