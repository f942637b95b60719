"""Write the table of what LID reads of Gaussians of known dimension, and draw it.

Run as `python benchmarks/calibrate_lid.py` (about a minute of one core); the table is part of the package, the picture
of docs/guidance.md. From a point at distance |x| of the center of a standard Gaussian of d dimensions, the squared
distances to the other N - 1 points are independent noncentral chi-squares (d degrees of freedom, noncentrality |x|²).
So the k smallest are drawn from that distribution itself, for any N and d at the same cost: as many uniform order
statistics, put through the quantile function, for points x whose |x|² are spread evenly over its own quantiles.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import chi2, ncx2

from ldreg.dimension.estimators import mle, mom
from ldreg.dimension.expected import DIMENSIONS, NEIGHBORS, POINTS, Calibrated, gaussian_lid

Array = NDArray[np.float64]

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "src" / "ldreg" / "dimension" / "calibration.json"
PICTURE = ROOT / "docs" / "images" / "lid_calibration.png"
# Far from the seeds of the tests, so that no sample is measured against itself.
SEED = 20240507
STRATA, DRAWS = 256, 16  # points x by |x|², and sets of neighbors for each
LOWEST, NODES = 1e-9, 400  # probability that the quantile function is known from, up to 0.9, and how finely


def quantiles(d: int) -> tuple[Array, Array]:
    """ln F and ln of the distance (STRATA, NODES each), of points x spread over the quantiles of |x|²."""
    far = chi2.ppf((np.arange(STRATA) + 0.5) / STRATA, d)[:, None]
    ends = [_inverse(d, far, probability) for probability in (LOWEST, 0.9)]
    squared = np.exp(np.linspace(np.log(ends[0]), np.log(ends[1]), NODES, axis=1)[..., 0])
    return np.log(ncx2.cdf(squared, d, far)), np.log(squared) / 2


def _inverse(d: int, far: Array, probability: float) -> Array:
    """Squared distance under which another point lies with that probability, by bisection of its logarithm."""
    low, high = np.full_like(far, -80.0), np.log(4 * (far + d + 2))
    for _ in range(80):
        middle = (low + high) / 2
        under = ncx2.cdf(np.exp(middle), d, far) < probability
        low, high = np.where(under, middle, low), np.where(under, high, middle)
    return np.exp(high)


def readings(d: int, n: int, generator: np.random.Generator, known: tuple[Array, Array]) -> dict[Calibrated, Array]:
    """Geometric-mean LID of n Gaussian points of dimension d for every number of neighbors, NaN where k is too many."""
    most = min(NEIGHBORS[-1], n // 2)  # twice what is looked up, so that every lookup lies between nodes
    sums = generator.standard_exponential((STRATA, DRAWS, most)).cumsum(-1)
    rest = generator.standard_gamma(
        n - most, (STRATA, DRAWS, 1)
    )  # the N - 1 others have N gaps, of which most are sums
    logs = np.log(sums / (sums[..., -1:] + rest))
    distances = torch.from_numpy(np.exp([_looked_up(u, *column) for u, *column in zip(logs, *known, strict=True)]))
    found: dict[Calibrated, Array] = {"mom": np.full(len(NEIGHBORS), np.nan), "mle": np.full(len(NEIGHBORS), np.nan)}
    for place, k in enumerate(NEIGHBORS):
        if k <= most:
            near = distances[..., :k].reshape(-1, k)
            found["mom"][place] = mom(near)[0].log().mean().exp()
            found["mle"][place] = mle(near)[0].log().mean().exp()
    return found


def _looked_up(logs: Array, known: Array, distances: Array) -> Array:
    """ln distance at ln F, along the power law of the lowest nodes under them."""
    slope = (distances[1] - distances[0]) / (known[1] - known[0])
    return np.where(logs < known[0], distances[0] + slope * (logs - known[0]), np.interp(logs, known, distances))


def table() -> dict[str, object]:
    """The table, by estimator, dimension, number of neighbors and number of points, to four digits."""
    found: dict[Calibrated, list[list[list[float | None]]]] = {"mom": [], "mle": []}
    for place, d in enumerate(DIMENSIONS):
        known = quantiles(d)
        generator = np.random.default_rng((SEED, place))
        columns = [readings(d, n, generator, known) for n in POINTS]
        for estimator, rows in found.items():
            by_neighbors = np.stack([column[estimator] for column in columns], axis=1).tolist()
            rows.append([[float(f"{v:.4g}") if v == v else None for v in row] for row in by_neighbors])
        print(f"{d} dimensions", flush=True)
    return {"dimensions": DIMENSIONS, "neighbors": NEIGHBORS, "points": POINTS, "lid": found}


def draw(path: Path) -> None:
    """LID read at k = 64 against true dimension, for several numbers of points."""
    figure = Figure(figsize=(6.4, 4.4), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.plot((1, 1000), (1, 1000), color="0.6", linestyle="--", label="true dimension")
    dimensions = [d for d in DIMENSIONS if d <= 1000] + [1000]
    for n in (1_000_000, 100_000, 10_000, 1000, 300):
        axes.plot(dimensions, [gaussian_lid(d, 64, n) or math.nan for d in dimensions], label=f"N = {n:,}")
    axes.set(xscale="log", yscale="log", xlim=(1, 1000), ylim=(0.9, 1000))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("dimension of the Gaussian")
    axes.set_ylabel("LID read, geometric mean, k = 64")
    axes.grid(alpha=0.3, which="both", linewidth=0.5)
    axes.legend(frameon=False)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=TABLE)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("--only-draw", action="store_true", help="draw the table that is there")
    options = parser.parse_args()
    if not options.only_draw:
        options.out.write_text(json.dumps(table(), separators=(",", ":")) + "\n", encoding="utf-8")
        print(f"wrote {options.out}")
    draw(options.picture)
    print(f"wrote {options.picture}")


if __name__ == "__main__":
    main()
