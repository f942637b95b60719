"""The kinds of evaluation: a function for each, and what the command line needs to know of them."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ldreg.data import DataConfig
from ldreg.evaluate.classes import load_classification
from ldreg.evaluate.dimension import DimensionConfig, dimension
from ldreg.evaluate.extract import Compute
from ldreg.evaluate.features import Progress, features
from ldreg.evaluate.knn import KnnConfig, knn_accuracy
from ldreg.evaluate.plans import ClassifierResult
from ldreg.evaluate.protocols import FinetuneConfig, LinearConfig, finetune, linear_evaluation
from ldreg.evaluate.result import Evaluation, lines, table
from ldreg.evaluate.source import Source
from ldreg.evaluate.transfer import TransferConfig, like_the_run, listed, transfer
from ldreg.text import count, number, printable

if TYPE_CHECKING:  # pycocotools may be missing
    from ldreg.detection.config import DetectionConfig

_FEW_VOTERS = 20  # the other usual number of neighbors


def linear(
    config: LinearConfig,
    source: Source,
    *,
    compute: Compute,
    out: Path,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Evaluate a linear classifier by one of three protocols."""
    found = linear_evaluation(
        source.encoder,
        source.images,
        like_the_run(config, source),
        work=out / "work",
        compute=compute,
        cache=cache,
        progress=progress,
    )
    return _of_classifier("linear", f"linear-{config.protocol}", f"linear, {config.protocol}", found)


def finetuned(
    config: FinetuneConfig, source: Source, *, compute: Compute, out: Path, progress: Progress | None = None
) -> Evaluation:
    """Evaluate fine-tuning with all labels or a part of them."""
    found = finetune(
        source.encoder,
        source.images,
        like_the_run(config, source),
        work=out / "work",
        compute=compute,
        progress=progress,
    )
    return _of_classifier("finetune", "finetune", "fine-tuned", found)


def knn(
    config: KnnConfig,
    source: Source,
    *,
    compute: Compute,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Evaluate the weighted vote of nearest neighbors."""
    started, data = time.monotonic(), source.images
    images = dict(zip(("train", "test"), load_classification(data), strict=True))
    if config.k is not None and config.k > len(images["train"]):
        raise ValueError(f"k: expected at most the {len(images['train'])} training images, got {config.k}")
    shared: dict[str, Any] = {
        "device": compute.device,
        "precision": compute.precision,
        "cache": cache,
        "progress": progress,
    }
    train = features(source.encoder, data, "train", images=images["train"], **shared)
    test = features(source.encoder, data, "test", images=images["test"], **shared)
    device, k = compute.torch_device, config.voters(len(train.labels))
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
    text = lines({f"kNN, k = {k}": number(accuracy), "images": _images(len(train.labels), len(test.labels))})
    doubt = outvoted(train.names() or [], k)
    return Evaluation("knn", results, text if doubt is None else f"{text}\n{doubt}", (time.monotonic() - started) / 60)


def outvoted(names: Sequence[str], k: int) -> str | None:
    """A warning if more neighbors vote than the smallest class has images: its accuracy then reads low.

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
    reason = f"k: {count(k)} vote, more than the smallest class has ({has})"
    return f"{reason}: accuracy may read low; try --k {fewer}"


def transferred(
    config: TransferConfig,
    source: Source,
    *,
    reading: DataConfig,
    compute: Compute,
    out: Path,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Evaluate a linear classifier on each of a list of datasets; `reading` says how their images are read."""
    found = transfer(
        source.encoder,
        listed(config.datasets, own=source.data, how=reading),
        like_the_run(config.linear, source),
        work=out / "work",
        compute=compute,
        cache=cache,
        progress=progress,
    )
    columns = ["dataset", "linear", "best epoch", "epochs", "classes", "images", "tested"]
    rows = [
        (
            name,
            number(one.accuracy),
            number(one.best),
            str(one.epochs or "–"),
            *map(count, (one.classes, one.train_images, one.test_images)),
        )
        for name, one in found.items()
    ]
    return Evaluation(
        f"transfer-{config.protocol}",
        {name: _numbers("linear", one) for name, one in found.items()},
        table(columns, rows),
        sum(one.minutes for one in found.values()),
        details={"history": {name: list(one.history) for name, one in found.items()}},
    )


def detection(config: "DetectionConfig", source: Source, *, out: Path, progress: Progress | None = None) -> Evaluation:
    """Evaluate a Mask R-CNN on a set in COCO's layout."""
    from ldreg.detection import detect

    found = detect(source.encoder, config, out=out / "detection", progress=progress)
    return Evaluation("detection", asdict(found), lines(dict(found.rows())), found.minutes)


def _of_classifier(kind: str, label: str, name: str, found: ClassifierResult) -> Evaluation:
    shown = {name: number(found.accuracy)}
    if found.best is not None:
        shown["best epoch"] = f"{number(found.best)}  (chosen by the test images; not to be reported)"
        each = found.steps // found.epochs
        steps = f"{count(each)} step{'' if each == 1 else 's'} each"
        shown["epochs"] = f"{found.epochs}, {steps}, batch {found.batch_size}, peak learning rate {number(found.lr)}"
    shown["images"] = f"{_images(found.train_images, found.test_images)}, {found.classes} classes"
    details = {"history": list(found.history)} if found.history else {}
    return Evaluation(label, _numbers(kind, found), lines(shown), found.minutes, details)


def _numbers(kind: str, found: ClassifierResult) -> dict[str, Any]:
    """The results of a classifier: the last epoch under the kind's own name, the best one named so."""
    values = asdict(found)
    best = {} if found.best is None else {f"{kind}_best": found.best}
    others = ("epochs", "steps", "batch_size", "lr", "classes", "train_images", "test_images")
    return {kind: found.accuracy, **best, **{name: values[name] for name in others if values[name] is not None}}


def _images(train: int, test: int) -> str:
    return f"{count(train)} to train, {count(test)} to test"


@dataclass(frozen=True)
class Kind:
    """One kind of evaluation.

    Args:
        config: loads the class of its own options.
        run: carries it out, given the options and the source.
        takes: which of compute, out, cache, reading, progress and command `run` takes.
        shared: which of device, devices, precision and cache it takes.
        data: which settings of the data it takes; None: all of them.
    """

    config: Callable[[], type]
    run: Callable[..., Evaluation]
    takes: tuple[str, ...]
    shared: tuple[str, ...]
    data: tuple[str, ...] | None = None


def _detection_config() -> type:
    from ldreg.detection.config import DetectionConfig

    return DetectionConfig


_TRAINED = ("device", "devices", "precision")
_READING = ("cache", "workers", "resident_limit", "max_unreadable")

KINDS: Mapping[str, Kind] = {
    "linear": Kind(
        lambda: LinearConfig,
        linear,
        ("compute", "out", "cache", "progress"),
        (*_TRAINED, "cache"),
    ),
    "knn": Kind(
        lambda: KnnConfig,
        knn,
        ("compute", "cache", "progress"),
        ("device", "precision", "cache"),
    ),
    "finetune": Kind(
        lambda: FinetuneConfig,
        finetuned,
        ("compute", "out", "progress"),
        _TRAINED,
    ),
    "dimension": Kind(
        lambda: DimensionConfig,
        dimension,
        ("compute", "cache", "progress", "command"),
        ("device", "precision", "cache"),
    ),
    "transfer": Kind(
        lambda: TransferConfig,
        transferred,
        ("compute", "out", "cache", "reading", "progress"),
        (*_TRAINED, "cache"),
        data=_READING,
    ),
    "detection": Kind(
        _detection_config,
        detection,
        ("out", "progress"),
        (),
        data=(),
    ),
}
