"""The folder that holds the last run of each benchmark on each device, and the page that shows them."""

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from ldreg.benchmarking.measure import Device
from ldreg.benchmarking.plot import draw, png, svg
from ldreg.benchmarking.record import Run, from_json, to_json
from ldreg.benchmarking.report import goal_row, machine, method, notes, part_rows, rows, series_rows, title
from ldreg.benchmarking.scaling import headline, series
from ldreg.benchmarking.suite import BENCHMARKS
from ldreg.reporting.files import write_atomically

RESULTS = "RESULTS.md"


def write_folder(folder: Path, runs: Sequence[Run]) -> list[Path]:
    """Write each run's JSON and plot into the folder, and RESULTS.md of all runs that then lie there."""
    written = []
    for run in runs:
        figure = draw(run)
        for suffix, content in ((".json", to_json([run])), (".svg", svg(figure)), (".png", png(figure))):
            written.append(folder / f"{stem(run.benchmark, run.device)}{suffix}")
            write_atomically(written[-1], content)
    names = [stem(name, device) for name in BENCHMARKS for device in get_args(Device)]
    present = [path for name in names if (path := folder / f"{name}.json").exists()]
    last = [run for path in present for run in from_json(path.read_text(encoding="utf-8"))]
    write_atomically(folder / RESULTS, as_markdown(last))
    return [*written, folder / RESULTS]


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
