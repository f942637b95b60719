"""Check and convert the arguments of `inspect`."""

import math
import warnings
from collections.abc import Iterable, Sequence
from os import PathLike
from typing import Any

import numpy
import torch
from torch import Tensor

from ldreg.dimension.estimators import Convention, Estimator, check_options
from ldreg.dimension.neighbors import as_matrix, as_whole, no_matrix
from ldreg.distributed import local_rank

_WIDE = 4  # times as many columns as rows: rows and columns may be exchanged


def check_settings(
    k: int,
    *,
    estimator: Estimator = "mom",
    convention: Convention = "paper",
    sample: int | None = None,
    device: str | torch.device | None = None,
    seed: int = 0,
) -> None:
    """Raise ValueError for settings of `inspect` that are wrong whatever the data."""
    check_options(k, estimator, convention)
    if as_whole(k) is None:
        raise ValueError(f"k: expected an integer, got {k!r}")
    number, start = as_whole(sample), as_whole(seed)
    if sample is not None and (number is None or number < 1):
        raise ValueError(f"sample: expected at least 1, got {sample!r}")
    if start is None or not -(2**63) <= start < 2**64:  # what torch can seed a generator with
        raise ValueError(f"seed: expected an integer from -2^63 to 2^64 - 1, got {seed!r}")
    if device is None or str(device) == "auto":
        return
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise ValueError(f"device: expected auto, cpu or cuda, got {str(device)!r}") from error
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"device: expected auto, cpu or cuda, got {str(device)!r}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device: torch finds no CUDA device for {str(device)!r}; expected cpu or auto")


def as_embeddings(value: Any, name: str, k: int) -> Tensor:
    """A floating tensor (N, D) of more than k rows; a tensor is not copied. ValueError otherwise."""
    if isinstance(value, str | PathLike):
        raise ValueError(f"{name}: expected an array (N, D), got {value!r}; files are for the command `ldreg inspect`")
    if len(shape := getattr(value, "shape", ())) > 2:
        raise no_matrix(shape, name)
    with warnings.catch_warnings():
        # torch warns that a read-only memory-mapped array must not be written to; nothing here writes.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        x = as_matrix(value, name).detach()
    if k >= len(x):
        raise ValueError(f"{name}: expected more points than k, which is {k}, got {len(x)}{_hint(*x.shape)}")
    return x


def _hint(points: int, dimensions: int) -> str:
    """Advice for too few points: a smaller k, a power of two up to 64, or transposing."""
    smaller = min(64, 2 ** int(math.log2(points / 2))) if points >= 4 else 0
    exchanged = "; are rows and columns exchanged?" if dimensions > _WIDE * points else ""
    return (f"; try k={smaller}" if smaller else "") + exchanged


def as_names(labels: Sequence[Any] | Tensor, name: str, points: int, *, of: str) -> list[str]:
    """A label for each point, as text; ValueError for another number of labels, or for rows of several."""
    if isinstance(labels, str) or not isinstance(labels, Iterable) or getattr(labels, "ndim", 1) == 0:
        raise ValueError(f"{name}: expected {points}, one for each row of {of}, got {labels!r}")
    if isinstance(labels, Tensor | numpy.ndarray) and labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    values = [_plain(value) for value in _plain(labels)]
    if len(values) != points:
        raise ValueError(f"{name}: expected {points}, one for each row of {of}, got {len(values)}")
    if isinstance(values[0], list):
        shape = (points, len(values[0]))
        raise ValueError(f"{name}: expected one for each row of {of}, got shape {shape}; argmax(1) names one-hot rows")
    return [str(int(value)) if isinstance(value, float) and value.is_integer() else str(value) for value in values]


def _plain(value: Any) -> Any:
    """An array as a list or number; anything else unchanged."""
    return value.tolist() if isinstance(value, Tensor | numpy.ndarray) else value


def as_device(x: Tensor, wanted: str | torch.device | None, *, shared: bool) -> torch.device:
    """The device to measure x on: the wanted one, or else a GPU if there is one, or else that of x.

    Ranks that share the work take one GPU each unless a device is wanted.

    Raises:
        ValueError: there are fewer GPUs than ranks.
    """
    if wanted is not None and str(wanted) != "auto":
        device = torch.device(wanted)
    elif x.device.type == "cpu" and torch.cuda.is_available():
        device = torch.device("cuda")
    else:
        device = x.device
    if str(device) != "cuda":  # the CPU, or a GPU by its number
        return device
    if not shared:
        return torch.device("cuda", torch.cuda.current_device())
    if local_rank() >= torch.cuda.device_count():
        raise ValueError(
            f"device: expected a GPU for each process of this machine, got {torch.cuda.device_count()} for "
            f"{local_rank() + 1} or more"
        )
    return torch.device("cuda", local_rank())


def device_name(device: torch.device) -> str:
    """The kind of device and, of a GPU, its model."""
    return f"{device.type} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type
