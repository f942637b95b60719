"""Studies as text, as Markdown with pictures beside it, and as one self-contained page."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ldreg.io.files import write_atomically
from ldreg.report.pages import Section, study_page
from ldreg.report.style import plain_style, save_figure
from ldreg.report.tables import Table, table_markdown, table_text
from ldreg.reproduce import anchor_study, search
from ldreg.reproduce.drawings import Figures, cloud_figure, cloud_table, clouds, drawings
from ldreg.reproduce.findings import Gathered, in_words, study_table
from ldreg.reproduce.scales import Scale
from ldreg.reproduce.studies import Study
from ldreg.reproduce.trends import claims
from ldreg.text import filled, markdown_text

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
# What came of studies that are beyond the paper.
_WORDS: Mapping[str, Callable[[Scale, Gathered], str]] = {"search": search.in_words, "anchor": anchor_study.in_words}
_NO_ROWS = "No row of it is of these methods."
_LINEAR = {"fast": "logistic regression on cached representations", "imagenet": "the paper's protocol of 90 epochs"}


@dataclass(frozen=True)
class Rendered:
    """A study ready to be shown."""

    study: Study
    table: Table
    figures: Figures
    words: str


@plain_style()
def rendered(studies: Sequence[Study], scale: Scale, gathered: Gathered) -> list[Rendered]:
    """Tables and figures of what has been measured."""
    found = []
    for study in studies:
        plane = bool(clouds(study.name))
        table = cloud_table(study.name) if plane else study_table(study, scale, gathered)
        figures = cloud_figure(study.name) if plane else drawings(study, scale, gathered)
        found.append(Rendered(study, table, figures, study_words(study, scale, gathered, table)))
    return found


def study_words(study: Study, scale: Scale, gathered: Gathered, table: Table) -> str:
    """What came of a study, in sentences."""
    own = _WORDS.get(study.name)
    told = [in_words(table), own(scale, gathered) if own else ""]
    told += [claim.words for claim in claims(study.name, scale, gathered)]
    return " ".join(text for text in told if text)


def as_text(found: Sequence[Rendered], *, width: int, color: bool) -> str:
    """All tables for a terminal."""
    parts = []
    for one in found:
        words = f"\n{filled(one.words, width)}" if one.words else ""
        table = table_text(one.table, width=width, color=color) if one.table.rows else _NO_ROWS
        parts.append(f"{one.study.title}\n\n{table}{words}\n")
    return "\n".join(parts)


def intro(scale: Scale) -> str:
    """What was measured and how effects are judged, in paragraphs."""
    return "\n\n".join(_INTRO).format(k=scale.k, linear=_LINEAR[scale.linear])


@plain_style()
def write(found: Sequence[Rendered], scale: Scale, out: Path, *, name: str, title: str, origin: str) -> Path:
    """Write the page and the Markdown of this name and every figure as PNG and PDF into `out`; the page's path.

    Raises:
        OSError: something cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    pictures = {one.study.name: _pictures(one, out / "figures") for one in found}
    write_atomically(out / f"{name}.md", as_markdown(found, pictures, scale, title=title, origin=origin))
    sections = [Section(one.study.title, _text(one), one.table, one.figures) for one in found]
    page = out / f"{name}.html"
    write_atomically(page, study_page(title, intro(scale), sections, footer=origin))
    return page


def _pictures(one: Rendered, folder: Path) -> list[str]:
    names = []
    for caption, figure in one.figures.items():
        name = picture_name(one.study.name, caption)
        save_figure(figure, folder / name)
        names.append(name)
    return names


def picture_name(study: str, caption: str) -> str:
    r"""A name for the files of a figure, by the first line of its caption.

    >>> picture_name("ablation", "Linear accuracy and β\nIn percent.")
    'ablation-linear-accuracy-and-beta'
    """
    slug = re.sub(r"[^a-z0-9]+", "-", caption.partition("\n")[0].lower().replace("β", "beta")).strip("-")
    return f"{study}-{slug}"


def as_markdown(
    found: Sequence[Rendered], pictures: dict[str, list[str]], scale: Scale, *, title: str, origin: str
) -> str:
    """All studies as one Markdown text, with links to the pictures in `figures/`."""
    parts = [f"# {title}", intro(scale)]
    for one in found:
        parts += [f"## {one.study.title}", _text(one), table_markdown(one.table)]
        parts += [f"![{one.study.title}](figures/{name}.png)" for name in pictures[one.study.name]]
    footer = [markdown_text(line) for line in origin.split("\n\n")]
    return "\n\n".join([*parts, *footer]) + "\n"


def _text(one: Rendered) -> str:
    return f"{one.study.text}\n\n{one.words}" if one.words else one.study.text
