"""Distances of named pairs against float64, whole and in pieces of their columns."""

import pytest
import torch
from torch import Tensor

from ldreg.dimension import pairs
from ldreg.dimension.pairs import pair_distances

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
    norms = pairs._norms

    def noted(x: Tensor, *rest: Tensor, dtype: torch.dtype, chunk_bytes: int) -> Tensor:
        widths.append(x.shape[1])
        return norms(x, *rest, dtype=dtype, chunk_bytes=chunk_bytes)

    monkeypatch.setattr(pairs, "_CACHE_BYTES", 40 * 256)
    monkeypatch.setattr(pairs, "_norms", noted)
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


def test_a_row_has_distance_zero_to_itself(pieces: list[int]) -> None:
    x = random(40, 130) + 7
    indices = torch.arange(40).unsqueeze(1).expand(40, 9)
    assert not pair_distances(x, x, indices, dtype=torch.float32, chunk_bytes=MEMORY).any()
    assert len(pieces) > 1


@pytest.mark.parametrize(("queries", "rows", "dim"), [(5, 40, 150), (40, 40, 64), (40, 41, 150)])
def test_no_pieces_where_they_do_not_pay(pieces: list[int], queries: int, rows: int, dim: int) -> None:
    """Few pairs, rows that fit as they are, rows too many for any piece."""
    x, reference = random(queries, dim), random(rows, dim, seed=3)
    indices = chosen(queries, 9, rows)
    found = pair_distances(x, reference, indices, dtype=torch.float32, chunk_bytes=MEMORY)
    assert pieces == [dim]
    torch.testing.assert_close(found.double(), exact(x, reference, indices), rtol=3e-7, atol=0)
