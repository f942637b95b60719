"""Sets of points of every odd kind, and what float64 brute force says of them; shared by the properties."""

import itertools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
Rng = np.random.Generator
Way = Literal["mom", "mom, pseudocode", "mle", "mle, pseudocode", "tle"]

# `make test` meets the same examples each time, `make test-slow` many times more. What fails is shown as it is: to make
# it smaller takes minutes.
PHASES = (Phase.explicit, Phase.generate)
QUICK = settings(max_examples=25, deadline=None, derandomize=True, database=None, phases=PHASES)
MANY = settings(QUICK, max_examples=1000)
HOW_MANY = pytest.mark.parametrize("how_many", [QUICK, pytest.param(MANY, marks=pytest.mark.slow)], ids=["few", "many"])

WAYS: dict[Way, dict[str, Any]] = {
    "mom": {"estimator": "mom"},
    "mom, pseudocode": {"estimator": "mom", "convention": "pseudocode"},
    "mle": {"estimator": "mle"},
    "mle, pseudocode": {"estimator": "mle", "convention": "pseudocode"},
    "tle": {"estimator": "tle"},
}

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8)

# float32 distances lose digits below the first and are multiples of the second.
LEAST_NORMAL, QUANTUM = 2.0**-126, 2.0**-149


def near_duplicates(rng: Rng, n: int, d: int) -> Array:
    x = rng.normal(size=(n, d))
    copies = rng.integers(0, n, size=n)
    near = x[copies] + x[copies] * rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-12, -3)
    return np.where(rng.random((n, 1)) < 0.5, near, x)


def of_all_sizes(rng: Rng, n: int, d: int) -> Array:
    """Rows from 1e-30 to 1e30."""
    return rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-30, 30, size=(n, 1))


def two_clusters(rng: Rng, n: int, d: int) -> Array:
    """So narrow, and so far from each other, that float32 products cannot tell the points of one apart."""
    return 1e-3 * rng.normal(size=(n, d)) + np.where(np.arange(n) % 2, 100.0, -100.0)[:, None]


def permutations(rng: Rng, n: int, d: int) -> Array:
    """Rows of the same numbers in other orders: many distances are equal but for rounding."""
    return np.stack([rng.permutation(np.linspace(0.1, 1.3, d)) for _ in range(n)])


def collapsed_in_part(rng: Rng, n: int, d: int) -> Array:
    return np.where(np.arange(n)[:, None] < n // 2, rng.normal(size=(n, d)), 0.7)


KINDS: dict[str, Callable[[Rng, int, int], Array]] = {
    "gaussian": lambda rng, n, d: rng.normal(size=(n, d)),
    "line": lambda rng, n, d: rng.normal(size=(n, 1)) * rng.normal(size=(1, d)),
    "grid": lambda rng, n, d: rng.integers(-2, 3, size=(n, d)).astype(np.float64),
    "steps": lambda rng, n, d: np.repeat(np.arange(n)[:, None] * 0.1, d, axis=1),
    "duplicates": lambda rng, n, d: rng.normal(size=(n, d))[rng.integers(0, max(1, n // 2), size=n)],
    "near-duplicates": near_duplicates,
    "constant": lambda rng, n, d: np.full((n, d), rng.normal()),
    "one-hot": lambda rng, n, d: np.eye(d)[rng.integers(0, d, size=n)],
    "simplex": lambda rng, n, d: np.eye(n),
    "permutations": permutations,
    "two clusters": two_clusters,
    "outlier": lambda rng, n, d: np.where(np.arange(n)[:, None] == 0, 1e6, rng.normal(size=(n, d))),
    "of all sizes": of_all_sizes,
    "columns of all sizes": lambda rng, n, d: rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-30, 30, size=d),
    "collapsed in part": collapsed_in_part,
    "mostly zero": lambda rng, n, d: rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.2),
}

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.T.contiguous().T,
    "every other": lambda x: x.repeat_interleave(2, 0).repeat_interleave(2, 1)[::2, ::2],
    "offset": lambda x: torch.cat((x[:1], x))[1:],
}


class Points(NamedTuple):
    """A set of points, what it was made as, and itself in float64, which is what results are held against."""

    kind: str
    x: Tensor

    @property
    def exact(self) -> Array:
        return self.x.double().numpy()

    @property
    def single(self) -> bool:
        """Whether distances are taken in float32."""
        return self.x.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.uint8)

    def __repr__(self) -> str:
        return f"Points({self.kind!r}, {self.x.dtype}, {self.x.tolist()})"


def rounded(values: Array, dtype: torch.dtype) -> Tensor:
    """The values in this dtype, brought into its range where they have to be."""
    if (dtype.is_floating_point and dtype.itemsize > 2) or dtype == torch.bfloat16:
        return torch.from_numpy(values).to(dtype)
    peak = np.abs(values).max(initial=0.0)
    limit = 1000.0 if dtype == torch.float16 else 100.0
    values = values * (limit / peak) if peak > limit or (not dtype.is_floating_point and peak > 0) else values
    return torch.from_numpy(np.abs(values) if dtype == torch.uint8 else values).to(dtype)


@st.composite
def points(
    draw: st.DrawFn,
    *,
    least: int = 2,
    most: int = 40,
    widest: int = 24,
    dtypes: tuple[torch.dtype, ...] = DTYPES,
    kinds: tuple[str, ...] = tuple(KINDS),
) -> Points:
    """Points (N, D) of any kind, scale, offset, dtype and layout, or numbers that hypothesis thinks of."""
    n, d = draw(st.integers(least, most)), draw(st.integers(1, widest))
    if kinds == tuple(KINDS) and draw(st.integers(0, 9)) == 0:
        n, d = min(n, 8), min(d, 4)
        odd = st.floats(-(2.0**100), 2.0**100, width=32).map(lambda value: value if abs(value) >= 2.0**-100 else 0.0)
        kind, values = "drawn", draw(arrays.arrays(np.float64, (n, d), elements=odd))
    else:
        kind = draw(st.sampled_from(kinds))
        values = KINDS[kind](np.random.default_rng(draw(st.integers(0, 2**32 - 1))), n, d)
        if "all sizes" not in kind:
            scale = 10.0 ** draw(st.sampled_from((0, 0, 0, -30, -12, -3, 3, 12, 30)))
            values = (values + draw(st.sampled_from((0, 0, 0, 1, -30, 1000)))) * scale
    x = rounded(values, draw(st.sampled_from(dtypes)))
    return Points(kind, LAYOUTS[draw(st.sampled_from(tuple(LAYOUTS)))](x))


class Exact(NamedTuple):
    """Distances (N, k) by float64 brute force, ascending, and the rows (N, k) they lead to."""

    distances: Array
    indices: NDArray[np.int64]


def brute_force(x: Array, k: int, reference: Array | None = None, own: NDArray[np.int64] | None = None) -> Exact:
    """The k nearest rows of the reference, or of x without the row itself, from differences of all pairs."""
    rows = x if reference is None else reference
    difference = x[:, None] - rows[None]
    largest = np.abs(difference).max(2, keepdims=True)
    distances = np.sqrt(np.square(difference / np.where(largest > 0, largest, 1)).sum(2)) * largest[:, :, 0]
    own = np.arange(len(x)) if reference is None else own
    if own is not None:
        distances[np.nonzero(own >= 0)[0], own[own >= 0]] = np.inf
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return Exact(np.take_along_axis(distances, order, axis=1), order)


def inverse_lid(found: Exact, way: Way, x: Array, rows: Array, precision: Any = np.longdouble) -> Array:
    """1/LID (N,) by the formulas, point by point: 0 where neighbors are equally far, inf where LID is 0."""
    chosen = (rows[each].astype(precision) for each in found.indices)
    pairs = zip(found.distances, x.astype(precision), chosen, strict=True)
    return np.array([_inverse(d, way, center, near) for d, center, near in pairs])


def unsettled(found: Exact, x: Array, rows: Array) -> Array:
    """By how much of 1 + 1/LID the tight estimates (N,) of brute force depend on its own precision.

    It takes the logarithm of distances between neighbors and mirror images of neighbors, which may be all rounding.
    """
    inverse = inverse_lid(found, "tle", x, rows)
    regular = np.isfinite(inverse)
    other = inverse_lid(found, "tle", x, rows, np.float64)
    return np.where(regular, np.abs(np.where(regular, other - np.where(regular, inverse, 0), 0)), 0) / (1 + inverse)


def _inverse(d: Array, way: Way, center: Any, near: Any) -> float:
    k, w = len(d), d[-1]
    if w == 0:
        return np.inf
    if d[0] == w:
        return 0.0
    if way == "tle":
        return _inverse_tight(near, center, w)
    n = k - 1 if way.endswith("pseudocode") else k
    if way.startswith("mle"):
        return np.inf if d[0] == 0 else float(np.log(w / d).sum() / n)
    total = d[:n].sum()
    return float((w - d).sum() / total) if total > 0 else np.inf


def _inverse_tight(rows: Any, middle: Any, w: float) -> float:
    """Amsaleg et al. 2019, pair by pair, from differences of rows and of mirrored rows."""
    r = np.sqrt(np.square((rows - middle) / w).sum(1))
    unit = w * r.max()
    r = r / r.max()
    logs = [2 * np.log(each) for each in r if each > 0]
    difference = (rows[:, None] - rows[None]) / unit
    total = (rows[:, None] - middle + (rows[None] - middle)) / unit
    ahead = (difference * total).sum(2)
    for i, j in itertools.permutations(range(len(rows)), 2):
        short = ahead[:, i].max()  # 1 - r[i]²
        both = [_inner_radius(short, ahead[i, j], np.square(each[i, j]).sum()) for each in (difference, total)]
        if min(both) > 0:
            logs.append(np.log(both[0]) + np.log(both[1]))
    return max(0.0, float(-sum(logs) / (2 * len(logs))))


def _inner_radius(short: Any, ahead: Any, between: Any) -> Any:
    """The positive root s of short s² + (ahead + between) s - between = 0."""
    a = ahead + between
    root = np.sqrt(max(0 * a, a * a + 4 * between * short))
    if a >= 0:
        return 2 * between / (a + root) if a + root > 0 else 0.0
    return (root - a) / (2 * short) if short > 0 else 0.0


def tolerance(found: Exact, *, single: bool) -> Array:
    """By how much of 1 + 1/LID rounding of the distances may move 1/LID, for each point (N,).

    A distance is right to a few units in its last place; under 1.2e-38, float32 has only multiples of 1.4e-45.
    """
    if not single:
        return np.full(len(found.distances), 1e-9)
    least = np.where(found.distances > 0, found.distances, np.inf).min(1)
    return 2e-6 + 2 * QUANTUM / np.where(np.isfinite(least), least, 1)


def assert_lid(lid: Tensor, inverse: Array, room: Array, label: object = "") -> None:
    """LID is the inverse to rounding, exactly 0 or inf where that is, never negative and never NaN."""
    values = lid.double().numpy()
    assert (values >= 0).all(), (label, values)
    # A LID under 1e-37, which float32 may not hold, is as good as 0.
    zero = np.isinf(inverse)
    assert (values[inverse > 1e37] < 1e-36).all(), (label, values)
    assert (values[zero] == 0).all(), (label, values[zero])
    zero |= inverse > 1e37
    with np.errstate(divide="ignore"):
        error = np.abs(1 / values[~zero] - inverse[~zero]) / (1 + inverse[~zero])
    assert (error <= room[~zero]).all(), (label, values[~zero], inverse[~zero], error)
