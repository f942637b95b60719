import math

import pytest
import torch

from ldreg.inspection.gaps import gaps
from ldreg.lid.neighbors import neighbor_distances


@pytest.mark.parametrize("k", [8, 16, 64, 128])
@pytest.mark.parametrize("d", [1, 5, 100])
def test_gaussian_points_rarely_jump(k: int, d: int) -> None:
    x = torch.randn(1000, d, generator=torch.Generator().manual_seed(0))
    found = gaps(neighbor_distances(x, k))
    assert found.jumping < 0.03
    assert found.tied == 0


@pytest.mark.parametrize(("size", "k"), [(5, 16), (12, 16), (50, 64)])
def test_the_place_of_the_jump_is_the_size_of_the_cluster(size: int, k: int) -> None:
    generator = torch.Generator().manual_seed(0)
    centers = 5 * torch.randn(20, 32, generator=generator).repeat_interleave(size, 0)
    found = gaps(neighbor_distances(centers + torch.randn(20 * size, 32, generator=generator), k))
    assert found.jumping > 0.95
    assert found.before == size - 1


def test_duplicates_and_ties_are_no_jumps() -> None:
    found = gaps(torch.tensor([[0.0, 0.0, 1.0, 2.0], [1.0, 1.0, 1.0, 9.0]]))
    assert found.jumping == 0
    assert math.isnan(found.before)
    assert found.tied == 0.5


def test_two_neighbors_have_one_gap_and_so_no_jump() -> None:
    assert gaps(torch.tensor([[1.0, 100.0]])).jumping == 0
