"""Results of fits that take longer than reading a file; what is damaged is found out and made anew."""

import json
import logging
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ldreg.io.files import read_text, write_atomically
from ldreg.text import printable

logger = logging.getLogger("ldreg")


@dataclass(frozen=True)
class Kept:
    """What is kept of a fitted linear classifier: accuracy on test, steps of the fit and whether it came to its end."""

    accuracy: float
    iterations: int
    converged: bool
    minutes: float

    def __post_init__(self) -> None:
        if type(self.accuracy) is not float or not 0 <= self.accuracy <= 1:
            raise ValueError(f"accuracy: expected a number from 0 to 1, got {self.accuracy!r}")
        if type(self.iterations) is not int or self.iterations < 0:
            raise ValueError(f"iterations: expected a whole number from 0 on, got {self.iterations!r}")
        if type(self.converged) is not bool:
            raise ValueError(f"converged: expected true or false, got {self.converged!r}")
        if type(self.minutes) is not float or not 0 <= self.minutes < math.inf:
            raise ValueError(f"minutes: expected a finite number from 0 on, got {self.minutes!r}")


def read(path: Path) -> Kept | None:
    """What is kept at the path; None where nothing is, or nothing whole, which is said."""
    if not path.is_file():
        return None
    try:
        told: Any = json.loads(read_text(path))
        if not isinstance(told, dict):
            raise ValueError(f"expected an object, got a {type(told).__name__}")
        return Kept(**told)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        reason = printable(" ".join(str(error).split()))[:200]
        logger.warning("%s: cannot be used and is made again (%s)", path, reason)
        return None


def write(path: Path, kept: Kept) -> None:
    """Keep a result, in one step.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(asdict(kept)) + "\n")
