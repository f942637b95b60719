"""Samples of known dimension, for testing and calibrating estimators."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

# Points in a cell of `local_collapse`, on average: more than the usual number of neighbors.
_POINTS_PER_CELL = 125


def cube(
    n: int, d: int, *, ambient: int | None = None, seed: int | torch.Generator = 0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Points (n, ambient or d) uniform in the unit cube of dimension d.

    With `ambient`, a random orthonormal map embeds them isometrically in that many coordinates.

    Raises:
        ValueError: n or d below 1, or fewer ambient coordinates than d.

    >>> cube(5, 2, ambient=7).shape
    torch.Size([5, 7])
    """
    generator = _generator(seed, n=n, d=d)
    return _embed(_uniform(n, d, generator), ambient, generator, dtype)


def ball(
    n: int, d: int, *, ambient: int | None = None, seed: int | torch.Generator = 0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Points (n, ambient or d) uniform in the unit ball of dimension d; `ambient` and errors as in `cube`.

    >>> bool((ball(100, 3).norm(dim=1) <= 1).all())
    True
    """
    generator = _generator(seed, n=n, d=d)
    radius = _uniform(n, 1, generator) ** (1 / d)
    return _embed(_directions(n, d, generator) * radius, ambient, generator, dtype)


def sphere(
    n: int, d: int, *, ambient: int | None = None, seed: int | torch.Generator = 0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Points (n, ambient or d + 1) uniform on the unit sphere's surface, of dimension d; otherwise as `cube`.

    >>> torch.allclose(sphere(100, 2).norm(dim=1), torch.ones(100))
    True
    """
    generator = _generator(seed, n=n, d=d)
    return _embed(_directions(n, d + 1, generator), ambient, generator, dtype)


def gaussian(
    n: int, d: int, *, ambient: int | None = None, seed: int | torch.Generator = 0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Points (n, ambient or d) from the standard normal distribution of dimension d; otherwise as `cube`.

    >>> gaussian(4, 3).shape
    torch.Size([4, 3])
    """
    generator = _generator(seed, n=n, d=d)
    return _embed(_normal(n, d, generator), ambient, generator, dtype)


SAMPLES: dict[str, Callable[..., Tensor]] = {"cube": cube, "ball": ball, "sphere": sphere, "gaussian": gaussian}


def local_collapse(
    n: int,
    strength: float,
    *,
    cells: int | None = None,
    thickness: float = 0.05,
    seed: int | torch.Generator = 0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Points (n, 2) that fill the unit square globally but lie locally near short lines (paper, Figure 1(c)).

    The square is divided into the Voronoi cells of random centers, and each cell is flattened towards a line of random
    direction through its center. Strength 0 leaves uniform points; at strength 1 a cell keeps the share `thickness` of
    its width across the line. With n = 2000, strength 1 lowers the LID over 64 neighbors from 2.0 to about 1.2, while
    TwoNN and DANCo, which use fewer neighbors, stay near 1.9 and 1.8. With `thickness=0` and strength 1 the points lie
    on line segments, of dimension 1 for every estimator that uses near neighbors.

    Args:
        n: number of points.
        strength: degree of flattening, 0 to 1.
        cells: number of cells; None: one per 125 points.
        thickness: share of a cell's width left at strength 1, 0 to 1.
        seed: seed of the random draw, or a generator.
        dtype: dtype of the points.

    Raises:
        ValueError: n or cells below 1; strength or thickness outside [0, 1].

    >>> local_collapse(1000, 0.5).shape
    torch.Size([1000, 2])
    """
    for name, value in (("strength", strength), ("thickness", thickness)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name}: expected a number from 0 to 1, got {value}")
    cells = max(1, n // _POINTS_PER_CELL) if cells is None else cells
    generator = _generator(seed, n=n, cells=cells)
    points, centers = _uniform(n, 2, generator), _uniform(cells, 2, generator)
    angles = math.pi * _uniform(cells, 1, generator)
    across = torch.cat([-angles.sin(), angles.cos()], dim=1)
    cell = torch.cdist(points, centers).argmin(dim=1)
    offset = ((points - centers[cell]) * across[cell]).sum(dim=1, keepdim=True)
    return (points - strength * (1 - thickness) * offset * across[cell]).to(dtype)


def _generator(seed: int | torch.Generator, **counts: int) -> torch.Generator:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name}: expected at least 1, got {count}")
    return seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)


# Everything is drawn in float64 and rounded once, so that all dtypes give the same points.
def _uniform(n: int, d: int, generator: torch.Generator) -> Tensor:
    return torch.rand(n, d, generator=generator, dtype=torch.float64, device=generator.device)


def _normal(n: int, d: int, generator: torch.Generator) -> Tensor:
    return torch.randn(n, d, generator=generator, dtype=torch.float64, device=generator.device)


def _directions(n: int, d: int, generator: torch.Generator) -> Tensor:
    return torch.nn.functional.normalize(_normal(n, d, generator), dim=1)


def _embed(points: Tensor, ambient: int | None, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    if ambient is None:
        return points.to(dtype)
    coordinates = points.shape[1]
    if ambient < coordinates:
        raise ValueError(f"ambient: expected at least the {coordinates} coordinates of the sample, got {ambient}")
    basis: Tensor = torch.linalg.qr(_normal(ambient, coordinates, generator)).Q
    return (points @ basis.mT).to(dtype)
