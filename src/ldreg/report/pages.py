"""Self-contained pages: no request, readable without script, light and dark, any width.

Each page is a function that gathers what its template in `templates/` shows: text, tables and cards with plots. The
templates escape all text; only drawings made here are inserted as they are.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self

import numpy
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from ldreg import __version__
from ldreg.dimension.geometry import regular
from ldreg.inspection.maps import Map
from ldreg.inspection.report import DimensionReport
from ldreg.io.files import PAGE_START
from ldreg.record import PointCloud, Record, is_share
from ldreg.report import interactive, plots, tables, words
from ldreg.report.plots import DRAWN_POINTS, colored_classes, regular_values
from ldreg.report.style import COLORS, Array, line_style, plain_style, svg
from ldreg.report.tables import MARKS, Table, metric_title, metric_value, ordered_keys, run_names
from ldreg.text import count, interval, number, percent, printable_unless_markup
from ldreg.thumbnails import ImageLike, png_size

_DRAWN_CLASSES = 16
_EXPLORED_RUNS = 8
_TILED_RUNS = 4  # more runs are easier to read in the table
_WIDE = 6.0  # inches; wider figures take a whole row of the page
_NO_LID = "no point has a defined LID"
_CURVES = {
    "lid": "Geometric mean over the representations. It usually falls as classes form; far below the other runs is "
    "local collapse.",
    "lid_low": "5 % of the points read lower. It falls where a part of the set collapses, while the mean may rise.",
    "effective_rank": "Of the representations' covariance. Far below the other runs is global collapse.",
    "loss": "What each run minimizes. A regularizer is part of that sum: compare shapes, not heights.",
    "view_share": "Of the variance in a batch, what comes from the view of an image and not from the image; it differs "
    "from batch to batch. A regularized run that ends far above the plain one has raised LID by telling views apart.",
    "linear": "Accuracy of a linear classifier on the representations.",
    "knn": "Accuracy of a vote among the nearest neighbors.",
}


@dataclass(frozen=True)
class Card:
    """A figure under its title and caption, with a legend of lines if it shows several sets.

    All ids in its drawing start with `name`.
    """

    title: str
    caption: str
    figure: Figure
    name: str
    legend: Sequence[str] = ()

    @property
    def drawing(self) -> Markup:
        """The figure as SVG."""
        return Markup(svg(self.figure, self.name))

    @property
    def wide(self) -> bool:
        """Whether it takes a whole row of the page."""
        return self.figure.get_figwidth() > _WIDE


@dataclass(frozen=True)
class Section:
    """A part of a page: heading, paragraphs, table and figures."""

    title: str
    text: str  # paragraphs, separated by empty lines
    table: Table | None = None
    figures: Mapping[str, Figure] = field(default_factory=dict)  # by title, and after a line break a caption
    small: bool = False  # figures

    @property
    def name(self) -> str:
        """The address of the section on the page.

        >>> Section("Table 1: linear evaluation", "").name, Section("β", "").name
        ('table-1-linear-evaluation', 'study')
        """
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-") or "study"

    def cards(self) -> Iterable[Card]:
        """The figures under their titles."""
        for place, (text, figure) in enumerate(self.figures.items()):
            title, _, caption = text.partition("\n")
            yield Card(title, caption, figure, f"{self.name}-{place}")


@plain_style()
def clouds_section(title: str, text: str, clouds: Sequence[PointCloud], *, close: bool = False) -> Section:
    """A section of point clouds side by side, each with its numbers as its caption."""
    figures = {
        f"{cloud.caption}\n{plots.cloud_numbers(cloud)}": plots.draw_cloud(cloud, close=close) for cloud in clouds
    }
    return Section(title, text, figures=figures, small=True)


@plain_style()
def inspection_page(
    report: DimensionReport,
    *,
    images: Sequence[ImageLike | None] | None = None,
    further: Sequence[Section] = (),
) -> str:
    """The page of one set or, if the report has a comparison, of two sets; `images` are of the first set's rows."""
    other = report.comparison.other if report.comparison is not None else None
    sets = [report] if other is None else [report, other]
    names = [f" of {one.title}" for one in sets] if other else [""]
    samples, quartiles = [_Sample.of_report(one) for one in sets], None if other else report.quartiles
    scale = numpy.concatenate([one.lid for one in samples])
    maps = _lid_maps(samples, [one.coordinates.numpy() for one in sets], report.map)
    cards = [*_layer_cards(sets), *_histogram(samples, quartiles), *_spectrum(samples), *maps, *_density(sets, samples)]
    return _render(
        "inspection.html",
        report=report,
        other=other,
        findings=[(finding.severity, words.sentence(finding, report)) for finding in report.findings],
        tiles=_tiles(report),
        cards=[*cards, *_class_cards(report)],
        explorers=[
            interactive.explorer(one, place=place, images=None if place else images, scale=scale)
            for place, one in enumerate(sets)
        ],
        scripts=interactive.scripts(),
        policy=interactive.policy(),
        sections=further,
        quantities=tables.quantity_tables(report),
        collapsed=[tables.collapsed_table(one, of=of) for one, of in zip(sets, names, strict=True)],
        classes=tables.class_table(report),
        layers=tables.layer_table(report),
        settings=tables.settings(report),
        uses=words.USES,
    )


def notebook_output(report: DimensionReport) -> str:
    """Findings and tables of a report for the output of a notebook's cell, which has no style of ours."""
    return _render(
        "notebook.html",
        report=report,
        size=words.size(report),
        findings=[(finding.severity, words.sentence(finding, report)) for finding in report.findings],
        tables=tables.report_tables(report),
    )


@plain_style()
def comparison_page(records: Sequence[Record], *, title: str, further: Sequence[Section] = ()) -> str:
    """A page that compares runs with the first of them. Raises ValueError if there is none."""
    if not records:
        raise ValueError("records: expected at least one run, got none")
    names = run_names(records)
    named = list(zip(names, records, strict=True))
    curves, maps, results = list(_curves(records)), _run_maps(records), tables.result_table(records)
    samples = [_Sample.of_run(name, record) for name, record in named]
    scale = numpy.concatenate([one.lid for one in samples])
    explored = [
        interactive.run_explorer(name, record, place=place, scale=scale)
        for place, (name, record) in enumerate(named[:_EXPLORED_RUNS])
    ]
    explorers = [one for one in explored if one is not None]
    return _render(
        "comparison.html",
        title=title,
        names=names,
        few=len(records) <= words.FEW_RUNS,
        findings=words.finding_lines(records),
        words=" ".join(words.in_words(records)),
        measured=words.what_was_measured(records),
        notes=words.notes(records),
        headlines=tables.headlines(results) if len(records) <= _TILED_RUNS else None,
        results=results,
        classes=tables.run_class_table(records),
        differing=tables.setting_table(records, differing=True) if len(records) > 1 else None,
        settings=tables.setting_table(records, differing=False),
        curves=[card for key, card in curves if key in _CURVES],
        other_curves=[card for key, card in curves if key not in _CURVES],
        distributions=[*_histogram(samples), *_spectrum(samples)],
        maps=maps,
        explorers=explorers,
        scripts=interactive.scripts() if explorers else (),
        policy=interactive.policy() if explorers else "",
        thinned_maps=max((len(record.map) for record in records if record.measured > len(record.map)), default=0),
        galleries=[
            (name, record.most_collapsed, record.least_collapsed)
            for name, record in named
            if record.most_collapsed or record.least_collapsed
        ],
        gallery_sizes=sorted({record.measured for record in records if record.most_collapsed}),
        sections=further,
        origins=[(name, record.origin) for name, record in named],
    )


@plain_style()
def study_page(title: str, intro: str, sections: Iterable[Section], *, footer: str = "") -> str:
    """A page of sections, under a list of them if there are many; `intro` and `footer` are paragraphs of text."""
    return _render("study.html", title=title, intro=intro, sections=list(sections), footer=footer)


def _render(template: str, **data: Any) -> str:
    return _environment().get_template(template).render(data)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("ldreg.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=printable_unless_markup,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {
        "opening": Markup(PAGE_START), "version": __version__, "marks": MARKS, "legend": tables.legend,
        "line_style": line_style, "png_size": png_size,
    }  # fmt: skip
    environment.filters |= {"thousands": count, "number": number}
    return environment


def _tiles(report: DimensionReport) -> list[tuple[str, str, list[str]]]:
    """Name, value and remarks of the most important numbers; a second set's numbers are among the remarks."""
    confidence = f"95 % confidence {interval(report.mean.low, report.mean.high)}"
    low = f"5 % of the points read at most {number(report.lid_low)}"
    tiles = [
        ("LID, geometric mean", number(report.mean.value), [f"{confidence}; {low}"]),
        ("Effective rank", number(report.effective_rank), [f"of {count(report.dimensions)} dimensions"]),
        ("Global dimension", number(report.danco.value), [f"DANCo; TwoNN {number(report.twonn.value)}"]),
        (
            "Degenerate points",
            percent(report.degenerate_share),
            [f"{count(report.duplicated)} with an exact duplicate"],
        ),
    ]
    if report.comparison is None:
        return tiles
    other, distance = report.comparison.other, number(report.comparison.fisher_rao)
    for (_, _, remarks), (_, beside, _) in zip(tiles, _tiles(other), strict=True):
        remarks.append(f"{other.title}: {beside}")
    return [*tiles, ("Fisher-Rao distance", distance, [f"of LID to that of {other.title}"])]


@dataclass(frozen=True)
class _Sample:
    """What histograms and spectra show of a set or run: `lid` of all or of some of the `measured` points."""

    name: str
    lid: Array
    mean: float
    eigenvalues: Array
    rank: float
    measured: int

    @classmethod
    def of_report(cls, report: DimensionReport) -> Self:
        lid, eigenvalues = report.lid.double().numpy(), report.eigenvalues.double().numpy()
        return cls(report.title, lid, report.mean.value, eigenvalues, report.effective_rank, report.measured)

    @classmethod
    def of_run(cls, name: str, run: Record) -> Self:
        lid, values = numpy.asarray(run.lid, dtype=float), regular_values(run.lid)
        mean, rank = (run.results.get(key, math.nan) for key in ("lid", "effective_rank"))
        if run.measured <= len(lid):  # all measured points are listed
            mean = math.exp(numpy.log(values).mean()) if len(values) else math.nan
        return cls(name, lid, mean, numpy.asarray(run.eigenvalues, dtype=float), rank, run.measured)

    @property
    def regular(self) -> int:
        """How many of the points have a LID."""
        return len(regular_values(self.lid))


def _histogram(samples: Sequence[_Sample], quartiles: tuple[float, float, float] | None = None) -> Iterable[Card]:
    if not any(one.regular for one in samples):
        return
    shaded = " The middle half is shaded." if quartiles is not None else ""
    marks = "; lines mark geometric means" if len(samples) <= plots.MARKED_SETS else ""
    caption = f"In percent of the points{marks}.{shaded}"
    if chosen := [len(one.lid) for one in samples if one.measured > len(one.lid) > 0]:
        caption += f" From an even choice of {count(max(chosen))} points."
    if omitted := [
        f"{count(len(one.lid) - one.regular)} of {one.name}" for one in samples if one.regular < len(one.lid)
    ]:
        caption += f" Points without a defined LID are left out: {', '.join(omitted)}."
    names = [f"{one.name}: {f'geometric mean {number(one.mean)}' if one.regular else _NO_LID}" for one in samples]
    figure = plots.histogram([one.lid for one in samples], [one.mean for one in samples], quartiles=quartiles)
    yield Card("How LID is spread", caption, figure, "histogram", names if len(samples) > 1 else ())


def _spectrum(samples: Sequence[_Sample]) -> Iterable[Card]:
    known = [len(regular_values(one.eigenvalues)) > 0 for one in samples]
    if not any(known):
        return
    marks = "; lines mark effective ranks" if len(samples) <= plots.MARKED_SETS else ""
    caption = f"Eigenvalues of the covariance{marks}. A cliff means that directions are unused."
    names = [
        f"{one.name}: {f'effective rank {number(one.rank)}' if some else 'no eigenvalue above 0'}"
        for one, some in zip(samples, known, strict=True)
    ]
    figure = plots.spectrum([one.eigenvalues for one in samples], [one.rank for one in samples])
    yield Card("Global spectrum", caption, figure, "spectrum", names if len(samples) > 1 else ())


def _lid_maps(samples: Sequence[_Sample], coordinates: Sequence[Array], kind: Map) -> Iterable[Card]:
    """The map of each set on its own axes, with the same colors."""
    several = len(samples) > 1
    caption = f"{interactive.MAPS[kind]} Red points are the most collapsed."
    if several:
        without = [f" {one.name} has no map: {_NO_LID}." for one in samples if not one.regular]
        caption += "".join(without) or " The colors are the same on both maps."
    figures = plots.lid_maps(coordinates, [one.lid for one in samples], principal=kind == "pca")
    for place, (one, figure) in enumerate(zip(samples, figures, strict=True)):
        if figure is not None:
            title = "Where LID is low" + (f" in {one.name}" if several else "")
            yield Card(title, caption + _thinned(one.regular), figure, f"map-{place}")


def _thinned(points: int) -> str:
    return f" At most {count(DRAWN_POINTS)} of {count(points)} points are drawn." if points > DRAWN_POINTS else ""


def _density(sets: Sequence[DimensionReport], samples: Sequence[_Sample]) -> Iterable[Card]:
    keep = [(regular(one.lid) & (one.kth_distance > 0)).numpy() for one in sets]
    if not any(some.any() for some in keep):
        return
    caption = "Each dot is a point; lines mark geometric means. Collapse in dense spots pulls the left side down."
    caption += _thinned(max(one.regular for one in samples))
    names = [one.name + ("" if one.regular else f": {_NO_LID}") for one in samples]
    distances = [one.kth_distance.double().numpy()[some] for one, some in zip(sets, keep, strict=True)]
    lids = [one.lid[some] for one, some in zip(samples, keep, strict=True)]
    figure = plots.density(distances, lids, [one.mean for one in samples], k=sets[0].k)
    yield Card("LID against density", caption, figure, "density", names if len(sets) > 1 else ())


def _layer_cards(sets: Sequence[DimensionReport]) -> Iterable[Card]:
    """LID and effective rank over the depth of models, if their layers were measured."""
    models = [one.layers for one in sets]
    if not models[0]:
        return
    caption = f"Geometric mean of each layer, with its 95 % interval. {words.fallen_layers(sets[0])}"
    names = [one.title for one in sets] if len(sets) > 1 else []
    yield Card("LID over depth", caption, plots.over_depth(models, "lid"), "depth-lid", names)
    widest = max(layer.dimensions for layers in models for layer in layers)
    caption = f"Of each layer, of at most {count(widest)} dimensions."
    yield Card("Effective rank over depth", caption, plots.over_depth(models, "effective_rank"), "depth-rank", names)


def _class_cards(report: DimensionReport) -> Iterable[Card]:
    """LID per class, and the map colored by class; of two sets, of the first."""
    classes, others = report.classes, tables.classes_of_other(report)
    if not classes:
        return
    other = report.comparison.other if report.comparison is not None else None
    of_first = f" Of {report.title} only." if other else ""
    if any(row.regular for row in classes):
        caption = "Geometric mean and 95 % confidence; the line is the mean of all."
        if len(classes) > _DRAWN_CLASSES:
            caption += f" Of {count(len(classes))} classes, the lowest and the highest."
        if other and others:
            caption += f" Bars: {report.title}; diamonds: the same classes of {other.title}."
        shown = tables.shown_classes(report, _DRAWN_CLASSES)
        figure = plots.class_bars(shown, report.mean.value, others if other else None)
        yield Card("LID per class", caption + ("" if others else of_first), figure, "classes")
    caption = "The same map, colored by label."
    labels = [row.label for row in classes]
    if len(classes) > len(COLORS):
        caption += " The classes of lowest LID are in color."
        labels = [row.label for row in sorted(classes, key=lambda row: row.mean.value if row.regular else math.inf)]
    points = report.coordinates.numpy()
    names, principal = report.labels or (), report.map == "pca"
    figure = plots.class_map(points, names, colored_classes(labels), classes=len(classes), principal=principal)
    yield Card("Where the classes are", caption + of_first, figure, "map-classes")


def _curves(records: Sequence[Record]) -> Iterable[tuple[str, Card]]:
    """Key and card of every value over training."""
    names = run_names(records) if len(records) > 1 else []
    for place, key in enumerate(ordered_keys(record.curves for record in records)):
        lines = [record.curves.get(key, ()) for record in records]
        values = [value for line in lines for epoch, value in line if math.isfinite(epoch) and math.isfinite(value)]
        if not values:
            continue
        caption = _CURVES.get(key, "")
        start = [value for line in lines for epoch, value in line if epoch == 0 and math.isfinite(value)]
        if start and key in tables.HEADLINES:
            low, high = metric_value(key, min(start)), metric_value(key, max(start))
            caption += f" Epoch 0 is the untrained encoder: {low if low == high else f'{low} to {high}'}."
        figure = plots.curve(lines, share=is_share(key))
        yield key, Card(metric_title(key), caption, figure, f"curve-{place}", names)


def _run_maps(records: Sequence[Record]) -> list[Card]:
    """For each run its map colored by class, colored by LID, and its t-SNE."""
    maps, tsne = [record.map for record in records], [record.tsne for record in records]
    kinds = {
        "classes": ("classes", plots.class_maps(maps, [record.labels for record in records])),
        "LID": ("lid", plots.lid_maps(maps, [record.lid for record in records])),
        "classes, t-SNE": (
            "tsne",
            plots.class_maps(tsne, [record.tsne_labels for record in records], principal=False),
        ),
    }
    return [
        Card(f"{name}: {kind}", "", figure, f"map-{short}-{place}")
        for place, name in enumerate(run_names(records))
        for kind, (short, figures) in kinds.items()
        if (figure := figures[place]) is not None
    ]
