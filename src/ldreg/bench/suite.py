"""All benchmarks by name."""

from ldreg.bench import lid, regularizer, step, views
from ldreg.bench.benchmark import Benchmark

BENCHMARKS: dict[str, Benchmark] = {
    "lid": lid.BENCHMARK,
    "regularizer": regularizer.BENCHMARK,
    "views": views.BENCHMARK,
    "step": step.BENCHMARK,
}
