"""What a person sees while an evaluation goes on, and what is printed at its end."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ldreg.text import printable

Reporter = Callable[[str, float], None]

_PAUSE = 5.0  # seconds at least between two lines where there is no terminal


@contextmanager
def progress_shown(*, quiet: bool = False) -> Iterator[Reporter]:
    """A bar on a terminal's stderr, else a line every few seconds and at the end of what took longer than that."""
    if quiet:
        yield lambda step, fraction: None
    elif sys.stderr.isatty():
        columns = (BarColumn(bar_width=20), TimeRemainingColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=1.0)
            yield lambda step, fraction: bar.update(task, description=step, completed=fraction)
    else:
        yield _Lines()


class _Lines:
    """Steps as lines, not more often than every few seconds."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _PAUSE

    def __call__(self, step: str, fraction: float) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _PAUSE
            print(f"{100 * fraction:3.0f} %  {step}", file=sys.stderr, flush=True)


def lines(rows: Mapping[str, str]) -> str:
    """Names and values, one a line.

    >>> print(lines({"linear": "0.958", "classes": "10"}))
    linear               0.958
    classes              10
    """
    return "\n".join(f"{name:<20} {value}" for name, value in rows.items())


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, width: int = 80) -> str:
    """A table whose first column is text and whose others are numbers.

    >>> print(table(["dataset", "linear"], [["digits", "0.958"], ["shapes", "0.9"]], width=30))
     dataset               linear
    ──────────────────────────────
     digits                 0.958
     shapes                   0.9
    """
    made = Table(box=SIMPLE_HEAD, expand=True, show_edge=False, padding=(0, 1))
    for place, column in enumerate(columns):
        made.add_column(column, justify="right" if place else "left", ratio=1 if not place else None)
    for row in rows:
        made.add_row(*(Text(printable(cell)) for cell in row))
    console = Console(file=StringIO(), width=width, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(made)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
