"""The progress of an evaluation on the terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

Reporter = Callable[[str, float], None]

_PAUSE = 5.0  # least seconds between two lines


@contextmanager
def progress_shown(*, quiet: bool = False) -> Iterator[Reporter]:
    """Show a bar on a terminal, or else a line on stderr every few seconds."""
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
    """Prints steps as lines, at most one every few seconds."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _PAUSE

    def __call__(self, step: str, fraction: float) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _PAUSE
            print(f"{100 * fraction:3.0f} %  {step}", file=sys.stderr, flush=True)
