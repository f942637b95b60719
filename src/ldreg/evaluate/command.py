"""`ldreg evaluate`: the words of the command line to a judgment of an encoder."""

import dataclasses
import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ldreg.evaluate.options import Request, kind_of, request
from ldreg.extras import require
from ldreg.options import Settings

if TYPE_CHECKING:
    from ldreg.evaluate.source import Source
    from ldreg.evaluate.tasks import Outcome, Task


def evaluate(kind: str, source: str, options: Settings, *, command: str = "") -> "Outcome":
    """Evaluate the encoder of a source by one kind of evaluation, as `ldreg evaluate` documents it.

    Raises:
        ValueError: a source, data or options that do not fit.
        ArithmeticError: a training diverged.
        OSError: a file cannot be read or written.
    """
    return carry_out(request(kind, source, options), command=command)


def carry_out(asked: Request, *, command: str = "") -> "Outcome":
    """Evaluate, print the result, and keep it in the folder of results once it is whole.

    Raises:
        ValueError: a source, data or options that do not fit.
        ArithmeticError: a training diverged.
        OSError: a file cannot be read or written.
    """
    require("train")
    from ldreg.evaluate.outputs import check_outputs
    from ldreg.evaluate.shown import progress_shown
    from ldreg.io.files import check_page_path
    from ldreg.train.processes import first_process

    first = first_process()
    written = _written(asked)
    check_outputs(inputs=_inputs(asked), outputs=[asked.output.json, *written.values()])
    if "html" in written:
        check_page_path(Path(written["html"]), option="--html")
    if not first:  # one process of several speaks for all
        logging.getLogger("ldreg").setLevel(logging.ERROR)
    entry = kind_of(asked.kind)
    with progress_shown(quiet=not first) as progress:
        task = dataclasses.replace(prepare(asked), progress=progress, command=command)
        data = task.source.data if entry.data is None else None
        if data is not None and data.validation:
            share = f"{data.validation:.3g} of the training images"
            logging.getLogger("ldreg").warning("judged by %s, set aside, and not by test images", share)
        outcome = entry.run(asked.config, task)
    if first:
        _keep(asked, task, outcome)
    return outcome


def _written(asked: Request) -> dict[str, str]:
    """The files beside the result that options of the kind name, by these options."""
    named = {name: getattr(asked.config, name, None) for name in ("html", "representations")}
    return {name: path for name, path in named.items() if path is not None}


def _inputs(asked: Request) -> list[str | None]:
    """The files and folders that a request names."""
    from ldreg.evaluate.transfer import parse_datasets

    several = parse_datasets(asked.config.datasets).values() if hasattr(asked.config, "datasets") else ()
    return [asked.source, dict(asked.data).get("data.path"), getattr(asked.config, "path", None), *several]


def prepare(asked: Request) -> "Task":
    """The source opened, and where the results go."""
    from ldreg.evaluate.compute import Compute
    from ldreg.evaluate.source import open_source, reading
    from ldreg.evaluate.tasks import Task

    output, partly = asked.output, kind_of(asked.kind).data is not None
    source = open_source(
        asked.source,
        encoder=asked.encoder,
        size=output.size,
        normalization=output.normalization,  # type: ignore[arg-type]  # which it checks
        data=() if partly else asked.data,
    )
    return Task(
        source,
        Compute(**asked.compute),
        source.results_folder if output.out is None else Path(output.out),
        None if output.cache is None else Path(output.cache),
        reading(source, asked.data) if partly else None,
    )


def _keep(asked: Request, task: "Task", outcome: "Outcome") -> None:
    """Print the outcome and write it, each file in one step and only now that it is whole."""
    from ldreg.io.files import write_atomically
    from ldreg.text import duration
    from ldreg.train.folder import say

    text = json.dumps(document(asked, task, outcome), indent=2, allow_nan=False) + "\n"
    task.out.mkdir(parents=True, exist_ok=True)
    kept = task.out / f"{result_name(asked, task, outcome.label)}.json"
    write_atomically(kept, text)
    if asked.output.json is not None:
        write_atomically(asked.output.json, text)
    files = _written(asked)
    for name, path in files.items():
        outcome.writers[name](path)
    print(outcome.text)
    print(f"done in {duration(outcome.minutes)}; the result is in {kept}")
    for written in (asked.output.json, *files.values()):
        if written is not None:
            say(f"wrote {written}")


def result_name(asked: Request, task: "Task", title: str) -> str:
    """What the result is called among those of one source: another name for other settings or images."""
    from ldreg.evaluate.labels import label
    from ldreg.evaluate.transfer import listed

    settings, precision = task.source.settings, asked.compute.get("precision")
    names = getattr(asked.config, "datasets", None)
    return label(
        title,
        asked.config,
        data=task.source.data if kind_of(asked.kind).data is None else None,
        own=None if settings is None else settings.data,
        datasets=None if names is None or task.how is None else listed(names, own=task.source.data, how=task.how),
        more={
            "precision": None if precision == "fp32" else precision,
            "size": asked.output.size,
            "normalization": asked.output.normalization,
        },
    )


def document(asked: Request, task: "Task", outcome: "Outcome") -> dict[str, Any]:
    """The outcome with all that a reader needs to repeat it, as JSON takes it."""
    from ldreg.io.files import json_values
    from ldreg.train.folder import environment

    told = {
        "kind": asked.kind,
        "results": outcome.results,
        "source": _described(task.source),
        "data": None if task.source.data is None else asdict(task.source.data),
        "options": {**asdict(asked.config), **asked.compute},
        "seed": _seed(asked.config),
        "minutes": outcome.minutes,
        "environment": environment(task.command),
        **outcome.details,
    }
    plain: dict[str, Any] = json_values(told)
    return plain


def _seed(config: Any) -> int | None:
    """Of the random draws; None where there are none."""
    given: int | None = getattr(config, "seed", None)
    return 0 if given is None and getattr(config, "protocol", "fast") != "fast" else given


def _described(source: "Source") -> dict[str, Any]:
    encoder = source.encoder
    return {
        "name": source.name,
        "path": str(source.path),
        "layout": encoder.layout,
        "encoder": asdict(encoder.config),
        "channels": encoder.channels,
        "size": encoder.size,
        "normalization": encoder.normalization,
        "key": encoder.key,
    }
