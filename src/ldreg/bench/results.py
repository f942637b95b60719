"""The folder that holds the last run of each benchmark on each device, and the page that shows them."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, get_args

from ldreg.bench.measure import Device
from ldreg.bench.plot import draw, png, svg
from ldreg.bench.record import Run, from_json, to_json
from ldreg.bench.report import goal_row, machine, method, notes, part_rows, rows, series_rows, title
from ldreg.bench.scaling import headline, series
from ldreg.bench.suite import BENCHMARKS
from ldreg.io.files import read_text, write_atomically
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
