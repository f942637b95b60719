"""Inspect a model: what its layers make of the images of a folder or the texts of a file."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ldreg.data import DataConfig, ImageFiles, batches_in_order, load_images, worker_count
from ldreg.data.datasets import find_root, split_names
from ldreg.encoders.pretrained import OUTPUT, ImageInput, OpenedModel, TextInput, open_model
from ldreg.evaluate.extract import undisturbed, with_channels
from ldreg.inspection.findings import COMPARISONS
from ldreg.inspection.inputs import as_device
from ldreg.inspection.maps import Map, check_map
from ldreg.inspection.measure import Progress, inspect, quick_report
from ldreg.inspection.report import DimensionReport, Layer, findings_in_words
from ldreg.io.labels import load_labels, load_names
from ldreg.text import listed, one_line

_BATCH = 64
_LISTED, _LONGEST = 30, 200  # layers, and characters of what a library says, in an error


@dataclass(frozen=True)
class Content:
    """What models are measured on: texts or image files, their names, and their classes if they are known."""

    title: str
    names: Sequence[str]  # of texts, these
    labels: Sequence[str] | None
    images: ImageFiles | None = None

    def files_of(self, report: DimensionReport) -> list[str | None] | None:
        """The image file of each row of a report on this content, None for rows not measured; None for texts."""
        if self.images is None:
            return None
        place = {name: row for row, name in enumerate(self.names)}
        files: list[str | None] = [None] * report.points
        for row, name in zip(report.index.tolist(), report.names or (), strict=True):
            files[row] = self.images.path(place[name])
        return files


def read_images(folder: str) -> Content:
    """The images of a folder or of its class folders. Raises ValueError or OSError if there are none."""
    if not Path(folder).is_dir():
        raise NotADirectoryError(f"--images: expected a folder of images or class folders, got {folder!r}")
    root = find_root(Path(folder))
    if splits := split_names(root):
        raise ValueError(f"--images: expected one split, got {folder!r} with {listed(splits)}; name one of them")
    images = load_images(DataConfig("folder", folder, resident="no"), "train")
    assert isinstance(images, ImageFiles)  # as they are not resident
    names = [str(Path(images.path(place)).relative_to(root)) for place in range(len(images))]
    labels = [images.classes[label] for label in images.labels.tolist()] if images.labeled else None
    return Content(Path(folder).resolve().name, names, labels, images)


def read_texts(file: str, *, key: str | None, labels: str | None, label_key: str | None) -> Content:
    """The texts of a file, with labels from this or another file. Raises ValueError or OSError."""
    try:
        texts = load_names(file, key=key)
    except ValueError as error:
        raise ValueError(str(error).replace("--name-key", "--text-key").replace(" names", " texts")) from error
    if blank := [row for row, text in enumerate(texts) if not text.strip()]:
        raise ValueError(f"{file}: expected a text in every row, got {len(blank)} blank, the first in row {blank[0]}")
    classes = None
    if labels is not None or label_key is not None:
        classes = load_labels(labels or file, key=label_key, count=len(texts))
    return Content(Path(file).name, texts, classes)


def inspect_model(
    model: str,
    content: Content,
    *,
    layers: str | None = None,
    compare: str | None = None,
    download: bool = False,
    random_weights: bool = False,
    map: Map = "pca",
    progress: Progress | None = None,
    **settings: Any,
) -> DimensionReport:
    """The report of a model's output, or of the last of the chosen layers; its `layers` are what each reads.

    Args:
        model: as `open_model` takes it.
        content: what it is measured on.
        layers: "all", or the names of some with commas between them; None: the output.
        compare: a second model, measured on the same content.
        download: as in `open_model`.
        random_weights: as in `open_model`.
        map: as in `ldreg.inspect`.
        progress: called with the name of the step and the fraction of it that is done.
        settings: k, estimator, convention, sample, device and seed of `ldreg.inspect`.

    Raises:
        ValueError: there is no such model or layer, it does not take this content, or a setting is out of range.
    """
    device = as_device(torch.empty(0), settings["device"], shared=False)
    check_map(map)
    opened: list[tuple[str, OpenedModel]] = []
    for option, spec in (("--model", model), ("--compare", compare)):
        if spec is not None:
            try:
                texts = content.images is None
                opened.append((spec, open_model(spec, texts=texts, download=download, random_weights=random_weights)))
            except ValueError as error:
                raise ValueError(f"{option}: {error}") from error
    if settings["k"] >= len(content.names):
        got = len(content.names)
        raise ValueError(f"{model}, {content.title}: expected more points than k = {settings['k']}, got {got}")
    found: list[tuple[str, dict[str, Tensor], Tensor]] = []
    for spec, one in opened:
        step = partial(progress, f"representations of {spec}") if progress else None
        found.append((spec, *_representations(one, content, layers, spec, device, step)))
    (_, sets, rows), *others = found
    labels = None if content.labels is None else [content.labels[row] for row in rows.tolist()]
    second: dict[str, Any] = {}
    if others:
        second = {"compare": list(others[0][1].values())[-1], "compare_labels": labels}
    names = [content.names[row] for row in rows.tolist()]
    output = list(sets.values())[-1]
    with _naming_errors(x=f"{model}, {content.title}", compare=str(compare)):
        report = inspect(
            output, labels, names=names, keep_neighbors=True, map=map, progress=progress, **second, **settings
        )
    reports = [report, report.comparison.other] if report.comparison else [report]
    first, *beside = (
        replace(one, title=spec, layers=_measured(spec, those, one, labels, settings) if layers else ())
        for one, (spec, those, _) in zip(reports, found, strict=True)
    )
    first = replace(first, title=f"{model}, {content.title}")
    if report.comparison is None:
        return first
    other = replace(beside[0], title=f"{compare} again") if compare == model else beside[0]
    return replace(first, comparison=replace(report.comparison, other=other))


def _measured(
    spec: str, sets: dict[str, Tensor], last: DimensionReport, labels: Sequence[str] | None, settings: dict[str, Any]
) -> tuple[Layer, ...]:
    """What each layer of a model reads; the report of the last one is there."""
    layers = []
    for place, (name, x) in enumerate(sets.items(), 1):
        with _naming_errors(x=f"{spec}, layer {name}"):
            one = last if place == len(sets) else quick_report(x, labels, **settings)
        # What a comparison found is not about the layer.
        words = [each for each in findings_in_words(one, "layer") if each.kind not in COMPARISONS]
        layers.append(Layer(name, one.dimensions, one.mean, one.lid_low, one.effective_rank, tuple(words)))
    return tuple(layers)


@contextmanager
def _naming_errors(**names: str) -> Iterator[None]:
    """Put the name of a model in place of the argument that an error is about."""
    try:
        yield
    except ValueError as error:
        argument, _, rest = str(error).partition(": ")
        if argument not in names:
            raise
        raise ValueError(f"{names[argument]}: {rest.replace('; try k=', '; try --k ')}") from error


@torch.no_grad()
def _representations(
    model: OpenedModel,
    content: Content,
    layers: str | None,
    spec: str,
    device: torch.device,
    progress: Callable[[float], None] | None,
) -> tuple[dict[str, Tensor], Tensor]:
    """Representations (N, D) of the chosen layers, and their rows in the content: unreadable images are left out."""
    batches: Iterator[tuple[Tensor, Any]]
    if isinstance(model.takes, TextInput):
        batches = _text_batches(content.names, model.takes, device)
    else:
        assert content.images is not None
        batches = _image_batches(content.images, model.takes, device)
    parts: dict[str, list[Tensor]] = {}
    rows: list[Tensor] = []
    done = 0
    with undisturbed(model.module.to(device), device):
        for indices, batch in batches:
            try:
                found = model.layers(batch)
            except (RuntimeError, TypeError, ValueError, AssertionError, AttributeError) as error:
                if "out of memory" in str(error):
                    raise
                raise ValueError(f"{spec}: fails on {content.title}: {one_line(str(error), _LONGEST)}") from error
            for name in list(parts) or _chosen(list(found), layers, spec):
                parts.setdefault(name, []).append(found[name].float().cpu())
            rows.append(indices.cpu())
            done += len(indices)
            if progress is not None:
                progress(done / len(content.names))
    model.module.to("cpu")
    places = torch.cat(rows)
    order = places.argsort()
    sets = {name: torch.cat(some)[order] for name, some in parts.items()}
    *before, last = sets.values()
    if layers == "all" and before and before[-1].shape == last.shape and torch.allclose(before[-1], last):
        del sets[OUTPUT]
    return sets, places[order]


def _chosen(names: list[str], layers: str | None, spec: str) -> list[str]:
    """The names of the chosen layers, in order of depth."""
    if layers is None:
        return names[-1:]
    wanted = names if layers == "all" else [name.strip() for name in layers.split(",")]
    if unknown := [name for name in wanted if name not in names]:
        raise ValueError(
            f"--layers: expected all or layers of {spec} ({listed(names, _LISTED)}), got {one_line(unknown[0], 40)!r}"
        )
    return [name for name in names if name in wanted]


def _image_batches(images: ImageFiles, takes: ImageInput, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Normalized images in order, prepared as by `ldreg evaluate`."""
    mean, std = (torch.tensor(values, device=device).view(-1, 1, 1) for values in (takes.mean, takes.std))
    workers = worker_count(DataConfig())
    try:
        for batch in batches_in_order(images, batch_size=_BATCH, size=takes.size, device=device, workers=workers):
            yield batch.indices, (with_channels(batch.images, len(takes.mean)).float() / 255 - mean) / std
    except ValueError as error:
        raise ValueError(str(error).replace("max_unreadable: ", "--images: ", 1)) from error


def _text_batches(texts: Sequence[str], takes: TextInput, device: torch.device) -> Iterator[tuple[Tensor, Any]]:
    """Tokens of texts; those of like length come together, which needs little padding."""
    order = torch.tensor([len(text) for text in texts]).argsort(descending=True, stable=True)
    for rows in order.split(_BATCH):
        some = [texts[row] for row in rows.tolist()]
        options = {"padding": True, "truncation": True, "max_length": takes.longest, "return_tensors": "pt"}
        yield rows, takes.tokenizer(some, **options).to(device)
