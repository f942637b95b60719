"""The search where memory is short, and distances of pairs against float64."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.points import normal
from torch import Tensor

from ldreg.dimension import search as details
from ldreg.dimension.candidates import Query, by_products
from ldreg.dimension.cuda import nearest
from ldreg.dimension.neighbors import neighbors
from ldreg.dimension.search import pair_distances, within_memory

MiB = 1 << 20
POINTS = normal(300, 7)


@pytest.fixture(autouse=True)
def nothing_warned_of() -> None:
    details._warn_once.cache_clear()


def no_memory(*arguments: Any, **options: Any) -> Any:
    raise torch.OutOfMemoryError("out of memory")


@pytest.fixture
def scarce(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Make products run out of memory with more than so many bytes; returns the budgets that they get."""

    def limit(most: int) -> list[int]:
        budgets: list[int] = []

        def limited(query: Query, **options: Any) -> Any:
            budgets.append(query.memory)
            return no_memory() if query.memory > most else by_products(query, **options)

        monkeypatch.setattr(details, "by_products", limited)
        return budgets

    return limit


def test_out_of_memory_halves_the_work_at_a_time(scarce: Callable[[int], list[int]]) -> None:
    expected, budgets = neighbors(POINTS, 5), scarce(20 * MiB)
    with pytest.warns(UserWarning, match=r"^out of memory: [^\n]*$") as warned:
        found = neighbors(POINTS, 5)
    assert budgets == [64 * MiB, 32 * MiB, 16 * MiB]
    assert len(warned) == 1
    assert torch.equal(found.distances, expected.distances)
    assert torch.equal(found.indices, expected.indices)
    assert torch.equal(neighbors(POINTS, 5).distances, found.distances)  # a second warning would be an error
    scarce(0)
    with pytest.raises(torch.OutOfMemoryError):
        neighbors(POINTS, 5)


@pytest.mark.parametrize(("given", "expected"), [(None, 64 * MiB), (MiB, MiB), (1 << 40, 64 * MiB)])
def test_the_search_works_in_the_memory_given(
    given: int | None, expected: int, scarce: Callable[[int], list[int]]
) -> None:
    budgets = scarce(1 << 40)
    found = details.search(POINTS, None, None, 5, memory=given)
    assert budgets == [expected]
    assert torch.equal(found.distances, neighbors(POINTS, 5).distances)


def test_without_memory_for_the_tensor_cores_products_take_over(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = neighbors(POINTS, 5)

    def distances(x: Tensor, reference: Tensor, indices: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        exact = pair_distances(x, reference, indices, dtype=torch.float32, chunk_bytes=MiB)
        return exact, torch.empty(0, dtype=torch.int64)

    monkeypatch.setattr(nearest, "PATH", "screen")
    monkeypatch.setattr(nearest, "nearest", no_memory)
    monkeypatch.setattr(nearest, "distances", distances)
    with pytest.warns(UserWarning, match="out of memory"):
        found = neighbors(POINTS, 5)
    assert torch.equal(found.distances, expected.distances)


def test_candidates_are_enough_in_many_dimensions() -> None:
    """Of normal data the first pass proves nearly all, or the search would take several times as long."""
    x = normal(1500, 8192)
    query = Query(x, None, None, 64, details._frame(x, None), torch.float32, 64 * MiB)
    _, proven = details.first_pass(query)
    assert proven.float().mean() > 0.95


@pytest.mark.filterwarnings("ignore:out of memory")
@pytest.mark.parametrize("cycle", [False, True])
def test_nothing_of_the_failed_attempt_is_held_while_the_next_runs(
    cycle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[weakref.ref[Tensor]] = []
    emptied: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(1))

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
    assert emptied == [1]


@pytest.mark.filterwarnings("ignore:out of memory")
def test_errors_are_raised_under_the_floor_and_at_once_where_they_are_others() -> None:
    for error, expected in ((torch.OutOfMemoryError("no memory"), [100, 50, 25]), (RuntimeError("a defect"), [100])):
        budgets: list[int] = []

        def run(budget: int, budgets: list[int] = budgets, error: Exception = error) -> None:
            budgets.append(budget)
            raise error

        with pytest.raises(type(error)) as raised:
            within_memory(run, 100, floor=20)
        assert raised.value is error
        assert budgets == expected


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A cache of one piece for 40 rows; collects the widths that were gathered."""
    widths: list[int] = []
    norms = details._norms

    def noted(x: Tensor, *rest: Tensor, dtype: torch.dtype, chunk_bytes: int) -> Tensor:
        widths.append(x.shape[1])
        return norms(x, *rest, dtype=dtype, chunk_bytes=chunk_bytes)

    monkeypatch.setattr(details, "_CACHE_BYTES", 40 * 256)
    monkeypatch.setattr(details, "_norms", noted)
    return widths


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(torch.float32, scale) for scale in (1.0, 1e-30, 1e-18, 1e25)]
    + [(torch.bfloat16, scale) for scale in (1.0, 1e-30, 1e25)]
    + [(torch.float16, scale) for scale in (1.0, 1e-3, 1e3)]
    + [(torch.float64, 1e3)],
)
def test_distances_in_pieces_of_the_columns_are_right_to_rounding(
    pieces: list[int], dtype: torch.dtype, scale: float
) -> None:
    x, reference = (normal(30, 150) * scale).to(dtype), (normal(40, 150, seed=2) * scale).to(dtype)
    check_pairs(x, reference, 12)
    assert pieces == ([32, 32, 32, 32, 22] if dtype == torch.float64 else [64, 64, 22])


@pytest.mark.parametrize(("queries", "rows", "dim"), [(5, 40, 150), (40, 40, 64), (40, 41, 150)])
def test_no_pieces_where_they_do_not_pay(pieces: list[int], queries: int, rows: int, dim: int) -> None:
    """Few pairs, rows that fit as they are, rows too many for any piece."""
    check_pairs(normal(queries, dim), normal(rows, dim, seed=3), 9)
    assert pieces == [dim]


def check_pairs(x: Tensor, reference: Tensor, k: int) -> None:
    indices = torch.randint(len(reference), (len(x), k), generator=torch.Generator().manual_seed(1))
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    found = pair_distances(x, reference, indices, dtype=dtype, chunk_bytes=100_000)
    difference = x.double().unsqueeze(1) - reference.double()[indices]
    largest = difference.abs().amax(2, keepdim=True).clamp_min(1e-300)
    exact = (difference / largest).square().sum(2).sqrt() * largest.squeeze(2)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), exact, rtol=1e-14 if dtype == torch.float64 else 3e-7, atol=0)


@pytest.mark.parametrize("width", [1e-4, 0.003, 0.01])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_tight_clusters_are_settled_by_products_in_float32(
    width: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of themselves, of other queries, and where some queries are rows of the reference."""
    centers, parts = torch.nn.functional.normalize(normal(12, 96)), torch.arange(1200) % 12
    x = (centers[parts] + width * normal(1200, 96, seed=1) / 96**0.5).to(dtype)
    monkeypatch.setattr(details, "by_differences", no_memory)
    slow: list[int] = []

    def watched(query: Query, dtype: torch.dtype, **options: Any) -> Any:
        slow.append(len(query.x) if dtype == torch.float64 else 0)
        return by_products(query, dtype, **options)

    monkeypatch.setattr(details, "by_products", watched)
    whole = neighbors(x, 20)
    exact = torch.cdist(x.double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist").fill_diagonal_(torch.inf)
    expected = exact.sort(dim=1).values[:, :20]
    torch.testing.assert_close(whole.distances.double(), expected, rtol=5e-7, atol=0)
    torch.testing.assert_close(exact.gather(1, whole.indices), expected, rtol=5e-7, atol=0)
    chosen = torch.arange(0, 1200, 3)
    within = neighbors(x[chosen], 20, x, self_index=chosen.where(chosen % 2 == 0, -1))
    torch.testing.assert_close(within.distances[::2], whole.distances[chosen[::2]], rtol=5e-7, atol=0)
    assert (within.distances[1::2, 0] == 0).all(), "the query itself is a row"
    torch.testing.assert_close(within.distances[1::2, 1:], whole.distances[chosen[1::2], :-1], rtol=5e-7, atol=0)
    assert len(slow) > 13, "groups were searched"
    assert sum(slow) < 100, "of 1,600 queries"
