"""What is wrong with labels is said in one line; a stratified part is what it says."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ldreg.data import DataConfig
from ldreg.evaluate.classes import check_classes, load_classification, stratified

Write = Callable[..., Path]


def load(root: object) -> None:
    load_classification(DataConfig("folder", str(root), resident="no"))


def test_digits_are_fit_for_classification() -> None:
    train, test = load_classification(DataConfig())
    assert (len(train), len(test)) == (1437, 360)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ({"": 4}, {"": 4}, "folder: expected labels, got none for the 4 training images"),
        ({"cat": 4, "dog": 4}, {"": 4}, "expected a label for each of the 4 test images, got none"),
        ({"": 4}, {"cat": 4, "dog": 4}, "expected labels, got none for the 4 training images"),
        ({"cat": 4, "dog": 4}, {"cat": 4}, "folder: expected test images of every class, got none of 'dog'"),
        ({"cat": 4, "dog": 0}, {"cat": 4, "dog": 2}, "expected training images of every class, got none of 'dog'"),
        ({"cat": 4}, {"cat": 4}, "expected at least two classes, got 'cat' alone"),
        ({"cat": 4, "dog": 2}, {"cat": 4, "dog": 2, "eel": 1}, "got eel as well"),
    ],
)
def test_bad_labels_are_one_line(
    train: dict[str, int], test: dict[str, int], message: str, write_images: Write
) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        load(write_images(train=train, test=test))
    assert "\n" not in str(raised.value)


def test_a_missing_split_is_an_error(write_images: Write) -> None:
    with pytest.raises(ValueError, match="for the test split, found none"):
        load(write_images(train={"cat": 2, "dog": 2}))


def test_lists_of_classes_that_differ_are_named() -> None:
    labels = torch.tensor([0, 1])
    with pytest.raises(ValueError, match="x: expected the classes of train in test, got no 'b' and got 'c' as well"):
        check_classes(labels, labels, train_classes=["a", "b"], test_classes=["a", "c"], data="x")
    with pytest.raises(ValueError, match="the same ones in another order"):
        check_classes(labels, labels, train_classes=["a", "b"], test_classes=["b", "a"], data="x")


def test_test_labels_in_part_are_refused_and_training_labels_in_part_are_taken() -> None:
    part, whole = torch.tensor([1, -1, 0, -1]), torch.tensor([0, 1])
    assert check_classes(part, whole, train_classes="ab", test_classes="ab", data="x").tolist() == [0, 2]
    with pytest.raises(ValueError, match="expected a label for each of the 4 test images, got 2"):
        check_classes(whole, part, train_classes="ab", test_classes="ab", data="x")


def test_many_missing_classes_are_counted() -> None:
    labels, names = torch.arange(9), [str(number) for number in range(9)]
    with pytest.raises(ValueError, match="none of '1', '2', '3', '4', '5' and 3 more"):
        check_classes(labels, labels[:1], train_classes=names, test_classes=names, data="x")


def test_a_part_has_its_share_of_every_class_and_is_always_the_same() -> None:
    labels = torch.cat([torch.full((100,), 0), torch.full((40,), 1), torch.full((3,), 2)])
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]
    part = stratified(labels, 0.1, seed=0)
    assert torch.bincount(labels[part]).tolist() == [10, 4, 1]
    assert len(part.unique()) == len(part)
    assert torch.equal(part, stratified(labels, 0.1, seed=0))
    assert not torch.equal(part, stratified(labels, 0.1, seed=1))
    assert torch.equal(stratified(labels, 1.0, seed=0), torch.arange(len(labels)))


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.1, float("nan")])
def test_shares_out_of_range_are_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match="fraction: expected above 0 and at most 1"):
        stratified(torch.zeros(3, dtype=torch.int64), fraction, seed=0)
