"""The order of images: a function of seed, epoch and rank."""

import hashlib

import torch
from torch import Tensor


def derived_seed(*parts: int) -> int:
    """A seed below 2**63 for a tuple of integers; different tuples give unrelated seeds.

    >>> derived_seed(0, 1) == derived_seed(0, 1), derived_seed(0, 1) == derived_seed(1, 0)
    (True, False)
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    # The generator takes 64 bits but shows seeds as signed numbers.
    return int.from_bytes(digest, "little") >> 1


def batches_per_epoch(count: int, *, world: int, batch_size: int) -> int:
    """The number of whole global batches of world·batch_size images in `count` images.

    Raises:
        ValueError: there is none.

    >>> batches_per_epoch(10, world=2, batch_size=2)
    2
    """
    if batch_size < 1:
        raise ValueError(f"batch_size: expected at least 1, got {batch_size}")
    if count < world * batch_size:
        ranks = f" on each of {world} ranks" if world > 1 else ""
        raise ValueError(f"batch_size: expected at most {count // world}{ranks} for {count} images, got {batch_size}")
    return count // (world * batch_size)


def epoch_order(count: int, *, seed: int, epoch: int, rank: int = 0, world: int = 1, batch_size: int) -> Tensor:
    """The indices of one rank's batches of an epoch, (batches, batch_size) int64.

    Ranks share one permutation of the images; every world·batch_size of its indices are one global batch. At each step,
    two ranks with batches of 4 together see the images that one rank with batches of 8 sees. The incomplete batch at
    the end is dropped.

    Raises:
        ValueError: the images do not fill one global batch, or the rank is not in [0, world).

    >>> order = epoch_order(10, seed=0, epoch=0, batch_size=4)
    >>> order.shape, len(order.unique())
    (torch.Size([2, 4]), 8)
    """
    if not 0 <= rank < world:
        raise ValueError(f"rank: expected 0 to {world - 1}, got {rank}")
    batches = batches_per_epoch(count, world=world, batch_size=batch_size)
    generator = torch.Generator().manual_seed(derived_seed(seed, epoch))
    permutation = torch.randperm(count, generator=generator)
    whole = permutation[: batches * world * batch_size]
    return whole.view(batches, world, batch_size)[:, rank].contiguous()
