"""LDReg: a value to add to any loss that raises the local intrinsic dimensionality of representations."""

import math
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ldreg import distributed
from ldreg.dimension.candidates import candidate_count
from ldreg.dimension.cuda import step
from ldreg.dimension.estimators import Convention, Estimator, check_options, estimate_from
from ldreg.dimension.geometry import regular
from ldreg.dimension.neighbors import as_matrix, as_query, check_rows, neighbors
from ldreg.dimension.search import Neighbors, refuse_nonfinite
from ldreg.regularizers.balance import Balance, PullGauge
from ldreg.regularizers.base import check, finite, options, weight, whole

Norm = Literal["l1", "l2", "frechet"]
Direction = Literal["maximize", "minimize"]

_BETA = 0.01
_STATE = ("queue", "_extra_state")  # entries of the state dict for the queue


class LDReg(nn.Module):
    """The value to add to a loss so that the local intrinsic dimensionality of representations (N, D) is raised.

    `norm="l1"` adds -β·mean(ln LID) and `"l2"` adds -β·sqrt(mean(ln² LID)). With a `target`, `"l1"` adds
    +β·mean|ln(LID/target)|, the mean Fisher-Rao distance to that dimension, and `"l2"` its root mean square.
    `norm="frechet"` adds +β·|mean ln(LID/target)|, the distance of the Fréchet mean to the target, and leaves the
    spread over points free (paper, Section 5 and Appendix A). `direction="minimize"` flips the sign: Min LID (paper,
    Appendix G.2).

    Neighbors come from the batch itself unless `forward` is given a reference. `gather=True` takes them from the
    batches of all ranks, with the value and gradient of one process that holds the whole batch.

    `queue_size` keeps that many past representations of training steps as further candidates, in the state dict. The
    value is 0 in the first steps if the batch alone has fewer than k neighbors. With several processes and `gather`,
    the queue holds representations of all ranks. Without `gather` each rank has its own, or the first rank's where DDP
    broadcasts buffers (its default); a checkpoint has the first rank's. With a queue, `torch.compile` leaves LDReg
    uncompiled and compiles the code around it (`fullgraph=True` is then an error).

    Means are over the regular points. Points of LID 0 or inf, caused by duplicates and equal distances, have no ln LID
    and no gradient; where no point is regular the value is 0. Value and gradient are finite on finite input; only the
    gradient of a float16 input may exceed the range of float16, which gradient scalers handle.

    Dead rows (all zero) and duplicates are left out of the mean, so the value can improve while representations
    collapse. `regular_share` is the share of points that the mean is over. Log both.

    On a CUDA device with Triton, up to about 8192 points of 2048 dimensions, a step with the estimator "mom" takes a
    few fused kernels and never waits for the device, except with `gather`, where ranks compare batch sizes. Values are
    then not checked: NaN or inf gives NaN in that step only, as non-finite rows do not enter the queue; entries of
    `self_index` that are not rows of the reference exclude nothing. Elsewhere both are errors.

    With `share=0.1` in place of beta, LDReg has 10 % of the gradient that the loss has at the representations, whatever
    the size of that loss. `fork` then takes the place of the call. With beta, a warning says once if LDReg has less
    than 0.5 % or more than 50 %, and which beta would give 10 %.

    Args:
        k: number of neighbors.
        beta: strength.
        share: strength as a share of the loss's gradient, in place of beta.
        smoothing: weight of past steps in the ratio of gradients that a share needs; from 0 to below 1.
        start: number of backward passes before a share acts.
        max_beta: largest factor that a share may lead to.
        norm: how Fisher-Rao distances are averaged.
        target: LID to approach; None: as high as possible.
        direction: "minimize" for Min LID; without a target only.
        estimator: as in `ldreg.lid`.
        convention: as in `ldreg.lid`.
        reference_grad: whether gradients flow through neighbors too; the paper's pseudocode detaches them.
        gather: whether to work on the batch of all ranks.
        queue_size: number of past representations to keep as further candidates.

    Raises:
        ValueError: for options out of range, and in `forward` as `ldreg.neighbor_distances` does.

    >>> _ = torch.manual_seed(0)
    >>> representations = torch.randn(128, 16, requires_grad=True)
    >>> reg = LDReg(k=32, beta=0.01)
    >>> value = reg(representations)
    >>> value.backward()
    >>> bool(value < 0), representations.grad.shape
    (True, torch.Size([128, 16]))
    >>> dead = representations.detach() * (torch.arange(128) >= 58)[:, None]  # 45 % of rows are 0
    >>> bool(reg(dead) < value), f"{reg.regular_share:.2f}"
    (True, '0.39')
    """

    queue: Tensor

    def __init__(
        self,
        k: int = 64,
        beta: float = _BETA,
        *,
        share: float | None = None,
        smoothing: float = 0.0,
        start: int = 0,
        max_beta: float | None = None,
        norm: Norm = "l1",
        target: float | None = None,
        direction: Direction = "maximize",
        estimator: Estimator = "mom",
        convention: Convention = "paper",
        reference_grad: bool = False,
        gather: bool = False,
        queue_size: int = 0,
    ) -> None:
        super().__init__()
        # Plain numbers: a compiled step would treat NumPy's as float64 tensors.
        self.k, self.beta = whole("k", k, least=2), weight("beta", beta)
        self.queue_size = whole("queue_size", queue_size, least=0)
        check_options(self.k, estimator, convention)
        check(norm in get_args(Norm), "norm", f"one of {', '.join(get_args(Norm))}", norm)
        check(direction in get_args(Direction), "direction", f"one of {', '.join(get_args(Direction))}", direction)
        check(target is None or finite(target) > 0, "target", "a finite number above 0", target)
        check(target is not None or norm != "frechet", "target", "a number with norm 'frechet'", target)
        check(target is None or direction == "maximize", "direction", "'maximize' with a target", direction)
        check(share is None or self.beta == _BETA, "share", "None with a beta", share)
        for name, value, without in (("smoothing", smoothing, 0), ("start", start, 0), ("max_beta", max_beta, None)):
            check(share is not None or value == without, name, f"{without} without a share", value)
        self.balance: Balance | None = None
        if share is not None:
            self.balance = Balance(share, smoothing=smoothing, start=start, max_beta=max_beta, gather=gather)
        self.smoothing, self.start, self.max_beta = smoothing, start, max_beta
        self._gauge = PullGauge()
        self.target = None if target is None else float(target)
        self.norm, self.direction, self.estimator, self.convention = norm, direction, estimator, convention
        self.reference_grad, self.gather = reference_grad, gather
        self.register_buffer("queue", torch.empty(0, 0))
        self._enqueued = 0
        self._replaced: tuple[Tensor, Tensor] | None = None  # places and rows of the queue before the last batch
        self._regular_share = torch.tensor(math.nan)

    @property
    def share(self) -> float | None:
        """The share of the gradient, which may be changed during training; None: beta counts."""
        return None if self.balance is None else self.balance.share

    @share.setter
    def share(self, value: float) -> None:
        check(
            self.balance is not None and finite(value) >= 0, "share", "a number from 0 on, of LDReg(share=...)", value
        )
        if self.balance is not None:
            self.balance.share = float(value)

    @property
    def regular_share(self) -> Tensor:
        """The share of points that the last value is a mean over: those whose LID is neither 0 nor inf.

        A detached scalar on the device of the representations, NaN before the first call. With `gather` it is the share
        in the batch of all ranks. It is 0 while the queue holds too few rows. It is not part of the state dict.
        """
        return self._regular_share

    def forward(
        self, representations: Tensor, reference: Tensor | None = None, *, self_index: Tensor | None = None
    ) -> Tensor:
        """The scalar to add to the loss.

        Args:
            representations: (N, D), the encoder's output.
            reference: (M, D) where neighbors are sought instead of in the batch; BYOL's is the online and the
                momentum representations together: `reg(z, torch.cat([z, momentum]), self_index=torch.arange(len(z)))`.
            self_index: (N,) the row of the reference that is representation i itself; -1: none.
        """
        trained = torch.is_grad_enabled() and isinstance(representations, Tensor) and representations.requires_grad
        if self.balance is not None and trained:
            raise ValueError("share: expected `z, penalty = reg.fork(representations)`, got a call without fork")
        if trained and not torch.compiler.is_compiling() and not _recomputing() and not step.transformed():
            representations = self._gauge.branch(representations, beta=self.beta) if self.beta else representations
        return self.term(representations, reference, self_index=self_index)

    def fork(
        self, representations: Tensor, reference: Tensor | None = None, *, self_index: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The representations that the loss has to use, and the scalar to add to it.

        With a share, the scalar's gradient is scaled in the backward pass, and its value is that of beta = 1. With
        beta, it is what the call returns.

        >>> z = torch.randn(128, 16, requires_grad=True)
        >>> reg = LDReg(k=32, share=0.1)
        >>> z, penalty = reg.fork(z)
        >>> loss = z.square().mean() + penalty
        >>> loss.backward()
        >>> bool(reg.effective_beta > 0)
        True
        """
        if self.balance is None:
            return representations, self(representations, reference, self_index=self_index)
        if self.reference_grad and reference is not None:
            raise ValueError("reference_grad: expected False with a share and a reference, got True")
        for_loss, for_term = self.balance(as_matrix(representations, "representations"))
        return for_loss, self.term(for_term, reference, self_index=self_index)

    @property
    def effective_beta(self) -> Tensor:
        """The factor of the last gradient: beta, or what gave the share.

        With a share it is NaN before the first backward pass, and 0 after one with a gradient that was 0 or not finite.
        """
        return torch.tensor(self.beta) if self.balance is None else self.balance.effective_beta

    @property
    def pull(self) -> Tensor:
        """The norm of LDReg's gradient relative to that of the loss, at the representations; NaN before the first.

        With a share it is of the last backward pass. With beta it is measured every 50th call, provided that the loss
        uses the very tensor that LDReg got. It is not part of the state dict.
        """
        return self._gauge.pull if self.balance is None else self.balance.pull

    def term(
        self, representations: Tensor, reference: Tensor | None = None, *, self_index: Tensor | None = None
    ) -> Tensor:
        """The scalar without regard to `share`: with one, that of beta = 1."""
        if reference is None and self_index is not None:
            raise ValueError("self_index: expected None without a reference (each row is then its own), got a tensor")
        if self.queue_size > 0 and torch.compiler.is_compiling():
            # The number of rows in the queue changes at every step. Each would recompile the caller's whole function,
            # which torch gives up after eight times.
            uncompiled = torch.compiler.disable(self._value, reason="the queue of LDReg grows from step to step")
            value: Tensor = uncompiled(representations, reference, self_index)
            return value
        if self.estimator == "tle" and torch.compiler.is_compiling():
            # Without fullgraph=True, torch runs this function uncompiled after the error.
            raise ValueError("estimator: expected 'mom' or 'mle' with torch.compile(fullgraph=True), got 'tle'")
        return self._value(representations, reference, self_index)

    def extra_repr(self) -> str:
        """The options, for print."""
        return options(self)

    def _value(self, representations: Tensor, reference: Tensor | None, self_index: Tensor | None) -> Tensor:
        representations = as_matrix(representations, "representations")
        if reference is not None:
            reference = as_matrix(reference, "reference")
        given = None if reference is None else len(reference)
        queued = self._queued()
        reference, self_index, own_rows = self._candidates(representations, reference, self_index, queued)
        keeps = self.queue_size > 0 and self.training and not torch.is_inference_mode_enabled()
        fused = self.estimator == "mom" and step.supports(representations, reference, self.k)
        missing = self.k - candidate_count(representations, reference, self_index)
        if missing > 0:
            if not keeps or missing > self.queue_size - len(queued):
                raise ValueError(self._too_few(len(representations), given))
            # No search checks these values, and non-finite rows would spoil later steps.
            self._enqueue(representations, nonfinite="skip" if fused else "raise")
            self._note(torch.zeros((), device=representations.device), 1)
            return (0 * representations).sum()  # 0, or NaN for NaN and inf, until the queue holds enough
        x, reference, self_index, k = as_query(representations, self.k, reference, self_index)
        if self_index is not None and own_rows is not None:
            shift = _shifted if fused else _shifted_op if torch.compiler.is_compiling() else _checked_and_shifted
            self_index = shift(self_index, own_rows.start, len(own_rows))
        if fused:
            value = self._fused(x, reference, self_index)
        else:
            found = self._neighbors(x, k, reference, self_index)
            log_lid, regular = self._log_lid(found, x, x if reference is None else reference)
            value = self._penalty(log_lid, regular)
        if keeps:
            self._enqueue(representations, nonfinite="skip" if fused else None)
        return value

    def _candidates(
        self, representations: Tensor, reference: Tensor | None, self_index: Tensor | None, queued: Tensor
    ) -> tuple[Tensor | None, Tensor | None, range | None]:
        """The rows in which neighbors are sought (None: the representations), the index of each representation in this
        rank's reference, and the place of that reference in the rows (None: all of them).
        """
        several = self.gather and distributed.active()
        enlarged = several or len(queued) > 0
        if reference is None:
            if not enlarged:
                return None, None, None
            reference, self_index = representations, torch.arange(len(representations), device=representations.device)
        rows = reference if self.reference_grad else reference.detach()
        start = distributed.rank() * len(rows) if several else 0
        own_rows = range(start, start + len(rows)) if enlarged else None
        if several:
            rows = distributed.gather(rows)
        if len(queued):
            if rows.shape[1:] != self.queue.shape[1:]:
                raise ValueError(
                    f"representations: expected {self.queue.shape[1]} columns as in the queue, "
                    f"got shape {tuple(rows.shape)}"
                )
            rows = torch.cat((rows, queued.to(rows.device)))  # in the wider of their dtypes
        return rows, self_index, own_rows

    def _too_few(self, batch: int, reference: int | None) -> str:
        if reference is not None:
            return (
                f"k: expected at most the number of candidates in the {reference} rows of the reference, got {self.k}"
            )
        return (
            f"k: expected fewer than the {batch} representations of the batch, got {self.k}; drop the short batch at "
            "the end of an epoch (drop_last=True of a DataLoader), or set a smaller k or a queue_size"
        )

    def _neighbors(self, x: Tensor, k: int, reference: Tensor | None, self_index: Tensor | None) -> Neighbors:
        """The neighbors; errors call x by the name that `forward` gives it."""
        search = partial(neighbors, x, k, reference, self_index=self_index, reference_grad=self.reference_grad)
        if torch.compiler.is_compiling():
            return search()
        try:
            return search()
        except ValueError as error:
            argument, _, rest = str(error).partition(": ")
            if argument != "x":
                raise
            raise ValueError(f"representations: {rest}") from error

    def _log_lid(self, found: Neighbors, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Ln LID (N,), 0 where LID is degenerate, and the mask (N,) of regular points."""
        values, _ = estimate_from(found, x, rows, self.estimator, self.convention, reference_grad=self.reference_grad)
        usual = regular(values)
        # 1 replaces LID 0 and inf, whose logarithm has no finite slope.
        return torch.where(usual, torch.where(usual, values, 1).log(), 0), usual

    def _fused(self, x: Tensor, reference: Tensor | None, self_index: Tensor | None) -> Tensor:
        """The search, `_log_lid` and `_penalty` in a few kernels."""
        several = self.gather and distributed.active()
        outer: dict[str, step.Outer] = {"l1": "mean", "l2": "root", "frechet": "absolute"}
        reduction = step.Reduction(
            paper=self.convention == "paper",
            terms=self._terms,
            outer="sum" if several else outer[self.norm],
            offset=0.0 if self.target is None else math.log(self.target),
            scale=1.0 if several else self._scale,
        )
        value, totals = step.ldreg_step(
            x, self.k, reference, self_index=self_index, reduction=reduction, reference_grad=self.reference_grad
        )
        if several:
            return self._mean(value, totals[1], len(x))
        self._note(totals[1], len(x))
        return value

    def _penalty(self, log_lid: Tensor, regular: Tensor) -> Tensor:
        """The mean over the regular points of all ranks, in the chosen norm and sign."""
        if self.target is not None:
            log_lid = torch.where(regular, log_lid - math.log(self.target), 0)
        if self._terms != "plain":
            log_lid = log_lid.square() if self._terms == "square" else log_lid.abs()
        return self._mean(log_lid.sum(), regular.sum().to(log_lid.dtype), len(regular))

    def _mean(self, value: Tensor, count: Tensor, points: int) -> Tensor:
        """The penalty, from this rank's sum of terms, its number of regular points and of all points."""
        if self.gather:
            value, count = distributed.total(torch.stack((value, count)))
            points *= distributed.world()
        self._note(count, points)
        mean = value / count.clamp_min(1)
        if self.norm == "l2":
            # The root has no slope at 0, where every ln LID and the gradient are 0.
            mean = torch.where(mean > 0, torch.where(mean > 0, mean, 1).sqrt(), mean)
        elif self.norm == "frechet":
            mean = mean.abs()
        return self._scale * mean

    def _note(self, count: Tensor, points: int) -> None:
        """Store the share of regular points."""
        if not step.transformed():  # tensors of a transform do not outlive it
            self._regular_share = count.detach() / points

    @property
    def _terms(self) -> step.Terms:
        """The function of ln LID (less that of the target) that is averaged."""
        if self.norm == "l2":
            return "square"
        return "plain" if self.target is None or self.norm == "frechet" else "absolute"

    @property
    def _scale(self) -> float:
        beta = self.beta if self.balance is None else 1.0
        return beta if self.target is not None or self.direction == "minimize" else -beta

    def _queued(self) -> Tensor:
        """The past representations, in no order."""
        if self._replaced is None or not _recomputing():
            return self.queue[: self._enqueued]
        place, rows = self._replaced
        return self.queue.index_copy(0, place, rows)[: self._enqueued - len(rows)]

    @torch.no_grad()
    def _enqueue(self, representations: Tensor, *, nonfinite: Literal["raise", "skip"] | None) -> None:
        """Replace the oldest rows of the queue by the batch (of all ranks).

        `nonfinite` says what to do with non-finite rows: "raise" waits for the device and raises ValueError, "skip"
        keeps the row that was in their place without waiting, None knows that all rows are finite.
        """
        if _recomputing():
            return
        new = distributed.gather(representations.detach()) if self.gather else representations.detach()
        if nonfinite == "raise":
            refuse_nonfinite(new, "representations")
        new = new[-self.queue_size :]
        if not self.queue.numel():
            self.queue = torch.zeros(self.queue_size, new.shape[1], dtype=new.dtype, device=new.device)
        self.queue = self.queue.to(torch.promote_types(self.queue.dtype, new.dtype))  # float16 cannot hold all values
        new = new.to(self.queue)
        place = torch.arange(self._enqueued, self._enqueued + len(new), device=new.device) % self.queue_size
        if nonfinite == "skip":
            # NaN would spoil every value until it leaves the queue. An unused place gets an earlier row.
            before = place % max(1, min(self._enqueued, self.queue_size))
            new = torch.where(new.isfinite().all(1, keepdim=True), new, self.queue[before])
        self._replaced = place, self.queue[place]
        self.queue[place] = new
        self._enqueued += len(new)

    def get_extra_state(self) -> Tensor:
        """The number of rows ever put into the queue."""
        return torch.tensor(self._enqueued, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the count of `get_extra_state`."""
        self._enqueued = int(state)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.queue_size == 0:  # no state: checkpoints are the same with and without LDReg
            for name in _STATE:
                del destination[prefix + name]

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        *args: Any,
    ) -> None:
        # The queue gets its width from the first batch and is empty before, here or in the state.
        queue = state_dict.get(f"{prefix}queue")
        if queue is not None:
            fits = len(queue) in (0, self.queue_size)
            check(fits, "queue_size", f"{len(queue)}, as in the state dict", self.queue_size)
            self.queue = torch.empty_like(queue, device=self.queue.device)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, *args)
        if self.queue_size == 0:
            missing_keys[:] = [key for key in missing_keys if key not in [prefix + name for name in _STATE]]


def strengths(module: nn.Module) -> dict[str, float]:
    """Pull and effective beta of the LDReg in a module, once measured; of several, after their names and a slash.

    >>> strengths(nn.ModuleDict({"regularizer": LDReg(beta=0.05)}))
    {'effective_beta': 0.05...}
    """
    parts = [(name, part) for name, part in module.named_modules() if isinstance(part, LDReg)]
    found: dict[str, float] = {}
    for name, part in parts:
        prefix = f"{name}/" if len(parts) > 1 else ""
        found |= {f"{prefix}pull": float(part.pull), f"{prefix}effective_beta": float(part.effective_beta)}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _recomputing() -> bool:
    """Whether a backward pass calls LDReg again, as activation checkpointing does: it has to see what it saw before."""
    return torch._C._current_graph_task_id() != -1


def _shifted(self_index: Tensor, start: int, rows: int) -> Tensor:
    """Indices into one rank's reference, of so many rows, as indices into all rows; -1 where there is no such row.

    >>> _shifted(torch.tensor([0, 2, -1, 3]), start=10, rows=3)
    tensor([10, 12, -1, -1])
    """
    return torch.where((self_index >= 0) & (self_index < rows), self_index + start, -1)


def _checked_and_shifted(self_index: Tensor, start: int, rows: int) -> Tensor:
    check_rows(self_index, rows)
    return _shifted(self_index, start, rows)


# Opaque to torch.compile, which cannot check values.
_shifted_op = torch.library.custom_op("ldreg::shifted", _checked_and_shifted, mutates_args=())
_shifted_op.register_fake(lambda self_index, start, rows: torch.empty_like(self_index))
