"""What is measured of one set of representations, as plain numbers to log."""

import math

import torch
from torch import Tensor

from ldreg.evaluation.knn import knn_accuracy
from ldreg.evaluation.linear import linear_accuracy
from ldreg.lid.estimators import lid
from ldreg.lid.geometry import frechet_variance, geometric_mean, regular
from ldreg.monitor.config import MonitorConfig
from ldreg.spectrum import effective_rank

# Representations of training and test images, each followed by their classes; None, or a class of -1: unknown.
Extracted = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]

_LARGE = 1e30  # far beyond any representation of use, and far from the end of float32


@torch.no_grad()
def measure(representations: Tensor, *, k: int = 64) -> dict[str, float]:
    """Dimensions of representations (N, D): lid (geometric mean), frechet_variance, effective_rank, degenerate.

    `degenerate` is the share of points whose LID is 0 or inf, which the first two leave out; those are NaN where no
    point is left. NaN or inf among the representations is no error here but a finding: every dimension is then NaN
    and every point degenerate.

    Raises:
        ValueError: representations are not (N, D) with N > k.

    >>> square = torch.rand(500, 2, generator=torch.Generator().manual_seed(0))
    >>> {name: round(value, 1) for name, value in measure(square, k=50).items()}
    {'lid': 1.9, 'frechet_variance': 0.0, 'effective_rank': 2.0, 'degenerate': 0.0}
    >>> measure(torch.ones(100, 2))
    {'lid': nan, 'frechet_variance': nan, 'effective_rank': 0.0, 'degenerate': 1.0}
    """
    if not torch.isfinite(representations).all():
        return {"lid": math.nan, "frechet_variance": math.nan, "effective_rank": math.nan, "degenerate": 1.0}
    # A run that diverges may come by values whose distances float32 cannot hold, which is no error here either.
    large = bool((representations.abs() > _LARGE).any())
    values = lid(representations.double() if large else representations, k)
    degenerate = 1 - regular(values).double().mean()
    # Read in one transfer: each would otherwise wait for the device anew.
    numbers = torch.stack(
        [part.double() for part in (geometric_mean(values), frechet_variance(values))]
        + [effective_rank(representations), degenerate]
    ).tolist()
    return dict(zip(("lid", "frechet_variance", "effective_rank", "degenerate"), numbers, strict=True))


def measure_set(extracted: Extracted, config: MonitorConfig) -> dict[str, float]:
    """Dimensions of the training representations, and the probes' accuracies on test where labels are known.

    Args:
        extracted: train (N, D), train_labels (N,), test (M, D), test_labels (M,).
        config: its points, k, knn, knn_k and probe are used.

    Raises:
        ValueError: as `measure`, `knn_accuracy` and `linear_accuracy`; but NaN or
            inf among the representations makes the accuracies NaN.

    >>> x = torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
    >>> labels = (x[:, 0] > 0).long()
    >>> found = measure_set((x, labels, x, labels), MonitorConfig(points=100, knn_k=5))
    >>> list(found), found["linear"] > 0.95
    (['lid', 'frechet_variance', 'effective_rank', 'degenerate', 'knn', 'linear'], True)
    """
    train, train_labels, test, test_labels = extracted
    values = measure(spread(train, config.points), k=config.k)
    if train_labels is None or test is None or test_labels is None:
        return values
    if (train_labels < 0).any() or (test_labels < 0).any():
        return values
    finite = bool(torch.isfinite(train).all() and torch.isfinite(test).all())
    four = train, train_labels, test, test_labels
    if config.knn:
        values["knn"] = knn_accuracy(*four, k=config.voters(len(train))) if finite else math.nan
    if config.probe:
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
