"""What the configs of methods ask of their values."""

import math
from collections.abc import Sequence


def positive(name: str, value: float) -> None:
    """Nothing where value is a finite number above 0.

    Raises:
        ValueError: it is not.

    >>> positive("temperature", 0.1)
    """
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name}: expected a finite number above 0, got {value}")


def weight(name: str, value: float) -> None:
    """Nothing where value is a finite number from 0 on.

    Raises:
        ValueError: it is not.

    >>> weight("covariance", 0.0)
    """
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name}: expected a finite number from 0 on, got {value}")


def share(name: str, value: float) -> None:
    """Nothing where value lies from 0 to 1.

    Raises:
        ValueError: it does not.

    >>> share("momentum", 0.99)
    """
    if not 0 <= value <= 1:
        raise ValueError(f"{name}: expected a number from 0 to 1, got {value}")


def widths(name: str, value: Sequence[int]) -> None:
    """Nothing where value holds at least one width, each from 1 on.

    Raises:
        ValueError: it does not.

    >>> widths("projector", (2048, 128))
    """
    if not value or any(width < 1 for width in value):
        raise ValueError(f"{name}: expected one or more widths from 1 on, got {tuple(value)}")
