"""Output for a terminal: text of its width and colors, progress bars, and pages in a browser."""

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Reporter = Callable[[str, float], None]

_PATIENCE = 2.0  # seconds before a progress bar appears
_PAUSE = 5.0  # least seconds between two lines of progress


def show(text: Callable[..., str], *, widest: int = 100) -> None:
    """Print `text(width=..., color=...)` as wide as the terminal, in color if the terminal supports it."""
    print_text(text(width=columns(widest=widest), color=sys.stdout.isatty() and "NO_COLOR" not in os.environ))


def columns(*, widest: int = 100) -> int:
    """The width for text: `COLUMNS` if set, else the terminal's, else 80; at most `widest`."""
    return min(widest, shutil.get_terminal_size().columns)


def print_text(text: str) -> None:
    """Print text, with a replacement for characters that the terminal cannot show."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))


def open_page(page: Path) -> None:
    """Open a page in a browser if there is a terminal and a screen."""
    screen = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if sys.stdout.isatty() and screen:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())


def steps_as_lines() -> Reporter:
    """Report each new step as a line on stderr."""
    reported: list[str] = []

    def report(step: str, fraction: float) -> None:
        if step not in reported:
            reported.append(step)
            print(f"{step} ...", file=sys.stderr, flush=True)

    return report


@contextmanager
def progress_bar(*, shown: bool = True, lines: bool = False) -> Iterator[Reporter]:
    """A progress bar on stderr that appears after two seconds, only on a terminal.

    Args:
        shown: whether to show anything.
        lines: without a terminal, print a line every five seconds instead.
    """
    if not shown or not sys.stderr.isatty():
        yield _Lines() if shown and lines else lambda step, fraction: None
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
        timer.join()  # it may be starting the bar right now
        bar.stop()


class _Lines:
    """Reports steps as lines on stderr, at most one every few seconds."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _PAUSE

    def __call__(self, step: str, fraction: float) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _PAUSE
            print(f"{100 * fraction:3.0f} %  {step}", file=sys.stderr, flush=True)
