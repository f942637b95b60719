"""How often the 95 % interval of the mean LID covers what fresh draws read on average, for 12 kinds of data.

Run as `python benchmarks/coverage.py` (about a minute of one core); it prints the table of docs/guidance.md. The
expected value is the average of the mean of ln LID over independent draws of as many points, read at the same k.
"""

import argparse
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from ldreg.dimension.estimators import LIDEstimate, mom
from ldreg.dimension.neighbors import neighbors
from ldreg.dimension.search import Neighbors
from ldreg.inspection.interval import mean_lid, reach

Draw = Callable[[int, Generator], Tensor]


class Kind(NamedTuple):
    """Draws of so many points, read with k neighbors."""

    draw: Draw
    points: int
    k: int


class Coverage(NamedTuple):
    """The share of intervals that cover, and their mean width in ln LID in that of ±1.96 true standard errors."""

    share: float
    width: float


def normal(generator: Generator, *shape: int) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def unit(x: Tensor) -> Tensor:
    """Rows of length 1."""
    return x / x.norm(dim=1, keepdim=True)


def gaussian(d: int) -> Draw:
    """Isotropic, of d dimensions."""
    return lambda n, generator: normal(generator, n, d)


def swiss_roll(n: int, generator: Generator) -> Tensor:
    """A rolled-up rectangle, uniform in the angle."""
    turn, height = torch.rand(2, n, generator=generator, dtype=torch.float64)
    angle = 1.5 * math.pi * (1 + 2 * turn)
    return torch.stack([angle * angle.cos(), 21 * height, angle * angle.sin()], dim=1)


def clusters(count: int, d: int, spread: float, *, decades: float = 0.0, on_sphere: bool = False) -> Draw:
    """Gaussian clusters around fixed normal centers; their chances fall over so many decades."""
    centers = normal(Generator().manual_seed(99), count, d)
    centers = unit(centers) if on_sphere else centers
    chances = 10 ** (-decades * torch.arange(count, dtype=torch.float64) / (count - 1))

    def draw(n: int, generator: Generator) -> Tensor:
        chosen = torch.multinomial(chances, n, replacement=True, generator=generator)
        x = centers[chosen] + spread * normal(generator, n, d)
        return unit(x) if on_sphere else x

    return draw


def rectified(n: int, generator: Generator) -> Tensor:
    """64 ReLU units of 16 normal inputs, off more often than on."""
    weights = normal(Generator().manual_seed(5), 16, 64)
    return (normal(generator, n, 16) @ weights - 2).relu()


KINDS = {
    "Gaussian, 2-d": Kind(gaussian(2), 500, 20),
    "Gaussian, 8-d": Kind(gaussian(8), 500, 32),
    "Gaussian, 32-d": Kind(gaussian(32), 500, 64),
    "cube, 6-d": Kind(lambda n, generator: torch.rand(n, 6, generator=generator, dtype=torch.float64), 400, 16),
    "swiss roll": Kind(swiss_roll, 600, 32),
    "sphere, 10-d": Kind(lambda n, generator: unit(normal(generator, n, 11)), 500, 64),
    "power-law spectrum, 64-d": Kind(
        lambda n, generator: normal(generator, n, 64) / torch.arange(1, 65, dtype=torch.float64), 500, 32
    ),
    "4 large clusters on a sphere, 32-d": Kind(clusters(4, 32, 0.08, on_sphere=True), 600, 32),
    "10 clusters of about k points, 16-d": Kind(clusters(10, 16, 0.15), 400, 32),
    "40 clusters of fewer than k points, 16-d": Kind(clusters(40, 16, 0.15), 400, 32),
    "12 clusters, sizes over two decades, 16-d": Kind(clusters(12, 16, 0.05, decades=2, on_sphere=True), 600, 32),
    "ReLU features, 64-d": Kind(rectified, 500, 32),
}


def coverage(kind: Kind, draws: int, seed: int = 0) -> Coverage:
    """Measured on so many draws; their average is what has to be covered."""
    generator = Generator().manual_seed(seed)
    rows, k = torch.arange(kind.points), kind.k
    means = []
    for _ in range(draws):
        x = kind.draw(kind.points, generator)
        distances, indices = neighbors(x, k + reach(k))
        found = LIDEstimate(*mom(distances[:, :k]), Neighbors(distances[:, :k], indices[:, :k]))
        means.append(mean_lid(found, rows, kind.points, beyond=distances[:, k:]))
    low, value, high = torch.tensor([(mean.low, mean.value, mean.high) for mean in means]).double().log().T
    covered = (low <= value.mean()) & (value.mean() <= high)
    return Coverage(covered.double().mean().item(), ((high - low).mean() / (2 * 1.96 * value.std())).item())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print("| data | points | k | coverage | width |\n|---|---:|---:|---:|---:|")
    for name, kind in KINDS.items():
        found = coverage(kind, options.draws, options.seed)
        print(f"| {name} | {kind.points} | {kind.k} | {found.share:.3f} | {found.width:.2f} |", flush=True)


if __name__ == "__main__":
    main()
