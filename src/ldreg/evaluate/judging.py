"""Each kind of evaluation: options and a task in, an outcome out."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ldreg.data import DataConfig
from ldreg.evaluate.classes import load_classification
from ldreg.evaluate.dimension import DimensionConfig, dimension, write_rows
from ldreg.evaluate.features import features
from ldreg.evaluate.finetune import FinetuneConfig, finetune
from ldreg.evaluate.judgment import Judgment
from ldreg.evaluate.knn import KnnConfig, knn_accuracy
from ldreg.evaluate.protocols import LinearConfig, linear_evaluation
from ldreg.evaluate.shown import lines, table
from ldreg.evaluate.tasks import Outcome, Task
from ldreg.evaluate.transfer import TransferConfig, like_the_run, listed, transfer
from ldreg.methods import synchronize_batch_norm
from ldreg.text import count, number, printable

_FEW_VOTERS = 20  # the other usual number, from which digits lose nothing to the size of their classes


def linear(config: LinearConfig, task: Task) -> Outcome:
    """Linear evaluation by one of three protocols."""
    data, config = task.data, like_the_run(config, task.source)
    found = linear_evaluation(
        task.source.encoder,
        data,
        config,
        work=task.out / "work",
        compute=task.compute,
        cache=task.cache,
        progress=task.progress,
        synchronize=_synchronize,
    )
    return _of_classifier("linear", f"linear-{config.protocol}", f"linear, {config.protocol}", found)


def finetuned(config: FinetuneConfig, task: Task) -> Outcome:
    """Fine-tuning with all labels or a part of them."""
    data, config = task.data, like_the_run(config, task.source)
    found = finetune(
        task.source.encoder,
        data,
        config,
        work=task.out / "work",
        compute=task.compute,
        progress=task.progress,
        synchronize=_synchronize,
    )
    return _of_classifier("finetune", "finetune", "fine-tuned", found)


def knn(config: KnnConfig, task: Task) -> Outcome:
    """The weighted vote of nearest neighbors."""
    started, data = time.monotonic(), task.data
    images = dict(zip(("train", "test"), load_classification(data), strict=True))
    if config.k is not None and config.k > len(images["train"]):
        raise ValueError(f"k: expected at most the {len(images['train'])} training images, got {config.k}")
    shared: dict[str, Any] = {
        "device": task.compute.device,
        "precision": task.compute.precision,
        "cache": task.cache,
        "progress": task.progress,
    }
    train = features(task.source.encoder, data, "train", images=images["train"], **shared)
    test = features(task.source.encoder, data, "test", images=images["test"], **shared)
    device, k = task.compute.torch_device, config.voters(len(train.labels))
    accuracy = knn_accuracy(
        train.representations.to(device),
        train.labels,
        test.representations.to(device),
        test.labels,
        k=k,
        temperature=config.temperature,
    )
    results = {"knn": accuracy, "k": k, "classes": len(train.classes)}
    results |= {"train_images": len(train.labels), "test_images": len(test.labels)}
    shown = lines({f"kNN, k = {k}": number(accuracy), "images": _images(len(train.labels), len(test.labels))})
    doubt = outvoted([train.classes[label] for label in train.labels.tolist()], k)
    return Outcome("knn", results, shown if doubt is None else f"{shown}\n{doubt}", (time.monotonic() - started) / 60)


def outvoted(names: Sequence[str], k: int) -> str | None:
    """A line to say where more neighbors vote than the smallest class has images; None where it has enough.

    Such a class has votes of others against it however well it is told apart, and accuracy reads low.

    >>> outvoted("aaaaabbbb", 4)
    >>> print(outvoted("aaaaabbbb", 5))
    k: 5 vote, more than the smallest class has (4 images of class b): accuracy may read low; try --k 2
    >>> print(outvoted("ab", 2))
    k: 2 vote, more than the smallest class has (1 image of class a): accuracy may read low; try --k 1
    """
    name, images = min(Counter(names).items(), key=lambda entry: entry[1])
    if k <= images:
        return None
    fewer = min(_FEW_VOTERS, max(1, images // 2))
    has = f"{count(images)} {'image' if images == 1 else 'images'} of class {printable(name)}"
    told = f"k: {count(k)} vote, more than the smallest class has ({has})"
    return f"{told}: accuracy may read low; try --k {fewer}"


def _set_name(data: DataConfig) -> str:
    """What a set is called, which for images of one's own is the name of the folder or archive.

    >>> _set_name(DataConfig(name="folder", path="/data/photos")), _set_name(DataConfig(name="digits"))
    ('photos', 'digits')
    """
    return Path(data.path).resolve().name if data.name == "folder" and data.path else data.name


def dimensions(config: DimensionConfig, task: Task) -> Outcome:
    """All of `ldreg inspect`."""
    started, data = time.monotonic(), task.data
    if config.k is None and task.source.settings is not None:
        config = replace(config, k=task.source.settings.monitor.k)
    report, doubt, rows = dimension(
        task.source.encoder,
        data,
        config,
        title=f"{task.source.name}, {config.split} images of {_set_name(data)}",
        compute=task.compute,
        cache=task.cache,
        progress=task.progress,
        command=task.command,
    )
    results = {
        "lid": report.mean.value,
        "lid_low": report.mean.low,
        "lid_high": report.mean.high,
        "effective_rank": report.effective_rank,
        "rankme": report.rankme,
        "frechet_variance": report.frechet_variance,
        "twonn": report.twonn.value,
        "danco": report.danco.value,
        "degenerate": report.degenerate_share,
        "images": report.points,
        "k": report.k,
    }
    return Outcome(
        f"dimension-{config.split}",
        results,
        str(report) if doubt is None else f"{report}\n{doubt}",
        (time.monotonic() - started) / 60,
        details={"report": report.to_dict()},
        writers={"html": report.to_html, "representations": partial(write_rows, rows)},
    )


def transferred(config: TransferConfig, task: Task) -> Outcome:
    """Linear evaluation over a list of datasets."""
    assert task.how is not None
    found = transfer(
        task.source.encoder,
        listed(config.datasets, own=task.source.data, how=task.how),
        like_the_run(config.linear, task.source),
        work=task.out / "work",
        compute=task.compute,
        cache=task.cache,
        progress=task.progress,
        synchronize=_synchronize,
    )
    columns = ["dataset", "linear", "best epoch", "epochs", "classes", "images", "tested"]
    rows = [
        (name, number(one.accuracy), number(one.best), str(one.epochs or "–"), *map(count, _sizes(one)))
        for name, one in found.items()
    ]
    return Outcome(
        f"transfer-{config.protocol}",
        {name: _numbers("linear", one) for name, one in found.items()},
        table(columns, rows),
        sum(one.minutes for one in found.values()),
        details={"history": {name: list(one.history) for name, one in found.items()}},
    )


def detection(config: Any, task: Task) -> Outcome:
    """Mask R-CNN on a set in COCO's layout."""
    from ldreg.detection import detect  # pycocotools may not be installed

    found = detect(task.source.encoder, config, out=task.out / "detection", progress=task.progress)
    return Outcome("detection", asdict(found), lines(dict(found.rows())), found.minutes)


def _of_classifier(kind: str, label: str, name: str, found: Judgment) -> Outcome:
    shown = {name: number(found.accuracy)}
    if found.best is not None:
        shown["best epoch"] = f"{number(found.best)}  (chosen by the test images; not to be reported)"
        each = found.steps // found.epochs
        steps = f"{count(each)} step{'' if each == 1 else 's'} each"
        shown["epochs"] = f"{found.epochs}, {steps}, batch {found.batch_size}, peak learning rate {number(found.lr)}"
    shown["images"] = f"{_images(found.train_images, found.test_images)}, {found.classes} classes"
    details = {"history": list(found.history)} if found.history else {}
    return Outcome(label, _numbers(kind, found), lines(shown), found.minutes, details)


def _numbers(kind: str, found: Judgment) -> dict[str, Any]:
    """The results of a classifier: the last epoch under the kind's own name, the best one named so."""
    told = asdict(found)
    best = {} if found.best is None else {f"{kind}_best": found.best}
    others = ("epochs", "steps", "batch_size", "lr", "classes", "train_images", "test_images")
    return {kind: found.accuracy, **best, **{name: told[name] for name in others if told[name] is not None}}


def _images(train: int, test: int) -> str:
    return f"{count(train)} to train, {count(test)} to test"


def _synchronize(module: nn.Module, device: torch.device) -> nn.Module:
    return synchronize_batch_norm(module, device=device)


def _sizes(found: Judgment) -> tuple[int, int, int]:
    return found.classes, found.train_images, found.test_images
