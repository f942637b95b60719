"""Write DANCo's calibration table: the statistics of its reference samples at k = 10, averaged over many draws.

Run as `python benchmarks/calibrate_danco.py` (a quarter of an hour); the table is part of the package. `--points`
limits the draws of each cell, for a quick look at a coarser table with `--out`.
"""

import argparse
import json
from pathlib import Path

import torch

from ldreg.dimension.global_dim import REFERENCES, Reference, calibration_dimensions, drawn_statistics

K = 10
POINTS = [32, 50, 80, 125, 200, 320, 500, 800, 1250, 2000, 3200, 5000]
DIMENSIONS = calibration_dimensions(198)
TABLE = Path(__file__).parents[1] / "src" / "ldreg" / "dimension" / "danco_calibration.json"
# Far from the seeds of the tests and of danco itself, so that no sample is measured against itself.
SEED = 20140801
MAX_REPLICATES = 200


def cell(reference: Reference, n: int, d: int, points: int) -> list[float]:
    """The three statistics to five digits, whose noise they outlast."""
    replicates = min(MAX_REPLICATES, max(4, points // n))
    drawn = drawn_statistics(reference, d, n, K, replicates=replicates, seed=SEED, device=torch.device("cpu"))
    return [float(f"{value:.5g}") for value in drawn]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=20_000, help="points drawn for each cell of the table")
    parser.add_argument("--out", type=Path, default=TABLE)
    options = parser.parse_args()
    statistics: dict[str, list[list[list[float]]]] = {}
    for reference in REFERENCES:
        statistics[reference] = [[cell(reference, n, d, options.points) for d in DIMENSIONS] for n in POINTS]
        print(f"{reference}: {len(POINTS)} x {len(DIMENSIONS)} cells", flush=True)
    table = {"k": K, "points": POINTS, "dimensions": DIMENSIONS, "statistics": statistics}
    options.out.write_text(json.dumps(table, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
