"""What whoever sits at a terminal sees: text of its width, in color where it takes color, bars, pages."""

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

Reporter = Callable[[str, float], None]

_PATIENCE = 2.0  # seconds before a progress bar appears


class Text(Protocol):
    """Text that is made for a width, with or without escape codes of colors."""

    def __call__(self, *, width: int, color: bool) -> str:
        """Make it."""


def show(text: Text, *, widest: int = 100) -> None:
    """Print text as wide as the terminal allows, in color where it takes color."""
    print_text(text(width=columns(widest=widest), color=sys.stdout.isatty() and "NO_COLOR" not in os.environ))


def columns(*, widest: int = 100) -> int:
    """How wide text may be: as `COLUMNS` says, else as the terminal, up to `widest`; 80 where there is neither."""
    return min(widest, shutil.get_terminal_size().columns)


def print_text(text: str) -> None:
    """Print text, with a stand-in for characters that the terminal does not have."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))


def open_page(page: Path) -> None:
    """Show a page to whoever sits before a screen; a server has none, and a pipe no one."""
    screen = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if sys.stdout.isatty() and screen:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())


def steps_as_lines() -> Reporter:
    """Say each new step on stderr; training has a bar of its own."""
    said: list[str] = []

    def say(step: str, fraction: float) -> None:
        if step not in said:
            said.append(step)
            print(f"{step} ...", file=sys.stderr, flush=True)

    return say


@contextmanager
def progress_bar(*, shown: bool = True) -> Iterator[Reporter]:
    """A bar on stderr that appears after two seconds, and only on a terminal."""
    if not shown or not sys.stderr.isatty():
        yield lambda step, fraction: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<10}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task("", total=1.0)
    timer = threading.Timer(_PATIENCE, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda step, fraction: bar.update(task, description=step, completed=fraction)
    finally:
        timer.cancel()
        timer.join()  # it may be starting the bar this very moment
        bar.stop()
