"""An encoder measured on a data set, and the record of a finished run with its curves, points and images."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ldreg.data import DataConfig, ImageFiles, ImageSet, load_images
from ldreg.data.datasets import MissingSplitError
from ldreg.encoders.checkpoints import LoadedEncoder
from ldreg.evaluate.extract import torch_device
from ldreg.evaluate.features import Features, Progress, features
from ldreg.evaluate.measure import KnnConfig, knn_accuracy, linear_accuracy, measure, voters
from ldreg.evaluate.protocols import LinearConfig
from ldreg.evaluate.source import READING, Source
from ldreg.inspection.measure import quick_report
from ldreg.inspection.report import DimensionReport, findings_in_words
from ldreg.io.files import read_text
from ldreg.monitor.log import read_metrics
from ldreg.monitor.watch import MonitorConfig
from ldreg.record import CURVES, Finding, Record, Thumbnail, most_serious_first, origin
from ldreg.text import one_line
from ldreg.thumbnails import data_uri
from ldreg.train.folder import RunFolder
from ldreg.train.settings import Settings, named, record_settings

LISTED_POINTS = 2000  # whose LID, place and class are listed; statistics are over all
_CONTRAST = 3  # times as many images of lowest as of highest LID
_FILE_STEP = 1e-8  # accuracies in files are rounded to this or less


def measure_encoder(
    encoder: LoadedEncoder,
    data: DataConfig,
    k: int,
    *,
    linear: Callable[[], float],
    device: str = "auto",
    cache: Path | None = None,
) -> tuple[dict[str, float], int, int]:
    """Dimensions and accuracies of test images, the number of images measured, and the number of test images.

    `linear` measures linear accuracy, if there are labels. Without test images, the training images are measured.

    Raises:
        ValueError: the data is missing, or k is not below the number of images.
    """
    train = features(encoder, data, "train", device=device, cache=cache)
    try:
        test = features(encoder, data, "test", device=device, cache=cache)
    except MissingSplitError:
        test = None
    chosen = test or train
    results = measure(chosen.representations.to(torch_device(device)), k=k)
    if four := _labeled(train, test, device):
        results |= {"linear": linear(), "knn": knn_accuracy(*four, k=voters(len(four[1])))}
    return results, len(chosen.labels), 0 if test is None else len(test.labels)


def _labeled(train: Features, test: Features | None, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Representations and labels of both splits, where labels are known; None if too few are."""
    if test is None:
        return None
    known, asked = train.labels >= 0, test.labels >= 0
    if len(train.labels[known].unique()) < 2 or not asked.any():
        return None
    parts = train.representations[known], train.labels[known], test.representations[asked], test.labels[asked]
    x, y, x_test, y_test = (part.to(torch_device(device)) for part in parts)
    return x, y, x_test, y_test


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
    """Measure an encoder on all images that it was trained on, and add what its run logged and what was evaluated.

    Dimensions are those of the training images without augmentation. Accuracies are those of a linear probe and of kNN
    on the test images, if there are labels; those that `ldreg evaluate` has measured are not measured again. Without
    the images, the record has what was logged, and a note that says why the rest is missing.

    LID is estimated for `points` images drawn at random (None: all) from `k` neighbors (None: those of the run's
    monitor). The record shows `thumbnails` images of lowest LID, and a third as many of highest.

    Raises:
        ValueError: settings that do not fit the images, images that are missing but `required`, or a file of the run
            that cannot be used.
    """
    folder, settings, data = source.folder, source.settings, source.data
    card = None if folder is None or not folder.card.exists() else Record.from_json(folder.card)
    images, reason = _training_images(data)
    if images is None and required:
        raise ValueError(reason)
    evaluations, notes = evaluated(source)
    findings: list[Finding] = []
    results: dict[str, float] = {}
    fields: dict[str, Any] = {}
    if images is None or data is None:
        notes.insert(0, f"dimensions, maps and images could not be measured: {reason}")
    else:
        shared: dict[str, Any] = {"device": device, "cache": cache, "progress": progress}
        monitor = MonitorConfig() if settings is None else settings.monitor
        train = features(source.encoder, data, "train", images=images, **shared)
        near = monitor.k if k is None else k
        if near >= len(train.labels):
            expected = f"fewer than the {len(train.labels)} training images"
            raise ValueError(f"k: expected {expected}, got {near}; --k N asks for fewer neighbors")
        report = quick_report(
            train.representations, train.names(), near, sample=points, device=device, plane=True, progress=progress
        )
        results = {
            "lid": report.mean.value,
            "lid_low": report.lid_low,
            "effective_rank": report.effective_rank,
            "frechet_variance": report.frechet_variance,
            "degenerate": report.degenerate_share,
        }
        findings = findings_in_words(report, "representations", train.indices.tolist())
        fields = _listed(train, report) | _pictures(images, train, report, count=thumbnails)
        try:
            with named("data", DataConfig):
                test = features(source.encoder, data, "test", **shared)
        except MissingSplitError:
            test = None
        if four := _labeled(train, test, device):
            k_votes = voters(len(four[1]), monitor.knn_k)
            known = _known_accuracies(evaluations, data, k_votes)
            results["linear"] = known["linear"] if "linear" in known else linear_accuracy(*four).accuracy
            results["knn"] = known["knn"] if "knn" in known else knn_accuracy(*four, k=k_votes)
            fields |= {"tested": len(four[3]), "voters": k_votes}
        if settings is not None and data.name != settings.data.name:
            notes.insert(0, f"measured on {data.name}; trained on {settings.data.name}")
    if card is not None:  # whose findings in the representations are measured anew
        findings += [one for one in card.findings if (images is None if one.of == "representations" else one.serious)]
    minutes = {} if card is None or "minutes" not in card.results else {"minutes": card.results["minutes"]}
    return Record(
        source.name if name is None else name,
        settings=_settings(source, measured=images is not None),
        results={**results, **evaluation_rows(evaluations, results, fields.get("voters"), source), **minutes},
        curves={} if folder is None else curves_of(folder),
        origin={} if folder is None else origin_of(folder, settings),
        notes=notes,
        findings=most_serious_first(findings),
        **fields,
    )


def evaluated(source: Source) -> tuple[dict[str, Record], list[str]]:
    """Results of `ldreg evaluate` in the run's folder, by file name, and a note for each one that is unusable.

    Files that cannot be read, and those measured on other weights, are left out.
    """
    found: dict[str, Record] = {}
    notes: list[str] = []
    paths = [] if source.folder is None else sorted(source.results_folder.glob("*.json"))
    for path in paths:
        try:
            one = Record.from_json(path)
            if one.origin.get("weights") != source.encoder.key:
                raise ValueError("it was measured on other weights than the run has now")
        except (ValueError, OSError) as error:
            reason = one_line(str(error).removeprefix(f"{path}: "))
            notes.append(f"{path.parent.name}/{one_line(path.name)} is left out: {reason}")
            continue
        found[path.stem] = one
    return found, notes


def _known_accuracies(evaluations: Mapping[str, Record], data: DataConfig, k: int) -> dict[str, float]:
    """Linear and kNN accuracy that were evaluated with default options, and with k voters, on these images."""
    images = {f"data.{key}": value for key, value in asdict(data).items() if key not in READING}
    defaults = {"linear": asdict(LinearConfig()), "knn": asdict(KnnConfig()) | {"k": k}}
    found: dict[str, float] = {}
    for one in evaluations.values():
        kind, options = str(one.settings.get("kind")), {**one.settings, "k": one.voters}
        usual = {**defaults.get(kind, {}), **images, "precision": "fp32"}
        if kind in defaults and all(options.get(key) == value for key, value in usual.items()):
            found[kind] = float(next(iter(one.results.values())))
    return found


def evaluation_rows(
    evaluations: Mapping[str, Record], results: Mapping[str, float], voters: int | None, source: Source
) -> dict[str, float]:
    """Results of evaluations by the names of their rows, without those that the record has already."""
    rows: dict[str, float] = {}
    alike = {"linear/fast protocol": "linear", f"knn/k = {voters}": "knn"}
    for stem, one in evaluations.items():
        on = one.origin.get("data")
        suffix = "" if on is None or (source.data is not None and on == source.data.name) else f" on {on}"
        for row, value in one.results.items():
            key = row + suffix
            known = results.get(alike.get(key, ""))
            if known is not None and abs(value - known) <= _FILE_STEP:
                continue
            if key in rows:  # two with different options, such as seeds, differ in the file's name
                key += f" ({stem})" if "/" in key else f"/{stem}"
            rows[key] = value
    return rows


def _training_images(data: DataConfig | None) -> tuple[ImageSet | None, str]:
    """The training images, or None and the reason why they are missing."""
    if data is None:
        return None, "no data is known; --data.name and --data.path say which"
    try:
        with named("data", DataConfig):
            return load_images(data, "train"), ""
    except (ValueError, OSError) as error:
        return None, f"{' '.join(str(error).split())}; --data.path says where the images are"


def _settings(source: Source, *, measured: bool) -> dict[str, Any]:
    """The settings of the run, with the data that were measured if they differ from the run's."""
    if source.settings is not None:
        found = record_settings(source.settings)
        if measured and source.data is not None and source.data != source.settings.data:
            found |= {f"data.{key}": value for key, value in asdict(source.data).items() if f"data.{key}" in found}
        return found
    known = {"encoder.name": source.encoder.config.name, "layout": source.encoder.layout, "size": source.encoder.size}
    return known if source.data is None else {**known, "data.name": source.data.name}


def _listed(train: Features, report: DimensionReport) -> dict[str, Any]:
    """Counts, and the values of each point, or of evenly chosen ones where there are many."""
    rows = torch.linspace(0, report.measured - 1, min(LISTED_POINTS, report.measured)).round().long()
    return {
        "images": len(train.labels),
        "classes": {each.label: each.mean.value for each in report.classes},
        "lid": report.lid[rows].tolist(),
        "map": [(across, up) for across, up in report.coordinates[rows].tolist()],
        "labels": None if report.labels is None else [report.labels[row] for row in rows.tolist()],
        "eigenvalues": report.eigenvalues.tolist(),
        "points": report.measured,
        "k": report.k,
    }


def _pictures(images: ImageSet, train: Features, report: DimensionReport, *, count: int) -> dict[str, list[Thumbnail]]:
    """The images of lowest and of highest LID; those without a finite one are left out."""
    order = torch.sort(report.lid, stable=True).indices
    order = order[torch.isfinite(report.lid[order])]

    def thumbnail(place: int) -> Thumbnail:
        row = int(report.index[place])
        index, label = int(train.indices[row]), int(train.labels[row])
        return Thumbnail(
            data_uri(images.read(index).pixels if isinstance(images, ImageFiles) else images.images[index]),
            index=index,
            lid=report.lid[place].item(),
            label=train.classes[label] if label >= 0 else "",
            file=Path(images.path(index)).name if isinstance(images, ImageFiles) else "",
        )

    fewer = min(math.ceil(count / _CONTRAST), max(0, len(order) - count))
    low, high = order[:count].tolist(), order.flip(0)[:fewer].tolist()
    return {"most_collapsed": [*map(thumbnail, low)], "least_collapsed": [*map(thumbnail, high)]}


def curves_of(folder: RunFolder) -> dict[str, list[tuple[float, float]]]:
    """(epoch, value) pairs that a run logged, by the names of results; empty if it has no log."""
    logged = read_metrics(folder.metrics) if folder.metrics.exists() else {}
    return {
        short: [(epoch, value) for _, epoch, value in logged[long]] for long, short in CURVES.items() if long in logged
    }


def origin_of(folder: RunFolder, settings: Settings | None) -> dict[str, str | float | int | None]:
    """Where the numbers of a run come from: command, commit, version, hardware, seed, epochs, minutes."""
    card = Record.from_json(folder.card).origin if folder.card.exists() else {}
    facts = {name: card.get(name) for name in ("epochs", "minutes", "stopped")}
    seed = None if settings is None else settings.run.seed
    return origin(_environment(folder.environment), seed=seed, **facts)


def _environment(path: Path) -> dict[str, Any]:
    """Facts about the machine and the code of a run; empty if there is no such file."""
    if not path.exists():
        return {}
    try:
        found = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected JSON, got {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(found).__name__}")
    return found
