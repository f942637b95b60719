"""Searches in chunks and blocks against searches at once; "cpu:0" stands for a device that the points do not lie on."""

import math
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.points import normal
from torch import Tensor

from ldreg.dimension import streaming
from ldreg.dimension.estimators import Estimator, estimate_lid
from ldreg.dimension.neighbors import neighbors
from ldreg.dimension.search import Neighbors, within_memory
from ldreg.dimension.streaming import Mover, _available, resident, stream_lid, stream_neighbors

ELSEWHERE = "cpu:0"
Watched = list[tuple[int, int, int]]


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """How many queries, rows and bytes of memory each search of a block had."""
    seen: Watched = []
    search: Callable[..., Neighbors] = streaming.__dict__["search"]

    def watched(x: Tensor, reference: Tensor, *arguments: Any, memory: int) -> Neighbors:
        seen.append((len(x), len(reference), memory))
        return search(x, reference, *arguments, memory=memory)

    monkeypatch.setattr(streaming, "search", watched)
    return seen


def assert_same(found: Neighbors, expected: Neighbors) -> None:
    """Equal distances to the last bit, and the same rows."""
    assert found.distances.dtype == expected.distances.dtype
    assert torch.equal(found.distances, expected.distances)
    assert torch.equal(found.indices, expected.indices)


@pytest.mark.parametrize("device", ["cpu", ELSEWHERE])
@pytest.mark.parametrize("seed", range(8))
def test_blocks_are_searched_as_all_at_once(seed: int, device: str, searched: Watched) -> None:
    """A set in itself, and queries in a reference that some of them are rows of."""
    rng = np.random.default_rng(seed)
    m, d = int(rng.integers(5, 90)), int(rng.integers(1, 120))
    x = normal(m, d, seed=seed) + rng.normal(scale=10 ** rng.uniform(-2, 2))
    k, budget = int(rng.integers(1, m - 1)), int(24 * d * m * rng.uniform(0.1, 0.3))
    options: dict[str, Any] = {"device": device, "budget": budget}
    assert_same(stream_neighbors(x, k, **options), neighbors(x, k))
    own = torch.from_numpy(rng.integers(-1, m, size=int(rng.integers(1, 30))))
    queries = torch.where((own >= 0).unsqueeze(1), x[own], normal(len(own), d, seed=seed + 100))
    found = stream_neighbors(queries, k, x, self_index=own, **options)
    assert_same(found, neighbors(queries, k, x, self_index=own))
    apart = normal(len(own), d, seed=seed + 200)
    assert_same(stream_neighbors(apart, k + 1, x, **options), neighbors(apart, k + 1, x))
    assert searched or device == "cpu"  # where the points need no room


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.float16, 2)])
def test_chunks_blocks_and_searches_stay_within_the_budget(
    dtype: torch.dtype, size: int, searched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search has rows of float16 as float32, and a quarter of what is free, but no less than it needs."""
    x, budget = normal(500, 64).to(dtype), 60_000
    expected = neighbors(x, 10)
    for least, memory in ((16 << 20, 16 << 20), (1, 20_000)):
        monkeypatch.setattr(streaming, "_LEAST_WORK", least)
        searched.clear()
        assert_same(stream_neighbors(x, 10, device=ELSEWHERE, budget=budget), expected)
        width, working, result = 64 * size, 64 * 4, 64 * (10 + 8)
        of_queries, of_rows = width + working + result, 2 * width + working
        assert max(queries * of_queries + rows * of_rows for queries, rows, _ in searched) <= budget
        assert max(queries for queries, _, _ in searched) > 10
        assert max(rows for _, rows, _ in searched) > 30
        assert {given for _, _, given in searched} == {memory}


def grid(side: int) -> Tensor:
    """Points of a square grid, in random order: most distances are those of several others."""
    points = torch.cartesian_prod(torch.arange(float(side)), torch.arange(float(side)))
    return points[torch.randperm(len(points), generator=torch.Generator().manual_seed(0))]


@pytest.mark.parametrize("budget", [1000, 10_000, None])
def test_rows_at_the_same_distance_come_in_ascending_order(budget: int | None, searched: Watched) -> None:
    x = grid(9)
    found = stream_neighbors(x, 20, device=ELSEWHERE, budget=budget)
    assert bool(searched) == (budget is not None)
    tied = found.distances[:, 1:] == found.distances[:, :-1]
    assert tied.any(1).all()
    assert (found.indices.diff(dim=1)[tied] > 0).all()
    for estimator in ("mom", "mle"):  # and not "tle", whose neighbors are others where rows tie for the last place
        lids = [stream_lid(x, 10, estimator=estimator, device=ELSEWHERE, budget=some).lid for some in (budget, None)]
        assert torch.equal(*lids)


@pytest.mark.parametrize("estimator", ["mom", "mle", "tle"])
def test_ties_change_nothing(estimator: Estimator) -> None:
    x = torch.cat([grid(3) + 100 * i for i in range(8)])  # the 8 others of each grid are the 8 nearest, with many ties
    x = x[torch.randperm(72, generator=torch.Generator().manual_seed(1))]
    whole = stream_lid(x, 8, estimator=estimator, device="cpu")
    for budget in (1000, 3000):
        found = stream_lid(x, 8, estimator=estimator, device=ELSEWHERE, budget=budget)
        assert_same(found.neighbors, whole.neighbors)
        assert torch.equal(found.lid, whole.lid)
    rows = torch.arange(30, 60)
    part = stream_lid(x[rows], 8, x, self_index=rows, estimator=estimator, device="cpu")
    assert torch.equal(part.lid, whole.lid[rows])


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_mapped_file_is_measured_as_it_is(dtype: str, order: Any, tmp_path: Path) -> None:
    values = np.asarray(np.random.default_rng(0).normal(size=(80, 12)), dtype=dtype, order=order)
    np.save(tmp_path / "x.npy", values)
    mapped = torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="c"))
    expected = neighbors(torch.from_numpy(values), 7)
    assert_same(stream_neighbors(mapped, 7, device=ELSEWHERE, budget=5000), expected)
    assert_same(stream_neighbors(mapped, 7, device=ELSEWHERE, budget=None), expected)


@pytest.mark.parametrize("budget", [None, 4000])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_bad_rows_are_counted_over_all_blocks(bad: float, budget: int | None) -> None:
    x = normal(100, 8)
    x[[3, 50, 98], 2] = bad
    with pytest.raises(ValueError, match=r"^x: expected .*NaN or inf in 3 of 100 rows \(from 0: 3, 50, 98\)$"):
        stream_neighbors(x, 5, device=ELSEWHERE, budget=budget)
    with pytest.raises(ValueError, match=r"^reference: .* in 3 of 100 rows \(from 0: 3, 50, 98\)$"):
        stream_neighbors(x[10:20], 5, x, device=ELSEWHERE, budget=budget)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 20}, "k: expected an integer from 1 to 19"),
        ({"k": 3, "reference": torch.ones(9, 3), "self_index": torch.arange(20)}, "rows of the reference, 0 to 8"),
        ({"k": 3, "x": normal(20, 3).clamp(-3, 3) * 1e38}, "^x: expected values whose distances fit float32"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stream_neighbors(**({"x": normal(20, 3)} | arguments), device=ELSEWHERE, budget=1000)
    with pytest.raises(ValueError, match="k: expected at least 2"):
        stream_lid(normal(20, 3), 1, device=ELSEWHERE)


def test_what_fits_is_searched_at_once(searched: Watched) -> None:
    x = normal(100, 8)
    enough = 100 * (2 * 32 + 64 * (5 + 8))
    assert_same(stream_neighbors(x, 5, device=ELSEWHERE, budget=enough), neighbors(x, 5))
    assert_same(stream_neighbors(x, 5, device="cpu"), neighbors(x, 5))
    assert not searched
    stream_neighbors(x, 5, device=ELSEWHERE, budget=enough - 1)
    assert searched


def hungry(monkeypatch: pytest.MonkeyPatch, name: str, most: int) -> list[int]:
    """Make a function of `streaming` run out of memory where it has more queries than `most`; returns their numbers."""
    seen: list[int] = []
    function: Callable[..., Neighbors] = getattr(streaming, name)

    def limited(x: Tensor, *arguments: Any, **options: Any) -> Neighbors:
        seen.append(len(x))
        if len(x) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return function(x, *arguments, **options)

    monkeypatch.setattr(streaming, name, limited)
    monkeypatch.setattr(streaming, "within_memory", partial(within_memory, floor=1))
    return seen


@pytest.mark.filterwarnings("ignore:out of memory")
def test_running_out_of_memory_halves_the_chunk_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = hungry(monkeypatch, "search", 13)
    x = normal(200, 64)
    fractions: list[float] = []
    found = stream_neighbors(x, 5, device=ELSEWHERE, budget=150_000, progress=fractions.append)
    assert_same(found, neighbors(x, 5))
    too_many = [queries for queries in seen if queries > 13]
    assert len(too_many) in (2, 3)
    assert seen[: len(too_many)] == too_many  # a budget that was too much is not tried again
    assert len(fractions) > 4
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1
    expected = neighbors(x, 5)
    at_once = hungry(monkeypatch, "neighbors", 100)  # all at once is too much, and chunks are not
    assert_same(stream_neighbors(x, 5, device="cpu", budget=200 * 64 * 13), expected)
    assert at_once == [200]


@pytest.mark.parametrize("estimator", ["mom", "mle", "tle"])
@pytest.mark.parametrize(("device", "budget"), [("cpu", None), (ELSEWHERE, None), ("cpu", 9000), (ELSEWHERE, 9000)])
def test_lid_is_that_of_a_search_at_once(estimator: Estimator, device: str, budget: int | None) -> None:
    x = normal(90, 10).requires_grad_()
    found = stream_lid(x, 12, estimator=estimator, device=device, budget=budget)
    expected = estimate_lid(x.detach(), 12, estimator=estimator)
    assert not found.lid.requires_grad
    other = stream_lid(x, 12, convention="pseudocode", device=device, budget=budget)
    assert torch.equal(other.lid, estimate_lid(x.detach(), 12, convention="pseudocode").lid)
    assert_same(found.neighbors, expected.neighbors)
    assert torch.equal(found.lid, expected.lid)
    assert torch.equal(found.standard_error, expected.standard_error)
    rows = torch.arange(20, 60)
    part = stream_lid(x[20:60], 12, x, self_index=rows, estimator=estimator, device=device, budget=budget)
    assert torch.equal(part.lid, expected.lid[20:60])


def test_points_are_brought_to_a_device_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(50, 4)
    assert torch.equal(resident(x, 5, torch.device(ELSEWHERE)), x)
    assert resident(x, 5, torch.device("cpu")).data_ptr() == x.data_ptr()
    meta = torch.device("meta")  # has a type of its own, and no memory
    monkeypatch.setattr(streaming, "_available", lambda device: 50 * (2 * 16 + 64 * 13))
    assert resident(x, 5, meta).device == meta
    monkeypatch.setattr(streaming, "_available", lambda device: 50 * (2 * 16 + 64 * 13) - 1)
    assert resident(x, 5, meta) is x


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:out of memory")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_set_larger_than_the_memory_of_the_gpu(dtype: torch.dtype) -> None:
    device = torch.device("cuda", 0)
    total = torch.cuda.get_device_properties(device).total_memory
    x = normal(300_000, 512).to(dtype) + 3
    rows = torch.arange(0, 300_000, 1000)
    expected = neighbors(x[rows], 20, x, self_index=rows)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_reserved(device)  # by other tests
    torch.cuda.set_per_process_memory_fraction((before + x.nbytes * 0.8) / total, device)
    try:
        assert resident(x, 20, device) is x
        with pytest.raises(torch.OutOfMemoryError):
            x.to(device)
        found = stream_neighbors(x, 20, device=device)
        assert torch.cuda.max_memory_reserved(device) <= before + x.nbytes
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
        torch.cuda.empty_cache()
    torch.testing.assert_close(found.distances[rows], expected.distances, rtol=1e-6, atol=0)
    assert (found.indices[rows] == expected.indices).float().mean() > 0.999


@pytest.mark.gpu
@pytest.mark.parametrize("estimator", ["mom", "mle", "tle"])
def test_blocks_on_the_gpu_give_what_all_at_once_does(estimator: Estimator) -> None:
    x = normal(20_000, 100) + 10
    whole = stream_lid(x, 32, estimator=estimator, device="cuda")
    parts = stream_lid(x, 32, estimator=estimator, device="cuda", budget=8 << 20)
    torch.testing.assert_close(parts.neighbors.distances, whole.neighbors.distances, rtol=1e-6, atol=0)
    # Which of two equally far rows is the last neighbor is open, and TLE looks at more than its distance.
    same = (parts.neighbors.indices.sort(1).values == whole.neighbors.indices.sort(1).values).all(1)
    assert same.float().mean() > 0.999
    torch.testing.assert_close(parts.lid[same], whole.lid[same], rtol=1e-5, atol=0)


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
    monkeypatch.setattr(streaming, "_SHARE", 1)
    for name, value in figures.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert _available(torch.device("cuda")) == expected


BLOCKS = [slice(0, 3), slice(3, 6), slice(6, 8), slice(8, 11), slice(11, 12)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_blocks_arrive_as_they_are_and_are_not_touched_by_the_next(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Tensor] = []
    copy = streaming._copy

    def recorded(source: Tensor, target: Tensor) -> None:
        copy(source, target)
        sent.append(target)

    monkeypatch.setattr(streaming, "_copy", recorded)
    x = torch.arange(48.0, dtype=dtype).view(12, 4)
    turned = x.T.contiguous().T
    with Mover(torch.device(ELSEWHERE)) as mover, Mover(torch.device("cpu")) as idle:
        for i, ((block, there), expected) in enumerate(zip(mover.each(x, BLOCKS), BLOCKS, strict=True)):
            while len(sent) < min(i + 2, len(BLOCKS)):
                time.sleep(0.001)  # the next block arrives while this one is in use
            assert block == expected
            assert there.dtype == dtype
            assert torch.equal(there, x[block])
        assert len({target.untyped_storage().data_ptr() for target in sent} - {x.untyped_storage().data_ptr()}) == 2
        with closing(mover.each(x, BLOCKS)) as blocks:
            next(blocks)  # and no more, which is no harm
        assert torch.equal(mover.moved(turned[::2]), turned[::2])
        # Rows that are there are not copied.
        assert [there.data_ptr() for _, there in idle.each(x, BLOCKS)] == [x[block].data_ptr() for block in BLOCKS]


def test_a_copy_that_fails_raises_where_the_rows_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(streaming, "_copy", fail)
    with Mover(torch.device(ELSEWHERE)) as mover, pytest.raises(OSError, match="the disk is gone"):
        mover.moved(torch.ones(12, 4))


@pytest.mark.gpu
@pytest.mark.parametrize("stage", [64, 1 << 12, 32 << 20])  # under a row, some rows, and all of them
def test_blocks_arrive_on_the_gpu_while_it_works(stage: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "_STAGE_BYTES", stage)
    device = torch.device("cuda", 0)
    x = torch.randn(5000, 129, generator=torch.Generator().manual_seed(0))
    blocks = [slice(start, min(start + 700, 5000)) for start in range(0, 5000, 700)]
    busy = torch.randn(2048, 2048, device=device)
    sums = []
    with Mover(device) as mover:
        for source in (x, x.half(), x.to(device)):
            for _, there in mover.each(source, blocks):
                for _ in range(20):
                    busy = busy @ busy / 2048  # the copies of later blocks must wait for the sum below
                sums.append(there.double().sum(0))
    expected = [source[block].double().sum(0) for source in (x, x.half(), x) for block in blocks]
    torch.testing.assert_close(torch.stack(sums).cpu(), torch.stack(expected))
