"""LID of every point of a set among the others: ldreg beside what people use."""

import numpy
import torch

from ldreg.benchmarking.contest import OWN, Array, Benchmark, Contender, Goal, Size
from ldreg.lid import lid

_CHUNK = 1024  # queries at a time, where a contender takes them in chunks


def ours(x: Array, k: int) -> Array:
    """`ldreg.lid`."""
    return lid(torch.from_numpy(x), k).numpy()


def scikit_learn(x: Array, k: int) -> Array:
    """Brute-force neighbors of scikit-learn."""
    from sklearn.neighbors import NearestNeighbors

    distances, _ = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(x).kneighbors()
    return _mom(distances)


def scikit_dimension(x: Array, k: int) -> Array:
    """The estimator of scikit-dimension."""
    from skdim.id import MOM

    return numpy.asarray(MOM().fit(x, n_neighbors=k).dimension_pw_)


def faiss_flat(x: Array, k: int) -> Array:
    """The exact index of faiss, where the nearest row found is taken to be the point itself."""
    import faiss

    index = faiss.IndexFlatL2(x.shape[1])
    index.add(x)
    squares, _ = index.search(x, k + 1)
    return _mom(numpy.sqrt(squares[:, 1:]))


def pseudocode(x: Array, k: int) -> Array:
    """The paper's Algorithm 1."""
    points = torch.from_numpy(x)
    ordered, _ = torch.cdist(points, points).sort(dim=1)
    mean = ordered[:, 1:k].mean(dim=1)
    return (mean / (ordered[:, k] - mean)).numpy()


def cdist_topk(x: Array, k: int) -> Array:
    """What one writes in torch to bound the memory: distances of a chunk of queries, of which the smallest."""
    points = torch.from_numpy(x)
    nearest = [torch.cdist(rows, points).topk(k + 1, dim=1, largest=False).values for rows in points.split(_CHUNK)]
    return _mom(torch.cat(nearest)[:, 1:].numpy())


def _mom(distances: Array) -> Array:
    """LID by the method of moments, from distances (N, k) ascending."""
    mean = distances.mean(axis=1)
    return numpy.asarray(mean / (distances[:, -1] - mean))


def mean_over_all(values: Array, k: int) -> Array:
    """What the mean over all k distances gives, from LID by the mean over the first k - 1.

    >>> mean_over_all(numpy.array([1.0]), 3)  # distances 1, 2, 3
    array([2.])
    """
    share = values / (1 + values)  # the mean of the first k - 1 in units of the k-th
    share = ((k - 1) * share + 1) / k
    return numpy.asarray(share / (1 - share))


def largest_relative(values: Array, own: Array) -> float:
    """How far any point's LID lies from ours."""
    return float(numpy.max(numpy.abs(values - own) / numpy.abs(own)))


BENCHMARK = Benchmark(
    title="LID of a set among itself",
    contenders={
        OWN: Contender(ours),
        "scikit-learn": Contender(scikit_learn, package="sklearn"),
        "scikit-dimension": Contender(scikit_dimension, package="skdim"),
        "faiss": Contender(faiss_flat, package="faiss"),
        # Distances, the same sorted, and their order in int64.
        "pseudocode": Contender(pseudocode, bytes_needed=lambda size: 16 * size.points**2, normalize=mean_over_all),
        "torch chunks": Contender(cdist_topk, counts=False),
    },
    deviation=largest_relative,
    deviation_of="LID, largest of all points",
    sizes=(Size(2000, 512), Size(10_000, 128), Size(10_000, 2048), Size(20_000, 512), Size(20_000, 2048)),
    quick_sizes=(Size(300, 16), Size(600, 24)),
    goals=(
        Goal(Size(10_000, 2048), "speed", 1.3),
        Goal(Size(20_000, 2048), "speed", 1.3),
        Goal(Size(10_000, 2048), "extra memory", 150),
        Goal(Size(20_000, 2048), "extra memory", 150),
        Goal(Size(10_000, 128), "speed", 1.0),
    ),
)
