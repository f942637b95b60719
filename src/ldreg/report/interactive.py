"""Linked views of the points of a report, drawn in the page by BokehJS, with a table of the rows that one selects.

The page has all in itself: the library, the points as base64, and a script of ours. A policy in the page allows these
scripts by their hashes and nothing else. Without scripts the page shows its still figures.
"""

import json
import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

import numpy
from markupsafe import Markup
from matplotlib.colors import to_hex

from ldreg import thumbnails
from ldreg.inspection.maps import Map
from ldreg.inspection.points import point_columns
from ldreg.inspection.report import DimensionReport, MeanLID
from ldreg.io.files import json_values
from ldreg.record import Record
from ldreg.report import plots
from ldreg.report.style import COLORS, GRAY, WIDE_RANGE, Array
from ldreg.text import count, one_line, percent, printable
from ldreg.thumbnails import ImageLike

ALL_DRAWN = 100_000  # of more points a sample is drawn
SAMPLE = 50_000
PICTURED = 3000  # points with an image; of more points half of these are those of lowest LID, half a random sample
NEIGHBORS, FEWER_NEIGHBORS = 10, 4  # kept for each point
MOST_WITH_NEIGHBORS = 20_000  # points; of more, fewer neighbors are kept
LONGEST_NAME = 200  # bytes
_SHORTEST_NAME = 20  # to which names are cut where there are many
_NAME_BYTES = {20_000: 850_000, ALL_DRAWN: 3_500_000}  # of all names together, for up to so many points
_LIBRARY = ("bokeh.min.js", "bokeh-api.min.js")
_NOTHING_FOUND = "no finding"
_SHADES = 64
MAPS = {
    "pca": "First two principal axes.",
    "tsne": "By t-SNE: trust neighborhoods, not distances.",
    "umap": "By UMAP: trust neighborhoods, not distances.",
}


@dataclass(frozen=True)
class Explorer:
    """The points of one set, as the script in the page takes them.

    Args:
        title: of the set.
        name: the id of its part of the page.
        note: which points are drawn, if not all; else empty.
        neighbors: whether a click on a point shows its neighbors.
        data: what the script reads, as JSON that is safe within a page.
    """

    title: str
    name: str
    note: str
    neighbors: bool
    data: Markup


def explorer(
    report: DimensionReport,
    *,
    place: int = 0,
    images: Sequence[ImageLike | None] | None = None,
    scale: Array | None = None,
) -> Explorer:
    """The views of a report; `place` is its number among those on the page, `images` are of all rows of the data.

    Colors are scaled by its LID, or by those in `scale`, so that several sets have the same.

    Of more than `ALL_DRAWN` measured points, a fixed random sample of `SAMPLE` is drawn. Long names are cut.

    Raises:
        ValueError: another number of images than of rows.
    """
    table = point_columns(report)
    drawn = _drawn(report.lid.double().numpy())
    notes = []
    if len(drawn) < report.measured:
        notes.append(f"The views draw a fixed random sample of {count(len(drawn))} of {count(report.measured)} points.")
    on_map = numpy.isfinite(report.coordinates.numpy()[drawn, 0])
    if not on_map.all():
        notes.append(f"The map has a random sample of {count(int(on_map.sum()))} of them.")
    data = _columns(report, table, drawn) | _looks(table["lid"], report.eigenvalues.double().numpy(), report.map, scale)
    data |= {
        "title": printable(report.title),
        "k": report.k,
        "names": None if report.names is None else _shortened([report.names[point] for point in drawn]),
        "neighbors": _neighbors(report, drawn),
        "images": None,
    }
    if images is not None:
        if len(images) != report.rows:
            raise ValueError(f"images: expected {report.rows}, one for each row, got {len(images)}")
        data["images"], note = _images(images, table["row"][drawn])
        notes.append(note)
    return _packaged(report.title, place, " ".join(notes), data)


def _packaged(title: str, place: int, note: str, data: Mapping[str, Any]) -> Explorer:
    """The data of a set as JSON that is safe within a page."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Explorer(title, f"points-{place}", note, data["neighbors"] is not None, Markup(text))


def run_explorer(name: str, record: Record, *, place: int = 0, scale: Array | None = None) -> Explorer | None:
    """The views of the points that a run lists, as `explorer` has them; None if it lists none."""
    lid, drawn = numpy.asarray(record.lid, dtype=float), numpy.arange(len(record.map))
    if not len(drawn) or len(lid) != len(drawn):
        return None
    drawn = drawn[numpy.argsort(-lid, kind="stable")]
    columns = dict(zip("xy", numpy.asarray(record.map, dtype=float).T, strict=True))
    columns |= {"row": numpy.arange(len(lid)), "lid": lid}
    means = {label: MeanLID(mean, math.nan, math.nan) for label, mean in record.classes.items()}
    data = {
        "columns": {key: _packed(values[drawn]) for key, values in columns.items()},
        "table": ["row", *(["label"] if record.labels is not None else []), "lid"],
        "title": printable(name),
        "noun": "point",
        "k": record.k,
        "names": None,
        "neighbors": None,
        "images": None,
        **_classes(record.labels, means, drawn, {}),
        **_looks(lid, numpy.asarray(record.eigenvalues, dtype=float), "pca", scale),
        "spectrum": [],  # the page has those of all runs in one figure
    }
    thinned = f"An even choice of {count(len(lid))} of {count(record.measured)} points."
    return _packaged(name, place, thinned if len(lid) < record.measured else "", data)


@cache
def scripts() -> tuple[Markup, ...]:
    """The library and our script, to be put into a page in this order."""
    library = [files("bokeh") / "server" / "static" / "js" / name for name in _LIBRARY]
    own = files("ldreg.report") / "templates" / "interactive.js"
    # A page is parsed with line feeds only, and hashed like that.
    return tuple(Markup(file.read_text(encoding="utf-8").replace("\r\n", "\n")) for file in (*library, own))


@cache
def policy() -> Markup:
    """What a page's security policy needs to allow `scripts()` and no other script."""
    digests = [b64encode(sha256(script.encode()).digest()).decode() for script in scripts()]
    return Markup("; script-src " + " ".join(f"'sha256-{digest}'" for digest in digests))


def _drawn(lid: Array) -> Array:
    """The places of the points that are drawn, low LID last, so that it comes out on top; undefined LID first."""
    places = numpy.arange(len(lid))
    if len(lid) > ALL_DRAWN:
        places = numpy.random.default_rng(0).permutation(len(lid))[:SAMPLE]
    known = numpy.where(numpy.isfinite(lid) & (lid > 0), lid, numpy.inf)
    order: Array = places[numpy.lexsort((places, -known[places]))]
    return order


def _columns(report: DimensionReport, table: Mapping[str, Any], drawn: Array) -> dict[str, Any]:
    """The table of the points in columns that the script reads; words are numbers of a list."""
    map_x, map_y = report.coordinates.numpy().T
    columns = {"x": _packed(map_x[drawn]), "y": _packed(map_y[drawn])}
    columns |= {name: _packed(values[drawn]) for name, values in table.items() if isinstance(values, numpy.ndarray)}
    found = table["finding"]
    kinds = [*dict.fromkeys(name for name in sorted(found) if name), ""]
    shown = [kind.replace("_", " ") if kind else _NOTHING_FOUND for kind in kinds]
    groups = {"finding": _group(found, kinds, shown, min(len(kinds) - 1, len(COLORS)), drawn)}
    means = {row.label: row.mean for row in report.classes}
    return {"columns": columns, "table": list(table), **_classes(report.labels, means, drawn, groups)}


def _classes(
    labels: Sequence[str] | None, means: Mapping[str, MeanLID], drawn: Array, groups: Mapping[str, Any]
) -> dict[str, Any]:
    """The groups of points with their classes among them, and LID of each class, the lowest first."""
    if labels is None:
        return {"groups": groups, "classes": []}
    by_lid = sorted(means, key=lambda name: means[name].value if means[name].value > 0 else math.inf)
    colored = list(means) if len(means) <= len(COLORS) else list(plots.colored_classes(by_lid))
    known = [*colored, *(name for name in dict.fromkeys([*means, *labels]) if name not in set(colored))]
    group = _group(labels, known, [printable(name) for name in known], len(colored), drawn)
    code = {name: place for place, name in enumerate(known)}
    bars = [{"code": code[name], **json_values(asdict(means[name]))} for name in by_lid]
    return {"groups": {**groups, "label": group}, "classes": bars}


def _group(values: Sequence[str], names: Sequence[str], shown: Sequence[str], colored: int, drawn: Array) -> Any:
    """Words of the points as numbers of `names`, which the page shows as `shown`; the first ones are in color."""
    number = {name: place for place, name in enumerate(names)}
    codes = numpy.fromiter((number[values[point]] for point in drawn), dtype=int, count=len(drawn))
    return {"names": list(shown), "colored": colored, "codes": _packed(codes)}


def _looks(lid: Array, eigenvalues: Array, kind: Map, scale: Array | None) -> dict[str, Any]:
    """Titles and scales of the axes, colors, the spectrum, and the bins of the histogram."""
    total = float(eigenvalues.sum())
    spectrum = numpy.sort(eigenvalues)[::-1] / (total if total > 0 else 1)
    shares = [f" ({percent(float(value))} of the variance)" if total > 0 else "" for value in spectrum[:2]]
    shares += [""] * (2 - len(shares))
    known = plots.regular_values(lid)
    low, high = (float(known.min()), float(known.max())) if len(known) else (1.0, 2.0)
    low, high = (low, high) if high > low else (low * 0.9, high * 1.1)
    wide = high > WIDE_RANGE * low
    bins = int(min(60, max(8, len(known) ** 0.5)))
    edges = (numpy.geomspace if wide else numpy.linspace)(low, high, bins + 1)
    edges[[0, -1]] = low * (1 - 1e-6), high * (1 + 1e-6)  # float32 values of the ends are within
    colored = known if scale is None else plots.regular_values(scale)
    ends = numpy.quantile(colored, (0.02, 0.98)) if len(colored) else numpy.array([1.0, 2.0])
    shades = plots.COLORMAP(numpy.linspace(0, 1, _SHADES))
    return {
        "map": MAPS[kind],
        "axes": [f"principal axis {place + 1}{share}" if kind == "pca" else "" for place, share in enumerate(shares)],
        "spectrum": [float(f"{share:.4g}") for share in spectrum],
        "wide": wide,
        "edges": edges.tolist(),
        "ends": [float(ends[0]), float(max(ends[1], 1.01 * ends[0]))],
        "shades": [to_hex(shade) for shade in shades],
        "colors": list(COLORS),
        "gray": GRAY,
    }


def _neighbors(report: DimensionReport, drawn: Array) -> dict[str, Any] | None:
    """Up to `NEIGHBORS` nearest neighbors of each drawn point, as places among these.

    None: they were not kept, are points of a reference, or are mostly not drawn.
    """
    few = len(drawn) <= MOST_WITH_NEIGHBORS
    if report.neighbors is None or report.in_reference or not (few or len(drawn) == report.measured):
        return None
    place = numpy.full(report.rows, len(drawn))  # the place of a neighbor that was not measured
    place[report.index.numpy()[drawn]] = numpy.arange(len(drawn))
    nearest = report.neighbors.indices[:, : NEIGHBORS if few else FEWER_NEIGHBORS].numpy()[drawn]
    return {"of_each": nearest.shape[1], "places": _packed(place[nearest])}


def _images(images: Sequence[ImageLike | None], rows: Array) -> tuple[dict[str, Any], str]:
    """Small images of the drawn points, -1 for points without one; and what to say of them."""
    chosen, note = numpy.arange(len(rows)), ""
    if len(rows) > PICTURED:  # the last ones are those of lowest LID
        others = numpy.random.default_rng(0).permutation(len(rows) - PICTURED // 2)[: PICTURED - PICTURED // 2]
        chosen = numpy.concatenate([others, chosen[-(PICTURED // 2) :]])
        note = f"{count(PICTURED)} points have an image: half are those of lowest LID, half a random sample."
    made = thumbnails.tiles(images[row] for row in rows[chosen].tolist())
    place = numpy.full(len(rows), -1)
    there = [one is not None for one in made]
    place[chosen[there]] = numpy.arange(sum(there))
    if lost := len(made) - sum(there):
        note += f" Of {count(len(made))} images {count(lost)} are missing or cannot be read; their places stay empty."
    found = {
        "sheets": thumbnails.sheets([one for one in made if one is not None]),
        "side": thumbnails.TILE,
        "across": thumbnails.SHEET,
        "places": _packed(place),
    }
    return found, note.strip()


def _shortened(names: Sequence[str]) -> list[str]:
    """Names of at most `LONGEST_NAME` bytes, fewer where all of them would take too much of the page."""
    clean = [name if name.isprintable() else one_line(name, LONGEST_NAME) for name in names]
    budget = next((most for points, most in _NAME_BYTES.items() if len(names) <= points), max(_NAME_BYTES.values()))
    sizes = numpy.array([len(name.encode()) for name in clean])
    longest = LONGEST_NAME
    while longest > _SHORTEST_NAME and numpy.minimum(sizes, longest).sum() > budget:
        longest -= 5
    return [
        name if size <= longest else name.encode()[: longest - 3].decode(errors="ignore") + "…"
        for name, size in zip(clean, sizes, strict=True)
    ]


def _packed(values: Array) -> list[str]:
    """An array as the type that JavaScript has for it and base64: float32, or the smallest that holds its integers."""
    if values.dtype.kind == "f":
        kind, name = "<f4", "Float32Array"
    elif values.min(initial=0) < 0 or values.max(initial=0) > 0xFFFF:
        kind, name = "<i4", "Int32Array"
    else:
        kind, name = "<u2", "Uint16Array"
    with numpy.errstate(over="ignore"):  # what is too large for float32 becomes infinite
        packed = values.astype(kind)
    return [name, b64encode(packed.tobytes()).decode()]
