"""The kinds of evaluation: a function for each, and what the command line needs to know of them."""

import io
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from ldreg.data import DataConfig
from ldreg.data.datasets import MissingSplitError
from ldreg.dimension.estimators import Convention, Estimator
from ldreg.evaluate.classes import load_classification
from ldreg.evaluate.extract import Compute
from ldreg.evaluate.features import Progress, features
from ldreg.evaluate.knn import KnnConfig, knn_accuracy
from ldreg.evaluate.plans import ClassifierResult
from ldreg.evaluate.protocols import FinetuneConfig, LinearConfig, finetune, linear_evaluation
from ldreg.evaluate.source import READING, Source
from ldreg.evaluate.transfer import TransferConfig, dataset_configs, transfer, with_run_augmentation
from ldreg.extras import require
from ldreg.inspection import check_settings, inspect
from ldreg.io.files import write_atomically
from ldreg.text import count, number, printable

if TYPE_CHECKING:  # pycocotools may be missing
    from ldreg.evaluate.detection.config import DetectionConfig

logger = logging.getLogger("ldreg")

NEIGHBORS = 64  # as in the paper's tables
_FEW_VOTERS = 20  # the other usual number of neighbors


@dataclass(frozen=True)
class Setup:
    """Where and how an evaluation runs.

    Args:
        compute: device, processes, precision.
        out: folder of the results and checkpoints.
        cache: of representations; None: as `data.cache` or LDREG_CACHE says.
        reading: how images of other sets than the source's are read.
        progress: called with what is done and the fraction that is done.
        command: the command line.
    """

    compute: Compute
    out: Path
    cache: Path | None = None
    reading: DataConfig = field(default_factory=DataConfig)
    progress: Progress | None = None
    command: str = ""

    def features(self, source: Source) -> dict[str, Any]:
        """The arguments of `features` that are the same for both splits."""
        return {
            "encoder": source.encoder,
            "data": source.images,
            "device": self.compute.device,
            "precision": self.compute.precision,
            "cache": self.cache,
            "progress": self.progress,
        }


@dataclass(frozen=True)
class Evaluation:
    """The result of one evaluation.

    Args:
        label: the kind of result; its file's name adds the options that differ from their defaults.
        results: numbers by name.
        text: to be printed.
        minutes: time it took, including parts before an interruption.
        details: more for its file, such as the accuracy after every epoch.
        writers: functions that write further files, by the options that name these files.
    """

    label: str
    results: dict[str, Any]
    text: str
    minutes: float
    details: dict[str, Any] = field(default_factory=dict)
    writers: Mapping[str, Callable[[str], None]] = field(default_factory=dict)


def linear(config: LinearConfig, source: Source, setup: Setup) -> Evaluation:
    """Evaluate a linear classifier by one of three protocols."""
    found = linear_evaluation(
        source.encoder,
        source.images,
        with_run_augmentation(config, source),
        work=setup.out / "work",
        compute=setup.compute,
        cache=setup.cache,
        progress=setup.progress,
    )
    return _of_classifier("linear", f"linear-{config.protocol}", f"linear, {config.protocol}", found)


def finetuned(config: FinetuneConfig, source: Source, setup: Setup) -> Evaluation:
    """Evaluate fine-tuning with all labels or a part of them."""
    found = finetune(
        source.encoder,
        source.images,
        with_run_augmentation(config, source),
        work=setup.out / "work",
        compute=setup.compute,
        progress=setup.progress,
    )
    return _of_classifier("finetune", "finetune", "fine-tuned", found)


def knn(config: KnnConfig, source: Source, setup: Setup) -> Evaluation:
    """Evaluate the weighted vote of nearest neighbors."""
    started = time.monotonic()
    train_images, test_images = load_classification(source.images)
    if config.k is not None and config.k > len(train_images):
        raise ValueError(f"k: expected at most the {len(train_images)} training images, got {config.k}")
    train = features(split="train", images=train_images, **setup.features(source))
    test = features(split="test", images=test_images, **setup.features(source))
    device, k = setup.compute.torch_device, config.voters(len(train.labels))
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
    warning = many_voters(train.names() or [], k)
    minutes = (time.monotonic() - started) / 60
    return Evaluation("knn", results, text if warning is None else f"{text}\n{warning}", minutes)


def transferred(config: TransferConfig, source: Source, setup: Setup) -> Evaluation:
    """Evaluate a linear classifier on each of a list of datasets."""
    found = transfer(
        source.encoder,
        dataset_configs(config.datasets, own=source.data, reading=setup.reading),
        with_run_augmentation(config.linear, source),
        work=setup.out / "work",
        compute=setup.compute,
        cache=setup.cache,
        progress=setup.progress,
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


def detection(config: "DetectionConfig", source: Source, setup: Setup) -> Evaluation:
    """Evaluate a Mask R-CNN on a set in COCO's layout."""
    require("detection")
    from ldreg.evaluate.detection.run import detect

    found = detect(source.encoder, config, out=setup.out / "detection", progress=setup.progress)
    return Evaluation("detection", asdict(found), lines(dict(found.rows())), found.minutes)


@dataclass(frozen=True)
class DimensionConfig:
    """Local and global dimensionality of representations.

    Args:
        split: test (as in the paper's tables) or train
        k: nearest neighbors that LID is estimated from; default the run's own monitor.k, else 64
        estimator: of LID: mom (method of moments), mle (maximum likelihood), tle (tight locality)
        convention: mean over all k distances (paper) or over the first k - 1 (pseudocode)
        sample: measure this many points, drawn at random; neighbors still come from all
        html: write a self-contained page with figures to this file
        representations: write them to this .npy file, which `ldreg inspect` reads
        seed: of every random draw
    """

    split: Literal["test", "train"] = "test"
    k: int | None = None
    estimator: Estimator = "mom"
    convention: Convention = "paper"
    sample: int | None = None
    html: str | None = None
    representations: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.split not in ("test", "train"):
            raise ValueError(f"split: expected test or train, got {self.split!r}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed: expected 0 to 2**63 - 1, got {self.seed}")
        if self.representations is not None and Path(self.representations).suffix != ".npy":
            raise ValueError(f"representations: expected the name of a .npy file, got {self.representations!r}")
        k = NEIGHBORS if self.k is None else self.k
        check_settings(k, estimator=self.estimator, convention=self.convention, sample=self.sample, device=None)


def dimension(config: DimensionConfig, source: Source, setup: Setup) -> Evaluation:
    """Inspect the representations of a split, per class if all images have labels."""
    started = time.monotonic()
    k = config.k or (NEIGHBORS if source.settings is None else source.settings.monitor.k)
    try:
        found = features(split=config.split, **setup.features(source))
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
        device=setup.compute.torch_device,
        seed=config.seed,
        progress=setup.progress,
    )
    warning = None if names is None else small_class(names, k)
    if warning is not None:
        logger.warning("%s", warning)
    title = f"{source.name}, {config.split} images of {_set_name(source.images)}"
    report = replace(report, title=title, command=setup.command)
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
    return Evaluation(
        f"dimension-{config.split}",
        results,
        str(report) if warning is None else f"{report}\n{warning}",
        (time.monotonic() - started) / 60,
        details={"report": report.to_dict()},
        writers={"html": report.to_html, "representations": partial(_write_rows, found.representations)},
    )


def _set_name(data: DataConfig) -> str:
    """The name of a set; of a folder or archive of images, its own name.

    >>> _set_name(DataConfig(name="folder", path="/data/photos")), _set_name(DataConfig(name="digits"))
    ('photos', 'digits')
    """
    return Path(data.path).resolve().name if data.name == "folder" and data.path else data.name


def _write_rows(rows: Tensor, path: str) -> None:
    """Write representations (N, D) as a .npy file, whole or not at all."""
    content = io.BytesIO()
    np.save(content, rows.numpy(force=True))
    write_atomically(path, content.getvalue())


def small_class(names: Sequence[str], k: int) -> str | None:
    """A warning if k is more than half of the smallest class: LID is then read from the gaps between classes.

    >>> small_class("aaaaabbbb", 2)
    >>> print(small_class("aaaaabbbb", 3))
    k: 3 is over half of the smallest class (4 images of class b): LID reads gaps between classes
    """
    images, described = _smallest_class(names)
    if 2 * k <= images:
        return None
    return f"k: {k} is over half of the smallest class ({described}): LID reads gaps between classes"


def many_voters(names: Sequence[str], k: int) -> str | None:
    """A warning if more neighbors vote than the smallest class has images: its accuracy then reads low.

    >>> many_voters("aaaaabbbb", 4)
    >>> print(many_voters("aaaaabbbb", 5))
    k: 5 vote, more than the smallest class has (4 images of class b): accuracy may read low; try --k 2
    >>> print(many_voters("ab", 2))
    k: 2 vote, more than the smallest class has (1 image of class a): accuracy may read low; try --k 1
    """
    images, described = _smallest_class(names)
    if k <= images:
        return None
    fewer = min(_FEW_VOTERS, max(1, images // 2))
    reason = f"k: {count(k)} vote, more than the smallest class has ({described})"
    return f"{reason}: accuracy may read low; try --k {fewer}"


def _smallest_class(names: Sequence[str]) -> tuple[int, str]:
    """The number of images of the smallest class, alone and in words."""
    name, images = min(Counter(names).items(), key=lambda entry: entry[1])
    return images, f"{count(images)} {'image' if images == 1 else 'images'} of class {printable(name)}"


def _of_classifier(kind: str, label: str, name: str, found: ClassifierResult) -> Evaluation:
    rows = {name: number(found.accuracy)}
    if found.best is not None:
        rows["best epoch"] = f"{number(found.best)}  (chosen by the test images; not to be reported)"
        each = found.steps // found.epochs
        steps = f"{count(each)} step{'' if each == 1 else 's'} each"
        rows["epochs"] = f"{found.epochs}, {steps}, batch {found.batch_size}, peak learning rate {number(found.lr)}"
    rows["images"] = f"{_images(found.train_images, found.test_images)}, {found.classes} classes"
    details = {"history": list(found.history)} if found.history else {}
    return Evaluation(label, _numbers(kind, found), lines(rows), found.minutes, details)


def _numbers(kind: str, found: ClassifierResult) -> dict[str, Any]:
    """The results of a classifier: accuracy after the last epoch as KIND, of the best epoch as KIND_best."""
    values = asdict(found)
    best = {} if found.best is None else {f"{kind}_best": found.best}
    others = ("epochs", "steps", "batch_size", "lr", "classes", "train_images", "test_images")
    return {kind: found.accuracy, **best, **{name: values[name] for name in others if values[name] is not None}}


def _images(train: int, test: int) -> str:
    return f"{count(train)} to train, {count(test)} to test"


def lines(rows: Mapping[str, str]) -> str:
    """Names and values, one a line.

    >>> print(lines({"linear": "0.958", "classes": "10"}))
    linear               0.958
    classes              10
    """
    return "\n".join(f"{name:<20} {value}" for name, value in rows.items())


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, width: int = 80) -> str:
    """A table whose first column is text and whose others are numbers.

    >>> print(table(["dataset", "linear"], [["digits", "0.958"], ["shapes", "0.9"]], width=30))
     dataset               linear
    ──────────────────────────────
     digits                 0.958
     shapes                   0.9
    """
    made = Table(box=SIMPLE_HEAD, expand=True, show_edge=False, padding=(0, 1))
    for place, column in enumerate(columns):
        made.add_column(column, justify="right" if place else "left", ratio=1 if not place else None)
    for row in rows:
        made.add_row(*(Text(printable(cell)) for cell in row))
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(made)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


@dataclass(frozen=True)
class Kind:
    """One kind of evaluation.

    Args:
        config: loads the class of its own options.
        run: carries it out, given the options, the source and the setup.
        shared: which of device, devices, precision and cache it takes.
        data: which settings of the data it takes; None: all of them.
    """

    config: Callable[[], type]
    run: Callable[..., Evaluation]
    shared: tuple[str, ...]
    data: tuple[str, ...] | None = None


def _detection_config() -> type:
    from ldreg.evaluate.detection.config import DetectionConfig

    return DetectionConfig


_TRAINED = ("device", "devices", "precision")
_CACHED = ("device", "precision", "cache")

KINDS: Mapping[str, Kind] = {
    "linear": Kind(lambda: LinearConfig, linear, (*_TRAINED, "cache")),
    "knn": Kind(lambda: KnnConfig, knn, _CACHED),
    "finetune": Kind(lambda: FinetuneConfig, finetuned, _TRAINED),
    "dimension": Kind(lambda: DimensionConfig, dimension, _CACHED),
    "transfer": Kind(lambda: TransferConfig, transferred, (*_TRAINED, "cache"), data=READING),
    "detection": Kind(_detection_config, detection, (), data=()),
}
