"""Legends of figures that show several sets or runs: the line of each beside its name, as HTML."""

from collections.abc import Sequence

from ldreg.report.curves import style

KEYS_STYLE = """
.keys { list-style: none; margin: 0 0 .5rem; padding: 0; display: flex; flex-wrap: wrap; gap: .1rem .9rem;
  font-size: .85rem; line-height: 1.4; }
.keys li { overflow-wrap: anywhere; }
svg.key { display: inline-block; width: 1.9rem; height: .5rem; margin-right: .35rem; vertical-align: middle; }
"""


def line_key(place: int) -> str:
    """The line of a set or run as it looks in the figures."""
    color, dashes = style(place)
    pattern = f' stroke-dasharray="{" ".join(f"{3 * length:g}" for length in dashes)}"' if dashes else ""
    line = f'<line x1="0" y1="4" x2="30" y2="4" stroke="{color}" stroke-width="3"{pattern}/>'
    return f'<svg class="key" viewBox="0 0 30 8" aria-hidden="true">{line}</svg>'


def _keys(names: Sequence[str]) -> str:
    """A legend of escaped names; none for fewer than two."""
    entries = "".join(f"<li>{line_key(place)}{name}</li>" for place, name in enumerate(names))
    return f'<ul class="keys">{entries}</ul>' if len(names) > 1 else ""


def with_keys(card: str, names: Sequence[str]) -> str:
    """The card of a figure with a legend of escaped names under its caption."""
    return card.replace("</figcaption>", f"</figcaption>{_keys(names)}", 1)
