"""LDReg's whole step on a CUDA device: from rows to a mean of ln LID and its gradient.

It takes few kernels and never waits for the device. Beyond the sizes below, on other devices, in float64 or without
Triton, `neighbors` and `estimators` do the same in more steps.
"""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ldreg.dimension.cuda.nearest import CAPABILITY, can_launch
from ldreg.dimension.search import Neighbors, first_order, gradients

Terms = Literal["plain", "absolute", "square"]
Outer = Literal["sum", "mean", "root", "absolute"]

# "auto" chooses by device and size; tests and benchmarks force one path: differences of all pairs, candidates from the
# tensor cores first ("screened"), or no fused step at all ("plain").
PATH: Literal["auto", "differences", "screened", "plain"] = "auto"

_SCREENED_TERMS = 1 << 33  # terms of differences from which on candidates come from products
_MOST_TERMS = 1 << 37  # of all differences, where candidates cannot come from products
_MOST_PAIRS = 1 << 26  # squared distances held
_MOST_CANDIDATES = 1 << 14  # rows that one query selects from at once
_MOST_VALUES = 1 << 30  # of a set, whose places must fit int32
_MOST_DIMENSIONS = 1 << 16
_CAPABILITY = (7, 5)
_MOST_SCREENED = 128  # neighbors whose candidates one program sorts
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Reduction(NamedTuple):
    """How ln LID of the regular points becomes a scalar: scale · outer(mean of terms(ln LID - offset)).

    `terms` is "plain" (t), "absolute" (|t|) or "square" (t²); `outer` is "mean", "root" (of the mean), "absolute" (of
    the mean), or "sum", which takes the sum in place of the mean. `paper`: the convention of LID is "paper".
    Offset and scale must be floats, since Triton compiles kernels anew for integers.
    """

    paper: bool
    terms: Terms
    outer: Outer
    offset: float
    scale: float


class Pass(NamedTuple):
    """Results of the forward pass: the scalar and all that its gradients need.

    value (); totals (3,): slope of the value in the sum of terms, number of regular rows, power of two that scaled the
    rows; rows (4, N): ln LID, Σ d/w and Σ (w - d)/w (all 0 where LID is degenerate), and w; distances (N, k), scaled
    like w, the largest last; indices (N, k).
    """

    value: Tensor
    totals: Tensor
    rows: Tensor
    distances: Tensor
    indices: Tensor


def supports(x: Tensor, reference: Tensor | None, k: int) -> bool:
    """Whether `ldreg_step` accepts x (N, D) and reference (M, D) and is the best choice for them.

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
    """Whether a transform of torch.func or forward-mode differentiation is active, which the kernels do not support."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def _screened(x: Tensor, reference: Tensor | None, k: int) -> bool:
    """Whether candidates come from products first."""
    if PATH != "auto":
        return PATH == "screened"
    (n, dim), m = x.shape, len(x if reference is None else reference)
    large = x.is_cuda and k <= _MOST_SCREENED and n * m * dim >= _SCREENED_TERMS
    return large and torch.cuda.get_device_capability(x.device) >= CAPABILITY


def ldreg_step(
    x: Tensor,
    k: int,
    reference: Tensor | None = None,
    *,
    self_index: Tensor | None = None,
    reduction: Reduction,
    reference_grad: bool = False,
) -> tuple[Tensor, Tensor]:
    """The reduction of ln LID over the regular rows of x, a scalar with gradient, and `Pass.totals`.

    LID is estimated by the method of moments. Arguments are those of `neighbors`, checked except for their values: NaN
    or inf gives NaN, and an entry of `self_index` that is not a row of the reference excludes nothing. Distances below
    about 1e-32 of the largest value count as 0.
    """
    inputs = (x, reference, self_index, k, *reduction)
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

# The reduction comes flat, as operators of torch take it.
_ARGUMENTS = (
    "Tensor x, Tensor? reference, Tensor? self_index, SymInt k, bool paper, str terms, str outer, float offset, "
    "float scale"
)


def _forward(x: Tensor, reference: Tensor | None, self_index: Tensor | None, k: int, *options: Any) -> _Tensors:
    """The tensors of `Pass`."""
    if _screened(x, reference, k):
        from ldreg.dimension.cuda.large_step_kernels import forward
    else:
        from ldreg.dimension.cuda.step_kernels import forward
    value, totals, rows, distances, indices = forward(x, reference, self_index, k, Reduction(*options))
    return value, totals, rows, distances, indices


def _slope(
    x: Tensor, reference: Tensor | None, self_index: Tensor | None, k: int, *options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Value (), totals (3,), and in float32 the gradient (N, D) of the value for x as queries."""
    from ldreg.dimension.cuda.step_kernels import query_gradient

    result, (paper, terms, _, offset, _) = Pass(*_forward(x, reference, self_index, k, *options)), options
    return result.value, result.totals, query_gradient(x, reference, result, paper=paper, terms=terms, offset=offset)


def _keep_slope(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # or every step would fill in zeros for outputs without a gradient
    ctx.save_for_backward(output[2])
    ctx.dtype = inputs[0].dtype


@first_order
def _slope_backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    (slope,) = ctx.saved_tensors
    return None if grad is None else (slope * grad).to(ctx.dtype), *(None,) * 8


class _Slope(torch.autograd.Function):
    """The gradient is computed in the forward pass.

    Autograd calls `backward` in a thread that has just woken up, where Python takes several times as long: on small
    batches longer than all kernels.
    """

    # A function with `setup_context` would support the transforms of torch.func, but autograd then inspects the
    # signature of `forward` at every call, which takes longer than three launches. `supports` excludes transforms.
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        output = _slope(*inputs)
        _keep_slope(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        return _slope_backward(ctx, *grads)


_slope_op = torch.library.custom_op(
    "ldreg::log_lid_slope", _slope, mutates_args=(), schema=f"({_ARGUMENTS}) -> (Tensor, Tensor, Tensor)"
)
_slope_op.register_autograd(_slope_backward, setup_context=_keep_slope)


@_slope_op.register_fake
def _(x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    value, totals, slope = (x.new_empty(shape, dtype=torch.float32) for shape in ((), (3,), x.shape))
    return value, totals, slope


def _both_gradients(
    grad: Tensor, x: Tensor, reference: Tensor | None, saved: list[Tensor], paper: bool, terms: str, offset: float
) -> tuple[Tensor, Tensor | None]:
    """Gradients for x and for the reference; without a reference x receives both."""
    from ldreg.dimension.cuda.step_kernels import distance_slopes

    result = Pass(*saved)
    slopes, distances = distance_slopes(result, paper=paper, terms=terms, offset=offset)
    # Neighbors share rows; torch can be set to sum into them in a fixed order.
    return gradients(slopes * grad, x, reference, Neighbors(distances, result.indices.long()), reference_grad=True)


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


_both_op = torch.library.custom_op(
    "ldreg::reduced_log_lid",
    _forward,
    mutates_args=(),
    schema=f"({_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)


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
