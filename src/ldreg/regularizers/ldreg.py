"""LDReg: raise the local intrinsic dimensionality of representations while they are learned."""

import math
from functools import partial
from numbers import Real
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ldreg import distributed
from ldreg.dimension import fused
from ldreg.dimension.estimators import Convention, Estimator, check_options, estimate_from
from ldreg.dimension.geometry import regular
from ldreg.dimension.neighbors import Span, as_matrix, as_query, as_whole, in_whole, neighbors
from ldreg.dimension.search import Neighbors, candidate_count, refuse_nonfinite

Norm = Literal["l1", "l2", "frechet"]
Direction = Literal["maximize", "minimize"]

_STATE = ("queue", "_extra_state")  # what the state dict has of a queue


class LDReg(nn.Module):
    """The value to add to a loss so that the local intrinsic dimensionality of representations (N, D) is raised.

    `norm="l1"` adds -β·mean(ln LID), `"l2"` adds -β·sqrt(mean(ln² LID)), and a `target` adds
    +β·mean|ln(LID/target)|, the mean Fisher-Rao distance to that dimension (or its root mean square, in `"l2"`).
    `norm="frechet"` adds +β·|mean ln(LID/target)|, the distance of the Fréchet mean alone to the target, and leaves
    the spread over points free (paper, Section 5 and Appendix A). `direction="minimize"` turns the sign: Min LID
    (paper, Appendix G.2).

    Neighbors come from the batch itself unless `forward` is given a reference. `gather=True` takes them from the
    batches of all ranks, with the value and gradient of one process that holds the whole batch. `queue_size` keeps
    that many past representations of training steps, which are part of the state dict, as further candidates; in the
    first steps of batches that have no k neighbors without them the value is 0. In several processes they are those of
    all ranks with `gather`; without it each rank's own, or the first rank's where DDP copies buffers, as it does by
    default, and the first rank's are what a checkpoint has. With a queue, `torch.compile` leaves
    LDReg as it is and compiles what is around it (`fullgraph=True` is then an error).

    Means are over the regular points. Points of LID 0 or inf, which duplicates and equal distances cause, have no
    ln LID and no gradient; where no point is regular the value is 0. Value and gradient are finite on finite input;
    only that of a float16 input may be beyond the range of float16, which gradient scalers look for.

    Dead rows (all zero) and duplicates are left out of the mean, so the value can improve while representations
    collapse. `regular_share` is the share of points that the mean is over. Log both.

    On a CUDA device with Triton, up to about 8192 points of 2048 dimensions, a step with the estimator "mom" takes a
    few fused kernels and never waits for the device, unless ranks have to agree on the size of the batch (`gather`).
    Values are then not looked at: NaN or inf in gives NaN out, in that step alone, as rows that are not finite do not
    enter the queue; and entries of `self_index` that are no rows of the reference leave nothing out. Elsewhere both are
    errors.

    Args:
        k: number of neighbors.
        beta: strength.
        norm: how Fisher-Rao distances are averaged.
        target: LID to approach; None: as high as possible.
        direction: "minimize" for Min LID; without a target only.
        estimator: as in `ldreg.lid`.
        convention: as in `ldreg.lid`.
        reference_grad: whether gradients flow through neighbors too; the paper's pseudocode detaches them.
        gather: whether to work on the batch of all ranks.
        queue_size: number of past representations to keep as further candidates; 0: none.

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
        beta: float = 0.01,
        *,
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
        whole = as_whole(k)
        if whole is None:
            raise ValueError(f"k: expected an integer, got {k!r}")
        check_options(whole, estimator, convention)
        _check(norm in get_args(Norm), "norm", f"one of {', '.join(get_args(Norm))}", norm)
        _check(direction in get_args(Direction), "direction", f"one of {', '.join(get_args(Direction))}", direction)
        _check(target is None or _number(target) > 0, "target", "a finite number above 0", target)
        _check(target is not None or norm != "frechet", "target", "a number with norm 'frechet'", target)
        _check(target is None or direction == "maximize", "direction", "'maximize' with a target", direction)
        _check(_number(beta) >= 0, "beta", "a finite number from 0 on", beta)
        rows = as_whole(queue_size)
        if rows is None or rows < 0:
            raise ValueError(f"queue_size: expected a number of rows from 0 on, got {queue_size!r}")
        # Plain numbers: a compiled step would take those of NumPy for tensors of float64.
        self.k, self.beta, self.queue_size = whole, float(beta), rows
        self.target = None if target is None else float(target)
        self.norm, self.direction, self.estimator, self.convention = norm, direction, estimator, convention
        self.reference_grad, self.gather = reference_grad, gather
        self.register_buffer("queue", torch.empty(0, 0))
        self._enqueued = 0
        self._regular_share = torch.tensor(math.nan)

    @property
    def regular_share(self) -> Tensor:
        """The share of points that the last value is a mean of: those whose LID is neither 0 nor inf.

        A detached scalar on the device of the representations, NaN before the first call. With `gather` it is the share
        of the batch of all ranks. It is 0 while the queue holds too few rows. No state dict has it.
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
            self_index: (N,) the row of the reference that is representation i itself; -1: none is.
        """
        if reference is None and self_index is not None:
            raise ValueError("self_index: expected None without a reference (each row is then its own), got a tensor")
        if self.queue_size > 0 and torch.compiler.is_compiling():
            # It would be compiled anew for every count of rows in the queue, and with it all of the caller's function,
            # which torch gives up after eight times.
            uncompiled = torch.compiler.disable(self._value, reason="the queue of LDReg grows from step to step")
            value: Tensor = uncompiled(representations, reference, self_index)
            return value
        return self._value(representations, reference, self_index)

    def extra_repr(self) -> str:
        """The options, for print."""
        names = ("k", "beta", "norm", "target", "direction", "estimator", "convention", "reference_grad", "gather")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in (*names, "queue_size"))

    def _value(self, representations: Tensor, reference: Tensor | None, self_index: Tensor | None) -> Tensor:
        representations = as_matrix(representations, "representations")
        if reference is not None:
            reference = as_matrix(reference, "reference")
        own = reference is None
        reference, self_index, span = self._candidates(representations, reference, self_index)
        keeps = self.queue_size > 0 and self.training and not torch.is_inference_mode_enabled()
        quick = self.estimator == "mom" and fused.supports(representations, reference, self.k)
        missing = self.k - candidate_count(representations, reference, self_index)
        if missing > 0:
            if not keeps or missing > self.queue_size - len(self._queued()):
                raise ValueError(
                    self._too_few(len(representations) if own or reference is None else len(reference), own)
                )
            # No search looks at the values yet, and what is not finite would be in the way of those to come.
            self._enqueue(representations, values="sift" if quick else "look at")
            self._note(torch.zeros((), device=representations.device), 1)
            return (0 * representations).sum()  # 0, or NaN for NaN and inf, until the queue holds enough
        x, reference, self_index, k = as_query(representations, self.k, reference, self_index)
        if quick:
            placed = self_index if self_index is None or span is None else in_whole(self_index, span)
            value = self._fused(x, reference, placed)
        else:
            found = self._neighbors(x, k, reference, self_index, span)
            log_lid, regular = self._log_lid(found, x, x if reference is None else reference)
            value = self._penalty(log_lid, regular)
        if keeps:
            self._enqueue(representations, values="sift" if quick else "take")
        return value

    def _candidates(
        self, representations: Tensor, reference: Tensor | None, self_index: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Span | None]:
        """The rows among which neighbors are sought (None: the representations), which of them each one is, and where
        among them the reference lies that these numbers count (None: it is all).
        """
        several = self.gather and distributed.active()
        enlarged = several or self._enqueued > 0
        if reference is None:
            if not enlarged:
                return None, None, None
            reference, self_index = representations, torch.arange(len(representations), device=representations.device)
        rows = reference if self.reference_grad else reference.detach()
        span = Span(distributed.rank() * len(rows) if several else 0, len(rows)) if enlarged else None
        if several:
            rows = distributed.gather(rows)
        if self._enqueued:
            if rows.shape[1:] != self.queue.shape[1:]:
                raise ValueError(
                    f"representations: expected {self.queue.shape[1]} columns as the queue holds, "
                    f"got shape {tuple(rows.shape)}"
                )
            rows = torch.cat((rows, self._queued().to(rows.device)))  # in the wider of their dtypes
        return rows, self_index, span

    def _too_few(self, rows: int, own: bool) -> str:
        """What to do where the batch, or the reference that was given, has no k neighbors for each row."""
        if not own:
            return f"k: expected no more than the candidates among the {rows} rows of the reference, got {self.k}"
        return (
            f"k: expected fewer than the {rows} representations of the batch, got {self.k}; leave out the short batch "
            "at the end of an epoch (drop_last=True of a DataLoader), take a smaller k, or a queue_size"
        )

    def _neighbors(
        self, x: Tensor, k: int, reference: Tensor | None, self_index: Tensor | None, span: Span | None
    ) -> Neighbors:
        """The neighbors of the representations, which messages call by that name."""
        grad = self.reference_grad
        search = partial(neighbors, x, k, reference, self_index=self_index, span=span, reference_grad=grad)
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
        """The logarithm of LID (N,), 0 where that is degenerate, and where it is regular (N,)."""
        values, _ = estimate_from(found, x, rows, self.estimator, self.convention, reference_grad=self.reference_grad)
        usual = regular(values)
        # Of LID 0 and inf the logarithm has no slope, and 1 stands in for them, lest it turn into NaN.
        return torch.where(usual, torch.where(usual, values, 1).log(), 0), usual

    def _fused(self, x: Tensor, reference: Tensor | None, self_index: Tensor | None) -> Tensor:
        """The same as `_log_lid` and `_penalty` after a search, in few kernels."""
        several = self.gather and distributed.active()
        outer: dict[str, fused.Outer] = {"l1": "mean", "l2": "root", "frechet": "absolute"}
        offset = 0.0 if self.target is None else math.log(self.target)
        value, totals = fused.reduced_log_lid(
            x,
            self.k,
            reference,
            self_index=self_index,
            paper=self.convention == "paper",
            reduction=fused.Reduction(
                self._terms, "sum" if several else outer[self.norm], offset, 1.0 if several else self._scale
            ),
            reference_grad=self.reference_grad,
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
        """The penalty from this rank's sum of terms and number of regular points among its points."""
        if self.gather:
            value, count = distributed.total(torch.stack((value, count)))
            points *= distributed.world()
        self._note(count, points)
        mean = value / count.clamp_min(1)
        if self.norm == "l2":
            # The root has no slope at 0, where every ln LID is 0 and the gradient is 0 as well.
            mean = torch.where(mean > 0, torch.where(mean > 0, mean, 1).sqrt(), mean)
        elif self.norm == "frechet":
            mean = mean.abs()
        return self._scale * mean

    def _note(self, count: Tensor, points: int) -> None:
        """Keep the share of points that the value is a mean of."""
        if not fused.transformed():  # whose tensors do not outlive the transform
            self._regular_share = count.detach() / points

    @property
    def _terms(self) -> fused.Terms:
        """What is averaged: ln LID (less the target's), its absolute value or its square."""
        if self.norm == "l2":
            return "square"
        return "plain" if self.target is None or self.norm == "frechet" else "absolute"

    @property
    def _scale(self) -> float:
        return self.beta if self.target is not None or self.direction == "minimize" else -self.beta

    def _queued(self) -> Tensor:
        """The past representations held, in no order."""
        return self.queue[: self._enqueued]

    @torch.no_grad()
    def _enqueue(self, representations: Tensor, *, values: Literal["take", "look at", "sift"]) -> None:
        """Put the batch (of all ranks) into the queue, in the place of what has been there longest.

        Args:
            representations: of this rank.
            values: "take": they are known to be finite; "look at": wait for the device to know; "sift": do not wait,
                and leave what is in the place of rows that are not finite.

        Raises:
            ValueError: they are not finite, where that is looked at.
        """
        new = distributed.gather(representations.detach()) if self.gather else representations.detach()
        if values == "look at":
            refuse_nonfinite(new, "representations")
        new = new[-self.queue_size :]
        if not self.queue.numel():
            self.queue = torch.zeros(self.queue_size, new.shape[1], dtype=new.dtype, device=new.device)
        self.queue = self.queue.to(torch.promote_types(self.queue.dtype, new.dtype))  # what float16 cannot hold is inf
        new = new.to(self.queue)
        place = torch.arange(self._enqueued, self._enqueued + len(new), device=new.device) % self.queue_size
        if values == "sift":
            # NaN would be in every value until it leaves the queue. A place that was never taken has a row of before.
            before = place % max(1, min(self._enqueued, self.queue_size))
            new = torch.where(new.isfinite().all(1, keepdim=True), new, self.queue[before])
        self.queue[place] = new
        self._enqueued += len(new)

    def get_extra_state(self) -> Tensor:
        """How many rows were ever put into the queue."""
        return torch.tensor(self._enqueued, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        """Take up the count that `get_extra_state` gave."""
        self._enqueued = int(state)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.queue_size == 0:  # no state: a model's checkpoints are the same with LDReg in it and without
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
        # The queue takes its width from the first batch, so before that it is empty, here or in the state.
        queue = state_dict.get(f"{prefix}queue")
        if queue is not None:
            fits = len(queue) in (0, self.queue_size)
            _check(fits, "queue_size", f"{len(queue)}, as in the state dict", self.queue_size)
            self.queue = torch.empty_like(queue, device=self.queue.device)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, *args)
        if self.queue_size == 0:
            missing_keys[:] = [key for key in missing_keys if key not in [prefix + name for name in _STATE]]


def _number(value: object) -> float:
    """The value where it is a finite number, NaN otherwise."""
    try:
        return float(value) if isinstance(value, Real) and math.isfinite(value) else math.nan
    except OverflowError:  # an int beyond all floats
        return math.nan


def _check(valid: bool, name: str, expected: str, got: object) -> None:
    if not valid:
        raise ValueError(f"{name}: expected {expected}, got {got!r}")
