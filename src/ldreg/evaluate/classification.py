"""Linear evaluation of an encoder on one dataset or several, and fine-tuning."""

import hashlib
import json
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ldreg import __version__
from ldreg.data import DataConfig, ImageSet, derived_seed, load_images
from ldreg.data.config import similar_datasets
from ldreg.encoders.checkpoints import LoadedEncoder
from ldreg.evaluate.features import Setup
from ldreg.evaluate.measure import linear_accuracy
from ldreg.evaluate.protocols import (
    FinetuneConfig,
    LinearConfig,
    ProtocolName,
    fitted_plan,
    with_run_augmentation,
)
from ldreg.evaluate.source import Source
from ldreg.io.files import read_text, write_atomically
from ldreg.text import listed, one_line

logger = logging.getLogger("ldreg")

_STRENGTH, _ITERATIONS = 1.0, 1000  # of a fit to cached representations
_NAMED = 5  # classes named in a message


@dataclass(frozen=True)
class ClassifierResult:
    """The accuracy of a classifier and how it was trained; one fitted to representations has no epochs.

    `accuracy` is the share of test images classified correctly after the last epoch. `best` is that of the best epoch,
    which the test images have chosen. `history` has loss and accuracy after each epoch.
    """

    accuracy: float
    classes: int
    train_images: int
    test_images: int
    minutes: float
    best: float | None = None
    epochs: int = 0
    steps: int = 0
    batch_size: int | None = None
    lr: float | None = None
    history: tuple[dict[str, float], ...] = ()


def load_classification(data: DataConfig, *, say: bool = True) -> tuple[ImageSet, ImageSet]:
    """The training and test images of a set for classification.

    Training images without a label (STL-10 has 100,000) are left out, with a warning if `say` is true.

    Raises:
        ValueError: a split is missing, or its labels do not fit.

    >>> train, test = load_classification(DataConfig())
    >>> len(train), len(test)
    (1437, 360)
    """
    train, test = load_images(data, "train"), load_images(data, "test")
    known = check_classes(train.labels, test.labels, train.classes, test.classes, data=data.name)
    left_out = len(train) - len(known)
    if left_out and say:
        logger.warning("%s: %d of %d training images have no label and are left out", data.name, left_out, len(train))
    return (train.take(known) if left_out else train), test


def check_classes(
    train: Tensor, test: Tensor, train_classes: Sequence[str], test_classes: Sequence[str], *, data: str
) -> Tensor:
    """Check that labels (N,) and (M,) of both splits fit classification; return the rows of known training labels."""
    known = (train >= 0).nonzero().squeeze(1)
    labeled = int((test >= 0).sum())
    if not len(known):
        raise ValueError(f"{data}: expected labels, got none for the {len(train)} training images")
    if labeled < len(test):
        raise ValueError(f"{data}: expected a label for each of the {len(test)} test images, got {labeled or 'none'}")
    if tuple(train_classes) != tuple(test_classes):
        differing = sorted(set(train_classes) ^ set(test_classes))
        got = f"{listed(differing, _NAMED)} in one of them" if differing else "another order"
        raise ValueError(f"{data}: expected the same classes in train and test, got {got}")
    if len(train_classes) < 2:
        raise ValueError(f"{data}: expected at least two classes, got only {listed(train_classes)}")
    for split, labels in (("training", train[known]), ("test", test)):
        counts = torch.bincount(labels, minlength=len(train_classes)).tolist()
        missing = [name for name, count in zip(train_classes, counts, strict=True) if not count]
        if missing:
            raise ValueError(f"{data}: expected {split} images of every class, got none of {listed(missing, _NAMED)}")
    return known


def stratified(labels: Tensor, fraction: float, *, seed: int) -> Tensor:
    """Ascending positions (M,) of a share of each class of labels (N,): at least one of each, the same for a seed.

    >>> labels = torch.tensor([0] * 20 + [1] * 10 + [2] * 3)
    >>> labels[stratified(labels, 0.1, seed=0)].tolist()
    [0, 0, 1, 2]
    """
    chosen = []
    for label in labels.unique().tolist():
        members = (labels == label).nonzero().squeeze(1)
        generator = torch.Generator().manual_seed(derived_seed(seed, label))
        order = torch.randperm(len(members), generator=generator)
        chosen.append(members[order[: max(1, round(fraction * len(members)))]])
    return torch.cat(chosen).sort().values


def classifier_accuracy(
    encoder: LoadedEncoder, data: DataConfig, config: LinearConfig | FinetuneConfig, setup: Setup
) -> ClassifierResult:
    """The accuracy of a linear classifier on the frozen encoder, or trained with a copy of it for a `FinetuneConfig`.

    The paper's protocols and fine-tuning train on random resized crops with flips and test on plain images; a frozen
    encoder's representations of these are cached. The fast protocol takes all representations from the cache. After an
    interruption the same call resumes after the last whole epoch; a finished training is not repeated.

    Raises:
        ValueError: data without usable labels, an option that does not fit, representations that are not finite.
        ArithmeticError: the training diverged.
    """
    train, test = load_classification(data)
    if isinstance(config, LinearConfig) and config.protocol == "fast":
        if setup.devices > 1:
            raise ValueError(f"devices: expected 1 with protocol fast, which trains on no images, got {setup.devices}")
        return _fitted(encoder, data, config, setup, train=train, test=test)
    if isinstance(config, FinetuneConfig) and config.fraction < 1:
        train = train.take(stratified(train.labels, config.fraction, seed=config.seed))
    from ldreg.evaluate.classifier import train_classifier  # Lightning takes seconds

    return train_classifier(encoder, data, config, setup, train=train, test=test)


def folder_name(title: str, identity: Any) -> str:
    """A name with a hash of the identity, so that no evaluation takes the checkpoint of another."""
    text = json.dumps(identity, sort_keys=True)
    return f"{title}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


class SavedFit(NamedTuple):
    """A fitted logistic regression."""

    accuracy: float
    iterations: int
    converged: bool
    minutes: float


def read_fit(path: Path) -> SavedFit | None:
    """The saved fit; None if there is none, and None with a warning if the file is damaged."""
    if not path.is_file():
        return None
    try:
        fit = SavedFit(**json.loads(read_text(path)))
        if not (0 <= fit.accuracy <= 1 and fit.iterations >= 0 and 0 <= fit.minutes < math.inf):
            raise ValueError("expected an accuracy from 0 to 1, and no negative number")
        return fit
    except (OSError, ValueError, TypeError, RecursionError) as error:
        logger.warning("%s: cannot be used and is made again (%s)", path, one_line(str(error), 200))
        return None


def _fitted(
    encoder: LoadedEncoder, data: DataConfig, config: LinearConfig, setup: Setup, *, train: ImageSet, test: ImageSet
) -> ClassifierResult:
    """The accuracy of a logistic regression on cached representations; the fit is saved in the work folder."""
    started = time.monotonic()
    known, asked = setup.features(encoder, data, "train", train), setup.features(encoder, data, "test", test)
    strength = _STRENGTH if config.strength is None else config.strength
    iterations = config.iterations or _ITERATIONS
    settings = [__version__, known.key, asked.key, strength, iterations]
    path = setup.out / "work" / f"{folder_name(f'linear-fast-{data.name}', settings)}.json"
    fit = read_fit(path)
    if fit is None:
        if setup.progress is not None:
            setup.progress("fitting", 0.0)
        x, x_test = (part.representations.to(setup.place) for part in (known, asked))
        found = linear_accuracy(x, known.labels, x_test, asked.labels, strength=strength, iterations=iterations)
        fit = SavedFit(found.accuracy, found.iterations, found.converged, (time.monotonic() - started) / 60)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(fit._asdict()) + "\n")
    if not fit.converged and fit.iterations >= iterations:  # else rounding keeps the gradient above the tolerance
        logger.warning("iterations: %d did not bring the fit to its end", fit.iterations)
    return ClassifierResult(fit.accuracy, len(known.classes), len(known.labels), len(asked.labels), fit.minutes)


def linear_on(
    source: Source,
    data: DataConfig,
    *,
    protocol: ProtocolName = "fast",
    device: str = "auto",
    cache: Path | None = None,
) -> float:
    """Accuracy of a linear classifier on any set with labels and both splits."""
    config = with_run_augmentation(LinearConfig(protocol), source)
    setup = Setup(source.results_folder, device, cache=cache)  # type: ignore[arg-type]  # which torch_device checks
    return classifier_accuracy(source.encoder, data, config, setup).accuracy


def transfer(
    encoder: LoadedEncoder, datasets: Mapping[str, DataConfig], config: LinearConfig, setup: Setup
) -> dict[str, ClassifierResult]:
    """Linear accuracy on datasets by name; all are checked before the first is evaluated, and errors name them."""
    for name, data in datasets.items():
        with _naming(name, data):
            train, _ = load_classification(data, say=False)
            if config.protocol != "fast":
                fitted_plan(config, images=len(train), devices=setup.devices)
    found: dict[str, ClassifierResult] = {}

    def progress(step: str, fraction: float) -> None:
        if setup.progress is not None:
            setup.progress(f"{name}: {step}", (len(found) + fraction) / len(datasets))

    for name, data in datasets.items():
        with _naming(name, data):
            found[name] = classifier_accuracy(encoder, data, config, replace(setup, progress=progress))
    return found


@contextmanager
def _naming(name: str, data: DataConfig) -> Iterator[None]:
    """Name the dataset in an error, with a hint at datasets of similar names if its folder has no images of classes."""
    try:
        yield
    except ValueError as error:
        message = str(error) if str(error).startswith(f"{name}: ") else f"{name}: {error}"
        near = [one for one in similar_datasets(name) if one != "folder"]
        if data.name == "folder" != name and near and not _has_classes(data):
            message += f"; {name!r} is no known dataset and was read as a folder, nearest: {', '.join(near)}"
        raise ValueError(message) from error


def _has_classes(data: DataConfig) -> bool:
    try:
        return all(load_images(data, split).labeled for split in ("train", "test"))
    except ValueError:
        return False
