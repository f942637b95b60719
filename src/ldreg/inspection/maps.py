"""Maps of points in the plane by t-SNE and UMAP, from exact nearest neighbors."""

import warnings
from typing import Literal

import numpy
import torch
from torch import Tensor

from ldreg.dimension.neighbors import neighbors
from ldreg.extras import require
from ldreg.io.shards import Shards

Map = Literal["pca", "tsne", "umap"]

MOST_MAPPED = {"tsne": 10_000, "umap": 20_000}  # points; of more a random sample is laid out
_PERPLEXITY = 30  # of t-SNE, which takes three times as many neighbors
_NEIGHBORS = 15  # of UMAP
_TINY = torch.finfo(torch.float32).tiny
_LEAST = 5  # points; fewer stay on the principal axes
_START = {"tsne": 1e-4, "umap": 10.0}  # size of the first layout, as each library starts


def check_map(kind: Map) -> None:
    """Raise ValueError for an unknown map, and ModuleNotFoundError for one whose library is not installed."""
    if kind not in ("pca", *MOST_MAPPED):
        raise ValueError(f"map: expected pca, tsne or umap, got {kind!r}")
    if kind == "umap":
        require("umap")


def laid_out(
    x: Tensor | Shards, rows: Tensor, plane: Tensor, kind: Literal["tsne", "umap"], seed: int, *, device: torch.device
) -> Tensor:
    """Coordinates (n, 2) of some rows of x (N, D), starting from their principal axes `plane` (n, 2).

    Of more than `MOST_MAPPED` rows, the ones that a random sample leaves out are NaN.
    """
    generator = torch.Generator().manual_seed(seed)
    part = torch.randperm(len(plane), generator=generator)[: MOST_MAPPED[kind]].sort().values
    if len(part) < _LEAST:
        return plane
    k = min(3 * _PERPLEXITY + 1 if kind == "tsne" else _NEIGHBORS - 1, len(part) - 1)
    found = neighbors(x[rows[part].to(x.device)].to(device), k)
    own = torch.arange(len(part))[:, None]  # both libraries expect each point as its own first neighbor
    indices = torch.cat([own, found.indices.cpu()], dim=1)
    # Neither library depends on the scale of distances, but their squares must be numbers in float32.
    scale = found.distances.double().max().clamp_min(_TINY)
    distances = torch.cat([torch.zeros(len(part), 1), (found.distances / scale).cpu().float()], dim=1)
    start = plane[part].float()
    start = start / start.abs().max().clamp_min(_TINY)
    start = _START[kind] * (start + 1e-3 * torch.randn(start.shape, generator=generator))  # equal rows start apart
    made = (_tsne if kind == "tsne" else _umap)(distances.numpy(), indices.numpy(), start.numpy(), seed % 2**32)
    coordinates = torch.full(plane.shape, torch.nan)
    coordinates[part] = torch.from_numpy(made)
    return coordinates


_Array = numpy.typing.NDArray[numpy.float32]


def _tsne(distances: _Array, indices: "numpy.typing.NDArray[numpy.int64]", start: _Array, seed: int) -> _Array:
    from scipy.sparse import csr_matrix
    from sklearn.manifold import TSNE

    points, near = distances.shape
    graph = csr_matrix((distances.ravel(), indices.ravel(), range(0, distances.size + 1, near)), shape=(points, points))
    perplexity = min(_PERPLEXITY, (points - 1) / 3)
    made: _Array = TSNE(perplexity=perplexity, metric="precomputed", init=start, random_state=seed).fit_transform(graph)
    return made


def _umap(distances: _Array, indices: "numpy.typing.NDArray[numpy.int64]", start: _Array, seed: int) -> _Array:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that one seed means one thread, and that new points could not be added
        from umap import UMAP

        known = (indices, distances, None)
        model = UMAP(n_neighbors=distances.shape[1], precomputed_knn=known, init=start, random_state=seed, n_jobs=1)
        model.force_approximation_algorithm = True  # else the given neighbors of few points would not be used
        made: _Array = model.fit_transform(start)
    return made
