"""The table of a study in a terminal."""

from collections.abc import Sequence
from io import StringIO
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ldreg.report.study_table import MARKS, StudyTable, legend
from ldreg.text import broken, printable

_KEY_WIDTH = 26  # columns of a terminal that the name of a row has at least before the table is broken
_GAP = 3  # columns of a terminal between two columns of a table


def table_text(table: StudyTable, *, width: int = 80, color: bool = False) -> str:
    """The table as lines of at most `width` columns, in several parts where it is wider, with its legend."""
    console = Console(
        file=StringIO(), width=width, force_terminal=color, color_system="standard" if color else None, highlight=False
    )
    widths = _widths(table, width)
    blocks = _blocks(table, widths, width)
    parts: list[RenderableType] = [part for block in blocks for part in (_block(table, block, widths), "")]
    with console.capture() as capture:
        console.print(Group(*parts, Text(legend(table, "In parentheses: the paper's values."), style="dim")))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()).rstrip()


def _widths(table: StudyTable, width: int) -> list[int]:
    """What each column takes in a terminal: names of columns and rows are whole where all fits beside each other.

    Else the names of columns are broken first, then those of rows.
    """
    names = [max(map(cell_len, _key_texts(table, place))) for place in range(table.keys)]
    values = [_value_width(table, place) for place in range(table.keys, len(table.columns))]
    titles = [cell_len(printable(title)) for title in table.columns[table.keys :]]
    whole = [*names, *map(max, values, titles)]
    if sum(whole) + _GAP * len(whole) <= width:
        return whole
    room = width - sum(values) - _GAP * len(whole)
    least = max(_KEY_WIDTH, width // (3 * table.keys))
    while sum(names) > room and max(names) > least:
        names[names.index(max(names))] -= 1
    return [min(each, width) for each in (*names, *values)]  # a column alone may still be too wide


def _blocks(table: StudyTable, widths: Sequence[int], width: int) -> list[list[int]]:
    """Places of the value columns, in as many groups as the width asks for."""
    room = width - sum(widths[place] + _GAP for place in range(table.keys))
    groups: list[list[int]] = []
    left = -1
    for place in range(table.keys, len(table.columns)):
        need = widths[place] + _GAP
        if need > left:
            groups.append([])
            left = room
        groups[-1].append(place)
        left -= need
    return groups or [[]]


def _value_width(table: StudyTable, place: int) -> int:
    """What a column of values needs: its longest cell, or the longest word of its name."""
    cells = [cell.cell_len for cell in _values(table, place)]
    return max(*cells, *map(cell_len, printable(table.columns[place]).split()), 1)


def _key_texts(table: StudyTable, place: int) -> list[str]:
    return [printable(table.columns[place]), *(printable(row[place].text) for row in table.rows)]


def _values(table: StudyTable, place: int) -> list[Text]:
    """The cells of a column, one below the other: value, mark and the paper's value each have a place of their own."""
    cells = [row[place] for row in table.rows]
    longest = max((cell_len(printable(cell.text)) for cell in cells), default=0)
    paper = max((cell_len(printable(cell.paper)) for cell in cells), default=0)
    marked = any(cell.mark for cell in cells)
    texts = []
    for cell in cells:
        text = Text(_padded(cell.text, longest), style="bold")
        if marked:
            symbol, _, color = MARKS.get(cell.mark, (" ", "", ""))
            text.append(f" {symbol}", style=color)
        if paper:
            beside = f"({printable(cell.paper)})" if cell.paper else ""
            text.append(" " + _padded(beside, paper + 2), style="not bold dim")
        texts.append(text)
    return texts


def _padded(text: str, length: int) -> str:
    text = printable(text)
    return " " * (length - cell_len(text)) + text


def _block(table: StudyTable, places: Sequence[int], widths: Sequence[int]) -> Table:
    drawn = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1))
    columns = []
    for place in (*range(table.keys), *places):
        side: Literal["left", "right"] = "left" if place < table.keys else "right"
        most = widths[place]
        drawn.add_column(Text(printable(table.columns[place]), justify=side), width=most, overflow="fold")
        columns.append(_keys(table, place, most) if place < table.keys else _pushed(_values(table, place), most))
    for cells in zip(*columns, strict=True):
        drawn.add_row(*cells)
    return drawn


def _keys(table: StudyTable, place: int, width: int) -> list[Text]:
    return [Text(broken(printable(row[place].text), width)) for row in table.rows]


def _pushed(texts: Sequence[Text], width: int) -> list[Text]:
    """The texts at the right end of their column; rich would first cut off the spaces that align them."""
    for text in texts:
        text.pad_left(max(0, width - text.cell_len))
    return list(texts)
