"""Speed and memory of ldreg and other ways to do the same work, each measured in a process of its own.

A benchmark is one file: its contenders are functions, and `BENCHMARK` says at which sizes they run.
"""

from ldreg.bench import lid, regularizer, step, views
from ldreg.bench.measure import Benchmark

BENCHMARKS: dict[str, Benchmark] = {
    "lid": lid.BENCHMARK,
    "regularizer": regularizer.BENCHMARK,
    "views": views.BENCHMARK,
    "step": step.BENCHMARK,
}
