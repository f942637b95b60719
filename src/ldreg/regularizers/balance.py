"""How hard a regularizer pulls: a share of the loss's gradient in place of beta, and what a beta amounts to."""

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ldreg import distributed
from ldreg.regularizers.base import check, finite, options, whole

if TYPE_CHECKING:  # a slow import
    from matplotlib.figure import Figure

_TRIAL = 20  # calls after which a regularizer that never acted is reported

# The pull is the norm of a regularizer's gradient relative to that of the loss, at the representations.
_NEGLIGIBLE, _DOMINANT = 0.005, 0.5
_USEFUL = 0.1  # the pull that a suggested beta would have
_PATIENCE = 3  # measurements in a row with the same result
_EVERY = 50  # calls between measurements
_READ = 10  # measurements that are looked at, as each look makes the host wait for the device


class Balance(nn.Module):
    """Splits representations in two branches, and mixes the gradients that come back in a fixed proportion.

    The first branch goes to the loss, the second to the regularizer. With g and r their gradients, the backward pass
    continues with g + beta r, where beta = share |g| / |r|. The norms are over the whole batch. Scaling the loss, as
    for mixed precision or accumulation, changes nothing. There is no second backward pass, and the host does not wait
    for the device. The idea is that of the balancer of EnCodec (Défossez et al., 2022).

    `LDReg(share=0.1).fork(z)` uses it. For any other term:

    >>> z = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> balance = Balance(share=0.1)
    >>> for_loss, for_term = balance(z)
    >>> loss = 5 * for_loss.sum() + 1000 * for_term.sum()  # your loss + your term
    >>> loss.backward()
    >>> z.grad  # 5, and 10 % of it
    tensor([[5.5000, 5.5000],
            [5.5000, 5.5000]])
    >>> balance.effective_beta, balance.pull
    (tensor(0.0005), tensor(0.1000))

    If a gradient is 0 or not finite, the backward pass continues with g, and `skipped` counts it. State is kept only
    with `smoothing` or `start`. `torch.compile` leaves the split uncompiled and compiles the code around it.

    Args:
        share: norm of the regularizer's gradient relative to that of the loss; None: only measure it, as `pull`.
        smoothing: from 0 to below 1, the weight of past steps in a moving geometric mean of |g| / |r|. 0 gives exactly
            the share in each step.
        start: number of backward passes before the regularizer acts.
        max_beta: largest effective beta; None: no limit.
        gather: whether norms are over the batches of all ranks, which must then run backward together.

    Attributes:
        effective_beta: factor of the regularizer's last gradient; NaN before, 0 where it did not act.
        pull: norm of the regularizer's last gradient after that factor, relative to that of the loss.
        skipped: backward passes with a gradient that was 0 or not finite.
        due: whether to measure; of effect without a share only.

    Raises:
        ValueError: an option is out of range.
    """

    effective_beta: Tensor
    pull: Tensor
    log_ratio: Tensor
    passes: Tensor
    skipped: Tensor

    def __init__(
        self,
        share: float | None = 0.1,
        *,
        smoothing: float = 0.0,
        start: int = 0,
        max_beta: float | None = None,
        gather: bool = False,
    ) -> None:
        super().__init__()
        check(share is None or finite(share) >= 0, "share", "a finite number from 0 on, or None", share)
        check(0 <= finite(smoothing) < 1, "smoothing", "a number from 0 to below 1", smoothing)
        check(max_beta is None or finite(max_beta) > 0, "max_beta", "a finite number above 0, or None", max_beta)
        self.share = None if share is None else float(share)
        self.smoothing, self.max_beta = float(smoothing), None if max_beta is None else float(max_beta)
        self.start, self.gather = whole("start", start, least=0), gather
        kept = self.smoothing > 0 or self.start > 0
        self.register_buffer("log_ratio", torch.tensor(math.nan), persistent=kept)  # NaN before the first
        self.register_buffer("passes", torch.tensor(0), persistent=kept)
        self.register_buffer("skipped", torch.tensor(0), persistent=kept)
        self.register_buffer("effective_beta", torch.tensor(math.nan), persistent=False)
        self.register_buffer("pull", torch.tensor(math.nan), persistent=False)
        self.due = True
        self._calls = 0
        self._without_term = 0  # backward passes of the loss alone
        self._detached = 0  # calls in training with representations that have no gradient
        self._separate = False

    def forward(self, representations: Tensor) -> tuple[Tensor, Tensor]:
        """The representations for the loss, and those for the regularizer, in float32 or wider."""
        if not torch.compiler.is_compiling():
            return self._branches(representations)
        uncompiled = torch.compiler.disable(self._branches, reason="the backward pass of Balance changes its buffers")
        branches: tuple[Tensor, Tensor] = uncompiled(representations)
        return branches

    def _branches(self, representations: Tensor) -> tuple[Tensor, Tensor]:
        if not (torch.is_grad_enabled() and representations.requires_grad):
            self._detached += self.training and torch.is_grad_enabled()
            if self.share and self._detached == _TRIAL:
                self._warn(f"representations with a gradient, got none in {_TRIAL} calls")
            return representations, representations
        if self.share is None and not self.due:
            return representations, representations.view_as(representations)
        if self.passes.device != representations.device:
            self.to(representations.device)
        self._warn_if_idle()
        for_loss, for_term = _Fork.apply(representations, self)
        return for_loss, for_term

    def extra_repr(self) -> str:
        """The options, as `print` shows them."""
        return options(self)

    @contextmanager
    def separate(self) -> Iterator[None]:
        """Have backward passes in this context add the gradients as they are, and measure nothing.

        So that one can ask for the gradient of the loss or of the regularizer alone.
        """
        self._separate = True
        try:
            yield
        finally:
            self._separate = False

    @torch.no_grad()
    def mixed(self, of_loss: Tensor | None, of_term: Tensor | None) -> Tensor | None:
        """The gradient to continue with, from the gradients of both branches; None stands for 0."""
        if of_term is None:
            self._without_term += not self._separate
            if self.share and self._without_term == _TRIAL and self._skipped_all():
                self._warn(f"a loss with the penalty of fork, got none in {_TRIAL} backward passes")
            return of_loss
        plain = of_term if of_loss is None else of_loss + of_term.to(of_loss.dtype)
        if self._separate:
            return plain
        square = _square(of_term)
        squares = torch.stack([torch.zeros_like(square) if of_loss is None else _square(of_loss), square])
        if self.gather and distributed.active():
            dist.all_reduce(squares)
        log_ratio = (squares[0].log() - squares[1].log()) / 2
        if self.share is None:
            self.effective_beta.fill_(1)
            self.pull.copy_(torch.where(squares[0] > 0, (-log_ratio).exp(), math.nan))
            return plain
        usable = torch.isfinite(log_ratio)
        self.passes += 1
        smoothed = log_ratio
        if self.smoothing > 0:
            past = self.log_ratio.to(log_ratio.dtype)
            smoothed = torch.where(past.isnan(), log_ratio, torch.lerp(log_ratio, past, self.smoothing))
            smoothed = torch.where(usable, smoothed, past)
            self.log_ratio.copy_(smoothed)
        beta = self.share * smoothed.exp()
        if self.max_beta is not None:
            beta = beta.clamp(max=self.max_beta)
        usable = usable & torch.isfinite(beta.to(of_term.dtype))
        self.skipped += ~usable
        acts = usable & (self.passes > self.start) if self.start > 0 else usable
        self.effective_beta.copy_(torch.where(acts, beta, 0))
        self.pull.copy_(torch.where(acts, beta * (-log_ratio).exp(), 0))
        if of_loss is None:
            return None
        both = torch.addcmul(of_loss.to(of_term.dtype), of_term, beta.to(of_term.dtype))
        return torch.where(acts, both.to(of_loss.dtype), of_loss)

    def _warn_if_idle(self) -> None:
        """Warn once if the first backward passes could not be balanced."""
        self._calls += 1
        if self.share and self._calls == _TRIAL and self._skipped_all() and int(self.passes) > 0:
            self._warn(
                f"gradients of both the loss and the regularizer, got none in {int(self.passes)} backward passes; "
                "the loss must use what fork returns"
            )

    def _skipped_all(self) -> bool:
        """Whether no backward pass was balanced; False while a CUDA graph is captured, which must not be waited for."""
        capturing = self.passes.is_cuda and torch.cuda.is_current_stream_capturing()
        return not capturing and int(self.skipped) == int(self.passes)

    def _warn(self, problem: str) -> None:
        warnings.warn(f"share: expected {problem}; the regularizer had no effect", stacklevel=6)


class _Fork(torch.autograd.Function):
    """Two copies of x, whose gradients a Balance mixes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, balance: Balance) -> tuple[Tensor, Tensor]:
        ctx.balance = balance
        ctx.set_materialize_grads(False)
        # A copy, as the loss may change its branch in place. In half precision the gradient of a term without its
        # weight could leave the range.
        wide = torch.promote_types(x.dtype, torch.float32)
        return x.clone(), x.to(wide) if wide != x.dtype else x.view_as(x)

    @staticmethod
    @once_differentiable  # the mixed gradient has no derivative of its own
    def backward(ctx: Any, of_loss: Tensor | None, of_term: Tensor | None) -> tuple[Tensor | None, None]:
        return ctx.balance.mixed(of_loss, of_term), None


def _square(gradient: Tensor) -> Tensor:
    """The squared norm, in float64 where the device has it, so that it neither overflows nor vanishes."""
    dtype = torch.float32 if gradient.device.type == "mps" else torch.float64
    norm: Tensor = torch.linalg.vector_norm(gradient, dtype=dtype)
    return norm.square()


@dataclass(frozen=True)
class BetaSuggestion:
    """The beta that gives a regularizer a share of the gradient.

    Args:
        beta: the suggestion, the geometric mean over batches.
        share: that was asked for.
        betas: the beta of each batch.
    """

    beta: float
    share: float
    betas: tuple[float, ...]

    def plot(self) -> "Figure":
        """The share against beta: a line for each batch, and the suggestion."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5, 3.2), layout="constrained")
        axes = figure.subplots()
        ends = [self.beta / 30, self.beta * 30]
        for beta in self.betas:
            axes.plot(ends, [self.share * end / beta for end in ends], color="#3b73c6", alpha=0.4, linewidth=1)
        axes.axhline(self.share, color="gray", linestyle=":", linewidth=1)
        axes.plot([self.beta], [self.share], "o", color="#d9482b", label=f"beta = {self.beta:.2g}")
        axes.set(xscale="log", yscale="log", xlabel="beta", ylabel="Share of the loss's gradient")
        axes.legend(frameon=False)
        return figure


def suggest_beta(
    batches: Iterable[tuple[Tensor, Tensor]], *, share: float = 0.1, regularizer: nn.Module | None = None
) -> BetaSuggestion:
    """The beta whose gradient has a share of that of the loss, from a few batches.

    `LDReg(share=...)` does this in every step. A suggestion is for loops that need a fixed beta.

    Args:
        batches: the loss of each batch, and the representations (N, D) that it was computed from.
        share: norm of the regularizer's gradient relative to that of the loss, at the representations.
        regularizer: with an attribute `beta` that is not 0; None: `LDReg(k=64)`.

    Raises:
        ValueError: no batch has usable gradients.

    >>> _ = torch.manual_seed(0)
    >>> encoder = nn.Linear(8, 16)
    >>> outputs = [encoder(torch.randn(128, 8)) for _ in range(4)]
    >>> suggestion = suggest_beta([(z.sigmoid().mean(), z) for z in outputs])
    >>> len(suggestion.betas), 0.0005 < suggestion.beta < 0.005
    (4, True)
    """
    check(finite(share) > 0, "share", "a finite number above 0", share)
    if regularizer is None:
        from ldreg.regularizers.ldreg import LDReg

        regularizer = LDReg(k=64)
    check(float(regularizer.beta) != 0, "regularizer", "a beta other than 0", regularizer)  # type: ignore[arg-type]
    regularizer = deepcopy(regularizer)  # whose queue must not take these batches
    betas: list[float] = []
    for loss, representations in batches:
        usable = loss.ndim == 0 and loss.requires_grad and representations.requires_grad
        check(usable, "batches", "scalar losses and representations with gradients", tuple(loss.shape))
        squares = []
        for value in (loss, regularizer(representations)):
            (gradient,) = torch.autograd.grad(value, representations, retain_graph=True, allow_unused=True)
            squares.append(0.0 if gradient is None else _square(gradient).item())
        beta = float(regularizer.beta)  # type: ignore[arg-type]  # of any regularizer
        betas.append(beta * share * math.sqrt(squares[0] / squares[1]) if squares[1] else math.nan)
    return suggestion(betas, share=share)


def suggestion(betas: Sequence[float], *, share: float) -> BetaSuggestion:
    """The geometric mean of the betas of batches, without those of 0 or that are not finite.

    Raises:
        ValueError: there are no others.
    """
    usable = tuple(beta for beta in betas if 0 < beta < math.inf)
    expected = "a batch with finite gradients other than 0 from both the loss and the regularizer"
    check(len(usable) > 0, "batches", expected, len(betas))
    return BetaSuggestion(math.exp(sum(map(math.log, usable)) / len(usable)), share, usable)


class PullWarning:
    """Warn once that a regularizer's pull is negligible or dominant: below 0.005 or above 0.5 three times in a row.

    >>> warning = PullWarning()
    >>> for pull in (0.002, 0.002, 0.002, 0.002):
    ...     message = warning.check(pull, beta=0.01)
    ...     if message:
    ...         print(message)
    pull on the gradient is negligible: 0.002, under 0.005; beta 0.5 would give 10 %
    """

    def __init__(self) -> None:
        self._last: str | None = None  # "negligible", "dominant" or None
        self._row = 0  # checks in a row with the same result
        self.warned = False

    def check(self, pull: float, *, beta: float | None = None) -> str | None:
        """The warning, at the check at which it is due; beta is what the regularizer has now, if known."""
        low = pull < _NEGLIGIBLE
        found = "negligible" if low else "dominant" if pull > _DOMINANT else None
        self._row = self._row + 1 if found == self._last else 1
        self._last = found
        if self.warned or found is None or self._row < _PATIENCE:
            return None
        self.warned = True
        limit = f"under {_NEGLIGIBLE}" if low else f"over {_DOMINANT}"
        message = f"pull on the gradient is {found}: {pull:.2g}, {limit}"
        if beta and 0 < pull < math.inf:
            message += f"; beta {beta * _USEFUL / pull:.2g} would give {100 * _USEFUL:.0f} %"
        return message

    def state_dict(self) -> dict[str, Any]:
        """The state that lets a resumed run warn as an uninterrupted one."""
        return {"last": self._last, "row": self._row, "told": self.warned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of another warning."""
        self._last, self._row, self.warned = state["last"], state["row"], state["told"]


class PullGauge:
    """Measures every 50th call how hard a regularizer pulls, and warns once if that is negligible or dominant.

    It sees the gradients that meet at the representations in the backward pass of the whole loss. If the loss does not
    use the very tensor that the regularizer got, nothing is measured.

    Attributes:
        pull: the last measurement, a scalar; NaN before.
    """

    def __init__(self) -> None:
        self.pull = torch.tensor(math.nan)
        self._calls = 0
        self._warning = PullWarning()

    def branch(self, representations: Tensor, *, beta: float) -> Tensor:
        """The representations for the regularizer."""
        self._calls += 1
        if self._calls % _EVERY or (representations.is_cuda and torch.cuda.is_current_stream_capturing()):
            return representations
        if self._calls <= _READ * _EVERY and not self._warning.warned:
            self._warn(float(self.pull), beta)
        branch = representations.view_as(representations)
        own: list[Tensor] = []

        @torch.no_grad()
        def measure(total: Tensor) -> None:
            if own:
                of_term = own.pop().double()
                rest = (total.double() - of_term).norm()
                self.pull = torch.where(rest > 0, of_term.norm() / rest, math.nan)  # 0: the loss used another tensor

        branch.register_hook(own.append)  # called before the gradients meet
        representations.register_hook(measure)
        return branch

    def _warn(self, pull: float, beta: float) -> None:
        if math.isfinite(pull) and (message := self._warning.check(pull, beta=beta)):
            warnings.warn(f"LDReg: {message}, and share=0.1 with fork gives it at any loss", stacklevel=5)
