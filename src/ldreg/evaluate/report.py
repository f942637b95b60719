"""`ldreg report`: runs from here and elsewhere on one page."""

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ldreg.extras import require
from ldreg.io.files import check_page_path, has_content, real_path, write_atomically
from ldreg.options import Settings as Options
from ldreg.record import MOST_THUMBNAILS, Record
from ldreg.terminal import progress_bar
from ldreg.train.folder import RunFolder, check_outputs

_CHECKPOINTS = (".pt", ".pth", ".safetensors", ".ckpt", ".tar")


def make_records(
    runs: Sequence[str],
    *,
    names: Sequence[str] | None = None,
    device: str = "auto",
    thumbnails: int = 24,
    points: int | None = None,
    k: int | None = None,
    data: Options,
    out: str,
) -> list[Record]:
    """The records of runs: run folders and checkpoints are measured, JSON files of records are read.

    All options, which are those of `ldreg report`, are checked first. Warnings on stderr name what cannot be measured.

    Raises:
        ValueError: no run or an unfinished one, another number of names than of runs, or a wrong output.
    """
    if names is not None and len(names) != len(runs):
        raise ValueError(f"--names: expected one for each of the {len(runs)} run(s), got {len(names)}")
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"--device: expected auto, cpu or cuda, got {device!r}")
    for option, value, least in (("thumbnails", thumbnails, 0), ("points", points, 1), ("k", k, 2)):
        if value is not None and value < least:
            raise ValueError(f"--{option}: expected at least {least}, got {value}")
    if thumbnails > MOST_THUMBNAILS:
        raise ValueError(f"--thumbnails: expected at most {MOST_THUMBNAILS}, got {thumbnails}")
    _check_outputs(runs, Path(out))
    paths = [Path(run) for run in runs]
    for path in paths:
        _check_run(path, data)
    records = []
    named: Sequence[str | None] = names or [None] * len(runs)
    for path, name in zip(paths, named, strict=True):
        if path.is_file() and path.suffix.lower() not in _CHECKPOINTS:
            made = Record.from_json(path)
            made = made if name is None else replace(made, name=name)
        else:
            require("train")
            from ldreg.evaluate.records import record
            from ldreg.evaluate.source import open_source

            print(f"measuring {path} ...", file=sys.stderr, flush=True)
            required = not {"data.name", "data.path"}.isdisjoint(dict(data))
            options: dict[str, Any] = {"device": device, "thumbnails": thumbnails, "points": points, "k": k}
            with progress_bar(lines=True) as progress:
                try:
                    source = open_source(path, data=data)
                    made = record(source, name=name, required=required, progress=progress, **options)
                except ValueError as error:
                    raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from error
        for note in made.notes:
            print(f"ldreg report: warning: {path}: {note}", file=sys.stderr, flush=True)
        records.append(made)
    return records


def _check_run(path: Path, data: Options) -> None:
    """Check that a path is a finished run, a record, or a checkpoint with the name of data to measure it on."""
    expected = f"{path}: expected a run folder or the JSON record of a run"
    if path.is_file():
        if path.suffix.lower() in _CHECKPOINTS and "data.name" not in dict(data):
            raise ValueError(f"{expected}, got a checkpoint; --data.name says on which images to measure it")
        return
    folder = RunFolder(path)
    if not folder.config.is_file():
        raise ValueError(f"{expected}, got neither: there is no config.yaml")
    if not folder.encoder.is_file():
        unfinished = f"expected a finished run, got one without {folder.encoder.name}"
        raise ValueError(f"{path}: {unfinished}; ldreg pretrain --resume {path} goes on with it")


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
    """
    from ldreg.report.pages import comparison_page
    from ldreg.report.tables import run_names

    names = run_names(records)
    heading = title or (" and ".join(names) if len(names) <= 2 else f"{len(names)} runs compared")
    page = comparison_page(records, title=heading)
    paths = []
    if json is not None:
        json.mkdir(parents=True, exist_ok=True)
        stems = [re.sub(r"[^\w.+-]+", "_", name).strip("._") or "run" for name in names]
        numbers = [f"-{place + 1}" if stems.count(stem) > 1 else "" for place, stem in enumerate(stems)]
        paths = [json / f"{stem}{number}.json" for stem, number in zip(stems, numbers, strict=True)]
    _check_outputs(inputs, out, paths)
    replaced = {path for path in (out, *paths) if has_content(path)}
    write_atomically(out, page)
    for path, record in zip(paths, records, strict=False):
        record.to_json(path)
    for path in (out, *paths):
        print(f"wrote {path}{', in place of an earlier one' if path in replaced else ''}", file=sys.stderr)


def _check_outputs(inputs: Sequence[str], page: Path, records: Sequence[Path] = ()) -> None:
    """Check that the page replaces only a page, records only records, and nothing a file of a run or an input."""
    check_outputs(inputs=inputs, outputs=[page, *records])
    for path in (page, *records):
        target = real_path(path)
        for above in target.parents:
            run, inside = RunFolder(above), target.relative_to(above).parts[0]
            if run.config.is_file() and (target in run.files or inside in (run.checkpoints.name, "evaluation")):
                raise ValueError(f"cannot write {str(path)!r}: it is a file of the run {above.name!r}")
    check_page_path(page, option="--out")
    for path in filter(has_content, records):
        try:
            Record.from_json(path)
        except ValueError as error:
            raise ValueError(f"cannot write {str(path)!r}: it is there and no record of a run") from error
