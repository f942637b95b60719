"""The regularizer's whole step on a CUDA device, where it is small enough for all squared distances to be held.

Few kernels and no wait for the device: rows to a mean of ln LID and its gradient (`kernels`). Beyond the
sizes below, on other devices, in float64 or without Triton, `neighbors` and `estimators` do the same in more steps.
"""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ldreg.dimension.screening import CAPABILITY, can_launch
from ldreg.dimension.search import Neighbors, first_order, gradients

Terms = Literal["plain", "absolute", "square"]
Outer = Literal["sum", "mean", "root", "absolute"]

# Which way is taken: "auto" by device and size; tests and benchmarks set another to have that one: differences of all
# pairs, candidates on the tensor cores first, or not fused at all.
PATH: Literal["auto", "differences", "screened", "plain"] = "auto"

# From so many terms of differences on, candidates come from products; where they cannot, up to so many terms are summed
# into so many squared distances. One query selects from so many rows at once, and places among the values of a set must
# fit into int32.
_SCREENED_TERMS = 1 << 33
_MOST_TERMS = 1 << 37
_MOST_PAIRS = 1 << 26
_MOST_CANDIDATES = 1 << 14
_MOST_VALUES = 1 << 30
_MOST_DIMENSIONS = 1 << 16
_CAPABILITY = (7, 5)
_MOST_SCREENED = 128  # neighbors, whose candidates one program orders
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Reduction(NamedTuple):
    """How ln LID of the regular points becomes a scalar: scale · outer(mean of terms(ln LID - offset)).

    `terms` is "plain" (t), "absolute" (|t|) or "square" (t²); `outer` is "mean", "root" (of the mean), "absolute" (of
    the mean), or "sum", which takes the sum in place of the mean.
    """

    terms: Terms
    outer: Outer
    offset: float = 0.0
    scale: float = 1.0


class Pass(NamedTuple):
    """What the forward pass leaves: the scalar, and what its gradients need.

    value (); totals (3,), the slope of the value in the sum of terms, the number of regular rows, and the power of two
    that rows were scaled by; rows (4, N), ln LID, Σ d/w and Σ (w - d)/w (all 0 where LID is degenerate), and w;
    distances (N, k), scaled like w, the largest last; indices (N, k).
    """

    value: Tensor
    totals: Tensor
    rows: Tensor
    distances: Tensor
    indices: Tensor


def supports(x: Tensor, reference: Tensor | None, k: int) -> bool:
    """Whether `reduced_log_lid` takes x (N, D) and reference (M, D) and is the way to choose for them.

    >>> supports(torch.zeros(8, 2), None, 4)
    False
    """
    if PATH == "plain" or transformed():
        return False
    if x.dtype not in _DTYPES or (reference is not None and reference.dtype not in _DTYPES):
        return False
    (n, dim), m = x.shape, len(x if reference is None else reference)
    if m > _MOST_CANDIDATES or dim > _MOST_DIMENSIONS or max(n, m) * max(dim, k, 64) > _MOST_VALUES:
        return False
    if not _screened(x, reference, k) and (n * m > _MOST_PAIRS or n * m * dim > _MOST_TERMS):
        return False
    if PATH != "auto":
        return True
    return x.is_cuda and (torch.compiler.is_compiling() or can_launch(x.device, _CAPABILITY))


def transformed() -> bool:
    """Whether torch.func is at work or forward-mode differentiation, which the kernels know nothing of."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def _screened(x: Tensor, reference: Tensor | None, k: int) -> bool:
    """Whether candidates come from products first."""
    if PATH != "auto":
        return PATH == "screened"
    (n, dim), m = x.shape, len(x if reference is None else reference)
    large = x.is_cuda and k <= _MOST_SCREENED and n * m * dim >= _SCREENED_TERMS
    return large and torch.cuda.get_device_capability(x.device) >= CAPABILITY


def reduced_log_lid(
    x: Tensor,
    k: int,
    reference: Tensor | None = None,
    *,
    self_index: Tensor | None = None,
    paper: bool = True,
    reduction: Reduction,
    reference_grad: bool = False,
) -> tuple[Tensor, Tensor]:
    """The reduction of ln LID over the regular rows of x, a scalar with gradient, and `Pass.totals` as they are.

    LID is that of the method of moments, in the convention "paper" or else "pseudocode". Arguments are those of
    `neighbors`, already checked but for their values: NaN or inf gives NaN, and an entry of `self_index` that is no
    row of the reference leaves nothing out. Distances under about 1e-32 of the largest value count as 0.
    """
    # Whole numbers would have kernels compiled for them.
    options = (reduction.terms, reduction.outer, float(reduction.offset), float(reduction.scale))
    inputs = (x, reference, self_index, k, paper, *options)
    # As in `neighbors`: operators are opaque to torch.compile, and slower to call.
    compiling = torch.compiler.is_compiling()
    if reference_grad:
        value, totals, *_ = _both_op(*inputs) if compiling else _Both.apply(*inputs)
    elif x.requires_grad and torch.is_grad_enabled():
        value, totals, _ = _slope_op(*inputs) if compiling else _Slope.apply(*inputs)
    else:
        with torch.no_grad():
            value, totals, *_ = _both_op(*inputs) if compiling else _forward(*inputs)
    return value, totals


_Tensors = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _forward(
    x: Tensor,
    reference: Tensor | None,
    self_index: Tensor | None,
    k: int,
    paper: bool,
    terms: str,
    outer: str,
    offset: float,
    scale: float,
) -> _Tensors:
    """What `Pass` holds."""
    if _screened(x, reference, k):
        from ldreg.dimension.step_kernels import forward
    else:
        from ldreg.dimension.kernels import forward
    value, totals, rows, distances, indices = forward(
        x, reference, self_index, k, paper=paper, terms=terms, outer=outer, offset=offset, scale=scale
    )
    return value, totals, rows, distances, indices


def _slope(
    x: Tensor,
    reference: Tensor | None,
    self_index: Tensor | None,
    k: int,
    paper: bool,
    terms: str,
    outer: str,
    offset: float,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Value (), totals (3,), and in float32 the gradient (N, D) of the value for x as queries."""
    from ldreg.dimension.kernels import query_gradient

    left = Pass(*_forward(x, reference, self_index, k, paper, terms, outer, offset, scale))
    return left.value, left.totals, query_gradient(x, reference, left, paper=paper, terms=terms, offset=offset)


def _keep_slope(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # or zeros for what has no gradient would be filled in at every step
    ctx.save_for_backward(output[2])
    ctx.dtype = inputs[0].dtype


@first_order
def _slope_backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    (slope,) = ctx.saved_tensors
    return None if grad is None else (slope * grad).to(ctx.dtype), *(None,) * 8


class _Slope(torch.autograd.Function):
    """The gradient is found in the forward pass: autograd calls `backward` in a thread that has just woken.

    There Python takes several times as long, on small batches longer than all kernels.
    """

    # One with `setup_context` would be open to the transforms of torch.func, but autograd then looks at the signature
    # of `forward` at every call, which takes longer than three launches. `supports` sends those the plain way.
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        output = _slope(*inputs)
        _keep_slope(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        return _slope_backward(ctx, *grads)


_slope_op = torch.library.custom_op("ldreg::log_lid_slope", _slope, mutates_args=())
_slope_op.register_autograd(_slope_backward, setup_context=_keep_slope)


@_slope_op.register_fake
def _(x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    value, totals, slope = (x.new_empty(shape, dtype=torch.float32) for shape in ((), (3,), x.shape))
    return value, totals, slope


def _both_gradients(
    grad: Tensor, x: Tensor, reference: Tensor | None, saved: list[Tensor], paper: bool, terms: str, offset: float
) -> tuple[Tensor, Tensor | None]:
    """Gradients for x and for the reference, that of x including both where it is its own reference."""
    from ldreg.dimension.kernels import distance_slopes

    left = Pass(*saved)
    slopes, distances = distance_slopes(left, paper=paper, terms=terms, offset=offset)
    # Neighbors share rows, and torch can be told to sum into those in a fixed order.
    return gradients(slopes * grad, x, reference, Neighbors(distances, left.indices.long()), reference_grad=True)


def _keep_both(ctx: Any, inputs: tuple[Any, ...], output: _Tensors) -> None:
    x, reference, _, _, paper, terms, _, offset, _ = inputs
    ctx.options = (paper, terms, offset)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, reference, *output)


class _Both(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> _Tensors:
        output = _forward(*inputs)
        _keep_both(ctx, inputs, output)
        return output

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 9
        x, reference, *saved = ctx.saved_tensors
        return *_both_gradients(grad, x, reference, saved, *ctx.options), *(None,) * 7


_both_op = torch.library.custom_op("ldreg::reduced_log_lid", _forward, mutates_args=())


@_both_op.register_fake
def _(x: Tensor, reference: Tensor | None, self_index: Tensor | None, k: int, *_: Any) -> _Tensors:
    n = len(x)
    shapes = ((), (3,), (4, n), (n, k))
    value, totals, rows, distances = (x.new_empty(shape, dtype=torch.float32) for shape in shapes)
    return value, totals, rows, distances, x.new_empty((n, k), dtype=torch.int32)


@torch.library.custom_op("ldreg::reduced_log_lid_backward", mutates_args=())
def _both_gradients_op(
    grad: Tensor, x: Tensor, reference: Tensor | None, saved: list[Tensor], paper: bool, terms: str, offset: float
) -> tuple[Tensor, Tensor]:
    grad_x, grad_reference = _both_gradients(grad, x, reference, saved, paper, terms, offset)
    return grad_x, x.new_empty(0) if grad_reference is None else grad_reference


@_both_gradients_op.register_fake
def _(grad: Tensor, x: Tensor, reference: Tensor | None, *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(0) if reference is None else torch.empty_like(reference)


@first_order
def _both_backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 9
    x, reference, *saved = ctx.saved_tensors
    grad_x, grad_reference = _both_gradients_op(grad, x, reference, saved, *ctx.options)
    return grad_x, None if reference is None else grad_reference, *(None,) * 7


_both_op.register_autograd(_both_backward, setup_context=_keep_both)
