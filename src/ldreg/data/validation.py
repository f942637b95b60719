"""A part of the training images set aside, to choose settings by without a look at the test images."""

import torch
from torch import Tensor

from ldreg.data.folders import Split
from ldreg.data.images import ImageSet


def part_of(training: ImageSet, split: Split, *, validation: float) -> ImageSet:
    """Of the training images those to train on, or as the test split those set aside.

    Always the same ones, of every class the same share to a whole image; images without a label are trained on, unless
    none has one.

    Raises:
        ValueError: the share leaves no images on a side.

    >>> from ldreg.data.images import ResidentImages
    >>> images = ResidentImages(torch.zeros(10, 1, 8, 8).byte(), torch.arange(10) % 2, ("a", "b"), "tiny")
    >>> part_of(images, "test", validation=0.4).labels.bincount().tolist()
    [2, 2]
    """
    aside = _aside(training.labels, validation)
    if bool(aside.all()) or not bool(aside.any()):
        given = f"{validation:g} of {len(aside)}"
        raise ValueError(f"validation: expected a share that leaves images to train on and to test, got {given}")
    return training.take((aside if split == "test" else ~aside).nonzero().squeeze(1))


def _aside(labels: Tensor, share: float) -> Tensor:
    """Which images (N,) are set aside: shuffled, then sorted by class, so many of every so many in turn."""
    known = (labels >= 0).nonzero().squeeze(1) if bool((labels >= 0).any()) else torch.arange(len(labels))
    shuffled = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(0))]
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    # Rounded before they are cut, or 0.1 · 10 000 might fall short of 1000.
    steps = (torch.arange(len(known) + 1, dtype=torch.float64) * share).mul(1e6).round().div(1e6).floor()
    aside = torch.zeros(len(labels), dtype=torch.bool)
    aside[by_class[steps.diff() > 0]] = True
    return aside
