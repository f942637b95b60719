"""A linear probe on frozen representations: multinomial logistic regression, with no randomness and no state."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ldreg.evaluate.knn import checked

LARGEST_STRENGTH = 1e30  # which float32 holds with room for its product with weights


@dataclass(frozen=True, eq=False)
class LinearResult:
    """A fitted probe: a row belongs to class `classes[(row @ weight.T + bias).argmax()]`.

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
    """Fit a linear classifier on training rows (N, D) and classify test rows (M, D).

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
    train, train_labels, test, test_labels = checked(train, train_labels, test, test_labels)
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
