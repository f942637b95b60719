"""Carry out an evaluation that was asked for: check the outputs, evaluate, print and write the result."""

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ldreg.data import DataConfig
from ldreg.evaluate.extract import Compute
from ldreg.evaluate.kinds import KINDS
from ldreg.evaluate.options import Request
from ldreg.evaluate.result import Evaluation, label
from ldreg.evaluate.source import Source, open_source, reading
from ldreg.evaluate.transfer import listed, parse_datasets
from ldreg.io.files import check_page_path, json_values, write_atomically
from ldreg.record import SCHEMA
from ldreg.terminal import progress_bar
from ldreg.text import duration
from ldreg.train.folder import check_outputs, environment, say
from ldreg.train.processes import first_process

logger = logging.getLogger("ldreg")


def carry_out(asked: Request, *, command: str = "") -> Evaluation:
    """Evaluate, print the result, and write it to the folder of results once it is whole.

    Raises:
        ValueError: a source, data or options that do not fit.
        ArithmeticError: a training diverged.
        OSError: a file cannot be read or written.
    """
    first, files, kind = first_process(), _further_files(asked), KINDS[asked.kind]
    check_outputs(inputs=_inputs(asked), outputs=[asked.output.json, *files.values()])
    if "html" in files:
        check_page_path(Path(files["html"]), option="--html")
    if not first:  # one process of several prints for all
        logger.setLevel(logging.ERROR)
    with progress_bar(shown=first, lines=True) as progress:
        output = asked.output
        source = open_source(
            asked.source,
            encoder=asked.encoder,
            size=output.size,
            normalization=output.normalization,  # type: ignore[arg-type]  # which it checks
            data=asked.data if kind.data is None else (),
        )
        if kind.data is None and source.data is not None and source.data.validation:
            share = f"{source.data.validation:.3g} of the training images"
            logger.warning("judged by %s, set aside, and not by test images", share)
        given: dict[str, Any] = {
            "compute": Compute(**asked.compute),
            "out": source.results_folder if output.out is None else Path(output.out),
            "cache": None if output.cache is None else Path(output.cache),
            "reading": None if kind.data is None else reading(source, asked.data),
            "progress": progress,
            "command": command,
        }
        found = kind.run(asked.config, source, **{name: given[name] for name in kind.takes})
    if first:
        out = given["out"] / f"{result_name(asked, source, found.label, given['reading'])}.json"
        _write(found, document(asked, source, found, command), out, asked.output.json, files)
    return found


def _further_files(asked: Request) -> dict[str, str]:
    """Files other than the result, by the options that name them."""
    named = {name: getattr(asked.config, name, None) for name in ("html", "representations")}
    return {name: path for name, path in named.items() if path is not None}


def _inputs(asked: Request) -> list[str | None]:
    """The files and folders that a request names."""
    several = parse_datasets(asked.config.datasets).values() if hasattr(asked.config, "datasets") else ()
    return [asked.source, dict(asked.data).get("data.path"), getattr(asked.config, "path", None), *several]


def _write(found: Evaluation, content: dict[str, Any], out: Path, json_file: str | None, files: dict[str, str]) -> None:
    """Write every file in one step, and print the result."""
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, text)
    if json_file is not None:
        write_atomically(json_file, text)
    for name, path in files.items():
        found.writers[name](path)
    print(found.text)
    print(f"done in {duration(found.minutes)}; the result is in {out}")
    for written in (json_file, *files.values()):
        if written is not None:
            say(f"wrote {written}")


def result_name(asked: Request, source: Source, title: str, how: DataConfig | None) -> str:
    """The name of a result among those of one source, which differs for other settings or images."""
    precision, names = asked.compute.get("precision"), getattr(asked.config, "datasets", None)
    return label(
        title,
        asked.config,
        data=source.data if KINDS[asked.kind].data is None else None,
        own=None if source.settings is None else source.settings.data,
        datasets=None if names is None or how is None else listed(names, own=source.data, how=how),
        more={
            "precision": None if precision == "fp32" else precision,
            "size": asked.output.size,
            "normalization": asked.output.normalization,
        },
    )


def document(asked: Request, source: Source, found: Evaluation, command: str) -> dict[str, Any]:
    """The JSON of a result, with what a reader needs to repeat it; `Record.from_json` reads it."""
    encoder, seed = source.encoder, getattr(asked.config, "seed", None)
    if seed is None and getattr(asked.config, "protocol", "fast") != "fast":
        seed = 0
    content = {
        "schema": SCHEMA,
        "kind": asked.kind,
        "results": found.results,
        "source": {
            "name": source.name,
            "path": str(source.path),
            "layout": encoder.layout,
            "encoder": asdict(encoder.config),
            "channels": encoder.channels,
            "size": encoder.size,
            "normalization": encoder.normalization,
            "key": encoder.key,
        },
        "data": None if source.data is None else asdict(source.data),
        "options": {**asdict(asked.config), **asked.compute},
        "seed": seed,
        "minutes": found.minutes,
        "environment": environment(command),
        **found.details,
    }
    plain: dict[str, Any] = json_values(content)
    return plain
