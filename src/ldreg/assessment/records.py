"""A finished run as one record: its settings, final figures, curves, points and the images that are collapsed most."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ldreg.assessment.evaluated import evaluated
from ldreg.assessment.source import Source
from ldreg.data import DataConfig, ImageFiles, ImageSet, load_images
from ldreg.data.datasets import MissingSplitError
from ldreg.evaluation.compute import torch_device
from ldreg.evaluation.features import Features, features
from ldreg.evaluation.knn import knn_accuracy
from ldreg.evaluation.linear import linear_accuracy
from ldreg.inspection import inspect
from ldreg.inspection.report import DimensionReport, findings_in_words
from ldreg.io.files import read_text
from ldreg.monitor.config import MonitorConfig
from ldreg.monitor.log import read_metrics
from ldreg.record import Finding, Record, most_serious_first, read_findings
from ldreg.text import printable
from ldreg.thumbnails import Thumbnail, data_uri
from ldreg.train.assembly import named
from ldreg.train.folder import RunFolder
from ldreg.train.settings import Settings, told_settings

# Metrics of the log, and what a record calls their curves.
CURVES = {
    "set/lid": "lid",
    "set/lid_low": "lid_low",
    "set/effective_rank": "effective_rank",
    "set/linear": "linear",
    "set/knn": "knn",
    "set/frechet_variance": "frechet_variance",
    "batch/view_share": "view_share",
    "batch/loss": "loss",
}
KEPT_POINTS = 2000  # of which LID, place and class are listed; statistics are over all
_FILE_STEP = 1e-8  # that accuracies in files are rounded to, or less
_CONTRAST = 3  # of so many collapsed images one of the least collapsed is shown

Progress = Callable[[str, float], None]
Extract = Callable[..., Features]  # representations of a split
Measure = Callable[..., DimensionReport]


@dataclass(frozen=True)
class _Measured:
    """The parts of a record that the images are needed for."""

    results: Mapping[str, float] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = field(default_factory=list)


def record(
    source: Source,
    *,
    name: str | None = None,
    device: str = "auto",
    thumbnails: int = 24,
    points: int | None = None,
    k: int | None = None,
    required: bool = False,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Record:
    """Evaluate an encoder on all images that it was trained on, and join that with what its run logged.

    Dimensions are those of the training images without augmentation, accuracies those on the test images of a linear
    probe and of kNN that know the training images, where there are labels. Where the images are not there, the record
    has what was logged, and a note that says why the rest is missing. Results that `ldreg evaluate` left in the run's
    folder are taken in, but for those that are measured here in the same way.

    Args:
        source: the encoder, with its run folder and data where it has them.
        name: in tables and legends; None: the source's.
        device: auto, cpu or cuda.
        thumbnails: how many of the most collapsed images are kept; with a third as many of the least.
        points: measure LID of at most this many images, drawn at random, among all; None: of all.
        k: neighbors that LID is read from; None: as the run's monitor has it.
        required: whether missing images are an error, as where they were asked for.
        cache: folder below which representations are kept; None: as `features` says.
        progress: called with what is done and the fraction that is done.

    Raises:
        ValueError: settings that do not fit the images, or a file of the run that is not what it should be.
        OSError: something cannot be read.
    """
    if thumbnails < 0:
        raise ValueError(f"thumbnails: expected at least 0, got {thumbnails}")
    folder = source.folder
    card = {} if folder is None else _facts(folder.card)
    images, reason = _images(source.data)
    if images is None and required:
        raise ValueError(reason)
    if images is None:
        measured = _Measured(notes=[f"dimensions, maps and images could not be measured: {reason}"])
    else:
        extract = partial(features, source.encoder, device=device, cache=cache, progress=progress)
        measure = partial(inspect, sample=points, device=device, progress=progress)
        near = _monitor(source).k if k is None else k
        placed = torch_device(device)
        measured = _measure(source, images, extract, measure, k=near, device=placed, thumbnails=thumbnails)
    others, left_out = evaluated(source, images=None if source.data is None else source.data.name)
    own = measured.fields.get("findings", [])
    kept = [] if folder is None else _kept_findings(folder, card, representations=not own)
    return Record(
        source.name if name is None else name,
        settings=_told(source, measured=images is not None),
        results={**measured.results, **_without_repeats(others, measured), **_minutes(card)},
        curves={} if folder is None else curves_of(folder),
        origin={} if folder is None else origin_of(folder, source.settings),
        notes=[*measured.notes, *left_out],
        **{**measured.fields, "findings": most_serious_first([*kept, *own])},
    )


def _kept_findings(folder: RunFolder, card: Mapping[str, Any], *, representations: bool) -> list[Finding]:
    """What the run found in its images and, where those were not measured here, in its representations."""
    try:
        kept = read_findings(card.get("findings", []))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{folder.card}: findings: expected a list of findings, got {error}") from error
    return [found for found in kept if (representations if found.of == "representations" else found.serious)]


def _without_repeats(others: Mapping[str, float], measured: _Measured) -> dict[str, float]:
    """What `ldreg evaluate` left, without the probe and the vote that were measured alike and came out the same."""
    alike = {"linear/fast protocol": "linear", f"knn/k = {measured.fields.get('voters')}": "knn"}

    def repeats(key: str, value: float) -> bool:
        known = measured.results.get(alike.get(key, ""))
        return known is not None and abs(value - known) <= _FILE_STEP

    return {key: value for key, value in others.items() if not repeats(key, value)}


def _measure(
    source: Source,
    images: ImageSet,
    extract: Extract,
    measure: Measure,
    *,
    k: int,
    device: torch.device,
    thumbnails: int,
) -> _Measured:
    train = extract(source.data, "train", images=images)
    count = len(train.labels)
    if k >= count:
        raise ValueError(f"k: expected fewer than the {count} training images, got {k}; --k N asks for fewer neighbors")
    report = measure(train.representations, _labels(train), k=k)
    facts: dict[str, Any] = {
        "images": count,
        "findings": findings_in_words(report, "representations", train.indices.tolist()),
        "classes": {each.label: each.mean.value for each in report.classes},
    }
    try:
        with named("data", DataConfig):
            test = extract(source.data, "test")
        voters = _monitor(source).voters(int((train.labels >= 0).sum()))
        accuracies = _accuracies(train, test, voters=voters, device=device)
        if accuracies:
            facts |= {"tested": int((test.labels >= 0).sum()), "voters": voters}
    except MissingSplitError:
        accuracies = {}
    pictures = _pictures(images, train, report, count=thumbnails)
    return _Measured(
        {**_dimensions(report), **accuracies}, {**facts, **_listed(report), **pictures}, _elsewhere(source)
    )


def _images(data: DataConfig | None) -> tuple[ImageSet | None, str]:
    """The training images, or None and why they are not there."""
    if data is None:
        return None, "no data is known; --data.name and --data.path say which"
    try:
        with named("data", DataConfig):
            return load_images(data, "train"), ""
    except (ValueError, OSError) as error:
        return None, f"{' '.join(str(error).split())}; --data.path says where the images are"


def _monitor(source: Source) -> MonitorConfig:
    return MonitorConfig() if source.settings is None else source.settings.monitor


def _elsewhere(source: Source) -> list[str]:
    """Where images of another set were measured than those of the training, a sentence on that."""
    if source.settings is None or source.data is None or source.data.name == source.settings.data.name:
        return []
    return [f"measured on {source.data.name}; trained on {source.settings.data.name}"]


def _told(source: Source, *, measured: bool) -> dict[str, Any]:
    """The settings, with the data that were measured in the place of others that the run was trained on."""
    if source.settings is not None:
        told = told_settings(source.settings)
        if measured and source.data is not None and source.data != source.settings.data:
            told |= {f"data.{key}": value for key, value in asdict(source.data).items() if f"data.{key}" in told}
        return told
    known = {"encoder.name": source.encoder.config.name, "layout": source.encoder.layout, "size": source.encoder.size}
    return known if source.data is None else {**known, "data.name": source.data.name}


def _labels(found: Features) -> list[str] | None:
    """The class of every image by name; None where some have none."""
    if not found.classes or bool((found.labels < 0).any()):
        return None
    return [found.classes[label] for label in found.labels.tolist()]


def _dimensions(report: DimensionReport) -> dict[str, float]:
    return {
        "lid": report.mean.value,
        "lid_low": report.lid_low,
        "effective_rank": report.effective_rank,
        "frechet_variance": report.frechet_variance,
        "degenerate": report.degenerate_share,
    }


def _accuracies(train: Features, test: Features, *, voters: int, device: torch.device) -> dict[str, float]:
    """Of probes that know the labeled training images on the labeled test images; empty where there are too few."""
    x, y = (part[train.labels >= 0].to(device) for part in (train.representations, train.labels))
    x_test, y_test = (part[test.labels >= 0].to(device) for part in (test.representations, test.labels))
    if len(y.unique()) < 2 or not len(y_test):
        return {}
    return {
        "linear": linear_accuracy(x, y, x_test, y_test).accuracy,
        "knn": knn_accuracy(x, y, x_test, y_test, k=voters),
    }


def _listed(report: DimensionReport) -> dict[str, Any]:
    """The fields of a record that have one entry for each point, for an even choice of many."""
    rows = torch.linspace(0, report.measured - 1, min(KEPT_POINTS, report.measured)).round().long()
    return {
        "lid": report.lid[rows].tolist(),
        "map": [(across, up) for across, up in report.coordinates[rows].tolist()],
        "labels": None if report.labels is None else [report.labels[row] for row in rows.tolist()],
        "eigenvalues": report.eigenvalues.tolist(),
        "points": report.measured,
        "k": report.k,
    }


def _pictures(images: ImageSet, found: Features, report: DimensionReport, *, count: int) -> dict[str, list[Thumbnail]]:
    """The images of lowest and of highest LID; those without a finite one are left out."""
    order = torch.sort(report.lid, stable=True).indices
    order = order[torch.isfinite(report.lid[order])]

    def shown(places: Tensor) -> list[Thumbnail]:
        rows = report.index[places].tolist()
        return [
            _thumbnail(images, found, row, report.lid[place].item()) for row, place in zip(rows, places, strict=True)
        ]

    fewer = min(math.ceil(count / _CONTRAST), max(0, len(order) - count))
    return {"most_collapsed": shown(order[:count]), "least_collapsed": shown(order.flip(0)[:fewer])}


def _thumbnail(images: ImageSet, found: Features, row: int, lid: float) -> Thumbnail:
    index, label = int(found.indices[row]), int(found.labels[row])
    return Thumbnail(
        data_uri(images.read(index).pixels if isinstance(images, ImageFiles) else images.images[index]),
        index=index,
        lid=lid,
        label=found.classes[label] if label >= 0 else "",
        file=Path(images.path(index)).name if isinstance(images, ImageFiles) else "",
    )


def _facts(path: Path) -> dict[str, Any]:
    """What a JSON file of a run says; nothing where it is not there.

    Raises:
        ValueError: it is no JSON object.
    """
    if not path.exists():
        return {}
    try:
        told = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected JSON, got {error}") from error
    if not isinstance(told, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(told).__name__}")
    return told


def _minutes(card: Mapping[str, Any]) -> dict[str, float]:
    minutes = card.get("minutes")
    return {"minutes": float(minutes)} if isinstance(minutes, int | float) else {}


def curves_of(folder: RunFolder) -> dict[str, list[tuple[float, float]]]:
    """(epoch, value) pairs of what a run logged, by the names of results; empty where it has no log."""
    logged = read_metrics(folder.metrics) if folder.metrics.exists() else {}
    return {
        short: [(epoch, value) for _, epoch, value in logged[long]] for long, short in CURVES.items() if long in logged
    }


def origin_of(folder: RunFolder, settings: Settings | None) -> dict[str, str | float | int | None]:
    """Where the numbers of a run come from: command, commit, version, hardware, seed, epochs, minutes."""
    card = _facts(folder.card)
    facts = _facts(folder.environment)
    cores = f"{facts.get('processor')}, {facts.get('cores')} cores" if "cores" in facts else None
    told = {
        "command": facts.get("command"),
        "commit": facts.get("commit"),
        "version": facts.get("ldreg"),
        "hardware": facts.get("gpu") or cores,
        "seed": None if settings is None else settings.run.seed,
        "epochs": card.get("epochs"),
        "minutes": card.get("minutes"),
        "stopped": card.get("stopped"),
    }
    known = {key: value for key, value in told.items() if value is not None}
    return {key: value if isinstance(value, int | float) else printable(str(value)) for key, value in known.items()}
