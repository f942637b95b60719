"""`ldreg evaluate`: the kinds of evaluation and their options; one run checks, evaluates, prints and writes."""

import hashlib
import io
import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ldreg.data import DataConfig, ImageFiles, load_images
from ldreg.data.datasets import MissingSplitError
from ldreg.distributed import first_process
from ldreg.encoders import EncoderConfig
from ldreg.encoders.build import INITIALIZATION
from ldreg.evaluate.classification import ClassifierResult, classifier_accuracy, load_classification, transfer
from ldreg.evaluate.detection import DetectionConfig
from ldreg.evaluate.features import Setup
from ldreg.evaluate.measure import KnnConfig, knn_accuracy, voters
from ldreg.evaluate.protocols import (
    NEIGHBORS,
    DimensionConfig,
    FinetuneConfig,
    LinearConfig,
    OutputConfig,
    TransferConfig,
    dataset_configs,
    dataset_paths,
    with_run_augmentation,
)
from ldreg.evaluate.source import READING, Source, open_source, reading_settings
from ldreg.extras import require
from ldreg.io.files import check_page_path, json_values, write_atomically
from ldreg.options import Option, Settings, built, fields_of, typed
from ldreg.record import SCHEMA
from ldreg.report.tables import Cell, Table, table_text
from ldreg.terminal import progress_bar
from ldreg.text import count, duration, number, printable
from ldreg.train.folder import check_outputs, environment, say

logger = logging.getLogger("ldreg")

_FEW_VOTERS = 20  # the other usual number of neighbors
_FOUND_FROM_WEIGHTS = ("name", "drop_path", "freeze_patch_embedding")
# Options that the title of a kind names already, or that do not change the result.
_NOT_IN_NAME = {"protocol", "split", "datasets", "path", "html", "representations", "device", "devices", "workers"}
_NOT_IN_NAME |= {"checkpoint_iterations"}
_NAMED_BY_PATH = ("folder", "imagenet")  # sets that are whatever lies at their path
_LONGEST_NAME = 100  # characters of a name; a hash stands for the rest


class Evaluation(NamedTuple):
    """The result of one evaluation."""

    title: str  # with which the name of its file begins
    results: dict[str, Any]
    text: str  # to print
    minutes: float  # over all interruptions
    details: Mapping[str, Any] = {}  # further entries of its file, such as the accuracy after every epoch
    writers: Mapping[str, Callable[[str], None]] = {}  # of further files, by the options that name these files


def _classifier(config: LinearConfig | FinetuneConfig, source: Source, setup: Setup) -> Evaluation:
    found = classifier_accuracy(source.encoder, source.images, with_run_augmentation(config, source), setup)
    if isinstance(config, LinearConfig):
        kind, title, name = "linear", f"linear-{config.protocol}", f"linear, {config.protocol}"
    else:
        kind, title, name = "finetune", "finetune", "fine-tuned"
    rows = {name: number(found.accuracy)}
    if found.best is not None:
        rows["best epoch"] = f"{number(found.best)}  (chosen by the test images; not to be reported)"
        each = found.steps // found.epochs
        steps = f"{count(each)} step{'' if each == 1 else 's'} each"
        rows["epochs"] = f"{found.epochs}, {steps}, batch {found.batch_size}, peak learning rate {number(found.lr)}"
    rows["images"] = f"{_images(found.train_images, found.test_images)}, {found.classes} classes"
    details = {"history": list(found.history)} if found.history else {}
    return Evaluation(title, _numbers(kind, found), _lines(rows), found.minutes, details)


def _numbers(kind: str, found: ClassifierResult) -> dict[str, Any]:
    """The results of a classifier: accuracy after the last epoch as KIND, of the best epoch as KIND_best."""
    values = {kind: found.accuracy, f"{kind}_best": found.best, **vars(found)}
    left_out = ("accuracy", "best", "minutes", "history")
    return {name: value for name, value in values.items() if value is not None and name not in left_out}


def _images(train: int, test: int) -> str:
    return f"{count(train)} to train, {count(test)} to test"


def _lines(rows: Mapping[str, str]) -> str:
    """Names and values, one a line."""
    return "\n".join(f"{name:<20} {value}" for name, value in rows.items())


def _knn(config: KnnConfig, source: Source, setup: Setup) -> Evaluation:
    started = time.monotonic()
    train_images, test_images = load_classification(source.images)
    if config.k is not None and config.k > len(train_images):
        raise ValueError(f"k: expected at most the {len(train_images)} training images, got {config.k}")
    train = setup.features(source.encoder, source.images, "train", train_images)
    test = setup.features(source.encoder, source.images, "test", test_images)
    device, k = setup.place, voters(len(train.labels), config.k)
    x, x_test = train.representations.to(device), test.representations.to(device)
    accuracy = knn_accuracy(x, train.labels, x_test, test.labels, k=k, temperature=config.temperature)
    results = {"knn": accuracy, "k": k, "classes": len(train.classes)}
    results |= {"train_images": len(train.labels), "test_images": len(test.labels)}
    text = _lines({f"kNN, k = {k}": number(accuracy), "images": _images(len(train.labels), len(test.labels))})
    smallest, words = smallest_class(train.names() or [])
    if k > smallest:
        reason = f"k: {count(k)} vote, more than the smallest class has ({words})"
        text += f"\n{reason}: accuracy may read low; try --k {min(_FEW_VOTERS, max(1, smallest // 2))}"
    return Evaluation("knn", results, text, (time.monotonic() - started) / 60)


def smallest_class(names: Sequence[str]) -> tuple[int, str]:
    """How many images the smallest class has, and the same in words.

    >>> smallest_class("aaaaabbbb")
    (4, '4 images of class b')
    """
    name, images = min(Counter(names).items(), key=lambda entry: entry[1])
    return images, f"{count(images)} {'image' if images == 1 else 'images'} of class {printable(name)}"


def _transfer(config: TransferConfig, source: Source, setup: Setup) -> Evaluation:
    datasets = dataset_configs(config.datasets, own=source.data, reading=setup.reading)
    found = transfer(source.encoder, datasets, with_run_augmentation(config, source), setup)
    rows = []
    for name, one in found.items():
        counts = map(count, (one.classes, one.train_images, one.test_images))
        values = (name, number(one.accuracy), number(one.best), str(one.epochs or "–"), *counts)
        rows.append([Cell(value) for value in values])
    columns = ["dataset", "linear", "best epoch", "epochs", "classes", "images", "tested"]
    return Evaluation(
        f"transfer-{config.protocol}",
        {name: _numbers("linear", one) for name, one in found.items()},
        table_text(Table(columns, rows)),
        sum(one.minutes for one in found.values()),
        details={"history": {name: list(one.history) for name, one in found.items()}},
    )


def _detection(config: DetectionConfig, source: Source, setup: Setup) -> Evaluation:
    require("detection")
    from ldreg.evaluate.detection.run import detect  # pycocotools may be missing

    found = detect(source.encoder, config, out=setup.out / "detection", progress=setup.progress)
    return Evaluation("detection", asdict(found), _lines(found.rows()), found.minutes)


def _dimension(config: DimensionConfig, source: Source, setup: Setup) -> Evaluation:
    """Inspect the representations of a split, per class if all images have labels."""
    from ldreg.inspection.measure import inspect

    started = time.monotonic()
    k = config.k or (NEIGHBORS if source.settings is None else source.settings.monitor.k)
    try:
        images = load_images(source.images, config.split)
        found = setup.features(source.encoder, source.images, config.split, images)
    except MissingSplitError as error:
        raise MissingSplitError(f"{error}; --split train measures the images there are") from error
    if k >= len(found.labels):
        raise ValueError(f"k: expected fewer than the {len(found.labels)} {config.split} images, got {k}")
    names = found.names()
    report = inspect(
        found.representations,
        names,
        k,
        estimator=config.estimator,
        convention=config.convention,
        sample=config.sample,
        device=setup.place,
        seed=config.seed,
        keep_neighbors=config.html is not None,
        progress=setup.progress,
    )
    data = source.images
    on = Path(data.path).resolve().name if data.name == "folder" and data.path else data.name
    report = replace(report, title=f"{source.name}, {config.split} images of {on}", command=setup.command)
    text = str(report)
    smallest, words = smallest_class(names) if names else (2 * k, "")
    if 2 * k > smallest:
        warning = f"k: {k} is over half of the smallest class ({words}): LID reads gaps between classes"
        logger.warning("%s", warning)
        text += f"\n{warning}"

    def write_page(path: str) -> None:
        rows = found.indices.tolist()
        shown = [images.path(row) if isinstance(images, ImageFiles) else images.images[row] for row in rows]
        report.to_html(path, images=shown)

    results = {
        "lid": report.mean.value,
        "lid_confidence": [report.mean.low, report.mean.high],
        "lid_low": report.lid_low,
        "effective_rank": report.effective_rank,
        "rankme": report.rankme,
        "frechet_variance": report.frechet_variance,
        "twonn": report.twonn.value,
        "danco": report.danco.value,
        "degenerate": report.degenerate_share,
        "images": report.points,
        "k": report.k,
    }
    return Evaluation(
        f"dimension-{config.split}",
        results,
        text,
        (time.monotonic() - started) / 60,
        details={"report": report.to_dict()},
        writers={"html": write_page, "representations": partial(_write_rows, found.representations)},
    )


def _write_rows(rows: Tensor, path: str) -> None:
    """Write representations (N, D) as a .npy file in one step."""
    content = io.BytesIO()
    np.save(content, rows.numpy(force=True))
    write_atomically(path, content.getvalue())


class Kind(NamedTuple):
    """One kind of evaluation."""

    config: type  # of its own options
    run: Callable[..., Evaluation]  # with these options, the source and the setup
    shared: tuple[str, ...]  # its options among device, devices, precision and cache
    data: tuple[str, ...] | None = None  # its settings of the data; None: all of them


_TRAINED = ("device", "devices", "precision")
_CACHED = ("device", "precision", "cache")

KINDS: Mapping[str, Kind] = {
    "linear": Kind(LinearConfig, _classifier, (*_TRAINED, "cache")),
    "knn": Kind(KnnConfig, _knn, _CACHED),
    "finetune": Kind(FinetuneConfig, _classifier, _TRAINED),
    "dimension": Kind(DimensionConfig, _dimension, _CACHED),
    "transfer": Kind(TransferConfig, _transfer, (*_TRAINED, "cache"), data=READING),
    "detection": Kind(DetectionConfig, _detection, (), data=()),
}


def kind_options(name: str) -> list[Option]:
    """Every option of a kind of evaluation."""
    kind = KINDS[name]
    own = sorted(fields_of(kind.config), key=lambda option: option.default is not MISSING)
    data = [
        _default(option, "the run's own")
        for option in fields_of(DataConfig, "data")
        if option.name != "size" and (kind.data is None or option.name in kind.data)
    ]
    encoder = [
        _default(option, "found from the weights") if option.name in _FOUND_FROM_WEIGHTS else option
        for option in fields_of(EncoderConfig, "encoder")
        if option.name not in INITIALIZATION
    ]
    return [*own, *fields_of(Setup, only=kind.shared), *fields_of(OutputConfig), *data, *encoder]


def _default(option: Option, default: str) -> Option:
    """The option with words in place of its default."""
    return replace(option, default=None, help=f"{option.help} (default: {default})")


def evaluate(name: str, source: str, options: Settings, *, command: str = "") -> Evaluation:
    """Evaluate an encoder, print the result, and write it to the folder of results once it is complete."""
    kind, values = KINDS[name], typed(kind_options(name), options)
    config, output = (
        built(made, {entry.name: values[entry.name] for entry in fields(made) if entry.name in values})
        for made in (kind.config, OutputConfig)
    )
    shared = {option: values[option] for option in kind.shared}
    given = {key.partition(".")[2]: values[key] for key, _ in options if key.startswith("encoder.")}
    encoder = built(EncoderConfig, given, "encoder.") if given else None
    data = [(key, value) for key, value in options if key.startswith("data.")]
    require("train")
    inputs = [source, dict(data).get("data.path"), getattr(config, "path", None)]
    inputs += dataset_paths(config.datasets).values() if hasattr(config, "datasets") else ()
    files = {option: getattr(config, option, None) for option in ("html", "representations")}
    check_outputs(inputs=inputs, outputs=[output.json, *files.values()])
    if files["html"] is not None:
        check_page_path(Path(files["html"]), option="--html")
    first = first_process()
    if not first:  # one process of several prints for all
        logger.setLevel(logging.ERROR)
    with progress_bar(shown=first, lines=True) as progress:
        opened = open_source(
            source,
            encoder=encoder,
            size=output.size,
            normalization=output.normalization,
            data=data if kind.data is None else (),
        )
        if kind.data is None and opened.data is not None and opened.data.validation:
            share = f"{opened.data.validation:.3g} of the training images"
            logger.warning("measured on %s, set aside, and not on test images", share)
        setup = Setup(
            opened.results_folder if output.out is None else Path(output.out),
            **shared,
            reading=DataConfig() if kind.data is None else reading_settings(opened, data),
            progress=progress,
            command=command,
        )
        found = kind.run(config, opened, setup)
    if not first:
        return found
    seed = getattr(config, "seed", None)
    content = {
        "schema": SCHEMA,
        "kind": name,
        "results": found.results,
        "source": opened.facts(),
        "data": None if opened.data is None else asdict(opened.data),
        "options": {**asdict(config), **{key: value for key, value in shared.items() if key != "cache"}},
        "seed": 0 if seed is None and getattr(config, "protocol", "fast") != "fast" else seed,
        "minutes": found.minutes,
        "environment": environment(command),
        **found.details,
    }
    text = json.dumps(json_values(content), indent=2, allow_nan=False) + "\n"
    if isinstance(config, TransferConfig):
        datasets = [*dataset_configs(config.datasets, own=opened.data, reading=setup.reading).values()]
    else:
        datasets = [opened.data] if kind.data is None and opened.data is not None else []
    named = result_name(
        found.title,
        config,
        datasets,
        own=None if opened.settings is None else opened.settings.data,
        precision=None if shared.get("precision") == "fp32" else shared.get("precision"),
        size=output.size,
        normalization=output.normalization,
    )
    path = setup.out / f"{named}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text)
    if output.json is not None:
        write_atomically(output.json, text)
    for option, file in files.items():
        if file is not None:
            found.writers[option](file)
    print(found.text)
    print(f"done in {duration(found.minutes)}; the result is in {path}")
    for file in filter(None, (output.json, *files.values())):
        say(f"wrote {file}")
    return found


def result_name(
    title: str, config: Any, datasets: Sequence[DataConfig] = (), *, own: DataConfig | None = None, **more: Any
) -> str:
    """The name of a result: its title, the options that differ from their defaults, and the images.

    Settings of images that are the run's `own` are not named, nor are further options that are None or empty.

    >>> result_name("knn", KnnConfig(), [DataConfig()]), result_name("knn", KnnConfig(k=20), [DataConfig(limit=500)])
    ('knn-digits', 'knn-k20-digits-limit500')
    """
    changed = {
        option.name: getattr(config, option.name)
        for option in fields(config)
        if option.name not in _NOT_IN_NAME and getattr(config, option.name) != option.default
    }
    parts = [title, *_named({**changed, **more})]
    if getattr(config, "path", None) is not None:
        parts.append(_folder_label(config.path))
    if datasets:
        parts.append("+".join(_data_name(each, own) for each in datasets))
    whole = "-".join(parts)
    return whole if len(whole) <= _LONGEST_NAME else f"{whole[: _LONGEST_NAME - 9]}-{_short_hash(whole)}"


def _named(options: Mapping[str, Any]) -> list[str]:
    """Options as parts of a name: words by themselves, numbers after the option's name."""
    given = {name: value for name, value in options.items() if value not in (None, "")}
    return [_file_name(value if isinstance(value, str) else f"{name}{value}") for name, value in given.items()]


def _data_name(data: DataConfig, own: DataConfig | None) -> str:
    usual = own if own is not None and own.name == data.name else DataConfig(name=data.name)
    named = {key: getattr(data, key) for key in ("limit", "resident") if getattr(data, key) != getattr(usual, key)}
    if data.validation:  # also the run's own: the plain name is for test images
        named["validation"] = data.validation
    if named.get("limit", 0) is None:
        named["limit"] = "all"
    place = [_folder_label(data.path)] if data.name in _NAMED_BY_PATH and data.path not in (None, usual.path) else []
    return "-".join([data.name, *place, *_named(named)])


def _folder_label(path: str | None) -> str:
    """A folder's own name, and digits that distinguish it from others of that name."""
    whole = Path(path or ".").resolve()
    return f"{_file_name(whole.name)[:40]}-{_short_hash(str(whole))}"


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.+-]+", "_", text)


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:8]
