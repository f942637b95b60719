"""Dimensionality as torchmetrics metrics: collected over batches and processes, measured over all of them.

Both metrics keep the representations that they are given, in their dtype, N·D numbers in all (`compute_on_cpu=True`
keeps them in main memory). LID needs all points at once, since the neighbors of one may come in any batch. Effective
rank could be had from sums of outer products in D² numbers, but those lose digits to the square of the offset: around
an offset of 10,000 times the spread, sums of float32 representations in float64 give a rank that is off by 0.1 %. (To
take a shift off first, all processes would have to know it before their first batch.) Metrics that keep the same are
one group of a `MetricCollection`, which holds it once.

Neither metric is differentiable; `ldreg.LDReg` is for training. Neither says whether higher is better: collapse reads
low, but noise reads highest of all (`MetricTracker` wants `maximize` given).
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.distributed import gather_all_tensors

from ldreg.dimension.estimators import Convention, Estimator, check_options, lid
from ldreg.dimension.geometry import geometric_mean
from ldreg.dimension.neighbors import as_matrix
from ldreg.dimension.spectrum import effective_rank
from ldreg.integrations.settings import check_whole

__all__ = ["EffectiveRank", "LocalIntrinsicDimension"]


class _Collecting(Metric):
    """A metric that keeps all representations that it is given."""

    representations: list[Tensor]

    @torch.jit.unused
    def forward(self, representations: Tensor) -> Any:
        """Take in a batch, and measure it by itself.

        Raises:
            ValueError: it cannot be measured. It is then not taken in, and what was collected before is still there.
        """
        rows = _taken(representations, self.representations)
        # torchmetrics sets all of it aside, and does not put it back where measuring fails.
        before = {**self.__dict__, "representations": self.representations}
        if isinstance(self.representations, list):
            before["representations"] = list(self.representations)
        try:
            return super().forward(rows)
        except Exception:
            self.__dict__.update(before)
            raise


class LocalIntrinsicDimension(_Collecting):
    """Geometric-mean LID of all representations (N, D) seen since the last reset, each among all of the others.

    Points of LID 0 (their k neighbors all lie on them) or inf (all are equally far) are left out of the mean, as
    `ldreg.inspect` leaves them out; `counts=True` says how many. NaN where no point is regular. The result is float32,
    or float64 for representations in float64. Between processes, the result of each is that of one with all points.

    `forward` measures the batch by itself, which then must hold more than k points; one that does not is refused, and
    what was collected stays. `update` takes any.

    Args:
        k: number of neighbors, at least 2 and below the number of points.
        estimator: "mom", "mle" or "tle", as in `ldreg.lid`.
        convention: "paper" or "pseudocode", as in `ldreg.lid`.
        counts: whether to return {"lid", "zero", "infinite"}, with the numbers of points left out.
        **kwargs: those of every `torchmetrics.Metric`.

    Raises:
        ValueError: for unknown options, in `update` for representations of another shape, and in `compute` for NaN or
            inf in them, or for no more than k of them.

    >>> plane = torch.rand(2000, 2, generator=torch.Generator().manual_seed(0)) @ torch.eye(2, 16)
    >>> metric = LocalIntrinsicDimension(k=64)
    >>> for batch in plane.split(100):
    ...     metric.update(batch)
    >>> round(metric.compute().item(), 1)
    2.0
    """

    is_differentiable: bool = False
    higher_is_better: bool | None = None
    full_state_update: bool = False
    plot_lower_bound: float = 0.0

    def __init__(
        self,
        k: int = 64,
        *,
        estimator: Estimator = "mom",
        convention: Convention = "paper",
        counts: bool = False,
        **kwargs: Any,
    ) -> None:
        check_whole(2, k=k)
        check_options(k, estimator, convention)
        super().__init__(**{"dist_sync_fn": gather_rows, **kwargs})
        self.k = k
        self.estimator: Estimator = estimator
        self.convention: Convention = convention
        self.counts = counts
        self.add_state("representations", default=[], dist_reduce_fx="cat")

    def update(self, representations: Tensor) -> None:
        """Take in the representations (n, D) of a batch."""
        self.representations.append(_taken(representations, self.representations))

    def compute(self) -> Tensor | dict[str, Tensor]:
        """The geometric mean, a scalar; with `counts`, a dict of scalars."""
        values = lid(_joined(self.representations), self.k, estimator=self.estimator, convention=self.convention)
        mean = geometric_mean(values.double()).to(values.dtype)
        if not self.counts:
            return mean
        return {"lid": mean, "zero": (values == 0).sum(), "infinite": torch.isinf(values).sum()}

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Figure and axes with one result, a sequence of results, or (None) what `compute` gives now."""
        return self._plot(val, ax)


class EffectiveRank(_Collecting):
    """Effective rank of all representations (N, D) seen since the last reset, as `ldreg.effective_rank` defines it.

    It is measured in float64 and returned in float32, or in float64 for representations in float64. Between processes,
    the result of each is that of one with all points.

    Args:
        **kwargs: those of every `torchmetrics.Metric`.

    Raises:
        ValueError: in `update` for representations of another shape, and in `compute` for NaN or inf in them, or for
            fewer than 2 of them.

    >>> metric = EffectiveRank()
    >>> metric.update(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    >>> metric.update(torch.tensor([[0.0, 1.0], [0.0, -1.0]]))
    >>> metric.compute()
    tensor(2.)
    """

    is_differentiable: bool = False
    higher_is_better: bool | None = None
    full_state_update: bool = False
    plot_lower_bound: float = 0.0

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"dist_sync_fn": gather_rows, **kwargs})
        self.add_state("representations", default=[], dist_reduce_fx="cat")

    def update(self, representations: Tensor) -> None:
        """Take in the representations (n, D) of a batch."""
        self.representations.append(_taken(representations, self.representations))

    def compute(self) -> Tensor:
        """The effective rank, a scalar."""
        x = _joined(self.representations)
        if len(x) < 2:
            raise ValueError(f"representations: expected at least 2 to compute {type(self).__name__} of, got {len(x)}")
        return effective_rank(x).to(torch.promote_types(x.dtype, torch.float32))

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Figure and axes with one result, a sequence of results, or (None) what `compute` gives now."""
        return self._plot(val, ax)


def gather_rows(rows: Tensor, group: Any = None) -> list[Tensor]:
    """The rows (n, D) of every process, in order of rank; a process without any may send an empty tensor of any kind.

    torchmetrics' own way needs as many axes and the same dtype everywhere, and in the place of a process that saw no
    batch puts a tensor that has neither.

    Raises:
        ValueError: on all processes, where rows have different lengths.
    """
    told: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(told, (rows.dtype, tuple(rows.shape)) if rows.numel() else None, group=group)
    seen = [each for each in told if each is not None]
    if not seen:
        return [rows for _ in told]
    widths = {shape[1:] for _, shape in seen}
    if len(widths) > 1:
        raise ValueError(f"representations: expected rows of one length in all processes, got {sorted(widths)}")
    dtype = reduce(torch.promote_types, (dtype for dtype, _ in seen))
    own = rows.to(dtype) if rows.numel() else rows.new_empty((0, *widths.pop()), dtype=dtype)
    gathered: list[Tensor] = gather_all_tensors(own, group)
    return gathered


def _taken(representations: Tensor, before: Sequence[Tensor]) -> Tensor:
    """A batch to keep: a copy, since what an encoder returned may be written over by its next call."""
    rows = as_matrix(representations, "representations").detach().clone()
    if len(before) and rows.shape[1] != before[0].shape[-1]:
        raise ValueError(f"representations: expected (n, {before[0].shape[-1]}) as before, got {tuple(rows.shape)}")
    return rows


def _joined(state: list[Tensor] | Tensor) -> Tensor:
    """All representations (N, D): a list of batches, or what is left of it after processes have synchronized."""
    x = state if isinstance(state, Tensor) else torch.cat(state) if state else torch.empty(0)
    if x.numel() == 0:
        raise ValueError("representations: expected an update before compute, got none")
    wrong = len(x) - int(torch.isfinite(x).all(1).sum())
    if wrong:
        raise ValueError(f"representations: expected finite numbers, got NaN or inf in {wrong} of {len(x)} rows")
    return x
