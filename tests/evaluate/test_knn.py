"""The vote against lightly's and against one in float64 by hand."""

import math
from collections import defaultdict
from typing import Any

import numpy
import pytest
import torch
from lightly.utils.benchmarking import knn_predict
from torch import Tensor
from torch.nn import functional

from ldreg.evaluate.probes import knn_accuracy, knn_predictions


def clusters(seed: int = 0, classes: int = 5, rows: int = 300) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (2 * rows,), generator=generator)
    centers = torch.randn(classes, 8, generator=generator)
    x = 0.7 * centers[labels] + torch.randn(2 * rows, 8, generator=generator)
    return x[:rows], labels[:rows], x[rows:], labels[rows:]


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


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.1), (20, 0.1), (200, 0.1), (300, 0.5)])
def test_predictions_equal_lightlys_and_a_float64_vote(k: int, temperature: float) -> None:
    train, labels, test, truth = clusters()
    found = knn_predictions(train, labels, test, k=k, temperature=temperature)
    rows, bank = functional.normalize(test, dim=1), functional.normalize(train, dim=1).T
    theirs = knn_predict(rows, bank, labels, num_classes=5, knn_k=k, knn_t=temperature)[:, 0]
    assert torch.equal(found, theirs)
    assert found.tolist() == by_hand(train, labels, test, k, temperature)
    accuracy = knn_accuracy(train, labels, test, truth, k=k, temperature=temperature)
    assert accuracy == (found == truth).double().mean().item()


@pytest.mark.parametrize("chunk", [1, 7, 299, 1000])
def test_chunks_change_nothing(chunk: int) -> None:
    four = clusters()
    assert knn_accuracy(*four, k=20, chunk=chunk) == knn_accuracy(*four, k=20)


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


@pytest.mark.parametrize("exponent", [-140, -120, -60, 60, 120, 125])
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
    for dtype in (torch.uint16, torch.uint32, torch.uint64):
        assert knn_accuracy(train, labels.to(dtype), test, truth, k=5) == expected
    with torch.device("meta"):  # on which nothing can be computed
        assert knn_accuracy(*four, k=5) == expected
    with pytest.raises(ValueError, match="train_labels: expected numbers, got ndarray"):
        knn_accuracy(train, labels.numpy().astype(str), test, truth, k=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="test: expected numbers, got a masked array"):
        knn_accuracy(train, labels, numpy.ma.masked_less(test.numpy(), 0), truth, k=5)  # type: ignore[arg-type]


def test_wrong_input_is_named() -> None:
    train, labels, test, truth = clusters(rows=20)
    bad = test.index_fill(0, torch.tensor([3]), math.nan)
    cases: tuple[tuple[Any, dict[str, Any], str], ...] = (
        ((train, labels, test, truth), {}, "k: expected 1 to 20, .* got 200"),
        ((train, labels, test, truth), {"k": 5, "temperature": 0}, "temperature: expected .* above 0, got 0"),
        ((train, labels, test, truth), {"k": 5, "chunk": 0}, "chunk: expected at least 1 row, got 0"),
        ((train, labels, test[:, 1:], truth), {"k": 5}, "test: expected 8 columns, .* got 7"),
        ((train, labels, test, truth[1:]), {"k": 5}, "test_labels: expected 20 integers"),
        ((train, labels - 1, test, truth), {"k": 5}, "train_labels: expected a class of at least 0 .* got -1"),
        ((train, labels, bad, truth), {"k": 5}, "test: expected finite numbers, .* in 1 of 20 rows"),
    )
    for four, options, message in cases:
        with pytest.raises(ValueError, match=f"^{message}"):
            knn_accuracy(*four, **options)
