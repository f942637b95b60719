"""The regularizer's forward and backward pass on one batch: ldreg and the paper's pseudocode."""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ldreg.bench.lid import Error, checked_rows, compiled, exact_neighbors, measure_points
from ldreg.bench.measure import OWN, Benchmark, Contender, Device, Goal, Points
from ldreg.regularizers.ldreg import LDReg

Penalty = Callable[..., Tensor]  # from representations (N, D), and k by name, to a scalar

_CHECKED = {"cpu": 256, "cuda": 512}  # points whose gradient is computed in float64
_COMPILED, _CAPTURED, _CAPTURED_RIVAL = "ldreg (compiled)", "ldreg (captured)", "pseudocode (captured)"


def ours(representations: Tensor, *, k: int) -> Tensor:
    """`ldreg.LDReg`, in the pseudocode's convention so that gradients can be compared."""
    return _module(k)(representations)  # type: ignore[no-any-return]


def ours_compiled(representations: Tensor, *, k: int) -> Tensor:
    """The same compiled with CUDA graphs, as by `--trainer.compile` on one GPU."""
    torch.compiler.cudagraph_mark_step_begin()
    return _module(k, compiled=True)(representations)  # type: ignore[no-any-return]


@functools.cache
def _module(k: int, *, compiled: bool = False) -> LDReg:
    module = LDReg(k, beta=1.0, convention="pseudocode")
    if compiled:
        module.compile(mode="reduce-overhead", dynamic=False)  # batches of training are of one size
    return module


def pseudocode_penalty(representations: Tensor, *, k: int) -> Tensor:
    """What the paper's Algorithm 2 adds to the loss, with a beta of 1."""
    return _penalty(torch.cdist(representations, representations.detach()).sort(dim=1).values[:, 1 : k + 1])


def cdist_topk(representations: Tensor, *, k: int) -> Tensor:
    """The same with the smallest distances chosen instead of all sorted."""
    distances = torch.cdist(representations, representations.detach())
    return _penalty(distances.topk(k + 1, dim=1, largest=False).values[:, 1:])


def matmul_topk(representations: Tensor, *, k: int) -> Tensor:
    """The same from matrix products, compiled."""
    return compiled(_penalty_of_products)(representations, k=k)


def _penalty_of_products(representations: Tensor, *, k: int) -> Tensor:
    points = representations.detach()
    squares = representations.square().sum(dim=1, keepdim=True) + points.square().sum(dim=1)
    near = (squares - 2 * representations @ points.T).topk(k + 1, dim=1, largest=False).values[:, 1:]
    return _penalty(near.sqrt())


def torchid(representations: Tensor, *, k: int) -> Tensor:
    """The differentiable mean of torchid: not of logarithms, and with gradients of the neighbors."""
    mean: Tensor = importlib.import_module("torchid.functional").mom_id(representations, n_neighbors=k)
    return mean


def _penalty(near: Tensor) -> Tensor:
    """The penalty from distances (N, k) to the nearest others, ascending."""
    mean = near[:, :-1].mean(dim=1)
    return -(mean / (near[:, -1] - mean)).log().abs().mean()


def gradient(penalty: Penalty, x: Tensor, k: int) -> Tensor:
    """The gradient (N, D) of a penalty by one forward and backward pass."""
    representations = x.detach().requires_grad_()
    penalty(representations, k=k).backward()
    assert representations.grad is not None
    return representations.grad


_graphs: dict[torch.Size, tuple[Tensor, torch.cuda.CUDAGraph, Tensor]] = {}  # a process measures one contender


def captured_gradient(penalty: Penalty, x: Tensor, k: int) -> Tensor:
    """The same by a CUDA graph, captured at the first call with a shape, as a training step may be as a whole."""
    if x.shape not in _graphs:
        own = x.detach().clone().requires_grad_()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # compiles what may not be compiled while capturing
            for _ in range(3):
                torch.autograd.grad(penalty(own, k=k), own)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            (found,) = torch.autograd.grad(penalty(own, k=k), own)
        _graphs[x.shape] = own, graph, found
    own, graph, found = _graphs[x.shape]
    with torch.no_grad():
        own.copy_(x)
    graph.replay()
    return found


def exact_gradient(x: Tensor, rows: Tensor, k: int) -> Tensor:
    """The gradient (R, D) of the penalty for these rows, in float64."""
    _, indices = exact_neighbors(x, rows, k)
    queries = x[rows].double().requires_grad_()
    near = (queries[:, None] - x[indices].double()).norm(dim=2)
    (gradient,) = torch.autograd.grad(_penalty(near) * len(rows) / len(x), queries)
    return gradient


def gradient_error(x: Tensor, k: int, values: Tensor) -> float:
    """The 99th percentile of |values - exact| / |exact| over the checked points, exact in float64; NaN counts as inf.

    Not the largest: if two neighbors tie for the k-th place within rounding, either is right, with its own gradient.
    """
    rows = checked_rows(x, _CHECKED[x.device.type])
    exact = exact_gradient(x, rows, k)
    errors = (values[rows].to(exact) - exact).norm(dim=1) / exact.norm(dim=1)
    return float(errors.nan_to_num(torch.inf).quantile(0.99))


def _contender(
    penalty: Penalty, error: Error | None = gradient_error, *, captured: bool = False, **options: Any
) -> Contender:
    graphed = captured or penalty is ours_compiled
    options |= {"devices": ("cuda",), "counts": False} if graphed else {}
    run = functools.partial(captured_gradient if captured else gradient, penalty)
    return Contender(functools.partial(measure_points, run, error, graphed=graphed), **options)


def _matrices(size: Points, device: Device) -> int:
    """Distances, the same ordered, their order in int64, and two gradients of distances."""
    return 24 * size.points**2


def _differences(size: Points, device: Device) -> int:
    """Neighbors of every point, their differences and both again in the backward pass; of 64 neighbors."""
    return 4 * 4 * 64 * size.points * size.dimensions


_SMALL, _LARGE = Points(1024, 512), Points(8192, 2048)

BENCHMARK = Benchmark(
    title="Regularizer, forward and backward",
    contenders={
        OWN: _contender(ours),
        _COMPILED: _contender(ours_compiled),
        _CAPTURED: _contender(ours, captured=True),
        "pseudocode": _contender(pseudocode_penalty, bytes_needed=_matrices),
        _CAPTURED_RIVAL: _contender(pseudocode_penalty, captured=True, bytes_needed=_matrices),
        "cdist + topk": _contender(cdist_topk, bytes_needed=_matrices, counts=False),
        "matmul + topk (compiled)": _contender(matmul_topk, bytes_needed=_matrices, devices=("cuda",), counts=False),
        "torchid": _contender(
            torchid, None, package="torchid", install="torchid", bytes_needed=_differences, counts=False
        ),
    },
    size=Points,
    sizes={
        "cpu": (_SMALL, Points(4096, 2048)),
        "cuda": (_SMALL, Points(2048, 512), Points(4096, 2048), _LARGE),
    },
    quick_sizes=(Points(200, 16),),
    goals=(
        Goal(Points(4096, 2048), "speed", 1.5, rival="pseudocode"),
        Goal(Points(4096, 2048), "memory share", 0.5, rival="pseudocode"),
        Goal(_LARGE, "speed", 6.0, rival="pseudocode", device="cuda"),
        Goal(_LARGE, "memory share", 1 / 8, rival="pseudocode", device="cuda"),
        Goal(_LARGE, "deviation", 1e-3, device="cuda"),
        Goal(_SMALL, "speed", 4.0, rival="pseudocode", device="cuda"),
        Goal(_SMALL, "time", 0.3e-3, device="cuda"),
        Goal(_SMALL, "host time", 0.3e-3, device="cuda"),
        Goal(_SMALL, "time", 0.3e-3, device="cuda", of=_COMPILED),
        Goal(_SMALL, "host time", 0.3e-3, device="cuda", of=_COMPILED),
        Goal(_SMALL, "speed", 4.0, rival=_CAPTURED_RIVAL, device="cuda", of=_CAPTURED),
        Goal(_SMALL, "time", 0.3e-3, device="cuda", of=_CAPTURED),
        Goal(_SMALL, "host time", 0.3e-3, device="cuda", of=_CAPTURED),
        Goal(_SMALL, "deviation", 1e-3, device="cuda"),
    ),
    columns=("time", "host time", "extra memory", "time vs ldreg", "deviation"),
    picture="scaling",
    conditions="float32 normal points",
    deviation_of="gradient, 99th percentile of the points checked against float64",
)
