"""Work on a set of points: its input, its measurement, and the exact result in float64."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ldreg.bench.benchmark import Points, Setting
from ldreg.bench.measure import Device, Measurement, measure

_BLOCK_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}  # of points in float64 at a time
_WARM_UP = 256  # points of the first call

Way = Callable[[Tensor, int], Tensor]  # from points (N, D) on the device and k to the result
Error = Callable[[Tensor, int, Tensor], float]  # from points, k and the result to how far it is off


def measure_points(
    run: Way,
    error: Error | None,
    setting: Setting,
    *,
    normalize: Callable[[Tensor, int], Tensor] | None = None,
    graphed: bool = False,
) -> tuple[Measurement, float | None]:
    """Measure one way on standard normal points on the device.

    A small call comes first: it takes imports, thread pools and buffers of libraries out of the measurement.

    Args:
        run: what is timed.
        error: how far its result is off; None: it computes something else.
        setting: what to measure.
        normalize: makes its result comparable; not timed.
        graphed: it runs in CUDA graphs, whose memory PyTorch does not count.
    """
    x, k = sample(setting.size, seed=setting.seed, device=setting.device), setting.k
    run(x[: max(_WARM_UP, 2 * k)].clone(), k)
    measured, values = measure(lambda: run(x, k), repeats=setting.repeats, device=setting.device)
    measured = replace(measured, extra_mb=None) if graphed else measured
    values = values if normalize is None else normalize(values, k)
    return measured, None if error is None else error(x, k, values)


def sample(size: Points, *, seed: int, device: Device = "cpu") -> Tensor:
    """Standard normal points (N, D) in float32.

    >>> sample(Points(5, 3), seed=0).shape
    torch.Size([5, 3])
    """
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(size.points, size.dimensions, generator=generator, device=device)


def checked_rows(x: Tensor, most: int) -> Tensor:
    """At most so many rows (R,) of the points, always the same ones."""
    return torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:most].to(x.device)


def exact_neighbors(x: Tensor, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Distances (R, k) of these rows to their nearest other points, ascending, and the points' indices; in float64.

    From products of centered points, block by block; with 29 bits more than float32, rounding does not show.
    """
    height = max(k + 1, _BLOCK_BYTES[x.device.type] // (8 * x.shape[1]))
    center = sum((block.double().sum(dim=0) for block in x.split(height)), torch.zeros((), device=x.device)) / len(x)
    queries = x[rows].double() - center
    nearest = torch.empty(len(rows), 0, dtype=torch.float64, device=x.device)
    indices = torch.empty(len(rows), 0, dtype=torch.int64, device=x.device)
    for start in range(0, len(x), height):
        points = x[start : start + height].double() - center
        squares = queries.square().sum(1, keepdim=True) + points.square().sum(1) - 2 * queries @ points.T
        places = torch.arange(start, start + len(points), device=x.device)
        squares.masked_fill_(rows[:, None] == places, torch.inf)
        nearest, indices = torch.cat((nearest, squares), 1), torch.cat((indices, places.expand(len(rows), -1)), 1)
        nearest, order = nearest.topk(min(k, nearest.shape[1]), dim=1, largest=False)
        indices = indices.gather(1, order)
    return nearest.clamp_min(0).sqrt(), indices
