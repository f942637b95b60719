"""Run benchmarks: a fresh process per measurement, skips with their reasons, verdicts on the goals."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from typing import Any, Literal

import torch

from ldreg.benchmarking.contest import OWN, Contender, Setting, parse_sizes
from ldreg.benchmarking.environment import Others, environment
from ldreg.benchmarking.goals import verdicts
from ldreg.benchmarking.measure import Device
from ldreg.benchmarking.meters import available_bytes
from ldreg.benchmarking.record import Result, Run, measurement
from ldreg.benchmarking.suite import BENCHMARKS
from ldreg.benchmarking.worker import Job

Reporter = Callable[[str, float], None]

_PATIENCE = 60.0  # seconds that another contender's call may be expected to take
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True)
class Plan:
    """What to run: benchmarks by name, sizes ("full", "quick" or a list), contenders (empty: all), and how.

    Raises:
        ValueError: for an unknown name, a number out of range, or a device that is not there.
    """

    benchmarks: tuple[str, ...]
    sizes: str = "full"
    contenders: tuple[str, ...] = ()
    k: int = 64
    repeats: int = 3
    threads: int | None = None
    seed: int = 0
    command: str = ""
    device: Literal["auto", "cpu", "cuda"] = "cpu"

    def __post_init__(self) -> None:
        known = list(dict.fromkeys(name for benchmark in self.benchmarks for name in BENCHMARKS[benchmark].contenders))
        for name in self.contenders:
            if name not in known:
                raise ValueError(f"contenders: expected some of {', '.join(known)}, got {name!r}")
        lows = {"k": (self.k, 2), "repeats": (self.repeats, 1), "threads": (self.workers, 1), "seed": (self.seed, 0)}
        for name, (value, low) in lows.items():
            if value < low:
                raise ValueError(f"{name}: expected at least {low}, got {value}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device: expected a CUDA device for 'cuda', got none on this machine")
        kinds = {BENCHMARKS[name].size for name in self.benchmarks}
        if self.sizes not in ("full", "quick") and len(kinds) > 1:
            raise ValueError(f"sizes: expected full or quick for benchmarks of several kinds, got {self.sizes!r}")
        found = [size.candidates for name in self.benchmarks for size in self.sizes_of(name)]
        smallest = min((count for count in found if count is not None), default=None)
        if smallest is not None and self.k >= smallest:
            raise ValueError(f"k: expected less than {smallest}, the smallest number of points, got {self.k}")

    @property
    def workers(self) -> int:
        """Threads that every contender gets, or worker processes."""
        return (os.cpu_count() or 1) if self.threads is None else self.threads

    @property
    def place(self) -> Device:
        """The device that is run on; auto is the GPU where there is one."""
        if self.device == "auto":
            return "cuda" if torch.cuda.is_available() else "cpu"
        return self.device

    def sizes_of(self, name: str) -> tuple[Any, ...]:
        """The sizes at which a benchmark is run."""
        benchmark = BENCHMARKS[name]
        presets = {"full": benchmark.full_sizes(self.place), "quick": benchmark.quick_sizes}
        return presets[self.sizes] if self.sizes in presets else parse_sizes(self.sizes, benchmark.size)

    def contenders_of(self, name: str) -> dict[str, Contender]:
        """Who takes part in a benchmark."""
        everyone = BENCHMARKS[name].contenders
        return {key: who for key, who in everyone.items() if not self.contenders or key in self.contenders}


def run(
    plan: Plan,
    progress: Reporter = lambda step, fraction: None,
    finished: Callable[[Run], None] = lambda record: None,
) -> list[Run]:
    """Run all that is planned, one measurement after the other.

    `progress` is told before each, `finished` gets each benchmark's run as soon as it is complete.
    """
    jobs = {
        name: [(size, key) for size in plan.sizes_of(name) for key in plan.contenders_of(name)]
        for name in plan.benchmarks
    }
    total, done, records = sum(map(len, jobs.values())), 0, []
    for name, pairs in jobs.items():
        where, others = environment(threads=plan.workers, device=plan.place), Others()
        results: list[Result] = []
        for size, key in pairs:
            progress(f"{key} at {size}", done / total)
            results.append(_attempt(plan, name, Result(key, size), results))
            done += 1
        where["others"] = others.cores()
        records.append(_record(plan, name, where, tuple(results)))
        finished(records[-1])
    return records


def _record(plan: Plan, name: str, where: dict[str, Any], results: tuple[Result, ...]) -> Run:
    record = Run(
        name, plan.place, plan.command, plan.k, plan.seed, plan.repeats, where, results,
        deviation_of=BENCHMARKS[name].deviation_of,
    )  # fmt: skip
    return replace(record, verdicts=verdicts(record, BENCHMARKS[name]))


def _attempt(plan: Plan, name: str, result: Result, before: Sequence[Result]) -> Result:
    """The result with its measurement, or why there is none."""
    contender = BENCHMARKS[name].contenders[result.contender]
    if obstacle := _obstacle(contender, result.size, plan.place):
        return replace(result, skipped=obstacle)
    estimated = _estimate(result, before)
    if estimated is not None and estimated[0] > _PATIENCE and result.contender != OWN:
        seconds, size = estimated
        return replace(result, skipped=f"would take some {seconds:.0f} s, by its time at {size}", estimate=seconds)
    return _measure(plan, name, result)


def _obstacle(contender: Contender, size: Any, device: Device) -> str:
    """Why a contender cannot do the work; empty where it can."""
    if device not in contender.devices:
        return "runs on the CPU alone" if device == "cuda" else "runs on CUDA alone"
    if contender.package is not None and find_spec(contender.package) is None:
        return f"not installed (pip install {contender.install})"
    needed = size.input_bytes + (0 if contender.bytes_needed is None else contender.bytes_needed(size, device))
    available = available_bytes(device)
    if needed > available:
        return f"would need {needed / 1e9:.1f} GB, {available / 1e9:.1f} GB are available"
    return ""


def _estimate(result: Result, before: Sequence[Result]) -> tuple[float, Any] | None:
    """Seconds by an earlier measurement of the same contender, in proportion to the work, and the size of that.

    It is the largest that differs in the first number alone (the points), else the largest.
    """
    measured = [each for each in before if each.contender == result.contender and each.measured is not None]
    if not measured:
        return None
    alike = [each for each in measured if each.size[1:] == result.size[1:]]
    largest = max(alike or measured, key=lambda each: each.size.work)
    return (largest.seconds or 0.0) * result.size.work / largest.size.work, largest.size


def _measure(plan: Plan, name: str, result: Result) -> Result:
    setting = Setting(result.size, plan.k, plan.seed, plan.repeats, plan.place, plan.workers)
    done = _spawn(Job(name, result.contender, setting), plan.workers)
    if done.returncode != 0:
        return replace(result, skipped=_failure(done))
    content = json.loads(done.stdout.splitlines()[-1])
    return replace(result, measured=measurement(content["measured"]), deviation=content["deviation"])


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
