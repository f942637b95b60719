"""`ldreg bench`: measure, each time in a process of its own; show and save the results."""

import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, Literal, get_args

import torch

from ldreg.bench import BENCHMARKS
from ldreg.bench.measure import OWN, Contender, Device, Setting, available_bytes, candidates, input_bytes, parse_sizes
from ldreg.bench.plots import draw
from ldreg.bench.results import Result, Run, as_markdown, as_text, from_json, to_json, to_measurement
from ldreg.io.files import check_outputs, read_text, write_atomically
from ldreg.report.style import picture
from ldreg.terminal import Reporter, progress_bar, show
from ldreg.text import printable
from ldreg.train.folder import commit, installed_version

Jobs = dict[str, list[tuple[str, Setting]]]  # by benchmark: contenders and what they measure, in order

RESULTS = "RESULTS.md"

_PATIENCE = 60.0  # seconds that a call of a rival may be expected to take
_ENDING = 5.0  # seconds that a process has to remove what it left on the disk
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
_PACKAGES = (
    *("ldreg", "torch", "triton", "torchvision", "timm", "lightly", "pytorch-lightning", "numpy"),
    *("scikit-learn", "scikit-dimension", "faiss-cpu", "torchid"),
)


def bench(
    benchmarks: Sequence[str], *, command: str = "", json: str | None = None, out: str | None = None, **options: Any
) -> None:
    """Measure, print and write; what is finished is shown and written even after an interruption.

    Args:
        benchmarks: by name; those without any of the contenders are left out.
        command: as it was typed.
        json: file for all numbers.
        out: folder of the last run of each benchmark on each device, with a page of all.
        options: of `plan`.

    Raises:
        ValueError: an option is wrong, or nothing was measured.
        OSError: a file cannot be written.
    """
    jobs = plan(benchmarks, **options)
    folder = None if out is None else Path(out)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    check_outputs(inputs=[], outputs=[json, None if folder is None else folder / RESULTS])
    if left_out := [name for name in benchmarks if name not in jobs]:
        _warn(f"left out, as none of the contenders takes part: {', '.join(left_out)}")
    if folder is not None:
        replaced = {record_path(folder, name, settings[0][1].device) for name, settings in jobs.items()}
        for path, reason in read_folder(folder)[1].items():
            fate = "will be replaced" if path in replaced else f"is left out of {RESULTS}"
            _warn(f"{path} cannot be read and {fate}: {reason}")
    runs: list[Run] = []
    written: dict[Path, None] = {}
    problems: dict[str, BaseException] = {}  # by message: a full disk is one problem

    def write(save: Callable[..., list[Path]], *arguments: Any) -> None:
        try:
            written.update(dict.fromkeys(save(*arguments)))
        except Exception as error:  # raised when the runs are shown
            problems[str(error)] = error

    with stoppable():
        try:
            with progress_bar() as progress:
                for run in measured_runs(jobs, command, progress):
                    runs.append(run)
                    if folder is not None and run.measured:  # else the last run with numbers stays
                        write(save_run, folder, run)
        except KeyboardInterrupt as stop:
            problems = {"": stop, **problems}
            if folder is not None and runs and runs[-1].measured:  # it may not have been saved yet
                write(save_run, folder, runs[-1])
        if json is not None and runs:
            write(_write, Path(json), to_json(runs))
        if runs:
            show(partial(as_text, runs))
    for path in written:
        print(f"wrote {path}", file=sys.stderr)
    if empty := [run.benchmark for run in runs if not run.measured]:
        nothing = f"nothing was measured of {', '.join(empty)}; the reasons are given above"
        if not problems and len(empty) == len(runs):
            raise ValueError(nothing)
        _warn(nothing)
    messages = list(problems)
    for message in messages[1:]:
        _warn(message)
    if messages:
        raise problems[messages[0]]


def plan(
    benchmarks: Sequence[str],
    *,
    sizes: str = "full",
    contenders: Sequence[str] = (),
    k: int = 64,
    repeats: int = 3,
    threads: int | None = None,
    seed: int = 0,
    device: Literal["auto", "cpu", "cuda"] = "cpu",
) -> Jobs:
    """The measurements of the benchmarks, without benchmarks that have none of the contenders (empty: all).

    Raises:
        ValueError: an unknown name, a number out of range, or no such device.
    """
    everyone = {name: list(BENCHMARKS[name].contenders) for name in benchmarks}
    for key in contenders:
        if not any(key in keys for keys in everyone.values()):
            known = "; ".join(f"{name}: {', '.join(keys)}" for name, keys in everyone.items())
            raise ValueError(f"contenders: expected some of {known}, got {key!r}")
    threads = (os.cpu_count() or 1) if threads is None else threads
    for name, value, low in (("k", k, 2), ("repeats", repeats, 1), ("threads", threads, 1), ("seed", seed, 0)):
        if value < low:
            raise ValueError(f"{name}: expected at least {low}, got {value}")
    cuda = torch.cuda.is_available()
    if device == "cuda" and not cuda:
        raise ValueError("device: expected a CUDA device for 'cuda', got none on this machine")
    place: Device = "cuda" if device == "cuda" or (device == "auto" and cuda) else "cpu"
    taken = {name: [key for key in keys if not contenders or key in contenders] for name, keys in everyone.items()}
    taken = {name: keys for name, keys in taken.items() if keys}
    if sizes not in ("full", "quick") and len({BENCHMARKS[name].size for name in taken}) > 1:
        raise ValueError(f"sizes: expected full or quick for benchmarks of several kinds, got {sizes!r}")
    jobs: Jobs = {}
    for name, keys in taken.items():
        benchmark = BENCHMARKS[name]
        presets: dict[str, Sequence[Any]] = {"full": benchmark.full_sizes(place), "quick": benchmark.quick_sizes}
        chosen = presets.get(sizes) or parse_sizes(sizes, benchmark.size)
        jobs[name] = [(key, Setting(size, k, seed, repeats, place, threads)) for size in chosen for key in keys]
    numbers = [candidates(setting.size) for job in jobs.values() for _, setting in job]
    smallest = min((number for number in numbers if number is not None), default=k + 1)
    if k >= smallest:
        raise ValueError(f"k: expected less than {smallest}, the smallest number of points, got {k}")
    return jobs


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


def save_run(folder: Path, run: Run) -> list[Path]:
    """Write a run's JSON and plots into the folder, then the page of all runs in it. Raises OSError."""
    record, figure = record_path(folder, run.benchmark, run.device), draw(run)
    written = _write(record, to_json([run]))
    written += _write(record.with_suffix(".svg"), picture(figure, "svg"))
    written += _write(record.with_suffix(".png"), picture(figure, "png"))
    return written + _write(folder / RESULTS, as_markdown(read_folder(folder)[0]))


def _write(path: Path, content: str | bytes) -> list[Path]:
    try:
        write_atomically(path, content)
    except OSError as error:
        raise type(error)(f"cannot write {str(path)!r}: {error.strerror or error}") from error
    return [path]


def measured_runs(jobs: Jobs, command: str = "", progress: Reporter = lambda step, fraction: None) -> Iterator[Run]:
    """Do the jobs, and give each benchmark's run when it ends; at an interruption the incomplete one, if not empty.

    `progress` is called before each measurement.
    """
    total, done = sum(map(len, jobs.values())), 0
    for name, job in jobs.items():
        first = job[0][1]
        where, busy = environment(threads=first.threads, device=first.device), _clocks()
        results: list[Result] = []
        interruption = None
        try:
            for key, setting in job:
                progress(f"{key} at {setting.size}", done / total)
                results.append(_attempt(name, key, setting, results))
                done += 1
        except KeyboardInterrupt as stop:
            interruption = stop
        run = Run(
            name, first.device, command, first.k, first.seed, first.repeats,
            {**where, "others": cores_of_others(busy)}, tuple(results), complete=interruption is None,
        )  # fmt: skip
        if results:
            yield run
        if interruption is not None:
            raise interruption


def _attempt(name: str, key: str, setting: Setting, before: Sequence[Result]) -> Result:
    """Measure a contender in a process of its own, or say why not."""
    result = Result(key, setting.size)
    if obstacle := _obstacle(BENCHMARKS[name].contenders[key], setting):
        return replace(result, skipped=obstacle)
    # Estimate from its largest measurement, of sizes that differ only in the first number if there are any.
    earlier = [each for each in before if each.contender == key and each.measured]
    alike = [each for each in earlier if each.size[1:] == result.size[1:]]
    if earlier and key != OWN:
        largest = max(alike or earlier, key=lambda each: each.size.work)
        seconds = (largest.seconds or 0.0) * result.size.work / largest.size.work
        if seconds > _PATIENCE:
            reason = f"would take some {seconds:.0f} s, by its time at {largest.size}"
            return replace(result, skipped=reason, estimate=seconds)
    return _measure(name, key, setting)


def _obstacle(contender: Contender, setting: Setting) -> str:
    """Why a contender cannot do the work; empty if it can."""
    if setting.device not in contender.devices:
        return "runs only on the CPU" if setting.device == "cuda" else "runs only on CUDA"
    if contender.package is not None and find_spec(contender.package) is None:
        return f"not installed (pip install {contender.install})"
    needed = input_bytes(setting.size)
    needed += contender.bytes_needed(setting.size, setting.device) if contender.bytes_needed else 0
    available = available_bytes(setting.device)
    return f"would need {needed / 1e9:.1f} GB, {available / 1e9:.1f} GB are available" if needed > available else ""


def _measure(name: str, key: str, setting: Setting) -> Result:
    result = Result(key, setting.size)
    job = json.dumps([name, key, asdict(setting)])
    threads = dict.fromkeys(_THREAD_VARIABLES, str(setting.threads))
    done = output_of([sys.executable, "-m", "ldreg.bench.runner", job], {**os.environ, **threads})
    if done.returncode < 0:
        return replace(result, skipped=f"killed by signal {-done.returncode}, most likely out of memory")
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return replace(result, skipped=f"failed: {lines[-1] if lines else f'status {done.returncode}'}")
    fields, deviation = json.loads(done.stdout.splitlines()[-1])
    return replace(result, measured=to_measurement(fields), deviation=deviation)


def main(text: str) -> None:
    """Do the job given in JSON and print the measurement and the deviation."""
    name, key, fields = json.loads(text)
    size: Any = BENCHMARKS[name].size
    measured, deviation = BENCHMARKS[name].contenders[key].measure(Setting(**{**fields, "size": size(*fields["size"])}))
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

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        for number, handler in before.items():
            if handler == signal.SIG_DFL:
                signal.signal(number, stop)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def environment(*, threads: int, device: str = "cpu") -> dict[str, Any]:
    """Hardware, load and versions, which timings depend on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (FileNotFoundError, StopIteration):
        processor = platform.processor() or platform.machine()
    gpu = None
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        gpu = f"{properties.name} ({properties.total_memory / 1e9:.0f} GB, CUDA {torch.version.cuda})"
    return {
        "gpu": gpu,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "processor": processor,
        "cores": os.cpu_count(),
        "threads": threads,
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: installed_version(name) for name in _PACKAGES},
    }


def _clocks() -> tuple[float, float, float] | None:
    """Seconds that all cores were busy, the share of this process and its children, and the clock."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except FileNotFoundError:
        return None
    busy = (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")  # without idling and waiting
    return busy, sum(os.times()[:4]), time.monotonic()


def cores_of_others(start: tuple[float, float, float] | None) -> float | None:
    """Mean number of cores that other processes used since the start; None if the system does not report it."""
    now = _clocks()
    if start is None or now is None:
        return None
    busy, own, wall = (end - begin for begin, end in zip(start, now, strict=True))
    return max(0.0, busy - own) / wall


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that folders are removed
    main(sys.argv[1])
