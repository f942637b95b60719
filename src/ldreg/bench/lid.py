"""LID of every point of a set among the others: ldreg beside what people use.

A further rival is a function from points (N, D) and k to LID (N,) and one entry of `BENCHMARK.contenders`.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ldreg.bench.benchmark import OWN, Benchmark, Contender, Goal, Points
from ldreg.bench.measure import Device
from ldreg.bench.points import Way, checked_rows, exact_neighbors, measure_points
from ldreg.dimension.estimators import lid

_CHUNKS = {"cpu": 1024, "cuda": 4096}  # queries at a time, where a contender takes them in chunks
_CHECKED = {"cpu": 256, "cuda": 50_000}  # points whose LID is computed in float64
_CHECKED_AT_ONCE = 2048


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
    """The paper's Algorithm 1; on a GPU in chunks of queries, as a whole set's distances do not fit there."""
    return torch.cat([_algorithm(rows, x, k) for rows in x.split(_CHUNKS["cuda"] if x.is_cuda else len(x))])


def _algorithm(rows: Tensor, points: Tensor, k: int) -> Tensor:
    ordered, _ = torch.cdist(rows, points).sort(dim=1)
    mean = ordered[:, 1:k].mean(dim=1)
    return mean / (ordered[:, k] - mean)


def cdist_topk(x: Tensor, k: int) -> Tensor:
    """Plain torch in bounded memory: distances of chunks of queries, then the smallest."""
    chunks = x.split(_CHUNKS[x.device.type])
    return _mom(torch.cat([torch.cdist(rows, x).topk(k + 1, dim=1, largest=False).values[:, 1:] for rows in chunks]))


def matmul_topk(x: Tensor, k: int) -> Tensor:
    """The same from matrix products, compiled."""
    squares = x.square().sum(dim=1)
    chunks = zip(x.split(_CHUNKS[x.device.type]), squares.split(_CHUNKS[x.device.type]), strict=True)
    nearest = [_compiled()(rows, own, x, squares, k) for rows, own in chunks]
    return _mom(torch.cat(nearest)[:, 1:].clamp_min(0).sqrt())


@functools.cache
def _compiled() -> Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]:
    return torch.compile(_nearest_squares, dynamic=False)


def _nearest_squares(rows: Tensor, own: Tensor, points: Tensor, squares: Tensor, k: int) -> Tensor:
    return (own[:, None] + squares - 2 * rows @ points.T).topk(k + 1, dim=1, largest=False).values


def _mom(distances: Tensor) -> Tensor:
    """LID by the method of moments, from distances (N, k) ascending."""
    mean = distances.mean(dim=1)
    return mean / (distances[:, -1] - mean)


def mean_over_all(values: Tensor, k: int) -> Tensor:
    """LID by the mean over all k distances, from LID by the mean over the first k - 1.

    >>> round(mean_over_all(torch.tensor(1.0), 3).item(), 5)  # distances 1, 2, 3
    2.0
    """
    share = values / (1 + values)  # the mean of the first k - 1 in units of the k-th
    share = ((k - 1) * share + 1) / k
    return share / (1 - share)


def largest_error(x: Tensor, k: int, values: Tensor) -> float:
    """Largest relative error of the checked points against float64; inf if one is NaN."""
    rows = checked_rows(x, _CHECKED[x.device.type])
    exact = torch.cat([_mom(exact_neighbors(x, some, k)[0]) for some in rows.split(_CHECKED_AT_ONCE)])
    return float((values[rows.to(values.device)].to(exact) / exact - 1).abs().nan_to_num(torch.inf).max())


def _contender(run: Way, *, normalize: Callable[[Tensor, int], Tensor] | None = None, **options: Any) -> Contender:
    return Contender(functools.partial(measure_points, run, largest_error, normalize=normalize), **options)


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
        "pseudocode": _contender(pseudocode, normalize=mean_over_all, bytes_needed=_sorted_bytes),
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
