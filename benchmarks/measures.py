"""The measures beside LID against references in float64: the table in docs/measures.md.

    python benchmarks/measures.py [--device cuda]

References are written from the definitions with NumPy and SciPy: full singular value decompositions, all pairs of
points, and root finding where there is a likelihood. Nothing of ldreg is in them.
"""

import argparse
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats
from scipy.linalg import eigh
from scipy.spatial.distance import cdist, pdist

import ldreg

Array = NDArray[np.float64]
K, ROWS, COLUMNS = 32, 1200, 128
REFERENCES = {
    "rankme": "NumPy, singular values",
    "participation_ratio": "NumPy, eigenvalues of the covariance",
    "nesum": "NumPy, eigenvalues of the covariance",
    "alpha_req": "NumPy, weighted `polyfit`",
    "alpha_req_r2": "NumPy, weighted `polyfit`",
    "uniformity": "SciPy, `pdist` of all pairs",
    "hubness": "SciPy, `skew` of counts by `cdist`",
    "antihubs": "SciPy, counts by `cdist`",
    "gride": "SciPy, `brentq` on the likelihood's slope",
    "duplicates": "NumPy, `unique` rows",
    "alignment": "NumPy, all pairs of views",
    "lidar": "SciPy, generalized eigenvalues",
}


def kinds() -> dict[str, Array]:
    """Points of several kinds, in the precision in which they are measured."""
    source = np.random.default_rng(0)
    decaying = source.normal(size=(ROWS, COLUMNS)) / np.sqrt(np.arange(1, COLUMNS + 1))
    centers = 3 * source.normal(size=(10, COLUMNS))
    clustered = centers[source.integers(0, 10, ROWS)] + source.normal(size=(ROWS, COLUMNS))
    thin = source.normal(size=(ROWS, 5)) @ source.normal(size=(5, COLUMNS)) + 0.01 * source.normal(size=(ROWS, COLUMNS))
    repeated = decaying.copy()
    repeated[100:140], repeated[200] = repeated[:40], repeated[0]
    found = {
        "decaying spectrum, off the origin": decaying + 5,
        "clusters on the sphere": clustered / np.linalg.norm(clustered, axis=1, keepdims=True),
        "5 dimensions and noise": thin,
        "uniform in 8 dimensions": source.uniform(size=(ROWS, 8)),
        "with duplicates": repeated,
        "tiny": 1e-6 * decaying,
    }
    return {name: x.astype("float32").astype("float64") for name, x in found.items()}


def reference(x: Array, views: Array) -> dict[str, Any]:
    """All measures of x (N, D), and of x and its views, from their definitions."""
    singular = np.linalg.svd(x, compute_uv=False)
    values = np.linalg.svd(x - x.mean(0), compute_uv=False) ** 2
    first, last = (11, 100) if len(values) >= 100 else (max(1, len(values) // 10), len(values))
    ranks = np.arange(first, last + 1)
    logs, heights = np.log(ranks), np.log(values[first - 1 : last])
    line = np.polyfit(logs, heights, 1, w=ranks**-0.5)
    around = heights - np.average(heights, weights=1 / ranks)
    left = heights - np.polyval(line, logs)
    distances = cdist(x, x)
    np.fill_diagonal(distances, np.inf)
    order = np.argsort(distances, axis=1, kind="stable")[:, :K]
    counts = np.bincount(order.ravel(), minlength=len(x))
    _, sizes = np.unique(x, axis=0, return_counts=True)
    units = [one / np.linalg.norm(one, axis=1, keepdims=True) for one in (x, views)]
    return {
        "rankme": rank(singular),
        "participation_ratio": values.sum() ** 2 / (values**2).sum(),
        "nesum": values.sum() / values[0],
        "alpha_req": -line[0],
        "alpha_req_r2": 1 - np.average(left**2, weights=1 / ranks) / np.average(around**2, weights=1 / ranks),
        "uniformity": np.log(np.exp(-2 * pdist(units[0], "sqeuclidean")).mean()),
        "hubness": stats.skew(counts),
        "antihubs": (counts == 0).mean(),
        "gride": gride(np.take_along_axis(distances, order, 1)),
        "duplicates": [sizes[sizes > 1].sum(), (sizes > 1).sum()],
        "alignment": ((units[0] - units[1]) ** 2).sum(1).mean(),
        "lidar": lidar(x, views),
    }


def rank(values: Array) -> float:
    """The exp of the entropy of values above 0, as shares."""
    shares = values[values > 0] / values.sum()
    return math.exp(-(shares * np.log(shares)).sum())


def gride(distances: Array) -> list[float]:
    """The zero of the derivative of the log likelihood of the ratios, by dimension."""
    found = []
    for near in (2**i for i in range(int(math.log2(K)))):
        inner, outer = distances[:, near - 1], distances[:, 2 * near - 1]
        logs = np.log(outer[inner > 0] / inner[inner > 0])

        def slope(d: float, logs: Array = logs, near: int = near) -> float:
            inner = np.divide(logs, 1 - np.exp(-d * logs), out=np.full_like(logs, 1 / d), where=logs > 0)
            return float((1 / d + (near - 1) * inner - (2 * near - 1) * logs).mean())

        found.append(optimize.brentq(slope, 0.05, 500, xtol=1e-13))
    return found


def lidar(x: Array, views: Array) -> float:
    """The rank of the covariance of means in units of that of views, with its delta of 1e-4."""
    means, apart = (x + views) / 2, (x - views) / 2
    within = apart.T @ apart / len(x) + 1e-4 * np.eye(x.shape[1])
    between = np.cov(means, rowvar=False)
    return rank(eigh(between, within, eigvals_only=True).clip(0))


def deviations(device: str = "cpu") -> dict[str, float]:
    """The largest relative deviation of each measure over all kinds of points."""
    largest = dict.fromkeys(REFERENCES, 0.0)
    for x in kinds().values():
        views = x + 0.3 * x.std() * np.random.default_rng(1).normal(size=x.shape)
        views = views.astype("float32").astype("float64")
        measures = ldreg.inspect(x.astype("float32"), k=K, views=views.astype("float32"), device=device).measures
        found = {
            **measures,
            "gride": [scale["dimension"] for scale in measures["gride"]],
            "duplicates": list(measures["duplicates"].values()),
        }
        for name, expected in reference(x, views).items():
            apart = np.abs(np.subtract(found[name], expected))
            scale = np.abs(expected)
            largest[name] = max(largest[name], float(np.max(apart / np.where(scale > 0, scale, 1))))
    return largest


def table(found: dict[str, float], device: str) -> str:
    """The deviations on a device as Markdown."""
    rows = [f"| `{name}` | {REFERENCES[name]} | {f'{value:.0e}' if value else 0} |" for name, value in found.items()]
    return "\n".join([f"| measure | reference in float64 | {device.upper()} |", "|---|---|---:|", *rows])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args().device
    print(table(deviations(chosen), chosen))
