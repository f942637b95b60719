"""`ldreg report`: runs from here and elsewhere on one page."""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ldreg.extras import require
from ldreg.io.files import check_page_path, has_content, real_path, write_atomically
from ldreg.options import Settings as Options
from ldreg.record import MOST_THUMBNAILS, Record
from ldreg.terminal import progress_bar
from ldreg.train.folder import RunFolder, check_outputs


def make_records(
    runs: Sequence[str],
    *,
    names: Sequence[str] | None = None,
    device: str = "auto",
    thumbnails: int = 24,
    points: int | None = None,
    k: int | None = None,
    data: Options | None = None,
    outputs: Sequence[str] = (),
) -> list[Record]:
    """The records of runs: run folders and checkpoints are measured, JSON files of records are read.

    Warnings on stderr name what cannot be measured.

    Args:
        runs: folders and files.
        names: of the runs in tables and legends; None: the folders' and the records' own.
        device: auto, cpu or cuda.
        thumbnails: of the most collapsed images.
        points: measure LID of at most this many images, among all; None: of all.
        k: neighbors that LID is estimated from; None: those of the run's monitor.
        data: options such as ("data.path", "X") instead of the runs' own.
        outputs: pages that will be written; each must be writable, and replace nothing but a page of ldreg.

    Raises:
        ValueError: no run or an unfinished one, another number of names than of runs, or a wrong output.
        OSError: a file cannot be read or written.
    """
    if names is not None and len(names) != len(runs):
        raise ValueError(f"--names: expected one for each of the {len(runs)} run(s), got {len(names)}")
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"--device: expected auto, cpu or cuda, got {device!r}")
    if not 0 <= thumbnails <= MOST_THUMBNAILS:
        raise ValueError(f"--thumbnails: expected from 0 to {MOST_THUMBNAILS}, got {thumbnails}")
    if points is not None and points < 1:
        raise ValueError(f"--points: expected at least 1, got {points}")
    if k is not None and k < 2:
        raise ValueError(f"--k: expected at least 2, got {k}")
    check_outputs(inputs=runs, outputs=outputs)
    for path in outputs:
        _check_no_run(Path(path))
        check_page_path(Path(path), option="--out")
    for run in runs:
        check_run(Path(run), data=data or [])
    records = []
    for place, run in enumerate(runs):
        name = None if names is None else names[place]
        made = _record(Path(run), name, device=device, thumbnails=thumbnails, points=points, k=k, data=data or [])
        for note in made.notes:
            print(f"ldreg report: warning: {run}: {note}", file=sys.stderr, flush=True)
        records.append(made)
    return records


def check_run(path: Path, *, data: Options | None = None) -> None:
    """Check before the work that a path is a run to report on.

    Raises:
        ValueError: it is no finished run, no record, and no checkpoint with `data` to measure it on.
        FileNotFoundError: nothing is there.
    """
    if path.is_file():
        if _checkpoint(path) and "data.name" not in dict(data or []):
            raise ValueError(
                f"{path}: expected a run folder or the JSON record of a run, got a checkpoint; --data.name says on "
                f"which images to measure it"
            )
        return
    if not path.exists():
        raise FileNotFoundError(f"{path}: expected a run folder or the JSON record of a run, got nothing there")
    folder = RunFolder(path)
    if not folder.config.is_file():
        raise ValueError(f"{path}: expected a run folder with a config.yaml, or the JSON record of a run, got neither")
    if not folder.encoder.is_file():
        raise ValueError(
            f"{path}: expected a finished run, got one without {folder.encoder.name}; "
            f"ldreg pretrain --resume {path} goes on with it"
        )


def _checkpoint(path: Path) -> bool:
    return path.suffix.lower() in (".pt", ".pth", ".safetensors", ".ckpt", ".tar")


def _check_no_run(path: Path) -> None:
    """Check that a file is none of any run, reported on or not."""
    target = real_path(path)
    for above in target.parents:
        folder = RunFolder(above)
        inside = target.relative_to(above).parts
        if folder.config.is_file() and (target in folder.files or inside[0] in (folder.checkpoints.name, "evaluation")):
            raise ValueError(f"cannot write {str(path)!r}: it is a file of the run {above.name!r}")


def _check_record(path: Path) -> None:
    """Check that a record replaces nothing but an empty file or a record."""
    if has_content(path):
        try:
            Record.from_json(path)
        except ValueError as error:
            raise ValueError(f"cannot write {str(path)!r}: it is there and no record of a run") from error


def write_report(
    records: Sequence[Record],
    out: Path,
    *,
    title: str | None = None,
    json: Path | None = None,
    inputs: Sequence[str] = (),
) -> None:
    """Write the page that compares the runs and, if `json` is a folder, the record of each run there.

    Each file is reported on stderr, and whether it replaced an earlier one.

    Raises:
        ValueError: a file would replace one of the `inputs`, a file of a run, or one that is no page or record.
        OSError: something cannot be written.
    """
    from ldreg.report.pages import comparison_page
    from ldreg.report.tables import run_names

    names = run_names(records)
    heading = title or (" and ".join(names) if len(names) <= 2 else f"{len(names)} runs compared")
    page = comparison_page(records, title=heading)
    paths = []
    if json is not None:
        json.mkdir(parents=True, exist_ok=True)
        paths = _json_paths(json, names)
    check_outputs(inputs=inputs, outputs=[out, *paths])
    for path in (out, *paths):
        _check_no_run(path)
    check_page_path(out, option="--out")
    for path in paths:
        _check_record(path)
    replaced = {path for path in (out, *paths) if has_content(path)}
    write_atomically(out, page)
    for path, record in zip(paths, records, strict=False):
        record.to_json(path)
    for path in (out, *paths):
        print(f"wrote {path}{', in place of an earlier one' if path in replaced else ''}", file=sys.stderr)


def _record(
    path: Path, name: str | None, *, device: str, thumbnails: int, points: int | None, k: int | None, data: Options
) -> Record:
    if path.is_file() and not _checkpoint(path):
        known = Record.from_json(path)
        return known if name is None else replace(known, name=name)
    require("train")
    from ldreg.evaluate.records import record
    from ldreg.evaluate.source import open_source

    print(f"measuring {path} ...", file=sys.stderr, flush=True)
    with _naming(path), progress_bar(lines=True) as progress:
        source = open_source(path, data=data)
        return record(
            source,
            name=name,
            device=device,
            thumbnails=thumbnails,
            points=points,
            k=k,
            required=not {"data.name", "data.path"}.isdisjoint(dict(data)),
            progress=progress,
        )


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the run in an error."""
    try:
        yield
    except ValueError as error:
        if str(path) in str(error):
            raise
        raise ValueError(f"{path}: {error}") from error


def _json_paths(folder: Path, names: Sequence[str]) -> list[Path]:
    """A file for each run, named after it."""
    stems = [re.sub(r"[^\w.+-]+", "_", name).strip("._") or "run" for name in names]
    return [
        folder / (f"{stem}.json" if stems.count(stem) == 1 else f"{stem}-{place + 1}.json")
        for place, stem in enumerate(stems)
    ]
