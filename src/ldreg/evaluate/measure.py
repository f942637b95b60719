"""What every command measures: dimensions of representations, and accuracies of probes where labels are known."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from ldreg.dimension.estimators import lid
from ldreg.dimension.geometry import frechet_variance, geometric_mean, regular
from ldreg.dimension.spectrum import effective_rank, relative_spread
from ldreg.evaluate.extract import torch_device
from ldreg.evaluate.knn import knn_accuracy, voters
from ldreg.evaluate.linear import linear_accuracy

if TYPE_CHECKING:  # with them come timm and torchvision
    from ldreg.data import DataConfig
    from ldreg.encoders.checkpoints import LoadedEncoder
    from ldreg.evaluate.features import Features

# Representations of training and test images, each followed by their classes; None, or a class of -1: unknown.
Extracted = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]

_NAMES = ("lid", "lid_low", "frechet_variance", "effective_rank", "spread", "degenerate")
_LOW = 0.05  # the quantile of LID that `lid_low` is
_LARGE = 1e30  # beyond it, distances do not fit into float32


@torch.no_grad()
def measure(representations: Tensor, *, k: int = 64) -> dict[str, float]:
    """Measure the dimensions of representations (N, D), each a number.

    `lid` is the geometric mean of LID and `frechet_variance` the variance of its logarithm; both leave out degenerate
    points, whose LID is 0 or inf, and are NaN if no other point is left. `degenerate` is the share of those points.
    `lid_low` is the 5 % quantile of LID over all points, so that dead and duplicate rows lower it. `spread` is the
    root-mean-square distance to the mean over the root-mean-square norm: between 0, all rows equal, and 1, centered.
    If representations are NaN or inf, every point is degenerate and the other numbers are NaN.

    Raises:
        ValueError: representations are not (N, D) with N > k.

    >>> square = torch.rand(500, 2, generator=torch.Generator().manual_seed(0))
    >>> {name: round(value, 1) for name, value in measure(square, k=50).items()}
    {'lid': 1.9, 'lid_low': 1.4, 'frechet_variance': 0.0, 'effective_rank': 2.0, 'spread': 0.5, 'degenerate': 0.0}
    >>> measure(torch.ones(100, 2))
    {'lid': nan, 'lid_low': 0.0, 'frechet_variance': nan, 'effective_rank': 0.0, 'spread': 0.0, 'degenerate': 1.0}
    """
    if not torch.isfinite(representations).all():
        return dict.fromkeys(_NAMES, math.nan) | {"degenerate": 1.0}
    # A run that diverges may pass through values whose distances float32 cannot hold.
    large = bool((representations.abs() > _LARGE).any())
    return dimensions(representations, lid(representations.double() if large else representations, k))


def dimensions(representations: Tensor, values: Tensor) -> dict[str, float]:
    """The numbers of `measure` for finite representations (N, D) whose LID (N,) is known."""
    found = (
        geometric_mean(values),
        values.quantile(_LOW, interpolation="lower"),  # needs no sum of inf and a number
        frechet_variance(values),
        effective_rank(representations),
        relative_spread(representations),
        1 - regular(values).double().mean(),
    )
    # Read in one transfer: each would otherwise wait for the device.
    numbers = torch.stack([each.double() for each in found]).tolist()
    return dict(zip(_NAMES, numbers, strict=True))


def measure_set(
    extracted: Extracted,
    *,
    k: int = 64,
    points: int | None = None,
    knn_k: int | None = None,
    knn: bool = True,
    probe: bool = True,
) -> dict[str, float]:
    """Measure the training representations, and the accuracies of probes on test if all labels are known.

    Args:
        extracted: train (N, D), train_labels (N,), test (M, D), test_labels (M,).
        k: neighbors that LID is estimated from.
        points: measure dimensions of at most this many rows, evenly spread.
        knn_k: neighbors that vote in kNN classification; None: 200, or all rows of a smaller set.
        knn: whether to take kNN accuracy.
        probe: whether to fit a linear probe.

    Raises:
        ValueError: as `measure`, `knn_accuracy` and `linear_accuracy`; but NaN or inf among the representations makes
            the accuracies NaN.

    >>> x = torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
    >>> labels = (x[:, 0] > 0).long()
    >>> found = measure_set((x, labels, x, labels), points=100, knn_k=5)
    >>> list(found), found["linear"] > 0.95
    (['lid', 'lid_low', 'frechet_variance', 'effective_rank', 'spread', 'degenerate', 'knn', 'linear'], True)
    """
    train, train_labels, test, test_labels = extracted
    values = measure(train if points is None else spread(train, points), k=k)
    if train_labels is None or test is None or test_labels is None:
        return values
    if (train_labels < 0).any() or (test_labels < 0).any():
        return values
    finite = bool(torch.isfinite(train).all() and torch.isfinite(test).all())
    four = train, train_labels, test, test_labels
    if knn:
        values["knn"] = knn_accuracy(*four, k=voters(len(train), knn_k)) if finite else math.nan
    if probe:
        values["linear"] = linear_accuracy(*four).accuracy if finite else math.nan
    return values


def spread(rows: Tensor, count: int) -> Tensor:
    """At most `count` rows, evenly spread: the same at every call, and from all classes of a set sorted by class.

    >>> spread(torch.arange(10), 4).tolist(), spread(torch.arange(3), 4).tolist()
    ([0, 2, 5, 7], [0, 1, 2])
    """
    if len(rows) <= count:
        return rows
    return rows[torch.arange(count, device=rows.device) * len(rows) // count]


@dataclass(frozen=True, eq=False)
class Measured:
    """An encoder measured on a data set.

    Args:
        results: numbers by name; accuracies are left out if labels or the test split are missing.
        train: representations of the training images.
        test: representations of the test images, or None.
        points: how many images dimensions were measured on.
        tested: how many test images accuracies were measured on, or None.
        voters: neighbors that voted in kNN classification, or None.
    """

    results: dict[str, float]
    train: "Features"
    test: "Features | None"
    points: int
    tested: int | None = None
    voters: int | None = None

    @property
    def held_out(self) -> int:
        """Number of test images."""
        return 0 if self.test is None else len(self.test.labels)


def measure_encoder(
    encoder: "LoadedEncoder",
    data: "DataConfig",
    split: Literal["train", "test"],
    k: int,
    *,
    knn_k: int | None = None,
    describe: "Callable[[Features], dict[str, float]] | None" = None,
    linear: Callable[[], float] | None = None,
    known: dict[str, float] | None = None,
    train: "Features | None" = None,
    device: str = "auto",
    cache: Path | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Measured:
    """Measure an encoder on one split, and accuracies on the labeled test images given the labeled training images.

    Args:
        encoder: a loaded encoder.
        data: the images.
        split: the split to measure dimensions on; "test" without test images: the training images.
        k: neighbors that LID is estimated from.
        knn_k: neighbors that vote in kNN classification; None: 200, or all images of a smaller set.
        describe: measures the dimensions of a split; None: `measure`.
        linear: linear accuracy by a protocol; None: a probe fitted to the representations.
        known: accuracies that were measured before.
        train: representations of the training images, if they are known.
        device: auto, cpu or cuda.
        cache: folder below which representations are kept; None: as `features` says.
        progress: called with what is done and the fraction that is done.

    Raises:
        ValueError: the data is missing, or k is not below the number of images.
    """
    from ldreg.data.datasets import MissingSplitError
    from ldreg.evaluate.features import features

    place, known = torch_device(device), known or {}
    if train is None:
        train = features(encoder, data, "train", device=device, cache=cache, progress=progress)
    try:
        test = features(encoder, data, "test", device=device, cache=cache, progress=progress)
    except MissingSplitError:
        test = None
    looked_at = train if split == "train" or test is None else test
    points = len(looked_at.labels)
    results = measure(looked_at.representations.to(place), k=k) if describe is None else describe(looked_at)
    if test is None:
        return Measured(results, train, test, points)
    labeled, asked = train.labels >= 0, test.labels >= 0
    y, y_test = train.labels[labeled], test.labels[asked]
    if len(y.unique()) < 2 or not len(y_test):
        return Measured(results, train, test, points)
    x, x_test = train.representations[labeled].to(place), test.representations[asked].to(place)
    four, count = (x, y.to(place), x_test, y_test.to(place)), voters(len(y), knn_k)
    if "linear" in known:
        results["linear"] = known["linear"]
    else:
        results["linear"] = linear_accuracy(*four).accuracy if linear is None else linear()
    results["knn"] = known["knn"] if "knn" in known else knn_accuracy(*four, k=count)
    return Measured(results, train, test, points, len(y_test), count)
