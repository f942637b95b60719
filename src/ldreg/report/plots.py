"""Figures of studies in one look, lines, bars and panels, and their files."""

from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from ldreg.io.files import write_atomically
from ldreg.report.bars import bars
from ldreg.report.lines import Series, line_panels, lines
from ldreg.report.scatter import Panel, scatter_panels

__all__ = ["Panel", "Series", "bars", "line_panels", "lines", "save_figure", "scatter_panels"]

_RESOLUTION = 150  # dots per inch of a PNG


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Write `stem`.png (150 dpi) and `stem`.pdf (fonts embedded) on white, whole or not at all; the paths written.

    The same figure gives the same bytes. Missing folders are made. Raises OSError.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    metadata: dict[str, dict[str, Any]] = {"png": {"Software": None}, "pdf": {"CreationDate": None}}
    written = []
    for kind, facts in metadata.items():
        buffer = BytesIO()
        with matplotlib.rc_context({"pdf.fonttype": 42}):  # TrueType, which editors and journals take
            figure.savefig(buffer, format=kind, dpi=_RESOLUTION, facecolor="white", metadata=facts)
        path = stem.with_name(f"{stem.name}.{kind}")
        write_atomically(path, buffer.getvalue())
        written.append(path)
    return written
