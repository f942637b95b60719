"""Run benchmarks: a fresh process per measurement, skips with their reasons, verdicts on the goals."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy

from ldreg.benchmarking.contest import OWN, Array, Benchmark, Contender, Goal, Size, parse_sizes
from ldreg.benchmarking.environment import Others, environment
from ldreg.benchmarking.measure import Measurement, available_bytes
from ldreg.benchmarking.record import Result, Run, Verdict
from ldreg.benchmarking.suite import BENCHMARKS
from ldreg.benchmarking.worker import Job

Reporter = Callable[[str, float], None]

_GOAL_K = 64  # the goals are set for this number of neighbors
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True)
class Plan:
    """What to run: benchmarks by name, sizes ("full", "quick" or a list), contenders (empty: all), and how.

    Raises:
        ValueError: for an unknown name, or a number out of range.
    """

    benchmarks: tuple[str, ...]
    sizes: str = "full"
    contenders: tuple[str, ...] = ()
    k: int = 64
    repeats: int = 3
    threads: int | None = None
    seed: int = 0
    command: str = ""

    def __post_init__(self) -> None:
        known = list(dict.fromkeys(name for benchmark in self.benchmarks for name in BENCHMARKS[benchmark].contenders))
        for name in self.contenders:
            if name not in known:
                raise ValueError(f"contenders: expected some of {', '.join(known)}, got {name!r}")
        lows = {"k": (self.k, 2), "repeats": (self.repeats, 1), "threads": (self.workers, 1), "seed": (self.seed, 0)}
        for name, (value, low) in lows.items():
            if value < low:
                raise ValueError(f"{name}: expected at least {low}, got {value}")
        smallest = min(size.points for name in self.benchmarks for size in self.sizes_of(name))
        if self.k >= smallest:
            raise ValueError(f"k: expected less than {smallest}, the smallest number of points, got {self.k}")

    @property
    def workers(self) -> int:
        """Threads that every contender gets."""
        return (os.cpu_count() or 1) if self.threads is None else self.threads

    def sizes_of(self, name: str) -> tuple[Size, ...]:
        """The sizes at which a benchmark is run."""
        benchmark = BENCHMARKS[name]
        presets = {"full": benchmark.sizes, "quick": benchmark.quick_sizes}
        return presets[self.sizes] if self.sizes in presets else parse_sizes(self.sizes)

    def contenders_of(self, name: str) -> dict[str, Contender]:
        """Who takes part in a benchmark."""
        everyone = BENCHMARKS[name].contenders
        return {key: who for key, who in everyone.items() if not self.contenders or key in self.contenders}


def run(plan: Plan, progress: Reporter = lambda step, fraction: None) -> list[Run]:
    """Run all that is planned, one measurement after the other; `progress` is told before each."""
    where, others = environment(threads=plan.workers), Others()
    jobs = [
        (name, size, key)
        for name in plan.benchmarks
        for size in plan.sizes_of(name)
        for key in plan.contenders_of(name)
    ]
    results: dict[str, list[Result]] = {name: [] for name in plan.benchmarks}
    own: dict[tuple[str, Size], Array] = {}
    for done, (name, size, key) in enumerate(jobs):
        progress(f"{key} at {size}", done / len(jobs))
        result, values = _attempt(plan, name, Result(key, size))
        if values is not None and key == OWN:
            own = {(name, size): values}
        if values is not None and (name, size) in own:
            result = replace(result, deviation=BENCHMARKS[name].deviation(values, own[name, size]))
        results[name].append(result)
    where["others"] = others.cores()
    return [_record(plan, name, where, tuple(results[name])) for name in plan.benchmarks]


def _record(plan: Plan, name: str, where: dict[str, Any], results: tuple[Result, ...]) -> Run:
    record = Run(name, plan.command, plan.k, plan.seed, plan.repeats, where, results)
    return replace(record, verdicts=verdicts(record, BENCHMARKS[name]))


def _attempt(plan: Plan, name: str, result: Result) -> tuple[Result, Array | None]:
    """The result with its measurement, or why there is none, and what was computed."""
    obstacle = _obstacle(BENCHMARKS[name].contenders[result.contender], result.size)
    return (replace(result, skipped=obstacle), None) if obstacle else _measure(plan, name, result)


def _obstacle(contender: Contender, size: Size) -> str:
    """Why a contender cannot do the work; empty where it can."""
    if contender.package is not None and find_spec(contender.package) is None:
        return "not installed (pip install ldreg[bench])"
    needed, available = 0 if contender.bytes_needed is None else contender.bytes_needed(size), available_bytes()
    if needed > available:
        return f"would need {needed / 1e9:.1f} GB, {available / 1e9:.1f} GB are available"
    return ""


def _measure(plan: Plan, name: str, result: Result) -> tuple[Result, Array | None]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.npy"
        job = Job(name, result.contender, result.size, plan.k, plan.seed, plan.repeats, str(path))
        done = _spawn(job, plan.workers)
        if done.returncode != 0:
            return replace(result, skipped=_failure(done)), None
        content = json.loads(done.stdout.splitlines()[-1])
        return replace(result, measured=Measurement(tuple(content["seconds"]), content["extra_mb"])), numpy.load(path)


def _spawn(job: Job, threads: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ldreg.benchmarking.worker", json.dumps(asdict(job))],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **dict.fromkeys(_THREAD_VARIABLES, str(threads))},
    )


def _failure(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode < 0:
        return f"killed by signal {-done.returncode}, most likely out of memory"
    lines = done.stderr.strip().splitlines()
    return f"failed: {lines[-1] if lines else f'status {done.returncode}'}"


def verdicts(record: Run, benchmark: Benchmark) -> tuple[Verdict, ...]:
    """What was reached of those goals whose size was run with the k that they are set for."""
    goals = [goal for goal in benchmark.goals if record.k == _GOAL_K and goal.size in record.sizes]
    return tuple(_verdict(goal, record.at(goal.size), benchmark) for goal in goals)


def _verdict(goal: Goal, results: dict[str, Result], benchmark: Benchmark) -> Verdict:
    asked = [key for key, who in benchmark.contenders.items() if who.counts and key != OWN]
    asked = [goal.rival] if goal.rival else [] if goal.quantity == "extra memory" else asked
    measured = {key: result.measured for key, result in results.items() if result.measured is not None}
    rivals, missing = [key for key in asked if key in measured], tuple(key for key in asked if key not in measured)
    if OWN not in measured or (asked and not rivals):
        return Verdict(goal, None, None, missing=missing)
    best = min(rivals, key=lambda key: measured[key].median, default=OWN)
    value, met = _compare(goal, measured[OWN], measured[best])
    return Verdict(goal, value, met, best if asked else "", missing)


def _compare(goal: Goal, own: Measurement, rival: Measurement) -> tuple[float | None, bool | None]:
    """The value that a goal speaks of and whether it is met; None where memory was not measured."""
    if goal.quantity == "speed":
        value = rival.median / own.median
        return value, value >= goal.limit
    if own.extra_mb is None or not rival.extra_mb:
        return None, None
    value = own.extra_mb if goal.quantity == "extra memory" else own.extra_mb / rival.extra_mb
    return value, value <= goal.limit
