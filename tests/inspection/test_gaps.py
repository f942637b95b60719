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


@pytest.mark.parametrize(("largest", "jumping"), [(18.0, 0.0), (22.0, 1.0)])
def test_a_jump_is_twenty_times_the_median_gap(largest: float, jumping: float) -> None:
    steps = torch.tensor([1.0, 1.0, 1.0, largest, 1.0, 1.0])  # j ln(r(j+1) / r(j))
    logs = torch.cat([torch.zeros(1), (steps / torch.arange(1, 7)).cumsum(0)])
    found = gaps(logs.exp().repeat(3, 1))
    assert found.jumping == jumping
    assert not jumping or found.before == 4


def test_the_median_point_tells_where_the_jump_is() -> None:
    places = [[1.0, 1.1, 9.0, 9.1, 9.2, 9.3, 9.4, 9.5], [1.0, 1.1, 1.2, 1.3, 9.0, 9.1, 9.2, 9.3]]
    found = gaps(torch.tensor([places[0], places[1], places[1], [0.0] * 8]))
    assert (found.jumping, found.before) == (0.75, 4)


def test_one_duplicate_is_no_jump_and_no_tie() -> None:
    assert gaps(torch.tensor([[0.0, 1.0, 1.1, 1.2, 1.3], [0.0, 1.0, 1.0, 1.0, 1.0]])) == pytest.approx(
        (0.0, math.nan, 0.0), nan_ok=True
    )


def test_two_neighbors_have_one_gap_and_so_no_jump() -> None:
    assert gaps(torch.tensor([[1.0, 100.0]])).jumping == 0
