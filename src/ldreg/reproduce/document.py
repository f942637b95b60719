"""Studies as text, as a page, and as one Markdown document made from records alone."""

import hashlib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

from matplotlib.figure import Figure

from ldreg.io.files import check_writable, has_content, write_atomically
from ldreg.record import Record
from ldreg.report.style import plain_style
from ldreg.report.tables import Cell, Mark, Table, table_markdown
from ldreg.reproduce.claims import claims
from ldreg.reproduce.cost import step_cost
from ldreg.reproduce.drawings import drawings
from ldreg.reproduce.jobs import DETECTION, TRANSFER, Arm, Job, Options
from ldreg.reproduce.statistics import Records, collapses, sample
from ldreg.reproduce.studies import SCALES, STUDIES, Row, Scale, Study
from ldreg.reproduce.tables import (
    MARK_WORDS,
    NOTHING,
    column_title,
    difference_table,
    effects_sentence,
    origins,
    overview_row,
    overview_table,
    row_name,
    seeds_table,
    study_table,
    value_text,
)
from ldreg.reproduce.workspace import read_records, record_paths
from ldreg.text import markdown_text

NOTES = "notes.md"  # beside the records: what people say of the runs
_OPENING = "# The LDReg paper at the scale of"  # how every document begins
_INTRO = (
    "Measured here, with the paper's values beside them. The paper pretrains on ImageNet; at another scale only the "
    "direction of an effect can be compared, not its size.",
    "LID (k = {k}) and effective rank are of held-out images, unless a table says otherwise; accuracies are of the "
    "last epoch, linear ones by {linear}.",
    "A mark compares a row with the one without a regularizer that it belongs to, or with that which the text names. "
    "Runs of the same seed begin alike, so with several seeds differences are taken seed by seed, and an effect counts "
    "as noise where it is smaller than half the 95 % interval of their mean by Student's t; with one seed, where it is "
    "smaller than twice the sampling error of the test images (accuracies), a twentieth of the value (LID) or a tenth "
    "(effective rank), as dimensions differ between seeds. A collapse, here or in the paper, counts as lower; a "
    "difference in the paper that is no more than its last digit, or a thousandth, is not judged.",
    "Nothing is corrected for the number of comparisons: at 95 % one in twenty of equal runs counts as an effect. Rows "
    "of a table that are compared with the same run have its chance in common.",
)
_LINEAR = {"fast": "logistic regression on cached representations", "imagenet": "the paper's protocol of 90 epochs"}
_READ_NOTES = (
    "What the records do not say, as how they came about, is at the end, [about these runs](#about-these-runs): to be "
    "read before a number is quoted."
)
_COUNTED = (
    "Counted are effects that the paper has numbers of, by their direction, and what else it says (a trend, who is "
    "highest, that nothing changes), which sections tell in words: they may count fewer effects. What several studies "
    "show is counted in each."
)
_NOISE = (
    "Differences, seed by seed where several seeds are shared, and in parentheses the noise that each is judged by; "
    "those without ≈ are beyond it:"
)
_OTHERS = (
    "Runs that lie beside the others and belong to no table: of settings that were given up, or of other questions."
)
_OTHER_METRICS = ("linear", "effective_rank", "lid", "knn")
_BY_METHOD = ("table1", "methods")  # the studies that have every method without and with LDReg
_RESOLUTION = 110  # dots per inch of a picture


@dataclass(frozen=True)
class Section:
    """A study at one number of epochs, with the records of its rows that say something that it shows."""

    study: Study
    scale: Scale
    records: Records

    @property
    def rows(self) -> Sequence[Row]:
        """The study's rows at this scale."""
        return self.study.rows(self.scale)

    @property
    def runs(self) -> list[Record]:
        """The records, row by row."""
        return [record for row in self.rows for record in self.records.get(row.arm, ())]

    @property
    def effects(self) -> set[tuple[Arm, Arm, str]]:
        """What it compares: an arm with another, by a metric."""
        compared = [(row.arm, self.rows[row.baseline].arm) for row in self.rows if row.baseline is not None]
        return {(*pair, metric) for pair in compared for metric in self.study.metrics_at(self.scale)}


@dataclass(frozen=True)
class Document:
    """A Markdown text with its pictures.

    Args:
        text: the whole file.
        pictures: PNG files by their names, for the folder `images/NAME` beside it.
        studies: how many it shows.
        shown: names of the records that it shows.
        unused: names of the other JSON files in the folder of records.
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
    """Everything that the records in a folder say of these studies, all seeds.

    A study is shown at the number of epochs that has most of its records.

    Args:
        studies: in the order of the text.
        scale: of the runs; one with other epochs than usual looks for those alone.
        results: folder of the records, one JSON file for each run.
        settings: that every run was given over its recipe.
        what: the studies as the command names them.
        folder: of the pictures, from where the text is.
        one_length: whether only runs of the scale's epochs count.

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
    cost = step_cost(results) if "wallclock" in names else None
    pictures: dict[str, bytes] = {}
    texts, compared = list[str](), set[tuple[Arm, Arm, str]]()
    with plain_style():
        for section in sections:
            texts += _section_texts(section, pictures, quote(folder), differences=not section.effects <= compared)
            if cost and section.study.name == "wallclock":
                texts += cost.texts
            compared |= section.effects
    shown = {record.name: record for section in sections for record in section.runs}
    unused = sorted({path.stem for path in results.glob("*.json")} - shown.keys() - (cost.shown if cost else set()))
    absent = [study.title for study in trained if study.name not in names] + (list(cost.absent) if cost else [])
    length = ("--epochs", str(scale.epochs)) if one_length or scale != SCALES[scale.name] else ()
    given = [word for key, value in settings for word in (f"--{key}", value)]
    command = shlex.join(["ldreg", "reproduce", what, "--scale", scale.name, *length, *given])
    notes = _notes(results)
    parts = [
        f"{_OPENING} {scale.name}",
        intro(scale),
        _READ_NOTES if notes else "",
        *(_overview(sections) if len(sections) > 1 else []),
        *texts,
        *notes,
        *_closing(list(shown.values()), absent, results, unused, command),
    ]
    text = "\n\n".join(part for part in parts if part) + "\n"
    return Document(text, pictures, len(sections), sorted(shown), unused)


def _other_lengths(scale: Scale, names: Iterable[str]) -> list[Scale]:
    """The scale with the other numbers of epochs in names of records; none where a number was asked for."""
    if scale != SCALES[scale.name]:
        return []
    lengths = {int(found[1]) for name in names if (found := re.search(r"-epochs(\d+)(?=-|$)", name))}
    return [scale.with_epochs(epochs) for epochs in sorted(lengths - {0, scale.epochs})]


def _sections(study: Study, scales: Sequence[Scale], records: Records) -> list[Section]:
    """The study at the number of epochs with most records, or at each; none without a record of its own.

    A study about runs of its own, such as a sweep, needs one of them: the methods as they are, which it shares with
    Table 1, show nothing of it.
    """
    shared = {row.arm for scale in scales for row in STUDIES["figure2a"].rows(scale)}

    def known(scale: Scale) -> Records:
        metrics = study.metrics_at(scale)
        found = {row.arm: records.get(row.arm, ()) for row in study.rows(scale)}
        shows = {
            arm: collapses(some) > 0 or any(sample(some, metric).values for metric in metrics)
            for arm, some in found.items()
        }
        return {arm: some for arm, some in found.items() if shows[arm]}

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
    return [_with_length(section, place) for place, section in enumerate(sorted(sections, key=_epochs))]


def _with_length(section: Section, place: int) -> Section:
    """The section with its number of epochs in the title; the text is in the first section of the study."""
    title = f"{section.study.title}, at {_epochs(section)} epochs"
    text = "The same with longer runs." if place else section.study.text
    return replace(section, study=replace(section.study, title=title, text=text))


def _epochs(section: Section) -> int:
    return int(Job(section.rows[0].arm, 0).settings.schedule.epochs)


def intro(scale: Scale) -> str:
    """What was measured and how effects are judged, in paragraphs."""
    return "\n\n".join(_INTRO).format(k=scale.k, linear=_LINEAR[scale.linear])


def _overview(sections: Sequence[Section]) -> list[str]:
    rows, marks = [], dict[str, list[Mark]]()
    for section in sections:
        own = (section.study, section.scale, section.records)
        rows.append(overview_row(*own, [mark for claim in claims(*own) for mark in claim.marks]))
        if section.study.name in _BY_METHOD:
            table = study_table(*own)
            for title, cells in zip(table.columns, zip(*table.rows, strict=True), strict=True):
                marks.setdefault(title, []).extend(cell.mark for cell in cells if cell.mark)
    counted = [f"{title.partition(',')[0]} {_counted(found)}" for title, found in marks.items() if found]
    verdict = f"For how many methods LDReg does what it does in the paper: {'; '.join(counted)}." if counted else ""
    return ["## At a glance", verdict, table_markdown(overview_table(rows)), _COUNTED]


def _counted(marks: Sequence[Mark]) -> str:
    """The number of each mark that there is.

    >>> _counted(["agrees", "noise", "agrees"])
    'as in the paper 2, within noise 1'
    """
    return ", ".join(f"{word} {marks.count(mark)}" for mark, word in MARK_WORDS.items() if mark in marks)


def _section_texts(section: Section, pictures: dict[str, bytes], folder: str, *, differences: bool) -> list[str]:
    """Heading, text, tables and links to pictures, which are added to `pictures`."""
    study, own = section.study, (section.study, section.scale, section.records)
    missing = [row_name(row) for row in section.rows if row.arm not in section.records]
    table, runs = seeds_table(*own), section.runs
    count, epochs = len({record.name for record in runs}), origins(runs, "epochs")
    texts = [
        f"## {study.title}",
        study.text,
        study_words(*own, study_table(*own)),
        table_markdown(table),
        f"{count} run{'' if count == 1 else 's'}" + (f" of {epochs} epochs." if epochs else "."),
        _not_measured(missing, len(section.rows) - len(missing)),
    ]
    compared = difference_table(*own)
    if differences and compared.rows:
        texts += [_NOISE, table_markdown(compared)]
    for caption, figure in drawings(*own).items():
        title, _, remark = caption.partition("\n")
        name = f"{picture_name(study.name, caption)}.png"
        pictures[name] = _png(figure, _digest(runs))
        texts += [f"![{markdown_text(title)}]({folder}/{name})", markdown_text(remark)]
    return [text for text in texts if text]


def study_words(study: Study, scale: Scale, records: Records, table: Table) -> str:
    """What came of a study, in sentences."""
    words = [effects_sentence(table), *(claim.words for claim in claims(study, scale, records))]
    return " ".join(text for text in words if text)


def _not_measured(missing: Sequence[str], measured: int) -> str:
    """Which rows are missing; only their number where most are."""
    if len(missing) > max(measured, 8):
        return f"Not measured: {len(missing)} of {len(missing) + measured} rows; `--plan` lists their runs."
    return f"Not measured: {markdown_text('; '.join(missing))}." if missing else ""


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


def _closing(
    records: Sequence[Record], absent: Sequence[str], results: Path, unused: Sequence[str], command: str
) -> list[str]:
    """What is missing, what else there is, and where the numbers come from."""
    parts = []
    if absent:
        parts = [
            "## What is missing",
            "\n".join(f"- {markdown_text(title)}: no runs of its own yet" for title in absent),
        ]
    origin = (
        f"{len(records)} runs; commits {origins(records, 'commit') or 'unknown'}; on {origins(records, 'hardware')}; "
        f"seeds {origins(records, 'seed')}; epochs {origins(records, 'epochs')}."
    )
    written = f"Written from the records of these runs by `{command} --results FOLDER --write FILE`, not by hand."
    return [*parts, *_others(results, unused), "## Where the numbers come from", markdown_text(origin), written]


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
    parts = ["## Other records", _OTHERS, table_markdown(Table(columns, cells))] if cells else []
    return parts + ([f"Files that are no records of runs: {markdown_text(', '.join(foreign))}."] if foreign else [])


def _digest(records: Sequence[Record]) -> str:
    """A digest of what figures are drawn from, stored in them."""
    drawn = [(record.name, record.results, record.curves, record.tsne, record.tsne_labels) for record in records]
    return hashlib.sha256(repr(drawn).encode()).hexdigest()


def _png(figure: Figure, source: str) -> bytes:
    buffer = BytesIO()
    facts = {"Software": None, "Source": source}
    figure.savefig(buffer, format="png", dpi=_RESOLUTION, facecolor="white", metadata=facts)
    return buffer.getvalue()


def check_replaceable(path: Path) -> None:
    """Check that a document can be written there and replaces nothing but a document.

    Raises:
        ValueError: another file is there.
        OSError: it cannot be written or read.
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
    """The folder of a document's pictures, from its own folder.

    >>> picture_folder(Path("docs/results.md"))
    'images/results'
    """
    return f"images/{path.stem}"


def picture_name(study: str, caption: str) -> str:
    r"""The name for the files of a figure, by the first line of its caption.

    >>> picture_name("ablation", "Linear accuracy and β\nIn percent.")
    'ablation-linear-accuracy-and-beta'
    """
    slug = re.sub(r"[^a-z0-9]+", "-", caption.partition("\n")[0].lower().replace("β", "beta")).strip("-")
    return f"{study}-{slug}"
