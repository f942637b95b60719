"""A study of the paper done again, as a page; its tables also as text and as Markdown."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from matplotlib.figure import Figure

from ldreg.report.figures import svg
from ldreg.report.page import document, escaped, figure_card
from ldreg.report.study_table import MARKS, Mark, StudyCell, StudyTable, legend, table_markdown
from ldreg.report.study_text import table_text
from ldreg.text import markdown_text
from ldreg.version import __version__

__all__ = [
    "STUDY_STYLE",
    "Mark",
    "StudyCell",
    "StudyTable",
    "markdown_text",
    "study_page",
    "study_section",
    "table_html",
    "table_markdown",
    "table_text",
]

_LISTED = 4  # a page with as many studies starts with their list
_WIDE = 6.0  # inches; wider figures take the whole row of a page

STUDY_STYLE = """
main { max-width: 80rem; }
section { margin-top: 2.6rem; scroll-margin-top: 1rem; }
section h2 { font-size: 1.25rem; margin: 0 0 .4rem; }
section .card, section .figures { margin-top: .9rem; }
nav ul { list-style: none; margin: 1rem 0 0; padding: 0; columns: 20rem; column-gap: 1.5rem; }
nav li { break-inside: avoid; }
nav a { display: inline-block; padding: .2rem 0; color: var(--ink); text-decoration-color: var(--soft);
  text-underline-offset: .2em; }
.study { border-collapse: separate; border-spacing: 0; }
.study td, .study th { padding-left: .5rem; vertical-align: top; }
.study tr > :first-child { padding-left: 0; position: sticky; left: 0; background: var(--card); }
.study th[scope=row] { min-width: 6rem; overflow-wrap: break-word; }
.study thead th { vertical-align: bottom; overflow-wrap: break-word; }
.study td.n:nth-child(2) { font-weight: 400; }
.study td small { display: block; color: var(--soft); font-size: .8rem; line-height: 1.3; }
.mark { display: inline-block; min-width: 1.1em; margin-left: .25em; text-align: center; font-weight: 600; }
.mark.agrees { color: #2a8a5f; } .mark.disagrees { color: #d6455d; } .mark.noise { color: var(--soft); }
.legend { color: var(--soft); font-size: .85rem; margin: .5rem 0; }
figure.wide { grid-column: 1 / -1; max-width: none; overflow-x: auto; }
figure.wide svg { min-width: 40rem; max-width: 64rem; }
"""

_NUMBER = ' class="n"'


def table_html(table: StudyTable, *, title: str = "") -> str:
    """The table in a card that scrolls where it is wider than the page, with its legend below; for `STUDY_STYLE`."""
    names = "".join(
        f'<th scope="col"{"" if place < table.keys else _NUMBER}>{escaped(column)}</th>'
        for place, column in enumerate(table.columns)
    )
    marked = [any(row[place].mark for row in table.rows) for place in range(len(table.columns))]
    body = "".join(f"<tr>{''.join(_html_cells(row, table.keys, marked))}</tr>" for row in table.rows)
    caption = f"<caption>{escaped(title)}</caption>" if title else ""
    below = legend(table)
    return (
        f'<div class="card"><table class="study">{caption}<thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>'
        + (f'<p class="legend">{escaped(below)}</p>' if below else "")
        + "</div>"
    )


def study_section(title: str, text: str, table: StudyTable | None, figures: Mapping[str, Figure]) -> str:
    """A part of a page: heading, paragraphs of plain text (apart by an empty line), table, figures by their titles.

    A title may have a caption after a line break.
    """
    name = _slug(title)
    cards = "".join(
        _figure(caption, figure, f"{name}-{place}") for place, (caption, figure) in enumerate(figures.items())
    )
    return (
        f'<section id="{name}"><h2>{escaped(title)}</h2>{_paragraphs(text)}'
        + (table_html(table) if table is not None and table.rows else "")
        + (f'<div class="figures">{cards}</div>' if cards else "")
        + "</section>"
    )


def study_page(title: str, intro: str, sections: Iterable[str], *, footer: str = "") -> str:
    """A page of sections that `study_section` made, under a list of them where there are many.

    Args:
        title: heading of the page, plain text.
        intro: paragraphs of plain text, apart by an empty line.
        sections: HTML each.
        footer: plain text such as where the numbers come from.
    """
    parts = list(sections)
    closing = f"<footer>{_paragraphs(footer)}<p>ldreg {escaped(__version__)}</p></footer>"
    body = [f"<h1>{escaped(title)}</h1>", _paragraphs(intro), _contents(parts), *parts, closing]
    return document(escaped(title), body, style=STUDY_STYLE)


def _html_cells(row: Sequence[StudyCell], keys: int, marked: Sequence[bool]) -> Iterator[str]:
    """The cells of a row; in columns that have marks, cells without one leave its room."""
    for place, cell in enumerate(row):
        kind = _NUMBER if place >= keys else ""
        mark = '<span class="mark"></span>' if marked[place] else ""
        if cell.mark:
            symbol, meaning, _ = MARKS[cell.mark]
            mark = f'<span class="mark {cell.mark}" role="img" aria-label="{meaning}" title="{meaning}">{symbol}</span>'
        paper = f"<small>paper: {escaped(cell.paper)}</small>" if cell.paper else ""
        tag, scope = ("th", ' scope="row"') if place == 0 else ("td", "")
        yield f"<{tag}{scope}{kind}>{escaped(cell.text)}{mark}{paper}</{tag}>"


def _figure(caption: str, figure: Figure, name: str) -> str:
    title, _, remark = caption.partition("\n")
    card = figure_card(escaped(title), escaped(remark), svg(figure, name))
    return card.replace("<figure>", '<figure class="wide">', 1) if figure.get_figwidth() > _WIDE else card


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{escaped(' '.join(part.split()))}</p>" for part in re.split(r"\n\s*\n", text) if part.strip())


def _contents(sections: Sequence[str]) -> str:
    """Links to the sections, by the headings that they start with."""
    found = [match.groups() for part in sections if (match := re.match(r'<section id="([^"]+)"><h2>(.*?)</h2>', part))]
    links = "".join(f'<li><a href="#{name}">{heading}</a></li>' for name, heading in found)
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>' if len(found) >= _LISTED else ""


def _slug(title: str) -> str:
    """A name for an address on the page.

    >>> _slug("Table 1: linear evaluation"), _slug("β")
    ('table-1-linear-evaluation', 'study')
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "study"
