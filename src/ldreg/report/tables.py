"""Tables, shown as text in a terminal or as Markdown; pages show them as HTML.

A table holds text, not numbers: each cell may carry the paper's value, a mark and a remark, which a pandas frame of
numbers cannot, and importing pandas would add a third of a second to every command that prints a table.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table as TextTable
from rich.text import Text

from ldreg.inspection.report import ClassLID, CollapsedPoint, DimensionReport
from ldreg.record import Record, is_share
from ldreg.text import broken, count, duration, interval, markdown_text, number, one_line, percent, printable

Mark = Literal["", "agrees", "disagrees", "noise"]

# Symbol, meaning and terminal color of each mark.
MARKS: dict[Mark, tuple[str, str, str]] = {
    "agrees": ("✓", "same direction as in the paper", "green"),
    "disagrees": ("✗", "opposite direction", "red"),
    "noise": ("≈", "within noise", "yellow"),
}
TITLES = {
    "lid": "LID, geometric mean",
    "lid_low": "LID, 5 % quantile",
    "effective_rank": "Effective rank",
    "linear": "Linear probe",
    "linear_best": "Linear probe, best epoch",
    "knn": "kNN accuracy",
    "finetune": "Fine-tuned",
    "transfer": "Transfer",
    "box_ap": "AP box",
    "box_ap50": "AP50 box",
    "box_ap75": "AP75 box",
    "mask_ap": "AP mask",
    "mask_ap50": "AP50 mask",
    "mask_ap75": "AP75 mask",
    "rankme": "RankMe",
    "frechet_variance": "Fréchet variance of LID",
    "degenerate": "Degenerate points",
    "view_share": "Share of the view",
    "loss": "Loss",
    "minutes": "Minutes of training",
    "images_per_second": "Images per second",
}
HEADLINES = ("lid", "effective_rank", "linear", "knn")

# Start of the title of a result with a detail, such as "knn/k = 20".
_DETAILED = {
    "lid": "LID, ",
    "effective_rank": "Effective rank, ",
    "linear": "Linear, ",
    "knn": "kNN, ",
    "finetune": "Fine-tuned, ",
    "transfer": "Transfer to ",
}
_ESTIMATORS = {"mom": "method of moments", "mle": "maximum likelihood", "tle": "tight locality"}
_CLASSES_AS_TEXT = 20
_DASH = number(None)
_KEY_WIDTH = 20  # terminal columns that the name of a row keeps when a table is too wide
_TITLE_WORD = 18  # terminal columns from which a word of a column's name is broken
_GAP = 3  # terminal columns between two columns of a table
_NAME = 60  # characters of a point's name
_NAME_WIDTH = 21  # terminal columns of the names in a table with explanations


@dataclass(frozen=True)
class Cell:
    """A value as text, and what belongs to it.

    Args:
        text: what was measured, or the name of a row
        paper: the paper's value, if it has one
        mark: whether an effect agrees with the paper's direction; empty if there is none to judge
        remark: such as the difference to another value
    """

    text: str
    paper: str = ""
    mark: Mark = ""
    remark: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells under column names; the first `keys` cells name the row.

    Args:
        columns: their names
        rows: one cell per column each
        keys: number of leading columns that name the rows; they are repeated if a wide table is broken
        title: heading of the table
        explained: whether the last column is an explanation and not a value

    >>> print(table_markdown(Table(["Method", "LID"], [[Cell("SimCLR"), Cell("6.2", "15.9")]])))
    | Method | LID |
    |---|---:|
    | SimCLR | 6.2 (paper: 15.9) |
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    keys: int = 1
    title: str = ""
    explained: bool = False

    def values(self) -> range:
        """Places of the columns that hold values."""
        return range(self.keys, len(self.columns) - self.explained)

    def having(self, part: Literal["mark", "paper", "remark"]) -> list[bool]:
        """For each column, whether some cell has this part."""
        return [any(getattr(row[place], part) for row in self.rows) for place in range(len(self.columns))]


def legend(table: Table, paper: str = "") -> str:
    """What the marks and signs in the table mean; `paper` says where the paper's values are."""
    cells = [cell for row in table.rows for cell in row]
    used = {cell.mark for cell in cells}
    marks = "; ".join(f"{symbol} {meaning}" for mark, (symbol, meaning, _) in MARKS.items() if mark in used)
    spread = "±: standard deviation over seeds." if any("±" in cell.text for cell in cells) else ""
    return " ".join(filter(None, [marks and f"{marks}.", spread, paper if any(cell.paper for cell in cells) else ""]))


def table_markdown(table: Table) -> str:
    """The table in GitHub's Markdown, with its legend below."""

    def shown(cell: Cell) -> str:
        paper = f"(paper: {markdown_text(cell.paper)})" if cell.paper else ""
        return " ".join(filter(None, [markdown_text(cell.text), cell.mark and MARKS[cell.mark][0], paper])) or " "

    rows = [map(markdown_text, table.columns), *(map(shown, row) for row in table.rows)]
    head, *body = [f"| {' | '.join(row)} |" for row in rows]
    ruler = "".join(f"|{'---' if place < table.keys else '---:'}" for place in range(len(table.columns))) + "|"
    below = legend(table)
    return "\n".join([head, ruler, *body, *(["", markdown_text(below)] if below else [])])


def table_text(table: Table, *, width: int = 80, color: bool = False) -> str:
    """The table in lines of at most `width` columns, in several parts if it is wider, with its legend."""
    below = Text(legend(table, "In parentheses: the paper's values."), style="dim")
    return rendered([*text_parts(table, width=width), below], width=width, color=color).rstrip()


def rendered(parts: Iterable[RenderableType], *, width: int, color: bool) -> str:
    """Parts for a terminal as lines of at most `width` columns."""
    console = Console(
        file=StringIO(), width=width, force_terminal=color, color_system="standard" if color else None, highlight=False
    )
    with console.capture() as capture:
        console.print(Group(*parts))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def text_parts(table: Table, *, width: int) -> list[RenderableType]:
    """The table for a terminal, each part followed by an empty line."""
    titles = [printable(title) for title in table.columns]
    names = [[Text(printable(row[place].text)) for row in table.rows] for place in range(len(titles))]
    if table.explained:
        return [_explained(table, titles, names), ""]
    titles[0] = titles[0] or printable(table.title)
    columns = [_values(table, place) if place in table.values() else names[place] for place in range(len(titles))]
    widths = _widths(table.keys, titles, columns, width)
    for place in table.values():
        for cell in columns[place]:  # rich would drop the leading spaces that align them
            cell.pad_left(max(0, widths[place] - cell.cell_len))
    keys = range(table.keys)
    parts: list[RenderableType] = []
    for places in _blocks(table, widths, width):
        drawn = TextTable(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1))
        for place in [*keys, *places]:
            head = Text(broken(titles[place], widths[place]), justify="right" if place in places else None)
            drawn.add_column(head, width=widths[place], overflow="fold")
        shown = [[Text(broken(cell.plain, widths[place])) for cell in columns[place]] for place in keys]
        for row in zip(*shown, *(columns[place] for place in places), strict=True):
            drawn.add_row(*row)
        parts += [drawn, ""]
    return parts


def _explained(table: Table, titles: Sequence[str], columns: Sequence[Sequence[Text]]) -> TextTable:
    """A table with explanations: the columns of all such tables have the same widths."""
    drawn = TextTable(box=SIMPLE_HEAD, expand=True, show_edge=False, padding=(0, 1))
    drawn.add_column(table.title or titles[0], width=_NAME_WIDTH, no_wrap=True, overflow="ellipsis")
    for place in table.values():
        width, style = (9, "bold") if place == table.keys else (8, "")
        drawn.add_column(titles[place], justify="right", width=width, style=style)
    drawn.add_column(titles[-1], ratio=1, style="dim")
    for row in zip(*columns, strict=True):
        drawn.add_row(*row)
    return drawn


def _widths(keys: int, titles: Sequence[str], columns: Sequence[Sequence[Text]], width: int) -> list[int]:
    """Terminal columns for each column: names are whole if all fits, else those of columns are broken, then of rows."""
    cells = [max((cell.cell_len for cell in column), default=1) for column in columns]
    whole = list(map(max, cells, map(cell_len, titles)))
    if sum(whole) + _GAP * len(whole) <= width:
        return whole
    words = [max((min(cell_len(word), _TITLE_WORD) for word in title.split()), default=1) for title in titles]
    names, values = whole[:keys], list(map(max, cells, words))[keys:]
    room = width - sum(values) - _GAP * len(whole)
    least = max(_KEY_WIDTH, width // (4 * keys))
    while sum(names) > room and max(names) > least:
        names[names.index(max(names))] -= 1
    return [min(each, width) for each in (*names, *values)]


def _blocks(table: Table, widths: Sequence[int], width: int) -> list[list[int]]:
    """Places of the value columns, in as many groups as the width requires."""
    groups: list[list[int]] = [[]]
    for place in table.values():
        together = [*range(table.keys), *groups[-1], place]
        if groups[-1] and sum(widths[each] + _GAP for each in together) > width:
            groups.append([])
        groups[-1].append(place)
    return groups


def _values(table: Table, place: int) -> list[Text]:
    """The cells of a column with text, mark, the paper's value and remark aligned."""
    cells = [row[place] for row in table.rows]
    texts = _aligned([cell.text for cell in cells])
    papers = _aligned([cell.paper and f"({cell.paper})" for cell in cells])
    remarks = _aligned([cell.remark for cell in cells])
    marked = any(cell.mark for cell in cells)
    made = []
    for cell, text, paper, remark in zip(cells, texts, papers, remarks, strict=True):
        shown = Text(text, style="bold")
        if marked:
            symbol, _, color = MARKS.get(cell.mark, (" ", "", ""))
            shown.append(f" {symbol}", style=color)
        if paper:
            shown.append(f" {paper}", style="not bold dim")
        if remark:
            shown.append(f"  {remark}", style="not bold dim")
        made.append(shown)
    return made


def _aligned(texts: Sequence[str]) -> list[str]:
    """Texts of one width, on the right."""
    texts = [printable(text) for text in texts]
    width = max(map(cell_len, texts), default=0)
    return [" " * (width - cell_len(text)) + text for text in texts]


# Tables of an inspection

_Rows = dict[str, tuple[str, str]]  # value and explanation by name


def quantity_tables(report: DimensionReport, *, stacked: bool = False) -> list[Table]:
    """Local and global dimensionality; of two sets in columns side by side or, `stacked`, one below the other."""
    found = report.comparison
    tables = []
    parts = {"Local dimensionality": _local_rows, "Global dimensionality": _global_rows, "Other measures": _other_rows}
    for title, rows in parts.items():
        first, cells = rows(report), list[list[Cell]]()
        if not first:
            continue
        if found is None:
            cells = [_cells(name, *row) for name, row in first.items()]
            tables.append(Table(["", "", ""], cells, title=title, explained=True))
            continue
        other, second = found.other, rows(found.other)
        for name in {**first, **second} if len(first) >= len(second) else {**second, **first}:
            (value, remark), (its_value, its_remark) = (own.get(name, (_DASH, "")) for own in (first, second))
            if stacked:
                shared = "" if remark == its_remark else its_remark
                cells += [_cells(name, value, remark), _cells(f"  {other.title}", its_value, shared)]
            elif remark == its_remark:
                cells.append(_cells(name, value, its_value, remark))
            else:
                cells.append([Cell(name), Cell(value, remark=remark), Cell(its_value, remark=its_remark), Cell("")])
        if rows is _local_rows:
            ratio = f"to {other.title}: |ln({number(report.mean.value)} / {number(other.mean.value)})|"
            words = [number(found.fisher_rao), "" if math.isnan(found.fisher_rao) else ratio]
            cells.append(_cells("Fisher-Rao distance", *([] if stacked else [_DASH]), *words))
        columns = ["", "", ""] if stacked else ["", report.title, other.title, ""]
        tables.append(Table(columns, cells, title=title, explained=True))
    return tables


def report_tables(report: DimensionReport) -> list[Table]:
    """All tables of a report, two sets one below the other."""
    shown = [*quantity_tables(report, stacked=True), collapsed_table(report, row="row ")]
    return [*shown, *filter(None, (class_table(report, stacked=True), layer_table(report)))]


def _cells(*texts: str) -> list[Cell]:
    return [Cell(text) for text in texts]


def _local_rows(report: DimensionReport) -> _Rows:
    low, median, high = map(number, report.quartiles)
    mean, expected = report.mean, report.expected
    rows = {"LID, geometric mean": (number(mean.value), f"95 % confidence {interval(mean.low, mean.high)}")}
    if expected.gaussian_lid is not None:
        rows["LID of a Gaussian"] = (number(expected.gaussian_lid), "with the same covariance, k and N")
    if expected.gaussian_dimension is not None:
        rows["Gaussian dimension"] = (number(expected.gaussian_dimension), "of a Gaussian with this LID")
    degenerate = f"LID 0: {count(report.zero)}; infinite: {count(report.infinite)}; of {count(report.measured)}"
    return rows | {
        "LID, 5 % quantile": (number(report.lid_low), "falls first where a part collapses"),
        "LID, median": (median, f"quartiles {low} and {high}"),
        "LID, arithmetic mean": (number(report.arithmetic_mean), f"harmonic mean {number(report.harmonic_mean)}"),
        "Fréchet variance": (number(report.frechet_variance), "variance of ln LID"),
        "Degenerate points": (percent(report.degenerate_share), degenerate),
        "Exact duplicates": (count(report.duplicated), "points with one; LID is too low there"),
    }


def _global_rows(report: DimensionReport) -> _Rows:
    return {
        "Effective rank": (number(report.effective_rank), "entropy of the covariance spectrum"),
        "RankMe": (number(report.rankme), "entropy of the singular values, uncentered"),
        **{
            name: (number(one.value), "; ".join(filter(None, [meaning if one.value is not None else "", one.note])))
            for name, one, meaning in (
                ("TwoNN", report.twonn, "two nearest neighbors; too low above 20"),
                ("DANCo", report.danco, "angles and norms of neighbors"),
            )
        },
    }


def _other_rows(report: DimensionReport) -> _Rows:
    found = report.measures
    if not found:
        return {}
    scales = [number(scale["dimension"]) for scale in found["gride"]]
    rows = {
        "Participation ratio": (number(found["participation_ratio"]), "of the covariance; follows its largest"),
        "NESum": (number(found["nesum"]), "sum of the eigenvalues over the largest"),
        "Alpha-ReQ": (number(found["alpha_req"]), f"decay of the spectrum; R² {number(found['alpha_req_r2'])}"),
        "Uniformity": (number(found["uniformity"]), "0: one direction; -4: spread out"),
    }
    if found["hubness"] is not None:
        rows["Hubness"] = (number(found["hubness"]), "skewness of neighbor counts")
        rows["Antihubs"] = (percent(found["antihubs"]), "points that are nobody's neighbor")
    if found["alignment"] is not None:
        rows["Alignment"] = (number(found["alignment"]), "distance of views; 0: equal, 2: unrelated")
    if found["lidar"] is not None:
        rows["LiDAR"] = (number(found["lidar"]), "rank of images in units of their views")
    if scales:
        rows["GRIDE"] = (scales[0], f"over growing scales: {', '.join(scales)}")
    return rows


def collapsed_table(report: DimensionReport, *, of: str = "", row: str = "") -> Table:
    """The points of lowest LID; `row` is what their numbers start with."""
    points = report.most_collapsed
    lids = [number(point.lid) for point in points]
    errors = [number(point.standard_error) for point in points]
    rows = [
        _cells(f"{row}{point.index}", lid, error, _what_is_known(point))
        for point, lid, error in zip(points, lids, errors, strict=True)
    ]
    known = ["name"] * (report.names is not None) + ["label"] * (report.labels is not None)
    return Table(["row", "LID", "± s.e.", ", ".join(known)], rows, title=f"Points of lowest LID{of}", explained=True)


def _what_is_known(point: CollapsedPoint) -> str:
    """The name and the label of a point, and how many points equal it."""
    equal = f"{count(point.copies)} equal rows" if point.copies > 1 else ""
    name = one_line(point.name, _NAME) if point.name else ""
    return ", ".join(filter(None, [name, point.label, equal]))


def class_table(report: DimensionReport, *, stacked: bool = False) -> Table | None:
    """LID per class; of two sets side by side or, `stacked`, one below the other, with many classes cut to the ends."""
    if not report.classes:
        return None
    others = classes_of_other(report)
    other = "" if report.comparison is None else report.comparison.other.title
    if others and not stacked:
        rows = []
        for row in report.classes:
            pair = [row, others[row.label]] if row.label in others else [row]
            values = [*(number(one.mean.value) for one in pair), _DASH][:2]
            points = "; ".join(dict.fromkeys(count(one.count) for one in pair))
            rows.append(_cells(row.label, *values, points))
        return Table(["class", report.title, other, "points"], rows, title="LID per class")
    shown, rows = shown_classes(report, _CLASSES_AS_TEXT) if stacked else report.classes, []
    for row in shown:
        beside = [(f"  {other}", others[row.label])] if row.label in others else []
        for name, one in [(row.label, row), *beside]:
            lid = one.mean
            rows.append(_cells(name, number(lid.value), count(one.count), interval(lid.low, lid.high)))
    if left_out := len(report.classes) - len(shown):
        rows.append(_cells(f"({left_out} more)", "", "", "lowest and highest by LID are shown"))
    return Table(["class", "LID", "points", "95 % confidence"], rows, title="LID per class", explained=True)


def layer_table(report: DimensionReport) -> Table | None:
    """What each layer of a model reads, and the kinds of its findings; those of a second model below."""
    rows = []
    for one in [report] if report.comparison is None else [report, report.comparison.other]:
        for layer in one.layers:
            found = ", ".join(dict.fromkeys(finding.kind.replace("_", " ") for finding in layer.findings))
            lid, rank = number(layer.mean.value), f"{number(layer.effective_rank)} of {count(layer.dimensions)}"
            name = layer.name if report.comparison is None else f"{one.title.partition(', ')[0]} {layer.name}"
            rows.append(_cells(name, lid, interval(layer.mean.low, layer.mean.high), rank, found or "nothing unusual"))
    columns = ["layer", "LID", "95 % confidence", "effective rank", "findings"]
    return Table(columns, rows, title="Layer by layer") if rows else None


def settings(report: DimensionReport) -> list[tuple[str, str]]:
    """How the set was measured."""
    convention = ", paper's mean over k" if report.convention == "paper" else ", pseudocode's mean over k - 1"
    return [
        ("measured", f"{count(report.measured)} points, neighbors from all"),
        *([("left out", f"{count(report.left_out)} rows with NaN or inf")] if report.left_out else []),
        ("neighbors k", str(report.k)),
        (
            "estimator",
            _ESTIMATORS.get(report.estimator, report.estimator) + (convention if report.estimator != "tle" else ""),
        ),
        ("seed", str(report.seed)),
        ("device", report.device),
    ]


def classes_of_other(report: DimensionReport) -> dict[str, ClassLID]:
    """The classes of the second set that the first has too, by name."""
    if report.comparison is None:
        return {}
    own = {row.label for row in report.classes}
    return {row.label: row for row in report.comparison.other.classes if row.label in own}


def shown_classes(report: DimensionReport, most: int) -> list[ClassLID]:
    """All classes, or of more than `most` those of lowest and highest LID."""
    if len(report.classes) <= most:
        return list(report.classes)
    ranked = sorted((row for row in report.classes if row.regular), key=lambda row: row.mean.value)
    return ranked[: most - most // 2] + ranked[-(most // 2) :] if len(ranked) > most else ranked


# Tables that compare runs


def metric_title(key: str) -> str:
    """The name of a result as a heading; an unknown key as words.

    >>> metric_title("knn"), metric_title("knn/k = 20"), metric_title("transfer/shapes"), metric_title("my_own")
    ('kNN accuracy', 'kNN, k = 20', 'Transfer to shapes', 'my own')
    """
    what, _, detail = key.partition("/")
    if detail and what in TITLES:
        return _DETAILED.get(what, f"{TITLES[what]}, ") + printable(detail)
    return TITLES.get(key) or printable(key.replace("_", " "))


def metric_value(key: str, value: float) -> str:
    """A result as text: shares in percent, times with their unit, NaN as a dash.

    >>> metric_value("linear", 0.9612), metric_value("lid", 7.4), metric_value("lid", float("nan"))
    ('96.1 %', '7.40', '–')
    >>> metric_value("minutes", 0.08)
    '4.8 s'
    """
    if key == "minutes":
        return duration(value)
    return percent(value) if is_share(key) and math.isfinite(value) else number(value)


def change(key: str, value: float, first: float) -> str:
    """The difference of a result to the first run's: in points of percent for shares, else relative; none of times.

    >>> change("linear", 0.961, 0.968), change("lid", 9.1, 7.4), change("lid", 7.4, 7.4)
    ('−0.7 points', '+23 %', '±0')
    """
    if key == "minutes" or not (math.isfinite(value) and math.isfinite(first)):
        return ""
    if metric_value(key, value) == metric_value(key, first):
        return "±0"
    if is_share(key):
        text = f"{100 * (value - first):+.1f} points"
    elif first > 0:
        relative = 100 * (value - first) / first
        text = f"{relative:+.{0 if abs(relative) >= 9.95 else 1}f} %"
    else:
        text = ("+" if value > first else "-") + number(abs(value - first))
    return text.replace("-", "−")


def run_names(records: Sequence[Record]) -> list[str]:
    """The names of the runs, numbered where they are equal."""
    names = [printable(record.name) or "unnamed" for record in records]
    return [
        name if names.count(name) == 1 else f"{name} ({names[: place + 1].count(name)})"
        for place, name in enumerate(names)
    ]


def ordered_keys(mappings: Iterable[Iterable[str]]) -> list[str]:
    """All keys once: known results by importance, then the others as they come."""
    found = dict.fromkeys(key for mapping in mappings for key in mapping)
    order = list(TITLES)

    def rank(key: str) -> int:
        what = key.partition("/")[0]
        return order.index(what) if what in TITLES else len(order)

    return sorted(found, key=rank)


def result_table(records: Sequence[Record]) -> Table:
    """Every result of any run, with the differences to the first run."""
    rows = []
    for key in ordered_keys(record.results for record in records):
        values = [record.results.get(key, math.nan) for record in records]
        rows.append([Cell("Training time" if key == "minutes" else metric_title(key)), *_compared(key, values)])
        if key == "lid":
            logs = [math.log(mean) if math.isfinite(mean) and mean > 0 else math.nan for mean in values]
            distances = [abs(log - logs[0]) for log in logs[1:]]
            if any(map(math.isfinite, distances)):
                rows.append(_cells("Fisher-Rao distance of LID", _DASH, *map(number, distances)))
    return Table(["", *run_names(records)], rows, title="Results")


def headlines(results: Table) -> Table:
    """The most important rows of the table of results that have a value."""
    titles = [TITLES[key] for key in HEADLINES]
    rows = [row for row in results.rows if row[0].text in titles and any(cell.text != _DASH for cell in row[1:])]
    return Table(results.columns, rows)


def run_class_table(records: Sequence[Record]) -> Table:
    """LID of each class in each run, the lowest class of the first run first."""
    lowest: dict[str, float] = {}
    for record in records:
        for label, value in record.classes.items():
            lowest.setdefault(label, value)
    order = sorted(lowest, key=lambda label: (math.isnan(lowest[label]), lowest[label]))
    rows = [
        [Cell(label), *_compared("lid", [record.classes.get(label, math.nan) for record in records])] for label in order
    ]
    return Table(["", *run_names(records)], rows, title="LID per class")


def setting_table(records: Sequence[Record], *, differing: bool) -> Table:
    """The settings of each run, all of them or those that differ."""
    rows = []
    for key in dict.fromkeys(key for record in records for key in record.settings):
        values = [setting(record, key) for record in records]
        if not differing or len(set(values)) > 1:
            rows.append(_cells(key, *values))
    return Table(["", *run_names(records)], rows, title="Settings that differ" if differing else "All settings")


def _compared(key: str, values: Sequence[float]) -> list[Cell]:
    first, *others = values
    return [
        Cell(metric_value(key, first)),
        *(Cell(metric_value(key, value), remark=change(key, value, first)) for value in others),
    ]


def runs_as_rows(table: Table) -> Table:
    """The values of a table with rows and columns exchanged."""
    rows = [_cells(name, *(row[place].text for row in table.rows)) for place, name in enumerate(table.columns) if place]
    return Table([table.title, *(row[0].text for row in table.rows)], rows)


def setting(record: Record, key: str) -> str:
    """A setting of a run as text."""
    return _written(record.settings[key]) if key in record.settings else _DASH


def _written(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_written, value)) or "none"
    return str(value)
