"""Runs with made-up numbers, for the tests of what is said about runs."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ldreg.bench import BENCHMARKS
from ldreg.bench.benchmark import Batches, Pictures, Points
from ldreg.bench.measure import Device, Measurement
from ldreg.bench.results import Result, Run, verdicts

WIDE, LARGE, FLAT = Points(10_000, 2048), Points(20_000, 2048), Points(10_000, 128)
WHERE = {
    "date": "2026-01-01 00:00 UTC", "commit": "abc", "processor": "Abacus", "cores": 2, "threads": 2, "gpu": None,
    "memory_gb": 8.0, "load": 0.1, "others": 0.01, "system": "Linux", "python": "3.11", "packages": {"torch": "2.11"},
}  # fmt: skip


def result(contender: str, size: Any, seconds: float, extra: float | None = None, **more: Any) -> Result:
    return Result(contender, size, Measurement((seconds,), extra, **more), deviation=1e-6)


def make(*results: Result, benchmark: str = "lid", k: int = 64, device: Device = "cpu") -> Run:
    where = {**WHERE, "gpu": "Colossus" if device == "cuda" else None}
    run = Run(benchmark, device, f"ldreg bench {benchmark}", k, 0, 3, where, results, deviation_of="LID")
    return replace(run, verdicts=verdicts(run, BENCHMARKS[benchmark]))


@pytest.fixture
def lid_run() -> Run:
    return make(
        result("ldreg", WIDE, 2.0, 100), result("scikit-learn", WIDE, 3.0, 20), result("faiss", WIDE, 5.0, 100),
        result("scikit-dimension", WIDE, 3.1, 20), result("pseudocode", WIDE, 9.0, 1500),
        result("cdist + topk", WIDE, 1.0, 200),
        result("ldreg", LARGE, 10.0, 160), result("scikit-learn", LARGE, 12.0, 20),
        Result("faiss", LARGE, skipped="not installed (pip install ldreg[bench])"),
        result("ldreg", FLAT, 1.0, None), result("scikit-learn", FLAT, 0.9, None),
    )  # fmt: skip


@pytest.fixture
def study_run() -> Run:
    sizes = [*(Points(1000 * n, 128) for n in (1, 5, 50)), *(Points(5000, d) for d in (2, 8192))]
    rates = {"ldreg": 1e-9, "faiss": 2e-9}
    return make(*(result(key, size, rate * size.work, 10.0) for size in sizes for key, rate in rates.items()))


@pytest.fixture
def views_run() -> Run:
    files = Pictures(128, 224, files=True)
    return make(
        result("ldreg", Pictures(512, 32), 0.001), result("lightly", Pictures(512, 32), 0.512),
        result("ldreg", files, 0.064), result("lightly", files, 0.128),
        benchmark="views", device="cuda",
    )  # fmt: skip


@pytest.fixture
def step_run() -> Run:
    size = Batches(512, 32, "resnet18")
    parts = {"views": 0.0008, "encoder": 0.003, "LDReg": 0.0002, "backward": 0.006}
    return make(
        result("ldreg", size, 0.0102, 5000, without=0.01, parts=parts),
        result("authors' LDReg", size, 0.011, 5000, without=0.01, parts=parts),
        result("lightly", size, 0.1, 5000),
        benchmark="step", device="cuda",
    )  # fmt: skip


@pytest.fixture
def fabricate() -> Any:
    """`result(contender, size, seconds, extra_mb, ...)` and `run(*results, benchmark, k, device)`."""
    return SimpleNamespace(result=result, run=make)
