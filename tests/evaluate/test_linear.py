"""The probe against scikit-learn's logistic regression."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from ldreg.evaluate.probes import linear_accuracy

Split = tuple[Tensor, Tensor, Tensor, Tensor]


@pytest.fixture(scope="module")
def digits() -> Split:
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels, dtype=torch.float32), torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:1437], order[1437:]
    return x[train], y[train], x[test], y[test]


def reference(split: Split, strength: float) -> tuple[Any, float, float]:
    """Scikit-learn's model, its accuracy on test and its objective, in float64."""
    train, train_labels, test, test_labels = (part.numpy() for part in split)
    scaler = StandardScaler().fit(train.astype(np.float64))
    rows = scaler.transform(train.astype(np.float64))
    model = LogisticRegression(C=1 / strength, max_iter=5000, tol=1e-8).fit(rows, train_labels)
    chosen = model.predict_proba(rows)[np.arange(len(rows)), train_labels]
    objective = -np.log(chosen).mean() + strength / (2 * len(rows)) * (model.coef_**2).sum()
    return model, float(model.score(scaler.transform(test.astype(np.float64)), test_labels)), float(objective)


@pytest.mark.parametrize("strength", [1.0, 20.0])
def test_accuracy_and_objective_are_scikit_learns(digits: Split, strength: float) -> None:
    _, accuracy, objective = reference(digits, strength)
    result = linear_accuracy(*digits, strength=strength)
    assert result.converged
    assert result.accuracy == pytest.approx(accuracy, abs=0.005)
    assert result.objective == pytest.approx(objective, rel=1e-3)


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
    test, test_labels = digits[2:]
    train, train_labels = digits[:2]
    result = linear_accuracy(train, train_labels * 7 + 3, test, test_labels * 7 + 3)  # labels may be any integers
    test_labels = test_labels * 7 + 3
    found = result.classes[(test @ result.weight.T + result.bias).argmax(1)]
    assert (found == test_labels).double().mean().item() == pytest.approx(result.accuracy, abs=1e-9)
    assert result.train_accuracy > result.accuracy > 0.9


def test_equal_runs_are_bitwise_equal_and_draw_nothing(digits: Split) -> None:
    state = torch.get_rng_state()
    assert torch.equal(linear_accuracy(*digits).weight, linear_accuracy(*digits).weight)
    assert torch.equal(torch.get_rng_state(), state)
    short = linear_accuracy(*digits, iterations=3)
    assert (short.iterations, short.converged) == (3, False)


def test_offset_and_scale_of_features_do_not_matter(digits: Split) -> None:
    train, train_labels, test, test_labels = digits
    scale = torch.logspace(-3, 3, train.shape[1])
    moved = linear_accuracy(train * scale + scale, train_labels, test * scale + scale, test_labels)
    assert moved.objective == pytest.approx(linear_accuracy(*digits).objective, rel=1e-3)


def test_features_constant_up_to_rounding_count_for_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 2
    noise = 1 + 1e-7 * torch.rand(200, 30, generator=generator)
    result = linear_accuracy(noise[:100], labels[:100], noise[100:], labels[100:])
    assert result.train_accuracy == 0.5
    assert result.weight.abs().max().item() < 1e-3


def test_wrong_input_is_named(digits: Split) -> None:
    train, labels, test, truth = digits
    cases: tuple[tuple[Split, dict[str, Any], str], ...] = (
        ((train * math.inf, labels, test, truth), {}, "train: expected finite numbers, .* in 1437 of 1437 rows"),
        ((train, labels * 0, test, truth), {}, r"train_labels: expected at least two classes, got only \[0\]"),
        (digits, {"strength": -1}, r"strength: expected a number from 0 to 1e.30, got -1"),
        (digits, {"iterations": 0}, "iterations: expected at least 1, got 0"),
        ((train.long(), labels, test, truth), {}, r"train: expected floats .* got torch.int64 of shape \(1437,"),
    )
    for four, options, message in cases:
        with pytest.raises(ValueError, match=f"^{message}"):
            linear_accuracy(*four, **options)
