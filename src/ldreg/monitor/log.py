"""The metrics file: one row per number, append-only, and truncated when a run resumes."""

import csv
import io
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import NamedTuple, TextIO

from ldreg.io.files import check_size, write_atomically

_HEADER = ("epoch", "step", "name", "value")
_LARGEST = 1 << 27  # bytes to read into memory: about three million numbers
_LONGEST = 1 << 33  # bytes to stream when a run resumes
_LONGEST_LINE = 1 << 18  # characters


class _Row(NamedTuple):
    epoch: float
    step: int
    name: str
    value: float


class MetricsLog:
    """A CSV file with the columns epoch, step, name, value; epoch counts completed epochs, with fractions.

    A row per number lets a resumed run log metrics that an earlier version did not have. Each write is on disk when it
    returns. Call `resume` first.

    Args:
        path: the file; its folder must exist.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = MetricsLog(Path(folder) / "metrics.csv")
    ...     log.resume(0)
    ...     log.write({"batch/loss": 0.25}, step=50, epoch=1.5)
    ...     log.path.read_text().split(), read_metrics(log.path)
    (['epoch,step,name,value', '1.5,50,batch/loss,0.25'], {'batch/loss': [(50, 1.5, 0.25)]})
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self._logged: set[tuple[int, str]] = set()

    def resume(self, step: int) -> None:
        """Remove the rows of later steps and an incomplete last line; at step 0 remove all rows."""
        text = io.StringIO(_text([_HEADER]))
        text.seek(0, io.SEEK_END)
        self._logged = set()
        for row in _rows(self.path, largest=_LONGEST) if step > 0 and self.path.exists() else ():
            if row.step <= step:
                text.write(_text([row]))
            if row.step == step:
                self._logged.add((row.step, row.name))
        write_atomically(self.path, text.getvalue())

    def write(self, values: dict[str, float], *, step: int, epoch: float) -> None:
        """Append one row per value, in one write, except values logged at this step before the run resumed."""
        rows = [_Row(epoch, step, name, value) for name, value in values.items() if (step, name) not in self._logged]
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(_text(rows))


def read_metrics(path: str | PathLike[str]) -> dict[str, list[tuple[int, float, float]]]:
    """Every metric's (step, epoch, value) in the order logged, without an incomplete last line.

    Raises:
        ValueError: the file is not a metrics file.
        OSError: it cannot be read.
    """
    found: dict[str, list[tuple[int, float, float]]] = {}
    for row in _rows(Path(path), largest=_LARGEST):
        found.setdefault(row.name, []).append((row.step, row.epoch, row.value))
    return found


def _rows(path: Path, *, largest: int) -> Iterator[_Row]:
    """The rows, one at a time, without an incomplete last line."""
    try:
        check_size(path, largest=largest)
    except ValueError as error:
        raise ValueError(f"{path}: expected a metrics file, got {error}") from error
    with path.open(encoding="utf-8", newline="\n") as file:
        lines = csv.reader(_lines(file))
        try:
            header = tuple(next(lines, ()))
            if header != _HEADER:
                raise ValueError(
                    f"{path}: expected a metrics file with the header {','.join(_HEADER)}, got {','.join(header)!r}"
                )
            for line in lines:
                try:
                    epoch, step, name, value = line
                    yield _Row(float(epoch), int(step), name, float(value))
                except ValueError:
                    raise csv.Error(str(line)) from None
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: expected a metrics file, got a file that is not UTF-8 text") from error
        except csv.Error as error:
            raise ValueError(f"{path}: expected epoch,step,name,value in line {lines.line_num}, got {error}") from error


def _lines(file: TextIO) -> Iterator[str]:
    """The complete lines."""
    while (line := file.readline(_LONGEST_LINE)).endswith("\n"):
        yield line
    if len(line) == _LONGEST_LINE:
        raise csv.Error(f"{_LONGEST_LINE} characters or more")


def _text(rows: Sequence[tuple[object, ...]]) -> str:
    text = io.StringIO()
    # csv writes floats by their repr, which reads back exactly.
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
