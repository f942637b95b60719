"""What LDReg costs: images per second with and without it, from records of `ldreg bench step`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ldreg.bench.measure import Measurement
from ldreg.bench.results import Result, Run, from_json, machine, method, quantity, title
from ldreg.io.files import read_text
from ldreg.report.tables import Cell, Table, table_markdown
from ldreg.text import count, markdown_text, printable

_ABSENT = "Images per second with and without LDReg in the same process (step-*.json by ldreg bench step)"
_INTRO = (
    "Images per second with LDReg and without it, in blocks of steps that take turns within one process, and what "
    "LDReg adds to the time of a step. In parentheses what it would be by the fastest and by the slowest block with "
    "LDReg; where one is below 0 and the other above, it is within noise. Who has no LDReg was measured without it "
    "alone."
)
_WHO = {
    "ldreg": "ldreg: as ldreg pretrain trains",
    "authors' LDReg": "authors' LDReg: the same with the paper's Algorithms 1 and 2 in the place of ours",
    "lightly": "lightly: its own recipe, transform and loop",
}
_COLUMNS = ("Who", "Batch", "With LDReg, images/s", "Without, images/s", "LDReg adds, %")


@dataclass(frozen=True)
class StepCost:
    """Markdown on the time that LDReg takes, names of the records it is from, and what is missing."""

    texts: Sequence[str] = ()
    shown: frozenset[str] = frozenset()
    absent: Sequence[str] = ()


def step_cost(results: Path) -> StepCost:
    """Tables of all records of `ldreg bench step` in a folder, which are named `step-*.json`.

    Raises:
        ValueError: a file is not the record of one run of that benchmark, or nothing was measured in it.
        OSError: a file cannot be read.
    """
    paths = sorted(results.glob("step-*.json"))
    if not paths:
        return StepCost(absent=[_ABSENT])
    texts = [text for path in paths for text in read_step_cost(path)]
    return StepCost([_INTRO, *texts], frozenset(path.stem for path in paths))


def read_step_cost(path: Path) -> list[str]:
    """The heading, table and origin of one record. Raises ValueError, OSError."""
    try:
        runs = from_json(read_text(path))
        if [run.benchmark for run in runs if run.measured] != ["step"] or len(runs) > 1:
            raise ValueError(f"runs of {', '.join(run.benchmark for run in runs if run.measured) or 'nothing'}")
        return _texts(runs[0])
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:  # as of a foreign file
        found = printable(" ".join(f"{type(error).__name__}: {error}".split()))
        raise ValueError(f"{path}: expected a run of ldreg bench step as its --json has it, got {found}") from error


def _texts(run: Run) -> list[str]:
    rows = [_row(result, found) for result in run.results if (found := result.measured) is not None]
    who = "; ".join(_WHO[name] for name in dict.fromkeys(row[0].text for row in rows) if name in _WHO)
    skipped = dict.fromkeys(f"{result.contender} ({result.skipped})" for result in run.results if not result.measured)
    texts = [
        f"### {markdown_text(title(run))}",
        table_markdown(Table(_COLUMNS, rows, keys=2)),
        f"{markdown_text(who)}." if who else "",
        f"Not measured: {markdown_text('; '.join(skipped))}." if skipped else "",
        f"`{printable(run.command)}`",
        markdown_text(machine(run)),
        markdown_text(method(run)),
    ]
    return [text for text in texts if text]


def _row(result: Result, measured: Measurement) -> list[Cell]:
    """A contender with LDReg, without, and what LDReg adds; one that has no LDReg was measured without it."""
    rate = count(round(quantity(result, "img/s") or 0))
    names = [Cell(result.contender), Cell(str(result.size))]
    share, without = quantity(result, "LDReg"), measured.without
    if share is None or without is None:
        return [*names, Cell("–"), Cell(rate), Cell("–")]
    extremes = [bound(measured.seconds) / without - 1 for bound in (min, max)] if len(measured.seconds) > 1 else []
    return [*names, Cell(rate), Cell(count(round(result.size.images / without))), _added(share, *extremes)]


def _added(share: float, *extremes: float) -> Cell:
    """What LDReg adds in percent: by the median block, and by the fastest and the slowest where there are several.

    >>> _added(0.043, 0.013, 0.071).text, _added(-0.0001).text, _added(0.001, -0.004, 0.002).mark
    ('4.3 (1.3 to 7.1)', '0.0', 'noise')
    """
    between = " to ".join(f"{100 * extreme:z.1f}" for extreme in extremes)
    within = bool(extremes) and min(extremes) <= 0 <= max(extremes)
    return Cell(f"{100 * share:z.1f}" + (f" ({between})" if between else ""), mark="noise" if within else "")
