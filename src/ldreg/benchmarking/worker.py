"""One measurement in a process of its own, so that nobody else's memory, caches or threads take part in it.

Run by `runner` as `python -m ldreg.benchmarking.worker JOB`, with JOB in JSON; the last line printed is the outcome.
"""

import json
import sys
from dataclasses import asdict, dataclass

import numpy

from ldreg.benchmarking.contest import Array, Size
from ldreg.benchmarking.measure import Measurement, measure
from ldreg.benchmarking.suite import BENCHMARKS


@dataclass(frozen=True)
class Job:
    """What to measure, and the .npy file that the result goes into."""

    benchmark: str
    contender: str
    size: Size
    k: int
    seed: int
    repeats: int
    result: str


def sample(size: Size, seed: int) -> Array:
    """Standard normal points (N, D) in float32.

    >>> sample(Size(5, 3), seed=0).shape
    (5, 3)
    """
    return numpy.random.default_rng(seed).standard_normal(size, dtype=numpy.float32)


def perform(job: Job) -> Measurement:
    """Measure after a small first call, which is to take imports, thread pools and libraries' buffers out of it."""
    contender = BENCHMARKS[job.benchmark].contenders[job.contender]
    x = sample(job.size, job.seed)
    contender.run(x[: max(256, 2 * job.k)].copy(), job.k)
    measured, values = measure(lambda: contender.run(x, job.k), repeats=job.repeats)
    if contender.normalize is not None:
        values = contender.normalize(values, job.k)
    numpy.save(job.result, values)
    return measured


def main(text: str) -> None:
    """Do the job given in JSON and print its measurement."""
    content = json.loads(text)
    print(json.dumps(asdict(perform(Job(**{**content, "size": Size(*content["size"])})))))


if __name__ == "__main__":
    main(sys.argv[1])
