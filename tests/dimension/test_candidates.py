"""Selection against its contract: all other rows are at least as far as the bound says, in float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ldreg.dimension.candidates import Candidates, Frame, select, select_against_itself, select_by_differences


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


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
@pytest.mark.parametrize("chunk_bytes", [1 << 26, 60_000])
def test_against_itself(name: str, chunk_bytes: int) -> None:
    """In one block and in blocks of 64 rows, the last of an odd length."""
    x = DATA[name]()
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    found = select_against_itself(x, 20, frame(x), dtype=dtype, chunk_bytes=chunk_bytes, progress=None)
    own = torch.arange(len(x))
    assert found.bound.dtype == dtype
    assert_contract(found, x, x, own, frame(x).scale)
    if name not in ("duplicates", "one cluster in a cloud"):  # there ties and rounding may choose others as well
        assert nearest_are_inside(found, x, x, own, 16)


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("chunk_bytes", [1 << 26, 60_000])
def test_against_a_reference(name: str, chunk_bytes: int) -> None:
    reference = DATA[name]()
    dtype = torch.float64 if reference.dtype == torch.float64 else torch.float32
    own = torch.tensor([5, -1, 17, 480, 0] * 15)
    x = reference[own.clamp_min(0)]
    found = select(x, reference, 20, frame(x), self_index=own, dtype=dtype, chunk_bytes=chunk_bytes)
    assert_contract(found, x, reference, own, frame(x).scale)
    without = select(x, reference, 20, frame(x), self_index=None, dtype=dtype, chunk_bytes=chunk_bytes)
    assert_contract(without, x, reference, None, frame(x).scale)


def test_a_guess_that_fails_is_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken class by class, the first block is no sample: its own rows expect far too many neighbors."""
    x = random(600, 12) + 3 * (torch.arange(600) // 60).unsqueeze(1)
    fair = select_against_itself(x, 20, frame(x), dtype=torch.float32, chunk_bytes=60_000, progress=None)
    fair_to = select(x[:70], x, 20, frame(x), self_index=None, dtype=torch.float32, chunk_bytes=60_000)
    again = []
    completed = select.__globals__["_completed"]

    def count_short(kept: object, *rest: object, **options: object) -> Candidates:
        again.append(len(kept.short))  # type: ignore[attr-defined]
        return completed(kept, *rest, **options)  # type: ignore[no-any-return]

    monkeypatch.setitem(select.__globals__, "_order", lambda blocks, device: None)
    monkeypatch.setitem(select.__globals__, "_completed", count_short)
    unfair = select_against_itself(x, 20, frame(x), dtype=torch.float32, chunk_bytes=60_000, progress=None)
    unfair_to = select(x[:70], x, 20, frame(x), self_index=None, dtype=torch.float32, chunk_bytes=60_000)
    assert min(again) > 30
    torch.testing.assert_close(unfair.bound, fair.bound, rtol=1e-5, atol=0)
    torch.testing.assert_close(unfair_to.bound, fair_to.bound, rtol=1e-5, atol=1e-7)
    assert_contract(unfair, x, x, torch.arange(600), frame(x).scale)
    assert_contract(unfair_to, x[:70], x, None, frame(x).scale)


@pytest.mark.parametrize("count", [1, 298, 299])
def test_few_or_nearly_all(count: int) -> None:
    x = random(300, 5)
    found = select_against_itself(x, count, frame(x), dtype=torch.float32, chunk_bytes=30_000, progress=None)
    assert_contract(found, x, x, torch.arange(300), frame(x).scale)


def test_the_same_each_time_whatever_the_global_seed() -> None:
    x = random(500, 8)
    torch.manual_seed(1)
    first = select_against_itself(x, 9, frame(x), dtype=torch.float32, chunk_bytes=60_000, progress=None)
    state = torch.manual_seed(2).get_state()
    second = select_against_itself(x, 9, frame(x), dtype=torch.float32, chunk_bytes=60_000, progress=None)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.indices, second.indices)
    assert torch.equal(first.bound, second.bound)


def test_by_differences() -> None:
    x = random(200, 3) * 1e-9 + 1
    own = torch.arange(200)
    found = select_by_differences(x, x, 12, 2.0, self_index=own, chunk_bytes=10_000)
    assert nearest_are_inside(found, x, x, own, 12)
