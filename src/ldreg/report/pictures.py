"""Single points of runs on a page: maps of the representations, and the images that are collapsed most and least."""

from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from ldreg.record import Record
from ldreg.report.curves import class_maps, class_order, lid_maps
from ldreg.report.differences import run_names
from ldreg.report.figures import CLASS_COLORS, DRAWN_POINTS, svg
from ldreg.report.page import escaped, figure_card
from ldreg.text import count, number
from ldreg.thumbnails import Thumbnail, png_size

_PIXELS = 40  # images with a smaller side are enlarged pixel by pixel

PICTURES_STYLE = """
.gallery { padding: .8rem 1rem 1rem; }
.gallery h3 { font-size: 1rem; margin: 0; overflow-wrap: anywhere; }
.gallery h4 { font-size: .85rem; font-weight: 400; color: var(--soft); margin: .6rem 0 .4rem; }
.thumbs { list-style: none; margin: 0; padding: 0; display: grid; gap: .7rem .5rem;
  grid-template-columns: repeat(auto-fill, minmax(4.5rem, 1fr)); }
.thumbs li { min-width: 0; font-size: .8rem; line-height: 1.3; }
.thumbs img { display: block; width: 4rem; height: 4rem; object-fit: contain; background: var(--line);
  border-radius: .25rem; margin-bottom: .25rem; }
.thumbs img.pixels { image-rendering: pixelated; }
.thumbs b { font-variant-numeric: tabular-nums; }
.thumbs span { display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 3; overflow: hidden;
  overflow-wrap: anywhere; color: var(--soft); font-size: .75rem; }
"""


def gallery(records: Sequence[Record]) -> str:
    """For each run the images of lowest LID and, for contrast, those of highest; empty where no run has any."""
    cards = [
        f'<div class="card gallery"><h3>{escaped(name)}</h3>'
        f"{_row('lowest LID', record.most_collapsed)}{_row('for contrast, highest LID', record.least_collapsed)}</div>"
        for name, record in zip(run_names(records), records, strict=True)
        if record.most_collapsed or record.least_collapsed
    ]
    if not cards:
        return ""
    sizes = sorted({record.measured for record in records if record.most_collapsed})
    of = f" of {count(sizes[0])} measured" if len(sizes) == 1 else ""
    text = f"The images{of} whose surroundings vary least, with LID, class, and file or place in the set."
    return f"<h2>Most collapsed images</h2><p>{text}</p>{''.join(cards)}"


def maps(records: Sequence[Record]) -> str:
    """For each run, its map colored by class beside the one colored by LID, and its t-SNE."""
    flat = [record.map for record in records]
    by_class = class_maps(flat, [record.labels for record in records])
    by_lid = lid_maps(flat, [record.lid for record in records])
    embedded = class_maps(
        [record.tsne for record in records], [record.tsne_labels for record in records], principal=False
    )
    cards = [
        card
        for place, name in enumerate(run_names(records))
        for card in (
            *_map(f"{name}: classes", by_class[place], f"map-classes-{place}"),
            *_map(f"{name}: LID", by_lid[place], f"map-lid-{place}"),
            *_map(f"{name}: classes, t-SNE", embedded[place], f"map-tsne-{place}"),
        )
    ]
    text = "Representations on their first two principal axes." + _remarks(records)
    return f'<h2>Maps</h2><p>{text}</p><div class="figures">{"".join(cards)}</div>' if cards else ""


def _row(title: str, images: Sequence[Thumbnail]) -> str:
    entries = "".join(map(_entry, images))
    return f'<h4>{title}</h4><ul class="thumbs">{entries}</ul>' if entries else ""


def _entry(image: Thumbnail) -> str:
    label = escaped(image.label)
    place = escaped(image.file) if image.file else f"no. {image.index}"
    kind = ' class="pixels"' if max(png_size(image.image)) < _PIXELS else ""
    alt = f"image {place}" + (f", class {label}" if label else "")
    shown = f'<span title="{label}">{"class " if label.isdecimal() else ""}{label}</span>' if label else ""
    return (
        f'<li><img{kind} src="{image.image}" alt="{alt}"/><b>LID {number(image.lid)}</b>'
        f'{shown}<span title="{place}, no. {image.index}">{place}</span></li>'
    )


def _map(title: str, drawn: Figure | None, name: str) -> Iterator[str]:
    if drawn is not None:
        yield figure_card(escaped(title), "", svg(drawn, name))


def _remarks(records: Sequence[Record]) -> str:
    several = len(records) > 1
    remarks = " Each run has axes of its own: compare shapes, not places." if several else ""
    if any(record.map and record.lid for record in records):
        scale = " LID has one scale of colors for all runs." if several else ""
        remarks += f"{scale} Red points are the most collapsed."
    classes = len(class_order([*(record.labels for record in records), *(record.tsne_labels for record in records)]))
    if classes > len(CLASS_COLORS):
        remarks += f" {len(CLASS_COLORS) - 1} of {count(classes)} classes are in color."
    most = max(len(record.map) for record in records)
    if most > DRAWN_POINTS:
        remarks += f" At most {count(DRAWN_POINTS)} points are drawn."
    elif any(record.measured > len(record.map) > 0 for record in records):
        remarks += f" An even choice of {count(most)} points is drawn."
    return remarks
