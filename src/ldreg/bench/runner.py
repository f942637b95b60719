"""Run a plan: one measurement after the other, each in a process of its own."""

import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch

from ldreg.bench.benchmark import OWN, Contender, Outcome, Setting, parse_sizes
from ldreg.bench.measure import Device, available_bytes
from ldreg.bench.record import Result, Run, measurement
from ldreg.bench.suite import BENCHMARKS
from ldreg.bench.tables import verdicts


@dataclass(frozen=True)
class Plan:
    """What to run: benchmarks by name, sizes ("full", "quick" or a list), contenders (empty: all), and how.

    Benchmarks in which none of the contenders takes part are left out.

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
        self._check_names()
        lows = {"k": (self.k, 2), "repeats": (self.repeats, 1), "threads": (self.workers, 1), "seed": (self.seed, 0)}
        for name, (value, low) in lows.items():
            if value < low:
                raise ValueError(f"{name}: expected at least {low}, got {value}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device: expected a CUDA device for 'cuda', got none on this machine")
        self._check_sizes()

    def _check_names(self) -> None:
        known = {name: tuple(BENCHMARKS[name].contenders) for name in self.benchmarks}
        for name in self.contenders:
            if not any(name in names for names in known.values()):
                lists = [", ".join(names) for names in known.values()]
                told = (
                    lists if len(known) == 1 else [f"{key}: {names}" for key, names in zip(known, lists, strict=True)]
                )
                raise ValueError(f"contenders: expected some of {'; '.join(told)}, got {name!r}")
        if not self.taken:
            raise ValueError("benchmarks: expected at least one, got none")

    def _check_sizes(self) -> None:
        kinds = {BENCHMARKS[name].size for name in self.taken}
        listed = self.sizes not in ("full", "quick")
        if listed and len(kinds) > 1:
            raise ValueError(f"sizes: expected full or quick for benchmarks of several kinds, got {self.sizes!r}")
        sizes = [(name, size) for name in self.taken for size in self.sizes_of(name)]
        for name, size in sizes if listed else ():
            BENCHMARKS[name].check(size)
        smallest = min((size.candidates for _, size in sizes if size.candidates is not None), default=None)
        if smallest is not None and self.k >= smallest:
            raise ValueError(f"k: expected less than {smallest}, the smallest number of points, got {self.k}")

    @property
    def taken(self) -> tuple[str, ...]:
        """The benchmarks that are run: those in which somebody asked for takes part."""
        return tuple(name for name in self.benchmarks if self.contenders_of(name))

    @property
    def left_out(self) -> tuple[str, ...]:
        """The benchmarks that are not."""
        return tuple(name for name in self.benchmarks if name not in self.taken)

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


_PACKAGES = (
    *("ldreg", "torch", "triton", "torchvision", "timm", "lightly", "pytorch-lightning", "numpy"),
    *("scikit-learn", "scikit-dimension", "faiss-cpu", "torchid"),
)


def environment(*, threads: int, device: str = "cpu") -> dict[str, Any]:
    """Everything about here and now that timings depend on."""
    return {
        "gpu": _gpu() if device == "cuda" else None,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(Path(__file__).parent),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


class Others:
    """How much of the machine other processes take while this one and its children measure."""

    def __init__(self) -> None:
        self._start = _clocks()

    def cores(self) -> float | None:
        """Cores kept busy by others on average since the start; None where the system does not tell."""
        if self._start is None or (now := _clocks()) is None:
            return None
        busy, own, wall = (end - start for start, end in zip(self._start, now, strict=True))
        return max(0.0, busy - own) / wall


def _clocks() -> tuple[float, float, float] | None:
    """Seconds that all cores were busy, that this process and its finished children took of it, and of the clock."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except FileNotFoundError:
        return None
    idle, waiting = fields[3:5]
    own = os.times()
    return (
        (sum(fields) - idle - waiting) / os.sysconf("SC_CLK_TCK"),
        own.user + own.system + own.children_user + own.children_system,
        time.monotonic(),
    )


def commit(folder: Path) -> str | None:
    """The commit that a folder is checked out at, marked where the folder differs from it; None outside of git.

    LDREG_COMMIT says it for a copy of the code on another machine, which has no history.
    """
    if os.environ.get("LDREG_COMMIT"):
        return os.environ["LDREG_COMMIT"]
    try:
        head = _git(folder, "rev-parse", "--short=10", "HEAD")
        return f"{head} with local changes" if _git(folder, "status", "--porcelain", "--", "..") else head
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except FileNotFoundError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _gpu() -> str:
    properties = torch.cuda.get_device_properties(0)
    return f"{properties.name} ({properties.total_memory / 1e9:.0f} GB, CUDA {torch.version.cuda})"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


_ENDING = 5.0  # seconds that a process has to remove what it left on the disk


class TerminatedError(KeyboardInterrupt):
    """The process was asked to end; `status` is what it is to end with."""

    def __init__(self, number: int) -> None:
        super().__init__("terminated")
        self.status = 128 + number


@contextmanager
def stoppable() -> Iterator[None]:
    """Have SIGTERM, and a terminal that goes away, raise as Ctrl-C does; what is ignored (nohup) stays so."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TerminatedError(number)

    main = threading.current_thread() is threading.main_thread()  # no other may set handlers
    numbers = (signal.SIGTERM, signal.SIGHUP) if main else ()
    before: dict[signal.Signals, Any] = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in before:
            if before[number] == signal.SIG_DFL:
                signal.signal(number, stop)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def output_of(command: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command and catch what it prints; whatever ends the wait, a signal too, ends it and its children."""
    # A session of its own: Ctrl-C reaches this process alone, which then ends the whole group.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True
    )
    try:
        stdout, stderr = process.communicate()
    except BaseException:
        _end(process)
        raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def _end(process: subprocess.Popen[str]) -> None:
    try:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_ENDING)
    finally:  # a second signal cuts the wait short
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@dataclass(frozen=True)
class Job:
    """Whom to measure at what."""

    benchmark: str
    contender: str
    setting: Setting


def perform(job: Job) -> Outcome:
    """Have the contender do its work."""
    return BENCHMARKS[job.benchmark].contenders[job.contender].measure(job.setting)


def main(text: str) -> None:
    """Do the job given in JSON and print its outcome."""
    content = json.loads(text)
    kind: Any = BENCHMARKS[content["benchmark"]].size
    setting = Setting(**{**content["setting"], "size": kind(*content["setting"]["size"])})
    outcome = perform(Job(content["benchmark"], content["contender"], setting))
    print(json.dumps({"measured": asdict(outcome.measured), "deviation": outcome.deviation}))


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
    command = [sys.executable, "-m", "ldreg.bench.runner", json.dumps(asdict(job))]
    return output_of(command, {**os.environ, **dict.fromkeys(_THREAD_VARIABLES, str(threads))})


def _failure(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode < 0:
        return f"killed by signal {-done.returncode}, most likely out of memory"
    lines = done.stderr.strip().splitlines()
    return f"failed: {lines[-1] if lines else f'status {done.returncode}'}"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that folders are removed
    main(sys.argv[1])
