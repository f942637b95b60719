"""`ldreg bench`: measure, print, and keep the last run of each benchmark on each device with a page of all."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from ldreg.bench.measure import Device
from ldreg.bench.plots import draw, png, svg
from ldreg.bench.record import Run, from_json, to_json
from ldreg.bench.runner import Plan, stoppable
from ldreg.bench.runner import run as run_plan
from ldreg.bench.suite import BENCHMARKS
from ldreg.bench.tables import (
    as_text,
    goal_row,
    headline,
    machine,
    method,
    notes,
    part_rows,
    rows,
    series,
    series_rows,
    title,
)
from ldreg.io.files import check_outputs, read_text, write_atomically
from ldreg.terminal import progress_bar, show
from ldreg.text import printable

RESULTS = "RESULTS.md"


class Folder(NamedTuple):
    """The runs that lie in a folder, in the order of the page, and what is wrong with records that cannot be read."""

    runs: list[Run]
    unreadable: dict[Path, str]


def read_folder(folder: Path) -> Folder:
    """Read the records of all benchmarks on all devices that are there."""
    found = Folder([], {})
    for name in BENCHMARKS:
        for device in get_args(Device):
            path = path_of(folder, name, device)
            if not path.exists():
                continue
            try:
                found.runs.append(_read(path, name, device))
            except OSError as error:
                found.unreadable[path] = error.strerror or str(error)
            except ValueError as error:
                found.unreadable[path] = printable(" ".join(str(error).split()))
    return found


def _read(path: Path, benchmark: str, device: str) -> Run:
    runs = from_json(read_text(path))
    if [(run.benchmark, run.device) for run in runs] != [(benchmark, device)]:
        raise ValueError(f"expected one run of {benchmark} on {device}, got something else")
    try:
        as_markdown(runs)  # fields of an older or a foreign shape show here
    except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
        shape = f"{type(error).__name__}: {error}"
        raise ValueError(f"expected a run as ldreg bench writes it, got another shape ({shape})") from error
    return runs[0]


def write_folder(folder: Path, run: Run) -> list[Path]:
    """Write a run's JSON and plot into the folder, and RESULTS.md of all runs that then can be read there.

    Raises:
        OSError: naming the file that cannot be written.
    """
    figure = draw(run)
    record = path_of(folder, run.benchmark, run.device)
    files: dict[Path, str | bytes] = {record: to_json([run])}
    files |= {record.with_suffix(".svg"): svg(figure), record.with_suffix(".png"): png(figure)}
    for path, content in files.items():
        write(path, content)
    write(folder / RESULTS, as_markdown(read_folder(folder).runs))
    return [*files, folder / RESULTS]


def write(path: Path, content: str | bytes) -> None:
    """Write a file, or raise an OSError that names it, not the file that was to take its place."""
    try:
        write_atomically(path, content)
    except OSError as error:
        raise type(error)(f"cannot write {str(path)!r}: {error.strerror or error}") from error


def path_of(folder: Path, benchmark: str, device: str) -> Path:
    """Where the record of a benchmark on a device lies."""
    return folder / f"{stem(benchmark, device)}.json"


def stem(benchmark: str, device: str) -> str:
    """What the files of a benchmark on a device are called.

    >>> stem("lid", "cuda")
    'lid-cuda'
    """
    return f"{benchmark}-{device}"


def as_markdown(runs: Sequence[Run]) -> str:
    """Runs as a Markdown page, with the plots that lie beside it."""
    intro = "Written by `ldreg bench --out`; the last run of each benchmark on each device."
    parts = ["# Benchmark results", intro]
    for run in runs:
        parts += [f"## {title(run)}", f"`{run.command}`", machine(run), method(run)]
        if run.verdicts:
            parts.append(_markdown_table(("goal", "reached", ""), [goal_row(verdict) for verdict in run.verdicts]))
        for size in headline(run):
            parts += [f"### {size.heading}", _markdown_table(*rows(run, size), remark=False), *notes(run, size)]
            if shares := part_rows(run, size):
                parts.append(_markdown_table(*shares, remark=False))
        for found in series(run):
            parts += [f"### Time {found.title}", _markdown_table(*series_rows(run, found), remark=False)]
        parts.append(f"![{BENCHMARKS[run.benchmark].title}]({stem(run.benchmark, run.device)}.svg)")
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown_table(columns: Sequence[str], content: Sequence[Sequence[str]], *, remark: bool = True) -> str:
    last = len(columns) - 1 if remark else len(columns)
    rule = ["---:" if 0 < place < last else "---" for place in range(len(columns))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, rule, *content))


class Keeper:
    """The runs so far and their files.

    Args:
        json: the file for all numbers; None: none is written.
        folder: of results; None: none is written.
        replaced: names of those records in the folder that the coming runs will replace.
        warn: is told in one line about each file of the folder that cannot be read, now or later.
    """

    def __init__(
        self, json: str | None, folder: Path | None, *, replaced: Sequence[str], warn: Callable[[str], None]
    ) -> None:
        self.runs: list[Run] = []
        self.written: dict[Path, None] = {}
        self.problems: dict[str, Exception] = {}  # by their words: one folder that is full is one problem
        self._json, self._folder, self._warn = json, folder, warn
        self._replaced, self._warned, self._waiting = set(replaced), set[Path](), list[Run]()
        self._look()

    def take(self, run: Run) -> None:
        """Keep a run, and write it into the folder at once: a long run may be interrupted."""
        self.runs.append(run)
        if run.measured:  # else the last run that has something to show stays
            self._waiting.append(run)
        self._write_waiting()

    def finish(self) -> None:
        """Write what an interruption has left unwritten, and all numbers."""
        self._write_waiting()
        if self._json is not None and self.runs:
            try:
                write(Path(self._json), to_json(self.runs))
                self.written[Path(self._json)] = None
            except OSError as error:
                self.problems[str(error)] = error

    def settle(self, stopped: KeyboardInterrupt | None) -> None:
        """Raise what came in between, now that the runs are shown; where it is several things, warn of the others."""
        problems: list[BaseException] = [*([] if stopped is None else [stopped]), *self.problems.values()]
        if empty := [run.benchmark for run in self.runs if not run.measured]:
            nothing = ValueError(f"nothing was measured of {', '.join(empty)}; the reasons are given above")
            if problems or any(run.measured for run in self.runs):
                self._warn(str(nothing))
            else:
                problems.append(nothing)
        for problem in problems[1:]:
            self._warn(str(problem))
        if problems:
            raise problems[0]

    def _write_waiting(self) -> None:
        while self._waiting:
            if self._folder is not None:
                try:
                    self.written.update(dict.fromkeys(write_folder(self._folder, self._waiting[0])))
                except Exception as error:  # raised by whoever shows the runs, once they are shown
                    self.problems[str(error)] = error
                self._look()
            del self._waiting[0]

    def _look(self) -> None:
        if self._folder is None:
            return
        for path, reason in read_folder(self._folder).unreadable.items():
            if path not in self._warned:
                fate = "will be replaced" if path.stem in self._replaced else f"is left out of {RESULTS}"
                self._warn(f"{path} cannot be read and {fate}: {reason}")
            self._warned.add(path)


def replaced_by(benchmarks: Sequence[str], device: str) -> list[str]:
    """The names of the records that runs of these benchmarks on this device replace."""
    return [path_of(Path(), name, device).stem for name in benchmarks]


def bench(
    what: str,
    device: Literal["auto", "cpu", "cuda"],
    sizes: str,
    contenders: tuple[str, ...],
    k: int,
    repeats: int,
    threads: int | None,
    seed: int,
    *,
    json: str | None,
    out: str | None,
    command: str,
) -> None:
    """Measure, print and write, as `ldreg bench` documents its options.

    Raises:
        ValueError: an unknown name or a number out of range.
        OSError: a file cannot be written.
    """
    chosen = tuple(BENCHMARKS) if what == "all" else (what,)
    plan = Plan(chosen, sizes, contenders, k, repeats, threads, seed, command, device)
    _measure(plan, _keeper(plan, json, None if out is None else Path(out)))


def _keeper(plan: Plan, json: str | None, folder: Path | None) -> Keeper:
    """Who takes the results of the plan; that they can be written is found out now."""

    def warn(line: str) -> None:
        print(f"ldreg bench: warning: {line}", file=sys.stderr)

    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    check_outputs(inputs=[], outputs=[json, None if folder is None else folder / RESULTS])
    if plan.left_out:
        warn(f"left out, as none of the contenders takes part: {', '.join(plan.left_out)}")
    return Keeper(json, folder, replaced=replaced_by(plan.taken, plan.place), warn=warn)


def _measure(plan: Plan, keeper: Keeper) -> None:
    """Carry out the plan; interrupted, what is measured by then is shown and written all the same."""
    stopped: KeyboardInterrupt | None = None
    with stoppable():
        try:
            with progress_bar() as progress:
                run_plan(plan, progress, keeper.take)
        except KeyboardInterrupt as stop:
            stopped = stop
        keeper.finish()
        if keeper.runs:
            show(partial(as_text, keeper.runs))
    for path in keeper.written:
        print(f"wrote {path}", file=sys.stderr)
    keeper.settle(stopped)
