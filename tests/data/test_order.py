import pytest
import torch

from ldreg.data import derived_seed, epoch_order


def test_an_epoch_sees_every_image_at_most_once_and_drops_only_the_incomplete_batch() -> None:
    order = epoch_order(103, seed=1, epoch=2, batch_size=10)
    assert order.shape == (10, 10)
    assert order.dtype == torch.int64
    assert len(order.unique()) == 100
    assert order.min() >= 0
    assert order.max() < 103


def test_ranks_are_disjoint_and_together_see_at_each_step_what_one_rank_would() -> None:
    whole = epoch_order(50, seed=3, epoch=1, batch_size=8)
    ranks = [epoch_order(50, seed=3, epoch=1, rank=rank, world=2, batch_size=4) for rank in range(2)]
    assert not set(ranks[0].flatten().tolist()) & set(ranks[1].flatten().tolist())
    for step in range(len(whole)):
        assert sorted(torch.cat([rank[step] for rank in ranks]).tolist()) == sorted(whole[step].tolist())


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        torch.rand(3)  # the global generator plays no part
        return epoch_order(64, seed=seed, epoch=epoch, batch_size=64)[0].tolist()

    before = torch.get_rng_state()
    assert epoch_order(64, seed=0, epoch=0, batch_size=64)[0].tolist() == order(0, 0)
    assert len({tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9
    torch.set_rng_state(before)


def test_every_position_is_equally_likely() -> None:
    firsts = torch.stack([epoch_order(4, seed=0, epoch=epoch, batch_size=4)[0] for epoch in range(2000)])
    shares = torch.stack([(firsts == image).float().mean(0) for image in range(4)])
    # 5 standard errors of a share of 1/4 among 2,000 draws
    assert (shares - 0.25).abs().max() < 5 * (0.25 * 0.75 / 2000) ** 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 11}, "batch_size: expected at most 10 for 10 images, got 11"),
        ({"batch_size": 6, "world": 2}, "batch_size: expected at most 5 on each of 2 ranks for 10 images, got 6"),
        ({"batch_size": 0}, "batch_size: expected at least 1, got 0"),
        ({"batch_size": 2, "rank": 2, "world": 2}, "rank: expected 0 to 1, got 2"),
    ],
)
def test_what_cannot_be_ordered_is_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        epoch_order(10, seed=0, epoch=0, **options)


def test_derived_seeds_tell_tuples_apart() -> None:
    seeds = {derived_seed(a, b, c) for a in range(10) for b in range(10) for c in range(10)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derived_seed(1, 11) != derived_seed(11, 1) != derived_seed(111)
