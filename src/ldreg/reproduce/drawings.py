"""The paper's figures, drawn from records, and from the experiments in the plane that need none."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

from matplotlib.figure import Figure

from ldreg.record import PointCloud, Record
from ldreg.report.plots import Series, bars, cloud_panels, line_panels, lines, scatter_panels
from ldreg.report.tables import Cell, Table
from ldreg.reproduce.plane import TARGETS, collapse_and_cure, reach_targets
from ldreg.reproduce.statistics import TRAIN_LID, Records, Sample, collapses, in_percent, noise, sample
from ldreg.reproduce.studies import METHODS, Row, Scale, Study
from ldreg.text import number

Figures = Mapping[str, Figure]
Band = list[tuple[float, float, float]]

_RANGE = "Where there are several seeds, the line is their mean and the band their range."
_BY_MONITOR = (
    "By the images that the monitor takes, of which there are fewer than in the tables, so that as many voters are "
    "farther away: differences may have another sign there."
)
_OF_VIEWS = "Of representations in a batch: the variance that comes from the view of an image and not from the image."


def drawings(study: Study, scale: Scale, records: Records) -> Figures:
    """The figures of a study by their captions; none where it is a table, or nothing was measured yet."""
    draw = _DRAWN.get(study.name)
    return {} if draw is None else draw(study.rows(scale), records)


def _mean_curve(records: Sequence[Record], metric: str) -> tuple[list[tuple[float, float]], Band]:
    """A metric over epochs: its mean over seeds, and its range where there are several; accuracies in percent."""
    factor = 100.0 if in_percent(metric) else 1.0
    by_epoch: dict[float, list[float]] = {}
    for record in records:
        for epoch, value in record.curves.get(metric, ()):
            if math.isfinite(value):
                by_epoch.setdefault(epoch, []).append(factor * value)
    points = [(epoch, sum(values) / len(values)) for epoch, values in sorted(by_epoch.items())]
    band = [(epoch, min(values), max(values)) for epoch, values in sorted(by_epoch.items())] if len(records) > 1 else []
    return points, band


def _over_training(rows: Sequence[Row], records: Records) -> Figures:
    made = {}
    for title, words, metric, label in (
        ("LID over training", f"Of training images. {_RANGE}", "lid", "LID, geometric mean"),
        ("kNN accuracy over training", _BY_MONITOR, "knn", "kNN accuracy, %"),
        ("Share of the view over training", _OF_VIEWS, "view_share", "share of variance, %"),
    ):
        shown = _training_curves(rows, records, metric)
        if shown:
            made[f"{title}\n{words}"] = line_panels(shown, xlabel="epoch", ylabel=label)
    return made


def _training_curves(rows: Sequence[Row], records: Records, metric: str) -> list[tuple[str, list[Series]]]:
    """A metric over epochs for each method that there are runs of, without and with LDReg."""
    found: dict[str, list[Series]] = {}
    for row in rows:
        points, band = _mean_curve(records.get(row.arm, ()), metric)
        if points:
            with_ldreg = row.baseline is not None
            name = "with LDReg" if with_ldreg else "without"
            line = Series(name, points, band or None, dashed=not with_ldreg, color_group=int(with_ldreg))
            found.setdefault(METHODS[row.group], []).append(line)
    return list(found.items())


def _jitter(rows: Sequence[Row], records: Records) -> Figures:
    series = []
    for place, row in enumerate(rows):
        found = records.get(row.arm, ())
        points, band = _mean_curve(found, "lid")
        if points:
            accuracy = sample(found, "linear")
            told = f"strength {row.x:g}" + (f", linear {accuracy.mean:.1f} %" if accuracy.values else "")
            series.append(Series(told, points, band or None, dashed=False, color_group=place))
    if not series:
        return {}
    final = [
        _line(rows, records, TRAIN_LID, "at the end"),
        *_level(rows, rows[0], records, TRAIN_LID, f"strength {rows[0].x:g}"),
    ]
    return {
        "Over training\nLinear accuracy is in the legend.": lines(series, xlabel="epoch", ylabel="LID, geometric mean"),
        "At the end of training": lines(final, xlabel="strength of color jitter", ylabel="LID, geometric mean"),
    }


def _line(rows: Sequence[Row], records: Records, metric: str, name: str, *, group: int = 0) -> Series:
    """A result over the x of rows, with its range over seeds."""
    found = [(row.x, one) for row in rows if (one := _drawn(records.get(row.arm, ()), metric)) is not None]
    several = [(x, min(one.values), max(one.values)) for x, one in found if len(one.values) > 1]
    return Series(name, [(x, one.mean) for x, one in found], several or None, dashed=False, color_group=group)


def _bars(rows: Sequence[Row], records: Records) -> Figures:
    methods = list(dict.fromkeys(row.group for row in rows if records.get(row.arm)))
    made = {}
    for metric, title in (("effective_rank", "Effective rank"), ("lid", "LID, geometric mean")):
        series, errors = [], []
        for name, with_ldreg in (("without", False), ("with LDReg", True)):
            found = [_of_method(rows, method, with_ldreg, metric, records) for method in methods]
            series.append((name, [None if one is None else one.mean for one in found]))
            errors.append([one.deviation if one is not None and len(one.values) > 1 else None for one in found])
        if methods:
            made[title] = bars([METHODS[method] for method in methods], series, errors=errors, ylabel=title)
    return made


def _of_method(rows: Sequence[Row], method: str, with_ldreg: bool, metric: str, records: Records) -> Sample | None:
    row = next(row for row in rows if row.group == method and (row.baseline is not None) == with_ldreg)
    return _drawn(records.get(row.arm, ()), metric)


def _drawn(records: Sequence[Record], metric: str) -> Sample | None:
    """A result over seeds, empty where runs collapsed; None where nothing was measured, which is no collapse."""
    found = sample(records, metric)
    return found if found.values or collapses(records) else None


def _ablation(rows: Sequence[Row], records: Records) -> Figures:
    made = {}
    titles = {"linear": "Linear accuracy, %", "effective_rank": "Effective rank", "lid": "LID, geometric mean"}
    for metric, title in titles.items():
        for group, label in (("beta", "β"), ("k", "k")):
            own = _of_group(rows, group)
            line = _line(own, records, metric, "SimCLR + LDReg")
            if line.points:
                series = [line, *_level(own, rows[0], records, metric, "SimCLR")]
                made[f"{title.partition(',')[0]} and {label}"] = lines(series, xlabel=label, ylabel=title, logx=True)
    return made


def _of_group(rows: Sequence[Row], group: str) -> list[Row]:
    """The rows of a line; over beta with that of the recipe, which stands among those over k."""
    own = [row for row in rows if row.group == group]
    usual = {row.names[2] for row in own} if group == "beta" else set()
    return own + [replace(row, x=float(row.names[1])) for row in rows if row.group == "k" and row.names[2] in usual]


def _level(rows: Sequence[Row], base: Row, records: Records, metric: str, name: str) -> list[Series]:
    """The value of a row as a level beside the line of others, with what is within noise of it."""
    level = sample(records.get(base.arm, ()), metric)
    if not level.values:
        return []
    band = []
    for row in rows:
        own = sample(records.get(row.arm, ()) if row is not base else (), metric)
        chance = noise(own, level) if own.values else math.nan
        if math.isfinite(chance):
            band.append((row.x, level.mean - chance, level.mean + chance))
    ends = min(row.x for row in rows), max(row.x for row in rows)
    points = [(x, level.mean) for x in ends]
    return [
        Series(
            f"{name}, ± noise of a difference" if band else name, points, band or None, True, color_group=1, area=True
        )
    ]


def _sweep(rows: Sequence[Row], records: Records) -> Figures:
    made = {}
    own = [row for row in rows if row.group == "minlid"]
    titles = {"lid": "LID, geometric mean", "effective_rank": "Effective rank", "linear": "Linear accuracy, %"}
    for metric, title in titles.items():
        line = _line(own, records, metric, "SimCLR + Min LID")
        if line.points:
            series = [line, *_level(own, rows[0], records, metric, "SimCLR")]
            made[f"{title.partition(',')[0]} and β of Min LID"] = lines(series, xlabel="β", ylabel=title, logx=True)
    return made


def _tsne(rows: Sequence[Row], records: Records) -> Figures:
    shown = []
    for row in rows:
        found = [record for record in records.get(row.arm, ()) if record.tsne]
        if found:
            title = "No regularization" if row.names[0] == "-" else f"{row.names[0]}, β = {_beta(found[0])}"
            shown.append((title, found[0].tsne, found[0].tsne_labels))
    if not shown:
        return {}
    sizes = sorted({len(points) for _, points, _ in shown})
    told = f"{' to '.join(map(str, dict.fromkeys((sizes[0], sizes[-1]))))} images each, colored by class."
    return {f"t-SNE of held-out images\n{told}": scatter_panels(shown, columns=min(4, len(shown)))}


def _beta(record: Record) -> str:
    key = f"{record.settings.get('regularizer')}.beta"
    return f"{record.settings[key]:g}" if key in record.settings else "?"


_DRAWN: Mapping[str, Callable[[Sequence[Row], Records], Figures]] = {
    "figure2a": _over_training,
    "figure2b": _jitter,
    "figure2cd": _bars,
    "ablation": _ablation,
    "minlid": _sweep,
    "tsne": _tsne,
}


@cache
def clouds(name: str) -> tuple[PointCloud, ...]:
    """The clouds of an experiment in the plane, "figure1" or "targets"; empty for any other study."""
    made = {"figure1": lambda: collapse_and_cure(seed=0), "targets": lambda: reach_targets(TARGETS, seed=0)}
    return tuple(made[name]()) if name in made else ()


def cloud_figure(name: str) -> Figures:
    """The clouds of an experiment in the plane, side by side."""
    shown = clouds(name)
    if not shown:
        return {}
    close = name == "targets"
    return {"Points of the plane, colored by LID": cloud_panels(shown, columns=3 if close else len(shown), close=close)}


def cloud_table(name: str) -> Table:
    """Their numbers."""
    rows = [
        [cloud.caption, number(cloud.mean_lid), f"{cloud.fisher_rao:.2f}", number(cloud.global_dimension)]
        for cloud in clouds(name)
    ]
    columns = ["Cloud", "LID, geometric mean", "Fisher-Rao distance to 2", "Global dimension"]
    return Table(columns, [[Cell(text) for text in row] for row in rows])
