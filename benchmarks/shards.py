"""Measures time and peak memory of `ldreg inspect SHARDS --sample` at three sizes, and extrapolates to 50 million rows.

    python benchmarks/shards.py /tmp/shards --out benchmarks/shards.json

The shards are .npy files (float16, clustered Gaussians in 384 dimensions), deleted after each size. Next to the time of
the command stands that of reading the same files by plain `read` calls, mostly from the page cache, as they were just
written. On a busy machine, look at `cpu_seconds`.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

DIMENSIONS, SHARD, CHUNK = 384, 250_000, 1 << 24
GOAL = 50_000_000  # rows


def write(folder: Path, rows: int, seed: int = 0) -> None:
    """Shards of rows around 64 centers, from 32 directions each and noise."""
    rng = np.random.default_rng(seed)
    axes = rng.normal(size=(64, 32, DIMENSIONS)).astype(np.float32) / 8
    centers = rng.normal(size=(64, DIMENSIONS)).astype(np.float32)
    folder.mkdir(parents=True)
    for start in range(0, rows, SHARD):
        of = np.sort(rng.integers(0, 64, min(SHARD, rows - start)))
        parts = [
            centers[i] + rng.standard_normal((n, 32), dtype=np.float32) @ axes[i]
            for i, n in enumerate(np.bincount(of, minlength=64))
        ]
        x = np.concatenate(parts)
        x += 0.05 * rng.standard_normal(x.shape, dtype=np.float32)
        np.save(folder / f"part-{start // SHARD:05}.npy", rng.permutation(x).astype(np.float16))


def read(folder: Path) -> float:
    """Seconds to read all bytes of the shards."""
    start = time.perf_counter()
    for path in sorted(folder.iterdir()):
        with path.open("rb", buffering=0) as stream:
            while stream.read(CHUNK):
                pass
    return time.perf_counter() - start


def measured(folder: Path, sample: int, k: int, device: str) -> dict[str, Any]:
    """Seconds, seconds of all processors, and peak memory of the command in a process of its own."""
    words = [sys.executable, "-m", "ldreg", "inspect", str(folder), "--sample", str(sample), "--k", str(k)]
    words += ["--device", device]
    script = (
        "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL);"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN);"
        "print(used.ru_maxrss, used.ru_utime + used.ru_stime); sys.exit(done.returncode)"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, check=True)
    seconds, (kib, used) = time.perf_counter() - start, map(float, done.stdout.split())
    return {"seconds": round(seconds, 1), "cpu_seconds": round(used, 1), "peak_gib": round(kib / 2**20, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a new folder for the shards")
    parser.add_argument("--rows", type=int, nargs="+", default=[1_250_000, 2_500_000, 5_000_000])
    parser.add_argument("--sample", type=int, default=1000)
    parser.add_argument("--k", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="file for the numbers")
    options = parser.parse_args()
    if options.folder.exists():
        parser.error(f"folder: expected a new folder, got {options.folder}")
    results = []
    for rows in options.rows:
        try:
            write(options.folder, rows)
            reading = round(read(options.folder), 2)
            found = {"rows": rows, "sample": options.sample, "k": options.k, "reading_seconds": reading}
            results.append(found | measured(options.folder, options.sample, options.k, options.device))
        finally:
            shutil.rmtree(options.folder, ignore_errors=True)
        print(results[-1], flush=True)
    whole: dict[str, Any] = {
        "dimensions": DIMENSIONS,
        "device": options.device,
        "threads": os.environ.get("OMP_NUM_THREADS", os.cpu_count()),
        "measured": results,
    }
    if len(results) > 1:  # a line through the sizes
        counts = [one["rows"] for one in results]
        lines = {name: np.polyfit(counts, [one[name] for one in results], 1) for name in ("seconds", "cpu_seconds")}
        whole["extrapolated"] = {
            "rows": GOAL, **{name: round(float(np.polyval(line, GOAL)), 1) for name, line in lines.items()}
        }  # fmt: skip
        print("extrapolated, not measured:", whole["extrapolated"])
    if options.out is not None:
        options.out.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
