"""The paper's figures, drawn from records."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from matplotlib.figure import Figure

from ldreg.record import Record
from ldreg.report.plots import Series, bars, line_panels, lines, scatter_panels
from ldreg.reproduce.statistics import TRAIN_LID, Sample, Section, collapses, in_percent, noise
from ldreg.reproduce.studies import METHODS, Row

Figures = Mapping[str, Figure]
Band = list[tuple[float, float, float]]

_RANGE = "Where there are several seeds, the line is their mean and the band their range."
_BY_MONITOR = (
    "By the images that the monitor takes, of which there are fewer than in the tables, so that as many voters are "
    "farther away: differences may have another sign there."
)
_OF_VIEWS = "Of representations in a batch: the variance that comes from the view of an image and not from the image."
_LID, _RANK, _LINEAR = "LID, geometric mean", "Effective rank", "Linear accuracy, %"


def drawings(section: Section) -> Figures:
    """The figures of a study by their captions; none where it is a table, or nothing was measured yet."""
    return _DRAWN[section.study.name](section) if section.study.name in _DRAWN else {}


def _mean_curve(records: Sequence[Record], metric: str) -> tuple[list[tuple[float, float]], Band]:
    """A metric over epochs: its mean over seeds, and its range where there are several; accuracies in percent."""
    factor = 100.0 if in_percent(metric) else 1.0
    by_epoch: dict[float, list[float]] = {}
    for record in records:
        for epoch, value in record.curves.get(metric, ()):
            if math.isfinite(value):
                by_epoch.setdefault(epoch, []).append(factor * value)
    known = sorted(by_epoch.items())
    band = [(epoch, min(values), max(values)) for epoch, values in known] if len(records) > 1 else []
    return [(epoch, sum(values) / len(values)) for epoch, values in known], band


def _over_training(section: Section) -> Figures:
    made = {}
    for title, words, metric, label in (
        ("LID over training", f"Of training images. {_RANGE}", "lid", _LID),
        ("kNN accuracy over training", _BY_MONITOR, "knn", "kNN accuracy, %"),
        ("Share of the view over training", _OF_VIEWS, "view_share", "share of variance, %"),
    ):
        panels: dict[str, list[Series]] = {}
        for row in section.rows:
            points, band = _mean_curve(section.of(row), metric)
            if points:
                with_ldreg = row.baseline is not None
                name = "with LDReg" if with_ldreg else "without"
                line = Series(name, points, band or None, dashed=not with_ldreg, color_group=int(with_ldreg))
                panels.setdefault(METHODS[row.group], []).append(line)
        if panels:
            made[f"{title}\n{words}"] = line_panels(list(panels.items()), xlabel="epoch", ylabel=label)
    return made


def _jitter(section: Section) -> Figures:
    rows, series = section.rows, []
    for place, row in enumerate(rows):
        points, band = _mean_curve(section.of(row), "lid")
        if points:
            accuracy = section.sample(row, "linear")
            name = f"strength {row.x:g}" + (f", linear {accuracy.mean:.1f} %" if accuracy.values else "")
            series.append(Series(name, points, band or None, dashed=False, color_group=place))
    if not series:
        return {}
    final = [
        _line(section, rows, TRAIN_LID, "at the end"),
        *_level(section, rows, TRAIN_LID, f"strength {rows[0].x:g}"),
    ]
    return {
        "Over training\nLinear accuracy is in the legend.": lines(series, xlabel="epoch", ylabel=_LID),
        "At the end of training": lines(final, xlabel="strength of color jitter", ylabel=_LID),
    }


def _line(section: Section, rows: Sequence[Row], metric: str, name: str) -> Series:
    """A result over the x of rows, with its range over seeds."""
    found = [(row.x, one) for row in rows if (one := _drawn(section, row, metric)) is not None]
    several = [(x, min(one.values), max(one.values)) for x, one in found if len(one.values) > 1]
    return Series(name, [(x, one.mean) for x, one in found], several or None, dashed=False, color_group=0)


def _level(section: Section, rows: Sequence[Row], metric: str, name: str) -> list[Series]:
    """The value of the study's first row as a level beside the line of others, with what is within noise of it."""
    base = section.rows[0]
    level = section.sample(base, metric)
    if not level.values:
        return []
    band = []
    for row in rows:
        own = section.sample(row, metric)
        if row is not base and own.values:
            chance = noise(own, level)
            band.append((row.x, level.mean - chance, level.mean + chance))
    points = [(x, level.mean) for x in (min(row.x for row in rows), max(row.x for row in rows))]
    label = f"{name}, ± noise of a difference" if band else name
    return [Series(label, points, band or None, dashed=True, color_group=1, area=True)]


def _drawn(section: Section, row: Row, metric: str) -> Sample | None:
    """A result over seeds, empty where runs collapsed; None where nothing was measured, which is no collapse."""
    found = section.sample(row, metric)
    return found if found.values or collapses(section.of(row)) else None


def _bars(section: Section) -> Figures:
    methods = list(dict.fromkeys(row.group for row in section.rows if section.of(row)))
    made = {}
    for metric, title in (("effective_rank", _RANK), ("lid", _LID)) if methods else ():
        series, errors = [], []
        for name, with_ldreg in (("without", False), ("with LDReg", True)):
            rows = {row.group: row for row in section.rows if (row.baseline is not None) == with_ldreg}
            found = [_drawn(section, rows[method], metric) for method in methods]
            series.append((name, [None if one is None else one.mean for one in found]))
            errors.append([one.deviation if one is not None and len(one.values) > 1 else None for one in found])
        made[title] = bars([METHODS[method] for method in methods], series, errors=errors, ylabel=title)
    return made


def _ablation(section: Section) -> Figures:
    own = {group: [row for row in section.rows if row.group == group] for group in ("beta", "k")}
    # The row of the recipe stands among those over k, and belongs to the line over beta too.
    usual = {row.names[2] for row in own["beta"]}
    own["beta"] += [replace(row, x=float(row.names[1])) for row in own["k"] if row.names[2] in usual]
    made: dict[str, Figure] = {}
    for metric, title in (("linear", _LINEAR), ("effective_rank", _RANK), ("lid", _LID)):
        for group, label in (("beta", "β"), ("k", "k")):
            made |= _sweep(section, own[group], metric, title, label, "SimCLR + LDReg")
    return made


def _min_lid(section: Section) -> Figures:
    own = [row for row in section.rows if row.group == "minlid"]
    made: dict[str, Figure] = {}
    for metric, title in (("lid", _LID), ("effective_rank", _RANK), ("linear", _LINEAR)):
        made |= _sweep(section, own, metric, title, "β of Min LID", "SimCLR + Min LID")
    return made


def _sweep(section: Section, rows: Sequence[Row], metric: str, title: str, over: str, name: str) -> dict[str, Figure]:
    line = _line(section, rows, metric, name)
    if not line.points:
        return {}
    series, xlabel = [line, *_level(section, rows, metric, "SimCLR")], over.split()[0]
    return {f"{title.partition(',')[0]} and {over}": lines(series, xlabel=xlabel, ylabel=title, logx=True)}


def _tsne(section: Section) -> Figures:
    shown = []
    for row in section.rows:
        found = next((record for record in section.of(row) if record.tsne), None)
        if found is not None:
            beta = found.settings.get(f"{found.settings.get('regularizer')}.beta")
            text = "?" if beta is None else f"{beta:g}"
            title = "No regularization" if row.names[0] == "-" else f"{row.names[0]}, β = {text}"
            shown.append((title, found.tsne, found.tsne_labels))
    if not shown:
        return {}
    sizes = sorted({len(points) for _, points, _ in shown})
    numbers = " to ".join(map(str, dict.fromkeys((sizes[0], sizes[-1]))))
    caption = f"t-SNE of held-out images\n{numbers} images each, colored by class."
    return {caption: scatter_panels(shown, columns=min(4, len(shown)))}


_DRAWN: Mapping[str, Callable[[Section], Figures]] = {
    "figure2a": _over_training,
    "figure2b": _jitter,
    "figure2cd": _bars,
    "ablation": _ablation,
    "minlid": _min_lid,
    "tsne": _tsne,
}
