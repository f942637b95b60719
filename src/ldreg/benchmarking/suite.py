"""All benchmarks by name."""

from ldreg.benchmarking import lid, regularizer, step, views
from ldreg.benchmarking.contest import Benchmark

BENCHMARKS: dict[str, Benchmark] = {
    "lid": lid.BENCHMARK,
    "regularizer": regularizer.BENCHMARK,
    "views": views.BENCHMARK,
    "step": step.BENCHMARK,
}
