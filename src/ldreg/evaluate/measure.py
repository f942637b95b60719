"""What representations are worth: their dimensions, the vote of nearest neighbors, and a linear probe."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ldreg.dimension.estimators import lid
from ldreg.dimension.geometry import frechet_variance, geometric_mean, regular
from ldreg.dimension.spectrum import effective_rank, relative_spread

# Representations of training and test images, each followed by their classes; None, or a class of -1: unknown.
Extracted = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]

LARGEST_STRENGTH = 1e30  # which float32 holds with room for its product with weights
_NAMES = ("lid", "lid_low", "frechet_variance", "effective_rank", "spread", "degenerate")
_LOW = 0.05  # the quantile of LID that `lid_low` is
_LARGE = 1e30  # beyond it, distances do not fit into float32
_VOTERS = 200  # as is usual since Wu et al.
_CHUNK_ELEMENTS = 2**26  # similarities held at a time: 256 MiB in float32


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
    values = measure(train if points is None else evenly_spaced(train, points), k=k)
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


def evenly_spaced(rows: Tensor, count: int) -> Tensor:
    """At most `count` rows, evenly spread: the same at every call, and from all classes of a set sorted by class.

    >>> evenly_spaced(torch.arange(10), 4).tolist(), evenly_spaced(torch.arange(3), 4).tolist()
    ([0, 2, 5, 7], [0, 1, 2])
    """
    if len(rows) <= count:
        return rows
    return rows[torch.arange(count, device=rows.device) * len(rows) // count]


@dataclass(frozen=True)
class KnnConfig:
    """Classification by the vote of nearest neighbors.

    Args:
        k: neighbors that vote; default 200, or all training images where those are fewer
        temperature: of the votes' weights exp(cosine / temperature)

    >>> KnnConfig(k=0)
    Traceback (most recent call last):
    ValueError: k: expected at least 1, got 0
    """

    k: int | None = None
    temperature: float = 0.1

    def __post_init__(self) -> None:
        if self.k is not None and self.k < 1:
            raise ValueError(f"k: expected at least 1, got {self.k}")
        if not 1e-30 <= self.temperature <= 1e30:  # what float32 holds
            raise ValueError(f"temperature: expected 1e-30 to 1e30, got {self.temperature}")


def voters(count: int, k: int | None = None) -> int:
    """How many of `count` training rows vote if k are asked for; None: 200, or all if those are fewer.

    >>> voters(1000), voters(50), voters(50, 20)
    (200, 50, 20)
    """
    return min(_VOTERS, count) if k is None else k


def knn_accuracy(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    *,
    k: int = 200,
    temperature: float = 0.1,
    chunk: int | None = None,
) -> float:
    """Share of the test rows (M, D) whose class (M,) wins the vote of their k nearest training rows (N, D).

    Neighbors are those of largest cosine, and each votes with exp(cosine / temperature) (Wu et al., "Unsupervised
    Feature Learning via Non-Parametric Instance Discrimination", CVPR 2018). Of classes with equal votes the lowest
    wins. Products run in the float32 precision that the caller has set.

    Args:
        train: representations (N, D) among which neighbors are sought.
        train_labels: their classes (N,), integers of at least 0.
        test: representations (M, D).
        test_labels: their classes (M,).
        k: number of neighbors, at most N.
        temperature: above 0; the smaller, the more the nearest count.
        chunk: test rows per matrix product; None: as many as need 256 MiB of similarities.

    Raises:
        ValueError: for an option out of range, wrong shapes or labels, NaN or inf.

    >>> train, labels = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]), torch.tensor([0, 0, 1])
    >>> knn_accuracy(train, labels, torch.tensor([[2.0, 0.1], [0.1, 2.0]]), torch.tensor([0, 1]), k=1)
    1.0
    """
    train, train_labels, test, test_labels = _checked(train, train_labels, test, test_labels)
    if not 1 <= k <= len(train):
        raise ValueError(f"k: expected 1 to {len(train)}, the number of training rows, got {k}")
    if not temperature > 0:
        raise ValueError(f"temperature: expected a number above 0, got {temperature}")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk: expected at least 1 row, got {chunk}")
    chunk = chunk or max(1, _CHUNK_ELEMENTS // len(train))
    found = knn_predictions(train, train_labels, test, k=k, temperature=temperature, chunk=chunk)
    return (found == test_labels).double().mean().item()


def knn_predictions(
    train: Tensor, train_labels: Tensor, test: Tensor, *, k: int, temperature: float = 0.1, chunk: int = 2**10
) -> Tensor:
    """Classes (M,) that win the votes, from input that was checked."""
    # Votes are counted by position among the classes that occur, so that sparse class numbers cost no memory.
    classes: Tensor
    classes, positions = train_labels.unique(return_inverse=True)
    bank = _unit(train).T
    winners = []
    for part in test.split(chunk):
        nearest, indices = (_unit(part) @ bank).topk(k, dim=1)
        # Dividing all weights by the largest changes no winner, and small temperatures do not overflow.
        weights = ((nearest - nearest[:, :1]) / temperature).exp()
        votes = torch.zeros(len(part), len(classes), dtype=weights.dtype, device=weights.device)
        winners.append(votes.scatter_add_(1, positions[indices], weights).argmax(1))
    return classes[torch.cat(winners)]


def _unit(x: Tensor) -> Tensor:
    """Rows (n, D) at length 1; by a power of two first, as squares of large or small values overflow or vanish."""
    largest = torch.linalg.vector_norm(x, math.inf, dim=1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
    scaled = 4 * torch.frexp(largest).mantissa / largest * x
    return functional.normalize(scaled, dim=1, out=scaled)


@dataclass(frozen=True, eq=False)
class LinearResult:
    """A fitted linear probe: a row belongs to class `classes[(row @ weight.T + bias).argmax()]`.

    Args:
        accuracy: share of the test rows classified rightly.
        train_accuracy: share of the training rows classified rightly.
        objective: the minimized mean cross-entropy plus penalty.
        iterations: steps of L-BFGS.
        converged: whether the largest gradient fell under the tolerance.
        classes: (C,) the class of each row of the weight.
        weight: (C, D), for representations as given, not standardized.
        bias: (C,), likewise.
    """

    accuracy: float
    train_accuracy: float
    objective: float
    iterations: int
    converged: bool
    classes: Tensor
    weight: Tensor
    bias: Tensor


def linear_accuracy(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    *,
    strength: float = 1.0,
    iterations: int = 200,
    tolerance: float = 1e-5,
) -> LinearResult:
    """Fit a multinomial logistic regression on training rows (N, D) and classify test rows (M, D).

    Features are standardized by the training rows; a constant one counts for nothing. Minimized by L-BFGS, from zero,
    is mean cross-entropy + strength / (2 N) · ‖weight‖² over the standardized features: scikit-learn's
    LogisticRegression with C = 1 / strength, its default being 1 too.

    Args:
        train: representations (N, D).
        train_labels: their classes (N,), integers of at least 0, at least two different ones.
        test: representations (M, D).
        test_labels: their classes (M,); one that train lacks can only be missed.
        strength: weight of the penalty, 0 to 1e30.
        iterations: at most that many steps.
        tolerance: largest entry of the gradient at which the fit is done.

    Raises:
        ValueError: for an option out of range, fewer than two classes, wrong shapes or labels, NaN or inf.

    >>> x, y = torch.tensor([[0.0, 5.0], [1.0, 5.0], [4.0, 5.0], [5.0, 5.0]]), torch.tensor([2, 2, 9, 9])
    >>> result = linear_accuracy(x, y, torch.tensor([[0.5, 5.0], [9.0, 5.0]]), torch.tensor([2, 9]))
    >>> result.accuracy, result.converged, result.classes.tolist()
    (1.0, True, [2, 9])
    """
    if not 0 <= strength <= LARGEST_STRENGTH:
        raise ValueError(f"strength: expected a number from 0 to {LARGEST_STRENGTH:g}, got {strength}")
    if iterations < 1:
        raise ValueError(f"iterations: expected at least 1, got {iterations}")
    train, train_labels, test, test_labels = _checked(train, train_labels, test, test_labels)
    classes, positions = train_labels.unique(return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"train_labels: expected at least two classes, got only {classes.tolist()}")
    deviation, mean = torch.std_mean(train, 0, correction=0)
    floor = 10 * torch.finfo(train.dtype).eps * mean.abs()  # what rounding explains
    deviation = torch.where(deviation > floor, deviation, torch.ones_like(deviation))
    rows = torch.cat([(train - mean) / deviation, train.new_ones(len(train), 1)], 1)
    solution = rows.new_zeros(len(classes), rows.shape[1])  # whose last column is the bias
    optimizer = torch.optim.LBFGS(
        [solution],
        max_iter=iterations,
        max_eval=10 * iterations,  # no limit of its own: the search along a line rarely takes a second
        history_size=10,
        tolerance_grad=tolerance,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )
    objective = _objective(solution, rows, positions, strength)
    optimizer.step(objective)
    value, gradient = objective().item(), solution.grad
    assert gradient is not None  # every evaluation of the objective sets it
    weight, bias = solution[:, :-1] / deviation, solution[:, -1]
    # Classifying centered rows, rather than adding -mean @ weight to the bias first, loses no digits to an offset.
    found = [classes[((x - mean) @ weight.T + bias).argmax(1)] for x in (train, test)]
    return LinearResult(
        accuracy=(found[1] == test_labels).double().mean().item(),
        train_accuracy=(found[0] == train_labels).double().mean().item(),
        objective=value,
        iterations=optimizer.state[solution]["n_iter"],
        converged=gradient.abs().max().item() <= tolerance,
        classes=classes,
        weight=weight,
        bias=bias - weight @ mean,
    )


def _objective(solution: Tensor, rows: Tensor, positions: Tensor, strength: float) -> Callable[[], Tensor]:
    """The objective as L-BFGS asks for it; its gradient is in closed form, which spares autograd's graph."""
    targets = functional.one_hot(positions, len(solution)).to(rows.dtype)
    penalty = strength / len(rows)

    @torch.no_grad()
    def evaluate() -> Tensor:
        logs = (rows @ solution.T).log_softmax(1)
        penalized = solution[:, :-1]
        gradient = (logs.exp() - targets).T @ rows / len(rows)
        gradient[:, :-1].add_(penalized, alpha=penalty)
        solution.grad = gradient
        return penalized.square().sum() * (penalty / 2) - (logs * targets).sum() / len(rows)

    return evaluate


def _checked(
    train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same four on the device of `train`: representations in float32 (float64 stays), labels in int64."""
    train = _representations(train, "train")
    test = _representations(test, "test").to(train.device)
    if train.shape[1] != test.shape[1]:
        raise ValueError(f"test: expected {train.shape[1]} columns, as train has, got {test.shape[1]}")
    dtype = torch.promote_types(train.dtype, test.dtype)
    labels = _labels(train_labels, train, "train_labels"), _labels(test_labels, test, "test_labels")
    return train.to(dtype), labels[0], test.to(dtype), labels[1]


def _tensor(value: object, name: str) -> Tensor:
    if isinstance(value, Tensor):  # which torch.as_tensor would bring to the default device
        return value
    if hasattr(value, "mask") and hasattr(value, "filled"):  # NumPy's, whose mask torch would not see
        raise ValueError(f"{name}: expected numbers, got a masked array; its rows without a mask can be taken out")
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name}: expected numbers, got {type(value).__name__}: {error}") from error


def _representations(x: Tensor, name: str) -> Tensor:
    x = _tensor(x, name).detach()
    if x.ndim != 2 or 0 in x.shape or not x.is_floating_point():
        raise ValueError(f"{name}: expected floats of shape (N, D), got {x.dtype} of shape {tuple(x.shape)}")
    x = x if x.dtype == torch.float64 else x.float()
    if wrong := int((~torch.isfinite(x)).any(1).sum()):
        raise ValueError(f"{name}: expected finite numbers, got NaN or inf in {wrong} of {len(x)} rows")
    return x


def _labels(labels: Tensor, x: Tensor, name: str) -> Tensor:
    labels = _tensor(labels, name)
    if labels.shape != x.shape[:1] or labels.is_floating_point() or labels.is_complex():
        raise ValueError(f"{name}: expected {len(x)} integers, got {labels.dtype} of shape {tuple(labels.shape)}")
    labels = labels.to(x.device, torch.int64)  # of some unsigned integers torch knows no minimum
    if (lowest := int(labels.min())) < 0:
        raise ValueError(f"{name}: expected a class of at least 0 for every row, got {lowest} (-1 stands for unknown)")
    return labels
