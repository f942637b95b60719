"""Accuracies of representations: the vote of nearest neighbors, and a linear probe."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

LARGEST_STRENGTH = 1e30  # which float32 holds with room for its product with weights
_VOTERS = 200  # as is usual since Wu et al.
_CHUNK_ELEMENTS = 2**26  # similarities held at a time: 256 MiB in float32


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
