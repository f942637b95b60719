"""Random rows of a set, and their coordinates on a map."""

import torch
from torch import Tensor

# Rows that the plane is fitted to, and the most numbers copied for it (64 MiB of float32).
ROWS, _NUMBERS = 4096, 2**24


def draw(points: int, sample: int | None, seed: int) -> Tensor:
    """Rows of a set, ascending: all of them, or `sample` of them drawn at random.

    >>> draw(4, 9, 0)
    tensor([0, 1, 2, 3])
    """
    if sample is None or sample >= points:
        return torch.arange(points, device="cpu")
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(points, generator=generator, device="cpu")[:sample].sort().values


def principal_plane(x: Tensor, rows: Tensor, seed: int = 0, *, device: torch.device | None = None) -> Tensor:
    """Coordinates (n, 2) of some rows of x (N, D) on its first two principal axes, for a map.

    The axes are those of a few thousand rows drawn at random, found by subspace iteration. Each points where its
    largest component is positive, so that the same data give the same map. Computed on the device (None: where x is),
    to which a few thousand rows come at a time.
    """
    device = x.device if device is None else device
    most = min(ROWS, max(16, _NUMBERS // x.shape[1]))
    block = x[draw(len(x), most, seed)].to(device).to(torch.promote_types(x.dtype, torch.float32), copy=True)
    center = (block / len(block)).sum(0)  # the sum alone may overflow
    block -= center
    # Scaled to 1, or squares would overflow or vanish for data of extreme size.
    block /= block.abs().max().clamp_min(torch.finfo(block.dtype).tiny)
    generator = torch.Generator().manual_seed(seed)
    shape = x.shape[1], min(8, *x.shape)
    axes = torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu").to(block)
    for _ in range(12):
        axes = torch.linalg.qr(block.T @ (block @ axes)).Q
    turn = torch.linalg.svd(block @ axes, full_matrices=False).Vh.T
    axes = (axes @ turn)[:, :2]
    axes = axes * torch.where(axes.gather(0, axes.abs().argmax(0, keepdim=True)) < 0, -1, 1)
    parts = torch.split(rows, most)
    flat = torch.cat([(x[part].to(device).to(block.dtype) - center) @ axes for part in parts])
    return torch.nn.functional.pad(flat, (0, 2 - flat.shape[1]))
