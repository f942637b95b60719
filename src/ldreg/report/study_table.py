"""A table of a study of the paper done again: measured values with the paper's beside them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ldreg.text import markdown_text

Mark = Literal["", "agrees", "disagrees", "noise"]

# What a mark looks like, what it is called, its color in a terminal.
MARKS: dict[Mark, tuple[str, str, str]] = {
    "agrees": ("✓", "same direction as in the paper", "green"),
    "disagrees": ("✗", "opposite direction", "red"),
    "noise": ("≈", "within noise", "yellow"),
}


@dataclass(frozen=True)
class StudyCell:
    """A measured value as text, the paper's value, and whether the effect that it shows is the paper's.

    Args:
        text: what was measured; or a row's name
        paper: what the paper has there, empty where it has nothing
        mark: of an effect's direction: agrees, disagrees, noise, or empty where there is none to judge
    """

    text: str
    paper: str = ""
    mark: Mark = ""

    def __post_init__(self) -> None:
        """Refuse a mark that nobody knows how to draw."""
        if self.mark not in ("", *MARKS):
            raise ValueError(f"mark: expected one of '', {', '.join(map(repr, MARKS))}, got {self.mark!r}")


@dataclass(frozen=True)
class StudyTable:
    """Rows of cells under the names of their columns; the first `keys` cells of a row name it.

    Args:
        columns: their names
        rows: as many cells each as there are columns
        keys: how many leading columns name the rows; they are repeated where a table must be broken

    Raises:
        ValueError: a row has more or fewer cells than there are columns, or `keys` is not from 1 to their number.

    >>> print(table_markdown(StudyTable(["Method", "LID"], [[StudyCell("SimCLR"), StudyCell("6.2", "15.9")]])))
    | Method | LID |
    |---|---:|
    | SimCLR | 6.2 (paper: 15.9) |
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[StudyCell]]
    keys: int = 1

    def __post_init__(self) -> None:
        """Check that every row fits the columns."""
        if not 1 <= self.keys <= len(self.columns):
            raise ValueError(f"keys: expected from 1 to {len(self.columns)}, the number of columns, got {self.keys}")
        for place, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(f"rows: expected {len(self.columns)} cells in row {place}, got {len(row)}")


def table_markdown(table: StudyTable) -> str:
    """The table in Markdown as GitHub reads it, with its legend below."""
    rows = [
        [markdown_text(column) for column in table.columns],
        ["---" if place < table.keys else "---:" for place in range(len(table.columns))],
        *([_markdown_cell(cell) for cell in row] for row in table.rows),
    ]
    lines = [f"|{'|'.join(row)}|" if place == 1 else f"| {' | '.join(row)} |" for place, row in enumerate(rows)]
    below = legend(table)
    return "\n".join([*lines, "", markdown_text(below)] if below else lines)


def legend(table: StudyTable, paper: str = "") -> str:
    """What the marks and signs mean that the table has, and where the paper's values stand."""
    used = {cell.mark for row in table.rows for cell in row}
    spread = any("±" in cell.text for row in table.rows for cell in row)
    marks = [f"{symbol} {meaning}" for mark, (symbol, meaning, _) in MARKS.items() if mark in used]
    has_paper = paper and any(cell.paper for row in table.rows for cell in row)
    return " ".join(
        filter(
            None,
            [
                f"{'; '.join(marks)}." if marks else "",
                "±: standard deviation over seeds." if spread else "",
                paper if has_paper else "",
            ],
        )
    )


def _markdown_cell(cell: StudyCell) -> str:
    paper = f"(paper: {markdown_text(cell.paper)})" if cell.paper else ""
    return " ".join(filter(None, [markdown_text(cell.text), MARKS[cell.mark][0] if cell.mark else "", paper])) or " "
