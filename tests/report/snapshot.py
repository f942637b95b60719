"""Snapshots of text, and of figures as text."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from matplotlib.ticker import FixedLocator

SNAPSHOTS = Path(__file__).parent / "snapshots"


def check_snapshot(name: str, text: str) -> None:
    """Compare text with a file in snapshots/; with LDREG_UPDATE_SNAPSHOTS=1 write the file instead."""
    path = SNAPSHOTS / name
    if os.environ.get("LDREG_UPDATE_SNAPSHOTS"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{name}: see tests/report/snapshot.py for how to update it"


def described(figure: Figure) -> Iterator[str]:
    """What a figure draws and where, a line for each thing."""
    for axes in figure.axes:
        names = [axes.get_title(), axes.get_xlabel(), axes.get_ylabel()]
        yield f"axes {names} {axes.get_xscale()} {axes.get_yscale()}"
        for name, ticks in (("x", axes.xaxis), ("y", axes.yaxis)):
            if isinstance(ticks.get_major_locator(), FixedLocator):
                yield f"  {name} ticks {[label.get_text() for label in ticks.get_ticklabels()]}"
        if axes.get_label() == "<colorbar>":
            continue
        for line in axes.lines:
            look = f"{to_hex(line.get_color())} {line.get_linestyle()} {line.get_marker()}"
            yield f"  line {look} {written(line.get_xydata())}"
        for patch in axes.patches:
            extents = patch.get_path().get_extents(patch.get_patch_transform())
            steps = isinstance(patch, StepPatch) and not patch.get_fill()
            color = to_hex(patch.get_edgecolor() if steps else patch.get_facecolor(), keep_alpha=True)
            place = patch.get_data()[:2] if isinstance(patch, StepPatch) else extents.bounds
            yield f"  {type(patch).__name__} {color} {written(place)}"
        for part in axes.collections:
            faces: Any = part.get_facecolor()
            colors = sorted({to_hex(each) for each in faces})
            dots = isinstance(part, PathCollection)
            place = part.get_offsets() if dots else [path.vertices for path in part.get_paths()]
            scale = written(end for end in part.get_clim() if end is not None)
            yield f"  {type(part).__name__} {' '.join(colors[:4])} {scale} {written(place)}"
        yield from (f"  text {text.get_text()!r}" for text in axes.texts)
    for legend in [*figure.legends, *filter(None, (axes.get_legend() for axes in figure.axes))]:
        yield f"legend {[text.get_text() for text in legend.get_texts()]}"


def written(numbers: Any) -> str:
    """Numbers to three digits; of many, how many there are, the first two and their sum."""
    flat = [float(each) for part in numbers for each in numpy.ravel(part)]
    shown = " ".join(f"{each:.3g}" for each in (flat if len(flat) <= 24 else flat[:2]))
    return shown if len(flat) <= 24 else f"{len(flat)}: {shown} ... {math.fsum(flat):.4g}"
