"""How hard a regularizer pulls: the norm of its gradient relative to that of the loss, at the representations."""

import math
import warnings
from typing import Any

import torch
from torch import Tensor

_NEGLIGIBLE, _DOMINANT = 0.005, 0.5
_USEFUL = 0.1  # the pull that a suggested beta would have
_PATIENCE = 3  # measurements in a row with the same result
_EVERY = 50  # calls between measurements
_READ = 10  # measurements that are looked at, as each look makes the host wait for the device


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
