"""Runs of pretraining side by side, as one self-contained page."""

import math
from collections.abc import Iterable, Mapping, Sequence

from ldreg.record import Record, is_share
from ldreg.report.curves import MARKED_RUNS, curve, drawable, histograms, regular_values, spectra
from ldreg.report.differences import (
    HEADLINES,
    Cell,
    class_rows,
    finding_lines,
    headline_rows,
    in_words,
    metric_title,
    metric_value,
    ordered_keys,
    remarks,
    result_rows,
    run_names,
    setting_rows,
    what_was_measured,
)  # fmt: skip
from ldreg.report.figures import plain_style, svg
from ldreg.report.keys import KEYS_STYLE, line_key, with_keys
from ldreg.report.page import document, escaped, figure_card
from ldreg.report.pictures import PICTURES_STYLE, gallery, maps
from ldreg.report.runs_text import COLUMNS, comparison_text
from ldreg.text import count, number
from ldreg.version import __version__

__all__ = ["Record", "comparison_page", "comparison_text"]

_CLASSES = 20  # a longer table is folded
_TILED_RUNS = 4  # of more runs the table alone is easier to read

_STYLE = """
.tile ul { list-style: none; margin: 0; padding: 0; }
.tile li { margin-top: .4rem; line-height: 1.3; }
.tile li b { display: inline; font-size: 1.4rem; white-space: nowrap; }
.tile li span { color: var(--soft); font-size: .85rem; white-space: nowrap; }
.tile li small { overflow-wrap: anywhere; }
.card { margin-bottom: 1rem; }
.runs { border-collapse: separate; border-spacing: 0; }
.runs th, .runs td { padding-left: .4rem; }
.runs th[scope=row] { min-width: 6.5rem; padding-left: 0; position: sticky; left: 0; background: var(--card); }
.runs thead td { border-top: 0; }
.runs thead th { vertical-align: bottom; font-size: .85rem; line-height: 1.35; min-width: 7.5rem; white-space: normal; }
.runs.few thead th { min-width: 6.6rem; }
.runs thead svg.key { display: block; margin: 0 0 .2rem auto; }
.runs td.n:nth-child(2) { font-weight: 400; }
.runs td small { display: block; color: var(--soft); font-size: .8rem; }
.runs.settings td.n { white-space: normal; overflow-wrap: anywhere; }
@media (min-width: 48rem) { .runs th[scope=row] { min-width: 11rem; }
  .runs.few td small { display: inline-block; width: 5.5rem; }
  .runs.few thead svg.key { display: inline-block; margin: 0 .35rem 0 0; } }
footer p { max-width: none; }
.note { border-left: .25rem solid var(--accent); padding-left: .7rem; margin: .7rem 0 1.2rem; }
"""

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

_READING = (
    "LID counts the independent directions in which representations vary close to a given one; the geometric mean sums "
    "it up over all of them. Effective rank counts the directions that the whole set uses. Both are properties of the "
    "representations alone and need no labels; higher means less collapsed, not by itself better.",
    "Linear probe and kNN accuracy say how well classes can be read off the representations, which are held fixed. All "
    "results are those after the last epoch unless they are named otherwise. Differences are to the first run, "
    "relative ones in percent, those of accuracies in points of percent.",
    "Degenerate points are those without a usable LID: 0, where many neighbors are exact duplicates, or infinite, "
    "where all neighbors are equally far. The Fréchet variance of LID is the variance of its logarithm: 0 where LID "
    "is the same everywhere, large where some neighborhoods are far flatter than others. The Fisher-Rao distance of "
    "two mean LIDs is the absolute logarithm of their ratio: 0.1 is a difference of about 10 %.",
    "LID depends on how many points are measured and on the number of neighbors k: compare runs only where both agree.",
)


@plain_style()
def comparison_page(records: Sequence[Record], *, title: str, further: Iterable[str] = ()) -> str:
    """A page that compares runs with the first of them; it makes no request and runs no script.

    Args:
        records: one or more runs, the one to compare with first.
        title: heading of the page.
        further: sections, HTML each, that come after the figures.

    Raises:
        ValueError: there is no run.
    """
    _check(records)
    return document(
        escaped(title),
        [
            f"<h1>{escaped(title)}</h1>",
            f'<p class="scope">{_scope(records)}</p>',
            _findings(records),
            _words(records),
            _tiles(records),
            _results(records),
            _classes(records),
            _settings("Settings that differ", records, differing=True) if len(records) > 1 else "",
            _curves(records),
            _distributions(records),
            maps(records),
            gallery(records),
            *further,
            _all_settings(records),
            _explanation(),
            _origins(records),
        ],
        style=KEYS_STYLE + _STYLE + PICTURES_STYLE,
    )


def _check(records: Sequence[Record]) -> None:
    if not records:
        raise ValueError("records: expected at least one run, got none")


def _scope(records: Sequence[Record]) -> str:
    if len(records) == 1:
        return "One run."
    return f"{len(records)} runs. Differences are to the first, {escaped(run_names(records)[0])}."


def _findings(records: Sequence[Record]) -> str:
    items = [f'<li class="{severity}">{escaped(told)}</li>' for severity, told in finding_lines(records)]
    return f'<ul class="findings">{"".join(items)}</ul>' if items else ""


def _words(records: Sequence[Record]) -> str:
    words = escaped(" ".join(in_words(records))).replace(" %", "&#160;%")
    measured = "".join(f'<p class="scope">{escaped(told)}</p>' for told in what_was_measured(records))
    notes = "".join(f'<p class="note">{escaped(note)}</p>' for note in remarks(records))
    return (f'<p class="words">{words}</p>' if words else "") + measured + notes


def _tiles(records: Sequence[Record]) -> str:
    if len(records) > _TILED_RUNS:
        return ""
    names = run_names(records)

    def entry(place: int, cell: Cell) -> str:
        changed = f" <span>{cell.change}</span>" if cell.change else ""
        name = f"<small>{line_key(place)}{escaped(names[place])}</small>" if len(records) > 1 else ""
        return f"<li>{name}<b>{cell.value}</b>{changed}</li>"

    tiles = [
        f'<div class="tile"><small>{title}</small><ul>{"".join(map(entry, range(len(cells)), cells))}</ul></div>'
        for title, cells in headline_rows(records)
    ]
    return f'<div class="tiles">{"".join(tiles)}</div>' if tiles else ""


def _results(records: Sequence[Record]) -> str:
    return _table("Results", "results", records, _changes(result_rows(records)))


def _classes(records: Sequence[Record]) -> str:
    rows = _changes(class_rows(records))
    table = _table("LID per class", "results", records, rows)
    return table if len(rows) <= _CLASSES else f"<details><summary>LID per class</summary>{table}</details>"


def _changes(rows: Sequence[tuple[str, Sequence[Cell]]]) -> list[tuple[str, list[str]]]:
    """Values with the differences to the first run, as HTML."""
    return [
        (title, [cells[0].value, *(f"{cell.value}<small>{cell.change}</small>" for cell in cells[1:])])
        for title, cells in rows
    ]


def _settings(title: str, records: Sequence[Record], *, differing: bool) -> str:
    rows = [(key, [escaped(value) for value in values]) for key, values in setting_rows(records, differing=differing)]
    return _table(title, "settings", records, rows)


def _table(title: str, kind: str, records: Sequence[Record], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """A table of rows, named by text, with one cell of HTML for each run; `kind` is its class."""
    if not rows:
        return ""
    names = "".join(
        f'<th scope="col" class="n">{line_key(place) if len(records) > 1 else ""}{escaped(name)}</th>'
        for place, name in enumerate(run_names(records))
    )
    body = "".join(
        f'<tr><th scope="row">{escaped(name)}</th>' + "".join(f'<td class="n">{cell}</td>' for cell in cells) + "</tr>"
        for name, cells in rows
    )
    few = " few" if len(records) <= COLUMNS else ""
    table = f'<table class="runs {kind}{few}"><caption>{title}</caption><thead><tr><td></td>{names}</tr></thead>'
    return f'<div class="card">{table}<tbody>{body}</tbody></table></div>'


def _curves(records: Sequence[Record]) -> str:
    cards: dict[bool, list[str]] = {True: [], False: []}
    for place, key in enumerate(ordered_keys(record.curves for record in records)):
        lines = [record.curves.get(key, ()) for record in records]
        if drawable(lines):
            picture = svg(curve(lines, share=is_share(key)), f"curve-{place}")
            cards[key in _CURVES].append(_shared(metric_title(key), _caption(key, lines), records, picture))
    known = f'<h2>Over training</h2><div class="figures">{"".join(cards[True])}</div>' if cards[True] else ""
    rest = f'<div class="figures">{"".join(cards[False])}</div>' if cards[False] else ""
    return known + (f"<details><summary>Further curves</summary>{rest}</details>" if rest else "")


def _caption(key: str, lines: Sequence[Sequence[tuple[float, float]]]) -> str:
    """What a curve shows, and what it was before training."""
    start = [value for line in lines for epoch, value in line if epoch == 0 and math.isfinite(value)]
    if not start or key not in HEADLINES:
        return _CURVES.get(key, "")
    low, high = metric_value(key, min(start)), metric_value(key, max(start))
    return f"{_CURVES[key]} Epoch 0 is the untrained encoder: {low if low == high else f'{low} to {high}'}."


def _shared(title: str, caption: str, records: Sequence[Record], picture: str) -> str:
    """The card of a figure that shows all runs, with a legend."""
    return with_keys(figure_card(escaped(title), caption, picture), [escaped(name) for name in run_names(records)])


def _distributions(records: Sequence[Record]) -> str:
    cards, few = [], len(records) <= MARKED_RUNS
    if any(len(regular_values(record.lid)) for record in records):
        caption = ("Thin lines: the geometric means." if few else "") + _chosen(records) + _undefined(records)
        picture = svg(histograms([record.lid for record in records], list(map(_mean, records))), "lids")
        cards.append(_shared("How LID is spread", caption, records, picture))
    if any(len(regular_values(record.eigenvalues)) for record in records):
        ranks = [record.results.get("effective_rank", math.nan) for record in records]
        marks = "; thin lines: effective rank" if few else ""
        caption = f"Eigenvalues of the covariance{marks}. A cliff means unused directions."
        picture = svg(spectra([record.eigenvalues for record in records], ranks), "spectra")
        cards.append(_shared("Global spectrum", caption, records, picture))
    return f'<h2>After training</h2><div class="figures">{"".join(cards)}</div>' if cards else ""


def _mean(record: Record) -> float:
    """The geometric mean over all measured points, which are more than the record lists where the set is large."""
    values = regular_values(record.lid)
    if record.measured > len(record.lid):
        return record.results.get("lid", math.nan)
    return math.exp(sum(map(math.log, values)) / len(values)) if len(values) else math.nan


def _chosen(records: Sequence[Record]) -> str:
    """Where the histogram shows a choice of the points."""
    chosen = [len(record.lid) for record in records if record.measured > len(record.lid) > 0]
    return f" From an even choice of {count(max(chosen))} points." if chosen else ""


def _undefined(records: Sequence[Record]) -> str:
    """Which points the histogram leaves out."""
    omitted = [
        f"{count(len(record.lid) - len(regular_values(record.lid)))} of {escaped(name)}"
        for name, record in zip(run_names(records), records, strict=True)
        if len(regular_values(record.lid)) < len(record.lid)
    ]
    return f" Points without a defined LID are left out: {', '.join(omitted)}." if omitted else ""


def _all_settings(records: Sequence[Record]) -> str:
    table = _settings("All settings", records, differing=False)
    return f"<details><summary>All settings</summary>{table}</details>" if table else ""


def _explanation() -> str:
    paragraphs = "".join(f"<p>{paragraph}</p>" for paragraph in _READING)
    return f"<details><summary>How to read this</summary>{paragraphs}</details>"


def _origins(records: Sequence[Record]) -> str:
    entries = [_origin(name, record.origin) for name, record in zip(run_names(records), records, strict=True)]
    return f"<footer>{''.join(entries)}<p>Made by ldreg {escaped(__version__)}.</p></footer>"


def _origin(name: str, origin: Mapping[str, str | float | int | None]) -> str:
    facts = "; ".join(
        f"{escaped(key)} {escaped(number(value) if isinstance(value, float) else str(value))}"
        for key, value in origin.items()
        if key != "command" and value is not None
    )
    command = f"<br><code>{escaped(str(origin['command']))}</code>" if origin.get("command") else ""
    return f"<p><b>{escaped(name)}</b>{command}<br>{facts}</p>" if facts or command else ""
