"""Studies as one Markdown file with pictures, from records alone: the same records give the same text to the byte."""

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

from matplotlib.figure import Figure

from ldreg.io.files import check_writable, has_content, write_atomically
from ldreg.record import Record
from ldreg.report.style import plain_style
from ldreg.report.tables import Cell, Table, table_markdown
from ldreg.reproduce.cost import step_cost
from ldreg.reproduce.drawings import drawings
from ldreg.reproduce.effects import collapses, sample
from ldreg.reproduce.findings import (
    NOTHING,
    column_title,
    difference_table,
    metrics_of,
    origins,
    row_name,
    study_table,
    value_text,
)
from ldreg.reproduce.glance import glance, verdict
from ldreg.reproduce.jobs import Arm, Options
from ldreg.reproduce.rendering import intro, picture_name, study_words
from ldreg.reproduce.scales import SCALES, Scale
from ldreg.reproduce.shelf import Part, gather_records, other_lengths, parts_of
from ldreg.reproduce.studies import Study
from ldreg.reproduce.workplace import paths_of
from ldreg.text import markdown_text

_OPENING = "# The LDReg paper at the scale of"  # how every text begins
NOTES = "notes.md"  # among the records, what people say of them
_READ_NOTES = (
    "What the records do not say, as how they came about, is at the end, [about these runs](#about-these-runs): to be "
    "read before a number is quoted."
)
_TWICE = (
    "Counted are effects that the paper has numbers of, by their direction, and what else it says (a trend, who is "
    "highest, that nothing changes), which sections tell in words: they may count fewer effects. What several studies "
    "show is counted in each."
)
_RESOLUTION = 110  # dots per inch of a picture
_OTHER_METRICS = ("linear", "effective_rank", "lid", "knn")
_OTHERS = (
    "Runs that lie beside the others and belong to no table: of settings that were given up, or of other questions."
)
_NOISE = (
    "Differences, seed by seed where several seeds are shared, and in parentheses the noise that each is judged by; "
    "those without ≈ are beyond it:"
)


@dataclass(frozen=True)
class Document:
    """A Markdown text, the pictures that it links to, and what of the records it shows.

    Args:
        text: the whole file
        pictures: PNG files by their names, to lie in `images/NAME` beside it
        studies: how many it has
        shown: names of the records of runs that it shows
        unused: names of the files beside them that it does not show
    """

    text: str
    pictures: Mapping[str, bytes]
    studies: int
    shown: Sequence[str]
    unused: Sequence[str]


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
    """What the records in a folder say of these studies: every seed, and nothing that was not measured.

    A study may have been run at another length than the scale's: that at which it has most records is shown.

    Args:
        studies: in the order of the text.
        scale: of the runs; one with other epochs than usual looks for those alone.
        results: where the records are, one JSON file for each run.
        settings: that every run was given beside its recipe.
        what: the studies as the command names them.
        folder: of the pictures, from where the text lies.
        one_length: whether runs of the scale's epochs alone are looked for, be they the usual ones.

    Raises:
        ValueError: no study has records, or a record is of other settings than its name says.
        OSError: a record cannot be read.
    """
    paths = paths_of(results)
    scales = [scale] if one_length else [scale, *other_lengths(scale, paths)]
    trained = [study for study in studies if study.rows(scale)]
    arms = dict.fromkeys(row.arm for study in trained for length in scales for row in study.rows(length))
    gathered = gather_records(arms, paths, settings)
    parts = [part for study in trained for part in parts_of(study, scales, gathered)]
    if not parts:
        raise ValueError(f"{results}: expected records of these studies, got none; --plan lists their runs")
    cost = step_cost(results, [part.study.name for part in parts])
    pictures: dict[str, bytes] = {}
    sections, told = [], set[tuple[Arm, Arm, str]]()
    with plain_style():
        for part in parts:
            sections += _section(part, pictures, quote(folder), differences=not part.effects <= told)
            sections += cost.after(part.study.name)
            told |= part.effects
    records = {record.name: record for part in parts for row in part.rows for record in part.records(row)}
    unused = sorted({path.stem for path in results.glob("*.json")} - records.keys() - cost.shown)
    absent = [study.title for study in trained if study.name not in {part.study.name for part in parts}] + [
        *cost.absent
    ]
    length = ("--epochs", str(scale.epochs)) if one_length or scale != SCALES[scale.name] else ()
    given = [word for key, value in settings for word in (f"--{key}", value)]
    command = shlex.join(["ldreg", "reproduce", what, "--scale", scale.name, *length, *given])
    closing = _closing(list(records.values()), absent, results, unused, command)
    overview = ["## At a glance", verdict(parts), table_markdown(glance(parts)), _TWICE] if len(parts) > 1 else []
    notes = _notes(results)
    opening = [f"{_OPENING} {scale.name}", intro(scale), _READ_NOTES if notes else "", *overview]
    text = "\n\n".join(part for part in [*opening, *sections, *notes, *closing] if part) + "\n"
    return Document(text, pictures, len(parts), sorted(records), unused)


def _notes(results: Path) -> list[str]:
    """What people say of the runs that records cannot, where they left it beside them. Raises OSError, ValueError."""
    path = results / NOTES
    if not path.is_file():
        return []
    try:
        said = path.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected text in UTF-8, got other bytes ({error})") from error
    return ["## About these runs", said] if said else []


def check_own(path: Path) -> None:
    """Refuse to write over a file that is no such text, and not empty.

    Raises:
        ValueError: there is one.
        OSError: it cannot be written, or not be read.
    """
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
    """Where the pictures of a text lie, from its own folder.

    >>> picture_folder(Path("docs/results.md"))
    'images/results'
    """
    return f"images/{path.stem}"


def _section(part: Part, pictures: dict[str, bytes], folder: str, *, differences: bool) -> list[str]:
    """Heading, text, tables and links to pictures, which are added to those there are."""
    study, table = part.study, _with_seeds(part)
    records = [record for row in part.rows for record in part.records(row)]
    left_out = [row_name(row) for row in part.rows if not part.records(row)]
    texts = [
        f"## {study.title}",
        study.text,
        study_words(study, part.scale, part.gathered, table),
        table_markdown(table),
    ]
    texts.append(_told_runs(records))
    texts.append(_not_measured(left_out, len(part.rows) - len(left_out)))
    compared = difference_table(study, part.scale, part.gathered)
    if differences and compared.rows:
        texts += [_NOISE, table_markdown(compared)]
    for caption, figure in drawings(study, part.scale, part.gathered).items():
        title, _, remark = caption.partition("\n")
        name = f"{picture_name(study.name, caption)}.png"
        pictures[name] = _png(figure, _source(records))
        texts += [f"![{markdown_text(title)}]({folder}/{name})", markdown_text(remark)]
    return [text for text in texts if text]


def _not_measured(left_out: Sequence[str], measured: int) -> str:
    """Which rows are missing; where most are, how many."""
    if len(left_out) > max(measured, 8):
        return f"Not measured: {len(left_out)} of {len(left_out) + measured} rows; `--plan` lists their runs."
    return f"Not measured: {markdown_text('; '.join(left_out))}." if left_out else ""


def _with_seeds(part: Part) -> Table:
    """The table of the study, less the rows that nothing was measured of, with a column of how many seeds each has."""
    whole, metrics = study_table(part.study, part.scale, part.gathered), metrics_of(part.study, part.scale)
    keys, cells = whole.keys, []
    for row, texts in zip(part.rows, whole.rows, strict=True):
        records = part.records(row)
        if not records:
            continue
        usual = len(records) - collapses(records)
        values = [
            _counted(cell, len(sample(records, metric).values), usual)
            for cell, metric in zip(texts[keys:], metrics, strict=True)
        ]
        cells.append([*texts[:keys], Cell(str(len(records))), *values])
    return Table([*whole.columns[:keys], "Seeds", *whole.columns[keys:]], cells, keys=keys)


def _counted(cell: Cell, seeds: int, usual: int) -> Cell:
    """The cell; where its value is of fewer seeds than the row has, it says so."""
    if not 0 < seeds < usual:
        return cell
    return Cell(f"{cell.text} (of {seeds} seed{'' if seeds == 1 else 's'})", cell.paper, cell.mark)


def _told_runs(records: Sequence[Record]) -> str:
    """Of how many runs and how many epochs a table is."""
    count, epochs = len({record.name for record in records}), origins(records, "epochs")
    return f"{count} run{'' if count == 1 else 's'}" + (f" of {epochs} epochs." if epochs else ".")


def _closing(
    records: Sequence[Record], absent: Sequence[str], results: Path, unused: Sequence[str], command: str
) -> list[str]:
    """What is missing, what else there is, and where everything comes from."""
    parts = []
    if absent:
        parts = [
            "## What is missing",
            "\n".join(f"- {markdown_text(title)}: no runs of its own yet" for title in absent),
        ]
    parts += _others(results, unused)
    told = (
        f"{len(records)} runs; commits {origins(records, 'commit') or 'unknown'}; on {origins(records, 'hardware')}; "
        f"seeds {origins(records, 'seed')}; epochs {origins(records, 'epochs')}."
    )
    made = f"Written from the records of these runs by `{command} --results FOLDER --write FILE`, not by hand."
    return [*parts, "## Where the numbers come from", markdown_text(told), made]


def _others(results: Path, names: Sequence[str]) -> list[str]:
    """What records say that no study has a row for; files that are none are named. Raises OSError."""
    cells, foreign = [], []
    for name in names:
        try:
            record = Record.from_json(results / f"{name}.json")
        except ValueError:
            foreign.append(name)
            continue
        values = [value_text(metric, sample([record], metric)) for metric in _OTHER_METRICS]
        judges = "validation" if record.settings.get("data.validation") else "test"
        texts = [name, judges, str(record.origin.get("epochs", NOTHING)), *values]
        cells.append([Cell(text) for text in texts])
    columns = ["Record", "Images that judge", "Epochs", *map(column_title, _OTHER_METRICS)]
    parts = ["## Other records", _OTHERS, table_markdown(Table(columns, cells))] if cells else []
    return parts + ([f"Files that are no records of runs: {markdown_text(', '.join(foreign))}."] if foreign else [])


def _source(records: Sequence[Record]) -> str:
    """A digest of all that figures are drawn from, by which a picture of other records can be told."""
    drawn = [(record.name, record.results, record.curves, record.tsne, record.tsne_labels) for record in records]
    return hashlib.sha256(repr(drawn).encode()).hexdigest()


def _png(figure: Figure, source: str) -> bytes:
    buffer = BytesIO()
    facts = {"Software": None, "Source": source}
    figure.savefig(buffer, format="png", dpi=_RESOLUTION, facecolor="white", metadata=facts)
    return buffer.getvalue()
