"""The one check of what evaluations are given."""

import torch
from torch import Tensor


def checked(
    train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same four on the device of `train`: representations in float32 (float64 stays), labels in int64.

    Each may be a tensor or anything that torch.as_tensor takes, as an array of NumPy.

    Raises:
        ValueError: for what is no numbers, wrong shapes, differing widths, labels that are not integers of at least 0,
            NaN or inf.

    >>> x, y = torch.ones(3, 2, dtype=torch.bfloat16), torch.tensor([0, 1, 1], dtype=torch.uint8)
    >>> [part.dtype for part in checked(x, y, x, y)]
    [torch.float32, torch.int64, torch.float32, torch.int64]
    """
    train = _representations(train, "train")
    test = _representations(test, "test").to(train.device)
    if train.shape[1] != test.shape[1]:
        raise ValueError(f"test: expected {train.shape[1]} columns, as train has, got {test.shape[1]}")
    test = test.to(torch.promote_types(train.dtype, test.dtype))
    return (
        train.to(test.dtype),
        _labels(train_labels, train, "train_labels"),
        test,
        _labels(test_labels, test, "test_labels"),
    )


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
    x = _tensor(x, name)
    if x.ndim != 2 or x.shape[0] < 1 or x.shape[1] < 1 or not x.is_floating_point():
        raise ValueError(f"{name}: expected floats of shape (N, D), got {x.dtype} of shape {tuple(x.shape)}")
    x = x.detach()
    x = x if x.dtype == torch.float64 else x.float()
    wrong = int((~torch.isfinite(x)).any(1).sum())
    if wrong:
        raise ValueError(f"{name}: expected finite numbers, got NaN or inf in {wrong} of {len(x)} rows")
    return x


def _labels(labels: Tensor, x: Tensor, name: str) -> Tensor:
    labels = _tensor(labels, name)
    if labels.shape != x.shape[:1] or labels.is_floating_point() or labels.is_complex():
        raise ValueError(f"{name}: expected {len(x)} integers, got {labels.dtype} of shape {tuple(labels.shape)}")
    labels = labels.to(x.device, torch.int64)  # of some unsigned integers torch knows no minimum
    lowest = int(labels.min())
    if lowest < 0:
        raise ValueError(f"{name}: expected a class of at least 0 for every row, got {lowest} (-1 stands for unknown)")
    return labels
