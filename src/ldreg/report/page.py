"""The report as one self-contained page: no script, no request, light and dark, any width."""

from collections.abc import Iterable, Sequence
from html import escape

from matplotlib.figure import Figure

from ldreg.dimension.geometry import regular
from ldreg.inspection.report import ClassLID, DimensionReport
from ldreg.io.files import PAGE_START
from ldreg.record import PointCloud
from ldreg.report.figures import CLASS_COLORS, DRAWN_CLASSES, DRAWN_POINTS, class_figures, figures, plain_style, svg
from ldreg.report.keys import KEYS_STYLE, line_key, with_keys
from ldreg.report.panels import cloud_numbers, panel
from ldreg.report.summary import Row, classes_of_other, global_rows, local_rows, settings
from ldreg.report.two_sets import figures_of_both
from ldreg.report.words import USES, sentence
from ldreg.text import count, interval, number, percent, printable

_CAPTIONS = {
    "histogram": (
        "How LID is spread",
        "Shaded: the middle half of the points. Those far to the left of it are the most collapsed.",
    ),
    "map": ("Where LID is low", "First two principal axes; red points are the most collapsed."),
    "density": ("LID against density", "Each dot is a point. Collapse in dense spots pulls the left side down."),
    "spectrum": ("Global spectrum", "Eigenvalues of the covariance. A cliff means that whole directions are unused."),
    "map-classes": ("Where the classes are", "The same map, colored by label."),
    "classes": ("LID per class", "Geometric mean and 95 % confidence; the line is the mean of all."),
}

_SHOWN = 6  # findings before the fold

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2127; --soft: #5b6570; --page: #f6f7f9; --card: #fff; --line: #dfe3e8;
  --accent: #b4511a; --shade: rgb(0 0 0 / .2); }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --soft: #9aa5b1; --page: #14171a; --card: #1d2125;
  --line: #333a41; --accent: #f0955a; --shade: rgb(255 255 255 / .22); } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 2rem 1.25rem 3rem; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 2.2rem 0 .7rem; }
h2, p, li, figcaption, small, summary, caption { overflow-wrap: anywhere; }
p { margin: .5rem 0; max-width: 46rem; }
.scope, .remark, figcaption span, footer { color: var(--soft); }
.scope { margin: .2rem 0 0; }
.words { font-size: 1.05rem; }
.findings { list-style: none; margin: 1rem 0; padding: 0; max-width: 46rem; }
.findings li { border-left: .3rem solid var(--line); padding: .15rem 0 .15rem .8rem; margin: .55rem 0; }
.findings .critical { border-color: var(--accent); font-weight: 600; }
.findings .warning { border-color: var(--accent); }
.tiles, .figures { display: grid; gap: 1rem; }
.tiles { grid-template-columns: repeat(auto-fit, minmax(min(100%, 9.5rem), 1fr)); margin: 1.4rem 0; }
.figures { grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); align-items: start; }
.figures.small { grid-template-columns: repeat(auto-fit, minmax(min(100%, 17rem), 1fr)); }
.tables { columns: 26rem; column-gap: 1rem; }
.tables > * { break-inside: avoid; margin: 0 0 1rem; }
.tile, figure, .card { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; }
@media (max-width: 30rem) { .tile.first:nth-last-child(5) { grid-column: 1 / -1; } }
.tile { padding: .8rem 1rem; min-width: 0; }
.tile b { display: block; font-size: 1.75rem; line-height: 1.25; font-variant-numeric: tabular-nums; }
.tile.first b { color: var(--accent); }
.tile small { display: block; color: var(--soft); font-size: .8rem; line-height: 1.35; }
figure { margin: 0; max-width: 36rem; padding: .9rem 1rem .6rem; min-width: 0; }
figcaption { font-weight: 600; line-height: 1.35; margin-bottom: .5rem; }
figcaption span { display: block; font-weight: 400; font-size: .85rem; }
figure svg { display: block; width: 100%; height: auto; color: var(--ink); }
figure svg text { font-family: inherit !important; }
.card { padding: .3rem 1rem; min-width: 0; overflow-x: auto; }
.card, figure.wide { background:
  linear-gradient(to left, var(--card) 40%, transparent) right / 3rem 100% no-repeat local,
  linear-gradient(to left, var(--shade), transparent) right / 1rem 100% no-repeat scroll, var(--card); }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
caption { text-align: left; font-weight: 600; padding: .6rem 0 .3rem; }
th, td { padding: .35rem .6rem .35rem 0; text-align: left; vertical-align: baseline;
  border-top: 1px solid var(--line); }
th { font-weight: 400; overflow-wrap: anywhere; }
thead th { color: var(--soft); font-size: .8rem; border-top: 0; }
.named thead th { overflow-wrap: normal; vertical-align: bottom; }
.named .name { display: inline-block; max-width: 7rem; white-space: normal; overflow-wrap: anywhere; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.n:nth-child(2) { font-weight: 600; }
.card td:nth-child(4) { padding-left: .8rem; }
.card thead th:nth-child(4) { padding-left: .8rem; }
td.remark { font-size: .85rem; overflow-wrap: anywhere; }
tr > :last-child { padding-right: 0; }
@media (min-width: 34rem) { .quantities th { white-space: nowrap; width: 1%; } }
details { margin: 1rem 0 0; }
summary { cursor: pointer; font-weight: 600; }
code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: .85em; overflow-wrap: anywhere; }
footer { margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: .8rem; font-size: .85rem; }
"""

_COMPARED_STYLE = """
.tile.first b { color: inherit; }
.card { margin-bottom: 1rem; }
.both th[scope=row] { min-width: 6.6rem; overflow-wrap: break-word; }
.both thead th { vertical-align: bottom; white-space: normal; }
.both thead td { border-top: 0; }
.both thead svg.key { margin: 0 .35rem 0 0; }
.both td.n, .both td.one { font-weight: 600; padding-left: .6rem; min-width: 6.5rem; }
.both td.one { text-align: center; font-variant-numeric: tabular-nums; }
.both td small { display: block; color: var(--soft); font-size: .8rem; font-weight: 400; white-space: normal; }
.both td.remark { padding-left: 1rem; min-width: 8rem; }
@media (min-width: 48rem) { .both th[scope=row] { width: 19%; } .both td.n, .both thead th { width: 23%; } }
@media (max-width: 34rem) {
  .both tr { display: grid; grid-template-columns: minmax(0, 1fr) repeat(2, minmax(0, 6.5rem));
    border-top: 1px solid var(--line); padding: .35rem 0; }
  .both tr > * { border: 0; padding-top: 0; padding-bottom: 0; }
  .both thead tr { border: 0; align-items: end; }
  .both td.n { min-width: 0; overflow-wrap: anywhere; }
  .both td.one { grid-column: span 2; }
  .both td.remark { grid-column: 1 / -1; padding-left: 0; }
  .both td:empty:last-child { display: none; }
}
"""

_READING = (
    "LID counts the independent directions in which points vary close to a given point. Its geometric mean is the "
    "natural summary: the center of all points under the Fisher-Rao metric. Local collapse shows as points, or "
    "classes, whose LID is far below the rest.",
    "High dimensions read low from any finite set: with 10,000 points and k = 64, a 5-dimensional Gaussian reads 5.1, "
    "a 20-dimensional one 16, a 50-dimensional one 29. Compare embeddings of as many points at the same k.",
    USES,
    "A degenerate point has no defined dimension: its k neighbors all coincide with it (LID 0; under maximum "
    "likelihood one exact duplicate is enough) or are all equally far (LID infinite). Statistics leave such points "
    "out. The confidence interval allows for neighbors that points share; it covers chance, not the bias above.",
)


@plain_style()
def page(report: DimensionReport, *, further: Iterable[str] = ()) -> str:
    """The whole page as HTML; `further` sections, HTML each, come between the figures and the tables."""
    title = escaped(report.title)
    return document(
        f"{title}: local intrinsic dimensionality",
        [
            f"<h1>{title}</h1>",
            f'<p class="scope">{_scope(report)}</p>',
            _findings(report),
            _tiles(report),
            _figures(report),
            *further,
            "<h2>All numbers</h2>",
            *_tables(report),
            _explanation(),
            _origin(report),
        ],
        style="" if report.comparison is None else KEYS_STYLE + _COMPARED_STYLE,
    )


def document(title: str, body: Iterable[str], *, style: str = "") -> str:
    """A page of HTML parts under an escaped title; its policy lets no request out and no script run.

    `style` is CSS that comes after that of all pages.
    """
    return (
        f'{PAGE_START}<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}{style}</style>\n</head>\n"
        "<body>\n<main>\n" + "\n".join(part for part in body if part) + "\n</main>\n</body>\n</html>\n"
    )


@plain_style()
def clouds_section(name: str, title: str, text: str, clouds: Sequence[PointCloud], *, close: bool = False) -> str:
    """A section that draws point clouds side by side, each with its numbers in its caption."""
    drawn = [
        figure_card(escaped(cloud.caption), cloud_numbers(cloud), svg(panel(cloud, close=close), f"{name}-{place}"))
        for place, cloud in enumerate(clouds)
    ]
    return f'<h2>{escaped(title)}</h2><p>{escaped(text)}</p><div class="figures small">{"".join(drawn)}</div>'


def _scope(report: DimensionReport) -> str:
    own = f"{_size(report)}. Neighbors k = {report.k}."
    if report.comparison is None:
        return own
    other = report.comparison.other
    return f"{own} Compared with {escaped(other.title)}: {_size(other)}."


def _size(report: DimensionReport) -> str:
    part = "" if report.measured == report.points else f"; {count(report.measured)} of them measured"
    return f"{count(report.points)} points in {count(report.dimensions)} dimensions{part}"


def _findings(report: DimensionReport) -> str:
    """The findings, the most serious first; what is more than a note is marked."""
    items = [f'<li class="{finding.severity}">{escaped(sentence(finding, report))}</li>' for finding in report.findings]
    shown, rest = items[:_SHOWN], items[_SHOWN:]
    more = f"<details><summary>{len(rest)} more findings</summary><ul>{''.join(rest)}</ul></details>" if rest else ""
    return f'<ul class="findings">{"".join(shown)}</ul>{more}'


def _tiles(report: DimensionReport) -> str:
    tiles = _own_tiles(report)
    if report.comparison is not None:
        other = report.comparison.other
        title = escaped(other.title)
        tiles = [
            (name, value, f"{remark}<br>{title}: {beside}")
            for (name, value, remark), (_, beside, _) in zip(tiles, _own_tiles(other), strict=True)
        ]
        tiles.append(("Fisher-Rao distance", number(report.comparison.fisher_rao), f"of LID to that of {title}"))
    cells = [
        f'<div class="tile{"" if place else " first"}"><small>{name}</small><b>{value}</b><small>{remark}</small></div>'
        for place, (name, value, remark) in enumerate(tiles)
    ]
    return f'<div class="tiles">{"".join(cells)}</div>'


def _own_tiles(report: DimensionReport) -> list[tuple[str, str, str]]:
    return [
        (
            "LID, geometric mean",
            number(report.mean.value),
            f"95 % confidence {interval(report.mean.low, report.mean.high)}; 5 % of the points read at most "
            f"{number(report.lid_low)}",
        ),
        ("Effective rank", number(report.effective_rank), f"of {count(report.dimensions)} dimensions"),
        ("Global dimension", number(report.danco.value), f"DANCo; TwoNN {number(report.twonn.value)}"),
        ("Degenerate points", percent(report.degenerate_share), f"{count(report.duplicated)} with an exact duplicate"),
    ]


def _figures(report: DimensionReport) -> str:
    if report.comparison is None:
        drawn = [_figure(report, name, figure) for name, figure in figures(report).items()]
    else:
        drawn = _compared_figures(report, report.comparison.other)
    return f'<div class="figures">{"".join(drawn)}</div>' if drawn else ""


def _figure(report: DimensionReport, name: str, figure: Figure, remark: str = "") -> str:
    title, caption = _CAPTIONS[name]
    return figure_card(title, caption + _omitted(report, name) + remark, svg(figure, name))


def _compared_figures(report: DimensionReport, other: DimensionReport) -> list[str]:
    """Cards of both sets, and of the classes, which the first has, and the second where it has labels."""
    cards = [
        with_keys(
            figure_card(escaped(drawn.title), escaped(drawn.caption), svg(drawn.figure, drawn.name)),
            [escaped(name) for name in drawn.legend],
        )
        for drawn in figures_of_both(report, other)
    ]
    alone = f" Of {escaped(report.title)} alone"
    remarks = dict.fromkeys(_CAPTIONS, f"{alone}." if other.classes else f"{alone}, which has the labels.")
    if classes_of_other(report):
        remarks["classes"] = f" Bars: {escaped(report.title)}; diamonds: the same classes of {escaped(other.title)}."
    return [*cards, *(_figure(report, name, figure, remarks[name]) for name, figure in class_figures(report).items())]


def figure_card(title: str, caption: str, picture: str) -> str:
    """A picture under its title and caption, all of them HTML."""
    picture = picture.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)
    return f"<figure><figcaption>{title}<span>{caption}</span></figcaption>{picture}</figure>"


def _omitted(report: DimensionReport, name: str) -> str:
    """What a figure leaves out, to go with its caption."""
    if name == "classes" and len(report.classes) > DRAWN_CLASSES:
        return f" Of {count(len(report.classes))} classes, the lowest and the highest."
    if name == "map-classes" and len(report.classes) > len(CLASS_COLORS):
        return " The classes of lowest LID are in color."
    known = int(regular(report.lid).sum())
    if name in ("map", "density") and known > DRAWN_POINTS:
        return f" {count(DRAWN_POINTS)} of {count(known)} points are drawn."
    return ""


def _tables(report: DimensionReport) -> list[str]:
    """All numbers; those of a set compared with beside them, which takes the whole width."""
    quantities = [
        ("Local dimensionality", local_rows(report)),
        ("Global dimensionality", global_rows(report)),
    ]
    if report.comparison is None:
        cards = [_quantities(title, rows) for title, rows in quantities]
        return ['<div class="tables">', *cards, _collapsed(report), _classes(report), "</div>"]
    both = (report, report.comparison.other)
    names = [escaped(one.title) for one in both]
    cards = [_quantities_of_both(title, rows, names) for title, rows in quantities]
    collapsed = [_collapsed(one, of=f" of {name}") for one, name in zip(both, names, strict=True)]
    return [*cards, '<div class="tables">', *collapsed, _classes(report), "</div>"]


def _quantities(title: str, rows: Iterable[Row]) -> str:
    body = "".join(
        f'<tr><th scope="row">{row.name}</th><td class="n">{row.value}</td>'
        f'<td class="remark">{escaped(row.remark)}</td></tr>'
        for row in rows
    )
    table = f'<table class="quantities"><caption>{title}</caption><tbody>{body}</tbody></table>'
    return f'<div class="card">{table}</div>'


def _quantities_of_both(title: str, rows: Iterable[Row], names: Sequence[str]) -> str:
    """A column for each set, of escaped name; what is remarked of both alike comes last, the rest under its value."""
    heads = "".join(f'<th scope="col" class="n">{line_key(place)}{name}</th>' for place, name in enumerate(names))
    body = "".join(f'<tr><th scope="row">{row.name}</th>{_both_cells(row)}</tr>' for row in rows)
    table = (
        f'<table class="quantities both"><caption>{title}</caption><thead><tr><td></td>{heads}<td></td></tr></thead>'
    )
    return f'<div class="card">{table}<tbody>{body}</tbody></table></div>'


def _both_cells(row: Row) -> str:
    if row.beside is None:
        return f'<td class="one" colspan="2">{row.value}</td><td class="remark">{escaped(row.remark)}</td>'
    alike = row.remark == row.beside.remark
    cells = [
        f'<td class="n">{one.value}' + ("" if alike else f"<small>{escaped(one.remark)}</small>") + "</td>"
        for one in (row, row.beside)
    ]
    return f'{"".join(cells)}<td class="remark">{escaped(row.remark) if alike else ""}</td>'


def _collapsed(report: DimensionReport, *, of: str = "") -> str:
    labeled = report.labels is not None
    rows = [
        [str(point.index), number(point.lid), number(point.standard_error), *([point.label or ""] if labeled else [])]
        for point in report.most_collapsed
    ]
    return _table(f"Points of lowest LID{of}", ["row", "LID", "± s.e.", *(["label"] if labeled else [])], rows)


def _classes(report: DimensionReport) -> str:
    if not report.classes:
        return ""
    beside = classes_of_other(report)
    if beside and report.comparison is not None:
        both = (report, report.comparison.other)
        names = ["class", *(f'<span class="name">{escaped(one.title)}</span>' for one in both), "points"]
        rows = [_class_of_both(row, beside.get(row.label)) for row in report.classes]
    else:
        names = ["class", "LID", "points", "95 % confidence"]
        rows = [
            [row.label, number(row.mean.value), count(row.count), interval(row.mean.low, row.mean.high)]
            for row in report.classes
        ]
    table = _table("LID per class", names, rows, look="card named" if beside else "card")
    return table if len(rows) <= 30 else f"<details><summary>All {count(len(rows))} classes</summary>{table}</details>"


def _class_of_both(row: ClassLID, other: ClassLID | None) -> list[str]:
    """The class, its LID in both sets, and how many points that is of; the intervals are in the figure."""
    if other is None:
        return [row.label, number(row.mean.value), "–", count(row.count)]
    points = count(row.count) if row.count == other.count else f"{count(row.count)}; {count(other.count)}"
    return [row.label, number(row.mean.value), number(other.mean.value), points]


def _table(title: str, names: list[str], rows: list[list[str]], *, look: str = "card") -> str:
    """A table whose first column heads the rows, and whose second and third are numbers."""

    def kind(place: int) -> str:
        return ' class="n"' if place in (1, 2) else ""

    head = "".join(f'<th scope="col"{kind(place)}>{name}</th>' for place, name in enumerate(names))
    body = "".join(
        f'<tr><th scope="row">{escaped(row[0])}</th>'
        + "".join(f"<td{kind(place)}>{escaped(cell)}</td>" for place, cell in enumerate(row[1:], start=1))
        + "</tr>"
        for row in rows
    )
    table = f"<table><caption>{title}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="{look}">{table}</div>'


def _explanation() -> str:
    paragraphs = "".join(f"<p>{paragraph}</p>" for paragraph in _READING)
    return f"<details><summary>How to read this</summary>{paragraphs}</details>"


def _origin(report: DimensionReport) -> str:
    facts = "; ".join(f"{name.lower()} {escaped(value)}" for name, value in settings(report)[2:])
    command = f"<code>{escaped(report.command)}</code><br>" if report.command else ""
    return f"<footer>{command}Made by ldreg {escaped(report.version)}: {facts}.</footer>"


def escaped(text: str) -> str:
    """User text as HTML."""
    return escape(printable(text))
