"""The vote of neighbors against lightly's and one in float64 by hand; the probe against scikit-learn's regression."""

import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from lightly.utils.benchmarking import knn_predict
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch.nn import functional

from ldreg.evaluate.measure import knn_accuracy, knn_predictions, linear_accuracy

Split = tuple[Tensor, Tensor, Tensor, Tensor]


def clusters(seed: int = 0, classes: int = 5, rows: int = 300) -> Split:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (2 * rows,), generator=generator)
    centers = torch.randn(classes, 8, generator=generator)
    x = 0.7 * centers[labels] + torch.randn(2 * rows, 8, generator=generator)
    return x[:rows], labels[:rows], x[rows:], labels[rows:]


@pytest.fixture(scope="module")
def digits() -> Split:
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels, dtype=torch.float32), torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:1437], order[1437:]
    return x[train], y[train], x[test], y[test]


# k nearest neighbors


def by_hand(train: Tensor, labels: Tensor, test: Tensor, k: int, temperature: float) -> list[int]:
    winners = []
    unit = train.double() / train.double().norm(dim=1, keepdim=True)
    for row in test.double():
        cosines = (unit @ (row / row.norm())).tolist()
        nearest = sorted(range(len(cosines)), key=lambda i: -cosines[i])[:k]
        votes: dict[int, float] = defaultdict(float)
        for i in nearest:
            votes[int(labels[i])] += math.exp(cosines[i] / temperature)
        winners.append(max(votes, key=lambda label: votes[label]))
    return winners


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.1), (20, 0.1), (300, 0.5)])
def test_predictions_equal_lightlys_and_a_float64_vote(k: int, temperature: float) -> None:
    train, labels, test, truth = clusters()
    found = knn_predictions(train, labels, test, k=k, temperature=temperature)
    rows, bank = functional.normalize(test, dim=1), functional.normalize(train, dim=1).T
    theirs = knn_predict(rows, bank, labels, num_classes=5, knn_k=k, knn_t=temperature)[:, 0]
    assert torch.equal(found, theirs)
    assert found.tolist() == by_hand(train, labels, test, k, temperature)
    accuracy = (found == truth).double().mean().item()
    for chunk in (None, 7, 1000):
        assert knn_accuracy(train, labels, test, truth, k=k, temperature=temperature, chunk=chunk) == accuracy


def test_weights_decide_against_the_majority() -> None:
    # Two neighbors of class 1 at 60°, one of class 4 at 0°: exp(1/T) > 2 exp(0.5/T) where T < 0.5 / ln 2 = 0.72.
    train = torch.tensor([[1.0, 0.0], [0.5, 3**0.5 / 2], [0.5, -(3**0.5) / 2]])
    labels, test = torch.tensor([4, 1, 1]), torch.tensor([[5.0, 0.0]])
    assert knn_predictions(train, labels, test, k=3, temperature=0.7).item() == 4
    assert knn_predictions(train, labels, test, k=3, temperature=0.75).item() == 1


def test_small_temperatures_do_not_overflow_and_sparse_classes_cost_no_memory() -> None:
    train, labels, test, _ = clusters()
    nearest = knn_predictions(train, labels, test, k=1)
    assert torch.equal(knn_predictions(train, labels * 10**12, test, k=50, temperature=1e-5), nearest * 10**12)


@pytest.mark.parametrize("exponent", [-140, -60, 125])
def test_the_scale_of_representations_changes_nothing(exponent: int) -> None:
    train, labels, test, _ = clusters()
    train, test = (part.clamp(-3, 3).mul(64).round().div(64) for part in (train, test))  # few digits, lest any get lost
    scaled = [(part.double() * 2.0**exponent).float() for part in (train, test)]
    found = knn_predictions(scaled[0], labels, scaled[1], k=20)
    assert torch.equal(found, knn_predictions(train, labels, test, k=20))


def test_rows_of_zeros_are_like_nothing() -> None:
    train, labels = torch.tensor([[0.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    assert knn_predictions(train, labels, torch.tensor([[0.0, 2.0], [0.0, -2.0]]), k=1).tolist() == [1, 0]


def test_arrays_of_numpy_lists_and_unsigned_classes_are_taken() -> None:
    four = train, labels, test, truth = clusters()
    expected = knn_accuracy(*four, k=5)
    assert knn_accuracy(*(part.numpy() for part in four), k=5) == expected  # type: ignore[arg-type]
    assert knn_accuracy(*(part.tolist() for part in four), k=5) == expected  # type: ignore[arg-type]
    assert knn_accuracy(train, labels.to(torch.uint16), test.double(), truth, k=5) == expected
    with torch.device("meta"):  # on which nothing can be computed
        assert knn_accuracy(*four, k=5) == expected


# linear probe


def reference(split: Split, strength: float) -> tuple[Any, float, float]:
    """Scikit-learn's model, its accuracy on test and its objective, in float64."""
    train, train_labels, test, test_labels = (part.numpy() for part in split)
    scaler = StandardScaler().fit(train.astype(np.float64))
    rows = scaler.transform(train.astype(np.float64))
    model = LogisticRegression(C=1 / strength, max_iter=5000, tol=1e-8).fit(rows, train_labels)
    chosen = model.predict_proba(rows)[np.arange(len(rows)), train_labels]
    objective = -np.log(chosen).mean() + strength / (2 * len(rows)) * (model.coef_**2).sum()
    return model, float(model.score(scaler.transform(test.astype(np.float64)), test_labels)), float(objective)


def test_accuracy_and_objective_are_scikit_learns(digits: Split) -> None:
    _, accuracy, objective = reference(digits, 1.0)
    result = linear_accuracy(*digits)
    assert result.converged
    assert result.accuracy == pytest.approx(accuracy, abs=0.005)
    assert result.objective == pytest.approx(objective, rel=1e-3)
    scale = torch.logspace(-3, 3, digits[0].shape[1])  # which changes nothing, and neither does an offset
    moved = linear_accuracy(digits[0] * scale + scale, digits[1], digits[2] * scale + scale, digits[3])
    assert moved.objective == pytest.approx(result.objective, rel=1e-3)


def test_in_float64_the_solution_itself_is_scikit_learns(digits: Split) -> None:
    model, accuracy, objective = reference(digits, 20.0)
    train, train_labels, test, test_labels = digits
    result = linear_accuracy(
        train.double(), train_labels, test.double(), test_labels, strength=20, tolerance=1e-8, iterations=2000
    )
    assert result.objective == pytest.approx(objective, rel=1e-8)
    assert result.accuracy == accuracy
    deviation = train.double().std(0, correction=0)
    np.testing.assert_allclose((result.weight * deviation).numpy(), model.coef_, atol=1e-4)


def test_weight_and_bias_classify_the_representations_as_given(digits: Split) -> None:
    train, train_labels, test, test_labels = digits
    state = torch.get_rng_state()
    result = linear_accuracy(train, train_labels * 7 + 3, test, test_labels * 7 + 3)  # labels may be any integers
    found = result.classes[(test @ result.weight.T + result.bias).argmax(1)]
    assert (found == test_labels * 7 + 3).double().mean().item() == pytest.approx(result.accuracy, abs=1e-9)
    assert result.train_accuracy > result.accuracy > 0.9
    assert torch.equal(torch.get_rng_state(), state)  # nothing is drawn
    short = linear_accuracy(*digits, iterations=3)
    assert (short.iterations, short.converged) == (3, False)


def test_features_constant_up_to_rounding_count_for_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 2
    noise = 1 + 1e-7 * torch.rand(200, 30, generator=generator)
    result = linear_accuracy(noise[:100], labels[:100], noise[100:], labels[100:])
    assert result.train_accuracy == 0.5
    assert result.weight.abs().max().item() < 1e-3


def test_wrong_input_is_named() -> None:
    train, labels, test, truth = four = clusters(rows=20)
    bad = test.index_fill(0, torch.tensor([3]), math.nan)
    cases: tuple[tuple[Any, Any, dict[str, Any], str], ...] = (
        (knn_accuracy, four, {}, "k: expected 1 to 20, .* got 200"),
        (knn_accuracy, four, {"k": 5, "temperature": 0}, "temperature: expected .* above 0, got 0"),
        (knn_accuracy, four, {"k": 5, "chunk": 0}, "chunk: expected at least 1 row, got 0"),
        (knn_accuracy, (train, labels, test[:, 1:], truth), {}, "test: expected 8 columns, .* got 7"),
        (knn_accuracy, (train, labels, test, truth[1:]), {}, "test_labels: expected 20 integers"),
        (knn_accuracy, (train, labels - 1, test, truth), {}, "train_labels: expected a class of at least 0 .* got -1"),
        (knn_accuracy, (train, labels, bad, truth), {}, "test: expected finite numbers, .* in 1 of 20 rows"),
        (knn_accuracy, (train, labels.numpy().astype(str), test, truth), {}, "train_labels: .*, got ndarray"),
        (knn_accuracy, (train, labels, np.ma.masked_less(test.numpy(), 0), truth), {}, "test: .*, got a masked array"),
        (linear_accuracy, (train, labels * 0, test, truth), {}, r"train_labels: expected at least two .* only \[0\]"),
        (linear_accuracy, four, {"strength": -1}, r"strength: expected a number from 0 to 1e.30, got -1"),
        (linear_accuracy, four, {"iterations": 0}, "iterations: expected at least 1, got 0"),
        (linear_accuracy, (train.long(), labels, test, truth), {}, r"train: expected floats .* of shape \(20,"),
    )
    for measured, parts, options, message in cases:
        with pytest.raises(ValueError, match=f"^{message}"):
            measured(*parts, **options)
