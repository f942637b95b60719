"""Exact Euclidean nearest neighbors: checks of the arguments, autograd and torch.compile around `search`."""

import warnings
from collections.abc import Sequence
from operator import index
from typing import Any

import torch
from torch import Tensor

from ldreg.dimension.candidates import Progress, candidate_count
from ldreg.dimension.search import Neighbors, first_order, gradients, search, working_dtype


def neighbors(
    x: Tensor,
    k: int,
    reference: Tensor | None = None,
    *,
    self_index: Tensor | None = None,
    reference_grad: bool = False,
    progress: Progress | None = None,
) -> Neighbors:
    """The k nearest rows of the reference for every row of x, exact to rounding at any offset and scale.

    Float16 and bfloat16 input is measured in float32. Distances are differentiable with respect to x, and to the
    reference where `reference_grad` is set (without a reference, x then receives both gradients).

    Args:
        x: queries (N, D).
        k: number of neighbors, at least 1 and at most the number of candidates.
        reference: where neighbors are sought, (M, D); None: in x itself, each row's own index excluded.
        self_index: (N,) the row of the reference that is query i itself and so not its neighbor; -1: none.
        reference_grad: whether gradients flow into the reference too.
        progress: called with the fraction done; the result then has no gradient.

    Raises:
        ValueError: for wrong ranks, dtypes or sizes, NaN or inf, or k out of range.

    >>> x = torch.tensor([[0.0], [1.0], [3.0]])
    >>> found = neighbors(x, 2)
    >>> found.distances
    tensor([[1., 3.],
            [1., 2.],
            [2., 3.]])
    >>> found.indices
    tensor([[1, 2],
            [0, 2],
            [1, 0]])
    """
    x, reference, self_index, k = as_query(x, k, reference, self_index)
    if progress is not None:
        with torch.no_grad():
            return _search(x, reference, self_index, k, progress)
    inputs = (x, reference, self_index, k, reference_grad)
    # The operator is opaque to torch.compile, but its first call loads the compiler, which takes a second or more.
    return Neighbors(*(_neighbors_op(*inputs) if torch.compiler.is_compiling() else _Neighbors.apply(*inputs)))


def neighbor_distances(x: Tensor, k: int, reference: Tensor | None = None) -> Tensor:
    """Distances (N, k), ascending, of every row of x to its k nearest rows of the reference.

    Without a reference, neighbors are sought in x itself and each row's own index is excluded; a duplicate elsewhere
    counts as a neighbor at distance 0. See `neighbors` for what is accepted and raised.

    >>> neighbor_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), k=1)
    tensor([[5.],
            [5.]])
    >>> neighbor_distances(torch.tensor([[0.0]]), k=2, reference=torch.tensor([[0.0], [2.0], [9.0]]))
    tensor([[0., 2.]])
    """
    return neighbors(x, k, reference).distances


def as_matrix(value: Any, name: str) -> Tensor:
    """A floating-point tensor (N, D) from anything that torch.as_tensor takes; ValueError otherwise."""
    tensor = as_real_matrix(value, name)
    if tensor.is_floating_point():
        return tensor
    # float32 holds integers up to 2^24 only.
    return tensor.to(torch.float64 if tensor.dtype.itemsize >= 4 else torch.float32)


def as_real_matrix(value: Any, name: str) -> Tensor:
    """A tensor (N, D) of any real dtype from anything that torch.as_tensor takes; ValueError otherwise."""
    tensor = as_numbers(value, name)
    if tensor.ndim != 2 or 0 in tensor.shape:
        raise no_matrix(tensor.shape, name)
    if tensor.is_complex():
        raise ValueError(f"{name}: expected real numbers, got {tensor.dtype}")
    return tensor


def no_matrix(shape: Sequence[int], name: str) -> ValueError:
    """The error for an array that is not a matrix of points.

    >>> no_matrix((8, 64, 7, 7), "x")
    ValueError('x: expected a non-empty matrix (N, D), got shape (8, 64, 7, 7); pool or flatten all axes but the first')
    """
    advice = "; pool or flatten all axes but the first" if len(shape) > 2 else ""
    return ValueError(f"{name}: expected a non-empty matrix (N, D), got shape {tuple(shape)}{advice}")


def as_numbers(value: Any, name: str) -> Tensor:
    """A dense tensor of a dtype that torch computes with, whose integers fit float64; ValueError otherwise.

    >>> as_numbers([[1, 2]], "x").dtype, as_numbers(torch.ones(2, dtype=torch.uint16), "x").dtype
    (torch.int64, torch.int64)
    """
    tensor = _as_tensor(value, name)
    if tensor.layout != torch.strided:
        raise ValueError(f"{name}: expected a dense tensor, got layout {tensor.layout}")
    if tensor.is_meta or tensor.is_quantized or tensor.is_nested:
        kind = "meta" if tensor.is_meta else "quantized" if tensor.is_quantized else "nested"
        raise ValueError(f"{name}: expected a tensor of plain numbers, got a {kind} tensor")
    if tensor.is_floating_point():
        return tensor.float() if tensor.dtype.itemsize < 2 else tensor  # torch only stores 8-bit floats
    if tensor.dtype in (torch.uint16, torch.uint32):  # torch only stores these too
        return tensor.long()
    wide = not tensor.is_complex() and tensor.dtype.itemsize == 8 and tensor.numel() > 0
    if wide and (largest := tensor.double().abs().max().item()) >= 2**53:
        raise ValueError(f"{name}: expected integers below 2^53, which float64 holds, got {largest:.3g}")
    return tensor.double() if tensor.dtype == torch.uint64 else tensor


def _as_tensor(value: Any, name: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if hasattr(value, "mask") and hasattr(value, "filled"):  # a NumPy masked array, whose mask torch ignores
        raise ValueError(f"{name}: expected numbers, got a masked array; remove the masked rows first")
    value = _from_table(value, name)
    if hasattr(value, "__array_interface__") and hasattr(value, "dtype"):
        # torch takes NumPy arrays in the native byte order without negative strides.
        value = value.astype(value.dtype.newbyteorder("="), order="C", copy=min(value.strides, default=0) < 0)
    try:
        with warnings.catch_warnings():
            # A read-only array, such as a mapped file, makes torch warn of writing to the tensor; nothing writes to it.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
            return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        message = f"{name}: expected numbers that torch.as_tensor takes, got {type(value).__name__}: {error}"
        raise ValueError(message) from error


def _from_table(value: Any, name: str) -> Any:
    """The numbers of a table or column of pandas, Polars or Arrow: its columns, or the lists in its only one."""
    if type(value).__module__.startswith("pyarrow") and hasattr(value, "to_pandas"):
        value = value.to_pandas()
    if not hasattr(value, "to_numpy"):
        return value
    numbers = value.to_numpy()
    if numbers.dtype != object:
        return numbers
    columns = dict(value.infer_objects().dtypes) if hasattr(value, "columns") else {}
    words = [str(column) for column, kind in columns.items() if getattr(kind, "kind", "O") not in "biuf"]
    try:
        if numbers.size == len(numbers):
            return torch.stack([torch.tensor(row) for row in numbers.ravel()])
        if not words:
            return value.to_numpy(float, na_value=float("nan"))
        found = f"other values in {', '.join(words)}"
    except (TypeError, ValueError, RuntimeError) as error:
        found = str(error)
    raise ValueError(f"{name}: expected columns of numbers, or one of lists of one length, got {found}")


def as_whole(value: Any) -> int | None:
    """An integer as an int; None for anything else, including True and False.

    >>> as_whole(5), as_whole(torch.tensor(5)), as_whole(5.0), as_whole(True)
    (5, 5, None, None)
    """
    if isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool"):
        return None
    try:
        return index(value)
    except (TypeError, RuntimeError):  # RuntimeError for a tensor without values
        return None


def as_query(
    x: Tensor, k: int, reference: Tensor | None, self_index: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None, int]:
    """The arguments of `neighbors` as tensors that fit together; ValueError otherwise. It does not look at values."""
    x = as_matrix(x, "x")
    if reference is not None:
        reference = as_matrix(reference, "reference")
        if reference.shape[1] != x.shape[1]:
            raise ValueError(
                f"reference: expected {x.shape[1]} columns as in x, got shape {tuple(reference.shape)} "
                f"for x of shape {tuple(x.shape)}"
            )
        if reference.device != x.device:
            raise ValueError(f"reference: expected it on {x.device} as x is, got {reference.device}")
        if self_index is not None:
            own = _as_tensor(self_index, "self_index").to(x.device)
            if own.shape != (len(x),) or own.is_floating_point() or own.is_complex() or own.dtype == torch.bool:
                raise ValueError(
                    f"self_index: expected {len(x)} integers, one for each row of x, "
                    f"got shape {tuple(own.shape)} of {own.dtype}"
                )
            self_index = own.long().contiguous()  # as kernels read it
    elif self_index is not None:
        raise ValueError("self_index: expected None without a reference (each row is then its own), got a tensor")
    whole = as_whole(k)
    count = candidate_count(x, reference, self_index)
    if whole is None or not 1 <= whole <= count:
        where = "x" if reference is None else "the reference"
        raise ValueError(
            f"k: expected an integer from 1 to {count}, the number of candidate neighbors in {where}, got {k!r}"
        )
    return x, reference, self_index, whole


def check_rows(self_index: Tensor, rows: int) -> None:
    """Raise ValueError unless every entry of self_index (N,) is a row number below `rows`, or -1."""
    others = (self_index < -1) | (self_index >= rows)
    if bool(others.any()):
        first = self_index[others][0].item()
        raise ValueError(f"self_index: expected rows of the reference, 0 to {rows - 1}, or -1, got {first}")


def _search(
    x: Tensor, reference: Tensor | None, self_index: Tensor | None, k: int, progress: Progress | None = None
) -> Neighbors:
    """Check the values of self_index, which torch.compile must not see, and search."""
    if self_index is not None and reference is not None:
        check_rows(self_index, len(reference))
    return search(x, reference, self_index, k, progress)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, reference, _, _, reference_grad = inputs
    distances, indices = output
    ctx.mark_non_differentiable(indices)
    ctx.save_for_backward(x, reference, distances, indices)
    ctx.reference_grad = reference_grad


def _forward(
    x: Tensor, reference: Tensor | None, self_index: Tensor | None, k: int, reference_grad: bool
) -> tuple[Tensor, Tensor]:
    return _search(x, reference, self_index, k)


class _Neighbors(torch.autograd.Function):
    forward = staticmethod(_forward)
    setup_context = staticmethod(_setup_context)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, Tensor | None, None, None, None]:
        x, reference, *found = ctx.saved_tensors
        both = gradients(grad, x, reference, Neighbors(*found), reference_grad=ctx.reference_grad)
        return *both, None, None, None


_neighbors_op = torch.library.custom_op("ldreg::neighbors", _forward, mutates_args=())


@_neighbors_op.register_fake
def _(x: Tensor, reference: Tensor | None, self_index: Tensor | None, k: int, _: bool) -> tuple[Tensor, Tensor]:
    shape = (x.shape[0], k)
    return x.new_empty(shape, dtype=working_dtype(x, reference)), x.new_empty(shape, dtype=torch.int64)


@torch.library.custom_op("ldreg::neighbors_backward", mutates_args=())
def _gradients_op(
    grad: Tensor, x: Tensor, reference: Tensor | None, distances: Tensor, indices: Tensor, reference_grad: bool
) -> tuple[Tensor, Tensor]:
    found = Neighbors(distances, indices)
    grad_x, grad_reference = gradients(grad, x, reference, found, reference_grad=reference_grad)
    return grad_x, x.new_empty(0) if grad_reference is None else grad_reference


@_gradients_op.register_fake
def _(
    grad: Tensor, x: Tensor, reference: Tensor | None, distances: Tensor, indices: Tensor, reference_grad: bool
) -> tuple[Tensor, Tensor]:
    rows = reference if reference_grad else None
    return torch.empty_like(x), x.new_empty(0) if rows is None else torch.empty_like(rows)


@first_order
def _backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, Tensor | None, None, None, None]:
    x, reference, distances, indices = ctx.saved_tensors
    grad_x, grad_reference = _gradients_op(grad, x, reference, distances, indices, ctx.reference_grad)
    return grad_x, grad_reference if ctx.reference_grad and reference is not None else None, None, None, None


_neighbors_op.register_autograd(_backward, setup_context=_setup_context)
