"""Dimensionality as torchmetrics metrics, over all batches and processes together.

Both metrics keep all representations in their dtype, N·D numbers (`compute_on_cpu=True` keeps them in main memory). LID
needs all points at once, because the neighbors of a point may be in any batch. Effective rank needs only the sums of
outer products, but these lose digits with the square of the offset: at an offset of 10,000 times the spread, float64
sums of float32 representations give a rank that is off by 0.1 %. A `MetricCollection` stores the representations once
for both metrics.

Neither metric is differentiable; `ldreg.LDReg` is for training. Neither defines whether higher is better: collapse is
low, but noise is highest of all (pass `maximize` to `MetricTracker`).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from ldreg.dimension.estimators import Convention, Estimator, check_options, lid
from ldreg.dimension.geometry import geometric_mean
from ldreg.dimension.neighbors import as_matrix
from ldreg.dimension.spectrum import effective_rank
from ldreg.distributed import gather_rows
from ldreg.integrations import check_whole

__all__ = ["EffectiveRank", "LocalIntrinsicDimension"]


class _Collecting(Metric):
    """A metric that keeps all representations that it is given."""

    is_differentiable: bool = False
    higher_is_better: bool | None = None
    full_state_update: bool = False
    plot_lower_bound: float = 0.0
    representations: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"dist_sync_fn": gather_rows, **kwargs})
        self.add_state("representations", default=[], dist_reduce_fx="cat")

    def update(self, representations: Tensor) -> None:
        """Add the representations (n, D) of a batch."""
        self.representations.append(_copied(representations, self.representations))

    @torch.jit.unused
    def forward(self, representations: Tensor) -> Any:
        """Add a batch, and measure it by itself.

        Raises:
            ValueError: the batch cannot be measured. It is not added, and earlier batches remain.
        """
        rows = _copied(representations, self.representations)
        # torchmetrics clears the state and does not restore it when `compute` fails.
        before = {**self.__dict__, "representations": self.representations}
        if isinstance(self.representations, list):
            before["representations"] = list(self.representations)
        try:
            return super().forward(rows)
        except Exception:
            self.__dict__.update(before)
            raise

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Figure and axes with one result, a sequence of results, or by default what `compute` returns now."""
        return self._plot(val, ax)


class LocalIntrinsicDimension(_Collecting):
    """Geometric-mean LID of all representations (N, D) seen since the last reset, each among all of the others.

    As in `ldreg.inspect`, the mean excludes points of LID 0 (all k neighbors coincide with the point) and inf (all are
    equally far); `counts=True` returns their numbers. It is NaN if no point is regular. The result is float32, or
    float64 for representations in float64, and the same on every process as on one process with all points.

    `forward` measures the batch by itself, which must have more than k points; otherwise it raises and keeps what was
    collected. `update` accepts any batch.

    Args:
        k: number of neighbors, at least 2 and below the number of points.
        estimator: "mom", "mle" or "tle", as in `ldreg.lid`.
        convention: "paper" or "pseudocode", as in `ldreg.lid`.
        counts: whether to return {"lid", "zero", "infinite"}, with the numbers of excluded points.
        **kwargs: arguments of `torchmetrics.Metric`.

    Raises:
        ValueError: an option is unknown; in `update`, the shape differs from before; in `compute`, there are NaN or
            inf, or at most k representations.

    >>> plane = torch.rand(2000, 2, generator=torch.Generator().manual_seed(0)) @ torch.eye(2, 16)
    >>> metric = LocalIntrinsicDimension(k=64)
    >>> for batch in plane.split(100):
    ...     metric.update(batch)
    >>> round(metric.compute().item(), 1)
    2.0
    """

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
        super().__init__(**kwargs)
        self.k = k
        self.estimator: Estimator = estimator
        self.convention: Convention = convention
        self.counts = counts

    def compute(self) -> Tensor | dict[str, Tensor]:
        """The geometric mean, a scalar; with `counts`, a dict of scalars."""
        values = lid(_joined(self.representations), self.k, estimator=self.estimator, convention=self.convention)
        mean = geometric_mean(values.double()).to(values.dtype)
        if not self.counts:
            return mean
        return {"lid": mean, "zero": (values == 0).sum(), "infinite": torch.isinf(values).sum()}


class EffectiveRank(_Collecting):
    """Effective rank of all representations (N, D) seen since the last reset, as `ldreg.effective_rank` defines it.

    It is computed in float64 and returned in float32, or in float64 for representations in float64. It is the same on
    every process as on one process with all points.

    Args:
        **kwargs: arguments of `torchmetrics.Metric`.

    Raises:
        ValueError: in `update`, the shape differs from before; in `compute`, there are NaN or inf, or fewer than 2
            representations.

    >>> metric = EffectiveRank()
    >>> metric.update(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    >>> metric.update(torch.tensor([[0.0, 1.0], [0.0, -1.0]]))
    >>> metric.compute()
    tensor(2.)
    """

    def compute(self) -> Tensor:
        """The effective rank, a scalar."""
        x = _joined(self.representations)
        if len(x) < 2:
            raise ValueError(f"representations: expected at least 2 to compute {type(self).__name__} of, got {len(x)}")
        return effective_rank(x).to(torch.promote_types(x.dtype, torch.float32))


def _copied(representations: Tensor, before: Sequence[Tensor]) -> Tensor:
    """A copy of a batch to keep, because the encoder may overwrite its output at its next call."""
    rows = as_matrix(representations, "representations").detach().clone()
    if len(before) and rows.shape[1] != before[0].shape[-1]:
        raise ValueError(f"representations: expected (n, {before[0].shape[-1]}) as before, got {tuple(rows.shape)}")
    return rows


def _joined(state: list[Tensor] | Tensor) -> Tensor:
    """All representations (N, D), of a list of batches or, once processes have synchronized, a tensor."""
    x = state if isinstance(state, Tensor) else torch.cat(state) if state else torch.empty(0)
    if x.numel() == 0:
        raise ValueError("representations: expected an update before compute, got none")
    wrong = len(x) - int(torch.isfinite(x).all(1).sum())
    if wrong:
        raise ValueError(f"representations: expected finite numbers, got NaN or inf in {wrong} of {len(x)} rows")
    return x
