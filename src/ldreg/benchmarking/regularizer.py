"""One training step's share of the regularizer, forward and backward: ldreg beside the paper's pseudocode."""

from collections.abc import Callable

import numpy
import torch
from torch import Tensor

from ldreg.benchmarking.contest import OWN, Array, Benchmark, Contender, Goal, Size
from ldreg.regularizers.ldreg import LDReg


def ours(x: Array, k: int) -> Array:
    """`ldreg.LDReg`, in the pseudocode's convention so that gradients can be compared."""
    return _gradient(LDReg(k, beta=1.0, convention="pseudocode"), x)


def pseudocode(x: Array, k: int) -> Array:
    """The paper's Algorithms 1 and 2."""

    def penalty(representations: Tensor) -> Tensor:
        ordered, _ = torch.cdist(representations, representations.detach()).sort(dim=1)
        return _penalty(ordered, k)

    return _gradient(penalty, x)


def cdist_topk(x: Array, k: int) -> Array:
    """The same with the smallest distances chosen instead of all sorted."""

    def penalty(representations: Tensor) -> Tensor:
        distances = torch.cdist(representations, representations.detach())
        return _penalty(distances.topk(k + 1, dim=1, largest=False).values, k)

    return _gradient(penalty, x)


def _penalty(ordered: Tensor, k: int) -> Tensor:
    mean = ordered[:, 1:k].mean(dim=1)
    return -(mean / (ordered[:, k] - mean)).log().abs().mean()


def _gradient(penalty: Callable[[Tensor], Tensor], x: Array) -> Array:
    representations = torch.from_numpy(x).requires_grad_()
    penalty(representations).backward()
    assert representations.grad is not None
    return representations.grad.numpy()


def nearly_largest_relative(values: Array, own: Array) -> float:
    """How far the gradient of a point lies from ours, relative to its norm: the 99th percentile of all points.

    Not the largest, because two neighbors may tie for the k-th place within rounding, and then either is right but
    pulls the point its own way.
    """
    off = numpy.linalg.norm(values - own, axis=1) / numpy.linalg.norm(own, axis=1)
    return float(numpy.quantile(off, 0.99))


def _matrices(size: Size) -> int:
    """Distances, the same ordered, their order in int64, and two gradients of distances."""
    return 24 * size.points**2


BENCHMARK = Benchmark(
    title="Regularizer, forward and backward",
    contenders={
        OWN: Contender(ours),
        "pseudocode": Contender(pseudocode, bytes_needed=_matrices),
        "cdist + topk": Contender(cdist_topk, bytes_needed=_matrices, counts=False),
    },
    deviation=nearly_largest_relative,
    deviation_of="gradient, 99th percentile of all points",
    sizes=(Size(1024, 512), Size(4096, 2048)),
    quick_sizes=(Size(200, 16),),
    goals=(
        Goal(Size(4096, 2048), "speed", 1.5, rival="pseudocode"),
        Goal(Size(4096, 2048), "memory share", 0.5, rival="pseudocode"),
    ),
)
