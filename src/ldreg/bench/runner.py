"""Run benchmarks: a fresh process per measurement, skips with their reasons, verdicts on the goals."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from typing import Any

from ldreg.bench.contest import OWN, Contender, Setting
from ldreg.bench.environment import Others, environment
from ldreg.bench.goals import verdicts
from ldreg.bench.measure import Device
from ldreg.bench.meters import available_bytes
from ldreg.bench.plan import Plan
from ldreg.bench.processes import output_of
from ldreg.bench.record import Result, Run, measurement
from ldreg.bench.suite import BENCHMARKS
from ldreg.bench.worker import Job

Reporter = Callable[[str, float], None]

_PATIENCE = 60.0  # seconds that another contender's call may be expected to take
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


def run(
    plan: Plan,
    progress: Reporter = lambda step, fraction: None,
    finished: Callable[[Run], None] = lambda record: None,
) -> list[Run]:
    """Run all that is planned, one measurement after the other.

    `progress` is told before each, `finished` gets each benchmark's run as soon as it is complete; where it is
    interrupted, `finished` gets what there is of it, marked as incomplete, before KeyboardInterrupt goes on.
    """
    jobs = {
        name: [(size, key) for size in plan.sizes_of(name) for key in plan.contenders_of(name)] for name in plan.taken
    }
    total, done, records = sum(map(len, jobs.values())), 0, []
    for name, pairs in jobs.items():
        where, others = environment(threads=plan.workers, device=plan.place), Others()
        results: list[Result] = []
        try:
            for size, key in pairs:
                progress(f"{key} at {size}", done / total)
                results.append(_attempt(plan, name, Result(key, size), results))
                done += 1
        except KeyboardInterrupt:
            if results:
                finished(_record(plan, name, {**where, "others": others.cores()}, results, complete=False))
            raise
        records.append(_record(plan, name, {**where, "others": others.cores()}, results))
        finished(records[-1])
    return records


def _record(plan: Plan, name: str, where: dict[str, Any], results: list[Result], *, complete: bool = True) -> Run:
    record = Run(
        name, plan.place, plan.command, plan.k, plan.seed, plan.repeats, where, tuple(results),
        deviation_of=BENCHMARKS[name].deviation_of, complete=complete,
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
    command = [sys.executable, "-m", "ldreg.bench.worker", json.dumps(asdict(job))]
    return output_of(command, {**os.environ, **dict.fromkeys(_THREAD_VARIABLES, str(threads))})


def _failure(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode < 0:
        return f"killed by signal {-done.returncode}, most likely out of memory"
    lines = done.stderr.strip().splitlines()
    return f"failed: {lines[-1] if lines else f'status {done.returncode}'}"
