"""LID of every point of a set: ldreg and the tools that people use.

A further rival is a function from points (N, D) and k to LID (N,) and one entry of `BENCHMARK.contenders`.
"""

import functools
import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ldreg.bench.measure import OWN, Benchmark, Contender, Device, Goal, Measurement, Points, Setting, measure
from ldreg.dimension.estimators import lid

Way = Callable[[Tensor, int], Tensor]  # from points (N, D) on the device and k to the result
Error = Callable[[Tensor, int, Tensor], float]  # from points, k and the result to the result's error

_WARM_UP = 256  # points of the first call
_BLOCK_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}  # of points in float64 at a time
_CHUNKS = {"cpu": 1024, "cuda": 4096}  # queries at a time, where a contender takes them in chunks
_CHECKED = {"cpu": 256, "cuda": 50_000}  # points whose LID is computed in float64
_CHECKED_AT_ONCE = 2048


def measure_points(
    run: Way, error: Error | None, setting: Setting, *, graphed: bool = False
) -> tuple[Measurement, float | None]:
    """Measure `run` on standard normal points on the device; `error` compares its result with float64.

    A small call comes first: it takes imports, thread pools and buffers of libraries out of the measurement. PyTorch
    does not count the memory of CUDA graphs.
    """
    x, k = sample(setting.size, seed=setting.seed, device=setting.device), setting.k
    run(x[: max(_WARM_UP, 2 * k)].clone(), k)
    measured, values = measure(lambda: run(x, k), repeats=setting.repeats, device=setting.device)
    if graphed:
        measured = replace(measured, extra_mb=None)
    return measured, None if error is None else error(x, k, values)


def sample(size: Points, *, seed: int, device: Device = "cpu") -> Tensor:
    """Standard normal points (N, D) in float32.

    >>> sample(Points(5, 3), seed=0).shape
    torch.Size([5, 3])
    """
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(size.points, size.dimensions, generator=generator, device=device)


def checked_rows(x: Tensor, most: int) -> Tensor:
    """Indices (R,) of at most so many of the points, always the same ones."""
    return torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:most].to(x.device)


def exact_neighbors(x: Tensor, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Ascending float64 distances (R, k) of these rows to their nearest other points, and the points' indices.

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


def scikit_learn(x: Tensor, k: int) -> Tensor:
    """Brute-force neighbors of scikit-learn."""
    from sklearn.neighbors import NearestNeighbors

    distances, _ = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(x.numpy()).kneighbors()
    return _mom(torch.from_numpy(distances))


def scikit_dimension(x: Tensor, k: int) -> Tensor:
    """The estimator of scikit-dimension."""
    from skdim.id import MOM

    return torch.as_tensor(MOM().fit(x.numpy(), n_neighbors=k).dimension_pw_)


def faiss_flat(x: Tensor, k: int) -> Tensor:
    """The exact index of faiss; the nearest row found is taken to be the point itself."""
    import faiss

    index = faiss.IndexFlatL2(x.shape[1])
    index.add(x.numpy())
    squares, _ = index.search(x.numpy(), k + 1)
    return _mom(torch.from_numpy(squares)[:, 1:].sqrt())


def torchid(x: Tensor, k: int) -> Tensor:
    """The estimator of torchid."""
    estimators = importlib.import_module("torchid.estimators")
    return torch.as_tensor(estimators.MOM(n_neighbors=k).fit(x).dimension_pw_)


def pseudocode(x: Tensor, k: int) -> Tensor:
    """The paper's Algorithm 1, with the mean over all k; on a GPU in chunks of queries, as a whole set does not fit."""
    chunks = x.split(_CHUNKS["cuda"] if x.is_cuda else len(x))
    return torch.cat([_mom(torch.cdist(rows, x).sort(dim=1).values[:, 1 : k + 1]) for rows in chunks])


def cdist_topk(x: Tensor, k: int) -> Tensor:
    """Plain torch in bounded memory: distances of chunks of queries, then the smallest."""
    chunks = x.split(_CHUNKS[x.device.type])
    return _mom(torch.cat([torch.cdist(rows, x).topk(k + 1, dim=1, largest=False).values[:, 1:] for rows in chunks]))


def matmul_topk(x: Tensor, k: int) -> Tensor:
    """The same from matrix products, compiled."""
    squares = x.square().sum(dim=1)
    chunks = zip(x.split(_CHUNKS[x.device.type]), squares.split(_CHUNKS[x.device.type]), strict=True)
    nearest = [compiled(_nearest_squares)(rows, own, x, squares, k) for rows, own in chunks]
    return _mom(torch.cat(nearest)[:, 1:].clamp_min(0).sqrt())


@functools.cache  # and not a decorator: importing the compiler takes seconds
def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function compiled for the shapes of each call."""
    return torch.compile(function, dynamic=False)


def _nearest_squares(rows: Tensor, own: Tensor, points: Tensor, squares: Tensor, k: int) -> Tensor:
    return (own[:, None] + squares - 2 * rows @ points.T).topk(k + 1, dim=1, largest=False).values


def _mom(distances: Tensor) -> Tensor:
    """LID by the method of moments, from distances (N, k) ascending."""
    mean = distances.mean(dim=1)
    return mean / (distances[:, -1] - mean)


def largest_error(x: Tensor, k: int, values: Tensor) -> float:
    """The largest relative error of the checked points against float64; inf if one is NaN."""
    rows = checked_rows(x, _CHECKED[x.device.type])
    exact = torch.cat([_mom(exact_neighbors(x, some, k)[0]) for some in rows.split(_CHECKED_AT_ONCE)])
    return float((values[rows.to(values.device)].to(exact) / exact - 1).abs().nan_to_num(torch.inf).max())


def _contender(run: Way, **options: Any) -> Contender:
    return Contender(functools.partial(measure_points, run, largest_error), **options)


def _sorted_bytes(size: Points, device: Device) -> int:
    """Distances, the same sorted, and their order in int64."""
    return 16 * size.points * (size.points if device == "cpu" else _CHUNKS[device])


_WIDTHS = (2, 8, 32, 128, 512, 2048, 8192)

BENCHMARK = Benchmark(
    title="LID of a set among itself",
    contenders={
        OWN: _contender(lid),
        "scikit-learn": _contender(scikit_learn, package="sklearn", devices=("cpu",)),
        "scikit-dimension": _contender(scikit_dimension, package="skdim", devices=("cpu",)),
        "faiss": _contender(faiss_flat, package="faiss", devices=("cpu",)),
        "torchid": _contender(torchid, package="torchid", install="torchid", counts=False),
        "pseudocode": _contender(pseudocode, bytes_needed=_sorted_bytes),
        "cdist + topk": _contender(cdist_topk, counts=False),
        "matmul + topk (compiled)": _contender(matmul_topk, devices=("cuda",), counts=False),
    },
    size=Points,
    sizes={
        "cpu": (
            *(Points(2000, 512), Points(10_000, 128), Points(10_000, 2048)),
            *(Points(20_000, 512), Points(20_000, 2048)),
        ),
        "cuda": (Points(10_000, 2048), Points(50_000, 2048), Points(1_281_167, 2048)),
    },
    study={
        "cpu": tuple(Points(1000 * n, 128) for n in (1, 2, 5, 10, 20, 50)) + tuple(Points(5000, d) for d in _WIDTHS),
        "cuda": tuple(Points(1000 * n, 128) for n in (5, 50, 200)) + tuple(Points(50_000, d) for d in (8, 512, 8192)),
    },
    quick_sizes=(Points(300, 16),),
    goals=(
        Goal(Points(10_000, 2048), "speed", 1.3),
        Goal(Points(20_000, 2048), "speed", 1.3),
        Goal(Points(10_000, 2048), "extra memory", 150),
        Goal(Points(20_000, 2048), "extra memory", 150),
        Goal(Points(10_000, 128), "speed", 1.0),
        Goal(Points(50_000, 2048), "speed", 6.0, rival="pseudocode", device="cuda"),
        Goal(Points(1_281_167, 2048), "time", 40.0, device="cuda"),
        Goal(Points(50_000, 2048), "deviation", 1e-3, device="cuda"),
        Goal(Points(1_281_167, 2048), "deviation", 1e-3, device="cuda"),
    ),
    columns=("time", "extra memory", "time vs ldreg", "deviation"),
    picture="scaling",
    conditions="float32 normal points",
    deviation_of="LID, largest error against float64, of all points up to 50,000 on CUDA and 256 on the CPU",
)
