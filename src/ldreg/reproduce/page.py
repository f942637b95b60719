"""Studies on a terminal and on a page, with their figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ldreg.io.files import write_atomically
from ldreg.report.pages import Section, study_page
from ldreg.report.style import plain_style, save_figure
from ldreg.report.tables import Table, table_markdown, table_text
from ldreg.reproduce.document import intro, picture_name, study_words
from ldreg.reproduce.drawings import Figures, cloud_figure, cloud_table, clouds, drawings
from ldreg.reproduce.statistics import Records
from ldreg.reproduce.studies import Scale, Study
from ldreg.reproduce.tables import study_table
from ldreg.text import filled, markdown_text

_NO_ROWS = "No row of it is of these methods."


@dataclass(frozen=True)
class StudyReport:
    """A study with its table, figures and sentences, to be printed and put on a page."""

    study: Study
    table: Table
    figures: Figures
    words: str

    @property
    def text(self) -> str:
        """What the study shows and what came of it, in paragraphs."""
        return f"{self.study.text}\n\n{self.words}" if self.words else self.study.text


@plain_style()
def study_reports(studies: Sequence[Study], scale: Scale, records: Records) -> list[StudyReport]:
    """Tables, figures and sentences of what has been measured."""
    found = []
    for study in studies:
        plane = bool(clouds(study.name))
        table = cloud_table(study.name) if plane else study_table(study, scale, records)
        figures = cloud_figure(study.name) if plane else drawings(study, scale, records)
        found.append(StudyReport(study, table, figures, study_words(study, scale, records, table)))
    return found


def as_text(reports: Sequence[StudyReport], *, width: int, color: bool) -> str:
    """All tables for a terminal."""
    parts = []
    for report in reports:
        words = f"\n{filled(report.words, width)}" if report.words else ""
        table = table_text(report.table, width=width, color=color) if report.table.rows else _NO_ROWS
        parts.append(f"{report.study.title}\n\n{table}{words}\n")
    return "\n".join(parts)


@plain_style()
def write_page(reports: Sequence[StudyReport], scale: Scale, out: Path, *, name: str, title: str, origin: str) -> Path:
    """Write a page and Markdown of this name, and every figure as PNG and PDF, into `out`; the page's path.

    Raises:
        OSError: a file cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    markdown, sections = [f"# {title}", intro(scale)], list[Section]()
    for report in reports:
        markdown += [f"## {report.study.title}", report.text, table_markdown(report.table)]
        for caption, figure in report.figures.items():
            picture = picture_name(report.study.name, caption)
            save_figure(figure, out / "figures" / picture)
            markdown.append(f"![{report.study.title}](figures/{picture}.png)")
        sections.append(Section(report.study.title, report.text, report.table, report.figures))
    footer = [markdown_text(line) for line in origin.split("\n\n")]
    write_atomically(out / f"{name}.md", "\n\n".join([*markdown, *footer]) + "\n")
    page = out / f"{name}.html"
    write_atomically(page, study_page(title, intro(scale), sections, footer=origin))
    return page
