"""`ldreg evaluate`: its options, and a run of one evaluation that checks, evaluates, prints and writes."""

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from ldreg.data import DataConfig
from ldreg.distributed import first_process
from ldreg.encoders import EncoderConfig
from ldreg.encoders.build import BEGINNINGS
from ldreg.evaluate.extract import Compute
from ldreg.evaluate.kinds import KINDS, Evaluation, Setup
from ldreg.evaluate.source import Source, open_source, reading_settings
from ldreg.evaluate.transfer import dataset_configs, dataset_paths
from ldreg.extras import require
from ldreg.io.files import check_page_path, json_values, write_atomically
from ldreg.options import Option, Settings, built, fields_of, typed
from ldreg.record import SCHEMA
from ldreg.terminal import progress_bar
from ldreg.text import duration
from ldreg.train.folder import check_outputs, environment, say

logger = logging.getLogger("ldreg")

_OF_THE_WEIGHTS = ("name", "drop_path", "freeze_patch_embedding")
# Options that the title of a kind names already, or that have no say in the result.
_UNNAMED = (
    "protocol", "split", "datasets", "path", "html", "representations", "device", "devices", "workers",
    "checkpoint_iterations",
)  # fmt: skip
_PLAIN = ("folder", "imagenet")  # sets that are whatever lies at their path
_LONGEST = 100  # characters of a name; a hash stands for what is beyond


@dataclass(frozen=True)
class OutputConfig:
    """Where the encoder's images and the results are.

    Args:
        size: side of the images, where the checkpoint does not say
        normalization: of the images, where the checkpoint does not say: imagenet, cifar, half or none
        cache: folder below which representations are kept; default that of --data.cache
        out: folder for results and checkpoints; default evaluation in the run's folder, else evaluation/NAME
        json: write the results, with what a reader needs to repeat them, to this file
    """

    size: int | None = None
    normalization: str | None = None
    cache: str | None = None
    out: str | None = None
    json: str | None = None


@dataclass(frozen=True)
class Request:
    """An evaluation to be made."""

    kind: str
    source: str
    config: Any  # of the class that the kind has
    output: OutputConfig
    compute: Mapping[str, Any]
    encoder: EncoderConfig | None
    data: Settings

    @property
    def files(self) -> dict[str, str]:
        """Files to be written beside the result, by the options that name them."""
        named = {name: getattr(self.config, name, None) for name in ("html", "representations")}
        return {name: path for name, path in named.items() if path is not None}

    @property
    def inputs(self) -> list[str | None]:
        """The files and folders to be read."""
        several = dataset_paths(self.config.datasets).values() if hasattr(self.config, "datasets") else ()
        return [self.source, dict(self.data).get("data.path"), getattr(self.config, "path", None), *several]


def parse_request(kind: str, source: str, options: Settings) -> Request:
    """The request that these options make.

    Raises:
        ValueError: an unknown option, which is named with the nearest ones, or a value of the wrong type or range.
    """
    values = typed(kind_options(kind), options)
    encoder = {key.partition(".")[2]: values[key] for key, _ in options if key.startswith("encoder.")}
    return Request(
        kind,
        source,
        _built(KINDS[kind].config(), values),
        _built(OutputConfig, values),
        {name: values[name] for name in KINDS[kind].shared if name != "cache"},
        built(EncoderConfig, encoder, "encoder.") if encoder else None,
        [(key, value) for key, value in options if key.startswith("data.")],
    )


def _built(config: type, values: Mapping[str, Any]) -> Any:
    return built(config, {field.name: values[field.name] for field in fields(config) if field.name in values})


def kind_options(kind: str) -> list[Option]:
    """Every option of a kind of evaluation."""
    entry = KINDS[kind]
    data = [option for option in fields_of(DataConfig, "data") if option.name != "size"]
    encoder = [option for option in fields_of(EncoderConfig, "encoder") if option.name not in BEGINNINGS]
    return [
        *fields_of(entry.config()),
        *fields_of(Compute, only=entry.shared),
        *(option for option in fields_of(OutputConfig) if option.name != "cache" or "cache" in entry.shared),
        *(_default(option, "the run's own") for option in data if entry.data is None or option.name in entry.data),
        *(
            _default(option, "found from the weights") if option.name in _OF_THE_WEIGHTS else option
            for option in encoder
        ),
    ]


def _default(option: Option, default: str) -> Option:
    """The option with words in place of its default."""
    return replace(option, default=None, help=f"{option.help} (default: {default})")


def evaluate(kind: str, source: str, options: Settings, *, command: str = "") -> Evaluation:
    """Evaluate an encoder, print the result, and write it to the folder of results once it is whole.

    Raises:
        ValueError: a source, data or options that do not fit.
        ArithmeticError: a training diverged.
        OSError: a file cannot be read or written.
    """
    request = parse_request(kind, source, options)
    require("train")
    check_outputs(inputs=request.inputs, outputs=[request.output.json, *request.files.values()])
    if "html" in request.files:
        check_page_path(Path(request.files["html"]), option="--html")
    first, takes_data = first_process(), KINDS[kind].data is None
    if not first:  # one process of several prints for all
        logger.setLevel(logging.ERROR)
    with progress_bar(shown=first, lines=True) as progress:
        output = request.output
        opened = open_source(
            source,
            encoder=request.encoder,
            size=output.size,
            normalization=output.normalization,  # type: ignore[arg-type]  # which it checks
            data=request.data if takes_data else (),
        )
        if takes_data and opened.data is not None and opened.data.validation:
            share = f"{opened.data.validation:.3g} of the training images"
            logger.warning("measured on %s, set aside, and not on test images", share)
        setup = Setup(
            Compute(**request.compute),
            opened.results_folder if output.out is None else Path(output.out),
            cache=None if output.cache is None else Path(output.cache),
            reading=DataConfig() if takes_data else reading_settings(opened, request.data),
            progress=progress,
            command=command,
        )
        found = KINDS[kind].run(request.config, opened, setup)
    if first:
        _write(found, request, opened, setup)
    return found


def _write(found: Evaluation, request: Request, source: Source, setup: Setup) -> None:
    """Write every file in one step, and print the result."""
    text = json.dumps(document(request, source, found, setup.command), indent=2, allow_nan=False) + "\n"
    out = setup.out / f"{result_name(request, source, found.label, setup.reading)}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, text)
    if request.output.json is not None:
        write_atomically(request.output.json, text)
    for name, path in request.files.items():
        found.writers[name](path)
    print(found.text)
    print(f"done in {duration(found.minutes)}; the result is in {out}")
    for written in (request.output.json, *request.files.values()):
        if written is not None:
            say(f"wrote {written}")


def document(request: Request, source: Source, found: Evaluation, command: str) -> dict[str, Any]:
    """The JSON of a result, with what a reader needs to repeat it; `Record.from_json` reads it."""
    encoder, seed = source.encoder, getattr(request.config, "seed", None)
    if seed is None and getattr(request.config, "protocol", "fast") != "fast":
        seed = 0
    content = {
        "schema": SCHEMA,
        "kind": request.kind,
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
        "options": {**asdict(request.config), **request.compute},
        "seed": seed,
        "minutes": found.minutes,
        "environment": environment(command),
        **found.details,
    }
    plain: dict[str, Any] = json_values(content)
    return plain


def result_name(request: Request, source: Source, title: str, reading: DataConfig) -> str:
    """The name of a result among those of one source, which differs for other settings or images."""
    precision, names = request.compute.get("precision"), getattr(request.config, "datasets", None)
    return label(
        title,
        request.config,
        data=source.data if KINDS[request.kind].data is None else None,
        own=None if source.settings is None else source.settings.data,
        datasets=None if names is None else dataset_configs(names, own=source.data, reading=reading),
        more={
            "precision": None if precision == "fp32" else precision,
            "size": request.output.size,
            "normalization": request.output.normalization,
        },
    )


def label(
    title: str,
    config: Any,
    *,
    data: DataConfig | None = None,
    own: DataConfig | None = None,
    datasets: Mapping[str, DataConfig] | None = None,
    more: Mapping[str, Any] | None = None,
) -> str:
    """The name of a result: the kind, the options that differ from their defaults, and the images.

    Args:
        title: of the kind.
        config: its options.
        data: the images, or None.
        own: those of the run, whose settings need no mention.
        datasets: instead of `data`, where there are several.
        more: options beside the config's; None and empty ones need no mention.

    >>> from ldreg.evaluate.knn import KnnConfig
    >>> label("knn", KnnConfig(), data=DataConfig()), label("knn", KnnConfig(k=20), data=DataConfig(limit=500))
    ('knn-digits', 'knn-k20-digits-limit500')
    """
    options = {field.name: getattr(config, field.name) for field in fields(config) if field.name not in _UNNAMED}
    usual = {field.name: field.default for field in fields(config)}
    changed = {name: value for name, value in options.items() if value != usual[name]}
    parts = [title, *_named({**changed, **(more or {})})]
    if getattr(config, "path", None) is not None:
        parts.append(_place(config.path))
    if data is not None:
        parts.append(_images(data, own))
    if datasets is not None:
        parts.append("+".join(_images(each, own) for each in datasets.values()))
    whole = "-".join(parts)
    return whole if len(whole) <= _LONGEST else f"{whole[: _LONGEST - 9]}-{_digits(whole)}"


def _named(options: Mapping[str, Any]) -> list[str]:
    """Options as parts of a name; a word speaks for itself, a number does not."""
    given = {name: value for name, value in options.items() if value not in (None, "")}
    return [_safe(value if isinstance(value, str) else f"{name}{value}") for name, value in given.items()]


def _images(data: DataConfig, own: DataConfig | None) -> str:
    usual = own if own is not None and own.name == data.name else DataConfig(name=data.name)
    named = {key: getattr(data, key) for key in ("limit", "resident") if getattr(data, key) != getattr(usual, key)}
    if data.validation:  # also the run's own: the plain name is for test images
        named["validation"] = data.validation
    if named.get("limit", 0) is None:
        named["limit"] = "all"
    place = [_place(data.path)] if data.name in _PLAIN and data.path not in (None, usual.path) else []
    return "-".join([data.name, *place, *_named(named)])


def _place(path: str | None) -> str:
    """A folder's own name, and digits that tell it from others of that name."""
    whole = Path(path or ".").resolve()
    return f"{_safe(whole.name)[:40]}-{_digits(str(whole))}"


def _safe(text: str) -> str:
    return re.sub(r"[^\w.+-]+", "_", text)


def _digits(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:8]
