"""Tables, shown as text in a terminal or as Markdown; pages show them as HTML.

A table holds text, not numbers: each cell may carry the paper's value, a mark and a remark, which a pandas frame of
numbers cannot, and importing pandas would add a third of a second to every command that prints a table.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table as TextTable
from rich.text import Text

from ldreg.text import broken, markdown_text, printable

Mark = Literal["", "agrees", "disagrees", "noise"]

# Symbol, meaning and terminal color of each mark.
MARKS: dict[Mark, tuple[str, str, str]] = {
    "agrees": ("✓", "same direction as in the paper", "green"),
    "disagrees": ("✗", "opposite direction", "red"),
    "noise": ("≈", "within noise", "yellow"),
}

_KEY_WIDTH = 20  # terminal columns that the name of a row keeps when a table is too wide
_TITLE_WORD = 18  # terminal columns from which a word of a column's name is broken
_GAP = 3  # terminal columns between two columns of a table
_NAME_WIDTH = 21  # terminal columns of the names in a table with explanations


@dataclass(frozen=True)
class Cell:
    """A value as text, and what belongs to it.

    Args:
        text: what was measured, or the name of a row
        paper: the paper's value, if it has one
        mark: whether an effect agrees with the paper's direction; empty if there is none to judge
        remark: such as the difference to another value
    """

    text: str
    paper: str = ""
    mark: Mark = ""
    remark: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells under column names; the first `keys` cells name the row.

    Args:
        columns: their names
        rows: one cell per column each
        keys: number of leading columns that name the rows; they are repeated if a wide table is broken
        title: heading of the table
        explained: whether the last column is an explanation and not a value

    >>> print(table_markdown(Table(["Method", "LID"], [[Cell("SimCLR"), Cell("6.2", "15.9")]])))
    | Method | LID |
    |---|---:|
    | SimCLR | 6.2 (paper: 15.9) |
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    keys: int = 1
    title: str = ""
    explained: bool = False

    def values(self) -> range:
        """Places of the columns that hold values."""
        return range(self.keys, len(self.columns) - self.explained)

    def having(self, part: Literal["mark", "paper", "remark"]) -> list[bool]:
        """For each column, whether some cell has this part."""
        return [any(getattr(row[place], part) for row in self.rows) for place in range(len(self.columns))]


def legend(table: Table, paper: str = "") -> str:
    """What the marks and signs in the table mean; `paper` says where the paper's values are."""
    cells = [cell for row in table.rows for cell in row]
    used = {cell.mark for cell in cells}
    marks = "; ".join(f"{symbol} {meaning}" for mark, (symbol, meaning, _) in MARKS.items() if mark in used)
    spread = "±: standard deviation over seeds." if any("±" in cell.text for cell in cells) else ""
    return " ".join(filter(None, [marks and f"{marks}.", spread, paper if any(cell.paper for cell in cells) else ""]))


def table_markdown(table: Table) -> str:
    """The table in GitHub's Markdown, with its legend below."""
    rows = [
        [markdown_text(column) for column in table.columns],
        *([_markdown_cell(cell) for cell in row] for row in table.rows),
    ]
    head, *body = [f"| {' | '.join(row)} |" for row in rows]
    ruler = "".join(f"|{'---' if place < table.keys else '---:'}" for place in range(len(table.columns))) + "|"
    below = legend(table)
    return "\n".join([head, ruler, *body, *(["", markdown_text(below)] if below else [])])


def _markdown_cell(cell: Cell) -> str:
    paper = f"(paper: {markdown_text(cell.paper)})" if cell.paper else ""
    return " ".join(filter(None, [markdown_text(cell.text), cell.mark and MARKS[cell.mark][0], paper])) or " "


def table_text(table: Table, *, width: int = 80, color: bool = False) -> str:
    """The table in lines of at most `width` columns, in several parts if it is wider, with its legend."""
    below = Text(legend(table, "In parentheses: the paper's values."), style="dim")
    return rendered([*text_parts(table, width=width), below], width=width, color=color).rstrip()


def rendered(parts: Iterable[RenderableType], *, width: int, color: bool) -> str:
    """Parts for a terminal as lines of at most `width` columns."""
    console = Console(
        file=StringIO(), width=width, force_terminal=color, color_system="standard" if color else None, highlight=False
    )
    with console.capture() as capture:
        console.print(Group(*parts))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def text_parts(table: Table, *, width: int) -> list[RenderableType]:
    """The table for a terminal, each part followed by an empty line."""
    titles = [printable(title) for title in table.columns]
    if table.explained:
        return [_explained(table, titles), ""]
    titles[0] = titles[0] or printable(table.title)
    columns = [(_values if place in table.values() else _names)(table, place) for place in range(len(titles))]
    widths = _widths(table.keys, titles, columns, width)
    for place in table.values():
        for cell in columns[place]:  # rich would drop the leading spaces that align them
            cell.pad_left(max(0, widths[place] - cell.cell_len))
    names = list(range(table.keys))
    parts: list[RenderableType] = []
    for places in _blocks(table, widths, width):
        drawn = TextTable(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1))
        for place in [*names, *places]:
            head = Text(broken(titles[place], widths[place]), justify="right" if place in places else None)
            drawn.add_column(head, width=widths[place], overflow="fold")
        shown = [[Text(broken(cell.plain, widths[place])) for cell in columns[place]] for place in names]
        for row in zip(*shown, *(columns[place] for place in places), strict=True):
            drawn.add_row(*row)
        parts += [drawn, ""]
    return parts


def _explained(table: Table, titles: Sequence[str]) -> TextTable:
    """A table with explanations: the columns of all such tables have the same widths."""
    drawn = TextTable(box=SIMPLE_HEAD, expand=True, show_edge=False, padding=(0, 1))
    drawn.add_column(table.title or titles[0], width=_NAME_WIDTH, no_wrap=True, overflow="ellipsis")
    for place in table.values():
        width, style = (9, "bold") if place == table.keys else (8, "")
        drawn.add_column(titles[place], justify="right", width=width, style=style)
    drawn.add_column(titles[-1], ratio=1, style="dim")
    for row in zip(*(_names(table, place) for place in range(len(titles))), strict=True):
        drawn.add_row(*row)
    return drawn


def _widths(keys: int, titles: Sequence[str], columns: Sequence[Sequence[Text]], width: int) -> list[int]:
    """Terminal columns for each column: names are whole if all fits, else those of columns are broken, then of rows."""
    cells = [max((cell.cell_len for cell in column), default=1) for column in columns]
    whole = list(map(max, cells, map(cell_len, titles)))
    if sum(whole) + _GAP * len(whole) <= width:
        return whole
    words = [max((min(cell_len(word), _TITLE_WORD) for word in title.split()), default=1) for title in titles]
    names, values = whole[:keys], list(map(max, cells, words))[keys:]
    room = width - sum(values) - _GAP * len(whole)
    least = max(_KEY_WIDTH, width // (4 * keys))
    while sum(names) > room and max(names) > least:
        names[names.index(max(names))] -= 1
    return [min(each, width) for each in (*names, *values)]


def _blocks(table: Table, widths: Sequence[int], width: int) -> list[list[int]]:
    """Places of the value columns, in as many groups as the width requires."""
    room = width - sum(widths[place] + _GAP for place in range(table.keys))
    groups: list[list[int]] = []
    left = -1
    for place in table.values():
        need = widths[place] + _GAP
        if need > left:
            groups.append([])
            left = room
        groups[-1].append(place)
        left -= need
    return groups or [[]]


def _names(table: Table, place: int) -> list[Text]:
    """The cells of a column that holds words."""
    return [Text(printable(row[place].text)) for row in table.rows]


def _values(table: Table, place: int) -> list[Text]:
    """The cells of a column with text, mark, the paper's value and remark aligned."""
    cells = [row[place] for row in table.rows]
    texts = _aligned([cell.text for cell in cells])
    papers = _aligned([cell.paper and f"({cell.paper})" for cell in cells])
    remarks = _aligned([cell.remark for cell in cells])
    marked = any(cell.mark for cell in cells)
    made = []
    for cell, text, paper, remark in zip(cells, texts, papers, remarks, strict=True):
        shown = Text(text, style="bold")
        if marked:
            symbol, _, color = MARKS.get(cell.mark, (" ", "", ""))
            shown.append(f" {symbol}", style=color)
        if paper:
            shown.append(f" {paper}", style="not bold dim")
        if remark:
            shown.append(f"  {remark}", style="not bold dim")
        made.append(shown)
    return made


def _aligned(texts: Sequence[str]) -> list[str]:
    """Texts of one width, on the right."""
    texts = [printable(text) for text in texts]
    width = max(map(cell_len, texts), default=0)
    return [" " * (width - cell_len(text)) + text for text in texts]
