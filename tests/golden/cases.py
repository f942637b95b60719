"""The golden cases: each runs commands or public functions and returns what must stay."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tests.golden.frozen import frozen
from tests.golden.place import Place

Body = Callable[[Place], Any]


@dataclass(frozen=True)
class Case:
    """One golden case: what it runs and how exactly its numbers are compared."""

    body: Body
    slow: bool
    tolerance: float  # relative

    def frozen(self, place: Place) -> Any:
        return {"torch": torch.__version__, "result": frozen(self.body(place))}


CASES: dict[str, Case] = {}


def case(*, slow: bool = False, training: bool = False) -> Callable[[Body], Body]:
    """Register a case. Training multiplies the rounding of a processor, so such cases have a wide tolerance."""

    def register(body: Body) -> Body:
        CASES[body.__name__] = Case(body, slow, 2e-2 if training else 1e-5)
        return body

    return register


# The modules below register their cases in CASES.
from tests.golden import command_line, long, measured, public, trained  # noqa: E402, F401
