"""`ldreg bench`: measure, each time in a process of its own; show and save the results."""

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
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, Literal, get_args

import torch

from ldreg.bench import BENCHMARKS
from ldreg.bench.benchmark import OWN, Contender, Setting, parse_sizes
from ldreg.bench.measure import Device, Measurement, available_bytes
from ldreg.bench.plots import PictureKind, draw, picture
from ldreg.bench.results import Result, Run, as_markdown, as_text, from_json, to_json, verdicts
from ldreg.io.files import check_outputs, read_text, write_atomically
from ldreg.terminal import Reporter, progress_bar, show
from ldreg.text import printable
from ldreg.train.folder import commit, installed_version

RESULTS = "RESULTS.md"

_PATIENCE = 60.0  # seconds that a call of a rival may be expected to take
_ENDING = 5.0  # seconds that a process has to remove what it left on the disk
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
_PACKAGES = (
    *("ldreg", "torch", "triton", "torchvision", "timm", "lightly", "pytorch-lightning", "numpy"),
    *("scikit-learn", "scikit-dimension", "faiss-cpu", "torchid"),
)


@dataclass(frozen=True)
class Plan:
    """What to run: benchmarks by name, sizes ("full", "quick" or a list), contenders (empty: all), and how.

    Benchmarks without any of the contenders are left out.

    Raises:
        ValueError: an unknown name, a number out of range, or no such device.
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
        for name in self.contenders:
            if not any(name in BENCHMARKS[key].contenders for key in self.benchmarks):
                known = "; ".join(f"{key}: {', '.join(BENCHMARKS[key].contenders)}" for key in self.benchmarks)
                raise ValueError(f"contenders: expected some of {known}, got {name!r}")
        lows = {"k": (self.k, 2), "repeats": (self.repeats, 1), "threads": (self.workers, 1), "seed": (self.seed, 0)}
        for name, (value, low) in lows.items():
            if value < low:
                raise ValueError(f"{name}: expected at least {low}, got {value}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device: expected a CUDA device for 'cuda', got none on this machine")
        self._check_sizes()

    def _check_sizes(self) -> None:
        listed = self.sizes not in ("full", "quick")
        if listed and len({BENCHMARKS[name].size for name in self.taken}) > 1:
            raise ValueError(f"sizes: expected full or quick for benchmarks of several kinds, got {self.sizes!r}")
        sizes = [(name, size) for name in self.taken for size in self.sizes_of(name)]
        for name, size in sizes if listed else ():
            BENCHMARKS[name].check(size)
        smallest = min((size.candidates for _, size in sizes if size.candidates is not None), default=None)
        if smallest is not None and self.k >= smallest:
            raise ValueError(f"k: expected less than {smallest}, the smallest number of points, got {self.k}")

    @property
    def taken(self) -> tuple[str, ...]:
        """The benchmarks that are run."""
        return tuple(name for name in self.benchmarks if self.contenders_of(name))

    @property
    def workers(self) -> int:
        """Threads or worker processes of every contender."""
        return (os.cpu_count() or 1) if self.threads is None else self.threads

    @property
    def place(self) -> Device:
        """The device; auto is the GPU if there is one."""
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


def bench(plan: Plan, *, json: str | None = None, out: str | None = None) -> None:
    """Measure, print and write; what is finished is shown and written even after an interruption.

    Args:
        plan: what to measure.
        json: file for all numbers.
        out: folder of the last run of each benchmark on each device, with a page of all.

    Raises:
        ValueError: nothing was measured.
        OSError: a file cannot be written.
    """
    folder = None if out is None else Path(out)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    check_outputs(inputs=[], outputs=[json, None if folder is None else folder / RESULTS])
    if left_out := [name for name in plan.benchmarks if name not in plan.taken]:
        _warn(f"left out, as none of the contenders takes part: {', '.join(left_out)}")
    if folder is not None:
        replaced = {record_path(folder, name, plan.place) for name in plan.taken}
        for path, reason in read_folder(folder)[1].items():
            fate = "will be replaced" if path in replaced else f"is left out of {RESULTS}"
            _warn(f"{path} cannot be read and {fate}: {reason}")
    runs: list[Run] = []
    waiting: list[Run] = []
    written: dict[Path, None] = {}
    problems: dict[str, BaseException] = {}  # by message: a full disk is one problem

    def write(runs: Sequence[Run], save: Callable[[Sequence[Run]], list[Path]]) -> None:
        try:
            written.update(dict.fromkeys(save(runs)))
        except Exception as error:  # raised when the runs are shown
            problems[str(error)] = error

    def save_waiting() -> None:
        while waiting:
            if folder is not None and waiting[0].measured:  # else the last run with numbers stays
                write(waiting[:1], partial(save_run, folder))
            del waiting[0]

    def finished(run: Run) -> None:
        runs.append(run)
        waiting.append(run)
        save_waiting()

    with stoppable():
        try:
            with progress_bar() as progress:
                run_plan(plan, progress, finished)
        except KeyboardInterrupt as stop:
            problems[""] = stop
        save_waiting()
        if json is not None and runs:
            write(runs, partial(save_numbers, Path(json)))
        if runs:
            show(partial(as_text, runs))
    for path in written:
        print(f"wrote {path}", file=sys.stderr)
    if empty := [run.benchmark for run in runs if not run.measured]:
        nothing = f"nothing was measured of {', '.join(empty)}; the reasons are given above"
        if problems or len(empty) < len(runs):
            _warn(nothing)
        else:
            raise ValueError(nothing)
    first, *others = sorted(problems, key=bool) or [""]
    for message in filter(None, others):
        _warn(message)
    if problems:
        raise problems[first]


def _warn(line: str) -> None:
    print(f"ldreg bench: warning: {line}", file=sys.stderr)


def record_path(folder: Path, benchmark: str, device: str) -> Path:
    """The file with the last run of a benchmark on a device."""
    return folder / f"{benchmark}-{device}.json"


def read_folder(folder: Path) -> tuple[list[Run], dict[Path, str]]:
    """The runs in a folder, in the order of the page, and why other files of runs cannot be read."""
    runs: list[Run] = []
    unreadable: dict[Path, str] = {}
    for name in BENCHMARKS:
        for device in get_args(Device):
            path = record_path(folder, name, device)
            try:
                runs += [read_run(path, name, device)] if path.exists() else []
            except OSError as error:
                unreadable[path] = error.strerror or str(error)
            except ValueError as error:
                unreadable[path] = printable(" ".join(str(error).split()))
    return runs, unreadable


def read_run(path: Path, benchmark: str, device: str) -> Run:
    """The run in a file, which can be shown. Raises ValueError or OSError."""
    runs = from_json(read_text(path))
    if [(run.benchmark, run.device) for run in runs] != [(benchmark, device)]:
        raise ValueError(f"expected one run of {benchmark} on {device}, got something else")
    try:
        as_markdown(runs)  # fields of an older or a foreign shape show here
    except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
        shape = f"{type(error).__name__}: {error}"
        raise ValueError(f"expected a run as ldreg bench writes it, got another shape ({shape})") from error
    return runs[0]


def save_run(folder: Path, runs: Sequence[Run]) -> list[Path]:
    """Write a run's JSON and plot into the folder, then the page of all runs in it. Raises OSError."""
    [run] = runs
    record, figure = record_path(folder, run.benchmark, run.device), draw(run)
    written = save_numbers(record, runs)
    for kind in get_args(PictureKind):
        written += _write(record.with_suffix(f".{kind}"), picture(figure, kind))
    return written + _write(folder / RESULTS, as_markdown(read_folder(folder)[0]))


def save_numbers(path: Path, runs: Sequence[Run]) -> list[Path]:
    """Write runs as JSON. Raises OSError."""
    return _write(path, to_json(runs))


def _write(path: Path, content: str | bytes) -> list[Path]:
    try:
        write_atomically(path, content)
    except OSError as error:
        raise type(error)(f"cannot write {str(path)!r}: {error.strerror or error}") from error
    return [path]


def run_plan(
    plan: Plan,
    progress: Reporter = lambda step, fraction: None,
    finished: Callable[[Run], None] = lambda run: None,
) -> list[Run]:
    """Run all that is planned.

    `progress` is called before each measurement, `finished` with each benchmark's run; at an interruption it gets the
    incomplete run, if anything of it was measured.
    """
    jobs = {
        name: [(size, key) for size in plan.sizes_of(name) for key in plan.contenders_of(name)] for name in plan.taken
    }
    total, done, runs = sum(map(len, jobs.values())), 0, []
    for name, pairs in jobs.items():
        where, busy = environment(threads=plan.workers, device=plan.place), _clocks()
        results: list[Result] = []
        try:
            for size, key in pairs:
                progress(f"{key} at {size}", done / total)
                results.append(_attempt(plan, name, Result(key, size), results))
                done += 1
        finally:
            run = Run(
                name, plan.place, plan.command, plan.k, plan.seed, plan.repeats,
                {**where, "others": cores_of_others(busy)}, tuple(results),
                deviation_of=BENCHMARKS[name].deviation_of, complete=len(results) == len(pairs),
            )  # fmt: skip
            runs.append(replace(run, verdicts=verdicts(run, BENCHMARKS[name])))
            if results:
                finished(runs[-1])
    return runs


def _attempt(plan: Plan, name: str, result: Result, before: Sequence[Result]) -> Result:
    """The result with its measurement, or why there is none."""
    if obstacle := _obstacle(BENCHMARKS[name].contenders[result.contender], result.size, plan.place):
        return replace(result, skipped=obstacle)
    # By the largest measurement of the same contender, of those that differ only in the first number if there are any.
    earlier = [each for each in before if each.contender == result.contender and each.measured]
    alike = [each for each in earlier if each.size[1:] == result.size[1:]]
    if earlier and result.contender != OWN:
        largest = max(alike or earlier, key=lambda each: each.size.work)
        seconds = (largest.seconds or 0.0) * result.size.work / largest.size.work
        if seconds > _PATIENCE:
            reason = f"would take some {seconds:.0f} s, by its time at {largest.size}"
            return replace(result, skipped=reason, estimate=seconds)
    return _measure(plan, name, result)


def _obstacle(contender: Contender, size: Any, device: Device) -> str:
    """Why a contender cannot do the work; empty if it can."""
    if device not in contender.devices:
        return "runs only on the CPU" if device == "cuda" else "runs only on CUDA"
    if contender.package is not None and find_spec(contender.package) is None:
        return f"not installed (pip install {contender.install})"
    needed = size.input_bytes + (contender.bytes_needed(size, device) if contender.bytes_needed else 0)
    available = available_bytes(device)
    if needed > available:
        return f"would need {needed / 1e9:.1f} GB, {available / 1e9:.1f} GB are available"
    return ""


def _measure(plan: Plan, name: str, result: Result) -> Result:
    setting = Setting(result.size, plan.k, plan.seed, plan.repeats, plan.place, plan.workers)
    done = _spawn([name, result.contender, asdict(setting)], plan.workers)
    if done.returncode < 0:
        return replace(result, skipped=f"killed by signal {-done.returncode}, most likely out of memory")
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return replace(result, skipped=f"failed: {lines[-1] if lines else f'status {done.returncode}'}")
    fields, deviation = json.loads(done.stdout.splitlines()[-1])
    return replace(result, measured=Measurement(**{**fields, "seconds": tuple(fields["seconds"])}), deviation=deviation)


def _spawn(job: list[Any], threads: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ldreg.bench.runner", json.dumps(job)]
    return output_of(command, {**os.environ, **dict.fromkeys(_THREAD_VARIABLES, str(threads))})


def main(text: str) -> None:
    """Do the job given in JSON and print the measurement and the deviation."""
    name, contender, fields = json.loads(text)
    size: Any = BENCHMARKS[name].size
    setting = Setting(**{**fields, "size": size(*fields["size"])})
    measured, deviation = BENCHMARKS[name].contenders[contender].measure(setting)
    print(json.dumps([asdict(measured), deviation]))


def output_of(command: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command and catch its output; any exception, also by a signal, ends it and its children."""
    # A session of its own: Ctrl-C reaches only this process, which then ends the whole group.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True
    ) as process:
        try:
            stdout, stderr = process.communicate()
        except BaseException:
            try:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_ENDING)
            finally:  # a second signal cuts the wait short
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()  # Popen does not, after Ctrl-C
            raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


class TerminatedError(KeyboardInterrupt):
    """The process was asked to end, with the exit status `status`."""

    def __init__(self, number: int) -> None:
        super().__init__("terminated")
        self.status = 128 + number


@contextmanager
def stoppable() -> Iterator[None]:
    """Have SIGTERM and SIGHUP raise as Ctrl-C does; if they are ignored (nohup), they stay so."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TerminatedError(number)

    main = threading.current_thread() is threading.main_thread()  # no other may set handlers
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP) if main}
    try:
        for number in before:
            if before[number] == signal.SIG_DFL:
                signal.signal(number, stop)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def environment(*, threads: int, device: str = "cpu") -> dict[str, Any]:
    """Hardware, load and versions, which timings depend on."""
    gpu = None
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        gpu = f"{properties.name} ({properties.total_memory / 1e9:.0f} GB, CUDA {torch.version.cuda})"
    return {
        "gpu": gpu,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: installed_version(name) for name in _PACKAGES},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except FileNotFoundError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


Clocks = tuple[
    float, float, float
]  # seconds that all cores were busy, this process and its children's share, the clock


def _clocks() -> Clocks | None:
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except FileNotFoundError:
        return None
    busy = (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")  # without idling and waiting
    return busy, sum(os.times()[:4]), time.monotonic()


def cores_of_others(start: Clocks | None) -> float | None:
    """Mean number of cores used by other processes since the start; None if the system does not say."""
    now = _clocks()
    if start is None or now is None:
        return None
    busy, own, wall = (end - begin for begin, end in zip(start, now, strict=True))
    return max(0.0, busy - own) / wall


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that folders are removed
    main(sys.argv[1])
