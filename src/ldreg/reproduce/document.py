"""Studies as text, as a page, and as one Markdown document made from records alone."""

import hashlib
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

from matplotlib.figure import Figure

from ldreg.io.files import check_writable, has_content, write_atomically
from ldreg.record import Record
from ldreg.report import pages
from ldreg.report.style import plain_style, save_figure
from ldreg.report.tables import Cell, Mark, Table, table_markdown, table_text
from ldreg.reproduce.claims import claims
from ldreg.reproduce.drawings import drawings
from ldreg.reproduce.jobs import Job, read_records, record_paths
from ldreg.reproduce.plane import CLOUDS, cloud_figure, cloud_table
from ldreg.reproduce.statistics import Section, collapses, sample
from ldreg.reproduce.studies import DETECTION, PROSE, SCALES, STUDIES, TRANSFER, Arm, Options, Records, Scale, Study
from ldreg.reproduce.tables import (
    MARK_WORDS,
    NO_STEP_COST,
    NOTHING,
    OVERVIEW,
    column_title,
    difference_table,
    effects_sentence,
    origins,
    overview_row,
    row_name,
    step_cost,
    study_table,
    value_text,
)
from ldreg.text import counted, filled, markdown_text

NOTES = "notes.md"  # beside the records: what people say of the runs
_OPENING = "# The LDReg paper at the scale of"  # how every document begins
_OTHER_METRICS = ("linear", "effective_rank", "lid", "knn")
_BY_METHOD = ("table1", "methods")  # the studies that have every method without and with LDReg
_NO_ROWS = "No row of it is of these methods."
_NO_TABLE = Table((), ())
_RESOLUTION = 110  # dots per inch of a picture


@dataclass(frozen=True)
class Document:
    """A Markdown text with its pictures."""

    text: str
    pictures: Mapping[str, bytes]  # PNG files by their names, for the folder `images/NAME` beside it
    studies: int  # how many it shows
    shown: Sequence[str]  # names of the records that it shows
    unused: Sequence[str]  # names of the other JSON files in the folder of records


def document(
    studies: Sequence[Study],
    scale: Scale,
    results: Path,
    *,
    settings: Options = (),
    what: str,
    folder: str,
    one_length: bool = False,
) -> Document:
    """Everything that the records in a folder say of these studies, all seeds.

    A study is shown at the number of epochs that has most of its records.

    Args:
        studies: in the order of the text.
        scale: of the runs; one with other epochs than usual looks for those alone.
        results: folder of the records.
        settings: that every run was given over its recipe.
        what: the studies as the command names them.
        folder: of the pictures, from where the text is.
        one_length: whether only runs of the scale's epochs count, also where it is the usual one.

    Raises:
        ValueError: no study has records, or a record has other settings than its name says.
        OSError: a record cannot be read.
    """
    paths = record_paths(results)
    scales = [scale] if one_length else [scale, *_other_lengths(scale, paths)]
    trained = [study for study in studies if study.rows(scale)]
    arms = dict.fromkeys(row.arm for study in trained for length in scales for row in study.rows(length))
    records = read_records(arms, paths, settings)
    sections = [section for study in trained for section in _sections(study, scales, records)]
    if not sections:
        raise ValueError(f"{results}: expected records of these studies, got none; --plan lists their runs")
    names = [section.study.name for section in sections]
    costs = sorted(results.glob("step-*.json")) if "wallclock" in names else []
    pictures: dict[str, bytes] = {}
    texts, compared = list[str](), set[tuple[Arm, Arm, str]]()
    with plain_style():
        for section in sections:
            texts += _section_texts(section, pictures, quote(folder), differences=not section.effects <= compared)
            texts += step_cost(costs) if section.study.name == "wallclock" else []
            compared |= section.effects
    shown = {name: record for section in sections for name, record in section.runs.items()}
    unused = sorted({path.stem for path in results.glob("*.json")} - shown.keys() - {path.stem for path in costs})
    absent = [study.title for study in trained if study.name not in names]
    absent += [NO_STEP_COST] if "wallclock" in names and not costs else []
    length = [("epochs", str(scale.epochs))] if one_length or scale != SCALES[scale.name] else []
    given = [word for key, value in [*length, *settings] for word in (f"--{key}", value)]
    command = shlex.join(["ldreg", "reproduce", what, "--scale", scale.name, *given])
    missing = "\n".join(f"- {markdown_text(title)}: no runs of its own yet" for title in absent)
    notes = _notes(results)
    parts = [
        f"{_OPENING} {scale.name}",
        intro(scale),
        PROSE["read_notes"] if notes else "",
        *(_overview(sections) if len(sections) > 1 else []),
        *texts,
        *notes,
        *(["## What is missing", missing] if absent else []),
        *_others(results, unused),
        "## Where the numbers come from",
        markdown_text(f"{len(shown)} runs; {_origins(shown.values())}."),
        f"Written from the records of these runs by `{command} --results FOLDER --write FILE`, not by hand.",
    ]
    text = "\n\n".join(part for part in parts if part) + "\n"
    return Document(text, pictures, len(sections), sorted(shown), unused)


def _origins(records: Collection[Record]) -> str:
    commits, hardware, seeds, epochs = (origins(records, key) for key in ("commit", "hardware", "seed", "epochs"))
    return f"commits {commits or 'unknown'}; on {hardware}; seeds {seeds}; epochs {epochs}"


def _other_lengths(scale: Scale, names: Iterable[str]) -> list[Scale]:
    """The scale with the other numbers of epochs in names of records; none where a number was asked for."""
    if scale != SCALES[scale.name]:
        return []
    lengths = {int(found[1]) for name in names if (found := re.search(r"-epochs(\d+)(?=-|$)", name))}
    return [scale.with_epochs(epochs) for epochs in sorted(lengths - {0, scale.epochs})]


def _sections(study: Study, scales: Sequence[Scale], records: Records) -> list[Section]:
    """The study at the number of epochs with most records, or at each; none without a record of its own.

    A study about runs of its own, such as a sweep, needs one of them: the methods as they are, which it shares with
    Table 1 or with the search, show nothing of it.
    """
    shared = {row.arm for scale in scales for row in STUDIES["figure2a"].rows(scale)}
    if study.name != "search":
        shared |= {row.arm for scale in scales for row in STUDIES["search"].rows(scale) if row.baseline is None}

    def known(scale: Scale) -> Records:
        found = {row.arm: records.get(row.arm, ()) for row in study.rows(scale)}
        shown = study.metrics_at(scale)
        return {
            arm: some
            for arm, some in found.items()
            if collapses(some) or any(sample(some, key).values for key in shown)
        }

    def extent(scale: Scale) -> tuple[int, int]:
        arms = {row.arm for row in study.rows(scale)}
        own = arms if study.measures & {TRANSFER, DETECTION} else arms - shared
        return len(known(scale).keys() & own if own else known(scale)), len(known(scale))

    # The best is the first of equals, which is the scale as it is. Other lengths may stand for the same runs.
    lengths = scales if study.every_length else [max(scales, key=extent)]
    found = {tuple(row.arm for row in rows): scale for scale in reversed(lengths) if (rows := study.rows(scale))}
    sections = [Section(study, scale, known(scale)) for scale in found.values() if extent(scale)[0]]
    if len(sections) < 2:
        return sections
    by_epochs = {Job(section.rows[0].arm, 0).settings.schedule.epochs: section for section in sections}
    titled = list[Section]()
    for epochs in sorted(by_epochs):
        text = "The same with longer runs." if titled else study.text
        own = replace(study, title=f"{study.title}, at {epochs} epochs", text=text)
        titled.append(replace(by_epochs[epochs], study=own))
    return titled


def intro(scale: Scale) -> str:
    """What was measured and how effects are judged, in paragraphs."""
    return "\n\n".join(PROSE["intro"]).format(k=scale.k, linear=PROSE["linear"][scale.linear])


def _overview(sections: Sequence[Section]) -> list[str]:
    rows, marks = [], dict[str, list[Mark]]()
    for section in sections:
        rows.append(overview_row(section, [mark for claim in claims(section) for mark in claim.marks]))
        if section.study.name in _BY_METHOD:
            table = study_table(section)
            for title, cells in zip(table.columns, zip(*table.rows, strict=True), strict=True):
                marks.setdefault(title, []).extend(cell.mark for cell in cells if cell.mark)
    counted = [
        f"{title.partition(',')[0]} "
        + ", ".join(f"{word} {found.count(mark)}" for mark, word in MARK_WORDS.items() if mark in found)
        for title, found in marks.items()
        if found
    ]
    verdict = f"For how many methods LDReg does what it does in the paper: {'; '.join(counted)}." if counted else ""
    return ["## At a glance", verdict, table_markdown(Table(OVERVIEW, rows)), PROSE["counted"]]


def _section_texts(section: Section, pictures: dict[str, bytes], folder: str, *, differences: bool) -> list[str]:
    """Heading, text, tables and links to pictures, which are added to `pictures`."""
    study, runs = section.study, section.runs.values()
    missing = [row_name(row) for row in section.rows if not section.of(row)]
    epochs, several = origins(runs, "epochs"), len(missing) > max(len(section.rows) - len(missing), 8)
    texts = [
        f"## {study.title}",
        study.text,
        _words(section, study_table(section)),
        table_markdown(study_table(section, with_seeds=True)),
        counted(len(runs), "run") + (f" of {epochs} epochs." if epochs else "."),
        f"Not measured: {markdown_text('; '.join(missing))}." if missing and not several else "",
        f"Not measured: {len(missing)} of {len(section.rows)} rows; `--plan` lists their runs." if several else "",
    ]
    compared = difference_table(section)
    if differences and compared.rows:
        texts += [PROSE["noise"], table_markdown(compared)]
    for caption, figure in drawings(section).items():
        title, _, remark = caption.partition("\n")
        name = f"{_picture_name(study.name, caption)}.png"
        pictures[name] = _png(figure, section)
        texts += [f"![{markdown_text(title)}]({folder}/{name})", markdown_text(remark)]
    return [text for text in texts if text]


def _words(section: Section, table: Table) -> str:
    """What came of a study, in sentences."""
    words = [effects_sentence(table), *(claim.words for claim in claims(section))]
    return " ".join(text for text in words if text)


def _notes(results: Path) -> list[str]:
    """What people wrote beside the records. Raises OSError, ValueError."""
    path = results / NOTES
    if not path.is_file():
        return []
    try:
        text = path.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected text in UTF-8, got other bytes ({error})") from error
    return ["## About these runs", text] if text else []


def _others(results: Path, names: Sequence[str]) -> list[str]:
    """What the other records say, and which files are no records. Raises OSError."""
    cells, foreign = [], []
    for name in names:
        try:
            record = Record.from_json(results / f"{name}.json")
        except ValueError:
            foreign.append(name)
            continue
        values = [value_text(metric, sample([record], metric)) for metric in _OTHER_METRICS]
        split = "validation" if record.settings.get("data.validation") else "test"
        cells.append([*map(Cell, (name, split, str(record.origin.get("epochs", NOTHING)), *values))])
    columns = ["Record", "Images that judge", "Epochs", *map(column_title, _OTHER_METRICS)]
    parts = ["## Other records", PROSE["others"], table_markdown(Table(columns, cells))] if cells else []
    return parts + ([f"Files that are no records of runs: {markdown_text(', '.join(foreign))}."] if foreign else [])


def _png(figure: Figure, section: Section) -> bytes:
    """The picture, with a digest of the records that it is drawn from."""
    records = [record for row in section.rows for record in section.of(row)]
    drawn = [(record.name, record.results, record.curves, record.tsne, record.tsne_labels) for record in records]
    buffer = BytesIO()
    facts = {"Software": None, "Source": hashlib.sha256(repr(drawn).encode()).hexdigest()}
    figure.savefig(buffer, format="png", dpi=_RESOLUTION, facecolor="white", metadata=facts)
    return buffer.getvalue()


def check_replaceable(path: Path) -> None:
    """Check that a document can be written there and replaces nothing but a document. Raises ValueError, OSError."""
    check_writable(path)
    if has_content(path):
        with path.open("rb") as file:
            if file.read(len(_OPENING)) != _OPENING.encode():
                raise ValueError(f"cannot write {str(path)!r}: it is there and no text of ldreg reproduce --write")


def write_document(made: Document, path: Path) -> None:
    """Write the text to `path` and its pictures to `picture_folder(path)` beside it. Raises OSError."""
    folder = path.parent / picture_folder(path)
    if made.pictures:
        folder.mkdir(parents=True, exist_ok=True)
    for name, content in made.pictures.items():
        write_atomically(folder / name, content)
    write_atomically(path, made.text)


def picture_folder(path: Path) -> str:
    """The folder of a document's pictures, from its own folder.

    >>> picture_folder(Path("docs/results.md"))
    'images/results'
    """
    return f"images/{path.stem}"


def _picture_name(study: str, caption: str) -> str:
    """The name for the files of a figure.

    >>> _picture_name("ablation", "Linear accuracy and β")
    'ablation-linear-accuracy-and-beta'
    """
    title = caption.partition("\n")[0].lower().replace("β", "beta")
    return f"{study}-{re.sub(r'[^a-z0-9]+', '-', title).strip('-')}"


@dataclass(frozen=True)
class StudyReport(pages.Section):
    """A study as a part of a page."""

    table: Table = _NO_TABLE
    study: str = ""  # its name on the command line
    words: str = ""  # what came of it; a part of the text


@plain_style()
def study_reports(studies: Sequence[Study], scale: Scale, records: Records) -> list[StudyReport]:
    """Tables, figures and sentences of what has been measured.

    Rows that `records` does not know are left out, and so are studies that this scale does not have.
    """
    found = []
    for study in studies:
        if study.rows(scale):
            section = Section(study, scale, records)
            table = study_table(section)
            words, figures = _words(section, table), drawings(section)
            pairs = zip(section.rows, table.rows, strict=True)
            table = replace(table, rows=[cells for row, cells in pairs if row.arm in records])
        elif study.name in CLOUDS:
            table, figures, words = cloud_table(study.name), cloud_figure(study.name), ""
        else:
            continue
        text = f"{study.text}\n\n{words}" if words else study.text
        found.append(StudyReport(study.title, text, table, figures, study=study.name, words=words))
    return found


def as_text(reports: Sequence[StudyReport], *, width: int, color: bool) -> str:
    """All tables for a terminal."""
    parts = []
    for report in reports:
        words = f"\n{filled(report.words, width)}" if report.words else ""
        table = table_text(report.table, width=width, color=color) if report.table.rows else _NO_ROWS
        parts.append(f"{report.title}\n\n{table}{words}\n")
    return "\n".join(parts)


@plain_style()
def write_page(
    reports: Sequence[StudyReport], scale: Scale, out: Path, *, name: str, command: str, records: Records
) -> Path:
    """Write a page and Markdown of this name, and every figure as PNG and PDF, into `out`; the page's path."""
    out.mkdir(parents=True, exist_ok=True)
    title = f"The LDReg paper at the scale of {scale.name}"
    markdown = [f"# {title}", intro(scale)]
    for report in reports:
        markdown += [f"## {report.title}", report.text, table_markdown(report.table)]
        for caption, figure in report.figures.items():
            picture = _picture_name(report.study, caption)
            save_figure(figure, out / "figures" / picture)
            markdown.append(f"![{report.title}](figures/{picture}.png)")
    origin = [f"Made by: {command.replace(' --show', '')}"]
    runs = {record.name: record for some in records.values() for record in some}
    if runs:
        origin.append(f"{counted(len(runs), 'run')}; {_origins(runs.values())}. Accuracies are of the last epoch.")
    write_atomically(out / f"{name}.md", "\n\n".join([*markdown, *map(markdown_text, origin)]) + "\n")
    page = out / f"{name}.html"
    write_atomically(page, pages.study_page(title, intro(scale), reports, footer="\n\n".join(origin)))
    return page
