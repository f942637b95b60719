"""Exact Euclidean nearest neighbors of queries in a reference set."""

from typing import NamedTuple

import torch
from torch import Tensor


class Neighbors(NamedTuple):
    """Distances (N, k), ascending, and the reference rows (N, k) they lead to."""

    distances: Tensor
    indices: Tensor


def neighbors(
    x: Tensor,
    k: int,
    reference: Tensor | None = None,
    *,
    self_offset: int | None = None,
    reference_grad: bool = False,
) -> Neighbors:
    """The k nearest reference rows of every row of x."""
    if reference is None:
        reference, self_offset = x, 0
    distances = torch.cdist(x, reference, compute_mode="donot_use_mm_for_euclid_dist")
    if self_offset is not None:
        rows = torch.arange(len(x))
        distances = distances.index_put((rows, rows + self_offset), torch.tensor(float("inf"), dtype=x.dtype))
    return Neighbors(*distances.topk(k, largest=False))


def neighbor_distances(x: Tensor, k: int, reference: Tensor | None = None) -> Tensor:
    """Distances (N, k)."""
    return neighbors(x, k, reference).distances
