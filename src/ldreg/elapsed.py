"""How long a training has taken, over all the parts that it was resumed in."""

import time
from typing import Any


class Elapsed:
    """Counts seconds for a callback of Lightning, whose checkpoints keep them.

    It stands before `Callback` among the bases, whose methods of the same names keep nothing.

    >>> part = Elapsed()
    >>> part.load_state_dict({"seconds": 60.0})
    >>> part.seconds >= 60
    True
    """

    def __init__(self) -> None:
        self._before, self._started = 0.0, time.monotonic()

    @property
    def seconds(self) -> float:
        """How long it has taken, with the parts before it was resumed."""
        return self._before + time.monotonic() - self._started

    def state_dict(self) -> dict[str, Any]:
        """The time that it has taken."""
        return {"seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting from there."""
        self._before, self._started = state_dict["seconds"], time.monotonic()
