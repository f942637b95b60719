"""What the search does where memory is short."""

from typing import Any

import pytest
import torch
from torch import Tensor

from ldreg.dimension import memory, screening
from ldreg.dimension import search as details
from ldreg.dimension.candidates import select_against_itself
from ldreg.dimension.neighbors import neighbors
from ldreg.dimension.pairs import pair_distances


@pytest.fixture
def points() -> Tensor:
    return torch.randn(300, 7, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def unsaid() -> None:
    memory._say_once.cache_clear()


def no_memory(*arguments: Any, **options: Any) -> Any:
    raise torch.OutOfMemoryError("out of memory")


def test_out_of_memory_halves_what_is_taken_at_a_time(points: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = neighbors(points, 5)
    asked: list[int] = []

    def scarce(*arguments: Any, chunk_bytes: int, **options: Any) -> Any:
        asked.append(chunk_bytes)
        return (
            no_memory()
            if chunk_bytes > 20 << 20
            else select_against_itself(*arguments, chunk_bytes=chunk_bytes, **options)
        )

    monkeypatch.setattr(details, "select_against_itself", scarce)
    with pytest.warns(UserWarning, match="half as much at a time") as said:
        found = neighbors(points, 5)
    assert asked == [64 << 20, 32 << 20, 16 << 20]
    assert len(said) == 1
    assert torch.equal(found.distances, expected.distances)
    assert torch.equal(found.indices, expected.indices)


def test_memory_that_is_never_enough_is_an_error(points: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(details, "select_against_itself", no_memory)
    with pytest.raises(torch.OutOfMemoryError), pytest.warns(UserWarning, match="out of memory"):
        neighbors(points, 5)


def test_without_memory_for_the_tensor_cores_products_take_over(
    points: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = neighbors(points, 5)

    def distances(x: Tensor, reference: Tensor, indices: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        exact = pair_distances(x, reference, indices, dtype=torch.float32, chunk_bytes=1 << 20)
        return exact, torch.empty(0, dtype=torch.int64)

    monkeypatch.setattr(screening, "PATH", "screen")
    monkeypatch.setattr(screening, "screen", no_memory)
    monkeypatch.setattr(screening, "distances", distances)
    with pytest.warns(UserWarning, match="out of memory"):
        found = neighbors(points, 5)
    assert torch.equal(found.distances, expected.distances)


def test_candidates_are_enough_in_many_dimensions() -> None:
    """Of normal data the first pass proves nearly all, or the search would take several times as long."""
    x = torch.randn(1500, 8192, generator=torch.Generator().manual_seed(0))
    query = details.Query(x, None, None, 64, details._frame(x, None), torch.float32, 64 << 20)
    _, proven = details.first_pass(query)
    assert proven.float().mean() > 0.95


@pytest.mark.parametrize(("given", "expected"), [(None, 64 << 20), (1 << 20, 1 << 20), (1 << 40, 64 << 20)])
def test_works_in_the_memory_that_it_is_given(
    given: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
    told: list[int] = []
    way = details._by_products

    def noted(query: details.Query, memory: int, **options: Any) -> Any:
        told.append(memory)
        return way(query, memory, **options)

    monkeypatch.setattr(details, "_by_products", noted)
    found = details.search(x, None, None, 5, memory=given)
    assert told == [expected]
    assert torch.equal(found.distances, neighbors(x, 5).distances)
