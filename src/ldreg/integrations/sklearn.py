"""LID as a scikit-learn estimator, with the names and calls of scikit-dimension's local estimators.

`LIDEstimator()` replaces `skdim.id.MOM()`, `LIDEstimator(estimator="mle", convention="pseudocode")` replaces
`skdim.id.MLE()` and `LIDEstimator(estimator="tle")` replaces `skdim.id.TLE()`; for the same k, values are the same.
Differences:
- k defaults to 64; in scikit-dimension it is 100, and 20 for MLE. `n_neighbors` of `fit` replaces it in both;
- `dimension_` excludes points whose LID is 0 or inf, as `ldreg.inspect` does; `n_zero_` and `n_infinite_` count them.
  In scikit-dimension, one such point makes a mean 0, inf or NaN;
- a single column is measured, not rejected;
- there is no `transform`: scikit-dimension returns one number, but scikit-learn requires a row for each row of X.
  `fit_transform`, `transform_pw` and `fit_transform_pw` return the same as in scikit-dimension.
"""

# ruff: noqa: N803 - X is scikit-learn's name for the points

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

import numpy
import torch
from joblib import effective_n_jobs  # type: ignore[import-untyped]  # joblib has no types
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ldreg.dimension.estimators import Convention, Estimator, check_options, estimate_from
from ldreg.dimension.geometry import arithmetic_mean, geometric_mean, harmonic_mean, regular
from ldreg.dimension.neighbors import neighbors
from ldreg.dimension.search import Neighbors, pair_distances
from ldreg.integrations import check_whole

__all__ = ["Comb", "LIDEstimator"]

Comb = Literal["mean", "median", "mle", "geometric"]

_CHUNK_BYTES = 64 << 20


class LIDEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Local intrinsic dimensionality of every row of X (n_samples, n_features) among the others.

    Args:
        k: number of neighbors, at least 2; reduced to n_samples - 1, with a warning, if there are fewer points.
        estimator: "mom", "mle" or "tle", as in `ldreg.lid`.
        convention: "paper" or "pseudocode", as in `ldreg.lid`.
        comb: how `dimension_` averages the points: "mean", "median", "mle" (the harmonic mean) or "geometric", as in
            `ldreg.inspect`; None: "mle" for the estimator "mle" and else "mean", as in scikit-dimension.

    Attributes:
        dimension_: the dimension of the whole set; NaN if the LID of every point is 0 or inf.
        dimension_pw_: LID (n_samples,), float32 for X in float32, else float64.
        dimension_pw_smooth_: after a fit with `smooth`: the mean over each point and its neighbors (n_samples,).
        n_neighbors_, comb_: the values that were used.
        n_zero_, n_infinite_: numbers of points with LID 0 and inf, which `dimension_` excludes.

    >>> plane = numpy.random.default_rng(0).random((1000, 2)) @ numpy.eye(2, 10)
    >>> found = LIDEstimator(k=50).fit(plane)
    >>> print(found.dimension_.round(1), found.dimension_pw_.shape)
    2.0 (1000,)
    """

    def __init__(
        self,
        k: int = 64,
        *,
        estimator: Estimator = "mom",
        convention: Convention = "paper",
        comb: Comb | None = None,
    ) -> None:
        self.k = k
        self.estimator = estimator
        self.convention = convention
        self.comb = comb

    def fit(
        self,
        X: Any,
        y: Any = None,
        precomputed_knn_arrays: tuple[Any, Any] | None = None,
        smooth: bool = False,
        n_neighbors: int | None = None,
        comb: Comb | None = None,
        n_jobs: int | None = None,
    ) -> "LIDEstimator":
        """Measure X.

        Args:
            X: points (n_samples, n_features), at least 3.
            y: not used; scikit-learn gives it.
            precomputed_knn_arrays: distances and indices (n_samples, k), nearest first, of the neighbors of every
                point, excluding itself; None: they are searched.
            smooth: whether to set `dimension_pw_smooth_`.
            n_neighbors: replaces `k`.
            comb: replaces `comb` of the estimator.
            n_jobs: threads to use, -1 for one per core; None: as many as torch uses.

        Raises:
            ValueError: an option is unknown, X is not a finite real matrix, or the arrays are not neighbors of X.
        """
        x, comb = self._checked(X), _as_comb(self.comb if comb is None else comb, self.estimator)
        with _threads(n_jobs):
            if precomputed_knn_arrays is None:
                found = neighbors(x, self._neighbors_of(len(x), n_neighbors))
            else:
                found = _given(precomputed_knn_arrays, len(x), x.dtype, n_neighbors)
            return self._measured(x, found, smooth=smooth, comb=comb)

    def fit_pw(
        self,
        X: Any,
        precomputed_knn: Any = None,
        smooth: bool = False,
        n_neighbors: int | None = None,
        n_jobs: int | None = None,
    ) -> "LIDEstimator":
        """Measure X as `fit` does, but `precomputed_knn` are only the indices (n_samples, k) of neighbors."""
        if precomputed_knn is None:
            return self.fit(X, smooth=smooth, n_neighbors=n_neighbors, n_jobs=n_jobs)
        x, comb = self._checked(X), _as_comb(self.comb, self.estimator)
        indices = _as_indices(precomputed_knn, "precomputed_knn", len(x), n_neighbors)
        with _threads(n_jobs):
            distances = pair_distances(x, x, indices, dtype=x.dtype, chunk_bytes=_CHUNK_BYTES)
            distances, order = distances.sort(dim=1, stable=True)
            return self._measured(x, Neighbors(distances, indices.gather(1, order)), smooth=smooth, comb=comb)

    def fit_transform(
        self,
        X: Any,
        y: Any = None,
        precomputed_knn_arrays: tuple[Any, Any] | None = None,
        smooth: bool = False,
        n_neighbors: int | None = None,
        comb: Comb | None = None,
        n_jobs: int | None = None,
    ) -> numpy.float64:
        """`dimension_` after `fit` with the same arguments."""
        return self.fit(X, y, precomputed_knn_arrays, smooth, n_neighbors, comb, n_jobs).dimension_

    def transform_pw(self, X: Any = None) -> NDArray[Any] | tuple[NDArray[Any], NDArray[Any]]:
        """`dimension_pw_`, for any X; after a fit with `smooth`, also `dimension_pw_smooth_`."""
        check_is_fitted(self)
        if X is not None:
            _validated(self, X, reset=False)
        if hasattr(self, "dimension_pw_smooth_"):
            return self.dimension_pw_, self.dimension_pw_smooth_
        return self.dimension_pw_

    def fit_transform_pw(
        self,
        X: Any,
        precomputed_knn_arrays: tuple[Any, Any] | None = None,
        smooth: bool = False,
        n_neighbors: int | None = None,
        n_jobs: int | None = None,
    ) -> NDArray[Any] | tuple[NDArray[Any], NDArray[Any]]:
        """The result of `transform_pw` after `fit` with the same arguments."""
        return self.fit(X, None, precomputed_knn_arrays, smooth, n_neighbors, None, n_jobs).transform_pw()

    def _checked(self, X: Any) -> Tensor:
        """X as a tensor, after checking the options."""
        check_options(2, self.estimator, self.convention)  # k is checked only if it is used
        with warnings.catch_warnings():
            # Nothing here writes to the array.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
            return torch.from_numpy(_validated(self, X, reset=True))

    def _neighbors_of(self, points: int, n_neighbors: int | None) -> int:
        check_whole(2, **({"k": self.k} if n_neighbors is None else {"n_neighbors": n_neighbors}))
        k = int(self.k if n_neighbors is None else n_neighbors)
        if k < points:
            return k
        warnings.warn(f"k: expected fewer than the {points} points, got {k}; using {points - 1}", stacklevel=3)
        return points - 1

    def _measured(self, x: Tensor, found: Neighbors, *, smooth: bool, comb: Comb) -> "LIDEstimator":
        lid = estimate_from(found, x, x, self.estimator, self.convention)[0]
        self.n_neighbors_ = found.indices.shape[1]
        self.comb_ = comb
        self.dimension_pw_ = lid.numpy()
        self.dimension_ = numpy.float64(_COMBINED[comb](lid.double()).item())
        self.n_zero_ = int((lid == 0).sum())
        self.n_infinite_ = int(torch.isinf(lid).sum())
        if smooth:
            self.dimension_pw_smooth_ = _smoothed(lid, found.indices).numpy()
        elif hasattr(self, "dimension_pw_smooth_"):  # of an earlier fit
            del self.dimension_pw_smooth_
        return self


def _median(lid: Tensor) -> Tensor:
    ordinary = lid[regular(lid)].numpy()
    return torch.tensor(numpy.median(ordinary) if len(ordinary) else numpy.nan)


_COMBINED: dict[Comb, Callable[[Tensor], Tensor]] = {
    "mean": arithmetic_mean,
    "median": _median,
    "mle": harmonic_mean,
    "geometric": geometric_mean,
}


def _as_comb(comb: Comb | None, estimator: Estimator) -> Comb:
    if comb is None:
        return "mle" if estimator == "mle" else "mean"
    if comb not in _COMBINED:
        raise ValueError(f"comb: expected one of {', '.join(get_args(Comb))}, got {comb!r}")
    return comb


def _smoothed(lid: Tensor, indices: Tensor) -> Tensor:
    """The mean over the regular ones of a point and its neighbors (N, k); NaN if none is."""
    around = torch.cat((lid.unsqueeze(1), lid[indices]), dim=1).double()
    return torch.where(regular(around), around, torch.nan).nanmean(1)


def _validated(estimator: BaseEstimator, X: Any, *, reset: bool) -> NDArray[Any]:
    """X as a matrix of float32 or float64, checked and registered by scikit-learn."""
    options: dict[str, Any] = {"dtype": [numpy.float64, numpy.float32], "order": "C", "reset": reset}
    if reset:
        options["ensure_min_samples"] = 3
    try:
        from sklearn.utils.validation import validate_data
    except ImportError:  # before scikit-learn 1.6
        checked: NDArray[Any] = estimator._validate_data(X, **options)
    else:
        checked = validate_data(estimator, X, **options)
    return checked


def _given(arrays: tuple[Any, Any], points: int, dtype: torch.dtype, n_neighbors: int | None) -> Neighbors:
    """Neighbors from given arrays of distances and indices."""
    name = "precomputed_knn_arrays"
    if len(arrays) != 2:
        raise ValueError(f"{name}: expected two arrays, distances and indices, got {len(arrays)}")
    indices = _as_indices(arrays[1], name, points, n_neighbors)
    distances = torch.from_numpy(numpy.array(arrays[0], order="C")).to(dtype)
    if distances.shape != indices.shape:
        raise ValueError(f"{name}: expected distances {tuple(indices.shape)}, got {tuple(distances.shape)}")
    if not (torch.isfinite(distances).all() and (distances[:, 0] >= 0).all() and (distances.diff() >= 0).all()):
        raise ValueError(f"{name}: expected finite distances from 0 upward in every row, got others")
    return Neighbors(distances, indices)


def _as_indices(value: Any, name: str, points: int, n_neighbors: int | None) -> Tensor:
    indices = torch.from_numpy(numpy.array(value, order="C"))
    if indices.is_floating_point() or indices.ndim != 2 or len(indices) != points or indices.shape[1] < 2:
        got = f"{indices.dtype} {tuple(indices.shape)}"
        raise ValueError(f"{name}: expected integer indices ({points}, k) of k >= 2 neighbors, got {got}")
    if n_neighbors is not None and n_neighbors != indices.shape[1]:
        raise ValueError(f"n_neighbors: expected None or {indices.shape[1]}, the width of {name}, got {n_neighbors}")
    indices = indices.long()
    if indices.min() < 0 or indices.max() >= points:
        raise ValueError(f"{name}: expected indices from 0 to {points - 1}, got {indices.min()} to {indices.max()}")
    if (indices == torch.arange(points).unsqueeze(1)).any():
        raise ValueError(f"{name}: expected no point among its own neighbors, got some")
    if (indices.sort(1).values.diff() == 0).any():
        raise ValueError(f"{name}: expected every neighbor of a point once, got some more often")
    return indices


@contextmanager
def _threads(n_jobs: int | None) -> Iterator[None]:
    """Use as many torch threads as scikit-learn's `n_jobs` means."""
    if n_jobs is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(effective_n_jobs(n_jobs))
    try:
        yield
    finally:
        torch.set_num_threads(before)
