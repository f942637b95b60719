"""Products of lifted rows against distances in float64."""

import pytest
import torch
from torch import Tensor

from ldreg.dimension.lifting import Frame, LiftedRows


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


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
