"""A finished run as the record that tables and figures are made from."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from sklearn import manifold
from torch import Tensor

from ldreg.data import DataConfig, load_images
from ldreg.evaluate.classification import linear_on
from ldreg.evaluate.features import features
from ldreg.evaluate.measure import evenly_spaced
from ldreg.evaluate.records import curves_of, measure_encoder, origin_of
from ldreg.evaluate.source import Source, open_source
from ldreg.monitor.log import read_metrics
from ldreg.record import PRECISIONS, Record
from ldreg.reproduce.jobs import Job, Workspace, missing_measures
from ldreg.reproduce.studies import DETECTION, TRANSFER, TSNE
from ldreg.train.settings import record_settings

_TSNE_CLASSES, _TSNE_POINTS = 10, 1000  # as in the paper's figure


def measured(job: Job, place: Workspace) -> Record:
    """The record of a finished run of ours; what an earlier record lacks is added. ValueError if data is missing.

    LID and effective rank are those of held-out images, as in the paper's tables; those of training images over epochs
    are among the curves.
    """
    folder, path = place.folder(job), place.record_path(job)
    source = open_source(folder.path, data=[pair for pair in place.run_options(job) if pair[0].startswith("data.")])
    if path.is_file():
        record = Record.from_json(path)
    else:
        record = unmeasured(job, place)
        minutes = record.origin.get("minutes")
        times = {"minutes": float(minutes) if isinstance(minutes, int | float) else math.nan}
        speeds = [value for _, _, value in read_metrics(folder.metrics).get("images_per_second", [])]
        if speeds:  # the first steps compile and warm up
            times["images_per_second"] = statistics.median(speeds[len(speeds) // 2 :])
        record = with_basics(record, source, place, times)
    wanted = missing_measures(record, job, place.scale)
    if TSNE in wanted:
        test = features(source.encoder, source.images, "test", device=place.device, cache=place.cache)
        kept = torch.nonzero((test.labels >= 0) & (test.labels < _TSNE_CLASSES)).squeeze(1)
        rows = evenly_spaced(kept, _TSNE_POINTS)
        points = [(across, up) for across, up in _tsne(test.representations[rows]).tolist()]
        labels = [test.classes[label] for label in test.labels[rows].tolist()]
        record = replace(record, tsne=points, tsne_labels=labels)
    if TRANSFER in wanted:
        results, tested = _transfer(source, place)
        record = replace(record, results={**record.results, **results}, origin={**record.origin, **tested})
    if DETECTION in wanted:
        from ldreg.evaluate.detection.run import detect  # pycocotools may not be installed

        result = detect(source.encoder, place.detection_config(), out=folder.path / "detection")
        found = {name: getattr(result, name) for name in PRECISIONS}
        record = replace(record, results={**record.results, **found})
    return record


def unmeasured(job: Job, place: Workspace, **origin: str) -> Record:
    """The settings, curves and origin of a run of ours; `origin` says more of it, such as why it failed."""
    folder = place.folder(job)
    known = {**origin_of(folder, job.settings), **origin}
    return Record(job.name, record_settings(job.settings), {}, curves=curves_of(folder), origin=known)


def with_basics(record: Record, source: Source, place: Workspace, times: Mapping[str, float]) -> Record:
    """The record with dimensions of the held-out images and accuracies on them, the same for every encoder.

    Without held-out images dimensions are those of the training images; without labels there are no accuracies.
    """
    compute: dict[str, Any] = {"device": place.device, "cache": place.cache}
    results, points, held_out = measure_encoder(
        source.encoder,
        source.images,
        place.scale.k,
        linear=lambda: linear_on(source, source.images, protocol=place.scale.linear, **compute),
        **compute,
    )
    return replace(
        record,
        results={**results, **times},
        origin={**record.origin, "held_out": held_out},
        points=points,
        k=place.scale.k,
    )


def _tsne(x: Tensor) -> Tensor:
    """Points (N, 2) by t-SNE (van der Maaten and Hinton, JMLR 2008); representations that coincide stay one point."""
    centered = x.double() - x.double().mean(0)
    scale = centered.square().sum(1).mean().sqrt()
    if not scale > 0:
        return torch.zeros(len(x), 2)
    made = manifold.TSNE(perplexity=min(30.0, (len(x) - 1) / 3), init="pca", random_state=0)
    return torch.from_numpy(made.fit_transform((centered / scale).numpy()))


def _transfer(source: Source, place: Workspace) -> tuple[dict[str, float], dict[str, int]]:
    """Linear accuracy on every dataset of the scale, and on how many images each was tested.

    On the set of the pretraining it is that of the linear evaluation: the paper's table of transfer repeats it.
    """
    found, tested = {}, {}
    for name in place.scale.datasets:
        own = name == source.images.name
        data = source.images if own else DataConfig(name=name, path=place.datasets.get(name))
        protocol = place.scale.linear if own else place.scale.transfer
        found[f"transfer/{name}"] = linear_on(source, data, protocol=protocol, device=place.device, cache=place.cache)
        tested[f"tested/{name}"] = len(load_images(data, "test"))
    return found, tested
