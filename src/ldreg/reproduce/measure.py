"""A finished run as the record that tables and figures are made from."""

import math
import statistics
from dataclasses import replace
from pathlib import Path

import torch
from sklearn import manifold
from torch import Tensor

from ldreg.data import DataConfig, load_images
from ldreg.evaluate.classification import linear_on
from ldreg.evaluate.features import Features, features
from ldreg.evaluate.measure import spread
from ldreg.evaluate.protocols import ProtocolName
from ldreg.evaluate.records import Measured, curves_of, measure_encoder, origin_of
from ldreg.evaluate.source import Source, open_source
from ldreg.monitor.log import read_metrics
from ldreg.record import Record
from ldreg.reproduce.jobs import AP, DETECTION, TRANSFER, TSNE, Job
from ldreg.reproduce.studies import dataset
from ldreg.reproduce.workspace import Workspace, missing_measures
from ldreg.train.folder import RunFolder
from ldreg.train.settings import record_settings

SHOWN_CLASSES = 10  # as in the paper's figure of t-SNE
SHOWN_POINTS = 1000
PERPLEXITY = 30.0
SETTLED = 0.5  # share of a run after which its speed is taken: the first steps compile and warm up


def measured(job: Job, place: Workspace) -> Record:
    """The record of a finished run; what an earlier record has is kept, and what it lacks is added.

    LID and effective rank are those of held-out images, as in the paper's tables; those of training images over epochs
    are among the curves.

    Raises:
        ValueError: the data is missing.
    """
    folder, path = place.folder(job), place.record_path(job)
    source = open_source(folder.path, data=[pair for pair in place.run_options(job) if pair[0].startswith("data.")])
    if path.is_file():
        record = Record.from_json(path)
        wanted = missing_measures(record, job, place.scale)
    else:
        record = _basics(job, source, place)
        wanted = job.measures
    if TSNE in wanted:
        assert source.data is not None  # a run folder names its data
        test = features(source.encoder, source.data, "test", device=place.device, cache=place.cache)
        record = _with_tsne(record, test)
    if TRANSFER in wanted:
        results, tested = _transfer(source, place)
        record = replace(record, results={**record.results, **results}, origin={**record.origin, **tested})
    if DETECTION in wanted:
        record = replace(record, results={**record.results, **_detection(source, place, folder)})
    return record


def failed(job: Job, place: Workspace, reason: str) -> Record:
    """The record of a run that could not be finished because its loss was no number any more."""
    folder = place.folder(job)
    told = {**origin_of(folder, job.settings), "failed": reason}
    return Record(job.name, record_settings(job.settings), {}, curves=curves_of(folder), origin=told)


def measure_held_out(
    source: Source, data: DataConfig, *, k: int, linear: ProtocolName, device: str, cache: Path | None
) -> Measured:
    """The dimensions of the held-out images and accuracies on them, the same for every encoder.

    Without held-out images dimensions are those of the training images; without labels there are no accuracies.

    Args:
        source: the encoder.
        data: what it was trained on.
        k: neighbors that LID is read from.
        linear: protocol of the linear evaluation.
        device: auto, cpu or cuda.
        cache: of representations.

    Raises:
        ValueError: the data is missing.
    """
    return measure_encoder(
        source.encoder,
        data,
        "test",
        k,
        linear=lambda: linear_on(source, data, protocol=linear, device=device, cache=cache),
        device=device,
        cache=cache,
    )


def _basics(job: Job, source: Source, place: Workspace) -> Record:
    folder, scale = place.folder(job), place.scale
    assert source.data is not None  # a run folder names its data
    found = measure_held_out(
        source, source.data, k=scale.k, linear=scale.linear, device=place.device, cache=place.cache
    )
    results, told = found.results, origin_of(folder, job.settings)
    speed = _speed(folder)
    if speed is not None:
        results["images_per_second"] = speed
    minutes = told.get("minutes")
    results["minutes"] = float(minutes) if isinstance(minutes, int | float) else math.nan
    told |= {"held_out": found.held_out}
    return Record(
        job.name,
        record_settings(job.settings),
        results,
        curves=curves_of(folder),
        origin=told,
        points=found.points,
        k=scale.k,
    )


def _speed(folder: RunFolder) -> float | None:
    """Images per second, the median over the later part of the run."""
    logged = [value for _, _, value in read_metrics(folder.metrics).get("images_per_second", [])]
    return statistics.median(logged[int(SETTLED * len(logged)) :]) if logged else None


def _with_tsne(record: Record, test: Features) -> Record:
    """t-SNE (van der Maaten and Hinton, JMLR 2008) of the first classes' images."""
    kept = (test.labels >= 0) & (test.labels < SHOWN_CLASSES)
    rows = spread(torch.nonzero(kept).squeeze(1), SHOWN_POINTS)
    flat = _tsne(test.representations[rows])
    labels = [test.classes[label] for label in test.labels[rows].tolist()]
    return replace(record, tsne=[(across, up) for across, up in flat.tolist()], tsne_labels=labels)


def _tsne(x: Tensor) -> Tensor:
    """Points (N, 2); representations that all coincide stay one point."""
    centered = x.double() - x.double().mean(0)
    scale = centered.square().sum(1).mean().sqrt()
    if not scale > 0:
        return torch.zeros(len(x), 2)
    made = manifold.TSNE(perplexity=min(PERPLEXITY, (len(x) - 1) / 3), init="pca", random_state=0)
    return torch.from_numpy(made.fit_transform((centered / scale).numpy()))


def _transfer(source: Source, place: Workspace) -> tuple[dict[str, float], dict[str, int]]:
    """Linear accuracy on every dataset of the scale, and on how many images each was tested.

    On the set of the pretraining it is that of the linear evaluation: the paper's table of transfer repeats it.
    """
    found, tested = {}, {}
    for name in place.scale.datasets:
        own = source.data if source.data is not None and source.data.name == name else None
        data: DataConfig = own or dataset(name, place.datasets)
        protocol = place.scale.transfer if own is None else place.scale.linear
        found[f"transfer/{name}"] = linear_on(source, data, protocol=protocol, device=place.device, cache=place.cache)
        tested[f"tested/{name}"] = len(load_images(data, "test"))
    return found, tested


def _detection(source: Source, place: Workspace, folder: RunFolder) -> dict[str, float]:
    from ldreg.evaluate.detection.run import detect  # pycocotools may not be installed

    result = detect(source.encoder, place.detection_config(), out=folder.path / "detection")
    return {name: getattr(result, name) for name in AP}
