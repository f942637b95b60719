"""The numbers of every command: dimensions of representations, and accuracies if labels are known."""

import math

import torch
from torch import Tensor

from ldreg.dimension.estimators import lid
from ldreg.dimension.geometry import frechet_variance, geometric_mean, regular
from ldreg.dimension.spectrum import effective_rank, relative_spread
from ldreg.evaluate.probes import knn_accuracy, linear_accuracy, voters

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
    """Measure the training representations, and the accuracies of kNN and a linear probe if all labels are known.

    Dimensions are those of at most `points` rows, evenly spread. `knn_k` neighbors vote; None: 200, or all rows of a
    smaller set. NaN or inf among the representations makes the accuracies NaN.

    Raises:
        ValueError: as `measure`, `knn_accuracy` and `linear_accuracy`.

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
