"""Checks of the labels that classification needs, and stratified parts of a set."""

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from ldreg.data import DataConfig, ImageSet, derived_seed, load_images

logger = logging.getLogger("ldreg")

_NAMED = 5  # classes named in a message


def load_classification(data: DataConfig, *, say: bool = True) -> tuple[ImageSet, ImageSet]:
    """The training and test images of a set for training and testing classifiers.

    Training images without a label (STL-10 has 100,000) are left out, with a warning if `say` is true.

    Raises:
        ValueError: a split is missing or has no labels, test has them in part, the classes of both differ, a class has
            no image in one of them, or there is only one class.

    >>> train, test = load_classification(DataConfig())
    >>> len(train), len(test)
    (1437, 360)
    """
    train, test = load_images(data, "train"), load_images(data, "test")
    known = check_classes(
        train.labels, test.labels, train_classes=train.classes, test_classes=test.classes, data=data.name
    )
    left_out = len(train) - len(known)
    if left_out and say:
        logger.warning("%s: %d of %d training images have no label and are left out", data.name, left_out, len(train))
    return (train.take(known) if left_out else train), test


def check_classes(
    train_labels: Tensor,
    test_labels: Tensor,
    *,
    train_classes: Sequence[str],
    test_classes: Sequence[str],
    data: str,
) -> Tensor:
    """Check that both splits fit classification; return the rows (M,) of the labeled training images.

    Labels (N,) are numbers of classes, -1 where unknown.

    Raises:
        ValueError: as `load_classification`.

    >>> labels = torch.tensor([0, 1, -1])
    >>> check_classes(labels, labels[:2], train_classes="ab", test_classes="ab", data="tiny").tolist()
    [0, 1]
    >>> check_classes(labels, labels[:1], train_classes="ab", test_classes="ab", data="tiny")
    Traceback (most recent call last):
    ValueError: tiny: expected test images of every class, got none of 'b'
    """
    known = (train_labels >= 0).nonzero().squeeze(1)
    unknown = int((test_labels < 0).sum())
    if not len(known):
        raise ValueError(f"{data}: expected labels, got none for the {len(train_labels)} training images")
    if unknown:
        number = "none" if unknown == len(test_labels) else f"{len(test_labels) - unknown}"
        raise ValueError(f"{data}: expected a label for each of the {len(test_labels)} test images, got {number}")
    if tuple(train_classes) != tuple(test_classes):
        raise ValueError(f"{data}: expected the classes of train in test, {_differing(train_classes, test_classes)}")
    if len(train_classes) < 2:
        raise ValueError(f"{data}: expected at least two classes, got {_listed(train_classes)} alone")
    for split, labels in (("training", train_labels[known]), ("test", test_labels)):
        counts = torch.bincount(labels, minlength=len(train_classes)).tolist()
        missing = [name for name, count in zip(train_classes, counts, strict=True) if not count]
        if missing:
            raise ValueError(f"{data}: expected {split} images of every class, got none of {_listed(missing)}")
    return known


def stratified(labels: Tensor, fraction: float, *, seed: int) -> Tensor:
    """Positions (M,), ascending, of a share of each class of labels (N,), at least one of each; the same every time.

    Raises:
        ValueError: the fraction is not above 0 and at most 1.

    >>> labels = torch.tensor([0] * 20 + [1] * 10 + [2] * 3)
    >>> labels[stratified(labels, 0.1, seed=0)].tolist()
    [0, 0, 1, 2]
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction: expected above 0 and at most 1, got {fraction}")
    chosen = []
    for label in labels.unique().tolist():
        members = (labels == label).nonzero().squeeze(1)
        generator = torch.Generator().manual_seed(derived_seed(seed, label))
        order = torch.randperm(len(members), generator=generator)
        chosen.append(members[order[: max(1, round(fraction * len(members)))]])
    return torch.cat(chosen).sort().values


def _listed(names: Sequence[str]) -> str:
    listed = ", ".join(repr(str(name)) for name in names[:_NAMED])
    return listed + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _differing(train: Sequence[str], test: Sequence[str]) -> str:
    only = [name for name in train if name not in set(test)]
    more = [name for name in test if name not in set(train)]
    if not only and not more:
        return "got the same ones in another order"
    parts = [f"got no {_listed(only)}" if only else "", f"got {_listed(more)} as well" if more else ""]
    return " and ".join(part for part in parts if part)
