"""The metrics file: one row per number, only ever appended to, and cut back where a run resumes."""

import csv
import io
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from ldreg.reporting.files import write_atomically

_HEADER = ("epoch", "step", "name", "value")


class _Row(NamedTuple):
    epoch: float
    step: int
    name: str
    value: float


class MetricsLog:
    """A CSV file with the columns epoch, step, name, value; epoch counts those completed, with fractions.

    A row per number lets a run log what an earlier version did not, and each write is on disk when it returns. Where a
    run begins, `resume` must be called first.

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
        self._kept: set[tuple[int, str]] = set()

    def resume(self, step: int) -> None:
        """Make the file what it was at that step: rows of later steps go, and all rows where the run begins anew at 0.

        A last line that was cut off goes too.

        Raises:
            ValueError: the file is not a metrics file.
            OSError: it cannot be read or written.
        """
        rows = [row for row in _read(self.path) if row.step <= step] if step > 0 and self.path.exists() else []
        write_atomically(self.path, _text([_HEADER, *rows]))
        self._kept = {(row.step, row.name) for row in rows if row.step == step}

    def write(self, values: dict[str, float], *, step: int, epoch: float) -> None:
        """Append one row per value, in one write; what was logged at this step before the run resumed stays as it is.

        Raises:
            OSError: the file cannot be written.
        """
        rows = [_Row(epoch, step, name, value) for name, value in values.items() if (step, name) not in self._kept]
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(_text(rows))


def read_metrics(path: str | PathLike[str]) -> dict[str, list[tuple[int, float, float]]]:
    """Every metric's (step, epoch, value) in the order logged; a last line that is still being written is left out.

    Raises:
        ValueError: the file is not a metrics file.
        OSError: it cannot be read.
    """
    found: dict[str, list[tuple[int, float, float]]] = {}
    for row in _read(Path(path)):
        found.setdefault(row.name, []).append((row.step, row.epoch, row.value))
    return found


def _read(path: Path) -> list[_Row]:
    with path.open(encoding="utf-8", newline="") as file:
        whole, _, _ = file.read().rpartition("\n")
    lines = csv.reader(io.StringIO(whole))
    header = tuple(next(lines, ()))
    if header != _HEADER:
        raise ValueError(
            f"{path}: expected a metrics file with the header {','.join(_HEADER)}, got {','.join(header)!r}"
        )
    rows = []
    for line in lines:
        try:
            epoch, step, name, value = line
            rows.append(_Row(float(epoch), int(step), name, float(value)))
        except ValueError:
            raise ValueError(f"{path}: expected epoch,step,name,value in line {lines.line_num}, got {line}") from None
    return rows


def _text(rows: Sequence[tuple[object, ...]]) -> str:
    text = io.StringIO()
    # csv writes floats by their repr, which reads back as the same number.
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
