"""All benchmarks by name."""

from ldreg.benchmarking import lid, regularizer
from ldreg.benchmarking.contest import Benchmark

BENCHMARKS: dict[str, Benchmark] = {"lid": lid.BENCHMARK, "regularizer": regularizer.BENCHMARK}
