"""The search where memory is short, and distances of pairs against float64."""

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from ldreg.dimension import search as details
from ldreg.dimension.candidates import Query, by_products
from ldreg.dimension.cuda import nearest
from ldreg.dimension.neighbors import neighbors
from ldreg.dimension.search import pair_distances, within_memory


@pytest.fixture
def points() -> Tensor:
    return torch.randn(300, 7, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def unsaid() -> None:
    details._warn_once.cache_clear()


def no_memory(*arguments: Any, **options: Any) -> Any:
    raise torch.OutOfMemoryError("out of memory")


def test_out_of_memory_halves_what_is_taken_at_a_time(points: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = neighbors(points, 5)
    asked: list[int] = []

    def scarce(query: Query, **options: Any) -> Any:
        asked.append(query.memory)
        return no_memory() if query.memory > 20 << 20 else by_products(query, **options)

    monkeypatch.setattr(details, "by_products", scarce)
    with pytest.warns(UserWarning, match="half as much at a time") as said:
        found = neighbors(points, 5)
    assert asked == [64 << 20, 32 << 20, 16 << 20]
    assert len(said) == 1
    assert torch.equal(found.distances, expected.distances)
    assert torch.equal(found.indices, expected.indices)


def test_without_memory_for_the_tensor_cores_products_take_over(
    points: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = neighbors(points, 5)

    def distances(x: Tensor, reference: Tensor, indices: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        exact = pair_distances(x, reference, indices, dtype=torch.float32, chunk_bytes=1 << 20)
        return exact, torch.empty(0, dtype=torch.int64)

    monkeypatch.setattr(nearest, "PATH", "screen")
    monkeypatch.setattr(nearest, "nearest", no_memory)
    monkeypatch.setattr(nearest, "distances", distances)
    with pytest.warns(UserWarning, match="out of memory"):
        found = neighbors(points, 5)
    assert torch.equal(found.distances, expected.distances)


def test_candidates_are_enough_in_many_dimensions() -> None:
    """Of normal data the first pass proves nearly all, or the search would take several times as long."""
    x = torch.randn(1500, 8192, generator=torch.Generator().manual_seed(0))
    query = Query(x, None, None, 64, details._frame(x, None), torch.float32, 64 << 20)
    _, proven = details.first_pass(query)
    assert proven.float().mean() > 0.95


@pytest.mark.parametrize(("given", "expected"), [(None, 64 << 20), (1 << 20, 1 << 20), (1 << 40, 64 << 20)])
def test_works_in_the_memory_that_it_is_given(
    given: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
    budgets: list[int] = []

    def noted(query: Query, **options: Any) -> Any:
        budgets.append(query.memory)
        return by_products(query, **options)

    monkeypatch.setattr(details, "by_products", noted)
    found = details.search(x, None, None, 5, memory=given)
    assert budgets == [expected]
    assert torch.equal(found.distances, neighbors(x, 5).distances)


MiB = 1 << 20


class Hungry:
    """Runs out of memory unless it gets at most `enough` bytes."""

    def __init__(self, enough: int) -> None:
        self.enough = enough
        self.budgets: list[int] = []
        self.error = torch.OutOfMemoryError("no memory")

    def __call__(self, budget: int) -> str:
        self.budgets.append(budget)
        if budget > self.enough:
            raise self.error
        return "done"


def test_the_budget_is_halved_until_it_fits_which_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(1))
    run = Hungry(20 * MiB)
    with pytest.warns(UserWarning, match=r"^out of memory: [^\n]*$") as said:
        assert within_memory(run, 128 * MiB) == "done"
    assert run.budgets == [128 * MiB, 64 * MiB, 32 * MiB, 16 * MiB]
    assert len(emptied) == 3
    assert len(said) == 1
    assert within_memory(Hungry(32 * MiB), 64 * MiB) == "done"  # a second warning would be an error


@pytest.mark.filterwarnings("ignore:out of memory")
def test_errors_are_raised_under_the_floor_and_where_they_are_others(
    points: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other = Hungry(0), Hungry(0)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        within_memory(run, 100, floor=20)
    assert run.budgets == [100, 50, 25]
    assert raised.value is run.error
    other.error = RuntimeError("a defect")  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="a defect"):
        within_memory(other, 64 * MiB)
    assert len(other.budgets) == 1
    monkeypatch.setattr(details, "by_products", no_memory)
    with pytest.raises(torch.OutOfMemoryError):
        neighbors(points, 5)


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


MEMORY = 100_000


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def chosen(n: int, k: int, of: int) -> Tensor:
    return torch.randint(of, (n, k), generator=torch.Generator().manual_seed(1))


def exact(x: Tensor, reference: Tensor, indices: Tensor) -> Tensor:
    difference = x.double().unsqueeze(1) - reference.double()[indices]
    largest = difference.abs().amax(2, keepdim=True).clamp_min(1e-300)
    return (difference / largest).square().sum(2).sqrt() * largest.squeeze(2)


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


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e-18, 1e25])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_pieces_are_right_to_rounding(pieces: list[int], dtype: torch.dtype, scale: float) -> None:
    if dtype == torch.float16 and scale != 1:
        scale = 1e-3 if scale < 1 else 1e3
    x, reference = (random(30, 150) * scale).to(dtype), (random(40, 150, seed=2) * scale).to(dtype)
    indices = chosen(30, 12, 40)
    found = pair_distances(x, reference, indices, dtype=torch.float32, chunk_bytes=MEMORY)
    assert pieces == [64, 64, 22]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact(x, reference, indices), rtol=3e-7, atol=0)


def test_pieces_in_float64(pieces: list[int]) -> None:
    x = random(40, 70, dtype=torch.float64) + 1e3
    indices = chosen(40, 10, 40)
    found = pair_distances(x, x, indices, dtype=torch.float64, chunk_bytes=MEMORY)
    assert pieces == [32, 32, 6]
    torch.testing.assert_close(found, exact(x, x, indices), rtol=1e-14, atol=0)


@pytest.mark.parametrize(("queries", "rows", "dim"), [(5, 40, 150), (40, 40, 64), (40, 41, 150)])
def test_no_pieces_where_they_do_not_pay(pieces: list[int], queries: int, rows: int, dim: int) -> None:
    """Few pairs, rows that fit as they are, rows too many for any piece."""
    x, reference = random(queries, dim), random(rows, dim, seed=3)
    indices = chosen(queries, 9, rows)
    found = pair_distances(x, reference, indices, dtype=torch.float32, chunk_bytes=MEMORY)
    assert pieces == [dim]
    torch.testing.assert_close(found.double(), exact(x, reference, indices), rtol=3e-7, atol=0)
